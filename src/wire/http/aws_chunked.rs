//! `Content-Encoding: aws-chunked`: S3's own chunks inside a body, each signed or none, with trailers that say a checksum.
//!
//! ```text
//! size;chunk-signature=hex CRLF payload CRLF        as often as there is payload
//! 0;chunk-signature=hex CRLF                        without signatures: size CRLF payload CRLF, 0 CRLF
//! x-amz-checksum-crc32c:sOO8/Q== CRLF
//! x-amz-trailer-signature:hex CRLF                  if signed
//! CRLF
//! ```
//!
//! See "Signature calculations for the Authorization header: transferring payload in multiple chunks" and "including trailing headers" in
//! the S3 API reference. Signatures are reported, not judged: that needs the key, and the payload's hash.

use super::body::{BadBody, Step, Wants};
use super::chunked::{CHUNK_LINE_MAX, Excess, TRAILERS_MAX, field, size, write_hex};
use super::is_field_value;
use super::line::{BadLine, Line};

/// Bytes of the smallest chunk that is not the last of the payload: S3 refuses less with `InvalidChunkSizeError`.
pub const CHUNK_MIN: u64 = 8192;

/// A SigV4 signature: an HMAC-SHA256.
pub type Signature = [u8; 32];

/// What of aws-chunked is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each chunk. There are no trailers.
    Signed,
    /// Each chunk, and the trailers.
    SignedTrailer,
    /// Nothing.
    UnsignedTrailer,
}

impl Mode {
    /// What a value of `x-amz-content-sha256` says; `None` if the body is not aws-chunked, or signed otherwise than by SigV4.
    pub fn of_content_sha256(value: &str) -> Option<Mode> {
        match value {
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Some(Mode::Signed),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Some(Mode::SignedTrailer),
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Some(Mode::UnsignedTrailer),
            _ => None,
        }
    }

    fn is_signed(self) -> bool {
        self != Mode::UnsignedTrailer
    }
}

/// What was found in the framing. All payload between a `Chunk` and its `ChunkEnd` is that chunk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A chunk begins.
    Chunk {
        /// Bytes of payload in it: more than none.
        size: u64,
        /// Its signature, if chunks are signed.
        signature: Option<Signature>,
    },
    /// All of the chunk has come: its signature can be checked.
    ChunkEnd,
    /// The last chunk, which is empty. No `ChunkEnd` follows, but trailers may.
    Last {
        /// Its signature, if chunks are signed: it is to be checked too.
        signature: Option<Signature>,
    },
}

/// The fields behind the last chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    text: String,
    signature: Option<Signature>,
}

impl Trailers {
    /// The fields in order as `name:value\n`, names in lower case: the text whose hash is signed.
    pub fn as_signed(&self) -> &str {
        &self.text
    }

    /// The fields in order, names in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.lines().filter_map(|line| line.split_once(':'))
    }

    /// The value of the first field of that name, which is in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        Some(self.iter().find(|field| field.0 == name)?.1)
    }

    /// The value of `x-amz-trailer-signature`, which is not among the fields. Signed trailers that have ended have one.
    pub fn signature(&self) -> Option<&Signature> {
        self.signature.as_ref()
    }

    /// Takes a line. With CRLF already taken from it there may still be LFs in it: the S3 API reference ends each trailer with LF and all
    /// of them with CRLF, and there are clients that do the same.
    fn take(&mut self, line: &[u8], mode: Mode) -> Result<(), BadBody> {
        for line in line.strip_suffix(b"\n").unwrap_or(line).split(|&byte| byte == b'\n') {
            // The signature is the last of them.
            if mode == Mode::Signed || self.signature.is_some() {
                return Err(BadBody::Trailer);
            }
            let (name, value) = field(line).ok_or(BadBody::Trailer)?;
            let (Ok(name), Ok(value)) = (str::from_utf8(name), str::from_utf8(value)) else {
                return Err(BadBody::Trailer);
            };
            if name.eq_ignore_ascii_case(TRAILER_SIGNATURE) {
                if !mode.is_signed() {
                    return Err(BadBody::Trailer);
                }
                self.signature = Some(signature(value.as_bytes()).ok_or(BadBody::Trailer)?);
                continue;
            }
            if self.text.len() + name.len() + value.len() + 2 > TRAILERS_MAX {
                return Err(BadBody::TooLong);
            }
            self.text.extend(name.chars().map(|letter| letter.to_ascii_lowercase()).chain([':']));
            self.text.push_str(value);
            self.text.push('\n');
        }
        Ok(())
    }
}

const CHUNK_SIGNATURE: &str = ";chunk-signature=";
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

/// A signature from its 64 hexadecimal digits.
fn signature(digits: &[u8]) -> Option<Signature> {
    let mut signature = [0; 32];
    (base16ct::mixed::decode(digits, &mut signature).ok()?.len() == 32).then_some(signature)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    End,
}

/// An aws-chunked stream being received.
#[derive(Clone, Debug)]
pub struct AwsChunked {
    line: Line,
    state: State,
    mode: Mode,
    excess: Excess,
    /// Chunks that began.
    chunks: u64,
    /// The size of the one that began last.
    size: u64,
    trailers: Trailers,
}

impl AwsChunked {
    /// A stream of which nothing has come.
    pub fn new(mode: Mode) -> AwsChunked {
        AwsChunked {
            line: Line::default(),
            state: State::Size,
            mode,
            excess: Excess::default(),
            chunks: 0,
            size: CHUNK_MIN,
            trailers: Trailers::default(),
        }
    }

    /// What comes next.
    pub fn wants(&self) -> Wants {
        match self.state {
            State::Data(left) => Wants::Data(left),
            State::End => Wants::End,
            State::Size | State::DataEnd | State::Trailers => Wants::Line,
        }
    }

    /// Takes the framing at the front of `bytes`, up to something that is found, to payload or to the end. A call that finds nothing while
    /// the stream still wants a line has taken all bytes.
    ///
    /// # Errors
    /// When it is malformed. The decoder is of no more use then.
    pub fn framing(&mut self, bytes: &[u8]) -> Result<Step, BadBody> {
        let mut used = 0;
        while self.wants() == Wants::Line && used < bytes.len() {
            let rest = &bytes[used..];
            let (taken, found) = match self.state {
                State::Size => self.begin(rest)?,
                State::DataEnd => {
                    let (taken, line) = self.line.take(rest, 0).map_err(|_| BadBody::Chunk)?;
                    let found = line.map(|_| Found::ChunkEnd);
                    if found.is_some() {
                        self.state = State::Size;
                    }
                    (taken, found)
                }
                State::Trailers => (self.trailer(rest)?, None),
                State::Data(_) | State::End => break,
            };
            used += taken;
            if found.is_some() {
                return Ok(Step { used, found });
            }
        }
        Ok(Step { used, found: None })
    }

    /// Takes the line that a chunk begins with.
    fn begin(&mut self, bytes: &[u8]) -> Result<(usize, Option<Found>), BadBody> {
        let (taken, line) = self.line.take(bytes, CHUNK_LINE_MAX)?;
        let Some(line) = line else {
            return Ok((taken, None));
        };
        let (size, extension) = size(line).ok_or(BadBody::Chunk)?;
        let signature = if self.mode.is_signed() {
            let digits = extension.strip_prefix(CHUNK_SIGNATURE.as_bytes()).ok_or(BadBody::Chunk)?;
            Some(signature(digits).ok_or(BadBody::Signature)?)
        } else {
            // Extensions of no meaning are ignored (RFC 9112, section 7.1.1).
            let is_good = extension.is_empty() || (extension[0] == b';' && is_field_value(extension));
            if !is_good {
                return Err(BadBody::Chunk);
            }
            None
        };
        self.chunks += 1;
        if size == 0 {
            self.state = State::Trailers;
            return Ok((taken, Some(Found::Last { signature })));
        }
        if self.size < CHUNK_MIN {
            return Err(BadBody::SmallChunk { chunk: self.chunks, size: self.size });
        }
        self.excess.count(line.len() + 2, size)?;
        self.size = size;
        self.state = State::Data(size);
        Ok((taken, Some(Found::Chunk { size, signature })))
    }

    /// Takes of the lines behind the last chunk.
    fn trailer(&mut self, bytes: &[u8]) -> Result<usize, BadBody> {
        let (taken, line) = self.line.take(bytes, TRAILERS_MAX).map_err(|bad| match bad {
            BadLine::BareCr => BadBody::Trailer,
            BadLine::TooLong => BadBody::TooLong,
        })?;
        match line {
            None => {}
            Some([]) if self.mode == Mode::SignedTrailer && self.trailers.signature.is_none() => return Err(BadBody::Trailer),
            Some([]) => self.state = State::End,
            Some(line) => self.trailers.take(line, self.mode)?,
        }
        Ok(taken)
    }

    /// So many bytes of payload were taken.
    ///
    /// # Panics
    /// When it did not want that many: a bug of the caller's.
    pub fn data(&mut self, count: u64) {
        match self.state {
            State::Data(left) if count < left => self.state = State::Data(left - count),
            State::Data(left) if count == left => self.state = State::DataEnd,
            _ => assert!(count == 0, "{count} bytes of payload where {:?} is wanted", self.wants()),
        }
    }

    /// The trailers that have come: all of them when the stream has ended.
    pub fn trailers(&self) -> &Trailers {
        &self.trailers
    }
}

/// Writes the line before a chunk's payload; of the last chunk, with `size` 0, all of it. CRLF follows the payload of any other.
pub fn write_chunk(out: &mut Vec<u8>, size: u64, signature: Option<&Signature>) {
    write_hex(out, size);
    if let Some(signature) = signature {
        out.extend_from_slice(CHUNK_SIGNATURE.as_bytes());
        write_signature(out, signature);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the trailers and the end of the stream. Nothing is checked: the fields are the caller's own.
pub fn write_trailers(out: &mut Vec<u8>, fields: &[(&str, &str)], signature: Option<&Signature>) {
    for (name, value) in fields {
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if let Some(signature) = signature {
        out.extend_from_slice(TRAILER_SIGNATURE.as_bytes());
        out.push(b':');
        write_signature(out, signature);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

fn write_signature(out: &mut Vec<u8>, signature: &Signature) {
    let mut digits = [0; 64];
    out.extend_from_slice(base16ct::lower::encode(signature, &mut digits).expect("two digits for each byte"));
}

#[cfg(test)]
mod tests;
