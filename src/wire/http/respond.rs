//! The head of an answer, written into a buffer that its connection keeps: nothing is allocated once that has grown.

use super::is_field;

/// A name or a value that may not stand in a head: with a CR and LF in it, it would be more than one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header field with bytes that may not be in one")]
pub struct BadField;

/// An answer's head being written. What may not be written is left out and remembered; [`finish`](Self::finish) says so.
///
/// ```
/// use basin::wire::http::respond::Respond;
///
/// let mut out = Vec::new();
/// let mut answer = Respond::new(&mut out, 200);
/// answer.header("ETag", "\"5d41\"").number("Content-Length", 5);
/// answer.finish().unwrap();
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nETag: \"5d41\"\r\nContent-Length: 5\r\n\r\n");
/// ```
#[derive(Debug)]
#[must_use = "a head is whole when it is finished"]
pub struct Respond<'a> {
    out: &'a mut Vec<u8>,
    /// Where in `out` it begins.
    start: usize,
    is_refused: bool,
}

impl<'a> Respond<'a> {
    /// Begins an answer behind what `out` has.
    ///
    /// # Panics
    /// When the status is not of three digits: a bug of the caller's.
    pub fn new(out: &'a mut Vec<u8>, status: u16) -> Respond<'a> {
        assert!((100..=999).contains(&status), "{status} is no status");
        let start = out.len();
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
        out.push(b' ');
        out.extend_from_slice(reason(status).as_bytes());
        out.extend_from_slice(b"\r\n");
        Respond { out, start, is_refused: false }
    }

    /// Adds a field.
    pub fn header(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        let value = value.as_ref();
        if !is_field(name, value) {
            self.is_refused = true;
            return self;
        }
        self.out.reserve(name.len() + value.len() + 4);
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Adds a field whose value is a number.
    pub fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.header(name, itoa::Buffer::new().format(value))
    }

    /// Ends the head.
    ///
    /// # Errors
    /// When a field could not be written; then `out` is as it was.
    pub fn finish(self) -> Result<(), BadField> {
        if self.is_refused {
            self.out.truncate(self.start);
            return Err(BadField);
        }
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// The reason phrase of a status (RFC 9110, section 15; RFC 6585); nothing for one without.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http::answer::{Answer, AnswerFraming};
    use proptest::prelude::*;

    #[test]
    fn a_field_with_a_line_end_is_refused_and_leaves_nothing() {
        for (name, value) in [
            ("a", "b\r\nSet-Cookie: c"),
            ("a", "b\nc"),
            ("a", "b\rc"),
            ("a", "\0"),
            ("a", "\x7f"),
            ("a\r\nb", "c"),
            ("a b", "c"),
            ("a:", "c"),
            ("", "c"),
            ("\u{e9}", "c"),
        ] {
            let mut out = b"before".to_vec();
            let mut answer = Respond::new(&mut out, 200);
            answer.header("Good", "1").header(name, value).header("Also-Good", "2");
            assert_eq!(answer.finish(), Err(BadField), "{name:?}: {value:?}");
            assert_eq!(out, b"before");
        }
    }

    #[test]
    fn a_status_without_a_reason_is_written() {
        let mut out = Vec::new();
        Respond::new(&mut out, 299).finish().unwrap();
        assert_eq!(out, b"HTTP/1.1 299 \r\n\r\n");
        assert_eq!(Answer::parse(&out, false).unwrap().unwrap().0.status(), 299);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            status in 200u16..600,
            length: u64,
            fields in prop::collection::vec(("x-[a-zA-Z0-9-]{1,20}", "([!-~\u{e4}\u{4e2d}][ -~]{0,20}[!-~])?"), 0..20),
        ) {
            let mut out = Vec::new();
            let mut answer = Respond::new(&mut out, status);
            for (name, value) in &fields {
                answer.header(name, value);
            }
            answer.number("Content-Length", length);
            answer.finish().unwrap();
            let (read, used) = Answer::parse(&out, false).unwrap().unwrap();
            prop_assert_eq!((used, read.status()), (out.len(), status));
            let has_body = !matches!(status, 204 | 304);
            prop_assert_eq!(read.framing(), if has_body { AnswerFraming::Length(length) } else { AnswerFraming::None });
            let mut expected: Vec<(&str, &[u8])> = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let length = length.to_string();
            expected.push(("Content-Length", length.as_bytes()));
            prop_assert_eq!(read.headers().collect::<Vec<_>>(), expected);
        }
    }
}
