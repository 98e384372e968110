//! What a panic of a task that others wait for comes to: those hear of it, and nothing is written to the store any more.
//!
//! Who waits for a change that panics is told by the task itself. But a log's writers, compaction and what serves the other cores work for
//! all, and with one of them gone the next to wait would wait without end. What it was at may be half done in memory, so nothing is written
//! that would be built on it: the log is the truth, and the next opening finds it. Reads go on.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::crew::Job;
use super::engine::Engine;
use super::failure::OPEN_ANEW;
use super::log::Log;
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::reactor::Task;

impl Engine {
    /// Starts a task that others wait for, or that has begun what has to be ended. `what` it is, for people.
    pub(super) fn attend(&self, what: &'static str, work: impl Future<Output = ()> + 'static) -> Task<()> {
        let (engine, core) = (self.clone(), &self.inner.core);
        let work = core.lasting(Box::pin(work), ());
        core.go_on(async move {
            if work.await.is_err() {
                engine.break_down(what);
            }
        })
    }

    /// Does what another core asks for.
    #[inline]
    pub(super) fn perform(&self, job: Job) {
        if catch_unwind(AssertUnwindSafe(|| job(self))).is_err() {
            self.inner.core.count_panic();
            self.break_down("what another core asked for");
        }
    }

    /// Nothing is written to the store any more, since `what` has panicked: what waits for that fails, on all cores.
    #[cold]
    pub(super) fn break_down(&self, what: &str) {
        // What the panic said was told where it happened.
        let what =
            format!("nothing is written to the store on {} any more: {what} has panicked", self.inner.env.disk.info().path.display());
        let why = Error::new(ErrorKind::Unavailable, what).remedy(OPEN_ANEW);
        if self.segments().break_down(why.clone()) {
            tracing::error!("{why:#}");
        }
        self.tell_all(Log::break_down);
        // Compaction ends.
        self.inner.log.nudge();
        self.tell_core(0, |engine| engine.inner.log.nudge());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::device::sim::disk::Image;
    use crate::store::draft::{Draft, Kind};
    use crate::store::engine::{Attributes, Which};
    use crate::store::failure::{Failure, Outcome};
    use crate::store::index::Version;
    use crate::store::open::Store;
    use crate::store::segments::Purpose;
    use crate::store::testing::World;

    /// Nobody waits for so long.
    const PATIENCE: Nanos = Nanos::from_secs(20);

    async fn in_time<T>(world: &World, what: &str, waited: impl Future<Output = T>) -> T {
        world.core.timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("{what}: nobody answers"))
    }

    async fn put(world: &World, store: &Store, bucket: u32, name: &[u8]) -> Outcome<Version> {
        let mut put = store.put(bucket, name)?;
        let put = async {
            put.write(world.slab.run(1 << 20)?).await?;
            put.finish(Attributes::default()).await
        };
        in_time(world, "a put", put).await
    }

    /// Every core says that nothing is written, reads, and ends.
    async fn look(world: &World, stores: &[Store], bucket: u32) {
        for (number, store) in stores.iter().enumerate() {
            let failure = put(world, store, bucket, format!("late {number}").as_bytes()).await.unwrap_err();
            assert!(failure.is_closed() && failure.to_string().contains("has panicked"), "{failure}");
            let failure = in_time(world, "a checkpoint", store.checkpoint()).await.unwrap_err();
            assert!(failure.is_closed(), "{failure}");
            let mut get = store.get(bucket, b"there", Which::Newest, 0..u64::MAX).await.unwrap();
            let mut bytes = 0;
            while let Some(piece) = in_time(world, "a get", get.next()).await.unwrap() {
                bytes += piece.len();
            }
            assert_eq!(bytes, 1 << 20);
            store.engine().inner.leaving.set(true);
        }
        let closed = in_time(world, "the end", stores[0].clone().close()).await.unwrap_err();
        assert!(closed.to_string().contains("has panicked"), "it is not closed cleanly: {closed}");
        stores.iter().for_each(|store| store.engine().inner.crew.clear());
    }

    fn with(case: impl AsyncFnOnce(&World, &[Store], u32) + 'static) {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let stores = world.stores(2).await;
            let bucket = stores[0].create_bucket(b"bucket", b"", 1).await.unwrap();
            put(&world, &stores[0], bucket, b"there").await.unwrap();
            case(&world, &stores, bucket).await;
            look(&world, &stores, bucket).await;
        };
        core.run(run).unwrap();
    }

    #[test]
    fn compaction_that_panics_is_waited_for_by_nobody() {
        with(async |world, stores, bucket| {
            // What it looks at first cannot be looked at.
            let taken = [stores[0].engine().inner.checkpointing.borrow_mut()];
            // As many as fill the disk twice.
            for number in 0..80 {
                if put(world, &stores[number % 2], bucket, format!("{number}").as_bytes()).await.is_err() {
                    break;
                }
            }
            drop(taken);
            assert!(stores[0].engine().segments().check_sound().is_err());
        });
    }

    #[test]
    fn what_empties_a_segment_may_panic() {
        with(async |world, stores, bucket| {
            // All of them but one are overwritten: there is a segment in which nothing is needed.
            for _ in 0..20 {
                put(world, &stores[0], bucket, b"again").await.unwrap();
            }
            let engine = stores[0].engine();
            // What it forgets last cannot be looked at.
            let taken = [engine.inner.catalog.borrow_mut()];
            let tries = in_time(world, "compaction", engine.compact()).await;
            drop(taken);
            assert!(!tries.is_empty() && engine.segments().check_sound().is_err(), "{}", tries.len());
        });
    }

    #[test]
    fn what_is_written_with_what_panics_is_answered() {
        for core in 0..2 {
            with(async move |world, stores, _| {
                let log = stores[core].engine().inner.log.clone();
                let draft = |number| Draft {
                    kind: Kind::Extent,
                    shard: 0,
                    time_ms: 1,
                    bucket: 1,
                    number: Some(number),
                    name: Box::default(),
                    properties: Box::default(),
                };
                // All writers are busy, and the next write has what comes from now on.
                let beside: Vec<_> = (0..40)
                    .map(|number| {
                        let (log, draft) = (log.clone(), draft(number));
                        world.core.spawn(async move { log.append(Purpose::Put, draft, Vec::new()).await })
                    })
                    .collect();
                let copy = log.append_copy(1, draft(99), Vec::new(), |_| panic!("a bug"));
                assert!(in_time(world, "a copy", copy).await.is_err());
                for one in beside {
                    let written = in_time(world, "an item", one).await.unwrap();
                    if let Ok(appended) = written {
                        stores[core].engine().segments().drop_need(appended.at.address, appended.at.item_bytes);
                    }
                }
            });
        }
    }

    #[test]
    fn what_a_core_is_asked_for_may_panic() {
        for core in 0..2 {
            with(async move |world, stores, _| {
                let asked = stores[0].engine().ask_for(core, |_, _: crate::store::crew::Answer<()>| panic!("a bug"));
                let failure: Failure = in_time(world, "an answer", asked.wait()).await.unwrap_err();
                assert!(!failure.is_closed(), "{failure}");
            });
        }
    }
}
