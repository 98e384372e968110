//! The head of a request: its first line and its fields.
//!
//! What may be read in two ways is refused, because a proxy in front of us may read it the other way and take one request for two
//! (RFC 9112, section 11.2): bare CR and LF, folded lines, space before a colon, more than one Content-Length, Content-Length beside
//! Transfer-Encoding, any coding but `chunked`, and more or fewer than one Host.

use std::fmt;
use std::mem::MaybeUninit;

use super::fields::{Control, Fields, Span, bounds};

/// Bytes of the longest head. S3 says 8 KiB for the fields of a PUT; queries of presigned requests and their tokens are longer.
pub const HEAD_MAX: usize = 32 << 10;
/// Fields in a head at most: S3 allows 2 KiB of metadata, which many have in short fields, and its clients send some 30 fields besides. As
/// many can be signed; while a head is parsed they take 8 KiB of the stack.
pub const HEADERS_MAX: usize = 256;

/// Why bytes are not a head that we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BadHead {
    /// Not the grammar of HTTP/1.
    #[error("not an HTTP/1.1 message")]
    Syntax,
    /// A line that ends in a bare LF, or an empty line that is not one.
    #[error("a line does not end in CRLF")]
    LineEnd,
    /// The request target is no path, no absolute address and not `*`.
    #[error("bad request target")]
    Target,
    /// A version that is not 1.0 or 1.1.
    #[error("unknown HTTP version")]
    Version,
    /// More than [`HEAD_MAX`] bytes.
    #[error("the header section is too long")]
    TooLong,
    /// More than [`HEADERS_MAX`] fields.
    #[error("too many header fields")]
    TooMany,
    /// No Host in HTTP/1.1, several, or one that names no host.
    #[error("missing, repeated or bad Host")]
    Host,
    /// A Content-Length that is no number, or more than one.
    #[error("bad or repeated Content-Length")]
    Length,
    /// A Transfer-Encoding other than `chunked`.
    #[error("a Transfer-Encoding other than chunked")]
    Coding,
    /// Transfer-Encoding beside Content-Length, repeated, or in HTTP/1.0.
    #[error("Transfer-Encoding where it may not be")]
    Framing,
}

impl BadHead {
    /// The status that says so (RFC 9110, RFC 6585), before the connection is closed. S3 has answers of its own for some.
    pub fn status(self) -> u16 {
        match self {
            BadHead::TooLong | BadHead::TooMany => 431,
            BadHead::Coding => 501,
            BadHead::Version => 505,
            _ => 400,
        }
    }
}

impl From<httparse::Error> for BadHead {
    fn from(error: httparse::Error) -> BadHead {
        match error {
            httparse::Error::TooManyHeaders => BadHead::TooMany,
            httparse::Error::Version => BadHead::Version,
            _ => BadHead::Syntax,
        }
    }
}

/// How a request's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// By Content-Length.
    Length(u64),
    /// By `Transfer-Encoding: chunked`.
    Chunked,
}

/// A request's head, with the bytes it came in.
#[derive(Clone)]
pub struct Head {
    fields: Fields,
    method: Span,
    target: Span,
    path: Span,
    query: Span,
    authority: Span,
    minor: u8,
    framing: Framing,
    keeps_alive: bool,
    expects_continue: bool,
}

impl Head {
    /// Parses the head at the front of `bytes`. `Ok(None)`: more bytes are needed. `Ok(Some((head, used)))`: `used` bytes of `bytes` were
    /// it, with the empty lines before it.
    ///
    /// # Errors
    /// When the bytes are no head or one that is refused. Where it ends is not known then: the connection is of no more use.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, BadHead> {
        let Some((start, end)) = bounds(bytes)? else {
            return Ok(None);
        };
        let bytes = &bytes[start..end];
        let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        if request.parse_with_uninit_headers(bytes, &mut room)? != httparse::Status::Complete(bytes.len()) {
            return Err(BadHead::Syntax);
        }
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
            return Err(BadHead::Syntax);
        };
        let control = Control::read(request.headers, minor)?;
        if control.hosts > 1 || (control.hosts == 0 && minor > 0) {
            return Err(BadHead::Host);
        }
        let target = Target::split(target).ok_or(BadHead::Target)?;
        let host = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host")).map_or(&b""[..], |header| header.value);
        let authority = target.authority.as_bytes();
        if !is_authority(host) || !is_authority(authority) {
            return Err(BadHead::Host);
        }
        let head = Head {
            method: Span::of(bytes, method.as_bytes()),
            target: Span::of(bytes, target.whole.as_bytes()),
            path: Span::of(bytes, target.path.as_bytes()),
            query: Span::of(bytes, target.query.as_bytes()),
            // An absolute target's authority holds against Host (RFC 9112, section 3.2.2).
            authority: Span::of(bytes, if authority.is_empty() { host } else { authority }),
            minor,
            framing: match (control.is_chunked, control.length) {
                (true, _) => Framing::Chunked,
                (false, Some(length)) => Framing::Length(length),
                (false, None) => Framing::None,
            },
            keeps_alive: control.keeps_alive,
            expects_continue: control.expects_continue,
            fields: Fields::new(bytes, request.headers),
        };
        Ok(Some((head, end)))
    }

    /// The method.
    pub fn method(&self) -> &str {
        self.method.text(self.fields.bytes())
    }

    /// The target as it was sent.
    pub fn target(&self) -> &str {
        self.target.text(self.fields.bytes())
    }

    /// The target's path, still percent-encoded; `/` where an absolute target has none. `*` is a path too.
    pub fn path(&self) -> &str {
        match self.path.text(self.fields.bytes()) {
            "" => "/",
            path => path,
        }
    }

    /// The target's query, still percent-encoded, without its `?`; empty if there is none.
    pub fn query(&self) -> &str {
        self.query.text(self.fields.bytes())
    }

    /// The host that is addressed, with the port if it was sent: an absolute target's, else that of Host; empty if neither says one.
    pub fn host(&self) -> &str {
        self.authority.text(self.fields.bytes())
    }

    /// The value of the first field of that name, in any case, without the space around it.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name)
    }

    /// The same if it is UTF-8, which ASCII is.
    pub fn text(&self, name: &str) -> Option<&str> {
        str::from_utf8(self.header(name)?).ok()
    }

    /// All fields in order, with their names as they were sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter()
    }

    /// The minor number of the version: 0 or 1. What speaks HTTP/1.0 is not answered in chunks.
    pub fn minor_version(&self) -> u8 {
        self.minor
    }

    /// Whether another request may follow on the connection.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// How the body is delimited.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether the client waits for `100 Continue` before it sends the body. Other expectations are ignored, as S3 does.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }
}

/// Neither the query nor the fields: both may carry credentials.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head").field("method", &self.method()).field("path", &self.path()).finish_non_exhaustive()
    }
}

/// A request target (RFC 9112, section 3.2).
struct Target<'a> {
    whole: &'a str,
    authority: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Target<'a> {
    fn split(whole: &'a str) -> Option<Target<'a>> {
        let (authority, rest) = match whole.as_bytes().first()? {
            b'/' => ("", whole),
            b'*' if whole.len() == 1 => ("", whole),
            _ => {
                let (scheme, rest) = whole.split_once("://")?;
                if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
                    return None;
                }
                let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                if authority.is_empty() {
                    return None;
                }
                (authority, rest)
            }
        };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        Some(Target { whole, authority, path, query })
    }
}

/// Whether it may be a host with a port (RFC 3986, section 3.2): no user, no path, nothing that ends either.
fn is_authority(host: &[u8]) -> bool {
    static AUTHORITY: [bool; 256] = super::alphanumeric_and(b"-._~:[]%!$&'()*+,;=");
    host.iter().all(|&byte| AUTHORITY[usize::from(byte)])
}

#[cfg(test)]
mod tests;
