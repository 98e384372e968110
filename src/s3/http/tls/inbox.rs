//! Ciphertext that has come and was not decrypted yet, in chunks of the region.
//!
//! It has no chunks while it is empty, few until a peer has sent enough to need more, and never more than a bound. rustls decrypts in
//! place, so what is here is the peer's only in part.

use crate::base::error::ErrorKind;
use crate::base::{Error, Result, limits};
use crate::device::socket::TcpStream;
use crate::mem::{Ledger, Run};
use crate::reactor::Core;
use crate::s3::rdma::transfer::lease;

use super::Tls;

/// Bytes of the first chunks: a handshake's messages, a request without a body.
const SMALL: u32 = 4 << 10;
/// Room for the longest record there is (RFC 8446, section 5.2: 16 KiB, 256 bytes and a header of 5).
const RECORD: u32 = 32 << 10;
/// Several records at once, for bodies, and room for the rest of the last of them.
const LARGE: u32 = 128 << 10;
const LARGE_AT_ONCE: u32 = LARGE - (17 << 10);
const _: () = assert!(RECORD >= (16 << 10) + 256 + 5 && LARGE <= limits::IO_MAX_BYTES);

/// What is wanted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Messages of a handshake: nobody has shown yet who he is.
    Handshake,
    /// A head, or a line.
    Little,
    /// A body.
    Much,
}

/// What has come.
#[derive(Default)]
pub struct Inbox {
    run: Option<Run>,
    start: u32,
    end: u32,
}

impl Inbox {
    /// What has come and was not done with.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        self.run.as_mut().map_or(&mut [][..], |run| &mut run.as_mut_slice()[start..end])
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// So many bytes are done with.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= (self.end - self.start) as usize, "more is done with than has come");
        self.start += count as u32;
        if self.is_empty() {
            // A connection that waits for its peer has no memory.
            *self = Inbox::default();
        }
    }

    /// Waits for more, and says how many bytes came: none at the end of the stream. May be dropped half-way.
    ///
    /// # Errors
    /// The connection failed; there is no memory; or what is here already is more than a message may be.
    pub async fn fill<W>(&mut self, tcp: &mut TcpStream, core: &Core, tls: &Tls<W>, wanted: Wanted) -> Result<usize> {
        tcp.readable().await?;
        let needed = self.make_room(core, tls, wanted).await?;
        let run = self.run.as_mut().expect("room was made");
        // What has begun is received to its end and no further, so that nothing is left that had to be moved.
        let most = match needed.saturating_sub(self.end - self.start) {
            0 | 1 => LARGE_AT_ONCE,
            rest => rest,
        };
        let room = (run.len() - self.end).min(most);
        let count = tcp.receive(run, self.end, room, &tls.ledger).await?;
        self.end += count;
        if self.is_empty() {
            *self = Inbox::default();
        }
        Ok(count as usize)
    }

    /// Has room behind what is here, and enough for a whole record where one has begun: of how many bytes in all.
    async fn make_room<W>(&mut self, core: &Core, tls: &Tls<W>, wanted: Wanted) -> Result<u32> {
        let have = self.end - self.start;
        let capacity = self.run.as_ref().map_or(0, Run::len);
        // A record that has begun has its length in front (RFC 8446, section 5.1).
        let begun = match self.bytes() {
            // Who is not known yet gets room for what he sends, not for what he says he will.
            [_, _, _, high, low, ..] if wanted == Wanted::Much => 5 + (u32::from(*high) << 8 | u32::from(*low)),
            _ => 0,
        };
        // Where what is in front is not the header of a record, but a message that goes on in the next, one byte more is enough to ask for.
        let needed = begun.clamp(have + 1, RECORD.max(have + 1));
        if self.start + needed <= capacity {
            return Ok(needed);
        }
        let size = [SMALL, RECORD, LARGE].into_iter().find(|&size| size >= needed && (wanted != Wanted::Much || size == LARGE));
        let most = if wanted == Wanted::Handshake { RECORD } else { LARGE };
        let size = size
            .filter(|&size| size <= most)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("a message of TLS of more than {have} bytes")))?;
        if size <= capacity {
            self.move_up(&tls.ledger);
            return Ok(needed);
        }
        let mut run = lease(core, &tls.slab, size).await.map_err(|_| no_memory())?;
        tls.ledger.copy(&mut run.as_mut_slice()[..have as usize], self.bytes());
        *self = Inbox { run: Some(run), start: 0, end: have };
        Ok(needed)
    }

    /// Moves what is here to the front of its chunks.
    fn move_up(&mut self, ledger: &Ledger) {
        let Some(run) = &mut self.run else { return };
        run.as_mut_slice().copy_within(self.start as usize..self.end as usize, 0);
        ledger.note(self.end - self.start);
        (self.start, self.end) = (0, self.end - self.start);
    }
}

/// That there are no chunks for a connection.
pub fn no_memory() -> Error {
    Error::new(ErrorKind::Unavailable, "TLS: no memory for a connection").remedy("more store.memory, or fewer clients")
}
