//! Ethernet II frames, with one 802.1Q tag understood.

use std::fmt;

use super::{Malformed, be16, bytes_at};

/// Bytes of an untagged header.
pub const HEADER_LEN: usize = 14;
/// Bytes an 802.1Q tag adds.
pub const TAG_LEN: usize = 4;
/// EtherType of an 802.1Q tag (IEEE 802.1Q table 9-1).
const TYPE_VLAN: u16 = 0x8100;

/// A MAC address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True for group addresses, broadcast included.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EtherType {
    /// 0x0800
    Ipv4,
    /// 0x86dd
    Ipv6,
    /// 0x0806
    Arp,
    /// Any other; also a second tag.
    Other(u16),
}

impl From<u16> for EtherType {
    fn from(value: u16) -> EtherType {
        match value {
            0x0800 => EtherType::Ipv4,
            0x86dd => EtherType::Ipv6,
            0x0806 => EtherType::Arp,
            other => EtherType::Other(other),
        }
    }
}

impl From<EtherType> for u16 {
    fn from(value: EtherType) -> u16 {
        match value {
            EtherType::Ipv4 => 0x0800,
            EtherType::Ipv6 => 0x86dd,
            EtherType::Arp => 0x0806,
            EtherType::Other(other) => other,
        }
    }
}

/// A frame without its check sequence, its header known to be there.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A view on `bytes`, long enough for its header and tag.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let frame = Frame { bytes };
        if bytes.len() < HEADER_LEN || bytes.len() < frame.header_len() { Err(Malformed::Truncated) } else { Ok(frame) }
    }

    fn tagged(&self) -> bool {
        be16(self.bytes, 12) == TYPE_VLAN
    }

    /// Header bytes, tag included.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.tagged() { HEADER_LEN + TAG_LEN } else { HEADER_LEN }
    }

    /// What follows the header; link-layer padding may end it.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..]
    }
}

/// A frame header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// The type behind the tag, if there is one.
    pub ether_type: EtherType,
    /// The 802.1Q tag control information: priority 3 bits, drop eligible 1, VLAN identifier 12.
    pub vlan: Option<u16>,
}

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn parse(frame: &Frame<'_>) -> Repr {
        let tagged = frame.tagged();
        Repr {
            dst: Mac(bytes_at(frame.bytes, 0)),
            src: Mac(bytes_at(frame.bytes, 6)),
            ether_type: be16(frame.bytes, if tagged { 16 } else { 12 }).into(),
            vlan: tagged.then(|| be16(frame.bytes, 14)),
        }
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub const fn len(&self) -> usize {
        if self.vlan.is_some() { HEADER_LEN + TAG_LEN } else { HEADER_LEN }
    }

    /// Writes the header at the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        out[0..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        let mut at = 12;
        if let Some(tag) = self.vlan {
            out[12..14].copy_from_slice(&TYPE_VLAN.to_be_bytes());
            out[14..16].copy_from_slice(&tag.to_be_bytes());
            at = 16;
        }
        out[at..at + 2].copy_from_slice(&u16::from(self.ether_type).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tagged_and_untagged_round_trip() {
        for vlan in [None, Some(0x6005)] {
            let repr = Repr { dst: Mac::BROADCAST, src: Mac([2, 0, 0, 0, 0, 1]), ether_type: EtherType::Ipv6, vlan };
            let mut bytes = vec![0; repr.len() + 1];
            repr.emit(&mut bytes);
            let frame = Frame::new_checked(&bytes).unwrap();
            assert_eq!(Repr::parse(&frame), repr);
            assert_eq!(frame.payload().len(), 1);
            assert_eq!(Frame::new_checked(&bytes[..repr.len() - 1]).unwrap_err(), Malformed::Truncated);
        }
        assert_eq!(Mac([2, 0, 0, 0, 0, 0xab]).to_string(), "02:00:00:00:00:ab");
    }
}
