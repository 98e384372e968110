//! `x-amz-rdma-token`: how a client names its memory, and the end of a queue pair, in a field of HTTP.
//!
//! | form | who sends it |
//! | --- | --- |
//! | `rc:<session>:<address>:<size>:<rkey>` | clients with a queue pair that was connected before: [`Token::Session`] |
//! | `addr16:size8:rkey8:lid4:dctn6:has_gid1:gid32` | cuObject, over DC: [`Token::Dc`] |
//! | 88 digits | hipObject: [`Endpoint`], which is also how ends of queue pairs are told |

use std::fmt;
use std::net::Ipv6Addr;

use super::Memory;
use crate::base::{Psn, Qpn};
use crate::wire::{Malformed, bytes_at};

/// Digits of cuObject's token.
const DC_DIGITS: usize = 81;
/// What older clients of cuObject put behind it: `:addr16:size16`.
const DC_TAIL: usize = 34;
/// Bytes of hipObject's token.
const ENDPOINT_BYTES: usize = 44;
/// Its digits.
pub const ENDPOINT_DIGITS: usize = 2 * ENDPOINT_BYTES;
/// Queue pair numbers have 24 bits.
const QPN_MASK: u32 = 0x00ff_ffff;

/// A session between a client's queue pair and one of ours. Whoever knows it can use it: it does not show itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub u128);

impl SessionId {
    /// Reads 32 digits.
    ///
    /// # Errors
    /// They are none.
    pub fn parse(text: &str) -> Result<SessionId, Malformed> {
        if text.len() != 32 {
            return Err(Malformed::Length);
        }
        digits(text, 32).map(SessionId)
    }

    /// Its 32 digits, for the one it belongs to.
    pub fn encode(self) -> String {
        format!("{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(..)")
    }
}

/// What a token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Memory behind a queue pair that is connected.
    Session {
        /// The session of that queue pair.
        session: SessionId,
        /// The memory.
        memory: Memory,
    },
    /// Memory behind a dynamically connected transport, which only Mellanox's devices have.
    Dc(Memory),
    /// Memory behind a queue pair that is still to be connected.
    Endpoint(Endpoint),
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// It is none that is known.
    pub fn parse(text: &str) -> Result<Token, Malformed> {
        let text = text.strip_suffix(';').unwrap_or(text);
        if let Some(rest) = text.strip_prefix("rc:") {
            let [session, address, bytes, rkey] = fields(rest)?;
            let memory = Memory { address: number(address, 16)?, bytes: number(bytes, 16)?, rkey: number(rkey, 8)? as u32 };
            return Ok(Token::Session { session: SessionId::parse(session)?, memory: addressable(memory)? });
        }
        match text.len() {
            ENDPOINT_DIGITS => Endpoint::parse(text).map(Token::Endpoint),
            DC_DIGITS => dc(text).map(Token::Dc),
            length if length == DC_DIGITS + DC_TAIL => {
                let (front, tail) = text.split_at_checked(DC_DIGITS).ok_or(Malformed::Field)?;
                let whole = dc(front)?;
                let [address, bytes] = fields(tail.strip_prefix(':').ok_or(Malformed::Field)?)?;
                let memory = Memory { address: exact(address, 16)?, bytes: exact(bytes, 16)?, rkey: whole.rkey };
                // The operation's memory is part of what the client has registered.
                let offset = memory.address.checked_sub(whole.address).ok_or(Malformed::Length)?;
                match offset.checked_add(memory.bytes) {
                    Some(end) if end <= whole.bytes => Ok(Token::Dc(memory)),
                    _ => Err(Malformed::Length),
                }
            }
            _ => Err(Malformed::Length),
        }
    }
}

/// `addr16:size8:rkey8:lid4:dctn6:has_gid1:gid32`.
fn dc(text: &str) -> Result<Memory, Malformed> {
    let [address, bytes, rkey, lid, dctn, has_gid, gid] = fields(text)?;
    exact(lid, 4)?;
    exact(dctn, 6)?;
    if !matches!(has_gid, "0" | "1") || gid.len() != 32 {
        return Err(Malformed::Field);
    }
    digits(gid, 32)?;
    addressable(Memory { address: exact(address, 16)?, bytes: exact(bytes, 8)?, rkey: exact(rkey, 8)? as u32 })
}

fn addressable(memory: Memory) -> Result<Memory, Malformed> {
    if memory.is_addressable() { Ok(memory) } else { Err(Malformed::Length) }
}

/// Exactly so many fields between colons.
fn fields<const N: usize>(text: &str) -> Result<[&str; N], Malformed> {
    let mut parts = text.split(':');
    let mut fields = [""; N];
    for field in &mut fields {
        *field = parts.next().ok_or(Malformed::Length)?;
    }
    if parts.next().is_some() { Err(Malformed::Length) } else { Ok(fields) }
}

/// A number in 1 to `most` hexadecimal digits of either case: no sign, no space.
fn digits(text: &str, most: usize) -> Result<u128, Malformed> {
    if text.is_empty() || text.len() > most {
        return Err(Malformed::Length);
    }
    text.chars().try_fold(0, |value, digit| Ok(value << 4 | u128::from(digit.to_digit(16).ok_or(Malformed::Field)?)))
}

/// A number in 1 to `most` hexadecimal digits of either case, 16 at most.
///
/// # Errors
/// It is none.
pub fn number(text: &str, most: usize) -> Result<u64, Malformed> {
    digits(text, most).map(|value| value as u64)
}

fn exact(text: &str, count: usize) -> Result<u64, Malformed> {
    if text.len() == count { number(text, count) } else { Err(Malformed::Length) }
}

/// A PSN in 6 digits, which is not zero.
///
/// # Errors
/// It is none.
pub fn parse_psn(text: &str) -> Result<Psn, Malformed> {
    match exact(text, 6)? {
        0 => Err(Malformed::Field),
        psn => Ok(Psn::new(psn as u32)),
    }
}

/// What a queue pair is reached over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Dynamically connected.
    Dc,
    /// A reliable connection.
    Rc,
}

/// The end of a queue pair, and memory behind it: hipObject's 44 bytes in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// What it is reached over.
    pub connection: Connection,
    /// The queue pair's number, of 24 bits.
    pub qpn: Qpn,
    /// Its port's address.
    pub gid: Ipv6Addr,
    /// Memory; of no bytes where an end alone is told.
    pub memory: Memory,
    /// The port's number.
    pub port: u8,
    /// The port's local identifier on InfiniBand.
    pub lid: u16,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?}, {}, {:?}, ..)", self.connection, self.gid, self.memory)
    }
}

impl Endpoint {
    /// Reads 88 digits of either case.
    ///
    /// # Errors
    /// They are none, or what they say cannot be.
    pub fn parse(text: &str) -> Result<Endpoint, Malformed> {
        if text.len() != ENDPOINT_DIGITS {
            return Err(Malformed::Length);
        }
        let mut bytes = [0; ENDPOINT_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
            *byte = (high.ok_or(Malformed::Field)? << 4 | low.ok_or(Malformed::Field)?) as u8;
        }
        let connection = match bytes[0] {
            0 => Connection::Dc,
            1 => Connection::Rc,
            _ => return Err(Malformed::Protocol),
        };
        let qpn = u32::from_le_bytes(bytes_at(&bytes, 1));
        if qpn > QPN_MASK {
            return Err(Malformed::Field);
        }
        let memory = Memory {
            rkey: u32::from_le_bytes(bytes_at(&bytes, 21)),
            address: u64::from_le_bytes(bytes_at(&bytes, 25)),
            bytes: u64::from_le_bytes(bytes_at(&bytes, 33)),
        };
        Ok(Endpoint {
            connection,
            qpn: Qpn(qpn),
            gid: Ipv6Addr::from(bytes_at::<16>(&bytes, 5)),
            memory: addressable(memory)?,
            port: bytes[41],
            lid: u16::from_le_bytes(bytes_at(&bytes, 42)),
        })
    }

    /// Its 88 digits.
    pub fn encode(&self) -> String {
        let mut bytes = [0; ENDPOINT_BYTES];
        bytes[0] = u8::from(self.connection == Connection::Rc);
        bytes[1..5].copy_from_slice(&self.qpn.0.to_le_bytes());
        bytes[5..21].copy_from_slice(&self.gid.octets());
        bytes[21..25].copy_from_slice(&self.memory.rkey.to_le_bytes());
        bytes[25..33].copy_from_slice(&self.memory.address.to_le_bytes());
        bytes[33..41].copy_from_slice(&self.memory.bytes.to_le_bytes());
        bytes[41] = self.port;
        bytes[42..].copy_from_slice(&self.lid.to_le_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn a_session_s_memory() {
        let text = format!("rc:{SESSION}:7f0012340000:100000:9Ab");
        let Token::Session { session, memory } = Token::parse(&text).unwrap() else { panic!("another token") };
        assert_eq!(session.encode(), SESSION);
        assert_eq!(memory, Memory { address: 0x7f00_1234_0000, bytes: 1 << 20, rkey: 0x9ab });
        assert_eq!(Token::parse(&format!("{text};")), Token::parse(&text));
    }

    #[test]
    fn cuobject_s() {
        let text = "00007f0000001000:00100000:0badcafe:0012:00abcd:1:fe80000000000000506b4b0300c26d0e";
        assert_eq!(text.len(), DC_DIGITS);
        let memory = Memory { address: 0x7f00_0000_1000, bytes: 1 << 20, rkey: 0x0bad_cafe };
        assert_eq!(Token::parse(text), Ok(Token::Dc(memory)));
        let part = format!("{text}:00007f0000002000:0000000000001000");
        assert_eq!(Token::parse(&part), Ok(Token::Dc(Memory { address: 0x7f00_0000_2000, bytes: 4096, ..memory })));
        for outside in ["00007f0000000fff:0000000000000001", "00007f0000001000:0000000000100001", "ffffffffffffffff:0000000000000001"] {
            assert_eq!(Token::parse(&format!("{text}:{outside}")), Err(Malformed::Length), "{outside}");
        }
    }

    #[test]
    fn hipobject_s() {
        let endpoint = Endpoint {
            connection: Connection::Rc,
            qpn: Qpn(0x12_3456),
            gid: "::ffff:192.0.2.1".parse().unwrap(),
            memory: Memory { address: 0x7f00_0000_1000, bytes: 1 << 20, rkey: 0x0bad_cafe },
            port: 1,
            lid: 0x0203,
        };
        // Written out by hand from the table in docs/S3-RDMA.md.
        let text = "015634120000000000000000000000ffffc0000201fecaad0b00100000007f00000000100000000000010302";
        assert_eq!((endpoint.encode().as_str(), Endpoint::parse(text)), (text, Ok(endpoint)));
        assert_eq!(Token::parse(&text.to_uppercase()), Ok(Token::Endpoint(endpoint)));
        let with = |at: usize, digits: &str| [&text[..at], digits, &text[at + digits.len()..]].concat();
        assert_eq!(Endpoint::parse(&with(0, "02")), Err(Malformed::Protocol));
        assert_eq!(Endpoint::parse(&with(8, "01")), Err(Malformed::Field));
        assert_eq!(Endpoint::parse(&with(50, "ffffffffffffffff")), Err(Malformed::Length));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for bad in [
            "",
            ";",
            "rc:",
            "rc:00:0:1:2",
            &format!("rc:{SESSION}:0:1"),
            &format!("rc:{SESSION}:0:1:2:3"),
            &format!("rc:{SESSION}::1:2"),
            &format!("rc:{SESSION}:0:+1:2"),
            &format!("rc:{SESSION}:0: 1:2"),
            &format!("rc:{SESSION}:0:1:123456789"),
            &format!("rc:{SESSION}:ffffffffffffffff:2:1"),
            &format!("rc:{SESSION}x:0:1:2"),
            &"g".repeat(ENDPOINT_DIGITS),
            &"é".repeat(ENDPOINT_DIGITS / 2),
            &"0".repeat(DC_DIGITS),
            &format!("{}x", "é".repeat((DC_DIGITS + DC_TAIL) / 2)),
        ] {
            assert!(Token::parse(bad).is_err(), "{bad}");
        }
        assert!(parse_psn("000000").is_err() && parse_psn("0000001").is_err() && parse_psn("00 001").is_err());
        assert_eq!(parse_psn("00fFe1"), Ok(Psn::new(0xffe1)));
    }

    #[test]
    fn tokens_do_not_show_themselves() {
        let shown = format!("{:?}", Token::parse(&format!("rc:{SESSION}:7f0012340000:100000:9ab")).unwrap());
        assert!(!shown.contains("2233") && !shown.contains("1234") && !shown.to_lowercase().contains("9ab"), "{shown}");
    }
}
