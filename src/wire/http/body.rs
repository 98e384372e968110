//! A body in any framing that S3 has: none, by length, chunked, and aws-chunked in either.
//!
//! A body does not hold payload. Whoever drives it asks what it [wants](Body::wants): lines of framing, which it is [fed](Body::framing),
//! or payload, which goes to where it is to be and is only [counted](Body::data) here. Of the bytes it is fed it takes none that are
//! payload and none behind the body's end.

use super::answer::AnswerFraming;
use super::aws_chunked::{AwsChunked, Found, Mode, Trailers};
use super::chunked::Chunked;
use super::head::Framing;

/// What comes next in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Framing, in bytes of which it takes those that it needs.
    Line,
    /// So many bytes of payload, wherever they are put. They may be taken bit by bit.
    Data(u64),
    /// Nothing: the body has ended.
    End,
}

/// Why a body is not what its framing says. S3 answers each with status 400, but for the signature's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BadBody {
    /// It ends before its last chunk, or a chunk does not fit into it: S3's `IncompleteBody`.
    #[error("the body ended too early")]
    Incomplete,
    /// Not a chunk: S3 says `IncompleteBody` to this too.
    #[error("malformed chunk")]
    Chunk,
    /// Bytes behind the last chunk, within the Content-Length: `IncompleteBody` again.
    #[error("bytes behind the last chunk")]
    Excess,
    /// Lines that are longer than any that is needed: `IncompleteBody`, or `InvalidRequest`.
    #[error("too much framing")]
    TooLong,
    /// A chunk below [`CHUNK_MIN`](super::aws_chunked::CHUNK_MIN) that is not the last: S3's `InvalidChunkSizeError`.
    #[error("chunk {chunk} follows one of {size} bytes: only the last may be so small")]
    SmallChunk {
        /// The number of the chunk that follows it, from 1. S3's error has it as `Chunk`.
        chunk: u64,
        /// The size of the small one. S3's error has it as `BadChunkSize`.
        size: u64,
    },
    /// A chunk's signature that is none: S3's `SignatureDoesNotMatch`, status 403.
    #[error("malformed chunk signature")]
    Signature,
    /// Trailers that are malformed, that may not be there, or whose signature is missing: S3's `MalformedTrailerError`.
    #[error("malformed trailer")]
    Trailer,
}

/// What came of feeding framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// So many bytes were taken.
    pub used: usize,
    /// What was found with the last of them. It is to be dealt with before the next call.
    pub found: Option<Found>,
}

#[derive(Clone, Debug)]
enum Outer {
    Length(u64),
    Chunked(Chunked),
    Close,
}

impl Outer {
    fn wants(&self) -> Wants {
        match self {
            Outer::Length(0) => Wants::End,
            Outer::Length(left) => Wants::Data(*left),
            Outer::Chunked(chunked) => chunked.wants(),
            Outer::Close => Wants::Data(u64::MAX),
        }
    }

    fn data(&mut self, count: u64) {
        match self {
            Outer::Length(left) => *left -= count,
            Outer::Chunked(chunked) => chunked.data(count),
            Outer::Close => {}
        }
    }
}

/// A body being received.
#[derive(Clone, Debug)]
pub struct Body {
    outer: Outer,
    /// aws-chunked, if the payload of `outer` is that.
    inner: Option<AwsChunked>,
    payload_bytes: u64,
}

/// Bytes behind the payload of a chunk at least: CRLF and the last chunk, `0` with two CRLF.
const BEHIND_CHUNK: u64 = 2 + 5;

impl Body {
    /// The body of a request with this framing, and aws-chunked in it if the request says so.
    ///
    /// # Errors
    /// `Incomplete` when the body is too short for any aws-chunked.
    pub fn new(framing: Framing, aws_chunked: Option<Mode>) -> Result<Body, BadBody> {
        let outer = match framing {
            Framing::None => Outer::Length(0),
            Framing::Length(length) => Outer::Length(length),
            Framing::Chunked => Outer::Chunked(Chunked::default()),
        };
        if aws_chunked.is_some() && outer.wants() == Wants::End {
            return Err(BadBody::Incomplete);
        }
        Ok(Body { outer, inner: aws_chunked.map(AwsChunked::new), payload_bytes: 0 })
    }

    /// The body of an answer.
    pub fn of_answer(framing: AnswerFraming) -> Body {
        let outer = match framing {
            AnswerFraming::None => Outer::Length(0),
            AnswerFraming::Length(length) => Outer::Length(length),
            AnswerFraming::Chunked => Outer::Chunked(Chunked::default()),
            AnswerFraming::Close => Outer::Close,
        };
        Body { outer, inner: None, payload_bytes: 0 }
    }

    /// What comes next. Of a body that the connection's end delimits it is data without end.
    pub fn wants(&self) -> Wants {
        let Some(inner) = &self.inner else {
            return self.outer.wants();
        };
        match (inner.wants(), self.outer.wants()) {
            (Wants::Data(inner), Wants::Data(outer)) => Wants::Data(inner.min(outer)),
            (Wants::End, Wants::End) => Wants::End,
            _ => Wants::Line,
        }
    }

    /// Takes the framing at the front of `bytes`, up to something that is found, to payload or to the end. A call that finds nothing while
    /// the body still wants a line has taken all bytes.
    ///
    /// # Errors
    /// When the framing is malformed. The body is of no more use then, nor is the connection.
    pub fn framing(&mut self, bytes: &[u8]) -> Result<Step, BadBody> {
        let Some(inner) = &mut self.inner else {
            return Ok(match &mut self.outer {
                Outer::Chunked(chunked) => Step { used: chunked.framing(bytes)?, found: None },
                Outer::Length(_) | Outer::Close => Step { used: 0, found: None },
            });
        };
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match (self.outer.wants(), inner.wants()) {
                (Wants::Data(_), Wants::Data(_)) | (Wants::End, Wants::End) => return Ok(Step { used, found: None }),
                (Wants::Data(_), Wants::End) => return Err(BadBody::Excess),
                (Wants::End, _) => return Err(BadBody::Incomplete),
                _ if rest.is_empty() => return Ok(Step { used, found: None }),
                (Wants::Line, _) => {
                    if let Outer::Chunked(chunked) = &mut self.outer {
                        used += chunked.framing(rest)?;
                    }
                }
                (Wants::Data(room), Wants::Line) => {
                    let within = usize::try_from(room).map_or(rest.len(), |room| rest.len().min(room));
                    let step = inner.framing(&rest[..within])?;
                    used += step.used;
                    self.outer.data(step.used as u64);
                    let Some(found) = step.found else {
                        continue;
                    };
                    if let Outer::Length(left) = self.outer {
                        // What can not be whole is refused now. When payload has come there may be nothing left to refuse it by.
                        let needed = match found {
                            Found::Chunk { size, .. } => size.saturating_add(BEHIND_CHUNK),
                            Found::ChunkEnd | Found::Last { .. } => 1,
                        };
                        if left < needed {
                            return Err(BadBody::Incomplete);
                        }
                    }
                    return Ok(Step { used, found: Some(found) });
                }
            }
        }
    }

    /// So many bytes of payload were taken.
    ///
    /// # Panics
    /// When it did not want that many: a bug of the caller's.
    pub fn data(&mut self, count: u64) {
        let wanted = matches!(self.wants(), Wants::Data(most) if count <= most);
        assert!(wanted || count == 0, "{count} bytes of payload where {:?} is wanted", self.wants());
        if count > 0 {
            self.outer.data(count);
            self.payload_bytes += count;
            if let Some(inner) = &mut self.inner {
                inner.data(count);
            }
        }
    }

    /// The connection will bring no more bytes.
    ///
    /// # Errors
    /// `Incomplete` when the body is not whole by that.
    pub fn closed(&self) -> Result<(), BadBody> {
        match (&self.outer, self.wants()) {
            (Outer::Close, _) | (_, Wants::End) => Ok(()),
            _ => Err(BadBody::Incomplete),
        }
    }

    /// Bytes of payload that were taken, to be compared with `x-amz-decoded-content-length`.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The trailers of aws-chunked: all of them when the body has ended.
    pub fn trailers(&self) -> Option<&Trailers> {
        self.inner.as_ref().map(AwsChunked::trailers)
    }
}

#[cfg(test)]
mod tests;
