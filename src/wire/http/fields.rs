//! What the heads of requests and answers share: where a head ends, its fields, and the fields that say how the message is framed.
//!
//! A head is one allocation for its bytes and one for where its fields lie in them.

use super::head::{BadHead, HEAD_MAX};

/// A part of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    at: u16,
    len: u16,
}

const _: () = assert!(HEAD_MAX <= u16::MAX as usize, "a span reaches to the end of a head");

impl Span {
    /// Where `part`, which was cut from `whole`, lies in it.
    pub fn of(whole: &[u8], part: &[u8]) -> Span {
        // An empty part may be any empty slice, of no place in the head.
        let at = if part.is_empty() { 0 } else { part.as_ptr().addr() - whole.as_ptr().addr() };
        Span { at: at as u16, len: part.len() as u16 }
    }

    /// Its bytes.
    pub fn bytes(self, whole: &[u8]) -> &[u8] {
        &whole[self.at.into()..][..self.len.into()]
    }

    /// The same of what was text when it was cut.
    pub fn text(self, whole: &[u8]) -> &str {
        str::from_utf8(self.bytes(whole)).expect("it was text when the head was parsed")
    }
}

#[derive(Clone, Copy)]
struct Field {
    name: Span,
    value: Span,
}

/// A head's bytes, and its fields.
#[derive(Clone)]
pub(super) struct Fields {
    bytes: Box<[u8]>,
    list: Box<[Field]>,
}

impl Fields {
    /// Keeps the bytes of a head and where in them its fields are.
    pub fn new(bytes: &[u8], headers: &[httparse::Header<'_>]) -> Fields {
        let list =
            headers.iter().map(|header| Field { name: Span::of(bytes, header.name.as_bytes()), value: Span::of(bytes, header.value) });
        Fields { list: list.collect(), bytes: bytes.into() }
    }

    /// The whole head.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.list.iter().map(|field| (field.name.text(&self.bytes), field.value.bytes(&self.bytes)))
    }

    /// The first field of that name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let is_it = |field: &&Field| field.name.bytes(&self.bytes).eq_ignore_ascii_case(name.as_bytes());
        Some(self.list.iter().find(is_it)?.value.bytes(&self.bytes))
    }
}

/// Where in `bytes` a head begins and ends, empty lines before it left out (RFC 9112, section 2.2). `None` when more bytes are needed.
pub(super) fn bounds(bytes: &[u8]) -> Result<Option<(usize, usize)>, BadHead> {
    let within = &bytes[..bytes.len().min(HEAD_MAX)];
    let (mut start, mut line) = (0, 0);
    for at in memchr::memchr_iter(b'\n', within) {
        // A bare LF is a line's end to some and not to others, which is how requests are smuggled: it is refused.
        if at == line || within[at - 1] != b'\r' {
            return Err(BadHead::LineEnd);
        }
        if at == line + 1 {
            if line > start {
                check_start(&within[start..])?;
                return Ok(Some((start, at + 1)));
            }
            start = at + 1;
        }
        line = at + 1;
    }
    if bytes.len() >= HEAD_MAX {
        return Err(BadHead::TooLong);
    }
    check_start(&within[start..])?;
    Ok(None)
}

/// Bytes of the longest method, or version of an answer, that is worth waiting for.
const WORD_MAX: usize = 32;

/// Refuses what can not become a head, so that nobody waits for the rest of it: the first word of one is made of the characters of
/// methods, and `/` in an answer.
fn check_start(start: &[u8]) -> Result<(), BadHead> {
    let word = start.iter().take_while(|&&byte| super::is_token(byte) || byte == b'/').count();
    let is_good = match start.get(word) {
        None => word <= WORD_MAX,
        Some(b' ') => (1..=WORD_MAX).contains(&word),
        // The first half of an empty line.
        Some(b'\r') => start.len() == 1,
        Some(_) => false,
    };
    if is_good { Ok(()) } else { Err(BadHead::Syntax) }
}

/// What of a head says how the message is framed and what becomes of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    pub length: Option<u64>,
    pub is_chunked: bool,
    pub keeps_alive: bool,
    pub expects_continue: bool,
    pub hosts: usize,
}

impl Control {
    /// Reads it from the fields of a message of HTTP/1.`minor`.
    pub fn read(headers: &[httparse::Header<'_>], minor: u8) -> Result<Control, BadHead> {
        let mut control = Control { keeps_alive: minor > 0, ..Control::default() };
        let mut closes = false;
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            match header.name.len() {
                4 if is("host") => control.hosts += 1,
                6 if is("expect") => {
                    // Whoever speaks HTTP/1.0 does not wait (RFC 9110, section 10.1.1).
                    control.expects_continue |= minor > 0 && header.value.eq_ignore_ascii_case(b"100-continue");
                }
                10 if is("connection") => {
                    closes |= has_word(header.value, b"close");
                    control.keeps_alive |= has_word(header.value, b"keep-alive");
                }
                14 if is("content-length") => {
                    // One that is repeated or a list might be taken to be either (RFC 9112, section 6.3): even two that agree are refused.
                    if control.length.is_some() {
                        return Err(BadHead::Length);
                    }
                    control.length = Some(decimal(header.value).ok_or(BadHead::Length)?);
                }
                17 if is("transfer-encoding") => {
                    if control.is_chunked || minor == 0 {
                        return Err(BadHead::Framing);
                    }
                    if !header.value.eq_ignore_ascii_case(b"chunked") {
                        return Err(BadHead::Coding);
                    }
                    control.is_chunked = true;
                }
                _ => {}
            }
        }
        // With both, a server must close the connection after it (RFC 9112, section 6.1). It may as well refuse.
        if control.is_chunked && control.length.is_some() {
            return Err(BadHead::Framing);
        }
        control.keeps_alive &= !closes;
        Ok(control)
    }
}

/// Whether a comma-separated list has the word.
fn has_word(list: &[u8], word: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(word))
}

/// A number without sign or space.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_at_its_first_empty_line() {
        assert_eq!(bounds(b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest\n"), Ok(Some((0, 24))));
        assert_eq!(bounds(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"), Ok(Some((4, 22))));
        for unfinished in ["", "\r", "\r\n", "\r\nG", "GET", "GET / HTTP/1.1", "GET / HTTP/1.1\r", "GET / HTTP/1.1\r\n", "GET /\r\n\r"] {
            assert_eq!(bounds(unfinished.as_bytes()), Ok(None), "{unfinished:?}");
        }
        for bare in ["\n", "GET /\n", "GET /\r\nA: b\n\r\n", "GET /\r\n\n"] {
            assert_eq!(bounds(bare.as_bytes()), Err(BadHead::LineEnd), "{bare:?}");
        }
    }

    #[test]
    fn what_can_not_become_a_head_is_not_waited_for() {
        let hello = [0x16, 3, 1, 2, 0, 1];
        assert_eq!(bounds(&hello), Err(BadHead::Syntax), "the start of TLS");
        for bad in [" ", "\rx", "GE(", "GET\t", &"A".repeat(33), "\r\n\r\n ", "{\"a\"", "GET\r"] {
            assert_eq!(bounds(bad.as_bytes()), Err(BadHead::Syntax), "{bad:?}");
        }
        assert_eq!(bounds(&[b'A'; HEAD_MAX]), Err(BadHead::TooLong));
        let long = format!("{} / HTTP/1.1\r\n\r\n", "A".repeat(33));
        assert_eq!(bounds(long.as_bytes()), Err(BadHead::Syntax), "nor taken when all of it comes at once");
    }

    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"007"), Some(7));
        for bad in ["", "18446744073709551616", "100000000000000000000", "-1", "+1", "1 2", "0x1", "1,1", "1.0", "\u{0661}"] {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
