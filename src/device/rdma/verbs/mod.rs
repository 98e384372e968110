//! RDMA devices of the kernel, through libibverbs, which is loaded when the first is opened.
//!
//! | file | part |
//! | --- | --- |
//! | [`ffi`] | the library's objects, with owners |
//! | [`device`] | a device by name, its port, its address, its limits |
//! | [`memory`] | the region registered in pieces |
//! | [`hca`] | the data path: requests posted in batches |
//! | [`complete`] | completions taken in batches, and what ends with each |
//! | [`slot`] | a queue pair: what is posted to it and in which order it completes |
//! | [`request`] | what a device is asked for an operation |
//! | [`control`] | queue pairs made and destroyed |
//! | [`connect`] | queue pairs connected |
//! | [`managed`] | queue pairs connected by the kernel's connection manager |
//! | [`raw`] | queue pairs of whole Ethernet frames |
//! | [`shared`] | receives that several queue pairs share |
//! | [`ways`] | datagrams: address handles, and where headers go |
//! | [`grants`] | windows opened to peers and closed |
//! | [`events`] | what happens beside completions, and a device that goes away |
//!
//! Nothing is posted between polls: [`Qp`](super::Qp) fills batches, the poll rings the doorbell once for each. A queue completes in
//! order, so in a batch of small requests only the last raises a completion, and those before it end with it.
//!
//! A queue pair ends by being destroyed. That is the one proof every device gives that it has let go of what was posted, so leases
//! and windows come back then and not before, whatever became of their requests.

mod complete;
mod connect;
mod control;
mod device;
mod events;
mod ffi;
mod grants;
mod hca;
mod managed;
mod memory;
mod raw;
mod request;
mod shared;
mod slot;
mod ways;

pub use device::known;
pub use hca::Verbs;
