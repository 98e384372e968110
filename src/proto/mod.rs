//! Protocol engines without I/O, in the manner of quinn-proto: packets and time go in, packets, placements and completions come
//! out. One seed replays a whole run.
//!
//! | module | engine |
//! | --- | --- |
//! | [`rc`] | a reliable connection of RoCEv2: requester and responder |
//! | [`uc`] | an unreliable connection: SEND and WRITE that may be lost |
//! | [`ud`] | unreliable datagrams |
//! | [`cm`] | connection management, both roles |
//!
//! UC and UD share `rc`'s work requests, completions and receive queue, and all that is not what a packet means (`unreliable`).

#![allow(clippy::result_large_err, reason = "a refusal gives back the request that was posted")]

pub mod cm;
pub mod rc;
mod sends;
pub mod uc;
pub mod ud;
mod unreliable;

#[cfg(test)]
mod tests;

// For our own tests, benches and fuzz targets, which live in other crates; not part of the interface.
#[doc(hidden)]
pub mod testing;
