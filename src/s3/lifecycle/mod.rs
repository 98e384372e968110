//! When objects, versions and uploads end by themselves: what a bucket's rules say, and who does it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`rules`] | what the rules of a bucket say of a version or an upload: a decision without I/O |
//! | [`walk`] | how each version of a list stands to the others of its name |
//! | [`worker`] | who goes through the buckets and does what the rules say |
//!
//! The rules are kept as a document of the bucket's. Answers tell when an object ends by the same decision the worker makes.

pub mod rules;
pub mod walk;
pub mod worker;
