//! Frames on their way into messages of the native mode, of either end.
//!
//! What is alone goes at once. Of what comes in the same turn of the core the first goes at once, too, and the rest is put together and
//! goes in the next turn, or when a message is full: nobody waits for a time, and a core that has much to say says it in few messages.
//! Whoever knows that he has more to say puts it together from the first on.

use std::cell::{Cell, RefCell};
use std::task::Context;

use crate::device::rdma::Qp;
use crate::device::{Op, Signal};
use crate::mem::{Run, Slab};
use crate::reactor::Core;

/// Frames that will be one message, in order.
struct Draft {
    /// As long as they are.
    run: Run,
    /// Bytes that there may be.
    most: u32,
    frames: u64,
}

impl Draft {
    fn fits(&self, bytes: u32) -> bool {
        bytes <= self.most - self.run.len()
    }

    fn put(&mut self, bytes: u32, emit: impl FnOnce(&mut [u8]) -> usize) {
        assert!(self.fits(bytes), "room was made for a frame before it is put");
        let from = self.run.len();
        self.run.set_len(from + bytes);
        let written = emit(&mut self.run.as_mut_slice()[from as usize..]);
        assert_eq!(written, bytes as usize, "a frame is as long as it says");
        self.frames += 1;
    }
}

/// A message that was sent.
pub struct Message {
    /// Until the other end has it.
    pub op: Op<Run>,
    /// Frames in it.
    pub frames: u64,
    /// Bytes of memory that it has until then.
    pub bytes: u32,
}

/// Why there is no room for a frame now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// No memory.
    Memory,
    /// The send queue is full.
    Queue,
}

/// What one end of a session sends.
pub struct Outbox {
    core: Core,
    slab: Slab,
    /// Bytes of a message that the other end takes.
    most: u32,
    draft: RefCell<Option<Draft>>,
    /// Bytes of the message that went last: the next one is taken to be as long.
    like: Cell<u32>,
    /// The turn in which a message went last.
    last: Cell<u64>,
    /// Frames wait for the next turn.
    due: Signal,
}

impl Outbox {
    /// For messages of so many bytes, from this core's memory.
    pub fn new(core: &Core, slab: &Slab, most: u32) -> Outbox {
        Outbox {
            core: core.clone(),
            slab: slab.clone(),
            most,
            draft: RefCell::new(None),
            like: Cell::new(0),
            last: Cell::new(u64::MAX),
            due: Signal::new(core.ops()),
        }
    }

    /// Whether nothing waits and nothing went in this turn: what comes now is to go at once.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.last.get() != self.core.turns() && self.draft.borrow().as_ref().is_none_or(|draft| draft.frames == 0)
    }

    /// Makes room for a frame of so many bytes, which a message can hold: what it does not fit behind is sent.
    ///
    /// # Errors
    /// There is none now; nothing was changed.
    #[inline]
    pub fn make_room(&self, qp: &Qp, bytes: u32) -> Result<Option<Message>, NoRoom> {
        if self.draft.borrow().as_ref().is_some_and(|draft| draft.fits(bytes)) {
            return Ok(None);
        }
        self.make_more_room(qp, bytes)
    }

    fn make_more_room(&self, qp: &Qp, bytes: u32) -> Result<Option<Message>, NoRoom> {
        // There is much to say: the next message is to have all the room that there may be.
        let is_wide = self.draft.borrow().as_ref().is_some_and(|draft| draft.frames > 0);
        let draft = self.begin(bytes, is_wide).ok_or(NoRoom::Memory)?;
        let sent = self.flush(qp)?;
        self.draft.replace(Some(draft));
        Ok(sent)
    }

    fn begin(&self, bytes: u32, is_wide: bool) -> Option<Draft> {
        let wide = if is_wide { self.slab.run(self.most).ok() } else { None };
        let mut run = wide.or_else(|| self.slab.run(bytes).ok())?;
        run.set_len(0);
        Some(Draft { most: run.capacity().min(self.most), run, frames: 0 })
    }

    /// Where there is time: takes memory for a message like the last one, so that what is said next need not. None of the last eighth.
    pub fn prepare(&self) {
        if self.draft.borrow().is_none() && !self.slab.census().is_short() {
            self.draft.replace(self.begin(self.like.get(), false));
        }
    }

    /// Puts a frame behind those that wait.
    ///
    /// # Panics
    /// No room was made for it.
    #[inline]
    pub fn put(&self, bytes: u32, emit: impl FnOnce(&mut [u8]) -> usize) {
        self.draft.borrow_mut().as_mut().expect("room was made for a frame before it is put").put(bytes, emit);
    }

    /// Sends what waits, if anything does.
    ///
    /// # Errors
    /// `Queue`: it waits on.
    #[inline]
    pub fn flush(&self, qp: &Qp) -> Result<Option<Message>, NoRoom> {
        let waiting = self.draft.borrow_mut().take_if(|draft| draft.frames > 0);
        let Some(Draft { run, most, frames }) = waiting else { return Ok(None) };
        self.like.set(run.len());
        let bytes = run.capacity();
        match qp.submit_send(run, None) {
            Ok(op) => {
                self.last.set(self.core.turns());
                Ok(Some(Message { op, frames, bytes }))
            }
            Err(refused) => {
                self.draft.replace(Some(Draft { run: refused.lease, most, frames }));
                Err(NoRoom::Queue)
            }
        }
    }

    /// Has who polls send what waits, in the next turn.
    pub fn defer(&self) {
        self.due.raise();
    }

    /// The task that sends what waits is woken when something does.
    pub fn listen(&self, context: &mut Context<'_>) {
        while self.due.poll(context).is_ready() {}
    }

    /// Throws away what waits, and says how many frames that was.
    pub fn clear(&self) -> u64 {
        self.draft.take().map_or(0, |draft| draft.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::rdma::{Hca, HcaEnv, QpConfig};
    use crate::mem::{Region, RegionConfig};
    use crate::reactor::CoreConfig;
    use crate::wire::s3::frame::{Answer, Body};

    const MOST: u32 = 4096;

    /// A queue pair and its peer, which takes messages of [`MOST`] bytes.
    struct Pair {
        core: Core,
        slab: Slab,
        qp: Qp,
        peer: Qp,
    }

    fn on_a_pair<R: Future<Output = ()> + 'static>(send_depth: u32, main: impl FnOnce(Pair) -> R + 'static) {
        let core = Core::new(CoreConfig::default()).unwrap();
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(16 << 20) }).unwrap();
        let slab = Slab::new(&region, region.chunks()).unwrap();
        core.adopt_slab(&slab);
        let open = || {
            let env = HcaEnv::new(core.ops().clone(), region.clone(), Rng::from_kernel());
            let hca = Hca::open(env, &"soft:shm".parse().unwrap()).unwrap();
            core.attach(hca.queue());
            hca.create_qp(&QpConfig { send_depth, recv_depth: 64, ..QpConfig::default() }).unwrap()
        };
        let (qp, peer) = (open(), open());
        let (one, other) = (qp.local(), peer.local());
        qp.connect(&other).unwrap();
        peer.connect(&one).unwrap();
        core.clone().run(main(Pair { core, slab, qp, peer })).unwrap();
    }

    impl Pair {
        fn post(&self, count: usize) -> Vec<Op<Run>> {
            (0..count).map(|_| self.peer.submit_recv(self.slab.run(MOST).unwrap()).unwrap()).collect()
        }
    }

    /// A frame of so many bytes, a multiple of 8 and 40 at least.
    fn put(outbox: &Outbox, id: u32, bytes: u32) {
        let body = vec![id as u8; bytes as usize - 32];
        let answer = Answer { id, status: 200, bytes: body.len() as u64, crc: 0, fields: &[], body: Body::Inline(&body) };
        outbox.put(bytes, |out| answer.emit(out));
    }

    /// The numbers of the frames of a message, each of which is whole.
    fn numbers(message: &Run) -> Vec<u32> {
        let (mut left, mut numbers) = (message.as_slice(), Vec::new());
        while !left.is_empty() {
            let (answer, behind) = Answer::parse(left).unwrap();
            assert!(matches!(answer.body, Body::Inline(bytes) if bytes.iter().all(|&byte| byte == answer.id as u8)));
            numbers.push(answer.id);
            left = behind;
        }
        numbers
    }

    #[test]
    fn frames_are_put_in_order_into_messages_that_they_fit() {
        on_a_pair(64, async |pair| {
            let Pair { core, slab, qp, .. } = &pair;
            let outbox = Outbox::new(core, slab, MOST);
            let mut received = pair.post(8);
            // Two messages that are full to their last byte, one that the next does not fit into, and what is left.
            let sizes = [[2048, 2048], [4056, 40], [4064, 40], [40, 40]].concat();
            let mut sent = Vec::new();
            for (id, &bytes) in (0u32..).zip(&sizes) {
                sent.extend(outbox.make_room(qp, bytes).unwrap());
                put(&outbox, id, bytes);
            }
            assert_eq!(sent.iter().map(|message| message.frames).collect::<Vec<_>>(), [2, 2, 1]);
            sent.extend(outbox.flush(qp).unwrap());
            assert_eq!(sent.pop().unwrap().frames, 3);
            assert!(outbox.flush(qp).unwrap().is_none(), "there is no message without a frame");
            for expected in [&[0, 1][..], &[2, 3], &[4], &[5, 6, 7]] {
                let message = received.remove(0).await.into_result().unwrap();
                assert!(message.len() <= MOST);
                assert_eq!(numbers(&message), expected);
            }
        });
    }

    #[test]
    fn what_comes_first_in_a_turn_is_alone_and_what_follows_is_not() {
        on_a_pair(64, async |pair| {
            let Pair { core, slab, qp, .. } = &pair;
            let outbox = Outbox::new(core, slab, MOST);
            let _received = pair.post(8);
            for _ in 0..3 {
                assert!(outbox.is_quiet());
                assert!(outbox.make_room(qp, 40).unwrap().is_none() && outbox.is_quiet(), "room is no frame");
                put(&outbox, 1, 40);
                assert!(!outbox.is_quiet(), "a frame waits");
                assert_eq!(outbox.flush(qp).unwrap().unwrap().frames, 1);
                assert!(!outbox.is_quiet(), "one went in this turn");
                core.yield_now().await;
            }
            outbox.make_room(qp, 40).unwrap();
            put(&outbox, 1, 40);
            core.yield_now().await;
            assert!(!outbox.is_quiet(), "a frame waits from the turn before");
            assert_eq!((outbox.clear(), outbox.clear()), (1, 0));
            assert!(outbox.is_quiet());
        });
    }

    #[test]
    fn what_the_queue_does_not_take_waits_and_is_lost_nowhere() {
        on_a_pair(1, async |pair| {
            let Pair { core, slab, qp, .. } = &pair;
            let outbox = Outbox::new(core, slab, MOST);
            let mut waiting = 0;
            for id in 0..40 {
                // Nobody has posted a receive: what was sent stays in the queue.
                match outbox.make_room(qp, 1000) {
                    Ok(_) => put(&outbox, id, 1000),
                    Err(none) => {
                        assert_eq!(none, NoRoom::Queue);
                        waiting = id;
                        break;
                    }
                }
            }
            assert!(waiting > 4 && outbox.flush(qp).is_err() && outbox.flush(qp).is_err(), "{waiting}");
            let mut found = Vec::new();
            for receiving in pair.post(12) {
                while outbox.flush(qp).is_err() {
                    core.yield_now().await;
                }
                found.extend(numbers(&receiving.await.into_result().unwrap()));
                if found.len() as u32 == waiting {
                    break;
                }
            }
            assert_eq!(found, (0..waiting).collect::<Vec<_>>());
            // Without memory there is no room either, and what waits stays.
            let mut all = Vec::new();
            while let Ok(run) = slab.run(4096) {
                all.push(run);
            }
            assert_eq!(outbox.make_room(qp, 40).err(), Some(NoRoom::Memory));
            all.clear();
            assert!(outbox.make_room(qp, 40).is_ok());
        });
    }

    #[test]
    fn what_is_prepared_needs_no_memory_when_there_is_something_to_say() {
        on_a_pair(64, async |pair| {
            let Pair { core, slab, qp, .. } = &pair;
            let outbox = Outbox::new(core, slab, MOST);
            let mut received = pair.post(2);
            outbox.make_room(qp, 1000).unwrap();
            put(&outbox, 1, 1000);
            let sent = outbox.flush(qp).unwrap().unwrap();
            assert_eq!(numbers(&received.remove(0).await.into_result().unwrap()), [1]);
            drop(sent.op.await);
            // Twice is as once, and what is prepared is nothing that waits.
            let free = slab.census().free;
            outbox.prepare();
            outbox.prepare();
            assert_eq!(slab.census().free, free - 1000u32.div_ceil(slab.chunk_bytes()));
            core.yield_now().await;
            assert!(outbox.is_quiet() && outbox.flush(qp).unwrap().is_none());
            let mut all = Vec::new();
            while let Ok(run) = slab.run(1) {
                all.push(run);
            }
            assert!(outbox.make_room(qp, 1000).unwrap().is_none());
            put(&outbox, 2, 1000);
            outbox.flush(qp).unwrap().unwrap();
            assert_eq!(numbers(&received.remove(0).await.into_result().unwrap()), [2]);
            // What is left where there is little is for others.
            assert!(slab.census().free > 0 && slab.census().is_short());
            outbox.prepare();
            assert!(outbox.draft.borrow().is_none());
            all.clear();
            outbox.prepare();
            // What is longer than was prepared for has room, too, and the other memory is given back.
            let owned = slab.census().owned;
            assert!(outbox.make_room(qp, MOST).unwrap().is_none());
            assert_eq!(slab.census().owned - owned, (MOST - 1000) / slab.chunk_bytes());
        });
    }
}
