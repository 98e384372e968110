//! The core's tasks: a fixed table, a queue of those that are ready, and nothing else.
//!
//! A task is boxed when it is spawned. Waking it pushes its word on the op table's list; a batch takes the whole list and
//! polls each task on it once, and a turn has a few of them. No counts, no locks, no allocation. The word is core, slot and
//! generation, so that a wake-up for a task that has ended is ignored, whoever kept it for however long.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::device::Ops;
use crate::device::waker::{self, Waiter};

/// The most tasks of one core: 24 bits of a waker's word.
pub const TASKS_MAX: u32 = 1 << 24;

/// Batches of a turn.
const PASSES: u64 = 4;

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks of one core.
pub(super) struct Executor {
    core: u8,
    ops: Ops,
    table: RefCell<Table>,
    /// The words of the batch being run; kept for its room.
    batch: Cell<Vec<u64>>,
    /// Turns in which tasks were polled.
    turns: Cell<u64>,
    panics: Cell<u64>,
}

struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    state: State,
    /// The batch that polled it last: whatever woke it a second time before that batch was seen by the same poll.
    polled_in: u64,
    /// There while the task waits; taken out while it is polled.
    future: Option<Boxed>,
    /// Told when the task ends without a result; `None` in a free slot.
    joint: Option<Rc<dyn Ended>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Waiting,
    Running,
    /// As running, and to be dropped when the poll returns.
    Aborted,
}

/// The side of a [`Joint`] that does not know the type of the result.
trait Ended {
    /// The task ended without a result. A task that has delivered one already keeps it.
    fn early(&self, message: &str);
}

/// What is said of a task that somebody ended.
const ABORTED: &str = "aborted";

/// Every slot of the task table is taken: backpressure. The future comes back.
#[derive(Debug)]
pub struct TableFull<F>(pub F);

/// A task ended without a result: it panicked, or was aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task ended early: {message}")]
pub struct Panicked {
    /// What the panic said.
    pub message: String,
}

/// A spawned task. Awaiting it gives what it returned; dropping it lets the task run on.
pub struct Task<T> {
    executor: Rc<Executor>,
    word: u64,
    joint: Rc<Joint<T>>,
}

/// Where a task leaves its result.
struct Joint<T> {
    outcome: Cell<Option<Result<T, Panicked>>>,
    done: Cell<bool>,
    waiter: Cell<Option<Waiter>>,
    ops: Ops,
}

/// A task's future, and where its result goes. The future is in a box of its own, which it is moved into once: some have ten thousand
/// bytes, and an `async` block around it would have room for it twice and move it from one to the other.
struct Running<F: Future> {
    future: Pin<Box<F>>,
    joint: Rc<Joint<F::Output>>,
}

impl<F: Future> Future for Running<F> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.future.as_mut().poll(cx).map(|output| self.joint.deliver(Ok(output)))
    }
}

impl<T> Joint<T> {
    fn deliver(&self, outcome: Result<T, Panicked>) {
        if !self.done.replace(true) {
            self.outcome.set(Some(outcome));
            if let Some(waiter) = self.waiter.take() {
                waiter.wake(&self.ops);
            }
        }
    }
}

impl<T> Ended for Joint<T> {
    fn early(&self, message: &str) {
        if !self.done.get() {
            self.deliver(Err(Panicked { message: message.into() }));
        }
    }
}

impl Slot {
    fn new() -> Slot {
        Slot { generation: 1, state: State::Free, polled_in: 0, future: None, joint: None }
    }
}

impl Executor {
    pub fn new(core: u8, tasks: u32, ops: &Ops) -> Executor {
        let slots = (0..tasks).map(|_| Slot::new()).collect();
        let table = RefCell::new(Table { slots, free: (0..tasks).rev().collect() });
        Executor { core, ops: ops.clone(), table, batch: Cell::default(), turns: Cell::new(0), panics: Cell::new(0) }
    }

    fn word(&self, slot: u32, generation: u32) -> u64 {
        u64::from(self.core) << 56 | u64::from(slot) << 32 | u64::from(generation)
    }

    pub fn spawn<F>(self: &Rc<Self>, future: F) -> Result<Task<F::Output>, TableFull<F>>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let mut table = self.table.borrow_mut();
        let Some(index) = table.free.pop() else { return Err(TableFull(future)) };
        let joint = Rc::new(Joint { outcome: Cell::new(None), done: Cell::new(false), waiter: Cell::new(None), ops: self.ops.clone() });
        // `Box::pin` would move it to the stack first.
        let future = Box::into_pin(Box::write(Box::new_uninit(), future));
        let boxed: Boxed = Box::pin(Running { future, joint: joint.clone() });
        let slot = &mut table.slots[index as usize];
        // Another had the place before, maybe in this turn.
        (slot.state, slot.polled_in, slot.future) = (State::Waiting, 0, Some(boxed));
        slot.joint = Some(joint.clone());
        let word = self.word(index, slot.generation);
        self.ops.wake(word);
        Ok(Task { executor: self.clone(), word, joint })
    }

    /// Has room for one task more.
    ///
    /// # Panics
    /// When there are as many as a waker can name.
    pub fn make_room(&self) {
        let mut table = self.table.borrow_mut();
        if table.free.is_empty() {
            let index = table.slots.len() as u32;
            assert!(index < TASKS_MAX, "{index} tasks on one core");
            table.slots.push(Slot::new());
            table.free.push(index);
        }
    }

    /// Wakes every task.
    pub fn wake_all(&self) {
        for (index, slot) in (0..).zip(&self.table.borrow().slots) {
            if slot.state != State::Free {
                self.ops.wake(self.word(index, slot.generation));
            }
        }
    }

    /// Polls every task that was woken until now, then those that they have woken, and so on a few times, each once; whether there was any.
    /// Who is woken later, or again, runs in the next turn, after the queues were looked at: no task can keep the core from its devices.
    #[inline]
    pub fn run_woken(&self) -> bool {
        if !self.ops.has_woken() {
            return false;
        }
        let turn = self.turns.get() + 1;
        self.turns.set(turn);
        let mut batch = self.batch.take();
        for pass in 0..PASSES {
            self.ops.swap_woken(&mut batch);
            for &word in &batch {
                self.run(word, turn * PASSES + pass);
            }
            batch.clear();
            if !self.ops.has_woken() {
                break;
            }
        }
        self.batch.set(batch);
        true
    }

    fn run(&self, word: u64, batch: u64) {
        if (word >> 56) as u8 != self.core {
            // A task of another core awaited something of this one's.
            return crate::reactor::remote::wake(word);
        }
        let index = (word >> 32) as u32 & (TASKS_MAX - 1);
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slots.get_mut(index as usize) else { return };
        if slot.generation != word as u32 || slot.polled_in == batch {
            return;
        }
        if slot.polled_in / PASSES == batch / PASSES {
            // It had its turn. What it was woken for may have come after that.
            drop(table);
            return self.ops.wake(word);
        }
        // None when it is being polled: a task that runs its own core from within.
        let Some(mut future) = slot.future.take() else { return };
        (slot.state, slot.polled_in) = (State::Running, batch);
        drop(table);
        let waker = waker::waker(word);
        let poll = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        let mut table = self.table.borrow_mut();
        let slot = &mut table.slots[index as usize];
        if matches!(poll, Ok(Poll::Pending)) && slot.state == State::Running {
            (slot.state, slot.future) = (State::Waiting, Some(future));
            return;
        }
        let joint = table.release(index);
        drop(table);
        match poll {
            // What is unwound through is the future, never polled again.
            Err(panic) => {
                self.count_panic();
                self.bury(future, joint, &message(panic.as_ref()));
            }
            Ok(_) => self.bury(future, joint, ABORTED),
        }
    }

    /// Drops a future whose destructors may panic, and says how it ended if it has not said so itself.
    fn bury(&self, future: Boxed, joint: Option<Rc<dyn Ended>>, message: &str) {
        // A foreign waker may panic too.
        let buried = [
            catch_unwind(AssertUnwindSafe(|| drop(future))),
            catch_unwind(AssertUnwindSafe(|| joint.into_iter().for_each(|joint| joint.early(message)))),
        ];
        let panics = buried.iter().filter(|outcome| outcome.is_err()).count() as u64;
        self.panics.set(self.panics.get() + panics);
    }

    /// Ends the task `word` names. A task that aborts itself ends when it next waits.
    fn abort(&self, word: u64) {
        let index = (word >> 32) as u32 & (TASKS_MAX - 1);
        let mut table = self.table.borrow_mut();
        let slot = &mut table.slots[index as usize];
        if slot.generation != word as u32 {
            return;
        }
        match slot.future.take() {
            Some(future) => {
                let joint = table.release(index);
                drop(table);
                self.bury(future, joint, ABORTED);
            }
            None if slot.state == State::Running => slot.state = State::Aborted,
            None => {}
        }
    }

    /// Ends every task that is not running. False where there was none.
    pub fn abort_all(&self) -> bool {
        let words: Vec<u64> = (0..)
            .zip(&self.table.borrow().slots)
            .filter(|(_, slot)| slot.state == State::Waiting)
            .map(|(index, slot)| self.word(index, slot.generation))
            .collect();
        let were_some = !words.is_empty();
        words.into_iter().for_each(|word| self.abort(word));
        were_some
    }

    /// Tasks that have not ended.
    pub fn live(&self) -> usize {
        let table = self.table.borrow();
        table.slots.len() - table.free.len()
    }

    /// Counts a task's panic.
    pub fn count_panic(&self) {
        self.panics.set(self.panics.get() + 1);
    }

    /// Tasks and destructors that panicked.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }
}

impl Table {
    fn release(&mut self, index: u32) -> Option<Rc<dyn Ended>> {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        slot.joint.take()
    }
}

impl<T> Task<T> {
    /// Ends the task where it waits; its result is then an error. What it had in flight returns to its slab when the devices
    /// are done with it.
    pub fn abort(&self) {
        self.executor.abort(self.word);
    }

    /// The result, of a task that has ended.
    pub(super) fn take(self) -> Option<Result<T, Panicked>> {
        self.joint.outcome.take()
    }

    /// Whether the task has ended.
    pub fn is_done(&self) -> bool {
        self.joint.done.get()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Panicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.joint.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                assert!(!self.joint.done.get(), "a task's result is taken once");
                self.joint.waiter.set(Some(Waiter::of(&self.joint.ops, cx)));
                Poll::Pending
            }
        }
    }
}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({:#x}, done: {})", self.word, self.joint.done.get())
    }
}

/// What a panic said.
pub(super) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
