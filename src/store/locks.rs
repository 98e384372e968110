//! One at a time for each name, in the order they came: conditions are judged and commits made under it. And so many at a time of what
//! takes memory and tasks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;

use crate::device::{Ops, Signal};

/// The locks of a core. Names are told apart by a hash of 64 bits: two that share one wait for one another, and nothing else comes of it.
#[derive(Clone)]
pub struct Locks {
    inner: Rc<Inner>,
}

struct Inner {
    ops: Ops,
    /// How many may hold each at once.
    holders: usize,
    held: RefCell<HashMap<u64, Held>>,
}

/// A lock that somebody holds.
#[derive(Default)]
struct Held {
    holders: usize,
    waiting: VecDeque<Rc<Turn>>,
}

/// A place in the queue.
struct Turn {
    signal: Signal,
    has_come: Cell<bool>,
}

/// A lock that is held, or waited for, until this is dropped.
#[must_use = "the lock is given up when this is dropped"]
pub struct Guard {
    locks: Locks,
    hash: u64,
    /// `None` where nobody held it.
    turn: Option<Rc<Turn>>,
}

impl Locks {
    /// None is held; one holder each.
    pub fn new(ops: &Ops) -> Locks {
        Locks::with_holders(ops, 1)
    }

    /// None is held; so many holders each.
    pub fn with_holders(ops: &Ops, holders: usize) -> Locks {
        Locks { inner: Rc::new(Inner { ops: ops.clone(), holders, held: RefCell::default() }) }
    }

    /// The lock of what has this hash, if nobody has to be waited for.
    pub fn try_lock(&self, hash: u64) -> Option<Guard> {
        let mut held = self.inner.held.borrow_mut();
        let there = held.entry(hash).or_default();
        if there.holders >= self.inner.holders {
            return None;
        }
        there.holders += 1;
        Some(Guard { locks: self.clone(), hash, turn: None })
    }

    /// Waits for the lock of what has this hash.
    pub async fn lock(&self, hash: u64) -> Guard {
        if let Some(guard) = self.try_lock(hash) {
            return guard;
        }
        let turn = Rc::new(Turn { signal: Signal::new(&self.inner.ops), has_come: Cell::new(false) });
        self.inner.held.borrow_mut().entry(hash).or_default().waiting.push_back(turn.clone());
        // Made before the wait: who gives up waiting leaves the queue.
        let guard = Guard { locks: self.clone(), hash, turn: Some(turn.clone()) };
        while !turn.has_come.get() {
            turn.signal.wait().await;
        }
        guard
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.locks.inner.held.borrow_mut();
        let Some(there) = held.get_mut(&self.hash) else { return };
        if let Some(turn) = self.turn.as_ref().filter(|turn| !turn.has_come.get()) {
            there.waiting.retain(|other| !Rc::ptr_eq(other, turn));
            return;
        }
        // The next one has it from here on.
        if let Some(next) = there.waiting.pop_front() {
            next.has_come.set(true);
            next.signal.raise();
            return;
        }
        there.holders -= 1;
        if there.holders == 0 {
            held.remove(&self.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::reactor::{Core, CoreConfig};

    #[test]
    fn so_many_at_a_time() {
        let Ok(core) = Core::new(CoreConfig::default()) else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let (locks, spawner) = (Locks::with_holders(core.ops(), 3), core.clone());
        let most = core.run(async move {
            let (inside, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let tasks: Vec<_> = (0..10)
                .map(|_| {
                    let (core, locks, inside, most) = (spawner.clone(), locks.clone(), inside.clone(), most.clone());
                    spawner.spawn(async move {
                        let guard = locks.lock(1).await;
                        inside.update(|count| count + 1);
                        most.set(most.get().max(inside.get()));
                        core.sleep(Nanos::from_micros(300)).await;
                        inside.update(|count| count - 1);
                        drop(guard);
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("nobody panics");
            }
            assert!(locks.inner.held.borrow().is_empty());
            most.get()
        });
        assert_eq!(most.unwrap(), 3);
    }

    #[test]
    fn one_at_a_time_in_order_and_who_gives_up_is_passed_over() {
        let Ok(core) = Core::new(CoreConfig::default()) else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let locks = Locks::new(core.ops());
        let spawner = core.clone();
        let order = core.run(async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            let inside = Rc::new(Cell::new(false));
            let mut tasks = Vec::new();
            for number in 0..6 {
                let (core, locks, order, inside) = (spawner.clone(), locks.clone(), order.clone(), inside.clone());
                tasks.push(spawner.spawn(async move {
                    if number == 2 || number == 4 {
                        // Given up while it waits.
                        return drop(core.timeout(Nanos::from_micros(200), locks.lock(7)).await);
                    }
                    let guard = locks.lock(7).await;
                    assert!(!inside.replace(true), "one at a time");
                    core.sleep(Nanos::from_millis(1)).await;
                    order.borrow_mut().push(number);
                    inside.set(false);
                    drop(guard);
                }));
            }
            let other = locks.lock(8).await;
            for task in tasks {
                task.await.expect("nobody panics");
            }
            drop(other);
            assert!(locks.inner.held.borrow().is_empty());
            order.take()
        });
        assert_eq!(order.unwrap(), [0, 1, 3, 5]);
    }
}
