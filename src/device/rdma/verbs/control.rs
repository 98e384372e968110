//! The control path: the device opened, queue pairs made and destroyed.

use std::cell::RefCell;
use std::rc::Rc;

use rdma_mummy_sys as ibv;
use rdma_mummy_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::complete::failed;
use super::device::Device;
use super::ffi::{self, Cq, Pd, QpShape, QueuePair, Rights};
use super::grants::Grants;
use super::hca::{PIECES_MAX, Verbs};
use super::memory::Memory;
use super::request::Operations;
use super::slot::Slot;
use super::ways::Headers;
use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Result};
use crate::device::rdma::joint::join;
use crate::device::rdma::{Access, Caps, Features, HcaEnv, QpConfig, QpFault, QpState, Transport, check_room, slots};
use crate::device::{OpId, WcStatus};

/// Windows' requests the completion queue has room for beside the operations.
const WINDOW_ROOM: u32 = 1024;
/// rxe's vendor number (drivers/infiniband/sw/rxe/rxe_param.h).
const RXE: u32 = 0x00ff_ffff;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`: windows bound to a queue pair.
const WINDOWS: u32 = ibv::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
/// `IBV_DEVICE_MEM_MGT_EXTENSIONS`: SEND with invalidate among others (InfiniBand specification 10.2.2.2).
const EXTENSIONS: u32 = ibv::ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;

impl Verbs {
    /// Opens a device the user named and registers the region with it.
    pub fn open(env: HcaEnv, named: &str) -> Result<Verbs> {
        let device = Device::open(named, env.address, env.verbs.gid_index)?;
        let pd = Pd::new(&device.context)?;
        let has_windows = device.attr.device_cap_flags & WINDOWS != 0 && device.attr.max_mw > 0 && !env.verbs.without_windows;
        // The kernel registers no DMA buffer for windows to be bound to: there each grant is a registration of its own.
        let has_windows = has_windows && !env.verbs.dma_buf;
        let most = env.verbs.mr_bytes_max.unwrap_or(u64::MAX).min(device.attr.max_mr_size);
        let memory = match env.verbs.dma_buf {
            false => Memory::register(&pd, &env.region, most, Rights::local(has_windows))?,
            true => Memory::register_dma_bufs(&pd, &env.region, most, Rights::local(has_windows), &device.name)?,
        };
        let max_sge = env.pieces_of(&device.name, (device.attr.max_sge as u32).min(PIECES_MAX as u32))?;
        // An entry for each operation in flight, or as many as were asked for, and for each window's request; a device with fewer makes
        // submissions wait.
        let most = device.attr.max_cqe as u32;
        if let Some(asked) = env.completions.filter(|asked| *asked > most) {
            let what = format!("a completion queue of {asked} entries: the RDMA device {} takes {most}", device.name);
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("ask for {most} at most: rdma.cq_size")));
        }
        let room = env.completions.unwrap_or(env.ops.capacity() as u32).saturating_add(WINDOW_ROOM).min(most);
        let cq = Cq::new(&device.context, room)?;
        let joint = join([cq.borrow().fd(), device.context.async_fd()])?;
        ffi::unblock(cq.borrow().fd())?;
        ffi::unblock(device.context.async_fd())?;
        // A queue pair has as many entries again for its windows.
        let max_send_depth = (device.attr.max_qp_wr as u32 / 2).max(1);
        let wire = if device.is_infiniband() { "infiniband" } else { "roce" };
        let kind = if has_windows { "memory windows of type 2" } else { "no memory windows: a peer's keys are good for every queue pair" };
        let pieces = if memory.pieces() > 1 { format!(", region in {} registrations", memory.pieces()) } else { String::new() };
        let by = if env.verbs.dma_buf { ", as DMA buffers" } else { "" };
        let mut operations = Operations::empty();
        operations.set(Operations::ATOMIC, device.attr.atomic_cap != ibv::ibv_atomic_cap::IBV_ATOMIC_NONE);
        operations.set(Operations::SEND_INVALIDATE, device.attr.device_cap_flags & EXTENSIONS != 0);
        let mut features = Features::empty();
        features.set(Features::ATOMICS, operations.contains(Operations::ATOMIC));
        // A memory region is not the peer's to close.
        features.set(Features::INVALIDATE, has_windows && operations.contains(Operations::SEND_INVALIDATE));
        features.set(Features::WINDOWS, has_windows);
        features.set(Features::SHARED_RECEIVES, device.attr.max_srq > 0 && device.attr.max_srq_wr > 0);
        let caps = Caps {
            name: format!("verbs:{}", device.name),
            wire: wire.to_owned(),
            path_mtu_max: device.mtu(),
            max_sge,
            max_qps: device.attr.max_qp as u32,
            max_depth: max_send_depth,
            max_message_bytes: device.port_attr.max_msg_sz,
            transports: transports(&pd, &cq),
            features,
            gid: Some(device.gid.address),
            note: Some(format!("port {}, GID {}, path MTU {}, {kind}{pieces}{by}", device.port, device.gid, device.mtu())),
        };
        let depths = (max_send_depth, device.attr.max_qp_wr as u32);
        let grants = Grants::new(has_windows, device.attr.vendor_id == RXE);
        let completions = env.completions;
        let mut verbs =
            Verbs::assemble(env.ops, env.rng, caps, depths, room, grants, operations, joint, env.interface, memory, cq, pd, device);
        verbs.completions = completions;
        Ok(verbs)
    }

    /// Makes a queue pair, in state Init: receives may be posted. Returns its place in the table.
    pub fn create(&mut self, config: &QpConfig, shared: Option<u32>) -> Result<u32> {
        let name = &self.device.name;
        if self.is_lost || self.is_quiescing {
            let what = format!("a new queue pair: the RDMA device {name} {}", if self.is_lost { "is gone" } else { "is being closed" });
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("open the device again"));
        }
        if !self.caps.transports.contains(&config.transport) {
            let what = format!("a {:?} queue pair: the RDMA device {name} has {:?}", config.transport, self.caps.transports);
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("use --transport rc, or soft, which has them all"));
        }
        let receives = shared.and_then(|index| self.shared[index as usize].as_ref()?.queue.as_ref());
        if shared.is_some() && receives.is_none() {
            let what = format!("a queue pair with a shared receive queue of the RDMA device {name} that has ended");
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("open the device again"));
        }
        for (what, depth, most) in [("send", config.send_depth, self.max_send_depth), ("receive", config.recv_depth, self.max_recv_depth)] {
            if !(1..=most).contains(&depth) {
                let what = format!("a queue pair with {depth} {what} requests: the RDMA device {name} takes 1 to {most}");
                return Err(Error::new(ErrorKind::Usage, what).remedy("use a smaller --depth"));
            }
        }
        check_room(self.completions, self.slots.iter().flatten().map(|slot| &slot.config), config)?;
        let is_for_datagrams = config.transport == Transport::Ud;
        if is_for_datagrams && self.headers.is_none() {
            self.headers = Some(Headers::new(&self.pd)?);
        }
        let windows = if self.grants.has_windows && !is_for_datagrams { config.send_depth.min(self.max_send_depth) } else { 0 };
        let shape = QpShape {
            kind: kind(config.transport),
            send_depth: config.send_depth + windows,
            recv_depth: if receives.is_some() { 0 } else { config.recv_depth },
            send_sges: self.caps.max_sge,
            // One more for the header.
            recv_sges: (self.caps.max_sge + u32::from(is_for_datagrams)).min(self.device.attr.max_sge as u32),
            inline_bytes: config.inline_bytes,
        };
        let (mut qp, inline_bytes) = QueuePair::new(&self.pd, &self.cq, receives, shape).map_err(|errno| {
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
        // The top bit would ask for a privileged Q_Key (InfiniBand specification 10.2.5).
        let qkey = config.qkey.unwrap_or_else(|| self.rng.u32() >> 1);
        attr.qkey = qkey;
        let mut access = Access::all();
        access.set(Access::ATOMIC, self.operations.contains(Operations::ATOMIC));
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        let what = match config.transport {
            Transport::Rc => what | mask::IBV_QP_ACCESS_FLAGS,
            Transport::Uc => {
                access = Access::WRITE;
                what | mask::IBV_QP_ACCESS_FLAGS
            }
            Transport::Ud => what | mask::IBV_QP_QKEY,
        };
        attr.qp_access_flags = Rights::peer(access).of_peer();
        qp.modify(&mut attr, what)
            .map_err(|errno| Error::from_errno(format!("making a queue pair of {name} ready for receives"), errno))?;
        let psn = Psn::new(self.rng.u32());
        // Asked for 0 a device may still take some; inline only where it was asked for.
        let mut slot = Slot::new(qp, psn, qkey, config.clone(), inline_bytes.min(config.inline_bytes), windows);
        slot.shared = shared;
        self.share(shared);
        let qpn = slot.qpn;
        Ok(slots::insert(&mut self.slots, &mut self.by_qpn, qpn, slot))
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
        if slots::remove(&mut self.slots, &mut self.by_qpn, index, |slot| slot.qpn).is_some() {
            self.listed.retain(|listed| *listed != index);
            // The place is the next one's, who is not to be destroyed for this one.
            self.doomed.retain(|doomed| *doomed != index);
        }
    }

    /// Moves a queue pair to the error state. The device flushes what was posted; where it does not, the queue pair is destroyed, which
    /// does.
    pub fn force_error(&mut self, index: u32) {
        let slot = self.slot(index);
        if slot.state == QpState::Error || slot.qp.is_none() {
            return;
        }
        // What was collected was posted before this was asked.
        self.post_collected();
        let slot = self.slot(index);
        slot.state = QpState::Error;
        // Whoever asks knows.
        slot.is_fault_told = true;
        let mut attr = ffi::no_attr();
        attr.qp_state = state::IBV_QPS_ERR;
        let moved = slot.qp.as_mut().map_or(Ok(()), |qp| qp.modify(&mut attr, mask::IBV_QP_STATE));
        if let Err(errno) = moved {
            tracing::warn!(qpn = %slot.qpn, errno, "the RDMA device did not move a queue pair to the error state: it is destroyed");
            self.doomed.push(index);
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
        for (sent, key) in slot.bindings.drain(..).map(|binding| binding.sent()) {
            slot.sent.push_back(sent);
            slot.changes.push_back(key);
        }
        let Some(mut qp) = slot.qp.take() else { return };
        // First of all the peer gets no answer any more, so that what it asks for is not refused for a window that is going.
        let mut attr = ffi::no_attr();
        attr.qp_state = state::IBV_QPS_ERR;
        let _ = qp.modify(&mut attr, mask::IBV_QP_STATE);
        self.grants.free_of(index);
        if let Some(rules) = self.slot(index).steering.as_mut() {
            rules.clear();
        }
        // What came meanwhile: where receives are shared, the library forgets with the queue pair what it has not told yet.
        self.reap(usize::MAX);
        match qp.destroy() {
            Ok(()) => {
                self.reap(usize::MAX);
                self.flush(index);
            }
            Err((qp, errno)) => {
                tracing::warn!(qpn = qp.number(), errno, "the RDMA device did not destroy a queue pair: its leases wait");
                self.slot(index).qp = Some(qp);
                // A device that is being removed refuses everything. It says so itself, too, but last of all.
                self.lose();
            }
        }
    }

    /// Ends every queue pair.
    pub(super) fn end_all(&mut self) {
        for index in 0..self.slots.len() as u32 {
            self.end(index);
        }
        for index in 0..self.shared.len() as u32 {
            self.end_shared(index);
        }
    }

    /// The device has let go of a queue pair: what has not ended is flushed.
    pub(super) fn flush(&mut self, index: u32) {
        self.flush_sent(index);
        for wr_id in std::mem::take(&mut self.slot(index).received) {
            self.room += 1;
            let _ = self.ops.complete(OpId::from_bits(wr_id), failed(WcStatus::Flushed));
        }
        self.grants.closed_with(index);
        let shared = self.slot(index).shared.take();
        self.unshare(shared);
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
        let fault = self.slots[index as usize].as_ref()?.fault?;
        // rxe ends a queue pair that sends without an interface to send from, and tells of the port a little later.
        Some(if fault == QpFault::Unsaid && self.is_port_down { QpFault::PortDown } else { fault })
    }

    /// The device's limits.
    pub fn caps(&self) -> Rc<Caps> {
        self.caps.clone()
    }
}

fn kind(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => ibv::ibv_qp_type::IBV_QPT_RC,
        Transport::Uc => ibv::ibv_qp_type::IBV_QPT_UC,
        Transport::Ud => ibv::ibv_qp_type::IBV_QPT_UD,
    }
}

/// The transports of a device. Nothing lists them, so a small queue pair of each is made and destroyed; one that is refused for another
/// reason may work later.
fn transports(pd: &Rc<Pd>, cq: &Rc<RefCell<Cq>>) -> Vec<Transport> {
    let is_known = |transport: &Transport| {
        let shape = QpShape { kind: kind(*transport), send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline_bytes: 0 };
        let refused = QueuePair::new(pd, cq, None, shape).err();
        !refused.is_some_and(|errno| matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPROTONOSUPPORT))
    };
    [Transport::Rc, Transport::Uc, Transport::Ud].into_iter().filter(is_known).collect()
}
