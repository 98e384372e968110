//! The line by which `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` (rdma-core, libibverbs/examples) tell each other their
//! ends.
//!
//! `%04x:%06x:%06x:%s` with a NUL, 52 bytes (`sizeof "0000:000000:000000:0000…"` in rc_pingpong.c): LID, QPN, PSN, and the GID as
//! 32 hexadecimal digits. The server answers in kind,
//! then the client sends `done` with a NUL.

use std::net::{IpAddr, Ipv6Addr};

use super::hex;
use crate::base::{Psn, Qpn};
use crate::wire::Malformed;

/// Bytes of the line, its NUL included.
pub const LEN: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
/// The Q_Key of `ibv_ud_pingpong`, and of perftest's datagrams.
pub const QKEY: u32 = 0x1111_1111;
/// What the client sends when its queue pair is up.
pub const DONE: [u8; 5] = *b"done\0";

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Local identifier: 0 on Ethernet.
    pub lid: u16,
    /// The queue pair.
    pub qpn: Qpn,
    /// The PSN of the first packet this end will send.
    pub psn: Psn,
    /// Global identifier: an IPv6 address, or an IPv4 address mapped into one.
    pub gid: Ipv6Addr,
}

impl Line {
    /// The address to send to.
    pub fn address(&self) -> IpAddr {
        self.gid.to_canonical()
    }

    /// The line's bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let text = format!("{:04x}:{:06x}:{:06x}:{:032x}\0", self.lid, self.qpn.0 & 0x00ff_ffff, self.psn.get(), self.gid.to_bits());
        let mut line = [0; LEN];
        line.copy_from_slice(text.as_bytes());
        line
    }

    /// Reads a line. Exactly the shape above: no spaces, no signs, no shortened numbers.
    pub fn parse(line: &[u8; LEN]) -> Result<Line, Malformed> {
        if [line[4], line[11], line[18], line[51]] != *b":::\0" {
            return Err(Malformed::Field);
        }
        Ok(Line {
            lid: hex(&line[..4])? as u16,
            qpn: Qpn(hex(&line[5..11])? as u32),
            psn: Psn::new(hex(&line[12..18])? as u32),
            gid: Ipv6Addr::from_bits(hex(&line[19..51])?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_stock_client() {
        let text = b"0000:000011:c7d3d6:00000000000000000000ffffc0a84d02\0";
        let line = Line::parse(text).unwrap();
        assert_eq!((line.lid, line.qpn, line.psn), (0, Qpn(0x11), Psn::new(0xc7d3d6)));
        assert_eq!(line.address(), "192.168.77.2".parse::<IpAddr>().unwrap());
        assert_eq!(line.encode(), *text);
    }

    #[test]
    fn every_damaged_byte_is_refused() {
        let good = Line { lid: 1, qpn: Qpn(2), psn: Psn::new(3), gid: Ipv6Addr::LOCALHOST }.encode();
        for at in 0..LEN {
            for byte in *b"+ -gx\n\xff" {
                let mut bad = good;
                bad[at] = byte;
                assert_eq!(Line::parse(&bad), Err(Malformed::Field), "byte {at} = {byte:#x}");
            }
        }
    }
}
