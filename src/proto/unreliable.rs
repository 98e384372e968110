//! What the transports without acknowledgements have in common: their queues, their state and what ends them.

use super::rc::receives::Receives;
use super::rc::{Completion, Config, Counters, RecvWr, Refusal, Refused, SendWr, State};
use super::sends::Sends;
use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Qpn, Result};

/// What one of these transports keeps beside the queues.
pub trait Kind {
    /// What it keeps with each send request.
    type Beside: Default + std::fmt::Debug;
}

/// A queue pair of transport `K`.
#[derive(Debug)]
pub struct Qp<K: Kind> {
    pub(super) qpn: Qpn,
    pub(super) state: State,
    pub(super) sends: Sends<K::Beside>,
    pub(super) receives: Receives,
    pub(super) next_psn: Psn,
    pub(super) counters: Counters,
    pub(super) kind: K,
}

impl<K: Kind> Qp<K> {
    /// In state Init, where receives may be posted.
    pub(super) fn over(config: &Config, kind: K) -> Qp<K> {
        Qp {
            qpn: config.qpn,
            state: State::Init,
            sends: Sends::new(config.send_wrs),
            receives: Receives::new(config.recv_wrs),
            next_psn: Psn::new(0),
            counters: Counters::default(),
            kind,
        }
    }

    /// Init to ready-to-send, from `psn` on.
    pub(super) fn make_ready(&mut self, psn: Psn) -> Result<()> {
        if self.state != State::Init {
            let what = format!("queue pair {} cannot be made ready in state {:?}", self.qpn, self.state);
            return Err(Error::new(ErrorKind::Usage, what).remedy("make a new one"));
        }
        self.state = State::Rts;
        self.next_psn = psn;
        Ok(())
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// What happened so far. Messages lost on the way show as gaps, those without a receive as such.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// To the error state: everything posted completes as flushed.
    pub fn fail(&mut self) {
        self.state = State::Error;
        self.sends.flush();
        self.receives.flush();
    }

    /// Posts a request of at most `most` bytes, if `takes` says that the transport knows it.
    #[inline]
    pub(super) fn post(&mut self, wr: SendWr, takes: bool, beside: K::Beside, most: u32) -> std::result::Result<(), Refused<SendWr>> {
        if self.state != State::Rts {
            return Err(Refused { wr, why: Refusal::State(self.state) });
        }
        if !takes {
            return Err(Refused { wr, why: Refusal::Unsupported });
        }
        self.sends.post(wr, beside, most)
    }

    /// Posts a receive.
    #[inline]
    pub fn post_recv(&mut self, wr: RecvWr) -> std::result::Result<(), Refused<RecvWr>> {
        if self.state == State::Error {
            return Err(Refused { wr, why: Refusal::State(self.state) });
        }
        self.receives.post(wr)
    }

    /// The next send request that ended.
    #[inline]
    pub fn poll_send(&mut self) -> Option<Completion> {
        self.sends.poll_completion()
    }

    /// The next receive that ended.
    #[inline]
    pub fn poll_recv(&mut self) -> Option<Completion> {
        self.receives.poll_completion()
    }

    /// Sends posted and not gone out.
    #[inline]
    pub fn sends_pending(&self) -> u32 {
        self.sends.pending()
    }

    /// Receives posted and not filled.
    #[inline]
    pub fn recvs_pending(&self) -> u32 {
        self.receives.pending()
    }
}
