//! The beginning of a segment, which those who write to it wait for.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::ticket::unwritten;
use crate::base::Result;
use crate::device::{Ops, Signal};
use crate::store::segments::Segments;

/// A segment while somebody writes to it, and whether its header is stable. The last write to end closes it: compaction must not look
/// before.
pub(super) struct Opening {
    pub segment: u32,
    segments: Arc<Segments>,
    /// `None` while the write is on its way.
    outcome: RefCell<Option<Result<()>>>,
    waiting: RefCell<Vec<Rc<Signal>>>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.segments.close(self.segment);
    }
}

impl Opening {
    pub fn new(segment: u32, segments: Arc<Segments>) -> Rc<Opening> {
        Rc::new(Opening { segment, segments, outcome: RefCell::new(None), waiting: RefCell::default() })
    }

    /// What its first write came to.
    pub fn settle(&self, outcome: Result<()>) {
        *self.outcome.borrow_mut() = Some(outcome);
        self.waiting.take().iter().for_each(|signal| signal.raise());
    }

    /// Nobody writes the header, where it is not known by now what came of it: who was to do it has panicked.
    pub fn give_up(&self) {
        if self.outcome.borrow().is_none() {
            self.settle(Err(unwritten()));
        }
    }

    /// Waits for its first write.
    pub async fn wait(&self, ops: &Ops) -> Result<()> {
        loop {
            if let Some(outcome) = self.outcome.borrow().clone() {
                return outcome;
            }
            let signal = Rc::new(Signal::new(ops));
            self.waiting.borrow_mut().push(signal.clone());
            signal.wait().await;
        }
    }
}
