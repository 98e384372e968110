//! What the programs of perftest (`ib_write_bw` and its kin) tell each other over TCP: fixed-size messages, each answered in kind
//! (linux-rdma/perftest, perftest_communication.c; version 6 of the exchange).
//!
//! | message | bytes |
//! | --- | --- |
//! | version | 16, text padded with NULs |
//! | cycle buffer, cache line | 4 each, big-endian |
//! | path MTU | 2: the digit of `enum ibv_mtu` and a NUL |
//! | [`Keys`] | 108 |
//! | a figure of the report | 8, big-endian: a count or an IEEE double |

use std::net::{IpAddr, Ipv6Addr};

use crate::base::{Psn, Qpn, Rkey};
use crate::wire::Malformed;

/// Bytes of the version message.
pub const VERSION_LEN: usize = 16;
/// The exchange spoken here, as Debian's perftest 4.5 does.
pub const VERSION: [u8; VERSION_LEN] = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Bytes of a [`Keys`] message: six numbers, 16 octets and one more number in hexadecimal, a colon behind each, and a NUL.
pub const KEYS_LEN: usize = 108;
/// What both ends write last.
pub const DONE: [u8; 5] = *b"done\0";

/// One end of a queue pair, and the memory it lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Local identifier: 0 on Ethernet.
    pub lid: u16,
    /// READs and atomics it answers at once.
    pub out_reads: u16,
    /// The queue pair.
    pub qpn: Qpn,
    /// The PSN of the first packet this end will send.
    pub psn: Psn,
    /// The key of the memory.
    pub rkey: Rkey,
    /// Its first byte.
    pub va: u64,
    /// Global identifier: an IPv6 address, or an IPv4 address mapped into one.
    pub gid: Ipv6Addr,
}

impl Keys {
    /// The address to send to.
    pub fn address(&self) -> IpAddr {
        self.gid.to_canonical()
    }

    /// The message's bytes.
    pub fn encode(&self) -> [u8; KEYS_LEN] {
        let Keys { lid, out_reads, qpn, psn, rkey, va, gid } = self;
        let mut text = format!("{lid:04x}:{out_reads:04x}:{:06x}:{:06x}:{:08x}:{va:016x}:", qpn.0 & 0x00ff_ffff, psn.get(), rkey.0);
        gid.octets().iter().for_each(|octet| text.push_str(&format!("{octet:02x}:")));
        // The number of a shared receive queue, for connection types not spoken here.
        text.push_str("00000000:\0");
        let mut message = [0; KEYS_LEN];
        message.copy_from_slice(text.as_bytes());
        message
    }

    /// Reads a message: exactly the shape above.
    pub fn parse(message: &[u8; KEYS_LEN]) -> Result<Keys, Malformed> {
        let mut fields = Fields(message);
        let (lid, out_reads) = (fields.take(4)? as u16, fields.take(4)? as u16);
        let (qpn, psn, rkey, va) = (fields.take(6)? as u32, fields.take(6)? as u32, fields.take(8)? as u32, fields.take(16)?);
        let mut gid = [0; 16];
        for octet in &mut gid {
            *octet = fields.take(2)? as u8;
        }
        fields.take(8)?;
        if fields.0 != b"\0" {
            return Err(Malformed::Field);
        }
        Ok(Keys { lid, out_reads, qpn: Qpn(qpn), psn: Psn::new(psn), rkey: Rkey(rkey), va, gid: Ipv6Addr::from(gid) })
    }
}

/// The rest of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The next number, of `digits` hexadecimal digits, and its colon.
    fn take(&mut self, digits: usize) -> Result<u64, Malformed> {
        let (number, rest) = self.0.split_at_checked(digits).ok_or(Malformed::Truncated)?;
        self.0 = rest.strip_prefix(b":").ok_or(Malformed::Field)?;
        super::hex(number).map(|number| number as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_a_stock_client_sends_them() {
        let text = b"0000:0001:000011:c7d3d6:00001234:00007f5c1a2b3000:00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:4d:02:00000000:\0";
        let keys = Keys::parse(text).unwrap();
        assert_eq!((keys.out_reads, keys.qpn, keys.psn), (1, Qpn(0x11), Psn::new(0xc7d3d6)));
        assert_eq!((keys.rkey, keys.va), (Rkey(0x1234), 0x7f5c_1a2b_3000));
        assert_eq!(keys.address(), "192.168.77.2".parse::<IpAddr>().unwrap());
        assert_eq!(keys.encode(), *text);
    }

    #[test]
    fn every_damaged_byte_is_refused() {
        let gid = Ipv6Addr::LOCALHOST;
        let good = Keys { lid: 1, out_reads: 2, qpn: Qpn(3), psn: Psn::new(4), rkey: Rkey(5), va: 6, gid }.encode();
        for at in 0..KEYS_LEN {
            for byte in *b"+ -gx\n\xff" {
                let mut bad = good;
                bad[at] = byte;
                assert_eq!(Keys::parse(&bad), Err(Malformed::Field), "byte {at} = {byte:#x}");
            }
        }
    }
}
