//! The in-flight table: who owns what a device is touching.
//!
//! One table per core. An operation takes a slot, and its lease moves into it; the device is told the slot's [`OpId`], never a
//! pointer. The completion finds the slot by number and generation, so that one that comes late or twice is a typed fault and
//! not a use after free. The task that waits is woken by the id its waker carries (a push on a list), without touching the
//! waker's counts; wakers of foreign combinators are kept and woken as wakers.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, RawWakerVTable, Waker};

use crate::device::{Outcome, Status};
use crate::mem::payload::{InFlight, Lease, Payload};

/// Turns of a core in which it is looked for free slots.
const TURNS: u32 = 100_000;

/// Names one operation on one core: what goes into `user_data` and `wr_id`. Generation 0 is never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    slot: u32,
    generation: u32,
}

impl OpId {
    /// The id as the device carries it.
    #[inline]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The id a device gave back. Whether it names an operation is for the table to say.
    #[inline]
    pub fn from_bits(bits: u64) -> OpId {
        OpId { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A completion that names no operation in flight: a bug of a device or of ours, never of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpFault {
    /// The slot does not exist.
    #[error("a completion for {0:?}, a slot that does not exist")]
    Forged(OpId),
    /// The slot has since been used by another operation, or by none.
    #[error("a completion for {0:?}, which ended earlier")]
    Stale(OpId),
    /// The operation has completed already.
    #[error("a second completion for {0:?}")]
    Doubled(OpId),
}

/// The table or the device's queue is full: backpressure. The lease comes back.
#[derive(Debug, thiserror::Error)]
#[error("the queue is full: wait for an operation to complete")]
pub struct Refused<L> {
    /// What was to be submitted.
    pub lease: L,
}

/// An operation that failed, with its lease.
#[derive(Debug, thiserror::Error)]
#[error("{}", outcome.status)]
pub struct Failed<L> {
    /// How it ended.
    pub outcome: Outcome,
    /// What it worked on; for a failed read or receive the bytes are not to be trusted.
    pub lease: L,
}

/// An operation that ended, one way or the other, with its lease.
#[derive(Debug)]
#[must_use = "the outcome may be a failure"]
pub struct Completed<L> {
    /// How it ended.
    pub outcome: Outcome,
    /// What it worked on.
    pub lease: L,
}

impl<L> Completed<L> {
    /// The lease, if the operation succeeded.
    ///
    /// # Errors
    /// The outcome and the lease otherwise.
    pub fn into_result(self) -> Result<L, Failed<L>> {
        if self.outcome.is_ok() { Ok(self.lease) } else { Err(Failed { outcome: self.outcome, lease: self.lease }) }
    }
}

impl<L> Failed<L> {
    /// The failure as an error for a person, giving up the lease.
    pub fn into_error(self, what: impl Into<String>) -> crate::base::Error {
        self.outcome.status.to_error(what)
    }
}

/// A handle on the core's table.
#[derive(Clone)]
pub struct Ops {
    table: Rc<Table>,
}

struct Table {
    slots: RefCell<Slots>,
    /// Tasks whose operations completed since the executor last looked; a list and not a set.
    woken: RefCell<Vec<u64>>,
    /// How the executor's own wakers are recognised: their data word is the task.
    native: Cell<Option<&'static RawWakerVTable>>,
    faults: Cell<u64>,
}

struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// One operation. Its payload moves in when it begins and out when its outcome is taken; in between only the phase changes.
struct Slot {
    generation: u32,
    phase: Phase,
    /// How it ended once it is done; before that, what was noted between the parts of a two-part completion.
    outcome: Outcome,
    noted: bool,
    waiter: Waiter,
    /// Empty in a free slot.
    payload: InFlight,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    /// The device has it.
    Pending,
    /// The device has it and nobody waits: the lease is returned at completion.
    Abandoned,
    /// Completed, and not yet looked at.
    Done,
}

impl Slot {
    fn is_in_flight(&self) -> bool {
        matches!(self.phase, Phase::Pending | Phase::Abandoned)
    }
}

enum Waiter {
    None,
    Task(u64),
    Foreign(Waker),
}

impl Ops {
    /// A table for at most `capacity` operations at once.
    pub fn new(capacity: u32) -> Ops {
        let free = || Slot {
            generation: 1,
            phase: Phase::Free,
            outcome: Outcome::ok(0),
            noted: false,
            waiter: Waiter::None,
            payload: InFlight::default(),
        };
        let slots = (0..capacity).map(|_| free()).collect();
        let slots = RefCell::new(Slots { slots, free: (0..capacity).rev().collect() });
        let woken = RefCell::new(Vec::with_capacity(capacity as usize));
        Ops { table: Rc::new(Table { slots, woken, native: Cell::new(None), faults: Cell::new(0) }) }
    }

    /// Takes a slot for an operation on `lease`. The caller then submits it to its device with the id, which completes it. What the device
    /// refuses is taken back (`Ops::retract`), or completed as failed by a device of another crate.
    ///
    /// # Errors
    /// The lease, when every slot is taken.
    // Always inline, here and below: most of a call would be moving the lease through memory, twice per operation.
    #[inline(always)]
    pub fn begin<L: Lease>(&self, lease: L) -> Result<Op<L>, Refused<L>> {
        let mut table = self.table.slots.borrow_mut();
        let Some(index) = table.free.pop() else { return Err(Refused { lease }) };
        let slot = &mut table.slots[index as usize];
        slot.phase = Phase::Pending;
        slot.payload.take_off(lease.into_payload());
        let id = OpId { slot: index, generation: slot.generation };
        drop(table);
        Ok(Op { ops: self.clone(), id: Some(id), lease: PhantomData })
    }

    /// Takes the operation back: the device refused it and never saw it.
    ///
    /// # Panics
    /// When it completed meanwhile: a device cannot both refuse and complete.
    pub(crate) fn retract<L: Lease>(&self, mut op: Op<L>) -> L {
        let id = op.id.take().expect("an operation is retracted before it is awaited");
        let mut table = self.table.slots.borrow_mut();
        assert!(table.slots[id.slot as usize].phase == Phase::Pending, "{id:?} was refused and completed");
        let payload = table.release(id);
        drop(table);
        L::from_payload(payload)
    }

    /// The payload's memory, for the device: address and length of a one-piece payload.
    #[inline]
    pub fn span(&self, id: OpId) -> (u64, u32) {
        self.with_payload(id, InFlight::span)
    }

    /// The address and length of the table of pieces of a gather. The table stays in place until the operation completes.
    pub fn table(&self, id: OpId) -> (*const libc::iovec, u32) {
        self.with_payload(id, |payload| (payload.table().as_ptr(), payload.table().len() as u32))
    }

    /// Each piece of the payload's memory in turn, address and length in bytes, until `each` fails. Empty pieces are left out.
    #[inline]
    pub fn try_pieces<E>(&self, id: OpId, each: impl FnMut(u64, u32) -> Result<(), E>) -> Result<(), E> {
        self.with_payload(id, |payload| payload.try_pieces(each))
    }

    #[inline]
    fn with_payload<R>(&self, id: OpId, look: impl FnOnce(&InFlight) -> R) -> R {
        let table = self.table.slots.borrow();
        match &table.slots[id.slot as usize] {
            slot if slot.generation == id.generation && slot.is_in_flight() => look(&slot.payload),
            _ => panic!("{id:?} is not in flight"),
        }
    }

    /// Ends an operation: its lease lands and its task is woken.
    ///
    /// # Errors
    /// The id names no operation in flight. Nothing was changed; the fault is counted.
    #[inline]
    pub(crate) fn complete(&self, id: OpId, outcome: Outcome) -> Result<(), OpFault> {
        let mut table = self.table.slots.borrow_mut();
        let Some(slot) = table.slots.get_mut(id.slot as usize) else { return self.fault(OpFault::Forged(id)) };
        if slot.generation != id.generation {
            return self.fault(OpFault::Stale(id));
        }
        match slot.phase {
            Phase::Pending => {
                slot.payload.touch_down();
                slot.phase = Phase::Done;
                slot.outcome = outcome;
                match std::mem::replace(&mut slot.waiter, Waiter::None) {
                    Waiter::None => {}
                    Waiter::Task(task) => self.table.woken.borrow_mut().push(task),
                    Waiter::Foreign(waker) => {
                        drop(table);
                        waker.wake();
                    }
                }
                Ok(())
            }
            Phase::Abandoned => {
                let payload = table.release(id);
                drop(table);
                drop(payload);
                Ok(())
            }
            Phase::Done => self.fault(OpFault::Doubled(id)),
            Phase::Free => self.fault(OpFault::Stale(id)),
        }
    }

    /// Ends an operation, as this crate's devices do, for one that is not of this crate.
    ///
    /// # Errors
    /// The id names no operation in flight. Nothing was changed; the fault is counted.
    ///
    /// # Safety
    /// The device is done with the operation's memory, and writes none of it any more.
    #[inline]
    pub unsafe fn complete_foreign(&self, id: OpId, outcome: Outcome) -> Result<(), OpFault> {
        self.complete(id, outcome)
    }

    /// Whether it is the same table.
    pub fn is_same(&self, other: &Ops) -> bool {
        Rc::ptr_eq(&self.table, &other.table)
    }

    /// Nobody asks for the outcome any more.
    fn abandon(&self, id: OpId) {
        let mut table = self.table.slots.borrow_mut();
        let slot = &mut table.slots[id.slot as usize];
        if slot.generation != id.generation {
            return;
        }
        if slot.phase == Phase::Pending {
            slot.phase = Phase::Abandoned;
            slot.waiter = Waiter::None;
            return;
        }
        let payload = table.release(id);
        drop(table);
        drop(payload);
    }

    /// [`Ops::complete`] for a receive: sets the length of the lease's view to the bytes that came.
    pub(crate) fn complete_sized(&self, id: OpId, outcome: Outcome) -> Result<(), OpFault> {
        if let Some(slot) = self.table.slots.borrow_mut().slots.get_mut(id.slot as usize)
            && slot.generation == id.generation
            && slot.is_in_flight()
        {
            slot.payload.set_len(outcome.bytes);
        }
        self.complete(id, outcome)
    }

    /// Keeps the outcome of an operation whose memory the kernel still holds: a zero-copy send before its notification.
    pub(crate) fn note(&self, id: OpId, outcome: Outcome) {
        if let Some(slot) = self.table.slots.borrow_mut().slots.get_mut(id.slot as usize)
            && slot.generation == id.generation
            && slot.is_in_flight()
        {
            (slot.noted, slot.outcome) = (true, outcome);
        }
    }

    /// Ends an operation with the outcome noted earlier.
    ///
    /// # Errors
    /// As [`Ops::complete`].
    pub(crate) fn complete_noted(&self, id: OpId) -> Result<(), OpFault> {
        let noted = self.table.slots.borrow().slots.get(id.slot as usize).filter(|slot| slot.noted).map(|slot| slot.outcome);
        self.complete(id, noted.unwrap_or(Outcome::ok(0)))
    }

    #[cold]
    fn fault(&self, fault: OpFault) -> Result<(), OpFault> {
        self.table.faults.set(self.table.faults.get() + 1);
        tracing::error!(%fault, "completion without an operation");
        Err(fault)
    }

    /// Completions that named no operation, since the table was made.
    pub fn faults(&self) -> u64 {
        self.table.faults.get()
    }

    /// Whether its device may still be at this operation.
    pub(super) fn is_in_flight(&self, id: OpId) -> bool {
        let table = self.table.slots.borrow();
        table.slots.get(id.slot as usize).is_some_and(|slot| slot.generation == id.generation && slot.is_in_flight())
    }

    /// Whether somebody still wants to know how this operation ends.
    pub fn is_awaited(&self, id: OpId) -> bool {
        let table = self.table.slots.borrow();
        table.slots.get(id.slot as usize).is_some_and(|slot| slot.generation == id.generation && slot.phase == Phase::Pending)
    }

    /// Operations that have a slot: in flight, or done and not yet looked at.
    pub fn occupied(&self) -> usize {
        let table = self.table.slots.borrow();
        table.slots.len() - table.free.len()
    }

    /// The most operations at once.
    pub fn capacity(&self) -> usize {
        self.table.slots.borrow().slots.len()
    }

    /// Waits, if not for ever, until there are so many free slots, and gives whether there are. They are there until the caller lets go of
    /// the core.
    pub async fn room_for(&self, much: usize) -> bool {
        let mut turns = 0;
        poll_fn(|context| {
            turns += 1;
            let has_room = self.occupied() + much <= self.capacity();
            if has_room || turns > TURNS || much > self.capacity() {
                return Poll::Ready(has_room);
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Tells the table how to recognise the executor's wakers: by their vtable; their data word is the task to wake.
    pub fn set_native(&self, vtable: &'static RawWakerVTable) {
        self.table.native.set(Some(vtable));
    }

    /// The task behind a waker of this core's executor; `None` for a foreign one.
    #[inline]
    pub fn native_task(&self, waker: &Waker) -> Option<u64> {
        let native = self.table.native.get()?;
        std::ptr::eq(waker.vtable(), native).then_some(waker.data() as u64)
    }

    /// Wakes a task of this core's executor, as a completion does.
    #[inline]
    pub fn wake(&self, task: u64) {
        self.table.woken.borrow_mut().push(task);
    }

    /// Whether any task was woken since the last [`Ops::swap_woken`].
    #[inline]
    pub fn has_woken(&self) -> bool {
        !self.table.woken.borrow().is_empty()
    }

    /// Exchanges the list of woken tasks for `batch`, an empty one. A task may be named more than once.
    #[inline]
    pub fn swap_woken(&self, batch: &mut Vec<u64>) {
        std::mem::swap(&mut *self.table.woken.borrow_mut(), batch);
    }

    /// Quarantines every operation that is still in flight: for the end of a drain whose deadline has passed, and only then.
    /// Returns how many there were.
    ///
    /// The devices are not told, and need not be. What the kernel or a NIC still touches is never used again. The soft HCA runs on
    /// this core: quiesced, its queue pairs are in the error state, send nothing and place nothing, and what they still complete
    /// is a counted fault here.
    pub fn quarantine_in_flight(&self) -> usize {
        let mut table = self.table.slots.borrow_mut();
        let pending: Vec<u32> = (0u32..).zip(&table.slots).filter(|(_, slot)| slot.is_in_flight()).map(|(index, _)| index).collect();
        for &index in &pending {
            // InFlight's drop quarantines. The generation moves on, so a completion that still comes is a counted fault.
            let slot = &mut table.slots[index as usize];
            slot.payload = InFlight::default();
            slot.waiter = Waiter::None;
            table.recycle(index);
        }
        pending.len()
    }
}

impl Slots {
    /// Frees an operation's slot and takes its payload out.
    #[inline(always)]
    fn release(&mut self, id: OpId) -> Payload {
        let slot = &mut self.slots[id.slot as usize];
        assert_eq!(slot.generation, id.generation, "a handle on an operation that ended");
        let payload = slot.payload.unload();
        slot.waiter = Waiter::None;
        self.recycle(id.slot);
        payload
    }

    #[inline]
    fn recycle(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        // Generation 0 marks what is not an operation.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.phase = Phase::Free;
        slot.noted = false;
        self.free.push(index);
    }
}

/// An operation in flight. Awaiting it gives the outcome and the lease. Dropping it abandons the result, not the memory: the
/// lease returns to its slab when the device is done.
#[must_use = "an operation is awaited for its outcome"]
pub struct Op<L: Lease> {
    ops: Ops,
    /// `None` once the outcome was taken.
    id: Option<OpId>,
    lease: PhantomData<fn() -> L>,
}

impl<L: Lease> Op<L> {
    /// The id to give to the device.
    ///
    /// # Panics
    /// After the operation's outcome was taken.
    #[inline]
    pub fn id(&self) -> OpId {
        self.id.expect("the operation is still in flight")
    }

    /// Whether it has ended: to poll it gives its outcome.
    #[inline]
    pub fn is_done(&self) -> bool {
        let table = self.ops.table.slots.borrow();
        self.id.is_some_and(|id| table.slots[id.slot as usize].phase == Phase::Done)
    }
}

impl<L: Lease> Unpin for Op<L> {}

impl<L: Lease> Future for Op<L> {
    type Output = Completed<L>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completed<L>> {
        let id = self.id.expect("an operation is not polled after it ended");
        let mut table = self.ops.table.slots.borrow_mut();
        let slot = &mut table.slots[id.slot as usize];
        // A drain that passed its deadline quarantined the lease under the task's feet; there is nothing to give back.
        assert_eq!(slot.generation, id.generation, "a task ran on after its core was torn down");
        if slot.phase != Phase::Done {
            slot.waiter = match self.ops.native_task(cx.waker()) {
                Some(task) => Waiter::Task(task),
                None => Waiter::Foreign(cx.waker().clone()),
            };
            return Poll::Pending;
        }
        // Its waiter is gone since it is done.
        let (outcome, payload) = (slot.outcome, slot.payload.unload());
        table.recycle(id.slot);
        drop(table);
        self.id = None;
        Poll::Ready(Completed { outcome, lease: L::from_payload(payload) })
    }
}

impl<L: Lease> Drop for Op<L> {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.ops.abandon(id);
        }
    }
}

/// An operation a device refused before it began: what an awaited submission gives back when its queue or table is full.
pub fn refused<L>(refused: Refused<L>) -> Failed<L> {
    Failed { outcome: Outcome::failed(Status::Os(libc::EAGAIN)), lease: refused.lease }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{PageKind, Region, RegionConfig, Slab};
    use std::task::Waker;

    fn world() -> (Slab, Ops) {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        (Slab::new(&region, 64).unwrap(), Ops::new(4))
    }

    fn poll<L: Lease>(op: &mut Op<L>) -> Poll<Completed<L>> {
        Pin::new(op).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_lease_moves_in_and_comes_back() {
        let (slab, ops) = world();
        let mut op = ops.begin(slab.run(5000).unwrap()).unwrap();
        assert_eq!((slab.census().in_flight, slab.census().owned), (3, 0));
        assert!(poll(&mut op).is_pending());
        ops.complete(op.id(), Outcome::ok(5000)).unwrap();
        assert_eq!((slab.census().in_flight, slab.census().owned), (0, 3));
        let Poll::Ready(done) = poll(&mut op) else { panic!("it completed") };
        assert_eq!(done.into_result().unwrap().len(), 5000);
        assert_eq!(slab.census().free, 64);
        assert_eq!(ops.occupied(), 0);
    }

    #[test]
    fn a_dropped_future_frees_nothing_a_device_may_touch() {
        let (slab, ops) = world();
        let op = ops.begin(slab.buf().unwrap()).unwrap();
        let id = op.id();
        drop(op);
        assert_eq!(slab.census().in_flight, 1);
        ops.complete(id, Outcome::failed(Status::Cancelled)).unwrap();
        assert_eq!(slab.census().free, 64);
        assert_eq!(ops.occupied(), 0);
    }

    #[test]
    fn forged_stale_and_doubled_completions_are_typed_faults() {
        let (slab, ops) = world();
        let mut op = ops.begin(slab.buf().unwrap()).unwrap();
        let id = op.id();
        let forged = OpId::from_bits(id.to_bits() + 100);
        assert_eq!(ops.complete(forged, Outcome::ok(0)), Err(OpFault::Forged(forged)));
        ops.complete(id, Outcome::ok(0)).unwrap();
        assert_eq!(ops.complete(id, Outcome::ok(0)), Err(OpFault::Doubled(id)));
        assert!(poll(&mut op).is_ready());
        assert_eq!(ops.complete(id, Outcome::ok(0)), Err(OpFault::Stale(id)));
        // The slot's next user is not disturbed by the old id.
        let next = ops.begin(slab.buf().unwrap()).unwrap();
        assert_eq!(ops.complete(id, Outcome::ok(0)), Err(OpFault::Stale(id)));
        assert_eq!(ops.faults(), 4);
        ops.complete(next.id(), Outcome::ok(0)).unwrap();
    }

    #[test]
    fn a_full_table_gives_the_lease_back() {
        let (slab, ops) = world();
        let held: Vec<_> = (0..4).map(|_| ops.begin(slab.buf().unwrap()).unwrap()).collect();
        let refused = ops.begin(slab.buf().unwrap()).err().expect("the table has four slots");
        assert_eq!(refused.lease.chunks(), 1);
        let mut room = std::pin::pin!(ops.room_for(1));
        let mut look = || room.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(look().is_pending() && (0..TURNS).any(|_| look() == Poll::Ready(false)), "it is not looked for for ever");
        for op in held {
            drop(ops.retract(op));
        }
        drop(refused);
        assert_eq!(slab.census().free, 64);
    }

    #[test]
    fn past_the_deadline_chunks_are_quarantined_not_reused() {
        let (slab, ops) = world();
        let op = ops.begin(slab.run(4096).unwrap()).unwrap();
        let id = op.id();
        assert_eq!(ops.quarantine_in_flight(), 1);
        assert_eq!(slab.census().quarantined, 2);
        assert!(slab.census().balances());
        assert_eq!(ops.complete(id, Outcome::ok(0)), Err(OpFault::Stale(id)));
        drop(op);
        assert_eq!(slab.census().free, 62);
    }
}
