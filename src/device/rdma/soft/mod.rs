//! A RoCEv2 HCA in user space: the protocol engines of [`proto`](crate::proto) over a wire.
//!
//! | file | part |
//! | --- | --- |
//! | [`borrow`] | READs of memory that a peer on this host lends, and WRITEs to it |
//! | [`hca`] | the queue: send, receive, look, complete; each bounded per poll |
//! | [`connect`] | connections made by `rdma_cm` |
//! | [`control`] | queue pairs made, connected and closed; grants |
//! | [`engine`] | RC, UC or UD under one queue pair |
//! | [`management`] | queue pair 1: connection management |
//! | [`peers`] | links joined, told of, kept and closed |
//! | [`memory`] | grants, and the placement of what a peer sends |
//! | [`shared`] | receives that several queue pairs share |
//! | [`frame`] | RoCEv2 frames built and judged |
//! | [`wire`] | rings in shared memory, a UDP socket, the simulated network |

mod borrow;
pub mod connect;
pub mod control;
pub mod engine;
pub mod frame;
pub mod hca;
pub mod management;
pub mod memory;
mod peers;
pub mod shared;
pub mod wire;

pub use hca::Soft;
