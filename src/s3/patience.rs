//! How long somebody is waited for who keeps memory meanwhile: not as long while there is little of it, which others wait for.

use std::pin::pin;

use crate::base::Nanos;
use crate::mem::Slab;
use crate::reactor::{Core, Elapsed};

/// How often it is looked at how much memory there is.
pub const LOOK: Nanos = Nanos::from_secs(1);

/// How long to wait.
pub struct Patience {
    /// While there is memory enough.
    pub usual: Nanos,
    /// While there is little: [`Census::is_short`](crate::mem::Census::is_short).
    pub if_short: Nanos,
}

impl Patience {
    /// How long that is now.
    pub fn now(&self, slab: &Slab) -> Nanos {
        if slab.census().is_short() { self.if_short } else { self.usual }
    }

    /// What comes of a future. For how long this core stood still nobody else is to blame: what counts is how often it has looked.
    ///
    /// # Errors
    /// It took too long, and was dropped.
    pub async fn wait<F: Future>(&self, core: &Core, slab: &Slab, future: F) -> Result<F::Output, Elapsed> {
        let (mut future, mut waited) = (pin!(future), Nanos::ZERO);
        loop {
            match core.timeout(LOOK, future.as_mut()).await {
                Ok(came) => return Ok(came),
                Err(late) => {
                    waited = waited.saturating_add(LOOK);
                    if waited >= self.now(slab) {
                        return Err(late);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::task::Poll;
    use std::time::Duration;

    use super::*;
    use crate::mem::{Region, RegionConfig};
    use crate::reactor::CoreConfig;

    #[test]
    fn memory_that_gets_short_meanwhile_ends_a_wait_and_a_core_that_stood_still_does_not() {
        let Ok(core) = Core::new(CoreConfig::default()).map_err(|error| eprintln!("SKIPPED: {error}")) else { return };
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(2 << 20) }).unwrap();
        let slab = Slab::new(&region, 256).unwrap();
        core.adopt_slab(&slab);
        let run = {
            let core = core.clone();
            async move {
                let patience = Patience { usual: Nanos::from_secs(60), if_short: Nanos::from_secs(3) };
                let waiting = core.spawn({
                    let (core, slab) = (core.clone(), slab.clone());
                    async move { patience.wait(&core, &slab, pending::<()>()).await }
                });
                core.sleep(Nanos::from_millis(3500)).await;
                assert!(!waiting.is_done(), "there is memory enough");
                let held: Vec<_> = (0..250).map(|_| slab.buf().unwrap()).collect();
                assert_eq!(core.timeout(Nanos::from_secs(30), waiting).await.expect("it is short now").unwrap(), Err(Elapsed));
                let patience = Patience { usual: Nanos::from_secs(60), if_short: Nanos::from_secs(2) };
                // What this waits for is there in its first turn behind a standstill.
                let mut turns = 0;
                let stood = poll_fn(|context| {
                    turns += 1;
                    if turns == 1 {
                        std::thread::sleep(Duration::from_millis(2500));
                    }
                    context.waker().wake_by_ref();
                    if turns < 3 { Poll::Pending } else { Poll::Ready(turns) }
                });
                assert_eq!(patience.wait(&core, &slab, stood).await, Ok(3));
                drop(held);
            }
        };
        core.run(run).unwrap();
    }
}
