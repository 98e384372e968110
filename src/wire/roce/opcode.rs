//! BTH opcodes: three bits of transport, five of operation (InfiniBand specification, table 38).

use crate::wire::Malformed;

/// The transport service an opcode belongs to: its upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection, 000.
    Rc,
    /// Unreliable connection, 001.
    Uc,
    /// Unreliable datagram, 011.
    Ud,
    /// Congestion notification, 100 (annex A17).
    Cnp,
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Data for a posted receive.
    Send,
    /// Data for granted memory.
    Write,
    /// A request for granted memory's contents.
    ReadRequest,
    /// An answer to it.
    ReadResponse,
    /// An acknowledgement, positive or negative.
    Acknowledge,
    /// An answer to an atomic.
    AtomicAcknowledge,
    /// Compare and swap of eight bytes.
    CompareSwap,
    /// Addition to eight bytes.
    FetchAdd,
    /// A congestion notification.
    Notification,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// Of several, the first.
    First,
    /// Neither first nor last.
    Middle,
    /// Of several, the last.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// True if a message begins with this packet.
    #[inline]
    pub const fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// True if a message ends with this packet.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

macro_rules! opcodes {
    ($($name:ident = $value:literal, $transport:ident, $operation:ident, $position:ident, [$($header:ident)*], $doc:literal;)*) => {
        /// An opcode some transport defines. `u8::from` and `Opcode::try_from` convert; unknown numbers fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $doc] $name = $value,)*
        }

        impl Opcode {
            /// Every opcode, in ascending order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            const fn properties(self) -> Properties {
                match self {
                    $(Opcode::$name => Properties {
                        transport: Transport::$transport,
                        operation: Operation::$operation,
                        position: Position::$position,
                        headers: 0 $(| $header)*,
                    },)*
                }
            }
        }
    };
}

// Which extension headers follow the BTH, in this order on the wire.
const DETH: u8 = 1;
const RETH: u8 = 2;
const ATOMIC: u8 = 4;
const AETH: u8 = 8;
const ATOMIC_ACK: u8 = 16;
const IMM: u8 = 32;
const IETH: u8 = 64;
const RESERVED: u8 = 128;

/// What follows from an opcode.
#[derive(Clone, Copy)]
struct Properties {
    transport: Transport,
    operation: Operation,
    position: Position,
    headers: u8,
}

opcodes! {
    RcSendFirst = 0x00, Rc, Send, First, [], "SEND first";
    RcSendMiddle = 0x01, Rc, Send, Middle, [], "SEND middle";
    RcSendLast = 0x02, Rc, Send, Last, [], "SEND last";
    RcSendLastImm = 0x03, Rc, Send, Last, [IMM], "SEND last with immediate";
    RcSendOnly = 0x04, Rc, Send, Only, [], "SEND only";
    RcSendOnlyImm = 0x05, Rc, Send, Only, [IMM], "SEND only with immediate";
    RcWriteFirst = 0x06, Rc, Write, First, [RETH], "RDMA WRITE first";
    RcWriteMiddle = 0x07, Rc, Write, Middle, [], "RDMA WRITE middle";
    RcWriteLast = 0x08, Rc, Write, Last, [], "RDMA WRITE last";
    RcWriteLastImm = 0x09, Rc, Write, Last, [IMM], "RDMA WRITE last with immediate";
    RcWriteOnly = 0x0a, Rc, Write, Only, [RETH], "RDMA WRITE only";
    RcWriteOnlyImm = 0x0b, Rc, Write, Only, [RETH IMM], "RDMA WRITE only with immediate";
    RcReadRequest = 0x0c, Rc, ReadRequest, Only, [RETH], "RDMA READ request";
    RcReadResponseFirst = 0x0d, Rc, ReadResponse, First, [AETH], "RDMA READ response first";
    RcReadResponseMiddle = 0x0e, Rc, ReadResponse, Middle, [], "RDMA READ response middle";
    RcReadResponseLast = 0x0f, Rc, ReadResponse, Last, [AETH], "RDMA READ response last";
    RcReadResponseOnly = 0x10, Rc, ReadResponse, Only, [AETH], "RDMA READ response only";
    RcAcknowledge = 0x11, Rc, Acknowledge, Only, [AETH], "Acknowledge";
    RcAtomicAcknowledge = 0x12, Rc, AtomicAcknowledge, Only, [AETH ATOMIC_ACK], "ATOMIC acknowledge";
    RcCompareSwap = 0x13, Rc, CompareSwap, Only, [ATOMIC], "Compare and swap";
    RcFetchAdd = 0x14, Rc, FetchAdd, Only, [ATOMIC], "Fetch and add";
    RcSendLastInvalidate = 0x16, Rc, Send, Last, [IETH], "SEND last with invalidate";
    RcSendOnlyInvalidate = 0x17, Rc, Send, Only, [IETH], "SEND only with invalidate";
    UcSendFirst = 0x20, Uc, Send, First, [], "SEND first";
    UcSendMiddle = 0x21, Uc, Send, Middle, [], "SEND middle";
    UcSendLast = 0x22, Uc, Send, Last, [], "SEND last";
    UcSendLastImm = 0x23, Uc, Send, Last, [IMM], "SEND last with immediate";
    UcSendOnly = 0x24, Uc, Send, Only, [], "SEND only";
    UcSendOnlyImm = 0x25, Uc, Send, Only, [IMM], "SEND only with immediate";
    UcWriteFirst = 0x26, Uc, Write, First, [RETH], "RDMA WRITE first";
    UcWriteMiddle = 0x27, Uc, Write, Middle, [], "RDMA WRITE middle";
    UcWriteLast = 0x28, Uc, Write, Last, [], "RDMA WRITE last";
    UcWriteLastImm = 0x29, Uc, Write, Last, [IMM], "RDMA WRITE last with immediate";
    UcWriteOnly = 0x2a, Uc, Write, Only, [RETH], "RDMA WRITE only";
    UcWriteOnlyImm = 0x2b, Uc, Write, Only, [RETH IMM], "RDMA WRITE only with immediate";
    UdSendOnly = 0x64, Ud, Send, Only, [DETH], "SEND only";
    UdSendOnlyImm = 0x65, Ud, Send, Only, [DETH IMM], "SEND only with immediate";
    Cnp = 0x81, Cnp, Notification, Only, [RESERVED], "Congestion notification: sixteen reserved bytes";
}

/// By opcode value, so that parsing is one load.
static KNOWN: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        table[Opcode::ALL[at] as usize] = Some(Opcode::ALL[at]);
        at += 1;
    }
    table
};

/// By opcode value; the entries of unknown ones are never read.
static PROPERTIES: [Properties; 256] = {
    let mut table = [Opcode::Cnp.properties(); 256];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        table[Opcode::ALL[at] as usize] = Opcode::ALL[at].properties();
        at += 1;
    }
    table
};

impl Opcode {
    #[inline]
    fn has(self, header: u8) -> bool {
        PROPERTIES[self as usize].headers & header != 0
    }

    /// The transport service it belongs to.
    #[inline]
    pub fn transport(self) -> Transport {
        PROPERTIES[self as usize].transport
    }

    /// What it asks for or answers.
    #[inline]
    pub fn operation(self) -> Operation {
        PROPERTIES[self as usize].operation
    }

    /// Where in its message the packet stands.
    #[inline]
    pub fn position(self) -> Position {
        PROPERTIES[self as usize].position
    }

    /// A datagram header (DETH) follows the BTH.
    #[inline]
    pub fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// An RDMA header (RETH) follows.
    #[inline]
    pub fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// An atomic header (AtomicETH) follows.
    #[inline]
    pub fn has_atomic(self) -> bool {
        self.has(ATOMIC)
    }

    /// An acknowledgement header (AETH) follows.
    #[inline]
    pub fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// An atomic answer (AtomicAckETH) follows the AETH.
    #[inline]
    pub fn has_atomic_ack(self) -> bool {
        self.has(ATOMIC_ACK)
    }

    /// Immediate data (ImmDt) comes last of the headers.
    #[inline]
    pub fn has_immediate(self) -> bool {
        self.has(IMM)
    }

    /// An invalidation header (IETH) comes last of the headers.
    #[inline]
    pub fn has_invalidate(self) -> bool {
        self.has(IETH)
    }

    /// Sixteen reserved bytes follow.
    #[inline]
    pub fn has_reserved(self) -> bool {
        self.has(RESERVED)
    }

    /// True for what a responder sends; a requester handles it.
    #[inline]
    pub fn is_response(self) -> bool {
        matches!(self.operation(), Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge)
    }
}

impl TryFrom<u8> for Opcode {
    type Error = Malformed;

    #[inline]
    fn try_from(value: u8) -> Result<Opcode, Malformed> {
        KNOWN[usize::from(value)].ok_or(Malformed::Opcode)
    }
}

impl From<Opcode> for u8 {
    #[inline]
    fn from(opcode: Opcode) -> u8 {
        opcode as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_one_opcode_or_none() {
        let known = (0..=255).filter_map(|value| Opcode::try_from(value).ok()).collect::<Vec<_>>();
        assert_eq!(known, Opcode::ALL);
        assert_eq!(known.len(), 23 + 12 + 2 + 1);
        for opcode in known {
            let transport = match u8::from(opcode) >> 5 {
                0 => Transport::Rc,
                1 => Transport::Uc,
                3 => Transport::Ud,
                _ => Transport::Cnp,
            };
            assert_eq!(opcode.transport(), transport, "{opcode:?}");
        }
        // 0x15 is reserved in RC, READ does not exist in UC, nor segments in UD; RD (010) and XRC (101) are not spoken here.
        for value in [0x15, 0x18, 0x2c, 0x31, 0x60, 0x61, 0x44, 0x80, 0xa4, 0xff] {
            assert_eq!(Opcode::try_from(value), Err(Malformed::Opcode));
        }
    }
}
