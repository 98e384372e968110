//! S3 over RDMA as bytes: what names a client's memory in HTTP ([`token`]), requests and answers that are SENDs ([`frame`]),
//! and which core of a server has which names ([`deal`]).
//!
//! docs/S3-RDMA.md is the protocol. Tokens are rights to memory: what holds them shows nothing of them, so that they get into no log.

pub mod deal;
pub mod frame;
pub mod token;

use std::fmt;

/// Memory of a client, which it has opened to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Its first byte, in the client's addresses.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The client's key for it.
    pub rkey: u32,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes, ..)", self.bytes)
    }
}

impl Memory {
    /// Whether all of it has addresses.
    pub fn is_addressable(&self) -> bool {
        self.bytes == 0 || self.address.checked_add(self.bytes - 1).is_some()
    }
}
