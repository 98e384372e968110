//! What a device is asked for an operation, where the transport and the device have it.

use super::ffi::{AddressHandle, Verb};
use crate::device::rdma::Transport;
use crate::proto::rc::{Change, SendOp};
use crate::proto::ud::Destination;

bitflags::bitflags! {
    /// Operations that not every device has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Operations: u8 {
        const ATOMIC = 1;
        const SEND_INVALIDATE = 2;
    }
}

/// On a connection; `None` where there is no such operation.
// Always inline: the verb is taken apart where it is made.
#[inline(always)]
pub fn of_connection(op: SendOp, transport: Transport, has: Operations) -> Option<Verb<'static>> {
    let is_reliable = transport == Transport::Rc;
    Some(match op {
        SendOp::Send => Verb::Send,
        SendOp::SendImm(immediate) => Verb::SendImm(immediate),
        SendOp::Write(at) => Verb::Write { address: at.va, rkey: at.rkey.0 },
        SendOp::WriteImm(at, immediate) => Verb::WriteImm { address: at.va, rkey: at.rkey.0, immediate },
        SendOp::Read(at) if is_reliable => Verb::Read { address: at.va, rkey: at.rkey.0 },
        SendOp::SendInvalidate(rkey) if is_reliable && has.contains(Operations::SEND_INVALIDATE) => Verb::SendInvalidate { rkey: rkey.0 },
        SendOp::Atomic(at, change) if is_reliable && has.contains(Operations::ATOMIC) => match change {
            Change::Add(value) => Verb::Add { address: at.va, rkey: at.rkey.0, value },
            Change::Swap { compare, swap } => Verb::CompareSwap { address: at.va, rkey: at.rkey.0, compare, swap },
        },
        SendOp::Read(_) | SendOp::SendInvalidate(_) | SendOp::Atomic(..) => return None,
    })
}

/// As a datagram, which is SENT or nothing.
#[inline]
pub fn datagram(op: SendOp, handle: &AddressHandle, to: Destination) -> Option<Verb<'_>> {
    let immediate = match op {
        SendOp::Send => None,
        SendOp::SendImm(immediate) => Some(immediate),
        _ => return None,
    };
    Some(Verb::Datagram { to: handle, qpn: to.qpn, qkey: to.qkey, immediate })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rkey;
    use crate::proto::rc::Remote;

    #[test]
    fn each_transport_has_its_operations() {
        let at = Remote { va: 8, rkey: Rkey(1) };
        let count = |transport, has| {
            let all = [
                SendOp::Send,
                SendOp::SendImm(1),
                SendOp::Write(at),
                SendOp::WriteImm(at, 1),
                SendOp::Read(at),
                SendOp::SendInvalidate(Rkey(1)),
                SendOp::Atomic(at, Change::Add(1)),
                SendOp::Atomic(at, Change::Swap { compare: 1, swap: 2 }),
            ];
            all.into_iter().filter(|op| of_connection(*op, transport, has).is_some()).count()
        };
        assert_eq!(count(Transport::Rc, Operations::all()), 8);
        assert_eq!(count(Transport::Rc, Operations::ATOMIC), 7);
        assert_eq!(count(Transport::Rc, Operations::SEND_INVALIDATE), 6);
        assert_eq!(count(Transport::Rc, Operations::empty()), 5);
        assert_eq!(count(Transport::Uc, Operations::all()), 4);
    }
}
