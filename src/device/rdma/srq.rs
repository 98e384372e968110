//! Shared receive queues: receives that the messages of several queue pairs take in turn.
//!
//! A server with many connections posts as many receives as it can use, not as many for each. Which queue pair a message came by is
//! said with it. A queue pair is made with the queue ([`QpConfig::srq`](super::QpConfig::srq)) and has no receives of its own.
//!
//! A receive that a message has begun to fill when its queue pair fails comes back flushed on the soft HCA; a device may keep it until
//! the shared queue ends, and then it counts as posted until then.

use std::fmt;
use std::future::Future;
use std::rc::Rc;

use super::qp::{Received, settle};
use super::{Backend, on};
use crate::device::ops::{Refused, refused};
use crate::device::{Failed, Op};
use crate::mem::Run;

/// A shared receive queue. Clones name the same one; it ends with the last of them and the last queue pair made with it, and then what is
/// posted completes as flushed.
#[derive(Clone)]
pub struct Srq {
    held: Rc<Held>,
}

struct Held {
    backend: Backend,
    index: u32,
}

impl Srq {
    pub(super) fn new(backend: Backend, index: u32) -> Srq {
        Srq { held: Rc::new(Held { backend, index }) }
    }

    /// Its place in the table of this backend; `None` when it is another device's.
    pub(super) fn index_at(&self, backend: &Backend) -> Option<u32> {
        self.held.backend.is(backend).then_some(self.held.index)
    }

    /// Posts a receive for a message of up to the run's view. Completes with the view set to what came.
    pub fn recv(&self, run: Run) -> impl Future<Output = Result<Received, Failed<Run>>> + use<> {
        let submitted = self.submit_recv(run);
        async move { Received::of(submitted.map_err(refused)?.await) }
    }

    /// The submit form of [`Srq::recv`]; the outcome has the immediate value and the queue pair.
    ///
    /// # Errors
    /// The run, when the queue or the op table is full.
    #[inline]
    pub fn submit_recv(&self, run: Run) -> Result<Op<Run>, Refused<Run>> {
        on!(&self.held.backend, hca => {
            let hca = &mut *hca.borrow_mut();
            let op = hca.ops().begin(run)?;
            let posted = hca.post_shared(self.held.index, op.id());
            settle(hca.ops(), op, posted)
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        on!(&self.backend, hca => hca.borrow_mut().close_shared(self.index));
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({})", self.held.index)
    }
}
