//! The log of a core: items put together to writes, several of which are on their way at once.
//!
//! Whoever appends an item waits for the write it is in, and for nothing else. While all writers are busy items gather, and the next write
//! takes all there are: with one client a write has one item, with many it has many, and no timer decides.
//!
//! The first write to a segment begins with the segment's header, so taking one into use costs no write of its own. Others that follow it
//! into the segment are answered when that one is stable too: without the header their items would not be found.
//!
//! What a write that failed was to write may be on the device. Nothing more goes into a segment that is open then, and the first write to
//! the next one says which items [failed](crate::store::failed): it is stable before anything is answered that was appended later.
//!
//! Segments are kept free for those who make room: what is put never goes into one that was taken for tombstones or copies, and while it
//! waits for room those pass it by. It waits until compaction has freed a segment, or says that there is nothing to gain.

mod bytes;
mod opening;
mod sequences;
mod ticket;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use self::bytes::Owner;
use self::opening::Opening;
pub use self::sequences::Sequences;
use self::ticket::{Appending, Owed, Ticket};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result, Rng, limits};
use crate::device::block::{Disk, Durability};
use crate::device::{Ops, Signal};
use crate::mem::{Ledger, Run, Slab};
use crate::store::draft::{Data, Draft, Kind};
use crate::store::failed::Failed;
use crate::store::failure::{OPEN_ANEW, is_short_of_memory, no_memory, no_operations};
use crate::store::layout::{Ask, Layout, Spot};
use crate::store::recover::lba;
use crate::store::segments::{Purpose, Segments, Taken};
use crate::wire::store::item::Class;
use crate::wire::store::segment;
use crate::wire::store::superblock::{Durability as Promise, Superblock};

/// What errors tell was done.
const WRITING: &str = "writing to the store";
/// Data of more bytes is not put behind its head by the processor: it would not fit into a stretch with the longest head, and the gaps
/// around it are small beside it.
const COPIED_MAX: u32 = 64 << 10;

/// What the log is on.
#[derive(Clone)]
pub struct LogEnv {
    /// The number of its core among those of the store.
    pub core: usize,
    /// For the signals of those who wait.
    pub ops: Ops,
    /// The store's disk.
    pub disk: Disk,
    /// Memory of heads and of data that is copied.
    pub slab: Slab,
    /// Counts what is copied.
    pub ledger: Ledger,
    /// The store's segments.
    pub segments: Arc<Segments>,
    /// The superblock in force.
    pub superblock: Superblock,
}

/// Where an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its sequence number.
    pub sequence: u64,
    /// Its first byte on the device.
    pub address: u64,
    /// To where the next may begin.
    pub item_bytes: u32,
    /// Bytes of its head.
    pub head_bytes: u32,
}

/// Bytes since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Written to the device: the log, headers of segments and checkpoints.
    pub device: u64,
    /// Of items that were new, and no copies of compaction's.
    pub items: u64,
    /// Writes of the log, each of one item or several. With [`Promise::Flush`] each is flushed.
    pub writes: u64,
    /// Those of them that failed.
    pub failed: u64,
}

/// What a copy is of.
struct Copy {
    sequence: u64,
    /// Whether that holds still.
    holds: Box<dyn Fn(&Draft) -> bool>,
}

/// An item that waits for a write.
struct Pending {
    draft: Draft,
    /// Its data, in order; all but the last in whole blocks, or it is copied.
    data: Data,
    /// Of a copy what it is a copy of.
    copy: Option<Copy>,
    ticket: Owed,
}

/// An item that is stable.
#[derive(Debug)]
pub struct Appended {
    /// Where it is.
    pub at: Written,
    /// What it says.
    pub draft: Draft,
    /// Its data.
    pub data: Vec<Run>,
}

/// Somebody who waits for a segment of their own.
struct Seeker {
    purpose: Purpose,
    signal: Signal,
    /// Why there will be none.
    refusal: RefCell<Option<Error>>,
}

/// The segment that is written to.
struct Open {
    salt: u64,
    /// What it was taken for: items that are wanted less do not go into it.
    purpose: Purpose,
    /// Where the next write begins, in bytes from the segment's first.
    at: u32,
    opening: Rc<Opening>,
}

/// A write: items with their places, and the memory.
struct Batch {
    items: Vec<(Pending, Written)>,
    layout: Layout,
    salt: u64,
    /// The first byte on the device.
    address: u64,
    /// It begins with the segment's header, with this generation.
    generation: Option<u64>,
    opening: Rc<Opening>,
    /// The device was asked to write it.
    is_begun: bool,
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.generation.is_some() {
            self.opening.give_up();
        }
    }
}

/// The log. Clones are the same.
#[derive(Clone)]
pub struct Log {
    inner: Rc<Inner>,
}

struct Inner {
    env: LogEnv,
    sequences: Arc<Sequences>,
    /// Those taken, and not yet given.
    taken: RefCell<Range<u64>>,
    rng: RefCell<Rng>,
    /// By purpose.
    pending: RefCell<[VecDeque<Pending>; Purpose::COUNT]>,
    seekers: RefCell<Vec<Rc<Seeker>>>,
    /// Some of those that are pending wait for a segment, or there are seekers.
    is_starved: Cell<bool>,
    /// Raised when some do, or a segment was taken.
    wants_room: Signal,
    open: RefCell<Option<Open>>,
    /// Writers with nothing to do.
    idle: RefCell<Vec<Rc<Signal>>>,
    is_closed: Cell<bool>,
    traffic: Cell<Traffic>,
    /// Nobody makes room any more.
    is_final: Cell<bool>,
    /// Why there is no room to be made, where the device does not let it.
    no_room: RefCell<Option<Error>>,
    /// Items that were not written, and may be there.
    failed: RefCell<Failed>,
    /// Who is told of the items that say so.
    listener: RefCell<Option<Listener>>,
}

/// Whoever needs an item from here on.
type Listener = Box<dyn Fn(&Draft, Written)>;

impl Log {
    /// An empty log, for items with these sequence numbers.
    pub fn new(env: LogEnv, sequences: &Arc<Sequences>, rng: Rng) -> Log {
        Log {
            inner: Rc::new(Inner {
                wants_room: Signal::new(&env.ops),
                is_starved: Cell::new(false),
                env,
                sequences: sequences.clone(),
                taken: RefCell::new(0..0),
                rng: RefCell::new(rng),
                pending: RefCell::default(),
                seekers: RefCell::default(),
                open: RefCell::default(),
                idle: RefCell::default(),
                is_closed: Cell::new(false),
                traffic: Cell::default(),
                is_final: Cell::new(false),
                no_room: RefCell::default(),
                failed: RefCell::default(),
                listener: RefCell::default(),
            }),
        }
    }

    /// What it is on.
    pub fn env(&self) -> &LogEnv {
        &self.inner.env
    }

    /// Appends an item with its data, and gives the data back once it is stable.
    ///
    /// Data is written from where it lies when each run but the last is whole blocks and begins on one; the last one's block is filled up
    /// with zeros in its own chunk.
    ///
    /// # Errors
    /// `Unavailable`: no segment is free for this purpose, or the region has no room. Otherwise the device's; then it is not known whether
    /// the item is there after a new start, unless something that was appended later is.
    ///
    /// # Panics
    /// With more data or a longer name than an item holds: a bug of the caller's.
    pub async fn append(&self, purpose: Purpose, draft: Draft, data: impl Into<Data>) -> Result<Appended> {
        let appended = self.begin(None, purpose, draft, data.into())?.end().await?;
        Ok(appended.expect("only copies are left out"))
    }

    /// Appends a copy of an item that is somewhere else, with its sequence number, unless `holds` says that nobody needs it any more.
    /// That is asked when its segment is known: so no copy of what a tombstone ended lies in a segment that was taken after the tombstone.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub async fn append_copy(
        &self,
        sequence: u64,
        draft: Draft,
        data: Vec<Run>,
        holds: impl Fn(&Draft) -> bool + 'static,
    ) -> Result<Option<Appended>> {
        self.begin(Some(Copy { sequence, holds: Box::new(holds) }), Purpose::Compact, draft, data.into())?.end().await
    }

    /// Lets an item wait for a write, and has one made.
    fn begin(&self, copy: Option<Copy>, purpose: Purpose, draft: Draft, data: Data) -> Result<Appending> {
        let inner = &self.inner;
        let (data, given) = if data_bytes(&data.runs) <= COPIED_MAX || inner.is_aligned(&data.runs) {
            (data, None)
        } else {
            let Data { runs: given, sums } = data;
            let mut whole = inner.env.slab.run(data_bytes(&given)).map_err(|exhausted| no_memory(WRITING, exhausted))?;
            let mut to = whole.as_mut_slice();
            for run in &given {
                let (part, rest) = to.split_at_mut(run.len() as usize);
                inner.env.ledger.copy(part, run.as_slice());
                to = rest;
            }
            (Data { runs: vec![whole], sums }, Some(given))
        };
        if inner.is_closed.get() {
            let path = inner.env.disk.info().path.display();
            return Err(Error::new(ErrorKind::Unavailable, format!("the store on {path} is closed")).remedy(OPEN_ANEW));
        }
        inner.env.segments.check_sound()?;
        if inner.sequences.are_used_up() {
            let what = format!("the store on {} has given all sequence numbers of one opening", inner.env.disk.info().path.display());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy(OPEN_ANEW));
        }
        let (ticket, owed) = Ticket::new(&inner.env.ops);
        inner.pending.borrow_mut()[purpose as usize].push_back(Pending { draft, data, copy, ticket: owed });
        inner.wake_one();
        Ok(Appending { ticket, given })
    }

    /// Takes a segment into use with a salt, for others than the log; while those left are kept for others, it waits as an item does.
    ///
    /// # Errors
    /// `Unavailable`: there is none, nor will there be.
    pub async fn take(&self, purpose: Purpose, salt: u64) -> Result<Taken> {
        let inner = &self.inner;
        loop {
            inner.env.segments.check_sound()?;
            if let Some(taken) = inner.env.segments.take(purpose, salt) {
                return Ok(taken);
            }
            if inner.is_final.get() {
                return Err(full(&inner.env, inner.no_room.borrow().as_ref()));
            }
            let seeker = Rc::new(Seeker { purpose, signal: Signal::new(&inner.env.ops), refusal: RefCell::new(None) });
            inner.seekers.borrow_mut().push(seeker.clone());
            inner.set_starved(true);
            seeker.signal.wait().await;
            if let Some(refusal) = seeker.refusal.take() {
                return Err(refusal);
            }
        }
    }

    /// Writes what is appended, one write at a time, until the log is closed and all is written. As many of these run at once as writes
    /// are to be on their way.
    pub async fn writer(self) {
        let inner = &*self.inner;
        let signal = Rc::new(Signal::new(&inner.env.ops));
        loop {
            if let Err(error) = inner.env.segments.check_sound() {
                inner.fail_all(&error);
            } else if inner.failed.borrow().are_too_many() {
                inner.fail_all(&inner.has_failed_too_often());
            } else if let Some(batch) = inner.next_batch() {
                inner.carry_out(batch).await;
                continue;
            }
            if inner.is_final.get() {
                // What has come since finds no room either, and would wait without end.
                self.give_up();
            }
            if inner.is_closed.get() && inner.pending.borrow().iter().all(VecDeque::is_empty) {
                return;
            }
            inner.idle.borrow_mut().push(signal.clone());
            signal.wait().await;
        }
    }

    /// Returns once nothing that failed before is there after a new start: it does not write where nothing has.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub async fn settle_failed(&self) -> Result<()> {
        // It may be any item: all that failed is said in front of it.
        let any = self.inner.failed.borrow().drafts().next();
        match any {
            Some(draft) => self.append(Purpose::Delete, draft, Vec::new()).await.map(drop),
            None => Ok(()),
        }
    }

    /// Who is told of the items in which the log itself says what failed: they are tombstones.
    pub fn listen(&self, listener: impl Fn(&Draft, Written) + 'static) {
        *self.inner.listener.borrow_mut() = Some(Box::new(listener));
    }

    /// What is appended from here on goes into a segment that was not in use before.
    pub fn roll(&self) {
        *self.inner.open.borrow_mut() = None;
    }

    /// Ends one wait of [`Log::wants_room`].
    pub fn nudge(&self) {
        self.inner.wants_room.raise();
    }

    /// Waits until something waits for room, or there is less of it than before.
    pub async fn wants_room(&self) {
        self.inner.wants_room.wait().await;
    }

    /// What was written so far.
    pub fn traffic(&self) -> Traffic {
        self.inner.traffic.get()
    }

    /// So many bytes more were written to the device, by somebody else.
    pub fn count(&self, bytes: u64) {
        self.inner.traffic.update(|traffic| Traffic { device: traffic.device + bytes, ..traffic });
    }

    /// Whether it ends when all is written.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed.get()
    }

    /// There is more room: whatever waits for it tries again.
    pub fn has_room(&self) {
        *self.inner.no_room.borrow_mut() = None;
        self.inner.wake_starved();
    }

    /// The device did not let room be made.
    pub fn room_failed(&self, error: Error) {
        *self.inner.no_room.borrow_mut() = Some(error);
    }

    /// That is tried anew.
    pub fn forget_why(&self) {
        *self.inner.no_room.borrow_mut() = None;
    }

    /// Why the device did not, the last time.
    pub fn why_no_room(&self) -> Option<Error> {
        self.inner.no_room.borrow().clone()
    }

    /// There will be no more room: what waits for it fails.
    pub fn give_up(&self) {
        if !self.inner.is_starved.get() {
            return;
        }
        for purpose in Purpose::ALL {
            let starved = match self.inner.env.segments.may_take(purpose) {
                true => VecDeque::new(),
                false => std::mem::take(&mut self.inner.pending.borrow_mut()[purpose as usize]),
            };
            for pending in starved {
                pending.ticket.settle(Err(full(&self.inner.env, self.inner.no_room.borrow().as_ref())));
            }
        }
        for seeker in self.inner.seekers.borrow().iter().filter(|seeker| !self.inner.env.segments.may_take(seeker.purpose)) {
            seeker.refusal.replace(Some(full(&self.inner.env, self.inner.no_room.borrow().as_ref())));
        }
        self.inner.wake_starved();
    }

    /// The same, for good: [`Log::take`] does not wait any more.
    pub fn has_no_more_room(&self) {
        self.inner.is_final.set(true);
        self.give_up();
    }

    /// What waits fails, and nothing is written any more: the segments say [why](Segments::break_down).
    #[cold]
    pub fn break_down(&self) {
        if let Err(why) = self.inner.env.segments.check_sound() {
            self.inner.fail_all(&why);
            self.inner.wake_starved();
        }
    }

    /// Lets the writers end when all that was appended is written.
    pub fn close(&self) {
        self.inner.is_closed.set(true);
        self.nudge();
        self.inner.idle.take().iter().for_each(|signal| signal.raise());
    }
}

fn data_bytes(data: &[Run]) -> u32 {
    data.iter().map(Run::len).sum()
}

impl Inner {
    fn wake_one(&self) {
        if let Some(signal) = self.idle.borrow_mut().pop() {
            signal.raise();
        }
    }

    /// Copies for which there is no segment fail: only those who wait for them could free one.
    fn fail_copies(&self) {
        if !self.env.segments.may_take(Purpose::Compact) {
            let copies = std::mem::take(&mut self.pending.borrow_mut()[Purpose::Compact as usize]);
            copies.into_iter().for_each(|copy| copy.ticket.settle(Err(full(&self.env, None))));
        }
    }

    /// Nothing more is written: what is pending fails.
    #[cold]
    fn fail_all(&self, why: &Error) {
        let all = std::mem::take(&mut *self.pending.borrow_mut());
        all.into_iter().flatten().for_each(|pending| pending.ticket.settle(Err(why.clone())));
    }

    /// So much has failed that it cannot be said at once.
    #[cold]
    fn has_failed_too_often(&self) -> Error {
        let what = format!("the device {} has failed too often", self.env.disk.info().path.display());
        Error::new(ErrorKind::Unavailable, what).remedy(OPEN_ANEW)
    }

    /// What waits for room tries again.
    fn wake_starved(&self) {
        if self.set_starved(false) {
            self.idle.take().iter().for_each(|signal| signal.raise());
            self.seekers.take().iter().for_each(|seeker| seeker.signal.raise());
        }
    }

    /// Something waits for room from here on, or nothing does; how it was before.
    fn set_starved(&self, is_starved: bool) -> bool {
        let before = self.is_starved.replace(is_starved);
        if before != is_starved {
            self.env.segments.want(is_starved);
            if is_starved {
                self.wants_room.raise();
            }
        }
        before
    }

    fn block(&self) -> u32 {
        self.env.superblock.block_bytes
    }

    /// When a write is answered.
    fn durability(&self) -> Durability {
        match self.env.superblock.durability {
            Promise::Flush => Durability::Now,
            Promise::DeviceCache => Durability::AtFlush,
        }
    }

    /// Places what is pending behind the last write, as much as fits; nothing where nothing is pending, or there is no room for it.
    fn next_batch(&self) -> Option<Batch> {
        let mut open = self.open.borrow_mut();
        let is_pending = |purpose: Purpose| !self.pending.borrow()[purpose as usize].is_empty();
        // What may not go into the segment that is open may have one of its own by now.
        let may_go = |purpose: Purpose| is_pending(purpose) && self.env.segments.may_take(purpose);
        if open.as_ref().is_some_and(|open| Purpose::ALL.into_iter().any(|purpose| purpose < open.purpose && may_go(purpose))) {
            *open = None;
        }
        for _ in 0..2 {
            let mut generation = None;
            if open.is_none() {
                let wanted = Purpose::ALL.into_iter().filter(|&purpose| is_pending(purpose));
                let (purpose, salt) = (wanted.clone().find(|&purpose| self.env.segments.may_take(purpose)), self.rng.borrow_mut().u64());
                let Some((purpose, taken)) = purpose.and_then(|purpose| Some((purpose, self.env.segments.take(purpose, salt)?))) else {
                    let is_wanted = wanted.count() > 0;
                    if is_wanted {
                        self.fail_copies();
                        self.set_starved(true);
                    }
                    return None;
                };
                let (segment, segments) = (taken.segment, self.env.segments.clone());
                segments.set_writer(segment, self.env.core);
                let opening = Opening::new(segment, segments);
                *open = Some(Open { salt, purpose, at: segment::BYTES, opening });
                generation = Some(taken.generation);
                self.wants_room.raise();
            }
            let into = open.as_mut().expect("it was opened");
            let room = self.env.superblock.segment_bytes - into.at;
            let mut layout = Layout::new(self.block(), room);
            let base = self.env.superblock.segment_at(into.opening.segment) + u64::from(into.at);
            let mut items = Vec::new();
            if generation.is_some() {
                self.place_failed(&mut layout, base, &mut items);
            }
            // Those who make room go first.
            let is_short = Purpose::ALL.into_iter().rev().filter(|&purpose| purpose >= into.purpose).any(|purpose| {
                self.place(purpose, &mut layout, base, &mut items);
                is_pending(purpose)
            });
            if items.is_empty() {
                if !is_short {
                    // Nothing that may go into it is pending. One that was taken for copies, which were all left out, has no header yet.
                    if generation.is_some() {
                        *open = None;
                    }
                    if Purpose::ALL.into_iter().any(is_pending) {
                        self.set_starved(true);
                    }
                    return None;
                }
                // What is left of the segment is too short.
                *open = None;
                continue;
            }
            let before = if generation.is_some() { segment::BYTES } else { 0 };
            into.at += layout.bytes();
            let (address, opening) = (base - u64::from(before), into.opening.clone());
            return Some(Batch { items, layout, salt: into.salt, address, generation, opening, is_begun: false });
        }
        unreachable!("an item fits into an empty segment")
    }

    /// Takes from the front of what is pending what fits into `layout`, which begins at byte `base` of the device.
    fn place(&self, purpose: Purpose, layout: &mut Layout, base: u64, items: &mut Vec<(Pending, Written)>) {
        let mut pending = self.pending.borrow_mut();
        let pending = &mut pending[purpose as usize];
        while let Some(next) = pending.front() {
            // What a write may carry is the device's; several of ours make up a longer one.
            if layout.bytes() >= limits::IO_MAX_BYTES {
                break;
            }
            if next.copy.as_ref().is_some_and(|copy| !(copy.holds)(&next.draft)) {
                pending.pop_front().expect("it was looked at").ticket.settle(Ok(None));
                continue;
            }
            let Some(written) = self.spot(next, layout, base) else { break };
            items.push((pending.pop_front().expect("it was looked at"), written));
        }
    }

    /// Takes what says which items failed, in front of everything else of a segment.
    fn place_failed(&self, layout: &mut Layout, base: u64, items: &mut Vec<(Pending, Written)>) {
        for draft in self.failed.borrow().drafts() {
            // Nobody waits for it.
            let pending = Pending { draft, data: Data::default(), copy: None, ticket: Ticket::new(&self.env.ops).1 };
            let written = self.spot(&pending, layout, base).expect("as many as there may be fit into a write");
            items.push((pending, written));
        }
    }

    /// Gives an item its place, if it fits.
    fn spot(&self, next: &Pending, layout: &mut Layout, base: u64) -> Option<Written> {
        let data = data_bytes(&next.data.runs);
        let head_bytes = next.draft.item(0).head_bytes(data);
        let is_aligned = self.is_aligned(&next.data.runs);
        let Spot { at, place, .. } = layout.push(Ask { head_bytes, data_bytes: data, is_aligned })?;
        let sequence = next.copy.as_ref().map_or_else(|| self.next_sequence(), |copy| copy.sequence);
        let written = Written { sequence, address: base + u64::from(at), item_bytes: place.item_bytes, head_bytes };
        // From here on, or compaction could take its segment for empty.
        self.env.segments.need(written.address, written.item_bytes);
        Some(written)
    }

    fn next_sequence(&self) -> u64 {
        let mut taken = self.taken.borrow_mut();
        taken.next().unwrap_or_else(|| {
            *taken = self.sequences.block();
            taken.next().expect("a block is not empty")
        })
    }

    /// Whether data may be written from where it lies.
    fn is_aligned(&self, data: &[Run]) -> bool {
        let block = self.block();
        let Some((last, rest)) = data.split_last() else { return false };
        let begins = |run: &Run| run.address().is_multiple_of(u64::from(block));
        rest.iter().all(|run| begins(run) && run.len().is_multiple_of(block))
            && begins(last)
            && last.start() + last.len().next_multiple_of(block) <= last.capacity()
    }

    async fn carry_out(&self, mut batch: Batch) {
        let outcome = self.write(&mut batch).await;
        let new: u64 = batch.items.iter().filter(|(pending, _)| pending.copy.is_none()).map(|(_, at)| u64::from(at.item_bytes)).sum();
        let device = u64::from(batch.layout.bytes()) + if batch.generation.is_some() { u64::from(segment::BYTES) } else { 0 };
        self.traffic.update(|traffic| Traffic {
            device: traffic.device + device,
            items: traffic.items + new,
            writes: traffic.writes + 1,
            failed: traffic.failed + u64::from(outcome.is_err() && batch.is_begun),
        });
        if batch.generation.is_some() {
            batch.opening.settle(outcome.clone());
        }
        let outcome = match outcome {
            Ok(()) => batch.opening.wait(&self.env.ops).await,
            failed => failed,
        };
        if outcome.is_err() {
            // Nothing more goes into a segment that the device may have lost a piece of; nor, once items have failed, into one whose first
            // write does not say so.
            self.open.borrow_mut().take_if(|open| batch.is_begun || Rc::ptr_eq(&open.opening, &batch.opening));
            self.add_failed(&batch);
        }
        for (pending, written) in std::mem::take(&mut batch.items) {
            if outcome.is_ok() && pending.copy.is_none() && pending.draft.kind == Kind::Tombstone(Class::Failed) {
                self.said_failed(&pending.draft, written);
            }
            match &outcome {
                Ok(()) => pending.ticket.settle(Ok(Some(Appended { at: written, draft: pending.draft, data: pending.data.runs }))),
                Err(error) => {
                    self.env.segments.drop_need(written.address, written.item_bytes);
                    pending.ticket.settle(Err(error.clone()));
                }
            }
        }
    }

    /// The items of a batch that failed may be there.
    fn add_failed(&self, batch: &Batch) {
        if !batch.is_begun {
            return;
        }
        // A copy that is there is as good as what it is of.
        for (pending, written) in batch.items.iter().filter(|(pending, _)| pending.copy.is_none()) {
            self.failed.borrow_mut().add(written.sequence, pending.draft.shard);
        }
    }

    /// An item that says what failed is stable.
    fn said_failed(&self, draft: &Draft, at: Written) {
        self.failed.borrow_mut().is_said(&draft.item(at.sequence));
        match &*self.listener.borrow() {
            Some(listener) => listener(draft, at),
            None => self.env.segments.drop_need(at.address, at.item_bytes),
        }
    }

    /// Writes a batch; its data is back in it afterwards.
    async fn write(&self, batch: &mut Batch) -> Result<()> {
        let mut at = batch.address;
        let mut writes = Vec::with_capacity(1);
        let gathered = self.gathered(batch)?;
        // To be refused for want of it would look like a fault of the device.
        if !self.env.ops.room_for(gathered.len()).await {
            return Err(no_operations(WRITING));
        }
        batch.is_begun = true;
        for (gather, whose) in gathered {
            let (lba, bytes) = (lba(&self.env.disk, at), gather.len_bytes());
            at += u64::from(bytes);
            writes.push((self.env.disk.write_gather(lba, gather, self.durability()), lba, whose));
        }
        let mut outcome = Ok(());
        for (write, lba, whose) in writes {
            match write.await {
                Ok(mut gather) => {
                    for (owner, mut run) in whose.into_iter().zip(gather.drain()) {
                        if let Some(Owner { item, len }) = owner {
                            run.set_len(len);
                            batch.items[item].0.data.runs.push(run);
                        }
                    }
                }
                Err(failed) => outcome = Err(self.env.disk.explain(WRITING, lba, failed)),
            }
        }
        outcome
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.set_starved(false);
    }
}

#[cold]
fn full(env: &LogEnv, why: Option<&Error>) -> Error {
    let usage = env.segments.usage();
    let what = format!("{} is full: {} of {} bytes are needed", env.disk.info().path.display(), usage.live, usage.capacity);
    match why {
        Some(why) if is_short_of_memory(why) => {
            let what = format!("{what}, and there was no memory to make room: {why:#}");
            Error::new(ErrorKind::Busy, what)
        }
        None => Error::new(ErrorKind::Unavailable, what).remedy("delete objects, or format a larger store"),
        // With its remedy.
        Some(why) => Error::new(ErrorKind::Unavailable, format!("{what}, and the device does not let room be made for more: {why:#}")),
    }
}

#[cfg(test)]
mod tests;
