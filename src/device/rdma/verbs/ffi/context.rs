//! Devices, their limits, and their asynchronous events.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use rdma_mummy_sys as ibv;

use super::{errno, tell_leak};
use crate::base::{Error, Result};

/// The device's limits and the port's attributes, as the library gives them.
pub use rdma_mummy_sys::{ibv_device_attr as DeviceAttr, ibv_port_attr as PortAttr};

/// An opened device.
pub struct Context {
    pub(super) raw: NonNull<ibv::ibv_context>,
    name: String,
}

/// Why a device was not opened.
pub enum OpenError {
    /// The library is missing, or finds no devices: the error number.
    NoDevices(i32),
    /// The library has devices, but none of this name.
    NotFound,
    /// The device does not open: the error number.
    Refused(i32),
}

impl Context {
    /// Opens a device by the kernel's name for it.
    pub fn open(name: &str) -> Result<Rc<Context>, OpenError> {
        let mut count: c_int = 0;
        // SAFETY: the count is writable; the list is freed below, on every path.
        let list = unsafe { ibv::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(OpenError::NoDevices(errno()));
        }
        let mut opened = Err(if count == 0 { OpenError::NoDevices(0) } else { OpenError::NotFound });
        for at in 0..count as usize {
            // SAFETY: the list has `count` entries, each a device until the list is freed.
            let device = unsafe { *list.add(at) };
            // SAFETY: the name is a string that lives as long as the device.
            let known = unsafe { CStr::from_ptr(ibv::ibv_get_device_name(device)) };
            if known.to_bytes() == name.as_bytes() {
                // SAFETY: the device is one of the list. A context stays when the list goes.
                let raw = unsafe { ibv::ibv_open_device(device) };
                opened = NonNull::new(raw).ok_or_else(|| OpenError::Refused(errno()));
            }
        }
        // SAFETY: the list came from ibv_get_device_list and is not used after this.
        unsafe { ibv::ibv_free_device_list(list) };
        opened.map(|raw| Rc::new(Context { raw, name: name.to_owned() }))
    }

    /// The kernel's names of the devices that the library knows: those it has a provider for.
    ///
    /// # Errors
    /// The library is missing (`EOPNOTSUPP`), or finds none: the error number.
    pub fn names() -> Result<Vec<String>, i32> {
        let mut count: c_int = 0;
        // SAFETY: the count is writable; the list is freed below.
        let list = unsafe { ibv::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(errno());
        }
        let name = |at: usize| {
            // SAFETY: the list has `count` entries, each a device until the list is freed; its name is a string that lives as long.
            unsafe { CStr::from_ptr(ibv::ibv_get_device_name(*list.add(at))) }.to_string_lossy().into_owned()
        };
        let names = (0..count as usize).map(name).collect();
        // SAFETY: the list came from ibv_get_device_list and is not used after this.
        unsafe { ibv::ibv_free_device_list(list) };
        Ok(names)
    }

    /// The kernel's name for the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's limits.
    pub fn device_attr(&self) -> Result<DeviceAttr> {
        let mut attr = MaybeUninit::<DeviceAttr>::zeroed();
        // SAFETY: the context is open, the attributes writable; all-zero is a value of them, so they are initialised either way.
        let (rc, attr) = unsafe { (ibv::ibv_query_device(self.raw.as_ptr(), attr.as_mut_ptr()), attr.assume_init()) };
        if rc == 0 { Ok(attr) } else { Err(Error::from_errno(format!("asking for the limits of the RDMA device {}", self.name), rc)) }
    }

    /// A port's attributes; ports count from 1.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr> {
        let mut attr = MaybeUninit::<PortAttr>::zeroed();
        // SAFETY: as in `device_attr`.
        let (rc, attr) = unsafe { (ibv::ibv_query_port(self.raw.as_ptr(), port, attr.as_mut_ptr()), attr.assume_init()) };
        if rc == 0 {
            Ok(attr)
        } else {
            Err(Error::from_errno(format!("asking for the attributes of port {port} of the RDMA device {}", self.name), rc))
        }
    }

    /// The descriptor of asynchronous events.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open, and the field is set when it is.
        unsafe { self.raw.as_ref() }.async_fd
    }

    /// The next asynchronous event, without waiting for one, once [`unblock`] was called on the descriptor.
    pub fn next_event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<ibv::ibv_async_event>::zeroed();
        // SAFETY: the context is open and the event writable.
        if unsafe { ibv::ibv_get_async_event(self.raw.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        let at = event.as_mut_ptr();
        // SAFETY: the event was filled in. Its type is read as the number it is: a newer library may know types that the enum does
        // not. Where the type says queue pair the element is one that lives: destroying it waits for the acknowledgement below.
        let told = unsafe {
            let kind = (&raw const (*at).event_type).cast::<u32>().read();
            let qpn = || (*(*at).element.qp).qp_num;
            match kind {
                QP_FATAL => Event::QpFatal(qpn()),
                QP_REQ_ERR => Event::QpRequest(qpn()),
                QP_ACCESS_ERR => Event::QpAccess(qpn()),
                QP_LAST => Event::QpLastReceive(qpn()),
                CQ_ERR => Event::CqError,
                DEVICE_FATAL => Event::DeviceFatal,
                PORT_ACTIVE => Event::Port((*at).element.port_num, true),
                PORT_ERR => Event::Port((*at).element.port_num, false),
                SRQ_ERR => Event::SrqError,
                LID_CHANGE | GID_CHANGE => Event::Addresses((*at).element.port_num),
                other => Event::Other(other),
            }
        };
        // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
        unsafe { ibv::ibv_ack_async_event(at) };
        Some(told)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made from the context holds it, so nothing of it is left.
        let rc = unsafe { ibv::ibv_close_device(self.raw.as_ptr()) };
        tell_leak("a device context", rc);
    }
}

const CQ_ERR: u32 = ibv::ibv_event_type::IBV_EVENT_CQ_ERR as u32;
const QP_FATAL: u32 = ibv::ibv_event_type::IBV_EVENT_QP_FATAL as u32;
const QP_REQ_ERR: u32 = ibv::ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32;
const QP_ACCESS_ERR: u32 = ibv::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32;
const QP_LAST: u32 = ibv::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
const DEVICE_FATAL: u32 = ibv::ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
const PORT_ACTIVE: u32 = ibv::ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
const PORT_ERR: u32 = ibv::ibv_event_type::IBV_EVENT_PORT_ERR as u32;
const SRQ_ERR: u32 = ibv::ibv_event_type::IBV_EVENT_SRQ_ERR as u32;
const LID_CHANGE: u32 = ibv::ibv_event_type::IBV_EVENT_LID_CHANGE as u32;
const GID_CHANGE: u32 = ibv::ibv_event_type::IBV_EVENT_GID_CHANGE as u32;

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The queue pair of this number failed.
    QpFatal(u32),
    /// Its peer sent a request it does not allow.
    QpRequest(u32),
    /// Its peer asked for memory it may not touch.
    QpAccess(u32),
    /// The completion queue failed: it overran.
    CqError,
    /// A shared receive queue failed.
    SrqError,
    /// The device failed or goes away.
    DeviceFatal,
    /// A port has other addresses.
    Addresses(i32),
    /// A port came up or went down.
    Port(i32, bool),
    /// The queue pair of this number, which shares its receives, is in the error state and takes no more of them.
    QpLastReceive(u32),
    /// Any other, by its number.
    Other(u32),
}
