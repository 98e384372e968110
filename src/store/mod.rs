//! Objects on a block device: a log of items in segments, an ordered index in memory, checkpoints. docs/STORE.md has the format.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`format`](mod@format) | making a store |
//! | [`recover`] | what is on a device, told to catalogs |
//! | [`catalog`] | what a core knows of its shards |
//! | [`log`] | items put together to writes |
//! | [`read`](mod@read) | reading items |
//! | [`draft`] | an item before it is written |
//! | [`scan`] | items in what was read of a segment |
//! | [`index`] | object versions by name |
//! | [`layout`] | where the items of one write lie |
//! | `names` | the bytes of names |
//! | `tree` | an ordered set of entry numbers |
//! | [`segments`] | which are free, and how much of each is needed |
//! | `pool` | things by number, with places used again |

pub mod catalog;
pub mod draft;
pub mod format;
pub mod index;
pub mod layout;
pub mod log;
mod names;
mod pool;
pub mod read;
pub mod recover;
pub mod scan;
pub mod segments;
#[cfg(test)]
mod testing;
mod tree;
