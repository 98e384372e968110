//! What peers may touch: windows of type 2, each bound to one queue pair; or, where the device has none, small memory regions.
//!
//! A device may judge a request by the registration behind a window and not by the window's own bounds: rxe does (rxe_resp.c, check_rkey;
//! the conformance suite's `refused_access` shows it). There each window gets a registration of its own, as long as itself.
//!
//! A window is bound and invalidated by requests on its queue pair's send queue, in their turn, or invalidated by the peer with a SEND,
//! whose completion says so. An owner that revokes while such a SEND is under way may find the window invalid already; some devices
//! take that for an error of the queue pair, and its end closes what is left. On rxe a window is freed instead: it knows no invalidation on
//! unreliable connections (rxe_opcode.c), and of a window that the peer has invalidated it stops the kernel (6.18, rxe_invalidate_mw). And
//! there a window is bound while nothing before it is under way: when rxe sends a request again it carries out the bindings behind it again
//! (rxe_req.c, req_retry), which fails, and takes the queue pair down without a word. A
//! grant is known by key and address together: a device may give out a key again, but the chunks stay with the window until it is closed.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::ffi::{Mr, Mw, Pd, Rights, SendBatch, Verb};
use super::hca::Verbs;
use super::slot::{Binding, What};
use crate::base::Rkey;
use crate::device::Ops;
use crate::device::rdma::qp::{Gate, Granted};
use crate::device::rdma::{Access, Features, QpState, Transport, Written};
use crate::mem::Run;

/// The key of what cannot be touched: an empty window, or one of a queue pair that is down. Devices do not judge the key of a request
/// for no bytes (InfiniBand specification C9-88).
const NO_KEY: Rkey = Rkey(0);

/// A grant's key and address.
pub type Key = (u32, u64);

/// The grants of a device.
pub struct Grants {
    by_key: HashMap<Key, Grant>,
    /// The address behind each key that a window is bound to.
    open: HashMap<u32, u64>,
    /// Windows bound to nothing.
    free: Vec<Mw>,
    /// Grants are windows bound to queue pairs, not memory regions.
    pub has_windows: bool,
    /// The device is rxe, which does not hold peers to a window's bounds, and must not be asked to invalidate.
    is_rxe: bool,
    /// Numbers the windows' requests, below every operation's id.
    serial: u32,
    /// Windows to invalidate when there is room: queue pair and key.
    closing: VecDeque<(u32, Key)>,
}

struct Grant {
    /// The queue pair's place in the table.
    index: u32,
    holder: Option<Holder>,
    gate: Option<Rc<Gate>>,
}

enum Holder {
    /// With its own registration, where the device looks at that instead of the window.
    Window(Mw, Option<Mr>),
    Region(Mr),
}

impl Grants {
    /// Whether the device is the kernel's software one.
    pub fn is_rxe(&self) -> bool {
        self.is_rxe
    }

    pub fn new(has_windows: bool, is_rxe: bool) -> Grants {
        let (by_key, open, closing) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Grants { by_key, open, free: Vec::new(), has_windows, is_rxe, serial: 0, closing }
    }

    /// A binding ended; one that failed has taken the queue pair down.
    pub fn bound(&mut self, key: Key, well: bool) {
        let Some(grant) = self.by_key.get_mut(&key) else { return };
        if let Some(Holder::Window(mw, _)) = grant.holder.as_mut().filter(|_| well) {
            mw.bound(key.0);
        }
        if let Some(gate) = grant.gate.take() {
            gate.open();
        }
    }

    /// An invalidation ended; false when it did not succeed, and the window may be open still.
    pub fn invalidated(&mut self, key: Key, well: bool) -> bool {
        if !well {
            return !self.by_key.contains_key(&key);
        }
        self.shut(key);
        true
    }

    /// The peer has invalidated a window by SEND: it is closed, and nothing is left to do for its owner.
    pub fn invalidated_by_peer(&mut self, rkey: u32) {
        let Some(&address) = self.open.get(&rkey) else { return };
        self.closing.retain(|(_, key)| *key != (rkey, address));
        self.shut((rkey, address));
    }

    /// A window is bound to nothing any more.
    fn shut(&mut self, key: Key) {
        let Some(mut grant) = self.by_key.remove(&key) else { return };
        if let Some(Holder::Window(mut mw, own)) = grant.holder.take() {
            self.open.remove(&key.0);
            mw.bound(key.0);
            self.free.push(mw);
            drop(own);
        }
        if let Some(gate) = grant.gate.take() {
            gate.open();
        }
    }

    /// Frees a window, and opens its gate, where no request would end it; true if it is closed.
    fn free_window(&mut self, key: Key) -> bool {
        let Some(Holder::Window(mw, own)) = self.by_key.get_mut(&key).and_then(|grant| grant.holder.take()) else { return false };
        self.open.remove(&key.0);
        if !mw.free() {
            return false;
        }
        drop(own);
        self.shut(key);
        true
    }

    /// Frees what the grants of a queue pair are made of, before it is destroyed: some devices keep it while a window is bound to it.
    pub fn free_of(&mut self, index: u32) {
        self.closing.retain(|(of, _)| *of != index);
        for ((rkey, _), grant) in self.by_key.iter_mut().filter(|(_, grant)| grant.index == index) {
            grant.holder = match grant.holder.take() {
                // Not freed, its queue pair's end closes it.
                Some(Holder::Window(mw, own)) => {
                    self.open.remove(rkey);
                    let _ = mw.free();
                    drop(own);
                    None
                }
                // Any queue pair of the device reaches it.
                Some(Holder::Region(mr)) => mr.free().err().map(Holder::Region),
                None => None,
            };
        }
    }

    /// The device is gone, and with it what the grants of a queue pair are made of.
    pub fn forget_of(&mut self, index: u32) {
        for ((rkey, _), grant) in self.by_key.iter_mut().filter(|(_, grant)| grant.index == index) {
            self.open.remove(rkey);
            drop(grant.holder.take());
        }
    }

    /// A queue pair was destroyed: its grants are closed.
    pub fn closed_with(&mut self, index: u32) {
        self.by_key.retain(|_, grant| {
            let is_closed = grant.index == index && grant.holder.is_none();
            if let Some(gate) = grant.gate.take_if(|_| is_closed) {
                gate.open();
            }
            !is_closed
        });
    }

    fn holder(&mut self, pd: &Rc<Pd>) -> Option<Mw> {
        self.free.pop().or_else(|| Mw::new(pd).ok())
    }
}

impl Verbs {
    /// Begins to grant the peer of a queue pair access to a run; `None` when there is no room, or it is not connected.
    pub fn grant(&mut self, index: u32, run: &Run, access: Access) -> Option<Granted> {
        let has_atomics = self.caps.features.contains(Features::ATOMICS);
        let is_for_datagrams = self.slot(index).config.transport == Transport::Ud;
        if !run.region().same(self.memory.region()) || is_for_datagrams || access.contains(Access::ATOMIC) && !has_atomics {
            return None;
        }
        let nothing = Some(Granted { rkey: NO_KEY, opening: None });
        let has_windows = self.grants.has_windows;
        match self.slot(index).state {
            // A window is bound by a request; a memory region is there at once.
            QpState::Init if has_windows => return None,
            QpState::Error => return nothing,
            _ if run.is_empty() => return nothing,
            QpState::Init | QpState::Connected => {}
        }
        // An unreliable connection has WRITE alone.
        let access = if self.slot(index).config.transport == Transport::Rc { access } else { access & Access::WRITE };
        let (address, len) = (run.address(), run.len());
        if !has_windows {
            let rights = Rights::peer(access);
            let mr = Mr::new(&self.pd, self.memory.region(), address, u64::from(len), rights).ok()?;
            let rkey = mr.rkey;
            self.grants.by_key.insert((rkey, address), Grant { index, holder: Some(Holder::Region(mr)), gate: None });
            return Some(Granted { rkey: Rkey(rkey), opening: None });
        }
        if !has_room(self.room, self.slots[index as usize].as_ref()?) {
            return None;
        }
        let own = if !self.grants.is_rxe && self.memory.find(address, len).is_some() {
            None
        } else {
            Some(Mr::new(&self.pd, self.memory.region(), address, u64::from(len), Rights::local(true)).ok()?)
        };
        let mr = own.as_ref().or_else(|| self.memory.find(address, len))?;
        let mw = self.grants.holder(&self.pd)?;
        let rkey = mw.next_rkey();
        let serial = self.grants.next_serial();
        let slot = self.slots[index as usize].as_mut()?;
        let (rights, len) = (Rights::peer(access), u64::from(len));
        if self.grants.is_rxe {
            slot.bindings.push_back(Binding { wr_id: serial, rkey, address, len, rights });
        } else {
            Verbs::post_window(slot, serial, What::Bind, (rkey, address), Verb::Bind { mw: &mw, mr, address, len, rkey, rights });
        }
        self.list_window(index);
        let gate = Gate::new(&self.ops);
        let grant = Grant { index, holder: Some(Holder::Window(mw, own)), gate: Some(gate.clone()) };
        self.grants.by_key.insert((rkey, address), grant);
        self.grants.open.insert(rkey, address);
        Some(Granted { rkey: Rkey(rkey), opening: Some(gate) })
    }

    /// NICs sum nothing here.
    pub fn sum_writes(&mut self, _rkey: Rkey) {}

    /// A NIC writes by itself anyway.
    pub fn lend_writes(&mut self, _rkey: Rkey) {}

    /// It tells nobody what it has written.
    pub fn sum_written(&mut self, _rkey: Rkey) -> u32 {
        0
    }

    /// So this is not known.
    pub fn take_sum(&mut self, _rkey: Rkey) -> Option<Written> {
        None
    }

    /// Nor what is READ.
    pub fn sum_read(&mut self, _address: u64, _len: u32, _block: u32) -> bool {
        false
    }

    /// So there are none.
    pub fn take_blocks(&mut self, _address: u64) -> Vec<u64> {
        Vec::new()
    }

    /// Begins to end a grant; what to wait for until it has ended.
    pub fn revoke(&mut self, rkey: Rkey, address: u64) -> Option<Rc<Gate>> {
        let key = (rkey.0, address);
        let gate = new_gate(&self.ops, self.grants.by_key.get_mut(&key)?);
        let index = self.grants.by_key[&key].index;
        if matches!(self.grants.by_key[&key].holder, Some(Holder::Region(_))) {
            let grant = self.grants.by_key.get_mut(&key)?;
            if let Some(Holder::Region(mr)) = grant.holder.take() {
                grant.holder = mr.free().err().map(Holder::Region);
            }
            if grant.holder.is_none() {
                self.grants.by_key.remove(&key);
                gate.open();
            }
        } else if self.grants.is_rxe {
            let bindings = &mut self.slot(index).bindings;
            if let Some(at) = bindings.iter().position(|binding| (binding.rkey, binding.address) == key) {
                // It was never bound.
                bindings.remove(at);
                self.room += 1;
            }
            if !self.grants.free_window(key) {
                self.end(index);
            }
        } else if self.slot(index).state == QpState::Connected {
            self.grants.closing.push_back((index, key));
            self.close_windows();
        } else {
            self.end(index);
        }
        Some(gate)
    }

    /// Asks for the invalidations that wait for room.
    pub(super) fn close_windows(&mut self) {
        for _ in 0..self.grants.closing.len() {
            let Some((index, key)) = self.grants.closing.pop_front() else { return };
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            if !has_room(self.room, slot) {
                self.grants.closing.push_back((index, key));
                continue;
            }
            let serial = self.grants.next_serial();
            Verbs::post_window(slot, serial, What::Invalidate, key, Verb::Invalidate { rkey: key.0 });
            self.list_window(index);
        }
    }

    /// Whether windows wait for room to be closed.
    #[inline]
    pub(super) fn has_windows_to_close(&self) -> bool {
        !self.grants.closing.is_empty()
    }
}

impl Grants {
    /// Adds the request that binds a window to a batch.
    pub fn bind(&self, binding: &Binding, batch: &mut SendBatch) {
        let &Binding { wr_id, rkey, address, len, rights } = binding;
        let grant = self.by_key.get(&(rkey, address)).expect("a window that is revoked is not bound any more");
        let Some(Holder::Window(mw, Some(mr))) = &grant.holder else { unreachable!("windows of rxe have a registration each") };
        batch.push(wr_id, Verb::Bind { mw, mr, address, len, rkey, rights }, &[], true, false);
    }

    fn next_serial(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        u64::from(self.serial)
    }
}

/// The send queue takes another window's request, and the completion queue its end.
fn has_room(room: u32, slot: &super::slot::Slot) -> bool {
    let under_way = (slot.sent.len() + slot.bindings.len()) as u32 - slot.operations;
    room > 0 && under_way < slot.windows
}

fn new_gate(ops: &Ops, grant: &mut Grant) -> Rc<Gate> {
    grant.gate.insert(Gate::new(ops)).clone()
}
