//! Bytes between a client's memory and the store: a body is READ into runs that are then written, an object is WRITTEN from the chunks
//! it was read into.
//!
//! A few pieces are under way at a time. Whoever begins must end: from the answer on a client's memory is its own. So an answer waits until
//! no READ and no WRITE is under way any more, or it is a SEND behind the WRITEs on the same queue pair, which comes when they are done.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::session::{Rdma, Session, Use, WRITING_MAX};
use super::windows::Windows;
use crate::base::Nanos;
use crate::device::Op;
use crate::device::rdma::{BlockSums, Remote};
use crate::mem::{Run, Shared, Slab};
use crate::reactor::Core;
use crate::s3::encryption::reading::Reading;
use crate::s3::error::{Code, S3Error};
use crate::s3::patience::Patience;
use crate::store::draft::Piece;
use crate::wire::store::DATA_BLOCK;

/// Pieces under way at a time.
pub const AHEAD: usize = 4;
/// The most bytes of one that is READ. Several make an extent of the store; while one is summed and hashed the next one comes.
const PIECE_BYTES: u32 = 256 << 10;
/// How long one may take, or an answer until it is taken. The transport itself gives up on a peer that is silent much sooner.
pub const PATIENCE: Patience = Patience { usual: Nanos::from_secs(30), if_short: Nanos::from_secs(10) };
/// How long to wait for memory that others have.
pub const MEMORY_PATIENCE: Nanos = Nanos::from_secs(20);
/// How often to look for it.
pub const MEMORY_LOOK: Nanos = Nanos::from_millis(1);
/// How often to look whether a send queue has room, and how often if its client has taken nothing for so long.
const QUEUE_LOOK: Nanos = Nanos::from_micros(20);
const SLOW_QUEUE_LOOK: Nanos = Nanos::from_millis(1);
const SLOW: Nanos = Nanos::from_millis(10);

/// Bytes that the store reads ahead of what is taken of it.
const READ_AHEAD_BYTES: u64 = 4 << 20;

/// What can be said of a transfer that failed.
fn failed(session: &Session) -> S3Error {
    match session.qp.why_down() {
        Some(why) => S3Error::with(Code::RdmaTransferFailed, format!("The RDMA transfer failed, and nothing was stored: {why}.")),
        None => Code::RdmaTransferFailed.into(),
    }
}

/// How long to wait until the next look whether a session's send queue has room: who takes nothing is not to keep the core awake.
pub fn queue_look(core: &Core, session: &Session) -> Nanos {
    if session.waits(core.turn_time()) > SLOW { SLOW_QUEUE_LOOK } else { QUEUE_LOOK }
}

/// A run of memory for somebody who begins, waiting a while for it: the last of it is for those who have begun.
///
/// # Errors
/// `SlowDown`: there is none.
pub async fn lease_first(core: &Core, slab: &Slab, bytes: u32) -> Result<Run, S3Error> {
    waited(core, || if slab.census().is_short() { None } else { slab.run(bytes).ok() }).await
}

/// A run of memory for somebody who goes on, waiting a while for it.
///
/// # Errors
/// `SlowDown`: there is none.
pub async fn lease(core: &Core, slab: &Slab, bytes: u32) -> Result<Run, S3Error> {
    waited(core, || slab.run(bytes).ok()).await
}

async fn waited(core: &Core, leased: impl Fn() -> Option<Run>) -> Result<Run, S3Error> {
    let until = core.now().saturating_add(MEMORY_PATIENCE);
    loop {
        match leased() {
            Some(run) => return Ok(run),
            None if core.now() < until => core.sleep(MEMORY_LOOK).await,
            None => return Err(Code::SlowDown.into()),
        }
    }
}

/// A body that is READ from a client's memory.
pub struct Pull {
    used: Use,
    core: Core,
    slab: Slab,
    /// What was not asked for yet.
    left: Windows,
    /// What was, in order.
    reading: VecDeque<(Op<Run>, Option<BlockSums>)>,
    /// Who takes it wants the sums of its blocks, and nothing else of its bytes.
    is_summed: bool,
    bytes: u64,
}

impl Pull {
    /// A body in these windows, behind a session's queue pair.
    pub fn new(used: Use, core: &Core, slab: &Slab, windows: impl Into<Windows>) -> Pull {
        let left = windows.into();
        let bytes = left.bytes();
        Pull { used, core: core.clone(), slab: slab.clone(), left, reading: VecDeque::new(), is_summed: false, bytes }
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pieces that are asked for from now on come with the sums of their blocks, if the device has them. Their bytes are not near then.
    pub fn sum(&mut self) {
        self.is_summed = true;
    }

    /// Asks for more as far as there is memory and room for it. Where there is little, only for what somebody waits for who has some.
    fn ask(&mut self) {
        while self.reading.len() < AHEAD
            && let Some(remote) = self.left.front(PIECE_BYTES)
        {
            let is_waited_for = self.reading.is_empty() && self.left.bytes() < self.bytes;
            if !is_waited_for && self.slab.census().is_short() {
                return;
            }
            let Ok(mut run) = self.slab.run(remote.len) else { return };
            run.set_len(remote.len);
            let qp = &self.used.session().qp;
            let submitted = if self.is_summed {
                qp.submit_read_summed(run, remote, DATA_BLOCK).map(|(op, sums)| (op, Some(sums)))
            } else {
                qp.submit_read(run, remote).map(|op| (op, None))
            };
            let Ok(submitted) = submitted else { return };
            self.reading.push_back(submitted);
            self.left.advance(remote.len);
        }
    }

    /// The next piece; nothing at the end.
    ///
    /// # Errors
    /// `RDMATransferFailed`, or no memory for it.
    pub async fn next(&mut self) -> Result<Option<Piece>, S3Error> {
        let until = self.core.now().saturating_add(MEMORY_PATIENCE);
        loop {
            self.ask();
            let Some((reading, sums)) = self.reading.pop_front() else {
                if self.left.bytes() == 0 {
                    return Ok(None);
                }
                if self.core.now() >= until {
                    return Err(Code::SlowDown.into());
                }
                self.core.sleep(MEMORY_LOOK).await;
                continue;
            };
            let session = self.used.session();
            let read = match PATIENCE.wait(&self.core, &self.slab, reading).await {
                Ok(completed) => completed.into_result().map_err(|_| failed(session))?,
                Err(_) => {
                    session.qp.force_error();
                    return Err(failed(session));
                }
            };
            let sums = sums.map(BlockSums::take).unwrap_or_default();
            return session.home(read).await.map(|run| Some(Piece { run, sums }));
        }
    }

    /// Waits until nothing is under way any more: the client's memory is its own from then on.
    pub async fn end(&mut self) {
        self.left.give_up();
        while let Some((reading, _)) = self.reading.pop_front() {
            drop(reading.await);
        }
    }
}

/// Bytes of a session's WRITEs, and of what is read for them, until it is dropped.
struct Writing<'a> {
    of: &'a Cell<u64>,
    bytes: u64,
}

impl Writing<'_> {
    fn new(session: &Session, bytes: u64) -> Writing<'_> {
        session.writing.update(|all| all + bytes);
        Writing { of: &session.writing, bytes }
    }

    /// Only so many are left.
    fn lessen(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.of.update(|all| all - less);
        self.bytes -= less;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.of.update(|all| all - self.bytes);
    }
}

/// WRITEs that are under way.
pub struct Writes<'a> {
    rdma: &'a Rdma,
    session: &'a Rc<Session>,
    writing: VecDeque<(Op<Shared>, Writing<'a>)>,
}

impl Writes<'_> {
    /// Waits for the oldest.
    async fn reap(&mut self) -> Result<(), S3Error> {
        let Some((op, _writing)) = self.writing.pop_front() else { return Ok(()) };
        match PATIENCE.wait(self.rdma.core(), self.rdma.slab(), op).await {
            Ok(completed) => completed.into_result().map(drop).map_err(|_| failed(self.session)),
            Err(_) => {
                self.session.qp.force_error();
                Err(failed(self.session))
            }
        }
    }

    /// Waits until none is under way any more.
    ///
    /// # Errors
    /// `RDMATransferFailed`.
    pub async fn end(mut self) -> Result<(), S3Error> {
        let mut outcome = Ok(());
        while !self.writing.is_empty() {
            outcome = outcome.and(self.reap().await);
        }
        outcome
    }
}

/// Brings pieces into a client's memory, one behind the other.
pub struct Push<'a> {
    writes: Writes<'a>,
    left: Windows,
    /// What the last piece tells the client.
    immediate: Option<u32>,
    /// Of all pieces, where somebody asks for it.
    crc: Option<crc_fast::Digest>,
}

impl<'a> Push<'a> {
    /// Into these windows, behind a session's queue pair.
    pub fn new(rdma: &'a Rdma, session: &'a Rc<Session>, windows: impl Into<Windows>) -> Push<'a> {
        Push { writes: Writes { rdma, session, writing: VecDeque::new() }, left: windows.into(), immediate: None, crc: None }
    }

    /// The piece that fills the memory tells the client so, with this value.
    #[must_use]
    pub fn telling(mut self, immediate: u32) -> Push<'a> {
        self.immediate = Some(immediate);
        self
    }

    /// Brings the next piece, for which there is room.
    ///
    /// # Errors
    /// `RDMATransferFailed`.
    async fn piece(&mut self, piece: Shared) -> Result<(), S3Error> {
        let bytes = piece.len();
        assert!(u64::from(bytes) <= self.left.bytes(), "what does not fit is not begun");
        if let Some(crc) = &mut self.crc {
            crc.update(piece.as_slice());
        }
        let mut at = 0;
        while let Some(remote) = self.left.front(bytes - at) {
            self.write(piece.slice(at, remote.len), remote).await?;
            at += remote.len;
        }
        Ok(())
    }

    /// Writes what goes to one window.
    async fn write(&mut self, piece: Shared, remote: Remote) -> Result<(), S3Error> {
        if self.writes.writing.len() == AHEAD {
            self.writes.reap().await?;
        }
        let immediate = self.immediate.filter(|_| u64::from(remote.len) == self.left.bytes());
        let session = self.writes.session;
        let mut piece = self.patiently(piece, |piece| session.out(piece)).await?;
        let op = loop {
            match self.writes.session.qp.submit_write(piece, remote, immediate) {
                Ok(op) => break op,
                // Others have all of the send queue.
                Err(refused) if self.writes.writing.is_empty() => {
                    piece = refused.lease;
                    self.writes.rdma.core().sleep(queue_look(self.writes.rdma.core(), session)).await;
                }
                Err(refused) => {
                    piece = refused.lease;
                    self.writes.reap().await?;
                }
            }
        };
        self.writes.writing.push_back((op, Writing::new(session, remote.len.into())));
        self.left.advance(remote.len);
        Ok(())
    }

    /// What becomes of a piece that may need memory for it: to be decrypted, or to be where the device reaches it. Who waits for memory
    /// lets go of what he has first: others wait for that.
    async fn patiently(&mut self, mut piece: Shared, mut attempt: impl FnMut(Shared) -> Result<Shared, Shared>) -> Result<Shared, S3Error> {
        let until = self.writes.rdma.core().now().saturating_add(MEMORY_PATIENCE);
        loop {
            piece = match attempt(piece) {
                Ok(piece) => return Ok(piece),
                Err(piece) => piece,
            };
            if !self.writes.writing.is_empty() {
                self.writes.reap().await?;
            } else if self.writes.rdma.core().now() >= until {
                return Err(Code::SlowDown.into());
            } else {
                self.writes.rdma.core().sleep(MEMORY_LOOK).await;
            }
        }
    }

    /// Brings all of a get. When this returns nothing is under way.
    ///
    /// # Errors
    /// `RDMATransferFailed`, or the store's.
    pub async fn get(self, get: &mut Reading) -> Result<(), S3Error> {
        self.all(get).await?.0.end().await
    }

    /// Brings all of a get as far as the queue pair, and gives its CRC64NVME: what is sent on the queue pair from now on comes behind it.
    /// Of a whole object that is the sum it was put with, which so holds from one end to the other.
    ///
    /// # Errors
    /// `RDMATransferFailed`, or the store's; nothing is under way then.
    pub async fn begin(mut self, get: &mut Reading) -> Result<(u64, Writes<'a>), S3Error> {
        let known = get.crc64nvme();
        if known.is_none() {
            self.crc = Some(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        }
        let (writes, crc) = self.all(get).await?;
        Ok((known.or(crc.map(|crc| crc.finalize())).expect("what is not known is summed"), writes))
    }

    async fn all(mut self, get: &mut Reading) -> Result<(Writes<'a>, Option<crc_fast::Digest>), S3Error> {
        let mut left = get.bytes();
        // What is read counts before it is there, for many begin in the same turn, and until all of it was.
        let mut reading = self.enter(left).await;
        loop {
            match self.one(get, &mut left).await {
                Ok(true) => reading.lessen(left),
                Ok(false) => return Ok((self.writes, self.crc)),
                Err(error) => {
                    let _ = self.writes.end().await;
                    return Err(error);
                }
            }
        }
    }

    /// Brings the next piece of a get that has so many bytes left; false where there is none.
    async fn one(&mut self, get: &mut Reading, left: &mut u64) -> Result<bool, S3Error> {
        // Those who begin wait for who has begun, and he waits for nobody.
        while !self.writes.writing.is_empty() && self.writes.session.writing.get() >= WRITING_MAX / 4 * 3 {
            self.writes.reap().await?;
        }
        let Some(piece) = get.fetch().await? else { return Ok(false) };
        *left = left.saturating_sub(piece.len().into());
        let piece = self.patiently(piece, |piece| get.open(piece)).await?;
        self.piece(piece).await.map(|()| true)
    }

    /// Waits while the session has so much under way that what is read now would only wait, behind what its client has not taken.
    async fn enter(&self, bytes: u64) -> Writing<'a> {
        while bytes > 0 && self.writes.session.writing.get() >= WRITING_MAX {
            self.writes.rdma.core().sleep(MEMORY_LOOK).await;
        }
        Writing::new(self.writes.session, bytes.min(READ_AHEAD_BYTES))
    }

    /// The same for a document.
    ///
    /// # Errors
    /// `RDMATransferFailed`.
    pub async fn begin_with(mut self, document: Shared) -> Result<Writes<'a>, S3Error> {
        self.piece(document).await?;
        Ok(self.writes)
    }
}
