//! Basin: one hugepage-backed region that is RDMA memory, AF_XDP packet memory and storage I/O memory at once, and one
//! reactor thread per core that moves bytes between network, RDMA and storage without copying them.
//!
//! Layers import only leftwards:
//!
//! ```text
//! base ← mem ← device ← reactor ← flow          base ← wire ← proto
//! reactor ← store ← s3 ← client
//! wire and proto may be used by device, flow, store and s3
//! ```
//!
//! | layer | what it is |
//! | --- | --- |
//! | [`base`] | units, errors, limits, time, randomness, topology |
//! | [`mem`] | the region, its leases, and the only functions that copy payload |
//! | [`wire`] | codecs: bytes to meaning and back, no state |
//! | [`proto`] | protocol engines without I/O: events and time in, packets and completions out |
//! | [`device`] | queues of real and simulated hardware behind one contract |
//! | [`reactor`] | the loop of a core: poll, run tasks, sleep |
//! | [`flow`] | the five flows, one file each |
//! | [`store`] | objects on a block device |
//! | [`s3`] | S3 on the store |
//! | [`client`] | objects by RDMA or HTTP, for programs and for `basin cp` |
//! | [`bench`] | the loops behind `basin bench` |
//! | [`peer`] | the other end of stock RDMA test programs, behind `basin rdma-peer` |
//! | [`selftest`] | kernel features checked by using them |
//! | [`doctor`] | what this machine has and lacks for all of it |
#![deny(unsafe_code)]

pub mod base;
pub mod bench;
pub mod client;
pub mod device;
pub mod doctor;
pub mod flow;
pub mod mem;
pub mod peer;
pub mod proto;
pub mod reactor;
pub mod s3;
pub mod selftest;
pub mod store;
pub mod wire;
