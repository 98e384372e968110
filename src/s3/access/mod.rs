//! Who may do what: users, lists of access, policies, public access block, object ownership, and the decision made of them.
//!
//! Everything here is a function of what it is given; nothing reads a clock, a socket or the store. A [decision](fn@decide) allocates
//! nothing: policies are read once and evaluated as they lie, lists of access are read where they are kept.
//!
//! | module | what |
//! | --- | --- |
//! | [`users`] | the users of a server: keys, accounts, attached policies |
//! | [`canonical`] | the identifiers of accounts |
//! | [`action`] | the actions of S3, by their names in policies |
//! | [`acl`], [`requested`] | lists of access: kept, and as requests ask for them |
//! | [`policy`] | policies of buckets and users; `principal`, `resource`, `condition`, `key`, `pattern`, `json` are parts of it |
//! | [`ownership`] | who owns what others put, and whether lists count |
//! | [`public`] | the public access block |
//! | [`decide`](mod@decide) | the decision |
//!
//! An operation may need several decisions, the gateway's to make: a copy reads one object and puts another, and tags that are set with an
//! object are an action of their own where a bucket's policy is to tell them apart.

pub mod acl;
pub mod action;
pub mod canonical;
mod condition;
pub mod decide;
mod json;
pub mod key;
pub mod ownership;
mod pattern;
pub mod policy;
mod principal;
pub mod public;
pub mod requested;
mod resource;
#[cfg(test)]
mod tests;
pub mod users;

pub use acl::{Acl, AclRef, Grant, Grantee, Group, Permission};
pub use action::{Action, Of};
pub use canonical::CanonicalId;
pub use decide::{Bucket, Denied, Request, Target, decide, may_know_absent};
pub use key::{AuthType, Context, Headers, NoHeaders, Requester, Tags};
pub use ownership::Ownership;
pub use policy::Policy;
pub use public::PublicAccessBlock;
pub use requested::{Canned, Requested};
pub use users::{User, UserConfig, Users};
