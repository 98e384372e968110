//! The region and the leases on it.
//!
//! A region is one mapping cut into chunks of one size. A chunk is owned by exactly one of: a core's [`Slab`] (free), a lease in
//! somebody's hands ([`Buf`], [`Run`], [`Span`], [`Shared`]), a device ([`InFlight`]), a [`Window`] open to a peer, or quarantine. Leases
//! are the only way to a slice of the region; while a device or a peer may touch a chunk nobody holds one.
//!
//! `unsafe` is allowed in this layer and in `device`, nowhere else.
#![allow(unsafe_code)]

pub mod buddy;
mod crc64;
mod dma_buf;
mod guests;
pub mod home;
pub mod lease;
pub mod ledger;
mod md5_crc64;
pub mod payload;
pub mod region;
mod returns;
pub mod room;
pub mod slab;
pub mod span;
pub mod spsc;
pub mod window;

pub use crc64::{Caches, Crc64, crc64, settle_copies};
pub use guests::Guests;
pub use home::Parcel;
pub use lease::{Buf, Run, Shared};
pub use ledger::Ledger;
pub use md5_crc64::md5_and_crc64;
pub use payload::{Gather, InFlight, Payload};
pub use region::{PageKind, Region, RegionConfig};
pub use slab::{Census, Exhausted, Slab};
pub use span::Span;
pub use window::{Revoked, Window};

#[cfg(test)]
mod tests;
