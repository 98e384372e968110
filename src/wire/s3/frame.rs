//! Requests and answers of the native mode: what one SEND holds, one frame behind the other.
//!
//! A frame is a header of fixed length, text as HTTP/1.1 has it, and for what is small the body. Lengths are judged before anything is
//! looked at; what must be zero is. Of the text only what keeps it text is judged here: it cannot end early, and has no control characters
//! where there may be none. What it means is HTTP's.

use std::fmt;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Memory;
use crate::wire::Malformed;

/// Bytes of the header of a request.
pub const REQUEST_BYTES: usize = 48;
/// Bytes of the header of an answer.
pub const ANSWER_BYTES: usize = 32;
/// The most windows of one request. With windows of 1 MiB it moves 16 MiB, and its list takes 256 bytes of a message.
pub const WINDOWS_MAX: usize = 16;
/// Frames begin at multiples of this.
const ALIGN: usize = 8;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// The number of no request: an answer with it says why the server ends the session.
pub const LAST: u32 = u32::MAX;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Method {
    /// `GET`
    Get = 1,
    /// `HEAD`
    Head = 2,
    /// `PUT`
    Put = 3,
    /// `DELETE`
    Delete = 4,
    /// `POST`
    Post = 5,
}

impl Method {
    const ALL: [Method; 5] = [Method::Get, Method::Head, Method::Put, Method::Delete, Method::Post];

    /// As HTTP names it.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Post => "POST",
        }
    }

    /// The one that HTTP names so.
    pub fn from_name(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    const fn has_body(self) -> bool {
        matches!(self, Method::Put | Method::Post)
    }
}

/// Where the body of a request or an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// There is none.
    None,
    /// In the frame.
    Inline(&'a [u8]),
    /// In the client's window.
    Granted,
}

impl Body<'_> {
    const fn place(self) -> u8 {
        match self {
            Body::None => 0,
            Body::Inline(_) => 1,
            Body::Granted => 2,
        }
    }
}

/// A window in a list of windows.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Listed {
    address: U64,
    bytes: U32,
    rkey: U32,
}

impl Listed {
    /// One of less than 4 GiB, at an address and behind a key.
    pub fn new(address: u64, bytes: u32, rkey: u32) -> Listed {
        Listed { address: address.into(), bytes: bytes.into(), rkey: rkey.into() }
    }

    /// What it opens.
    pub fn memory(&self) -> Memory {
        Memory { address: self.address.get(), bytes: self.bytes.get().into(), rkey: self.rkey.get() }
    }
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory().fmt(f)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What it does.
    pub method: Method,
    /// What the answer is known by.
    pub id: u32,
    /// The client's window, open for READ where it holds the body and for WRITE where the answer's is to go. Without one no memory; its
    /// length is still the body's. Where there is a list it has the length of all of them, and nothing else.
    pub window: Memory,
    /// Windows that are one memory, in this order, instead of the one; most requests have none.
    pub list: &'a [Listed],
    /// CRC64NVME of the body; 0 without one.
    pub crc: u64,
    /// `/bucket/key?query`, percent-encoded.
    pub target: &'a [u8],
    /// Lines of HTTP.
    pub fields: &'a [u8],
    /// Its body.
    pub body: Body<'a>,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Of which request.
    pub id: u32,
    /// HTTP's status.
    pub status: u16,
    /// Bytes of the body, or what they would be.
    pub bytes: u64,
    /// CRC64NVME of the body; 0 without one.
    pub crc: u64,
    /// Lines of HTTP.
    pub fields: &'a [u8],
    /// Its body.
    pub body: Body<'a>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestHeader {
    frame_bytes: U32,
    kind: u8,
    method: u8,
    place: u8,
    zero: u8,
    id: U32,
    rkey: U32,
    address: U64,
    bytes: U64,
    crc: U64,
    target_bytes: U16,
    fields_bytes: U16,
    windows: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AnswerHeader {
    frame_bytes: U32,
    kind: u8,
    zero: u8,
    place: u8,
    zero_too: u8,
    id: U32,
    status: U16,
    fields_bytes: U16,
    bytes: U64,
    crc: U64,
}

const _: () = assert!(size_of::<RequestHeader>() == REQUEST_BYTES && size_of::<AnswerHeader>() == ANSWER_BYTES);

/// The frame at the front of a message, and what is behind it.
fn split(message: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let length = u32::from_le_bytes(*message.first_chunk().ok_or(Malformed::Truncated)?) as usize;
    if !length.is_multiple_of(ALIGN) || length < ANSWER_BYTES {
        return Err(Malformed::Length);
    }
    message.split_at_checked(length).ok_or(Malformed::Truncated)
}

/// The text behind a header, and what is behind that: `inline` bytes.
fn parts(rest: &[u8], header: usize, text: usize, inline: u64) -> Result<(&[u8], &[u8]), Malformed> {
    let (text, padded) = rest.split_at_checked(text).ok_or(Malformed::Length)?;
    let padding = (header + text.len()).next_multiple_of(ALIGN) - header - text.len();
    let (padding, rest) = padded.split_at_checked(padding).ok_or(Malformed::Length)?;
    let inline = usize::try_from(inline).map_err(|_| Malformed::Length)?;
    let (body, rest) = rest.split_at_checked(inline).ok_or(Malformed::Length)?;
    if rest.len() != inline.next_multiple_of(ALIGN) - inline {
        return Err(Malformed::Length);
    }
    if padding.iter().chain(rest).any(|byte| *byte != 0) {
        return Err(Malformed::Pad);
    }
    Ok((text, body))
}

/// Lines that each end in CR LF, none of them empty: they cannot end a head. Of control characters they have tabs alone.
fn are_lines(fields: &[u8]) -> bool {
    let (Some((first, behind)), Some((last, front))) = (fields.split_first(), fields.split_last()) else { return true };
    // Of two bytes that follow one another: CR and LF are a pair or not there, and behind one pair there is no other.
    let is_wrong = |byte: u8, before: u8| {
        let is_other = is_control(byte) & (byte != b'\r') & (byte != b'\n');
        is_other | ((byte == b'\n') != (before == b'\r')) | ((byte == b'\r') & (before == b'\n'))
    };
    !is_control(*first) & (*last == b'\n') && !is_any(behind, front, is_wrong)
}

fn is_control(byte: u8) -> bool {
    (byte < b' ') & (byte != b'\t') | (byte == 0x7f)
}

/// Whether it is so of any byte of the one and the byte of the other that is at the same place. All are looked at, sixteen at a time, which
/// for what is as a rule good takes less than a look at each.
fn is_any(one: &[u8], other: &[u8], is_so: impl Fn(u8, u8) -> bool) -> bool {
    const STEP: usize = 16;
    let mut found = [0; STEP];
    let mut look = |one: &[u8; STEP], other: &[u8; STEP]| {
        for at in 0..STEP {
            found[at] |= u8::from(is_so(one[at], other[at]));
        }
    };
    for (one, other) in one.as_chunks().0.iter().zip(other.as_chunks().0) {
        look(one, other);
    }
    // Some of the last sixteen for the second time.
    match (one.last_chunk(), other.last_chunk()) {
        (Some(one), Some(other)) => look(one, other),
        _ => return one.iter().zip(other).any(|(one, other)| is_so(*one, *other)),
    }
    found != [0; STEP]
}

/// Windows that are one memory of so many bytes.
fn is_list(list: &[Listed], bytes: u64) -> bool {
    let windows = || list.iter().map(Listed::memory);
    let are_good = windows().all(|window| window.bytes > 0 && window.is_addressable());
    // Of at most as many as fit the sum is far below what a number holds.
    (1..=WINDOWS_MAX).contains(&list.len()) && are_good && windows().map(|window| window.bytes).sum::<u64>() == bytes
}

/// A path: no space and no control character.
fn is_target(target: &[u8]) -> bool {
    target.first() == Some(&b'/') && is_graphic(target)
}

/// Whether all bytes are of printed ASCII. Eight at a time: a target is short.
fn is_graphic(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // The upper bit of a byte that is 0x80 or more, of one that is less than `!`, and of one that is more than `~`. What a byte takes from
    // its neighbour, or adds to it, it does only where it is itself found.
    let look = |eight: &[u8; 8]| {
        let eight = u64::from_ne_bytes(*eight);
        (eight | eight.wrapping_sub(0x21 * ONES) | eight.wrapping_add(ONES)) & (0x80 * ONES)
    };
    match bytes.last_chunk() {
        // Some of the last eight for the second time.
        Some(last) => bytes.as_chunks().0.iter().fold(look(last), |found, eight| found | look(eight)) == 0,
        None => bytes.iter().all(u8::is_ascii_graphic),
    }
}

impl<'a> Request<'a> {
    /// Bytes of its frame.
    pub fn frame_bytes(&self) -> usize {
        frame_bytes(REQUEST_BYTES, self.target.len() + self.fields.len(), self.behind())
    }

    /// What is behind the text.
    fn behind(&self) -> &'a [u8] {
        match self.body {
            Body::Inline(bytes) => bytes,
            Body::None | Body::Granted => self.list.as_bytes(),
        }
    }

    /// Reads the request at the front of a message, and gives what is behind it.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(message: &'a [u8]) -> Result<(Request<'a>, &'a [u8]), Malformed> {
        let (frame, behind) = split(message)?;
        let (header, rest) = RequestHeader::ref_from_prefix(frame).map_err(|_| Malformed::Length)?;
        if header.kind != REQUEST {
            return Err(Malformed::Protocol);
        }
        let method = *Method::ALL.get(usize::from(header.method).wrapping_sub(1)).ok_or(Malformed::Opcode)?;
        let window = Memory { address: header.address.get(), bytes: header.bytes.get(), rkey: header.rkey.get() };
        let has_window = window.address != 0 || window.rkey != 0;
        let (target_bytes, fields_bytes) = (usize::from(header.target_bytes), usize::from(header.fields_bytes));
        let behind_text = match header.place {
            1 => window.bytes,
            3 => u64::from(header.windows.get()) * size_of::<Listed>() as u64,
            _ => 0,
        };
        let (text, inline) = parts(rest, REQUEST_BYTES, target_bytes + fields_bytes, behind_text)?;
        let (target, fields) = text.split_at(target_bytes);
        let list: &[Listed] = if header.place == 3 { <[Listed]>::ref_from_bytes(inline).map_err(|_| Malformed::Length)? } else { &[] };
        let is_good = header.zero == 0
            && (header.windows == 0 || header.place == 3)
            && header.id.get() != LAST
            && is_target(target)
            && are_lines(fields)
            && window.is_addressable()
            && match header.place {
                // A window for the answer, or none. There is one answer that is long: GET's.
                0 => header.crc == 0 && (window.bytes > 0 || !has_window) && (method == Method::Get || window.bytes == 0),
                1 => method.has_body() && !has_window,
                2 => method.has_body() && window.bytes > 0,
                // A body, or the answer to GET, which has no body to be summed.
                3 => {
                    let is_for_it = method.has_body() || (method == Method::Get && header.crc == 0);
                    is_for_it && !has_window && is_list(list, window.bytes)
                }
                _ => false,
            };
        if !is_good {
            return Err(Malformed::Field);
        }
        let body = match header.place {
            0 => Body::None,
            1 => Body::Inline(inline),
            3 if method == Method::Get => Body::None,
            _ => Body::Granted,
        };
        Ok((Request { method, id: header.id.get(), window, list, crc: header.crc.get(), target, fields, body }, behind))
    }

    /// Writes its frame to the front of `out`, and gives its bytes.
    ///
    /// Panics where it has no room, or its text is too long for a frame: both are the caller's to see to.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let length = self.frame_bytes();
        let header = RequestHeader {
            frame_bytes: (length as u32).into(),
            kind: REQUEST,
            method: self.method as u8,
            place: if self.list.is_empty() { self.body.place() } else { 3 },
            zero: 0,
            id: self.id.into(),
            rkey: self.window.rkey.into(),
            address: self.window.address.into(),
            bytes: self.window.bytes.into(),
            crc: self.crc.into(),
            target_bytes: u16::try_from(self.target.len()).expect("a target fits a frame").into(),
            fields_bytes: u16::try_from(self.fields.len()).expect("fields fit a frame").into(),
            windows: (self.list.len() as u32).into(),
        };
        put(&mut out[..length], &header, [self.target, self.fields], self.behind());
        length
    }
}

impl<'a> Answer<'a> {
    /// Bytes of its frame.
    pub fn frame_bytes(&self) -> usize {
        frame_bytes(ANSWER_BYTES, self.fields.len(), self.inline())
    }

    fn inline(&self) -> &'a [u8] {
        if let Body::Inline(bytes) = self.body { bytes } else { &[] }
    }

    /// Reads the answer at the front of a message, and gives what is behind it.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(message: &'a [u8]) -> Result<(Answer<'a>, &'a [u8]), Malformed> {
        let (frame, behind) = split(message)?;
        let (header, rest) = AnswerHeader::ref_from_prefix(frame).map_err(|_| Malformed::Length)?;
        if header.kind != ANSWER {
            return Err(Malformed::Protocol);
        }
        let bytes = header.bytes.get();
        let (fields, inline) = parts(rest, ANSWER_BYTES, usize::from(header.fields_bytes), if header.place == 1 { bytes } else { 0 })?;
        let is_good = header.zero == 0
            && header.zero_too == 0
            && are_lines(fields)
            && (100..=599).contains(&header.status.get())
            && match header.place {
                0 => header.crc == 0,
                1 => true,
                2 => bytes > 0,
                _ => false,
            };
        if !is_good {
            return Err(Malformed::Field);
        }
        let body = match header.place {
            0 => Body::None,
            1 => Body::Inline(inline),
            _ => Body::Granted,
        };
        Ok((Answer { id: header.id.get(), status: header.status.get(), bytes, crc: header.crc.get(), fields, body }, behind))
    }

    /// Writes its frame to the front of `out`, and gives its bytes.
    ///
    /// Panics where it has no room, or its fields are too long for a frame: both are the caller's to see to.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let length = self.frame_bytes();
        let header = AnswerHeader {
            frame_bytes: (length as u32).into(),
            kind: ANSWER,
            zero: 0,
            place: self.body.place(),
            zero_too: 0,
            id: self.id.into(),
            status: self.status.into(),
            fields_bytes: u16::try_from(self.fields.len()).expect("fields fit a frame").into(),
            bytes: self.bytes.into(),
            crc: self.crc.into(),
        };
        put(&mut out[..length], &header, [self.fields, &[]], self.inline());
        length
    }
}

fn frame_bytes(header: usize, text: usize, inline: &[u8]) -> usize {
    (header + text).next_multiple_of(ALIGN) + inline.len().next_multiple_of(ALIGN)
}

/// Writes a frame that is as long as `out`.
#[inline]
fn put<H: IntoBytes + Immutable>(out: &mut [u8], header: &H, text: [&[u8]; 2], inline: &[u8]) {
    let begins = size_of::<H>() + text[0].len() + text[1].len();
    let (front, behind) = out.split_at_mut(begins.next_multiple_of(ALIGN));
    // Padding is in the last word of each, which is written before what else is in it.
    for part in [&mut *front, &mut *behind] {
        if let Some(last) = part.last_chunk_mut() {
            *last = [0; ALIGN];
        }
    }
    header.write_to_prefix(front).expect("a frame has room for its header");
    let mut at = size_of::<H>();
    for text in text {
        front[at..at + text.len()].copy_from_slice(text);
        at += text.len();
    }
    behind[..inline.len()].copy_from_slice(inline);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const NO_MEMORY: Memory = Memory { address: 0, bytes: 0, rkey: 0 };

    fn get() -> Request<'static> {
        Request {
            method: Method::Get,
            id: 7,
            window: Memory { address: 0x1000, bytes: 4096, rkey: 9 },
            list: &[],
            crc: 0,
            target: b"/b/k",
            fields: b"range: bytes=0-9\r\n",
            body: Body::None,
        }
    }

    #[test]
    fn bytes_of_a_request() {
        let mut out = [0xff; 128];
        let length = get().emit(&mut out);
        // Written out by hand from the table in docs/S3-RDMA.md.
        let mut expected = vec![72, 0, 0, 0, 1, 1, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0];
        expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 18, 0, 0, 0, 0, 0]);
        expected.extend(b"/b/krange: bytes=0-9\r\n\0\0");
        assert_eq!(out[..length], expected);
        assert_eq!(out[length], 0xff);
        assert_eq!(Request::parse(&out[..length]), Ok((get(), &[][..])));
    }

    /// A body in two windows.
    fn listed(list: &[Listed]) -> Request<'_> {
        let bytes = list.iter().map(|listed| listed.memory().bytes).sum();
        Request { method: Method::Put, window: Memory { bytes, ..NO_MEMORY }, list, crc: 0x0102, body: Body::Granted, ..get() }
    }

    #[test]
    fn bytes_of_a_request_with_a_list() {
        let list = [Listed::new(0x1000, 1 << 20, 9), Listed::new(0x0001_0000_0000, 3, 0x0a0b)];
        let put = listed(&list);
        let mut out = [0xff; 160];
        let length = put.emit(&mut out);
        // Written out by hand from the tables in docs/S3-RDMA.md.
        let mut expected = vec![104, 0, 0, 0, 1, 3, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0x10, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 18, 0, 2, 0, 0, 0]);
        expected.extend(b"/b/krange: bytes=0-9\r\n\0\0");
        expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 9, 0, 0, 0]);
        expected.extend([0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0x0b, 0x0a, 0, 0]);
        assert_eq!(out[..length], expected);
        assert_eq!(Request::parse(&out[..length]), Ok((put, &[][..])));
        let get = Request { method: Method::Get, crc: 0, body: Body::None, ..put };
        let length = get.emit(&mut out);
        assert_eq!((out[5], out[6]), (1, 3));
        assert_eq!(Request::parse(&out[..length]), Ok((get, &[][..])));
        assert!(format!("{put:?}").contains("list: [Memory(1048576 bytes, ..), Memory(3 bytes, ..)]"), "{put:?}");
    }

    #[test]
    fn every_byte_of_a_target_is_looked_at() {
        for length in 0..26 {
            assert!(is_graphic(&vec![b'~'; length]) && is_graphic(&vec![b'!'; length]));
            for (at, byte) in (0..length).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
                for others in [b'!', b'~'] {
                    let mut bytes = vec![others; length];
                    bytes[at] = byte;
                    assert_eq!(is_graphic(&bytes), byte.is_ascii_graphic(), "{byte:#x} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        let refused = |request: Request<'_>| {
            let mut out = vec![0; request.frame_bytes()];
            request.emit(&mut out);
            assert_eq!(Request::parse(&out), Err(Malformed::Field), "{request:?}");
        };
        let list = [Listed::new(0x1000, 4096, 9), Listed::new(0x9000, 4096, 8)];
        let put = listed(&list);
        // It lies about its length, names a window besides, or is of a request that has neither a body nor a long answer.
        for bytes in [0, 4096, 8191, 8193, u64::MAX] {
            refused(Request { window: Memory { bytes, ..NO_MEMORY }, ..put });
        }
        refused(Request { window: Memory { address: 1, ..put.window }, ..put });
        refused(Request { window: Memory { rkey: 1, ..put.window }, ..put });
        for method in [Method::Head, Method::Delete, Method::Get] {
            refused(Request { method, ..put });
        }
        refused(listed(&[list[0], Listed::new(0x9000, 0, 8)]));
        refused(listed(&[list[0], Listed::new(u64::MAX - 4094, 4096, 8)]));
        refused(listed(&[list[0]; WINDOWS_MAX + 1]));
        let mut out = vec![0; listed(&[list[0]; WINDOWS_MAX]).frame_bytes()];
        listed(&[list[0]; WINDOWS_MAX]).emit(&mut out);
        assert!(Request::parse(&out).is_ok());
        // A count that is not of the list; a list of nothing; a count without a list.
        for count in [0u32, 15, 17, u32::MAX] {
            let mut bad = out.clone();
            bad[44..48].copy_from_slice(&count.to_le_bytes());
            assert!(Request::parse(&bad).is_err(), "{count} windows");
        }
        let mut none = [0; 72];
        Request { window: NO_MEMORY, ..get() }.emit(&mut none);
        none[6] = 3;
        assert_eq!(Request::parse(&none), Err(Malformed::Field));
        (none[6], none[44]) = (0, 1);
        assert_eq!(Request::parse(&none), Err(Malformed::Field));
    }

    #[test]
    fn bytes_of_an_answer() {
        let answer = Answer { id: 7, status: 206, bytes: 3, crc: 0x0102, fields: b"etag: \"x\"\r\n", body: Body::Inline(b"abc") };
        let mut out = [0xff; 64];
        let length = answer.emit(&mut out);
        let mut expected = vec![56, 0, 0, 0, 2, 0, 1, 0, 7, 0, 0, 0, 206, 0, 11, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        expected.extend(b"etag: \"x\"\r\n\0\0\0\0\0abc\0\0\0\0\0");
        assert_eq!(out[..length], expected);
        assert_eq!(Answer::parse(&out[..length]), Ok((answer, &[][..])));
    }

    #[test]
    fn frames_follow_one_another() {
        let put = Request { method: Method::Put, window: Memory { bytes: 5, ..NO_MEMORY }, crc: 1, body: Body::Inline(b"hello"), ..get() };
        let mut out = vec![0; put.frame_bytes() + get().frame_bytes()];
        let first = put.emit(&mut out);
        get().emit(&mut out[first..]);
        let (one, behind) = Request::parse(&out).unwrap();
        assert_eq!((one, Request::parse(behind)), (put, Ok((get(), &[][..]))));
        assert_eq!(Answer::parse(&out), Err(Malformed::Protocol));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let bytes_of = |request: &Request<'_>| {
            let mut out = vec![0; request.frame_bytes()];
            request.emit(&mut out);
            out
        };
        let refused = |request: Request<'_>, why| assert_eq!(Request::parse(&bytes_of(&request)), Err(why), "{request:?}");
        for target in ["", "b", "/a b", "/a\r\n", "/\x7f", "/é"] {
            refused(Request { target: target.as_bytes(), ..get() }, Malformed::Field);
        }
        for fields in ["a: b", "a: b\n", "\r\n", "a: b\r\n\r\n", "a: b\r\n\r\nc: d\r\n", "a: \0\r\n", "a\r: b\r\n"] {
            refused(Request { fields: fields.as_bytes(), ..get() }, Malformed::Field);
        }
        refused(Request { body: Body::Granted, ..get() }, Malformed::Field);
        refused(Request { crc: 1, ..get() }, Malformed::Field);
        refused(Request { id: LAST, ..get() }, Malformed::Field);
        refused(Request { method: Method::Delete, ..get() }, Malformed::Field);
        refused(Request { window: Memory { bytes: 0, ..get().window }, ..get() }, Malformed::Field);
        refused(Request { window: Memory { address: u64::MAX, ..get().window }, ..get() }, Malformed::Field);
        refused(Request { method: Method::Put, body: Body::Inline(&[0; 4096]), ..get() }, Malformed::Field);
        let good = bytes_of(&get());
        for (at, byte, why) in [
            (0, 71, Malformed::Length),
            (0, 80, Malformed::Truncated),
            (0, 64, Malformed::Length),
            (0, 0, Malformed::Length),
            (4, 2, Malformed::Protocol),
            (5, 0, Malformed::Opcode),
            (5, 6, Malformed::Opcode),
            (6, 3, Malformed::Field),
            (6, 4, Malformed::Field),
            (7, 1, Malformed::Field),
            (44, 1, Malformed::Field),
            (71, 1, Malformed::Pad),
        ] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(Request::parse(&bad), Err(why), "byte {at}");
        }
        for cut in 0..good.len() {
            assert!(Request::parse(&good[..cut]).is_err(), "{cut} bytes");
        }
    }

    const PIECES: [&[u8]; 9] = [b"\r\n", b"\r", b"\n", b"a", b"\t", b"\x7f", b"\x01", b"\xff", b"a: b\r\n"];

    /// What lines are, byte by byte.
    fn are_lines_slowly(mut rest: &[u8]) -> bool {
        while !rest.is_empty() {
            let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return false };
            let line = &rest[..end];
            if line.is_empty() || line.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
                return false;
            }
            rest = &rest[end + 2..];
        }
        true
    }

    proptest! {
        #[test]
        fn targets_are_targets(target in "/[!-~]{0,40}", at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            prop_assert!(is_target(target.as_bytes()));
            let mut bytes = target.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            prop_assert_eq!(is_target(&bytes), bytes[0] == b'/' && byte.is_ascii_graphic());
        }

        #[test]
        fn lines_are_lines(pieces in vec(prop::sample::select(PIECES.to_vec()), 0..12)) {
            let fields = pieces.concat();
            prop_assert_eq!(are_lines(&fields), are_lines_slowly(&fields));
        }

        #[test]
        fn what_is_taken_is_what_would_be_written(mut bytes in vec(any::<u8>(), 0..160), kind in 1u8..3, length in 4u32..20) {
            if bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&(length * 8).to_le_bytes());
                bytes[4] = kind;
            }
            let mut out = [0; 256];
            if let Ok((request, behind)) = Request::parse(&bytes) {
                let written = request.emit(&mut out);
                prop_assert_eq!(&out[..written], &bytes[..bytes.len() - behind.len()]);
            }
            if let Ok((answer, behind)) = Answer::parse(&bytes) {
                let written = answer.emit(&mut out);
                prop_assert_eq!(&out[..written], &bytes[..bytes.len() - behind.len()]);
            }
        }

        #[test]
        fn a_list_is_read_as_it_was_written(
            windows in vec((0u64..1 << 48, 1u32.., any::<u32>()), 1..=WINDOWS_MAX),
            is_put in any::<bool>(),
            cut in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let list: Vec<Listed> = windows.iter().map(|&(address, bytes, rkey)| Listed::new(address, bytes, rkey)).collect();
            let put = listed(&list);
            let request = if is_put { put } else { Request { method: Method::Get, crc: 0, body: Body::None, ..put } };
            let mut bytes = vec![0; request.frame_bytes()];
            request.emit(&mut bytes);
            prop_assert_eq!(Request::parse(&bytes), Ok((request, &[][..])));
            prop_assert!(Request::parse(&bytes[..cut.index(bytes.len())]).is_err());
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok((read, behind)) = Request::parse(&bytes) {
                let mut out = vec![0; read.frame_bytes()];
                read.emit(&mut out);
                prop_assert_eq!(&out[..], &bytes[..bytes.len() - behind.len()]);
                let sum: u64 = read.list.iter().map(|listed| listed.memory().bytes).sum();
                prop_assert!(read.list.is_empty() || sum == read.window.bytes);
            }
        }

        #[test]
        fn a_damaged_request_is_read_as_it_is_or_refused(at in 0usize..72, byte in any::<u8>()) {
            let mut bytes = [0; 72];
            get().emit(&mut bytes);
            bytes[at] = byte;
            if let Ok((request, behind)) = Request::parse(&bytes) {
                let mut out = [0; 256];
                let written = request.emit(&mut out);
                prop_assert_eq!(&out[..written], &bytes[..bytes.len() - behind.len()]);
            }
        }
    }
}
