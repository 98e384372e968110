//! A RoCEv2 HCA in user space: the protocol engine of [`proto::rc`](crate::proto::rc) over a wire.
//!
//! | file | part |
//! | --- | --- |
//! | [`hca`] | the queue: send, receive, look, complete; each bounded per poll |
//! | [`control`] | queue pairs made, connected and closed; grants |
//! | [`memory`] | grants, and the placement of what a peer sends |
//! | [`frame`] | RoCEv2 frames built and judged |
//! | [`keys`] | tables keyed by our own random numbers |
//! | [`wire`] | rings in shared memory, a UDP socket, the simulated network |

pub mod control;
pub mod frame;
pub mod hca;
pub mod keys;
pub mod memory;
pub mod wire;

pub use hca::Soft;
