//! The head of an answer, as a client reads it.

use std::fmt;
use std::mem::MaybeUninit;

use super::fields::{Control, Fields, bounds};
use super::head::{BadHead, HEADERS_MAX};

/// How an answer's body is delimited (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFraming {
    /// There is none: the answer to HEAD, or a status that has none.
    None,
    /// By Content-Length.
    Length(u64),
    /// By `Transfer-Encoding: chunked`.
    Chunked,
    /// By the end of the connection.
    Close,
}

/// An answer's head, with the bytes it came in.
#[derive(Clone)]
pub struct Answer {
    fields: Fields,
    status: u16,
    framing: AnswerFraming,
    keeps_alive: bool,
}

impl Answer {
    /// Parses the head at the front of `bytes`, which answers HEAD if `to_head`. `Ok(None)`: more bytes are needed.
    /// `Ok(Some((answer, used)))`: `used` bytes of `bytes` were it. After one that is [interim](Self::is_interim) another follows.
    ///
    /// # Errors
    /// When the bytes are no head, or one whose body might be delimited in two ways.
    pub fn parse(bytes: &[u8], to_head: bool) -> Result<Option<(Answer, usize)>, BadHead> {
        let Some((start, end)) = bounds(bytes)? else {
            return Ok(None);
        };
        let bytes = &bytes[start..end];
        let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut room)?;
        if parsed != httparse::Status::Complete(bytes.len()) {
            return Err(BadHead::Syntax);
        }
        let (Some(status @ 100..=599), Some(minor)) = (response.code, response.version) else {
            return Err(BadHead::Syntax);
        };
        let control = Control::read(response.headers, minor)?;
        let framing = if to_head || matches!(status, 100..=199 | 204 | 304) {
            AnswerFraming::None
        } else if control.is_chunked {
            AnswerFraming::Chunked
        } else {
            control.length.map_or(AnswerFraming::Close, AnswerFraming::Length)
        };
        let keeps_alive = control.keeps_alive && framing != AnswerFraming::Close;
        Ok(Some((Answer { fields: Fields::new(bytes, response.headers), status, framing, keeps_alive }, end)))
    }

    /// The status: 100 to 599.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the answer proper is still to come: 100 Continue and its like.
    pub fn is_interim(&self) -> bool {
        self.status < 200
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

    /// Whether another request may be sent on the connection.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// How the body is delimited.
    pub fn framing(&self) -> AnswerFraming {
        self.framing
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).field("framing", &self.framing).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Answer, BadHead> {
        let (answer, used) = Answer::parse(text.as_bytes(), false)?.expect("the whole head");
        assert_eq!(used, text.len());
        Ok(answer)
    }

    #[test]
    fn an_answer_is_read() {
        let text = "HTTP/1.1 206 Partial Content\r\nETag: \"5d41\"\r\nContent-Length: 5\r\nx-amz-meta-n: J\u{f6}rg\r\n\r\n";
        let answer = parse(text).unwrap();
        assert_eq!((answer.status(), answer.framing(), answer.keeps_alive()), (206, AnswerFraming::Length(5), true));
        assert_eq!((answer.text("etag"), answer.text("X-AMZ-META-N")), (Some("\"5d41\""), Some("J\u{f6}rg")));
        assert_eq!(answer.headers().map(|(name, _)| name).collect::<Vec<_>>(), ["ETag", "Content-Length", "x-amz-meta-n"]);
        for cut in 0..text.len() {
            assert!(Answer::parse(&text.as_bytes()[..cut], false).unwrap().is_none(), "{cut} bytes are not all");
        }
        // A reason may be missing, with its space.
        assert_eq!(parse("HTTP/1.1 200\r\n\r\n").unwrap().status(), 200);
    }

    #[test]
    fn bodies_are_delimited_by_status_and_fields() {
        let framing = |text: &str| parse(text).map(|answer| (answer.framing(), answer.keeps_alive()));
        assert_eq!(framing("HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n"), Ok((AnswerFraming::None, true)));
        assert_eq!(framing("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"), Ok((AnswerFraming::None, true)));
        assert_eq!(framing("HTTP/1.1 100 Continue\r\n\r\n"), Ok((AnswerFraming::None, true)));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Ok((AnswerFraming::Chunked, true)));
        assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n"), Ok((AnswerFraming::Close, false)));
        assert_eq!(framing("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), Ok((AnswerFraming::Length(0), false)));
        assert_eq!(framing("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n"), Ok((AnswerFraming::Length(0), true)));
        let (to_head, _) = Answer::parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true).unwrap().unwrap();
        assert_eq!((to_head.framing(), to_head.text("content-length")), (AnswerFraming::None, Some("9")));
    }

    #[test]
    fn answers_that_may_be_read_in_two_ways_are_refused() {
        for (text, why) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", BadHead::Length),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", BadHead::Length),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", BadHead::Framing),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", BadHead::Coding),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", BadHead::Framing),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", BadHead::Syntax),
            ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", BadHead::Syntax),
            ("HTTP/1.1 200 OK\r\nA: b\n\r\n", BadHead::LineEnd),
            ("HTTP/1.1 200 O\rK\r\n\r\n", BadHead::Syntax),
            ("HTTP/1.1 20 OK\r\n\r\n", BadHead::Syntax),
            ("HTTP/1.1 099 OK\r\n\r\n", BadHead::Syntax),
            ("HTTP/1.1 700 OK\r\n\r\n", BadHead::Syntax),
            ("HTTP/2.0 200 OK\r\n\r\n", BadHead::Version),
            ("ICY 200 OK\r\n\r\n", BadHead::Version),
        ] {
            assert_eq!(parse(text).unwrap_err(), why, "{text:?}");
        }
    }
}
