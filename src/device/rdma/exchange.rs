//! Our own handshake, without I/O: messages over a byte stream, before any queue pair is connected.
//!
//! ```text
//! magic "basin" | version 1 | kind 1 | reserved 1 | length 4, little-endian | body: JSON, at most 4 KiB
//! ```
//!
//! The body is whatever the caller's session needs, with a [`QpEndpoint`](super::QpEndpoint) for each queue pair. The peer is
//! not trusted: the length is judged before a byte of the body is kept, and nothing is kept beyond one message. The other
//! exchange, the line of `ibv_rc_pingpong`, is [`wire::native::pingpong`](crate::wire::native::pingpong).

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// The version both ends must speak.
pub const VERSION: u8 = 1;
/// Bytes of a body, at most: some tens of endpoints.
pub const BODY_MAX: usize = 4096;

const MAGIC: &[u8; 5] = b"basin";
const HEADER: usize = 12;

/// A message as bytes. `kind` tells the steps of a handshake apart.
///
/// # Errors
/// The body does not fit [`BODY_MAX`], or is no JSON value.
pub fn encode<T: Serialize>(kind: u8, body: &T) -> Result<Vec<u8>> {
    let body = serde_json::to_vec(body).map_err(|error| Error::new(ErrorKind::Usage, format!("encoding a handshake: {error}")))?;
    if body.len() > BODY_MAX {
        return Err(Error::new(ErrorKind::Usage, format!("a handshake of {} bytes: at most {BODY_MAX} fit", body.len()))
            .remedy("connect fewer queue pairs in one handshake"));
    }
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(MAGIC);
    message.extend_from_slice(&[VERSION, kind, 0]);
    message.extend_from_slice(&(body.len() as u32).to_le_bytes());
    message.extend_from_slice(&body);
    Ok(message)
}

/// Puts a stream together to messages.
#[derive(Debug, Default)]
pub struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// Nothing received yet.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Takes bytes from the stream, as many as belong to the current message; returns how many.
    ///
    /// # Errors
    /// What came is no message of this protocol and version.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<usize> {
        let before = bytes.len();
        let mut take = |held: &mut Vec<u8>, until: usize| {
            let count = until.saturating_sub(held.len()).min(bytes.len());
            held.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
        };
        take(&mut self.held, HEADER);
        let whole = self.whole()?;
        if let Some(whole) = whole {
            take(&mut self.held, whole);
        }
        Ok(before - bytes.len())
    }

    /// The message, once all of it came, when it is of the `kind` expected.
    ///
    /// # Errors
    /// It is of another kind or its body is not what is expected there.
    pub fn take<T: DeserializeOwned>(&mut self, kind: u8) -> Result<Option<T>> {
        let Some(whole) = self.whole()?.filter(|&whole| self.held.len() == whole) else { return Ok(None) };
        let held = std::mem::take(&mut self.held);
        if held[6] != kind {
            return Err(protocol(format!("a message of kind {} where {kind} was expected", held[6])));
        }
        serde_json::from_slice(&held[HEADER..whole]).map(Some).map_err(|error| protocol(format!("a body that does not parse: {error}")))
    }

    /// Bytes of the whole message, once its header is there and found good. What there is of a header is judged at once, so that
    /// a stranger's stream is refused at its first byte.
    fn whole(&self) -> Result<Option<usize>> {
        let held = &self.held;
        let known = held.len().min(MAGIC.len());
        if held[..known] != MAGIC[..known] {
            return Err(protocol("a stream that is not this protocol's".to_owned()).with_kind(ErrorKind::Protocol));
        }
        if let Some(&version) = held.get(5)
            && version != VERSION
        {
            return Err(protocol(format!("version {version}, this end speaks {VERSION}")).remedy("run the same release at both ends"));
        }
        if held.len() < HEADER {
            return Ok(None);
        }
        let length = u32::from_le_bytes([held[8], held[9], held[10], held[11]]) as usize;
        if length > BODY_MAX {
            return Err(protocol(format!("a body of {length} bytes, at most {BODY_MAX} are allowed")));
        }
        Ok(Some(HEADER + length))
    }
}

fn protocol(what: String) -> Error {
    Error::new(ErrorKind::Protocol, format!("handshake: the peer sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rdma::{QpEndpoint, Transport};

    fn endpoint() -> QpEndpoint {
        let address = Some("192.0.2.1:4791".parse().unwrap());
        QpEndpoint {
            transport: Transport::Rc,
            qpn: 0xabcdef,
            psn: 9,
            reads: 16,
            qkey: 0,
            link: None,
            address,
            mtu: 1024,
            is_port_fixed: false,
            fabric: None,
        }
    }

    #[test]
    fn messages_cross_a_stream_in_any_pieces() {
        let one = encode(1, &vec![endpoint(), endpoint()]).unwrap();
        let two = encode(2, &"ready").unwrap();
        let stream = [one, two].concat();
        for piece in 1..40 {
            let (mut decoder, mut got) = (Decoder::new(), Vec::new());
            for mut bytes in stream.chunks(piece) {
                while !bytes.is_empty() {
                    let count = decoder.push(bytes).unwrap();
                    bytes = &bytes[count..];
                    if got.is_empty() {
                        got.extend(decoder.take::<Vec<QpEndpoint>>(1).unwrap().into_iter().flatten());
                    } else if let Some(word) = decoder.take::<String>(2).unwrap() {
                        assert_eq!(word, "ready");
                        got.push(endpoint());
                    }
                }
            }
            assert_eq!(got, vec![endpoint(); 3], "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_not_the_protocol_is_refused_early() {
        let good = encode(1, &endpoint()).unwrap();
        let refusal = |bytes: &[u8]| {
            let mut decoder = Decoder::new();
            let taken = decoder.push(bytes).and_then(|_| decoder.take::<QpEndpoint>(1));
            taken.expect_err("refused")
        };
        assert_eq!(refusal(b"G").kind(), ErrorKind::Protocol);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(refusal(&with(5, 9)).to_string().contains("version 9"));
        assert!(refusal(&with(6, 7)).to_string().contains("kind 7"));
        assert!(refusal(&with(10, 1)).to_string().contains("at most 4096"));
        assert_eq!(refusal(&with(12, b'[')).kind(), ErrorKind::Protocol);
        assert_eq!(encode(1, &"x".repeat(5000)).unwrap_err().kind(), ErrorKind::Usage);
    }
}
