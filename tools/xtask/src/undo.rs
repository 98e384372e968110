//! What must be undone however we end: by a guard's drop, or all of it when the user interrupts.

use std::sync::Mutex;

type Action = Box<dyn FnOnce() + Send>;

/// The next guard's number, and the actions not yet done.
static PENDING: Mutex<(u64, Vec<(u64, Action)>)> = Mutex::new((0, Vec::new()));

/// Runs its action once, when dropped or interrupted.
#[must_use = "dropping it undoes at once"]
pub struct Undo(u64);

impl Undo {
    /// Registers `action`.
    pub fn with(action: impl FnOnce() + Send + 'static) -> Undo {
        let mut pending = PENDING.lock().expect("no holder of this lock panics");
        pending.0 += 1;
        let number = pending.0;
        pending.1.push((number, Box::new(action)));
        Undo(number)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let action = {
            let mut pending = PENDING.lock().expect("no holder of this lock panics");
            pending.1.iter().position(|(number, _)| *number == self.0).map(|at| pending.1.remove(at).1)
        };
        if let Some(action) = action {
            action();
        }
    }
}

/// Undoes everything, the latest first.
pub fn all() {
    let mut actions = std::mem::take(&mut PENDING.lock().expect("no holder of this lock panics").1);
    while let Some((_, action)) = actions.pop() {
        action();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn each_action_runs_once() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let guard = Undo::with(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        drop(guard);
        all();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let counted = count.clone();
        let guard = Undo::with(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        all();
        drop(guard);
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}
