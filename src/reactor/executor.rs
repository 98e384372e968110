//! The core's tasks: a fixed table, a queue of those that are ready, and nothing else.
//!
//! A task is boxed once, when it is spawned. Waking it pushes its number; running it pops the number and polls. No counts, no
//! locks, no allocation. A task is known by its word: core, slot and generation, so that a wake-up for a task that has ended is
//! ignored, whoever kept it for however long.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::device::Ops;
use crate::device::waker::{self, Waiter};

/// The most tasks of one core: 24 bits of a waker's word.
pub const TASKS_MAX: u32 = 1 << 24;

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks of one core.
pub(super) struct Executor {
    core: u8,
    ops: Ops,
    table: RefCell<Table>,
    /// Numbers of tasks to run, each at most once, so never longer than the table.
    ready: RefCell<VecDeque<u32>>,
    panics: Cell<u64>,
}

struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    /// In `ready`.
    queued: bool,
    state: State,
}

enum State {
    Free,
    Waiting(Boxed),
    /// Its future is being polled, and so not here.
    Running,
    /// As running, and to be dropped when the poll returns.
    Aborted,
}

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

/// In the task's future: delivers when the future is dropped before its end.
struct Deliver<T>(Rc<Joint<T>>);

impl<T> Drop for Deliver<T> {
    fn drop(&mut self) {
        self.0.deliver(Err(Panicked { message: "aborted".into() }));
    }
}

impl Executor {
    pub fn new(core: u8, tasks: u32, ops: &Ops) -> Executor {
        let slots = (0..tasks).map(|_| Slot { generation: 1, queued: false, state: State::Free }).collect();
        let table = RefCell::new(Table { slots, free: (0..tasks).rev().collect() });
        let ready = RefCell::new(VecDeque::with_capacity(tasks as usize));
        Executor { core, ops: ops.clone(), table, ready, panics: Cell::new(0) }
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
        let deliver = Deliver(joint.clone());
        let boxed: Boxed = Box::pin(async move {
            let outcome = {
                let mut future = pin!(future);
                // Caught here, where the type of the result is known; what is unwound through is the future, never polled again.
                poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                    Ok(poll) => poll.map(Ok),
                    Err(panic) => Poll::Ready(Err(Panicked { message: message(panic.as_ref()) })),
                })
                .await
            };
            deliver.0.deliver(outcome);
        });
        let slot = &mut table.slots[index as usize];
        slot.state = State::Waiting(boxed);
        let word = self.word(index, slot.generation);
        drop(table);
        self.schedule(word);
        Ok(Task { executor: self.clone(), word, joint })
    }

    /// Puts the task `word` names into the ready queue; a task that has ended, or is queued already, is left alone.
    #[inline]
    pub fn schedule(&self, word: u64) {
        if (word >> 56) as u8 != self.core {
            // A task of another core awaited something of this one's.
            return crate::reactor::remote::wake(word);
        }
        let index = (word >> 32) as u32 & (TASKS_MAX - 1);
        let mut table = self.table.borrow_mut();
        if let Some(slot) = table.slots.get_mut(index as usize)
            && slot.generation == word as u32
            && !slot.queued
            && !matches!(slot.state, State::Free)
        {
            slot.queued = true;
            self.ready.borrow_mut().push_back(index);
        }
    }

    /// Puts every task into the ready queue.
    pub fn schedule_all(&self) {
        let mut table = self.table.borrow_mut();
        let mut ready = self.ready.borrow_mut();
        for (index, slot) in (0..).zip(&mut table.slots) {
            if !slot.queued && !matches!(slot.state, State::Free) {
                slot.queued = true;
                ready.push_back(index);
            }
        }
    }

    /// Moves the tasks whose operations completed into the ready queue. Whether any task is ready then.
    #[inline]
    pub fn collect(&self) -> bool {
        if self.ops.has_woken() {
            self.ops.take_woken(|word| self.schedule(word));
        }
        !self.ready.borrow().is_empty()
    }

    /// Polls every task that is ready now, once. Those they wake run in the next turn, after the queues were looked at: no task
    /// can keep the core from its devices.
    #[inline]
    pub fn run_ready(&self) {
        let batch = self.ready.borrow().len();
        for _ in 0..batch {
            let Some(index) = self.ready.borrow_mut().pop_front() else { break };
            self.run(index);
        }
    }

    fn run(&self, index: u32) {
        let mut table = self.table.borrow_mut();
        let slot = &mut table.slots[index as usize];
        slot.queued = false;
        let State::Waiting(mut future) = std::mem::replace(&mut slot.state, State::Running) else {
            // It was aborted while it was queued, and its slot is free or another task's, which its own wake-up will run.
            slot.state = State::Free;
            return;
        };
        let word = self.word(index, slot.generation);
        drop(table);
        let waker = waker::waker(word);
        // The task's own panics are caught inside; this catches those of destructors.
        let poll = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        let mut table = self.table.borrow_mut();
        let slot = &mut table.slots[index as usize];
        if matches!(poll, Ok(Poll::Pending)) && matches!(slot.state, State::Running) {
            slot.state = State::Waiting(future);
            return;
        }
        table.release(index);
        drop(table);
        self.bury(future);
        if poll.is_err() {
            self.panics.set(self.panics.get() + 1);
        }
    }

    /// Drops a future whose destructors may panic.
    fn bury(&self, future: Boxed) {
        if catch_unwind(AssertUnwindSafe(|| drop(future))).is_err() {
            self.panics.set(self.panics.get() + 1);
        }
    }

    /// Ends the task `word` names. A task that aborts itself ends when it next waits.
    fn abort(&self, word: u64) {
        let index = (word >> 32) as u32 & (TASKS_MAX - 1);
        let mut table = self.table.borrow_mut();
        let slot = &mut table.slots[index as usize];
        if slot.generation != word as u32 {
            return;
        }
        match std::mem::replace(&mut slot.state, State::Aborted) {
            State::Waiting(future) => {
                table.release(index);
                drop(table);
                self.bury(future);
            }
            State::Running | State::Aborted => {}
            State::Free => slot.state = State::Free,
        }
    }

    /// Ends every task that is not running.
    pub fn abort_all(&self) {
        let words: Vec<u64> = (0..)
            .zip(&self.table.borrow().slots)
            .filter(|(_, slot)| matches!(slot.state, State::Waiting(_)))
            .map(|(index, slot)| self.word(index, slot.generation))
            .collect();
        words.into_iter().for_each(|word| self.abort(word));
    }

    /// Tasks that have not ended.
    pub fn live(&self) -> usize {
        let table = self.table.borrow();
        table.slots.len() - table.free.len()
    }

    /// Destructors that panicked outside any task's own code.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }
}

impl Table {
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
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

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
