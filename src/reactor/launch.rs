//! From a list of configurations to running cores and back: one pinned thread each, and an orderly end.

use std::future::Future;
use std::thread;

use crate::base::error::ErrorKind;
use crate::base::sync::Arc;
use crate::base::{Error, Nanos, Result};
use crate::reactor::core::{Core, CoreConfig, DrainReport};
use crate::reactor::mailbox::{self, Ends, Mailboxes};
use crate::reactor::remote::{self, Remote};
use crate::reactor::stop::{self, Group};

/// How long the devices of a core may take to let go of its memory once its main function has returned. Local devices answer a
/// cancel in microseconds; a disk in trouble is given the time of a retry.
const DRAIN: Nanos = Nanos::from_secs(2);

/// Runs `main` on every core of `cores`, each on a thread of its own, and returns what each gave, in that order. SIGINT,
/// SIGTERM and SIGHUP resolve [`Core::stopping`] on all of them. When a core's main function returns, its other tasks are ended and its
/// devices drained. With one core everything runs on the calling thread.
///
/// ```no_run
/// use basin::reactor::{CoreConfig, launch};
/// let sums = launch(vec![CoreConfig::default(); 2], |index, core, mail| async move {
///     // A message to the next core, one from the one before.
///     let _ = mail.try_send((index + 1) % mail.cores(), index as u64);
///     let (_, got) = mail.recv().await;
///     core.sleep(basin::base::Nanos::from_millis(1)).await;
///     got
/// });
/// # let _: basin::base::Result<Vec<u64>> = sums;
/// ```
///
/// # Errors
/// A core cannot be set up, or its main function panicked. The other cores are asked to stop, and waited for.
pub fn launch<M, T, F, R>(cores: Vec<CoreConfig>, main: F) -> Result<Vec<T>>
where
    M: Send + 'static,
    T: Send + 'static,
    F: Fn(usize, Core, Mailboxes<M>) -> R + Sync,
    R: Future<Output = T> + 'static,
{
    if cores.is_empty() || cores.len() > crate::base::limits::CORES_MAX {
        let what = format!("{} cores: 1 to {} can be run", cores.len(), crate::base::limits::CORES_MAX);
        return Err(Error::new(ErrorKind::Usage, what));
    }
    stop::install()?;
    let group = Group::new();
    // Numbers first: a mailbox rings the bell of a core that may not have started.
    let numbers = cores.iter().map(|_| remote::claim()).collect::<Result<Vec<_>>>()?;
    let remotes: Vec<&'static Remote> = numbers.iter().map(|(_, remote)| *remote).collect();
    let launch_one = |index: usize, config: CoreConfig, ends: Ends<M>| {
        let (number, remote) = numbers[index];
        let core = Core::with_number(config, Arc::clone(&group), number, remote).inspect_err(|_| remote::release(number))?;
        let mail = Mailboxes::new(index, &core, ends, &remotes);
        let outcome = core.run(main(index, core.clone(), mail));
        let report = core.shut_down(DRAIN);
        if report.quarantined > 0 || report.stuck > 0 {
            tracing::warn!(index, ?report, "a device did not let go of its memory in time");
        }
        outcome
    };
    let started = cores.into_iter().zip(mailbox::rings(remotes.len())).enumerate();
    if remotes.len() == 1 {
        return started.map(|(index, (config, ends))| launch_one(index, config, ends)).collect();
    }
    thread::scope(|scope| {
        let threads: Vec<_> = started
            .map(|(index, (config, ends))| {
                let (launch_one, group) = (&launch_one, &group);
                let body = move || launch_one(index, config, ends).inspect_err(|_| group.stop());
                let thread = thread::Builder::new().name(format!("core {index}")).spawn_scoped(scope, body);
                thread.inspect_err(|_| group.stop()).map_err(|error| Error::io(format!("starting the thread of core {index}"), &error))
            })
            .collect();
        // Every thread is joined before the first error is returned.
        let outcomes: Vec<Result<T>> = threads
            .into_iter()
            .map(|thread| thread?.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Failed, "a core's thread panicked"))))
            .collect();
        outcomes.into_iter().collect()
    })
}

impl Core {
    /// Stops the core's queues from taking new work, cancels what can be cancelled, and polls until every device has let go of
    /// its memory or `deadline` of the core's clock has passed. What is left then is quarantined. Runs no task meanwhile; the
    /// core takes no new work after it.
    pub fn drain(&self, deadline: Nanos) -> DrainReport {
        let core = &*self.inner;
        // A queue may close its descriptor when it is quiesced, and then nothing may watch it any more.
        let watched = core.queues.borrow_mut().iter_mut().flatten().filter_map(|attached| attached.watched.take()).collect::<Vec<_>>();
        watched.into_iter().for_each(|fd| core.uring.unwatch(fd));
        let attached: Vec<_> = core.queues.borrow().iter().flatten().map(|attached| attached.queue.clone()).collect();
        let in_flight = || core.uring.in_flight() + attached.iter().map(|queue| queue.borrow().in_flight()).sum::<usize>();
        let before = in_flight();
        core.uring.quiesce();
        attached.iter().for_each(|queue| queue.borrow_mut().quiesce(self.now()));
        loop {
            // Once at least: a device in software has let go of everything when it is quiesced, and says so in its next poll.
            let now = self.now();
            let progress = core.poll_queues(now);
            if in_flight() == 0 || now >= deadline {
                break;
            }
            if progress == crate::device::Progress::Idle {
                // Short, because not every queue raises a descriptor when it is not armed. An error shows again at the deadline.
                let _ = core.uring.wait(Some(Nanos::from_micros(50).min(deadline.since(now))));
            }
        }
        let stuck = in_flight();
        let quarantined = core.ops.quarantine_in_flight();
        DrainReport { completed: before.saturating_sub(stuck), quarantined, stuck }
    }

    /// Ends every task, then drains for `span` at most. A task that calls this goes on: it had better end.
    pub fn shut_down(&self, span: Nanos) -> DrainReport {
        // Destructors may spawn or wake; what they spawn ends too.
        while self.inner.executor.abort_all() {}
        self.drain(self.now().saturating_add(span))
    }
}
