//! Raw packet queue pairs: made, and given the frames they are for. Sent and received as on any other.

use rdma_mummy_sys as ibv;
use rdma_mummy_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::ffi::{self, QpShape, QueuePair, Steering, UdpTo};
use super::hca::Verbs;
use super::slot::Slot;
use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Result};
use crate::device::packet::Link;
use crate::device::rdma::raw::RawConfig;
use crate::device::rdma::{QpConfig, QpState, Transport, slots};

/// The Ethernet header: what a frame has at least.
pub const HEADER_BYTES: u32 = 14;

impl Verbs {
    /// Makes one, ready to send and receive. Returns its place in the table, and its number.
    pub fn create_raw(&mut self, config: &RawConfig) -> Result<(u32, u32)> {
        let name = self.device.name.clone();
        if self.is_lost || self.is_quiescing {
            let what = format!("a raw packet queue pair: the RDMA device {name} is gone or being closed");
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("open the device again"));
        }
        for (what, depth, most) in [("send", config.send_depth, self.max_send_depth), ("receive", config.recv_depth, self.max_recv_depth)] {
            if !(1..=most).contains(&depth) {
                let what = format!("a raw packet queue pair with {depth} {what} requests: the RDMA device {name} takes 1 to {most}");
                return Err(Error::new(ErrorKind::Usage, what).remedy("use a smaller --depth"));
            }
        }
        let shape = QpShape {
            kind: ibv::ibv_qp_type::IBV_QPT_RAW_PACKET,
            send_depth: config.send_depth,
            recv_depth: config.recv_depth,
            send_sges: self.caps.max_sge,
            recv_sges: self.caps.max_sge,
            inline_bytes: 0,
        };
        let (mut qp, _) = QueuePair::new(&self.pd, &self.cq, None, shape).map_err(|errno| {
            let error = Error::from_errno(format!("making a raw packet queue pair on the RDMA device {name}"), errno);
            match errno {
                libc::EPERM => error.remedy("run with CAP_NET_RAW, or use AF_XDP (--transport raw)"),
                // A kernel's driver that knows no such queue pair may say either.
                libc::EINVAL => error.with_kind(ErrorKind::Unavailable).remedy("use AF_XDP (--transport raw)"),
                _ => error.remedy("use AF_XDP (--transport raw)"),
            }
        })?;
        let mut attr = ffi::no_attr();
        attr.port_num = self.device.port;
        // Frames have no peer and no numbers, so there is nothing else to tell (include/rdma/ib_verbs.h, qp_state_table).
        for (to, what) in [
            (state::IBV_QPS_INIT, mask::IBV_QP_STATE | mask::IBV_QP_PORT),
            (state::IBV_QPS_RTR, mask::IBV_QP_STATE),
            (state::IBV_QPS_RTS, mask::IBV_QP_STATE),
        ] {
            attr.qp_state = to;
            qp.modify(&mut attr, what)
                .map_err(|errno| Error::from_errno(format!("making a raw packet queue pair of {name} ready to send"), errno))?;
        }
        let steering = self.steer(&qp, config)?;
        let shape = QpConfig {
            transport: Transport::Ud,
            send_depth: config.send_depth,
            recv_depth: config.recv_depth,
            ledger: config.ledger.clone(),
            ..QpConfig::default()
        };
        let mut slot = Slot::new(qp, Psn::new(0), 0, shape, 0, 0);
        (slot.steering, slot.state) = (Some(steering), QpState::Connected);
        let qpn = slot.qpn;
        Ok((slots::insert(&mut self.slots, &mut self.by_qpn, qpn, slot), qpn.0))
    }

    fn steer(&self, qp: &QueuePair, config: &RawConfig) -> Result<Vec<Steering>> {
        if config.udp_ports.is_empty() {
            return Ok(Vec::new());
        }
        let mac = Link::find(&self.device.gid.interface)?.mac;
        let mut rules = Vec::new();
        for (&port, is_ipv6) in config.udp_ports.iter().flat_map(|port| [(port, false), (port, true)]) {
            let rule = Steering::new(qp, self.device.port, UdpTo { mac, port, is_ipv6 }).map_err(|errno| {
                let version = if is_ipv6 { 6 } else { 4 };
                let what = format!("steering UDP port {port} over IPv{version} to a queue pair of the RDMA device {}", self.device.name);
                Error::from_errno(what, errno).remedy("the device or its mode has no flow steering; use AF_XDP (--transport raw)")
            })?;
            rules.push(rule);
        }
        Ok(rules)
    }
}
