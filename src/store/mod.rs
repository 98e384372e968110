//! Objects on a block device: a log of items in segments, an ordered index in memory, checkpoints. docs/STORE.md has the format.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`index`] | what a core knows of its objects |
//! | [`layout`] | where the items of one write lie |
//! | `names` | the bytes of names |
//! | `tree` | an ordered set of entry numbers |
//! | [`segments`] | which are free, and how much of each is needed |
//! | `pool` | things by number, with places used again |

pub mod index;
pub mod layout;
mod names;
mod pool;
pub mod segments;
mod tree;
