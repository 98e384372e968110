//! READs of memory that a peer lends, and WRITEs to it (see [`lend`](super::wire::lend)): they are copied here, in the poll, and no
//! packet is sent.
//!
//! They complete in the order in which requests were posted, as others do. What was posted before may still be on its way to the peer,
//! unless they must not overtake it: then they go by packets, behind it. A READ must not overtake what changes the peer's memory, and a
//! WRITE may overtake messages alone. So do those that find no grant, or whose grant ends under them: what the peer's HCA says of it, and
//! what becomes of the queue pair, is the same then as without lent memory. That one alone completes behind requests that were posted
//! after it.
//!
//! Nothing overtakes a WRITE: who has the message behind it has its bytes. What is posted behind one that is being copied is held until
//! that is done.

use std::collections::VecDeque;

use super::engine::Engine;
use super::hca::{Slot, Soft, refused};
use super::memory::{Grants, RawPayload, Reach};
use super::wire::lend::{Allows, Borrowed, Found};
use super::wire::{Links, Peer};
use crate::device::{OpId, Ops, Outcome, Status, WcStatus};
use crate::mem::Ledger;
use crate::proto::rc::{MESSAGE_MAX_BYTES, Memory, SendOp, SendWr, State};

/// Bytes copied in one poll, or summed in one call: about 10 µs, which the core's other queues wait.
pub(super) const BYTES_OF_A_POLL: u32 = 128 << 10;

/// One READ or WRITE.
struct Copy {
    wr: SendWr,
    link: u32,
    found: Found,
    len: u32,
    done: u32,
    /// Requests for the engine that were posted before it.
    behind: u64,
}

impl Copy {
    fn is_write(&self) -> bool {
        matches!(self.wr.op, SendOp::Write(_))
    }

    fn is_under_way(&self) -> bool {
        self.done < self.len
    }
}

/// A request that waits for the WRITEs in front of it.
struct Held {
    wr: SendWr,
    /// How many of the queue pair's copies were begun before it.
    after: u64,
}

/// The copies of a queue pair, and where they stand among its other requests.
#[derive(Default)]
pub(super) struct Borrowing {
    copies: VecDeque<Copy>,
    /// Copies that are not in the queue any more.
    past: u64,
    held: VecDeque<Held>,
    /// Requests that the engine has taken, and that it has completed.
    posted: u64,
    completed: u64,
    /// The last one of those for the engine that no READ may overtake, and no WRITE.
    no_reads: u64,
    no_writes: u64,
}

impl Borrowing {
    /// The engine has taken a request.
    #[inline]
    pub fn note(&mut self, op: &SendOp) {
        self.posted += 1;
        self.order(op);
    }

    /// What may overtake the last request.
    #[inline]
    fn order(&mut self, op: &SendOp) {
        let number = self.number();
        match op {
            SendOp::Send | SendOp::SendImm(_) => {}
            SendOp::Read(_) => self.no_writes = number,
            _ => (self.no_reads, self.no_writes) = (number, number),
        }
    }

    /// Requests for the engine so far.
    #[inline]
    fn number(&self) -> u64 {
        self.posted + self.held.len() as u64
    }

    /// Requests that the engine does not have.
    #[inline]
    pub fn len(&self) -> usize {
        self.copies.len() + self.held.len()
    }

    /// Whether one more request would be more than the queue has. The engine has no place for those either that wait for a copy in front of
    /// them.
    #[inline]
    pub fn is_full(&self, depth: u32) -> bool {
        self.len() > 0 && self.posted - self.completed + self.len() as u64 >= depth.into()
    }

    /// Whether there is something to copy.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        self.copies.iter().any(Copy::is_under_way)
    }

    /// Holds a request, if there is one in front of it that nothing overtakes.
    #[inline]
    pub fn hold(&mut self, wr: &SendWr) -> bool {
        if self.held.is_empty() && !self.copies.iter().any(|copy| copy.is_write() && copy.is_under_way()) {
            return false;
        }
        let op = wr.op;
        self.held.push_back(Held { wr: wr.clone(), after: self.past + self.copies.len() as u64 });
        self.order(&op);
        true
    }

    /// The next of those that were held, if it need not be any more.
    fn next_held(&mut self) -> Option<SendWr> {
        let in_front = (self.held.front()?.after.saturating_sub(self.past)) as usize;
        let is_free = !self.copies.iter().take(in_front).any(|copy| copy.is_write() && copy.is_under_way());
        self.held.pop_front_if(|_| is_free).map(|held| held.wr)
    }
}

impl Soft {
    /// Takes a request as a READ of lent memory or a WRITE to it, if it can be one.
    #[inline]
    pub(super) fn borrow(&mut self, index: u32, wr: &SendWr) -> bool {
        let (remote, allows) = match wr.op {
            SendOp::Read(remote) => (remote, Allows::READS),
            SendOp::Write(remote) => (remote, Allows::WRITES),
            _ => return false,
        };
        let Some(links) = &self.wires.links else { return false };
        let Some(slot) = self.slots[index as usize].as_mut() else { return false };
        let (Peer::Link(link), Engine::Rc(qp)) = (slot.peer, &slot.engine) else { return false };
        let Some(borrowed) = links.borrowed(link) else { return false };
        let borrowing = &mut slot.borrowing;
        let has_room = borrowing.posted - borrowing.completed + (borrowing.len() as u64) < slot.config.send_depth.into();
        let len: u32 = wr.sges.iter().map(|sge| sge.len).sum();
        // What the engine would refuse it is to refuse.
        let is_ready = if allows == Allows::READS { qp.takes_reads() } else { qp.state() == State::Rts };
        let last = if allows == Allows::READS { borrowing.no_reads } else { borrowing.no_writes };
        if !is_ready || !(1..=MESSAGE_MAX_BYTES).contains(&len) || !has_room || last > borrowing.completed {
            return false;
        }
        let Some(found) = borrowed.find(remote.rkey, slot.dest, remote.va, len, allows) else { return false };
        let copy = Copy { wr: wr.clone(), link, found, len, done: 0, behind: borrowing.number() };
        borrowing.copies.push_back(copy);
        true
    }
}

impl Slot {
    /// Copies up to so many bytes; how many it copied.
    pub(super) fn copy_borrowed(&mut self, bytes: u32, links: Option<&Links>, grants: &Grants, ops: &Ops) -> u32 {
        let mut copied = 0;
        // A queue pair that has failed places nothing.
        while copied < bytes
            && self.engine.state() == State::Rts
            && let Some(at) = self.borrowing.copies.iter().position(Copy::is_under_way)
        {
            let copy = &mut self.borrowing.copies[at];
            let borrowed = links.and_then(|links| links.borrowed(copy.link));
            let stands = borrowed.is_some_and(|borrowed| {
                let (own, room) = piece(&copy.wr, copy.done);
                let len = room.min(bytes - copied);
                let stands = if copy.is_write() {
                    write(borrowed, &copy.found, copy.done, (own, len), &self.ledger)
                } else {
                    let payload = RawPayload::new(borrowed.bytes(&copy.found, copy.done), len);
                    Reach::new(grants, self.qpn, &self.ledger).place(own, &payload, 0, len);
                    borrowed.stands(&copy.found)
                };
                (copy.done, copied) = (copy.done + len, copied + len);
                stands
            });
            if !stands {
                self.pass_on(at);
            }
            self.post_held(ops);
        }
        copied
    }

    /// A request whose grant has ended under it goes by packets, and the peer's HCA judges it. There is a place for it in the engine, which
    /// is ready.
    #[cold]
    fn pass_on(&mut self, at: usize) {
        let Some(copy) = self.borrowing.copies.remove(at) else { return };
        self.borrowing.past += 1;
        match self.engine.post_send(copy.wr.clone(), None) {
            Ok(()) => self.borrowing.note(&copy.wr.op),
            Err(refusal) => unreachable!("a request that could be posted before: {refusal:?}"),
        }
    }

    /// The engine gets what was held, as far as the WRITEs in front of it are done. What it refuses ends here, as it would have where it
    /// was posted.
    fn post_held(&mut self, ops: &Ops) {
        while let Some(wr) = self.borrowing.next_held() {
            self.borrowing.posted += 1;
            let id = OpId::from_bits(wr.wr_id);
            if let Err(refusal) = self.engine.post_send(wr, None) {
                self.borrowing.completed += 1;
                let _ = ops.complete(id, Outcome::failed(Status::Rdma(refused(refusal))));
            }
        }
    }

    /// Ends the copies whose turn it is. False if one is under way: what was posted behind it waits.
    #[inline]
    fn complete_borrowed(&mut self, ops: &Ops) -> bool {
        while let Some(copy) = self.borrowing.copies.front()
            && copy.behind <= self.borrowing.completed
        {
            let outcome = if self.engine.state() == State::Error {
                // What it came behind may be what has failed.
                Outcome::failed(Status::Rdma(WcStatus::Flushed))
            } else if copy.is_under_way() {
                return false;
            } else {
                Outcome { status: Status::Ok, bytes: copy.len, immediate: None, qpn: None }
            };
            // A fault would be a bug of ours, counted and logged by the table.
            let _ = ops.complete(OpId::from_bits(copy.wr.wr_id), outcome);
            self.borrowing.copies.pop_front();
            self.borrowing.past += 1;
        }
        true
    }

    /// Ends the operations whose send requests ended.
    #[inline]
    pub(super) fn complete_sends(&mut self, ops: &Ops) {
        loop {
            while self.complete_borrowed(ops)
                && let Some(completion) = self.engine.poll_send()
            {
                self.borrowing.completed += 1;
                let _ = ops.complete(OpId::from_bits(completion.wr_id), super::hca::outcome(&completion));
            }
            // All that was posted before has ended.
            let Some(held) = self.borrowing.held.pop_front_if(|_| self.engine.state() == State::Error) else { return };
            (self.borrowing.posted, self.borrowing.completed) = (self.borrowing.posted + 1, self.borrowing.completed + 1);
            let _ = ops.complete(OpId::from_bits(held.wr.wr_id), Outcome::failed(Status::Rdma(WcStatus::Flushed)));
        }
    }
}

/// Writes some bytes of the region to byte `done` of a grant, if that stands.
fn write(borrowed: &Borrowed, found: &Found, done: u32, (own, len): (u64, u32), ledger: &Ledger) -> bool {
    let Some(claimed) = borrowed.claim(found) else { return false };
    // SAFETY: the piece lies in the lease of a posted operation, which the op table holds until that completes. The grant was found in what
    // is lent, which stays mapped as long as `borrowed`; its owner has said that the peer may write there, and waits for the claim if it
    // does not say so any more.
    unsafe { ledger.carry(claimed.bytes(done), own as *const u8, len as usize) };
    claimed.tell(done, len);
    true
}

/// Where byte `done` of a request is here, and how many more are right behind it.
fn piece(wr: &SendWr, done: u32) -> (u64, u32) {
    let mut skip = done;
    for sge in &wr.sges {
        if skip < sge.len {
            return (sge.addr + u64::from(skip), sge.len - skip);
        }
        skip -= sge.len;
    }
    unreachable!("a copy ends with its last piece")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Waker};

    use super::super::hca::CLOSING_LOOK;
    use super::*;
    use crate::base::{Nanos, Qpn, Rkey, Rng};
    use crate::device::Queue;
    use crate::device::rdma::{Access, Backend, Hca, HcaEnv, Qp, QpConfig};
    use crate::mem::{PageKind, Region, RegionConfig, Slab};

    struct End {
        hca: Hca,
        slab: Slab,
        qp: Qp,
    }

    impl End {
        fn open() -> End {
            let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
            let slab = Slab::new(&region, region.chunks()).unwrap();
            let env = HcaEnv { lends: true, ..HcaEnv::new(Ops::new(16), region, Rng::from_kernel()) };
            let hca = Hca::open(env, &"soft:shm".parse().unwrap()).unwrap();
            let qp = hca.create_qp(&QpConfig::default()).unwrap();
            End { hca, slab, qp }
        }

        fn soft(&self) -> Rc<RefCell<Soft>> {
            #[allow(irrefutable_let_patterns, reason = "the only kind where verbs is not built")]
            let Backend::Soft(soft) = &self.hca.backend else { unreachable!("it was opened as one") };
            soft.clone()
        }

        fn poll(&self, now: Nanos) {
            let _ = self.soft().borrow_mut().poll(now);
        }
    }

    /// A peer that is stopped in the middle of a WRITE has the memory until it goes on, or is gone; and that is all the same to a link that
    /// was closed meanwhile.
    #[test]
    fn memory_that_is_being_written_to_is_given_back_when_it_is_not() {
        for how in ["goes on", "goes on without a link", "is gone"] {
            let (near, far) = (End::open(), End::open());
            near.qp.connect(&far.qp.local()).unwrap();
            far.qp.connect(&near.qp.local()).unwrap();
            let mut now = Nanos(1);
            let mut step = || {
                now = now.saturating_add(Nanos::from_millis(1));
                near.poll(now);
                far.poll(now);
                now
            };
            let mut context = Context::from_waker(Waker::noop());
            let run = near.slab.run(4096).unwrap();
            let window = {
                let mut granting = pin!(near.qp.grant(run, Access::WRITE));
                let std::task::Poll::Ready(Ok(window)) = granting.as_mut().poll(&mut context) else { panic!("not at once") };
                window
            };
            near.hca.lend_writes(&window);
            let (rkey, dest, va) = (Rkey(window.rkey()), Qpn(near.qp.local().qpn), window.address());
            let soft = far.soft();
            let link = loop {
                step();
                let hca = soft.borrow();
                let Peer::Link(link) = hca.slots[0].as_ref().unwrap().peer else { continue };
                if hca.wires.links.as_ref().unwrap().borrowed(link).is_some() {
                    break link;
                }
            };
            // The far end's program stands still from here on.
            let writer = soft.borrow();
            let borrowed = writer.wires.links.as_ref().unwrap().borrowed(link).unwrap();
            let found = borrowed.find(rkey, dest, va, 4096, Allows::WRITES).unwrap();
            let claimed = borrowed.claim(&found).unwrap();
            let mut revoking = pin!(near.hca.revoke(window));
            let mut pending = |near: &End| {
                now = now.saturating_add(Nanos::from_millis(1));
                near.poll(now);
                revoking.as_mut().poll(&mut context).is_pending()
            };
            assert!((0..5).all(|_| pending(&near)), "{how}");
            let looks_again = |hca: &Soft| hca.deadline().is_some_and(|at| at <= hca.now.saturating_add(CLOSING_LOOK));
            assert!(looks_again(&near.soft().borrow()), "{how}");
            if how == "goes on without a link" {
                near.soft().borrow_mut().close(0);
                assert!((0..5).all(|_| pending(&near)), "{how}");
            }
            if how == "is gone" {
                // Nothing takes the claim back; its process has ended, and with it its sockets.
                std::mem::forget(claimed);
                drop(writer);
                soft.borrow_mut().wires.links = None;
            } else {
                drop(claimed);
            }
            assert!((0..5).any(|_| !pending(&near)), "{how}");
        }
    }
}
