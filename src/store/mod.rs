//! Objects on a block device: a log of items in segments, an ordered index in memory, checkpoints. docs/STORE.md has the format.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`handle`] | what any core can ask of a store |
//! | [`launch`] | a store on several cores |
//! | [`crew`] | the cores of a store ask one another |
//! | [`engine`] | what a core does for its shards: looks up, judges conditions, commits |
//! | [`put`], [`get`] | objects as streams |
//! | `far_put` | a put whose name another core has |
//! | [`append`], [`rename`] | more behind one, another name for one |
//! | [`cache`] | what was read and stays in memory |
//! | [`upload`] | uploads in parts |
//! | [`tags`] | tags that objects are given |
//! | `breakdown` | what a panic of a task that others wait for comes to |
//! | `buckets` | buckets |
//! | [`check`] | everything read and compared, at once or at a bounded rate |
//! | [`survey`] | what lies in segments, and what the medium cannot give back |
//! | [`tools`] | what `basin store` does |
//! | [`checkpoint`] | what holds, written down, so that an opening need not read the whole log |
//! | [`compact`] | room made of what is not needed any more |
//! | `sweep` | tombstones that have nothing left to end |
//! | [`open`] | opening and closing |
//! | `locks` | one change of a name at a time |
//! | [`failure`] | why an operation was not done |
//! | `failed` | items that were not written, and may be there |
//! | [`format`](mod@format) | making a store |
//! | [`recover`] | what is on a device, told to catalogs |
//! | `superblocks` | which one holds, and what is wrong with a disk without one |
//! | [`catalog`] | what a core knows of its shards |
//! | [`log`] | items put together to writes |
//! | [`read`](mod@read) | reading items |
//! | [`draft`] | an item before it is written |
//! | [`scan`] | items in what was read of a segment |
//! | `heads` | the heads of a segment, and little else of it |
//! | [`index`] | object versions by name |
//! | [`layout`] | where the items of one write lie |
//! | `names` | the bytes of names |
//! | `tree` | an ordered set of entry numbers |
//! | [`segments`] | which are free, and how much of each is needed |
//! | [`watch`] | what cores tell of themselves |
//! | `pool` | things by number, with places used again |

pub mod append;
mod breakdown;
mod buckets;
pub mod cache;
pub mod catalog;
pub mod check;
pub mod checkpoint;
pub mod compact;
pub mod crew;
#[cfg(test)]
mod cuts;
pub mod draft;
pub mod engine;
mod failed;
pub mod failure;
mod far_put;
#[cfg(test)]
mod faults;
pub mod format;
pub mod get;
pub mod handle;
mod heads;
#[cfg(test)]
mod history;
pub mod index;
pub mod launch;
pub mod layout;
mod locks;
pub mod log;
mod names;
pub mod open;
mod pool;
pub mod put;
pub mod read;
pub mod recover;
pub mod rename;
#[cfg(test)]
mod rot;
pub mod scan;
pub mod segments;
mod superblocks;
pub mod survey;
mod sweep;
pub mod tags;
#[cfg(test)]
pub(crate) mod testing;
pub mod tools;
mod tree;
pub mod upload;
pub mod watch;
