//! HTTPS: TLS 1.2 and 1.3 by rustls' unbuffered API on the core's own sockets.
//!
//! What comes is received into chunks of the region and decrypted there; what goes is encrypted into chunks and sent from them. rustls
//! hands out plaintext, and ciphertext, by way of memory of its own: docs/adr/0019 counts the passes, and [`PASSES`] is that number.
//! A connection that waits for its peer has no chunks.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`client`] | the client's end: whom it believes |
//! | [`end`] | what is the same of both ends |
//! | [`identity`] | certificate and key, read at start and again when they change |
//! | [`inbox`] | ciphertext that has come |
//! | [`stream`] | the bytes of a connection |

use std::rc::Rc;
use std::sync::Arc;

use crate::mem::{Ledger, Slab};
use crate::s3::metrics::counters::Counters;
use identity::Identity;

pub mod client;
pub mod end;
pub mod identity;
pub mod inbox;
pub mod stream;

/// What rustls does to every byte in either direction, beside what we do: it is decrypted in place and copied out, or copied, encrypted in
/// place and copied once more.
pub const PASSES: (u32, u32) = (2, 3);

/// What all connections of a core have.
#[derive(Clone)]
pub struct Tls<W = Arc<Identity>> {
    /// Who we are; of a client, whom it believes.
    pub identity: W,
    /// Memory for what comes and goes.
    pub slab: Slab,
    /// Counts the passes over payload.
    pub ledger: Ledger,
    /// Counts handshakes.
    pub counters: Arc<Counters>,
}

impl<W> Tls<W> {
    /// For the connections of a core.
    pub fn new(identity: W, slab: &Slab, counters: Arc<Counters>) -> Rc<Tls<W>> {
        Rc::new(Tls { identity, slab: slab.clone(), ledger: Ledger::new(), counters })
    }
}

#[cfg(test)]
mod tests;
