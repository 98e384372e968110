//! Requests of a session that have no answer yet, and the sums of their bodies that come behind them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hashbrown::HashMap;

use crate::base::Nanos;
use crate::device::{Ops, Signal};
use crate::reactor::Core;
use crate::s3::error::{Code, S3Error};
use crate::wire::s3::frame::{Request, Sum};

/// How long a sum may take once all that it is of is here.
const PATIENCE: Nanos = Nanos::from_secs(10);

/// The CRC64NVME of a body that comes behind its request.
pub struct Later {
    crc: Cell<Option<u64>>,
    is_over: Cell<bool>,
    told: Signal,
}

impl Later {
    /// Waits for it.
    ///
    /// # Errors
    /// `RequestTimeout`; `RDMATransferFailed`: the session is over.
    pub async fn get(&self, core: &Core) -> Result<u64, S3Error> {
        if self.crc.get().is_none() && !self.is_over.get() {
            let told = core.timeout(PATIENCE, self.told.wait()).await;
            told.map_err(|_| S3Error::with(Code::RequestTimeout, "The CRC64NVME that was to come behind the request did not."))?;
        }
        self.crc.get().ok_or_else(|| Code::RdmaTransferFailed.into())
    }
}

/// The requests of a session that have no answer yet.
pub struct Open {
    ops: Ops,
    requests: RefCell<HashMap<u32, Option<Rc<Later>>>>,
    /// Sums that are to come.
    sums: Cell<usize>,
}

impl Open {
    /// None; of a core that has these operations.
    pub fn new(ops: &Ops) -> Open {
        Open { ops: ops.clone(), requests: RefCell::default(), sums: Cell::new(0) }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.borrow().is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.requests.borrow().len()
    }

    /// Whether sums are to come.
    pub fn awaits_sums(&self) -> bool {
        self.sums.get() > 0
    }

    /// Whether a request may come now, of a client that may have so many under way: one counts as two until its sum is here.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn check(&self, request: &Request<'_>, depth: u32) -> Result<(), String> {
        let requests = self.requests.borrow();
        if requests.len() + self.sums.get() + usize::from(request.is_summed_later) >= depth as usize {
            return Err(format!("more than {depth} requests without an answer"));
        }
        if requests.contains_key(&request.id) {
            return Err(format!("request {} has no answer yet, and comes again", request.id));
        }
        Ok(())
    }

    /// One begins.
    pub fn begin(&self, request: &Request<'_>) {
        let later = request.is_summed_later.then(|| {
            self.sums.set(self.sums.get() + 1);
            Rc::new(Later { crc: Cell::new(None), is_over: Cell::new(false), told: Signal::new(&self.ops) })
        });
        self.requests.borrow_mut().insert(request.id, later);
    }

    /// The sum that comes behind one.
    pub fn later(&self, id: u32) -> Option<Rc<Later>> {
        self.requests.borrow().get(&id).cloned().flatten()
    }

    /// One has its answer.
    pub fn end(&self, id: u32) {
        if let Some(Some(later)) = self.requests.borrow_mut().remove(&id)
            && later.crc.get().is_none()
        {
            self.sums.set(self.sums.get() - 1);
        }
    }

    /// A sum is here. One of a request that has its answer is not needed any more.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn sum(&self, sum: Sum) -> Result<(), String> {
        match self.requests.borrow().get(&sum.id) {
            None => Ok(()),
            Some(Some(later)) if later.crc.get().is_none() => {
                self.sums.set(self.sums.get() - 1);
                later.crc.set(Some(sum.crc));
                later.told.raise();
                Ok(())
            }
            Some(_) => Err(format!("a sum of request {}, which has one", sum.id)),
        }
    }

    /// No sum comes any more.
    pub fn give_up(&self) {
        for later in self.requests.borrow().values().flatten() {
            later.is_over.set(true);
            later.told.raise();
        }
    }
}
