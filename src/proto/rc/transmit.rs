//! A packet to send, from its BTH on.

use super::wr::{Sge, Sges};
use crate::wire::icrc;
use crate::wire::roce::{HEADERS_MAX, Repr};

/// A packet to send: headers as bytes, payload by address. What comes before (UDP, IP, Ethernet) and the ICRC behind are the
/// wire's, which may gather header, payload and tail as descriptors, or copy them into one frame.
#[derive(Clone, Debug)]
pub struct Transmit {
    header: [u8; HEADERS_MAX],
    header_len: u8,
    payload_len: u32,
    spans: Sges,
}

impl Transmit {
    #[inline]
    pub(in crate::proto) fn new(repr: &Repr, spans: Sges) -> Transmit {
        let mut header = [0; HEADERS_MAX];
        let header_len = repr.emit(&mut header) as u8;
        debug_assert_eq!(spans.iter().map(|span| span.len).sum::<u32>(), repr.payload_len);
        Transmit { header, header_len, payload_len: repr.payload_len, spans }
    }

    /// BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
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
