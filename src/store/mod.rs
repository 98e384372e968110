//! Objects on a block device: a log of items in segments, an ordered index in memory, checkpoints. docs/STORE.md has the format.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`index`] | what a core knows of its objects |
//! | `names` | the bytes of names |
//! | `tree` | an ordered set of entry numbers |
//! | `pool` | things by number, with places used again |

pub mod index;
mod names;
mod pool;
mod tree;
