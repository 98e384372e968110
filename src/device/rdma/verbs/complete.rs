//! Completions: whose they are, and what ends with them.

use rdma_mummy_sys::ibv_wc_status as wc;

use super::ffi::{Completion, Cq};
use super::grants::{Grants, Key};
use super::hca::Verbs;
use super::shared::by;
use super::slot::{Sent, Slot, What};
use crate::device::rdma::{HcaEvent, QpFault, QpState};
use crate::device::{OpId, Ops, Outcome, Status, WcStatus};

impl Verbs {
    /// Takes completions, until there are none or the budget is spent.
    #[inline]
    pub(super) fn reap(&mut self, budget: usize) -> usize {
        let (cq, mut taken) = (self.cq.clone(), 0);
        let mut cq = cq.borrow_mut();
        while taken < budget {
            let count = cq.poll(|completion| self.complete(completion));
            taken += count;
            if count < Cq::BATCH {
                break;
            }
        }
        taken
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let index = self.by_qpn.get(&completion.qpn).copied();
        let Some((index, slot)) = index.and_then(|index| Some((index, self.slots[index as usize].as_mut()?))) else {
            tracing::error!(qpn = completion.qpn, "a completion for a queue pair that was destroyed");
            return;
        };
        let status = status(completion.status);
        let is_own = slot.received.front() == Some(&completion.wr_id);
        let shared = slot.shared.and_then(|index| self.shared[index as usize].as_mut());
        if is_own || shared.is_some_and(|shared| shared.take(completion.wr_id)) {
            if is_own {
                slot.received.pop_front();
            }
            // Where receives are shared, the queue pair is told.
            let (of_shared, qpn) = (!is_own, slot.qpn);
            let tell = |outcome| if of_shared { by(qpn, outcome) } else { outcome };
            let bytes = completion.bytes.saturating_sub(slot.header_bytes());
            self.room += 1;
            if let Some(rkey) = completion.invalidated.filter(|_| status.is_none()) {
                self.grants.invalidated_by_peer(rkey);
            }
            let id = OpId::from_bits(completion.wr_id);
            // A fault would be a bug of ours or the device's, counted and logged by the table.
            let _ = match status {
                // The bytes of a WRITE went to a window; the receive got none.
                None if completion.is_write => self.ops.complete_sized(id, tell(received(0, completion.immediate))),
                None => self.ops.complete_sized(id, tell(received(bytes, completion.immediate))),
                // rxe says of a receive that is too short what the requester is told (rxe_resp.c, RESPST_ERR_LENGTH).
                Some(WcStatus::RemoteInvalidRequest) => self.ops.complete(id, tell(failed(WcStatus::LocalLength))),
                Some(status) => self.ops.complete(id, tell(failed(status))),
            };
            if let Some(status) = status {
                self.settle_fault(index, status, QpFault::PeerRequest);
            }
            return;
        }
        if !slot.sent.iter().any(|sent| sent.wr_id == completion.wr_id) {
            // Counted and logged by the table: it ended already, or never was.
            let _ = self.ops.complete(OpId::from_bits(completion.wr_id), failed(WcStatus::Fatal));
            return;
        }
        // Those before it had no completion of their own: it says that they ended well.
        let (mut ended, mut is_last) = (0, false);
        while !is_last && let Some(sent) = slot.sent.pop_front() {
            is_last = sent.wr_id == completion.wr_id;
            ended += 1;
            let status = status.filter(|_| is_last);
            match sent.what {
                What::Operation => slot.operation_ended(&self.ops, &sent, status),
                window => window_ended(&mut self.grants, &mut self.doomed, index, window, slot.changes.pop_front(), status),
            }
        }
        self.room += ended;
        if let Some(status) = status {
            self.settle_fault(index, status, QpFault::Request(status));
        }
    }

    /// Everything sent that has no completion was flushed.
    pub(super) fn flush_sent(&mut self, index: u32) {
        let slot = self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot");
        let flushed = Some(WcStatus::Flushed);
        for sent in std::mem::take(&mut slot.sent) {
            self.room += 1;
            match sent.what {
                What::Operation => slot.operation_ended(&self.ops, &sent, flushed),
                window => window_ended(&mut self.grants, &mut self.doomed, index, window, slot.changes.pop_front(), flushed),
            }
        }
    }

    /// A request failed: the queue pair is in the error state. A flush is the consequence of something else, which may be told by an event
    /// or by a completion that is yet to come; when nothing is left that could tell it, it stays unsaid.
    #[cold]
    fn settle_fault(&mut self, index: u32, status: WcStatus, fault: QpFault) {
        if status != WcStatus::Flushed {
            return self.fail(index, fault);
        }
        if self.slot(index).state == QpState::Connected {
            self.slot(index).state = QpState::Error;
            self.look_at_events();
        }
        if self.slot(index).pending() == 0 {
            self.fail(index, QpFault::Unsaid);
        }
    }

    /// A queue pair is in the error state, for this reason unless another one was told before.
    #[cold]
    pub(super) fn fail(&mut self, index: u32, fault: QpFault) {
        let slot = self.slot(index);
        slot.state = QpState::Error;
        if !std::mem::replace(&mut slot.is_fault_told, true) {
            slot.fault = Some(fault);
            let qpn = slot.qpn;
            self.raise(HcaEvent::QpError { qpn, fault });
        }
    }
}

impl Slot {
    /// The request of an operation ended.
    #[inline]
    fn operation_ended(&mut self, ops: &Ops, sent: &Sent, status: Option<WcStatus>) {
        self.operations -= 1;
        let _ = ops.complete(OpId::from_bits(sent.wr_id), status.map_or(Outcome::ok(sent.bytes), failed));
    }
}

/// A window's request ended, on the queue pair `index`.
fn window_ended(grants: &mut Grants, doomed: &mut Vec<u32>, index: u32, what: What, key: Option<Key>, status: Option<WcStatus>) {
    let key = key.expect("each request of a window is kept with its key");
    // A flushed invalidation proves nothing: the queue pair's end does.
    match what {
        What::Invalidate if !grants.invalidated(key, status.is_none()) => doomed.push(index),
        What::Bind => grants.bound(key, status.is_none()),
        What::Invalidate | What::Operation => {}
    }
}

fn received(bytes: u32, immediate: Option<u32>) -> Outcome {
    Outcome { immediate, ..Outcome::ok(bytes) }
}

pub(super) fn failed(status: WcStatus) -> Outcome {
    Outcome::failed(Status::Rdma(status))
}

/// `enum ibv_wc_status` by the contract's names; `None` for success.
fn status(status: u32) -> Option<WcStatus> {
    Some(match status {
        wc::IBV_WC_SUCCESS => return None,
        wc::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        wc::IBV_WC_LOC_QP_OP_ERR | wc::IBV_WC_MW_BIND_ERR => WcStatus::LocalQpOperation,
        wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalProtection,
        wc::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        wc::IBV_WC_BAD_RESP_ERR | wc::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        wc::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        wc::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        wc::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        wc::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        _ => WcStatus::Fatal,
    })
}
