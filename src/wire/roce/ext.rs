//! Extension headers: what follows the BTH, as the opcode says (InfiniBand specification 9.3).

use super::Opcode;
use crate::base::{Qpn, Rkey};
use crate::wire::{be32, be64};

/// The longest combination: AtomicETH.
pub(super) const LEN_MAX: usize = 28;
/// Bytes behind the BTH of a congestion notification (InfiniBand annex A17.9.3).
const RESERVED_LEN: usize = 16;

/// RETH: the remote memory a WRITE or READ names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// First byte, in the owner's addresses.
    pub va: u64,
    /// The key that grants it.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub len: u32,
}

/// AtomicETH: the eight bytes an atomic names and its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// First of the eight bytes, aligned to eight.
    pub va: u64,
    /// The key that grants them.
    pub rkey: Rkey,
    /// What to store, or to add.
    pub swap_or_add: u64,
    /// What must be there for the swap.
    pub compare: u64,
}

/// AETH: how a request fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledged, or why not.
    pub syndrome: Syndrome,
    /// Messages the responder has completed, modulo 2²⁴.
    pub msn: u32,
}

/// The AETH syndrome (InfiniBand specification, tables 44 to 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the PSN has been executed. `credits` is a code of five bits for free receives; 0x1f says that the
    /// responder does not count them.
    Ack {
        /// Credit code, 5 bits.
        credits: u8,
    },
    /// No receive was posted: try again from the PSN after the time the 5-bit code stands for.
    RnrNak {
        /// Timer code, 5 bits (table 45).
        timer: u8,
    },
    /// Refused.
    Nak(Nak),
    /// A value the specification reserves.
    Reserved(u8),
}

/// Why a responder refuses (InfiniBand specification, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Nak {
    /// A packet before this one is missing: send again from the PSN.
    PsnSequence = 0,
    /// The request is not well formed, not supported, or too long for the receive it meets.
    InvalidRequest = 1,
    /// The memory named is not granted for this.
    RemoteAccess = 2,
    /// The responder failed in itself.
    RemoteOperational = 3,
}

impl Syndrome {
    /// The acknowledgement of a responder that does not count credits, as rxe's.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// As the byte has it.
    #[inline]
    pub fn parse(byte: u8) -> Syndrome {
        match (byte >> 5, byte & 0x1f) {
            (0, credits) => Syndrome::Ack { credits },
            (1, timer) => Syndrome::RnrNak { timer },
            (3, 0) => Syndrome::Nak(Nak::PsnSequence),
            (3, 1) => Syndrome::Nak(Nak::InvalidRequest),
            (3, 2) => Syndrome::Nak(Nak::RemoteAccess),
            (3, 3) => Syndrome::Nak(Nak::RemoteOperational),
            _ => Syndrome::Reserved(byte),
        }
    }

    #[inline]
    fn emit(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 1 << 5 | timer & 0x1f,
            Syndrome::Nak(nak) => 3 << 5 | nak as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// DETH: the datagram header of UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The key the receiving queue pair asks for.
    pub qkey: u32,
    /// The queue pair to answer.
    pub src_qp: Qpn,
}

/// The extension headers of one packet. Which variant is right follows from the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// Nothing.
    None,
    /// Immediate data.
    Imm(u32),
    /// A key to invalidate (IETH).
    Invalidate(Rkey),
    /// Remote memory.
    Reth(Reth),
    /// Remote memory, then immediate data.
    RethImm(Reth, u32),
    /// An atomic's operands.
    Atomic(AtomicEth),
    /// How a request fared.
    Aeth(Aeth),
    /// How an atomic fared and what was there before.
    AtomicAck(Aeth, u64),
    /// A datagram's source.
    Deth(Deth),
    /// A datagram's source, then immediate data.
    DethImm(Deth, u32),
    /// The reserved bytes of a congestion notification: zeros when sent, not looked at when received.
    Reserved,
}

impl Ext {
    /// Bytes the extension headers of `opcode` take.
    #[inline]
    pub(super) fn len_of(opcode: Opcode) -> usize {
        let mut len = 0;
        if opcode.has_reth() {
            len += 16;
        }
        if opcode.has_immediate() || opcode.has_invalidate() || opcode.has_aeth() {
            len += 4;
        }
        if opcode.has_deth() || opcode.has_atomic_ack() {
            len += 8;
        }
        if opcode.has_atomic() {
            len += 28;
        }
        if opcode.has_reserved() {
            len += RESERVED_LEN;
        }
        len
    }

    /// Reads what `opcode` calls for; `bytes` has exactly the length for it.
    #[inline]
    pub(super) fn parse(opcode: Opcode, bytes: &[u8]) -> Ext {
        let reth = || Reth { va: be64(bytes, 0), rkey: Rkey(be32(bytes, 8)), len: be32(bytes, 12) };
        let deth = || Deth { qkey: be32(bytes, 0), src_qp: Qpn(be32(bytes, 4) & 0x00ff_ffff) };
        if opcode.has_reth() {
            return if opcode.has_immediate() { Ext::RethImm(reth(), be32(bytes, 16)) } else { Ext::Reth(reth()) };
        }
        if opcode.has_aeth() {
            let aeth = Aeth { syndrome: Syndrome::parse(bytes[0]), msn: be32(bytes, 0) & 0x00ff_ffff };
            return if opcode.has_atomic_ack() { Ext::AtomicAck(aeth, be64(bytes, 4)) } else { Ext::Aeth(aeth) };
        }
        if opcode.has_deth() {
            return if opcode.has_immediate() { Ext::DethImm(deth(), be32(bytes, 8)) } else { Ext::Deth(deth()) };
        }
        if opcode.has_immediate() {
            return Ext::Imm(be32(bytes, 0));
        }
        if opcode.has_invalidate() {
            return Ext::Invalidate(Rkey(be32(bytes, 0)));
        }
        if opcode.has_atomic() {
            return Ext::Atomic(AtomicEth {
                va: be64(bytes, 0),
                rkey: Rkey(be32(bytes, 8)),
                swap_or_add: be64(bytes, 12),
                compare: be64(bytes, 20),
            });
        }
        if opcode.has_reserved() { Ext::Reserved } else { Ext::None }
    }

    /// Writes them at the front of `out`; returns their length.
    ///
    /// Panics if they are not what `opcode` calls for.
    #[inline]
    pub(super) fn emit(&self, opcode: Opcode, out: &mut [u8]) -> usize {
        let len = match self {
            Ext::None => 0,
            Ext::Imm(imm) => put32(out, 0, *imm),
            Ext::Invalidate(rkey) => put32(out, 0, rkey.0),
            Ext::Reth(reth) => reth.emit(out),
            Ext::RethImm(reth, imm) => {
                let at = reth.emit(out);
                put32(out, at, *imm)
            }
            Ext::Atomic(atomic) => {
                put64(out, 0, atomic.va);
                put32(out, 8, atomic.rkey.0);
                put64(out, 12, atomic.swap_or_add);
                put64(out, 20, atomic.compare)
            }
            Ext::Aeth(aeth) => aeth.emit(out),
            Ext::AtomicAck(aeth, original) => {
                let at = aeth.emit(out);
                put64(out, at, *original)
            }
            Ext::Deth(deth) => deth.emit(out),
            Ext::DethImm(deth, imm) => {
                let at = deth.emit(out);
                put32(out, at, *imm)
            }
            Ext::Reserved => {
                out[..RESERVED_LEN].fill(0);
                RESERVED_LEN
            }
        };
        assert_eq!(len, Ext::len_of(opcode), "{self:?} does not belong to {opcode:?}");
        len
    }

    /// The remote memory named, if any.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        match self {
            Ext::Reth(reth) | Ext::RethImm(reth, _) => Some(*reth),
            _ => None,
        }
    }

    /// How the request fared, if this is a response that says so.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        match self {
            Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => Some(*aeth),
            _ => None,
        }
    }

    /// The immediate data, if any.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        match self {
            Ext::Imm(imm) | Ext::RethImm(_, imm) | Ext::DethImm(_, imm) => Some(*imm),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn sample(opcode: Opcode) -> Ext {
        Ext::parse(opcode, &(0x61..0x61 + Ext::len_of(opcode) as u8).collect::<Vec<_>>())
    }
}

impl Reth {
    #[inline]
    fn emit(&self, out: &mut [u8]) -> usize {
        put64(out, 0, self.va);
        put32(out, 8, self.rkey.0);
        put32(out, 12, self.len)
    }
}

impl Aeth {
    #[inline]
    fn emit(&self, out: &mut [u8]) -> usize {
        put32(out, 0, u32::from(self.syndrome.emit()) << 24 | self.msn & 0x00ff_ffff)
    }
}

impl Deth {
    #[inline]
    fn emit(&self, out: &mut [u8]) -> usize {
        put32(out, 0, self.qkey);
        put32(out, 4, self.src_qp.0 & 0x00ff_ffff)
    }
}

#[inline]
fn put32(out: &mut [u8], at: usize, value: u32) -> usize {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
    at + 4
}

#[inline]
fn put64(out: &mut [u8], at: usize, value: u64) -> usize {
    out[at..at + 8].copy_from_slice(&value.to_be_bytes());
    at + 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::parse(byte).emit(), byte);
        }
        assert_eq!(Syndrome::parse(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::parse(0x2c), Syndrome::RnrNak { timer: 12 });
        assert_eq!(Syndrome::parse(0x62), Syndrome::Nak(Nak::RemoteAccess));
        assert_eq!(Syndrome::parse(0x64), Syndrome::Reserved(0x64));
        assert_eq!(Syndrome::parse(0x40), Syndrome::Reserved(0x40));
    }
}
