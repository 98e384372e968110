//! A core's handle: what tasks and flows ask of it.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::future::Future;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::OnceLock;

use crate::base::error::ErrorKind;
use crate::base::sync::Arc;
use crate::base::{Clock, Error, Nanos, Result, Rng};
use crate::device::uring::Uring;
use crate::device::waker::{self, Waiter};
use crate::device::{Ops, Queue, Signal};
use crate::mem::Slab;
use crate::reactor::executor::{Executor, TASKS_MAX, TableFull, Task};
use crate::reactor::remote::{self, Remote};
use crate::reactor::stop::{self, Group};
use crate::reactor::timer::Wheel;

/// What an idle core does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// Spins a little, then sleeps until something happens.
    #[default]
    Adaptive,
    /// Never sleeps: the least latency, at 100% CPU.
    Busy,
}

/// What a core is made of.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The processor to pin the core's thread to.
    pub cpu: Option<usize>,
    /// What it does when idle.
    pub poll: PollMode,
    /// How long it looks for work before it sleeps, at most: it learns from its waits where a shorter look finds as much. A wake from sleep
    /// costs about 20 µs, so a little more than twice that.
    pub spin: Nanos,
    /// Operations in flight at once, over all devices of the core.
    pub operations: u32,
    /// Tasks at once.
    pub tasks: u32,
    /// Submission slots of the core's io_uring. A full one is entered early, so this bounds a batch, not the operations.
    pub ring_entries: u32,
}

impl Default for CoreConfig {
    fn default() -> CoreConfig {
        CoreConfig {
            cpu: None,
            poll: PollMode::Adaptive,
            spin: Nanos::from_micros(50),
            // Disk 128 + packets to and from the disk 256 + sockets 1024 + RDMA work requests 2048, and half as much again.
            operations: 4096 + 1024,
            // One per queue-depth slot (≤ 512), one per connection (≤ 1024), and a few that look after them.
            tasks: 2048,
            ring_entries: 512,
        }
    }
}

/// Names an attached queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(pub(super) usize);

/// How a drain ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Operations in flight at the start that their devices completed or cancelled in time.
    pub completed: usize,
    /// Operations whose memory was quarantined, because their devices had not let go of it by the deadline.
    pub quarantined: usize,
    /// Operations that queues still counted at the deadline, with or without memory of ours.
    pub stuck: usize,
}

/// What a core has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of the loop.
    pub turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Times a queue found something while it was being armed, or had something due, so that the core did not sleep.
    pub near_sleeps: u64,
    /// Tasks and destructors that panicked.
    pub panics: u64,
}

/// A handle on the core of this thread. Clones name the same core.
#[derive(Clone)]
pub struct Core {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub config: CoreConfig,
    pub index: u8,
    pub remote: &'static Remote,
    pub ops: Ops,
    pub uring: Uring,
    pub executor: Rc<Executor>,
    pub timers: RefCell<Wheel>,
    pub queues: RefCell<Vec<Option<Attached>>>,
    pub slabs: RefCell<Vec<Slab>>,
    pub clock: Clock,
    pub group: Arc<Group>,
    /// Raised when the bell rings: mailboxes.
    pub mail: RefCell<Vec<Rc<Signal>>>,
    /// Whoever waits for the core to be asked to stop; at most one entry per task.
    pub stop_waiters: RefCell<Vec<Waiter>>,
    pub stats: Cell<Stats>,
    /// Until then looking around before sleeping gains nothing.
    pub resting_until: Cell<Nanos>,
    /// The clock as it was read for this turn.
    pub turn_time: Cell<Nanos>,
    rng: RefCell<Rng>,
}

pub(super) struct Attached {
    pub queue: Rc<RefCell<dyn Queue>>,
    /// The descriptor the ring watches for it.
    pub watched: Option<RawFd>,
}

/// One clock for all cores, so that times can be compared across them.
fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    *CLOCK.get_or_init(Clock::start)
}

impl Core {
    /// A core on this thread, which is pinned if the configuration says so.
    ///
    /// # Errors
    /// The processor does not exist, or io_uring cannot be set up: the error says why.
    pub fn new(config: CoreConfig) -> Result<Core> {
        Core::in_group(config, Group::new())
    }

    /// A core that stops together with others.
    pub(super) fn in_group(config: CoreConfig, group: Arc<Group>) -> Result<Core> {
        let (index, remote) = remote::claim()?;
        Core::with_number(config, group, index, remote).inspect_err(|_| remote::release(index))
    }

    /// A core with a number that was claimed for it.
    pub(super) fn with_number(config: CoreConfig, group: Arc<Group>, index: u8, remote: &'static Remote) -> Result<Core> {
        if config.tasks == 0 || config.tasks > TASKS_MAX || config.operations == 0 {
            let what = format!("a core with {} tasks and {} operations: 1 to {TASKS_MAX} tasks", config.tasks, config.operations);
            return Err(Error::new(ErrorKind::Usage, what));
        }
        if let Some(cpu) = config.cpu
            && !(cpu < libc::CPU_SETSIZE as usize && core_affinity::set_for_current(core_affinity::CoreId { id: cpu }))
        {
            let error = Error::new(ErrorKind::Usage, format!("a core cannot be pinned to processor {cpu}"));
            return Err(error.remedy("choose a processor this process may use: taskset -p $$, and the container's cpuset"));
        }
        let ops = Ops::new(config.operations);
        ops.set_native(&waker::VTABLE);
        waker::install(remote::wake);
        let uring = Uring::new(config.ring_entries, &ops)?;
        uring.watch(remote.fd());
        let executor = Rc::new(Executor::new(index, config.tasks, &ops));
        group.join(remote);
        let inner = Inner {
            config,
            index,
            remote,
            ops,
            uring,
            executor,
            timers: RefCell::new(Wheel::new()),
            queues: RefCell::new(Vec::new()),
            slabs: RefCell::new(Vec::new()),
            clock: clock(),
            group,
            mail: RefCell::new(Vec::new()),
            stop_waiters: RefCell::new(Vec::new()),
            stats: Cell::new(Stats::default()),
            resting_until: Cell::new(Nanos::ZERO),
            turn_time: Cell::new(clock().now()),
            rng: RefCell::new(Rng::from_kernel()),
        };
        Ok(Core { inner: Rc::new(inner) })
    }

    /// The core's in-flight table.
    pub fn ops(&self) -> &Ops {
        &self.inner.ops
    }

    /// The core's io_uring.
    pub fn uring(&self) -> &Uring {
        &self.inner.uring
    }

    /// The time now, on one clock for all cores of the process. Reads the clock: about 25 ns.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.inner.clock.now()
    }

    /// The time when this turn began, or up to a microsecond before that: for deadlines that are far away, and for what came in this
    /// turn. It does not read the clock.
    #[inline]
    pub fn turn_time(&self) -> Nanos {
        self.inner.turn_time.get()
    }

    /// The core's generator, keyed by the kernel. Not to be held across an await.
    pub fn rng(&self) -> RefMut<'_, Rng> {
        self.inner.rng.borrow_mut()
    }

    /// What the core was made of.
    pub fn config(&self) -> &CoreConfig {
        &self.inner.config
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        Stats { panics: self.inner.executor.panics(), ..self.inner.stats.get() }
    }

    /// Turns of the loop so far: what happens in one turn has the same number.
    #[inline]
    pub fn turns(&self) -> u64 {
        self.inner.stats.get().turns
    }

    /// Tasks that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.inner.executor.live()
    }

    /// Starts a task on this core. A dropped [`Task`] runs on.
    ///
    /// # Panics
    /// When the task table is full. Whoever spawns at a peer's wish uses [`Core::try_spawn`].
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        match self.try_spawn(future) {
            Ok(task) => task,
            Err(_) => panic!("more than {} tasks on one core: raise CoreConfig::tasks", self.inner.config.tasks),
        }
    }

    /// Starts a task on this core.
    ///
    /// # Errors
    /// The future, when the task table is full.
    pub fn try_spawn<F>(&self, future: F) -> Result<Task<F::Output>, TableFull<F>>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.inner.executor.spawn(future)
    }

    /// Starts a task for what is under way already, or for the core itself, beyond the bound if need be: the bound is for what others ask.
    pub fn go_on<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.inner.executor.make_room();
        self.spawn(future)
    }

    /// Polls `queue` in every turn from here on, and watches its descriptor when the core sleeps.
    pub fn attach(&self, queue: Rc<RefCell<dyn Queue>>) -> QueueId {
        let mut queues = self.inner.queues.borrow_mut();
        let attached = Some(Attached { queue, watched: None });
        match queues.iter().position(Option::is_none) {
            Some(free) => {
                queues[free] = attached;
                QueueId(free)
            }
            None => {
                queues.push(attached);
                QueueId(queues.len() - 1)
            }
        }
    }

    /// Ends [`Core::attach`], before the queue's descriptor is closed. A queue that is not attached is left alone.
    pub fn detach(&self, id: QueueId) {
        let taken = self.inner.queues.borrow_mut().get_mut(id.0).and_then(Option::take);
        if let Some(Attached { watched: Some(fd), .. }) = taken {
            self.inner.uring.unwatch(fd);
        }
    }

    /// Takes back what other cores return to `slab`, and checks its ownership invariant, in every turn from here on.
    pub fn adopt_slab(&self, slab: &Slab) {
        self.inner.slabs.borrow_mut().push(slab.clone());
    }

    /// The slabs adopted so far, in that order.
    pub fn slabs(&self) -> Ref<'_, [Slab]> {
        Ref::map(self.inner.slabs.borrow(), Vec::as_slice)
    }

    /// Takes over SIGINT, SIGTERM and SIGHUP, which from then on resolve [`Core::stopping`]. [`launch`](super::launch) does it; a
    /// program that makes its cores itself calls this before it starts other threads.
    ///
    /// # Errors
    /// The signals cannot be blocked, or the thread that waits for them not made.
    pub fn catch_signals(&self) -> Result<()> {
        stop::install()
    }

    /// Asks every core of this launch to end: what [`Core::stopping`] waits for.
    pub fn stop(&self) {
        self.inner.group.stop();
    }

    /// Whether the core was asked to end, by [`Core::stop`] or a signal.
    pub fn is_stopping(&self) -> bool {
        self.inner.group.is_stopping()
    }

    pub(super) fn on_mail(&self, signal: Rc<Signal>) {
        self.inner.mail.borrow_mut().push(signal);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Wakers of this core's tasks may live on; the next core of this number ignores their words or wakes in vain.
        remote::release(self.index);
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Core({}, {} tasks, {} operations)", self.inner.index, self.live_tasks(), self.inner.ops.occupied())
    }
}
