//! How another thread gets a core's attention, and the core to sleep without missing it.
//!
//! One word per core. Whoever leaves something for the core (a message, a wake-up) rings after leaving it; the core, before it
//! looks for what was left, puts the word back to quiet. Going to sleep is one exchange of quiet for asleep, which fails if the
//! bell was rung. So a ring either comes before that exchange, and the core does not sleep, or after it, and the ringer finds
//! it asleep and writes its eventfd. There is no third order.

use crate::base::sync::atomic::{AtomicU32, Ordering, fence};

const QUIET: u32 = 0;
const RUNG: u32 = 1;
const ASLEEP: u32 = 2;

/// The word.
pub(super) struct Bell {
    state: AtomicU32,
}

impl Bell {
    pub fn new() -> Bell {
        Bell { state: AtomicU32::new(QUIET) }
    }

    /// Says that something was left. True when the core sleeps and the caller must wake it.
    #[inline]
    #[must_use]
    pub fn ring(&self) -> bool {
        // Pairs with the fence in `answer`: either this load sees that the core has put the word back, or the core's look, which
        // follows its own fence, sees what was left before this one. So a bell that is rung need not be rung again.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == RUNG {
            return false;
        }
        self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP
    }

    /// For the core: whether the bell was rung; quiet again from here on. Look for what was left after this.
    #[inline]
    #[must_use]
    pub fn answer(&self) -> bool {
        // The common case, nobody rang, is one load of a line this core already has.
        if self.state.load(Ordering::Relaxed) != RUNG {
            return false;
        }
        self.state.swap(QUIET, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        true
    }

    /// For the core: goes to sleep, unless the bell was rung.
    #[must_use]
    pub fn doze(&self) -> bool {
        self.state.compare_exchange(QUIET, ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// For the core: awake again. A bell rung meanwhile stays rung.
    pub fn rise(&self) {
        let _ = self.state.compare_exchange(ASLEEP, QUIET, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rung_bell_keeps_the_core_awake_until_answered() {
        let bell = Bell::new();
        assert!(!bell.answer());
        assert!(!bell.ring());
        assert!(!bell.doze());
        assert!(bell.answer());
        assert!(bell.doze());
        assert!(bell.ring());
        assert!(!bell.ring());
        bell.rise();
        assert!(bell.answer() && !bell.answer());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::base::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// What crosses: things left by ringers, and the eventfd that a ringer writes when it must.
    struct World {
        bell: Bell,
        left: [AtomicBool; 2],
        eventfd: AtomicBool,
    }

    fn ringers(world: &Arc<World>) -> Vec<thread::JoinHandle<()>> {
        (0..2)
            .map(|who| {
                let world = world.clone();
                thread::spawn(move || {
                    world.left[who].store(true, Ordering::Relaxed);
                    if world.bell.ring() {
                        world.eventfd.store(true, Ordering::Release);
                    }
                })
            })
            .collect()
    }

    fn look(world: &World) -> usize {
        // Loads, which may be stale as the ring's and the queue's may be; an exchange would see the latest.
        world.left.iter().filter(|left| left.load(Ordering::Relaxed)).count()
    }

    /// The core looks once and goes to sleep; when both ringers are done, either it did not sleep with something unseen, or its
    /// eventfd was written.
    #[test]
    fn loom_no_wake_up_is_lost() {
        loom::model(|| {
            let world = Arc::new(World { bell: Bell::new(), left: Default::default(), eventfd: AtomicBool::new(false) });
            let ringers = ringers(&world);
            let mut seen = 0;
            if world.bell.answer() {
                seen = look(&world);
            }
            let asleep = world.bell.doze();
            for ringer in ringers {
                ringer.join().unwrap();
            }
            if asleep && seen < 2 {
                assert!(world.eventfd.load(Ordering::Acquire), "asleep, with something left and nobody to wake it");
            }
            world.bell.rise();
            if world.bell.answer() {
                seen = look(&world);
            }
            assert_eq!(seen, 2, "something left was never seen");
        });
    }

    /// A ringer that finds the bell rung relies on the answer to that earlier ring to bring the core's eyes to its thing too.
    #[test]
    fn loom_a_rung_bell_speaks_for_all() {
        loom::model(|| {
            let world = Arc::new(World { bell: Bell::new(), left: Default::default(), eventfd: AtomicBool::new(false) });
            assert!(!world.bell.ring());
            let ringer = {
                let world = world.clone();
                thread::spawn(move || {
                    world.left[0].store(true, Ordering::Relaxed);
                    if world.bell.ring() {
                        world.eventfd.store(true, Ordering::Release);
                    }
                })
            };
            assert!(world.bell.answer());
            let mut seen = look(&world);
            let asleep = world.bell.doze();
            ringer.join().unwrap();
            if asleep && seen == 0 {
                assert!(world.eventfd.load(Ordering::Acquire), "asleep, with something left and nobody to wake it");
            }
            world.bell.rise();
            if world.bell.answer() {
                seen = look(&world);
            }
            assert_eq!(seen, 1, "something left was never seen");
        });
    }
}
