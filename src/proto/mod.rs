//! Protocol engines without I/O, in the manner of quinn-proto: packets and time go in, packets, placements and completions come
//! out. One seed replays a whole run.
//!
//! | module | engine |
//! | --- | --- |
//! | [`rc`] | a reliable connection of RoCEv2: requester and responder |
//!
//! UC and UD share `rc`'s work requests and completions and will stand beside it; connection management (MADs over QP1) too.

pub mod rc;

// For our own tests, benches and fuzz targets, which live in other crates; not part of the interface.
#[doc(hidden)]
pub mod testing;
