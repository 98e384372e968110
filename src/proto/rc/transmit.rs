//! A packet to send, from its BTH on.

use super::wr::{Sge, Sges, slice_into};
use crate::wire::icrc;
use crate::wire::roce::{BTH_LEN, HEADERS_MAX, Opcode, Repr, Syndrome};

/// A packet to send: headers as bytes, payload by address. What comes before (UDP, IP, Ethernet) and the ICRC behind are the
/// wire's, which may gather header, payload and tail as descriptors, or copy them into one frame.
///
/// It is made in place. Moved, right after it was made, it would be read in wider pieces than it was written in: a processor waits with
/// that until all that was written before, payloads too, has left its store buffer.
#[derive(Clone, Debug)]
pub struct Transmit {
    header: [u8; HEADERS_MAX],
    header_len: u8,
    payload_len: u32,
    spans: Sges,
}

/// Room for a packet.
impl Default for Transmit {
    #[inline]
    fn default() -> Transmit {
        Transmit { header: [0; HEADERS_MAX], header_len: 0, payload_len: 0, spans: Sges::new() }
    }
}

impl Transmit {
    /// A packet whose payload these pieces are.
    pub(in crate::proto) fn new(repr: &Repr, spans: &[Sge]) -> Transmit {
        let mut transmit = Transmit::default();
        transmit.set(repr, spans, 0);
        transmit
    }

    /// Makes it a packet with these headers, whose payload is in these pieces of a message, from byte `offset` on.
    #[inline]
    pub(in crate::proto) fn set(&mut self, repr: &Repr, sges: &[Sge], offset: u32) {
        self.header_len = repr.emit(&mut self.header) as u8;
        self.payload_len = repr.payload_len;
        self.spans.clear();
        slice_into(sges, offset, repr.payload_len, &mut self.spans);
        debug_assert_eq!(self.spans.iter().map(|span| span.len).sum::<u32>(), repr.payload_len);
    }

    /// BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// Whether it only says that what came was executed, and nothing that is to be acted upon.
    #[inline]
    pub fn is_plain_acknowledgement(&self) -> bool {
        self.header[0] == Opcode::RcAcknowledge as u8 && matches!(Syndrome::parse(self.header[BTH_LEN]), Syndrome::Ack { .. })
    }

    /// Where the payload lies, in order; none for a packet without.
    #[inline]
    pub fn spans(&self) -> &[Sge] {
        &self.spans
    }

    /// Payload bytes: the sum of the spans.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        self.payload_len
    }

    /// Zero bytes to put between payload and ICRC, 0 to 3.
    #[inline]
    pub fn pad(&self) -> u32 {
        self.payload_len.wrapping_neg() & 3
    }

    /// Bytes of the UDP payload: header, payload, pad and ICRC.
    #[inline]
    pub fn packet_len(&self) -> usize {
        usize::from(self.header_len) + (self.payload_len + self.pad()) as usize + icrc::LEN
    }
}
