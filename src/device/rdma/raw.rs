//! Raw packet queue pairs: whole Ethernet frames by a verbs device, without RDMA's protocol.
//!
//! Frames are sent as they are, from the destination's MAC address on. What comes in for the UDP ports named is steered to the queue pair
//! before the kernel's network stack sees it; all else goes where it went. Nothing lists which devices have them: making one tells.
//!
//! rxe has none and no other device was met, so all this is written by the documentation and has never moved a frame.

use std::future::Future;

use super::{Backend, Hca, Qp, Received, on};
use crate::base::{Qpn, Result};
use crate::device::ops::Refused;
use crate::device::{Failed, Op};
use crate::mem::payload::Lease;
use crate::mem::{Ledger, Run};

/// What a raw packet queue pair is made for.
#[derive(Clone, Debug)]
pub struct RawConfig {
    /// Frames to be sent at once.
    pub send_depth: u32,
    /// Receives posted at once.
    pub recv_depth: u32,
    /// The UDP ports whose frames to this interface's MAC address it takes, over IPv4 and IPv6.
    pub udp_ports: Vec<u16>,
    /// Counts the copies made for it.
    pub ledger: Ledger,
}

/// A raw packet queue pair. Dropped, it closes, and its ports are the kernel's again.
pub struct RawQp {
    qp: Qp,
}

impl Hca {
    /// Makes a raw packet queue pair, ready to send and receive.
    ///
    /// # Errors
    /// The device has none, or does not steer by port; this process has no CAP_NET_RAW; too many frames at once.
    pub fn create_raw_qp(&self, config: &RawConfig) -> Result<RawQp> {
        let (index, qpn) = on!(&self.backend, hca => hca.borrow_mut().create_raw(config))?;
        Ok(RawQp { qp: Qp::new(self.backend.clone(), index, Qpn(qpn)) })
    }
}

impl RawQp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Sends a lease's view as a frame.
    pub fn send<L: Lease>(&self, frame: L) -> impl Future<Output = Result<L, Failed<L>>> + use<L> {
        self.qp.send(frame, None)
    }

    /// The submit form of [`RawQp::send`].
    ///
    /// # Errors
    /// The lease, when the send queue or the op table is full.
    #[inline]
    pub fn submit_send<L: Lease>(&self, frame: L) -> Result<Op<L>, Refused<L>> {
        self.qp.submit_send(frame, None)
    }

    /// Posts a receive for a frame of up to the run's view. Completes with the view set to what came.
    pub fn recv(&self, run: Run) -> impl Future<Output = Result<Received, Failed<Run>>> + use<> {
        self.qp.recv(run)
    }

    /// The submit form of [`RawQp::recv`].
    ///
    /// # Errors
    /// The run, when the receive queue or the op table is full.
    #[inline]
    pub fn submit_recv(&self, run: Run) -> Result<Op<Run>, Refused<Run>> {
        self.qp.submit_recv(run)
    }
}
