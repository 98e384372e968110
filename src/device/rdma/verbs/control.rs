//! The control path: the device opened, queue pairs made, connected and destroyed.

use std::net::SocketAddr;
use std::rc::Rc;

use rdma_mummy_sys as ibv;
use rdma_mummy_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::complete::failed;
use super::device::Device;
use super::ffi::{self, Cq, Pd, QpShape, QueuePair, Rights};
use super::grants::Grants;
use super::hca::{PIECES_MAX, Verbs};
use super::memory::Memory;
use super::slot::Slot;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Psn, Result};
use crate::device::rdma::endpoint::{self, FabricOffer, QpEndpoint, Route};
use crate::device::rdma::joint::join;
use crate::device::rdma::{Caps, HcaEnv, NIC_PATIENCE, QpConfig, QpFault, QpState, Transport, slots};
use crate::device::{OpId, WcStatus};
use crate::proto::rc::{AckTimeout, Mtu, RnrTimer};
use crate::wire::roce::UDP_PORT;

/// READs of one peer answered at once, where the device takes as many; what verbs programs ask for.
const READS: u8 = 16;
/// The hop limit of packets: what routers usually begin with.
const HOPS: u8 = 64;
/// Windows' requests the completion queue has room for beside the operations.
const WINDOW_ROOM: u32 = 1024;
/// rxe's vendor number (drivers/infiniband/sw/rxe/rxe_param.h).
const RXE: u32 = 0x00ff_ffff;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`: windows bound to a queue pair.
const WINDOWS: u32 = ibv::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;

impl Verbs {
    /// Opens a device the user named and registers the region with it.
    pub fn open(env: HcaEnv, named: &str) -> Result<Verbs> {
        let device = Device::open(named, env.address, env.verbs.gid_index)?;
        let pd = Pd::new(&device.context)?;
        let has_windows = device.attr.device_cap_flags & WINDOWS != 0 && device.attr.max_mw > 0 && !env.verbs.without_windows;
        let most = env.verbs.mr_bytes_max.unwrap_or(u64::MAX).min(device.attr.max_mr_size);
        let memory = Memory::register(&pd, &env.region, most, Rights::local(has_windows))?;
        // An entry for each operation in flight and each window's request; a device with fewer makes submissions wait.
        let room = (env.ops.capacity() as u32 + WINDOW_ROOM).min(device.attr.max_cqe as u32);
        let cq = Cq::new(&device.context, room)?;
        let joint = join([cq.borrow().fd(), device.context.async_fd()])?;
        ffi::unblock(cq.borrow().fd())?;
        ffi::unblock(device.context.async_fd())?;
        // A queue pair has as many entries again for its windows.
        let max_send_depth = (device.attr.max_qp_wr as u32 / 2).max(1);
        let wire = if device.is_infiniband() { "infiniband" } else { "roce" };
        let kind = if has_windows { "memory windows of type 2" } else { "no memory windows: a peer's keys are good for every queue pair" };
        let pieces = if memory.pieces() > 1 { format!(", region in {} registrations", memory.pieces()) } else { String::new() };
        let caps = Caps {
            name: format!("verbs:{}", device.name),
            wire: wire.to_owned(),
            path_mtu_max: device.mtu(),
            max_sge: (device.attr.max_sge as u32).min(PIECES_MAX as u32),
            max_qps: device.attr.max_qp as u32,
            max_depth: max_send_depth,
            max_message_bytes: device.port_attr.max_msg_sz,
            transports: vec![Transport::Rc],
            gid: Some(device.gid.address),
            note: Some(format!("port {}, GID {}, path MTU {}, {kind}{pieces}", device.port, device.gid, device.mtu())),
        };
        let depths = (max_send_depth, device.attr.max_qp_wr as u32);
        let grants = Grants::new(has_windows, device.attr.vendor_id != RXE);
        Ok(Verbs::assemble(env.ops, env.rng, caps, depths, room, grants, joint, memory, cq, pd, device))
    }

    /// Makes a queue pair, in state Init: receives may be posted. Returns its place in the table.
    pub fn create(&mut self, config: &QpConfig) -> Result<u32> {
        let name = &self.device.name;
        if self.is_lost || self.is_quiescing {
            let what = format!("a new queue pair: the RDMA device {name} {}", if self.is_lost { "is gone" } else { "is being closed" });
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("open the device again"));
        }
        if !self.caps.transports.contains(&config.transport) {
            let what = format!("a {:?} queue pair: verbs devices are used with RC", config.transport);
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("use --transport rc"));
        }
        for (what, depth, most) in [("send", config.send_depth, self.max_send_depth), ("receive", config.recv_depth, self.max_recv_depth)] {
            if !(1..=most).contains(&depth) {
                let what = format!("a queue pair with {depth} {what} requests: the RDMA device {name} takes 1 to {most}");
                return Err(Error::new(ErrorKind::Usage, what).remedy("use a smaller --depth"));
            }
        }
        let windows = if self.grants.has_windows { config.send_depth.min(self.max_send_depth) } else { 0 };
        let shape = QpShape {
            kind: ibv::ibv_qp_type::IBV_QPT_RC,
            send_depth: config.send_depth + windows,
            recv_depth: config.recv_depth,
            send_sges: self.caps.max_sge,
            recv_sges: self.caps.max_sge,
            inline_bytes: config.inline_bytes,
        };
        let (mut qp, inline_bytes) = QueuePair::new(&self.pd, &self.cq, shape).map_err(|errno| {
            let what = format!(
                "making a queue pair with {} send and {} receive requests, {} pieces each and {} bytes inline on the RDMA device {name}",
                shape.send_depth, shape.recv_depth, shape.send_sges, shape.inline_bytes
            );
            Error::from_errno(what, errno).remedy(format!(
                "use a smaller --depth; the device has {} queue pairs, {} requests and {} pieces at most",
                self.device.attr.max_qp, self.device.attr.max_qp_wr, self.device.attr.max_sge
            ))
        })?;
        let mut attr = ffi::no_attr();
        attr.qp_state = state::IBV_QPS_INIT;
        attr.port_num = self.device.port;
        attr.qp_access_flags = (ibv::ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE).0;
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        qp.modify(&mut attr, what)
            .map_err(|errno| Error::from_errno(format!("making a queue pair of {name} ready for receives"), errno))?;
        let psn = Psn::new(self.rng.u32());
        // Asked for 0 a device may still take some; inline only where it was asked for.
        let slot = Slot::new(qp, psn, config.clone(), inline_bytes.min(config.inline_bytes), windows);
        let qpn = slot.qpn;
        Ok(slots::insert(&mut self.slots, &mut self.by_qpn, qpn, slot))
    }

    /// What a peer must know to connect.
    pub fn endpoint(&self, index: u32) -> QpEndpoint {
        let slot = self.slots[index as usize].as_ref().expect("a queue pair handle keeps its slot");
        let mtu = slot.config.path_mtu.map_or(self.device.mtu(), |asked| asked.min(self.device.mtu()));
        let gid = self.device.gid.address;
        let fabric = self.device.is_infiniband().then_some(FabricOffer { lid: self.device.port_attr.lid, gid, mtu });
        let address = (!self.device.is_infiniband()).then(|| SocketAddr::new(self.device.ip(), UDP_PORT));
        QpEndpoint {
            transport: slot.config.transport,
            qpn: slot.qpn.0,
            psn: slot.psn.get(),
            reads: READS.min(self.device.attr.max_qp_rd_atom as u8),
            qkey: 0,
            link: None,
            address,
            mtu,
            is_port_fixed: true,
            fabric,
        }
    }

    /// Connects: ready to send when this returns.
    pub fn connect(&mut self, index: u32, remote: &QpEndpoint) -> Result<()> {
        let local = self.endpoint(index);
        let (route, mtu_bytes) = endpoint::choose(&local, remote)?;
        let mtu = Mtu::ALL
            .into_iter()
            .rposition(|known| known.bytes() <= mtu_bytes)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("the peer's path MTU of {mtu_bytes} bytes is below the least, 256")))?;
        let qpn = self.slot(index).qpn;
        if self.slot(index).state != QpState::Init {
            return Err(Error::new(ErrorKind::Usage, format!("queue pair {qpn} is connected already")).remedy("make a new one"));
        }
        let (port, sgid_index) = (self.device.port, self.device.gid.index as u8);
        let mut attr = ffi::no_attr();
        attr.ah_attr.port_num = port;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = sgid_index;
        attr.ah_attr.grh.hop_limit = HOPS;
        match route {
            Route::Address(address) => attr.ah_attr.grh.dgid = ffi::gid(endpoint::gid(address.ip())),
            Route::Fabric(there) => {
                attr.ah_attr.grh.dgid = ffi::gid(there.gid);
                attr.ah_attr.dlid = there.lid;
            }
            Route::Link(_) => unreachable!("this end offers no rings"),
        }
        let reads = READS.min(self.device.attr.max_qp_rd_atom as u8);
        let name = self.device.name.clone();
        let slot = self.slot(index);
        let (psn, config) = (slot.psn, &slot.config);
        attr.qp_state = state::IBV_QPS_RTR;
        // `enum ibv_mtu` counts from 1 = 256, and so do the known ones from 0.
        attr.path_mtu = mtu as u32 + 1;
        attr.dest_qp_num = remote.qpn;
        attr.rq_psn = remote.psn;
        attr.max_dest_rd_atomic = reads;
        attr.min_rnr_timer = RnrTimer::new(config.rnr_timer).code();
        attr.timeout = AckTimeout::at_least(Nanos(config.ack_timeout.0.saturating_mul(NIC_PATIENCE))).code();
        attr.retry_cnt = config.retries.min(7);
        attr.rnr_retry = config.rnr_retries.min(7);
        attr.sq_psn = psn.get();
        attr.max_rd_atomic = remote.reads.min(reads);
        let Some(qp) = slot.qp.as_mut() else {
            return Err(Error::new(ErrorKind::Unavailable, format!("queue pair {qpn} is closed")).remedy("make a new one"));
        };
        let failed = |step: &str, errno| {
            let what = format!("{step} queue pair {qpn} of the RDMA device {name}, to {remote:?}");
            Error::from_errno(what, errno)
                .remedy("the peer's address must be reachable from the port's: ping it; ip neighbour shows whether it answers")
        };
        let receive = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        qp.modify(&mut attr, receive).map_err(|errno| failed("connecting", errno))?;
        attr.qp_state = state::IBV_QPS_RTS;
        let send = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        qp.modify(&mut attr, send).map_err(|errno| failed("making ready to send", errno))?;
        slot.state = QpState::Connected;
        Ok(())
    }

    /// Ends a queue pair and forgets it.
    pub fn close(&mut self, index: u32) {
        self.end(index);
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        if slot.qp.is_some() {
            // The device keeps it, and so what was posted; see `bury`.
            slot.is_closing = true;
            return;
        }
        self.forget(index);
    }

    fn forget(&mut self, index: u32) {
        if let Some(slot) = self.slots[index as usize].take() {
            self.by_qpn.remove(&slot.qpn.0);
            self.listed.retain(|listed| *listed != index);
        }
    }

    /// Ends a queue pair whose handle others hold.
    pub fn disconnect(&mut self, index: u32) {
        self.end(index);
    }

    /// Destroys a queue pair of the device. Then everything posted to it has ended, as the device said or flushed, and its windows are
    /// closed.
    pub(super) fn end(&mut self, index: u32) {
        // What ended before ends as it did.
        self.reap(usize::MAX);
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        slot.state = QpState::Error;
        // Whoever ends it knows.
        slot.is_fault_told = true;
        slot.sends.clear();
        slot.recvs.clear();
        let Some(mut qp) = slot.qp.take() else { return };
        // First of all the peer gets no answer any more, so that what it asks for is not refused for a window that is going.
        let mut attr = ffi::no_attr();
        attr.qp_state = state::IBV_QPS_ERR;
        let _ = qp.modify(&mut attr, mask::IBV_QP_STATE);
        self.grants.free_of(index);
        match qp.destroy() {
            Ok(()) => {
                self.reap(usize::MAX);
                self.flush(index);
            }
            Err((qp, errno)) => {
                tracing::warn!(qpn = qp.number(), errno, "the RDMA device did not destroy a queue pair: its leases wait");
                self.slot(index).qp = Some(qp);
                // A device that is being removed says so a moment later.
                self.is_lost = true;
            }
        }
    }

    /// Ends every queue pair.
    pub(super) fn end_all(&mut self) {
        for index in 0..self.slots.len() as u32 {
            self.end(index);
        }
    }

    /// The device has let go of a queue pair: what has not ended is flushed.
    pub(super) fn flush(&mut self, index: u32) {
        let slot = self.slot(index);
        let (sent, received) = (std::mem::take(&mut slot.sent), std::mem::take(&mut slot.received));
        for request in sent {
            self.ended(index, request, Some(WcStatus::Flushed));
        }
        for wr_id in received {
            self.room += 1;
            let _ = self.ops.complete(OpId::from_bits(wr_id), failed(WcStatus::Flushed));
        }
        self.grants.closed_with(index);
        if self.slot(index).is_closing {
            self.forget(index);
        }
    }

    /// The backend and device, as in tables.
    pub fn route(&self, _index: u32) -> String {
        self.caps.name.clone()
    }

    /// The state of a queue pair.
    pub fn state(&self, index: u32) -> QpState {
        self.slots[index as usize].as_ref().map_or(QpState::Error, |slot| slot.state)
    }

    /// Why a queue pair is in the error state, as far as that was told.
    pub fn fault(&self, index: u32) -> Option<QpFault> {
        self.slots[index as usize].as_ref()?.fault
    }

    /// The device's limits.
    pub fn caps(&self) -> Rc<Caps> {
        self.caps.clone()
    }
}
