//! What a client waits for: in each slot the answer to one operation. On a transport that may lose messages it does not wait for ever.
//!
//! An operation that is not answered in time is lost, whichever of its messages was. Its answer may come all the same, when the slot
//! waits for another one's: an answer names its operation, and one that nobody waits for is given back.

use std::cell::{Cell, RefCell};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::Signal;
use crate::flow::control::Plan;
use crate::reactor::Core;

/// How long nothing at all may come back, while every slot asks and asks, before the run is given up.
pub const SILENCE: Nanos = Nanos::from_secs(10);

/// What became of an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// It was answered.
    Came(T),
    /// It was not, for so long that it counts as lost.
    Lost,
    /// There are no more answers.
    Closed,
}

/// The answers to the operations of some slots.
pub struct Answers<T> {
    core: Core,
    transport: crate::flow::Transport,
    /// How long an answer is waited for; `None` where none is lost.
    within: Option<Nanos>,
    slots: Vec<Slot<T>>,
    closed: Cell<bool>,
    lost: Cell<u64>,
    late: Cell<u64>,
    /// When something last came.
    heard: Cell<Nanos>,
}

struct Slot<T> {
    /// The operation whose answer has not come.
    expected: Cell<Option<u64>>,
    answer: RefCell<Option<T>>,
    signal: Signal,
}

impl<T> Answers<T> {
    /// For the slots of `plan`.
    pub fn new(core: &Core, plan: &Plan) -> Answers<T> {
        let slot = || Slot { expected: Cell::new(None), answer: RefCell::new(None), signal: Signal::new(core.ops()) };
        Answers {
            core: core.clone(),
            transport: plan.transport,
            within: plan.transport.loses().then(|| plan.lost_after()),
            slots: (0..plan.depth).map(|_| slot()).collect(),
            closed: Cell::new(false),
            lost: Cell::new(0),
            late: Cell::new(0),
            heard: Cell::new(core.now()),
        }
    }

    /// From here on `slot` waits for the answer to `operation`, and for no other.
    pub fn expect(&self, slot: u32, operation: u64) {
        let slot = &self.slots[slot as usize];
        slot.expected.set(Some(operation));
        slot.answer.take();
    }

    /// An answer to `operation` of `slot` has come.
    ///
    /// # Errors
    /// The answer, when it is not the one that is waited for: the operation was counted as lost, or is answered already.
    pub fn deliver(&self, slot: u64, operation: u64, answer: T) -> Result<(), T> {
        self.heard.set(self.core.now());
        let waiting = usize::try_from(slot).ok().and_then(|slot| self.slots.get(slot));
        let Some(slot) = waiting.filter(|slot| slot.expected.get() == Some(operation)) else {
            self.late.set(self.late.get() + 1);
            return Err(answer);
        };
        slot.expected.set(None);
        *slot.answer.borrow_mut() = Some(answer);
        slot.signal.raise();
        Ok(())
    }

    /// Waits for the answer `slot` expects.
    ///
    /// # Errors
    /// Nothing has come back in any slot for [`SILENCE`].
    pub async fn wait(&self, slot: u32) -> Result<Answer<T>> {
        let slot = &self.slots[slot as usize];
        let came = async {
            loop {
                if let Some(answer) = slot.answer.take() {
                    return Answer::Came(answer);
                }
                if self.closed.get() {
                    return Answer::Closed;
                }
                slot.signal.wait().await;
            }
        };
        let Some(within) = self.within else { return Ok(came.await) };
        if let Ok(answer) = self.core.timeout(within, came).await {
            return Ok(answer);
        }
        slot.expected.set(None);
        self.lost.set(self.lost.get() + 1);
        if self.core.now().since(self.heard.get()) < SILENCE {
            return Ok(Answer::Lost);
        }
        Err(silence(self.transport))
    }

    /// No more answers come: who waits is told.
    pub fn close(&self) {
        self.closed.set(true);
        self.slots.iter().for_each(|slot| slot.signal.raise());
    }

    /// Operations that were not answered in time.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Answers nobody waited for any more.
    pub fn late(&self) -> u64 {
        self.late.get()
    }
}

/// The error of a run that nothing comes back to.
pub fn silence(transport: crate::flow::Transport) -> Error {
    let what = format!("nothing has come back over {transport} for {} seconds", SILENCE.as_secs_f64());
    Error::new(ErrorKind::Failed, what)
        .remedy("look for a firewall between the two RDMA addresses (RoCE is UDP port 4791); try --transport rc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::node::tests::plan_of;
    use crate::flow::{FlowKind, Transport};
    use crate::reactor::CoreConfig;

    fn answers(transport: Transport, lost_after_ms: u64) -> Option<(Core, Answers<u8>)> {
        let core = Core::new(CoreConfig::default()).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
        let plan = Plan { transport, lost_after_ms, depth: 2, ..plan_of(FlowKind::RdmaToStorage) };
        let answers = Answers::new(&core, &plan);
        Some((core, answers))
    }

    #[test]
    fn a_late_answer_is_not_taken_for_another() {
        let Some((core, answers)) = answers(Transport::Uc, 5) else { return };
        let main = async move {
            answers.expect(0, 4);
            assert_eq!(answers.wait(0).await.unwrap(), Answer::Lost);
            answers.expect(0, 6);
            assert_eq!(answers.deliver(0, 4, 4), Err(4), "the slot waits for another");
            assert_eq!(answers.deliver(1, 6, 6), Err(6), "this one waits for nothing");
            assert_eq!(answers.deliver(77, 6, 6), Err(6), "nor is there such a one");
            assert_eq!(answers.deliver(0, 6, 6), Ok(()));
            assert_eq!(answers.deliver(0, 6, 7), Err(7), "it has come already");
            assert_eq!(answers.wait(0).await.unwrap(), Answer::Came(6));
            assert_eq!((answers.lost(), answers.late()), (1, 4));
            answers.close();
            answers.expect(1, 7);
            assert_eq!(answers.wait(1).await.unwrap(), Answer::Closed);
        };
        core.run(main).unwrap();
    }

    #[test]
    fn what_is_not_waited_for_in_time_is_not_found_later() {
        let Some((core, answers)) = answers(Transport::Rc, 1) else { return };
        let handle = core.clone();
        let main = async move {
            answers.expect(0, 1);
            answers.deliver(0, 1, 1).unwrap();
            answers.expect(0, 3);
            // A connection that loses nothing is waited for longer than that.
            assert!(handle.timeout(Nanos::from_millis(20), answers.wait(0)).await.is_err(), "the answer to 1 is none to 3");
            assert_eq!(answers.lost(), 0);
        };
        core.run(main).unwrap();
    }
}
