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
/// Bytes of a sum.
pub const SUM_BYTES: usize = 24;
/// The most windows of one request. With windows of 1 MiB it moves 16 MiB, and its list takes 256 bytes of a message.
pub const WINDOWS_MAX: usize = 16;
/// Frames begin at multiples of this.
const ALIGN: usize = 8;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const SUM: u8 = 3;

/// The number of no request: an answer with it says why the server ends the session.
pub const LAST: u32 = u32::MAX;
/// The status of such an answer where the client has done nothing wrong and may connect anew at once.
pub const OVER: u16 = 408;

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
    /// The CRC comes behind the request, in a [`Sum`]: `crc` is 0.
    pub is_summed_later: bool,
    /// `/bucket/key?query`, percent-encoded.
    pub target: &'a [u8],
    /// Lines of HTTP.
    pub fields: &'a [u8],
    /// Its body.
    pub body: Body<'a>,
}

/// The CRC of a body that came without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The body's request.
    pub id: u32,
    /// CRC64NVME of the body.
    pub crc: u64,
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// A request.
    Request(Request<'a>),
    /// What was missing of one.
    Sum(Sum),
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
    later: u8,
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

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SumHeader {
    frame_bytes: U32,
    kind: u8,
    zero: [u8; 3],
    id: U32,
    zero_too: U32,
    crc: U64,
}

const _: () = assert!(size_of::<RequestHeader>() == REQUEST_BYTES && size_of::<AnswerHeader>() == ANSWER_BYTES);
const _: () = assert!(size_of::<SumHeader>() == SUM_BYTES);

/// The frame at the front of a message, and what is behind it.
fn split(message: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let length = u32::from_le_bytes(*message.first_chunk().ok_or(Malformed::Truncated)?) as usize;
    if !length.is_multiple_of(ALIGN) || length < SUM_BYTES {
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
        let has_granted_body = method.has_body() && matches!(header.place, 2 | 3);
        let list: &[Listed] = if header.place == 3 { <[Listed]>::ref_from_bytes(inline).map_err(|_| Malformed::Length)? } else { &[] };
        let is_good = (header.later == 0 || (header.later == 1 && header.crc == 0 && has_granted_body))
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
        let (id, crc, is_summed_later) = (header.id.get(), header.crc.get(), header.later == 1);
        Ok((Request { method, id, window, list, crc, is_summed_later, target, fields, body }, behind))
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
            later: self.is_summed_later.into(),
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

impl Sum {
    /// Reads the sum at the front of a message, and gives what is behind it.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(message: &[u8]) -> Result<(Sum, &[u8]), Malformed> {
        let (frame, behind) = split(message)?;
        let (header, rest) = SumHeader::ref_from_prefix(frame).map_err(|_| Malformed::Length)?;
        if header.kind != SUM {
            return Err(Malformed::Protocol);
        }
        if !rest.is_empty() {
            return Err(Malformed::Length);
        }
        if header.zero != [0; 3] || header.zero_too != 0 || header.id == LAST {
            return Err(Malformed::Field);
        }
        Ok((Sum { id: header.id.get(), crc: header.crc.get() }, behind))
    }

    /// Writes its frame to the front of `out`, and gives its bytes.
    ///
    /// Panics where it has no room.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let frame_bytes = (SUM_BYTES as u32).into();
        let header = SumHeader { frame_bytes, kind: SUM, zero: [0; 3], id: self.id.into(), zero_too: 0.into(), crc: self.crc.into() };
        put(&mut out[..SUM_BYTES], &header, [&[], &[]], &[]);
        SUM_BYTES
    }
}

impl<'a> Asked<'a> {
    /// Reads what is at the front of a client's message, and gives what is behind it.
    ///
    /// # Errors
    /// It is neither a request nor a sum.
    pub fn parse(message: &'a [u8]) -> Result<(Asked<'a>, &'a [u8]), Malformed> {
        match message.get(4) {
            Some(&SUM) => Sum::parse(message).map(|(sum, behind)| (Asked::Sum(sum), behind)),
            _ => Request::parse(message).map(|(request, behind)| (Asked::Request(request), behind)),
        }
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
mod tests;
