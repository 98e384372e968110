//! Communication management datagrams: how RDMA programs find one another without TCP (InfiniBand specification chapter 12; with the
//! header of annex A11 that carries IP addresses, as `rdma_cm` uses it).
//!
//! ```text
//! MAD header 24 | message 232, its private data at the end        all big-endian, 256 bytes in a datagram to queue pair 1
//! ```
//!
//! A starting PSN is the one the *receiver* of the message begins to send with.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{Malformed, be16, be32, be64, bytes_at};
use crate::base::{Psn, Qpn};

/// Bytes of a management datagram.
pub const LEN: usize = 256;
/// The queue pair they are for.
pub const QPN: Qpn = Qpn(1);
/// Its well-known Q_Key.
pub const QKEY: u32 = 0x8001_0000;
/// Of a REQ's private data the first 36 bytes are the addresses; this is what a program has.
pub const REQUEST_DATA_MAX: usize = 92 - ADDRESSES_LEN;
/// Private data of a REP.
pub const REPLY_DATA_MAX: usize = 196;
/// RDMA over TCP ports: service ids of this prefix end with the port (annex A11).
const SERVICE_TCP: u64 = 0x0000_0000_0106_0000;

const HEADER_LEN: usize = 24;
const ADDRESSES_LEN: usize = 36;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// Why a connection was refused (table 108): those that are sent or told apart here.
pub mod reason {
    /// Nobody listens at that service id.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The transport is not spoken here.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The program does not want it.
    pub const CONSUMER: u16 = 28;

    /// In words, those that are met.
    pub fn describe(reason: u16) -> &'static str {
        match reason {
            1 => "it has no queue pair left",
            3 => "it has no resources left",
            4 => "it gave up waiting",
            6 => "it does not know the connection",
            INVALID_SERVICE_ID => "nobody listens at that port",
            INVALID_TRANSPORT => "it does not speak the transport",
            10 => "it has an old connection of that queue pair still",
            12..=19 => "it does not take that path",
            CONSUMER => "the program there does not want it",
            _ => "the InfiniBand specification's table 108 has the meaning",
        }
    }
}

/// A datagram: the transaction it belongs to, and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Chosen by who began; an answer repeats it.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// The messages of connection management that are spoken here. Communication ids name a connection: `local` is the sender's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for a connection.
    Request(Request),
    /// More time is asked for: the peer will answer.
    Wait {
        /// The sender's communication id.
        local: u32,
        /// The receiver's.
        remote: u32,
    },
    /// Refuses.
    Reject {
        /// The sender's communication id; 0 if it has none.
        local: u32,
        /// The receiver's.
        remote: u32,
        /// See [`reason`].
        reason: u16,
    },
    /// Agrees.
    Reply(Reply),
    /// Has heard the reply, and is ready.
    Ready {
        /// The sender's communication id.
        local: u32,
        /// The receiver's.
        remote: u32,
    },
    /// Ends the connection.
    Disconnect {
        /// The sender's communication id.
        local: u32,
        /// The receiver's.
        remote: u32,
        /// The receiver's queue pair.
        remote_qpn: Qpn,
    },
    /// Has heard that it ended.
    Disconnected {
        /// The sender's communication id.
        local: u32,
        /// The receiver's.
        remote: u32,
    },
}

/// A REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's communication id.
    pub local: u32,
    /// The port asked for.
    pub port: u16,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The PSN the receiver shall begin with.
    pub psn: Psn,
    /// READs and atomics the sender answers at once.
    pub responder_resources: u8,
    /// READs and atomics it wants to have under way.
    pub initiator_depth: u8,
    /// Transport service type: 0 is RC, 1 is UC.
    pub service: u8,
    /// The path MTU's code: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// Retries without an answer, 0 to 7.
    pub retries: u8,
    /// Retries without a receive, 0 to 7.
    pub rnr_retries: u8,
    /// The code of the ACK timeout, 5 bits.
    pub ack_timeout: u8,
    /// Who asks: its address, and a port that has no meaning here.
    pub from: SocketAddr,
    /// Whom: the address.
    pub to: IpAddr,
    /// The program's own, at most [`REQUEST_DATA_MAX`] bytes; as it arrives, padded with zeros to that.
    pub data: Vec<u8>,
}

/// A REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The sender's communication id.
    pub local: u32,
    /// The receiver's.
    pub remote: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The PSN the receiver shall begin with.
    pub psn: Psn,
    /// READs and atomics the sender answers at once.
    pub responder_resources: u8,
    /// READs and atomics it wants to have under way.
    pub initiator_depth: u8,
    /// Retries without a receive, 0 to 7.
    pub rnr_retries: u8,
    /// The program's own, at most [`REPLY_DATA_MAX`] bytes; as it arrives, padded with zeros to that.
    pub data: Vec<u8>,
}

impl Message {
    fn attribute(&self) -> u16 {
        match self {
            Message::Request(_) => 0x10,
            Message::Wait { .. } => 0x11,
            Message::Reject { .. } => 0x12,
            Message::Reply(_) => 0x13,
            Message::Ready { .. } => 0x14,
            Message::Disconnect { .. } => 0x15,
            Message::Disconnected { .. } => 0x16,
        }
    }
}

impl Mad {
    /// The datagram's bytes.
    ///
    /// # Panics
    /// When private data is longer than there is room for: whoever builds a message has looked.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&[1, CLASS, CLASS_VERSION, METHOD_SEND]);
        out[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        out[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        let body = &mut out[HEADER_LEN..];
        let ids = |body: &mut [u8], local: u32, remote: u32| {
            body[..4].copy_from_slice(&local.to_be_bytes());
            body[4..8].copy_from_slice(&remote.to_be_bytes());
        };
        match &self.message {
            Message::Request(request) => request.emit(body),
            Message::Reply(reply) => {
                ids(body, reply.local, reply.remote);
                put24(body, 12, reply.qpn.0);
                put24(body, 20, reply.psn.get());
                body[24] = reply.responder_resources;
                body[25] = reply.initiator_depth;
                // No end-to-end flow control, 4 ms to answer (15).
                body[26] = 15 << 3;
                body[27] = reply.rnr_retries << 5;
                body[36..36 + reply.data.len()].copy_from_slice(&reply.data);
            }
            Message::Ready { local, remote } | Message::Disconnected { local, remote } | Message::Wait { local, remote } => {
                ids(body, *local, *remote);
            }
            Message::Disconnect { local, remote, remote_qpn } => {
                ids(body, *local, *remote);
                put24(body, 8, remote_qpn.0);
            }
            Message::Reject { local, remote, reason } => {
                ids(body, *local, *remote);
                body[10..12].copy_from_slice(&reason.to_be_bytes());
            }
        }
        out
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// It is of another class or version (`Protocol`), a message not spoken here (`Opcode`), or has fields that cannot be.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Mad, Malformed> {
        if bytes[..4] != [1, CLASS, CLASS_VERSION, METHOD_SEND] {
            return Err(Malformed::Protocol);
        }
        let body = &bytes[HEADER_LEN..];
        let (local, remote) = (be32(body, 0), be32(body, 4));
        let message = match be16(bytes, 16) {
            0x10 => Message::Request(Request::parse(body)?),
            0x11 => Message::Wait { local, remote },
            0x12 => Message::Reject { local, remote, reason: be16(body, 10) },
            0x13 => Message::Reply(Reply {
                local,
                remote,
                qpn: Qpn(be32(body, 12) >> 8),
                psn: Psn::new(be32(body, 20) >> 8),
                responder_resources: body[24],
                initiator_depth: body[25],
                rnr_retries: body[27] >> 5,
                data: body[36..36 + REPLY_DATA_MAX].to_vec(),
            }),
            0x14 => Message::Ready { local, remote },
            0x15 => Message::Disconnect { local, remote, remote_qpn: Qpn(be32(body, 8) >> 8) },
            0x16 => Message::Disconnected { local, remote },
            _ => return Err(Malformed::Opcode),
        };
        Ok(Mad { transaction: be64(bytes, 8), message })
    }
}

impl Request {
    fn emit(&self, body: &mut [u8]) {
        body[..4].copy_from_slice(&self.local.to_be_bytes());
        body[8..16].copy_from_slice(&(SERVICE_TCP | u64::from(self.port)).to_be_bytes());
        put24(body, 32, self.qpn.0);
        body[35] = self.responder_resources;
        body[39] = self.initiator_depth;
        // Times to answer of 4.096 µs · 2^20: 4 s.
        body[43] = 20 << 3 | (self.service & 3) << 1;
        put24(body, 44, self.psn.get());
        body[47] = 20 << 3 | self.retries & 7;
        body[48..50].copy_from_slice(&0xffffu16.to_be_bytes());
        body[50] = self.mtu << 4 | self.rnr_retries & 7;
        body[51] = 15 << 4;
        // Local identifiers as rdma_cm gives them on Ethernet.
        body[52..56].fill(0xff);
        body[56..72].copy_from_slice(&gid(self.from.ip()));
        body[72..88].copy_from_slice(&gid(self.to));
        // A packet rate of 10 Gb/s (3), a hop limit of 64, a subnet of its own, and the ACK timeout.
        body[91] = 3;
        body[93] = 64;
        body[94] = 8;
        body[95] = self.ack_timeout << 3;
        let data = &mut body[140..232];
        data[1] = if self.from.is_ipv4() { 0x40 } else { 0x60 };
        data[2..4].copy_from_slice(&self.from.port().to_be_bytes());
        put_address(&mut data[4..20], self.from.ip());
        put_address(&mut data[20..36], self.to);
        data[ADDRESSES_LEN..ADDRESSES_LEN + self.data.len()].copy_from_slice(&self.data);
    }

    fn parse(body: &[u8]) -> Result<Request, Malformed> {
        let service_id = be64(body, 8);
        if service_id & !0xffff != SERVICE_TCP {
            return Err(Malformed::Field);
        }
        let data = &body[140..232];
        let address = |at: usize| -> Result<IpAddr, Malformed> {
            match data[1] >> 4 {
                4 => Ok(IpAddr::from(bytes_at::<4>(data, at + 12))),
                6 => Ok(IpAddr::from(bytes_at::<16>(data, at))),
                _ => Err(Malformed::Version),
            }
        };
        let mtu = body[50] >> 4;
        if data[0] != 0 || !(1..=5).contains(&mtu) {
            return Err(Malformed::Field);
        }
        Ok(Request {
            local: be32(body, 0),
            port: service_id as u16,
            qpn: Qpn(be32(body, 32) >> 8),
            psn: Psn::new(be32(body, 44) >> 8),
            responder_resources: body[35],
            initiator_depth: body[39],
            service: body[43] >> 1 & 3,
            mtu,
            retries: body[47] & 7,
            rnr_retries: body[50] & 7,
            ack_timeout: body[95] >> 3,
            from: SocketAddr::new(address(4)?, be16(data, 2)),
            to: address(20)?,
            data: data[ADDRESSES_LEN..].to_vec(),
        })
    }
}

fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
    .octets()
}

/// An address in sixteen bytes: an IPv4 one in the last four.
fn put_address(out: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => out[12..].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => out.copy_from_slice(&Ipv6Addr::octets(&v6)),
    }
}

fn put24(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(from: &str, to: &str) -> Request {
        Request {
            local: 0x1122_3344,
            port: 7174,
            qpn: Qpn(0x5001),
            psn: Psn::new(0xbeef),
            responder_resources: 4,
            initiator_depth: 3,
            service: 0,
            mtu: 5,
            retries: 7,
            rnr_retries: 6,
            ack_timeout: 17,
            from: SocketAddr::new(from.parse().unwrap(), 40000),
            to: to.parse().unwrap(),
            data: (0..REQUEST_DATA_MAX as u8).collect(),
        }
    }

    fn all() -> Vec<Message> {
        let (local, remote) = (0xaabb_ccdd, 0x1122_3344);
        let reply = Reply {
            local,
            remote,
            qpn: Qpn(0xabcdef),
            psn: Psn::new(0xfffffe),
            responder_resources: 1,
            initiator_depth: 2,
            rnr_retries: 7,
            data: (0..REPLY_DATA_MAX as u8).collect(),
        };
        vec![
            Message::Request(request("192.168.77.1", "192.168.77.2")),
            Message::Request(request("fd00::1", "fd00::2")),
            Message::Wait { local, remote },
            Message::Reject { local: 0, remote, reason: reason::CONSUMER },
            Message::Reply(reply),
            Message::Ready { local, remote },
            Message::Disconnect { local, remote, remote_qpn: Qpn(0x11) },
            Message::Disconnected { local, remote },
        ]
    }

    #[test]
    fn every_message_reads_back() {
        for message in all() {
            let mad = Mad { transaction: 0x0123_4567_89ab_cdef, message };
            assert_eq!(Mad::parse(&mad.encode()).as_ref(), Ok(&mad));
        }
    }

    /// The fields where a peer looks for them (InfiniBand specification 12.6.5, annex A11.3).
    #[test]
    fn a_request_byte_by_byte() {
        let bytes = Mad { transaction: 1, message: Message::Request(request("192.168.77.1", "192.168.77.2")) }.encode();
        assert_eq!(bytes[..24], [1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        let body = &bytes[24..];
        assert_eq!(body[8..16], [0, 0, 0, 0, 1, 6, 0x1c, 6]);
        assert_eq!((&body[32..36], &body[44..47]), (&[0, 0x50, 1, 4][..], &[0, 0xbe, 0xef][..]));
        assert_eq!((body[50], body[95]), (0x56, 17 << 3));
        assert_eq!(body[140..148], [0, 0x40, 0x9c, 0x40, 0, 0, 0, 0]);
        assert_eq!((&body[156..160], &body[172..176]), (&[192, 168, 77, 1][..], &[192, 168, 77, 2][..]));
    }

    #[test]
    fn what_is_no_message_of_ours_is_refused() {
        let good = Mad { transaction: 1, message: all().remove(0) }.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Mad::parse(&bytes).unwrap_err()
        };
        assert_eq!([with(0, 2), with(1, 3), with(2, 1), with(3, 1)], [Malformed::Protocol; 4]);
        assert_eq!(with(17, 0x17), Malformed::Opcode);
        assert_eq!([with(24 + 12, 2), with(24 + 50, 0x06), with(24 + 50, 0x66), with(24 + 140, 1)], [Malformed::Field; 4]);
        assert_eq!(with(24 + 141, 0x50), Malformed::Version);
    }
}
