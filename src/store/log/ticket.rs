//! What becomes of an item that was appended, for who waits for it.

use std::cell::RefCell;
use std::rc::Rc;

use super::Appended;
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::{Ops, Signal};
use crate::mem::Run;

/// Where the outcome is waited for.
pub(super) struct Ticket {
    signal: Signal,
    /// Nothing of a copy that was left out.
    outcome: RefCell<Option<Result<Option<Appended>>>>,
}

/// Its other end, of who is to write the item. Dropped without an outcome it says that there is none: who was to write it has panicked.
pub(super) struct Owed(Option<Rc<Ticket>>);

impl Ticket {
    pub fn new(ops: &Ops) -> (Rc<Ticket>, Owed) {
        let ticket = Rc::new(Ticket { signal: Signal::new(ops), outcome: RefCell::new(None) });
        (ticket.clone(), Owed(Some(ticket)))
    }
}

impl Owed {
    pub fn settle(mut self, outcome: Result<Option<Appended>>) {
        self.give(outcome);
    }

    fn give(&mut self, outcome: Result<Option<Appended>>) {
        if let Some(ticket) = self.0.take() {
            *ticket.outcome.borrow_mut() = Some(outcome);
            ticket.signal.raise();
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.give(Err(unwritten()));
        }
    }
}

/// Who was to write it has ended before it was known what came of it.
#[cold]
pub(super) fn unwritten() -> Error {
    Error::new(ErrorKind::Failed, "writing to the store: what was to do it has ended early")
}

/// An item that waits.
pub(super) struct Appending {
    pub ticket: Rc<Ticket>,
    /// Its data, where a copy of that is written.
    pub given: Option<Vec<Run>>,
}

impl Appending {
    pub async fn end(self) -> Result<Option<Appended>> {
        let outcome = loop {
            if let Some(outcome) = self.ticket.outcome.borrow_mut().take() {
                break outcome;
            }
            self.ticket.signal.wait().await;
        };
        match (outcome, self.given) {
            (Ok(Some(appended)), Some(data)) => Ok(Some(Appended { data, ..appended })),
            (outcome, _) => outcome,
        }
    }
}
