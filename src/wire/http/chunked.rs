//! `Transfer-Encoding: chunked` (RFC 9112, section 7.1). Extensions and trailers are checked and dropped.

use super::body::{BadBody, Wants};
use super::line::{BadLine, Line};
use super::{is_field_value, is_token, trim};

/// Bytes of the longest line before a chunk: what is ours to choose (RFC 9112, section 7.1.1). One that S3's clients send has at most 98.
pub const CHUNK_LINE_MAX: usize = 512;
/// Bytes of lines, beyond what chunks of a sensible size need, in a whole body. Without such a bound a peer could send hundreds of bytes
/// of framing for each byte of payload, for ever.
pub const FRAMING_EXCESS_MAX: u64 = 16 << 10;
/// Bytes of all trailers: as many as S3 allows for the fields of a PUT.
pub const TRAILERS_MAX: usize = 8 << 10;
/// Digits of the longest size.
const SIZE_DIGITS_MAX: usize = 16;

impl From<BadLine> for BadBody {
    fn from(line: BadLine) -> BadBody {
        match line {
            BadLine::BareCr => BadBody::Chunk,
            BadLine::TooLong => BadBody::TooLong,
        }
    }
}

/// The size that a chunk's line begins with, and what follows it.
pub(super) fn size(line: &[u8]) -> Option<(u64, &[u8])> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    if digits.is_empty() || digits.len() > SIZE_DIGITS_MAX {
        return None;
    }
    let size = digits.iter().fold(0, |size, &digit| size << 4 | u64::from(char::from(digit).to_digit(16).expect("it was one")));
    Some((size, rest))
}

/// Keeps count of framing that is more than its payload calls for.
#[derive(Clone, Debug, Default)]
pub(super) struct Excess(u64);

impl Excess {
    /// Counts a chunk's line, with what framing its payload pays for: a line of 16 bytes, and two for each of its own.
    pub fn count(&mut self, line_bytes: usize, size: u64) -> Result<(), BadBody> {
        let paid = size.saturating_mul(2).saturating_add(16);
        self.0 = (self.0 + line_bytes as u64).saturating_sub(paid);
        if self.0 > FRAMING_EXCESS_MAX { Err(BadBody::TooLong) } else { Ok(()) }
    }
}

/// The name and the value of a trailer.
pub(super) fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = (trim(&line[..colon]), trim(&line[colon + 1..]));
    let is_good = !name.is_empty() && name.iter().all(|&byte| is_token(byte)) && is_field_value(value);
    is_good.then_some((name, value))
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    /// So many bytes of them came.
    Trailers(usize),
    End,
}

/// A chunked stream being received.
#[derive(Clone, Debug, Default)]
pub struct Chunked {
    line: Line,
    state: State,
    excess: Excess,
}

impl Chunked {
    /// What comes next.
    pub fn wants(&self) -> Wants {
        match self.state {
            State::Data(left) => Wants::Data(left),
            State::End => Wants::End,
            State::Size | State::DataEnd | State::Trailers(_) => Wants::Line,
        }
    }

    /// Takes the framing at the front of `bytes`, up to payload or the end; gives how many bytes that were.
    ///
    /// # Errors
    /// When it is malformed. The decoder is of no more use then.
    pub fn framing(&mut self, bytes: &[u8]) -> Result<usize, BadBody> {
        let mut used = 0;
        while self.wants() == Wants::Line && used < bytes.len() {
            let rest = &bytes[used..];
            let (taken, next) = match self.state {
                State::Size => {
                    let (taken, line) = self.line.take(rest, CHUNK_LINE_MAX)?;
                    (taken, line.map(|line| begin(line, &mut self.excess)).transpose()?)
                }
                State::DataEnd => {
                    let (taken, line) = self.line.take(rest, 0).map_err(|_| BadBody::Chunk)?;
                    (taken, line.map(|_| State::Size))
                }
                State::Trailers(before) => {
                    let (taken, line) = self.line.take(rest, TRAILERS_MAX)?;
                    (taken, line.map(|line| trailer(line, before)).transpose()?)
                }
                State::Data(_) | State::End => break,
            };
            used += taken;
            self.state = next.unwrap_or(self.state);
        }
        Ok(used)
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
}

/// What a chunk's line begins. Space before an extension is allowed (RFC 9112, section 7.1.1), elsewhere it is not.
fn begin(line: &[u8], excess: &mut Excess) -> Result<State, BadBody> {
    let (size, extension) = size(line).ok_or(BadBody::Chunk)?;
    let is_good = extension.is_empty() || (trim(extension).starts_with(b";") && is_field_value(extension));
    if !is_good {
        return Err(BadBody::Chunk);
    }
    excess.count(line.len() + 2, size)?;
    Ok(if size == 0 { State::Trailers(0) } else { State::Data(size) })
}

fn trailer(line: &[u8], before: usize) -> Result<State, BadBody> {
    if line.is_empty() {
        return Ok(State::End);
    }
    let bytes = before + line.len() + 2;
    if bytes > TRAILERS_MAX {
        return Err(BadBody::TooLong);
    }
    field(line).ok_or(BadBody::Trailer)?;
    Ok(State::Trailers(bytes))
}

/// The last chunk, without trailers: what ends a body that is sent in chunks.
pub const LAST: &[u8] = b"0\r\n\r\n";

/// Writes the line before a chunk of `size` bytes. CRLF follows its payload.
///
/// # Panics
/// When the size is 0, which would end the body: a bug of the caller's.
pub fn write_size(out: &mut Vec<u8>, size: u64) {
    assert!(size > 0, "a chunk of no bytes is the last");
    write_hex(out, size);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number in hexadecimal digits.
pub(super) fn write_hex(out: &mut Vec<u8>, number: u64) {
    let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..digits).rev().map(|digit| b"0123456789abcdef"[(number >> (digit * 4)) as usize & 15]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The payload of a stream that comes in pieces of the given lengths, in turn, and what is left behind its end.
    fn decode(stream: &[u8], steps: &[usize]) -> Result<(Vec<u8>, Vec<u8>, bool), BadBody> {
        let mut chunked = Chunked::default();
        let (mut payload, mut rest) = (Vec::new(), stream);
        for step in steps.iter().cycle() {
            let (mut piece, later) = rest.split_at((*step).min(rest.len()));
            while !piece.is_empty() {
                match chunked.wants() {
                    Wants::Line => {
                        let used = chunked.framing(piece)?;
                        assert!(used > 0, "framing is taken");
                        piece = &piece[used..];
                    }
                    Wants::Data(most) => {
                        let (data, behind) = piece.split_at(piece.len().min(usize::try_from(most).unwrap_or(usize::MAX)));
                        payload.extend_from_slice(data);
                        chunked.data(data.len() as u64);
                        piece = behind;
                    }
                    Wants::End => return Ok((payload, [piece, later].concat(), true)),
                }
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        Ok((payload, Vec::new(), chunked.wants() == Wants::End))
    }

    #[test]
    fn chunks_with_extensions_and_trailers_are_read_however_they_are_cut() {
        let stream = b"4\r\nWiki\r\n007;a=\"b;c\" ; d\r\npedia i\r\nB \t;x\r\nn \r\nchunks.\r\n0\r\nExpires: never\r\nX:\r\n\r\nGET /";
        for step in 1..=stream.len() {
            let (payload, rest, ended) = decode(stream, &[step]).unwrap();
            assert_eq!((payload.as_slice(), ended), (&b"Wikipedia in \r\nchunks."[..], true), "pieces of {step}");
            assert_eq!(rest, b"GET /");
        }
        assert_eq!(decode(b"0\r\n\r\n", &[1]).unwrap(), (vec![], vec![], true));
        assert_eq!(decode(b"ffffffffffffffff\r\nx", &[9]).unwrap(), (b"x".to_vec(), vec![], false));
    }

    #[test]
    fn what_is_no_chunk_is_refused_however_it_is_cut() {
        for (stream, why) in [
            (&b"\r\n"[..], BadBody::Chunk),
            (b"g\r\n", BadBody::Chunk),
            (b"-1\r\n", BadBody::Chunk),
            (b"+1\r\n", BadBody::Chunk),
            (b"0x1\r\n", BadBody::Chunk),
            (b" 1\r\n", BadBody::Chunk),
            (b"1 \r\n", BadBody::Chunk),
            (b"1 2\r\n", BadBody::Chunk),
            (b"1\n2\r\n", BadBody::Chunk),
            (b"1;a\nb\r\n", BadBody::Chunk),
            (b"1;\0\r\n", BadBody::Chunk),
            (b"1\rx", BadBody::Chunk),
            (b"00000000000000001\r\n", BadBody::Chunk),
            (b"10000000000000000\r\n", BadBody::Chunk),
            (b"1\r\nab\r\n", BadBody::Chunk),
            (b"1\r\na\n", BadBody::Chunk),
            (b"1\r\na\rb", BadBody::Chunk),
            (b"0\r\nno colon\r\n", BadBody::Trailer),
            (b"0\r\n: x\r\n", BadBody::Trailer),
            (b"0\r\na b: x\r\n", BadBody::Trailer),
            (b"0\r\na: x\n\r\n", BadBody::Trailer),
        ] {
            for step in 1..=stream.len() {
                assert_eq!(decode(stream, &[step]), Err(why), "{:?} in pieces of {step}", stream.escape_ascii().to_string());
            }
        }
    }

    #[test]
    fn framing_is_bounded() {
        let long = [&b"1;"[..], &[b'a'; CHUNK_LINE_MAX]].concat();
        assert_eq!(decode(&long, &[7]), Err(BadBody::TooLong));
        let wasteful = format!("1;{}\r\nx\r\n", "a".repeat(200)).repeat(1000);
        assert_eq!(decode(wasteful.as_bytes(), &[1000]), Err(BadBody::TooLong));
        let (payload, ..) = decode("1\r\nx\r\n".repeat(100_000).as_bytes(), &[1000]).unwrap();
        assert_eq!(payload.len(), 100_000, "small chunks alone are not waste");
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(TRAILERS_MAX));
        assert_eq!(decode(trailers.as_bytes(), &[100]), Err(BadBody::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..10),
            behind in prop::collection::vec(any::<u8>(), 0..20),
            steps in prop::collection::vec(1usize..40, 1..20),
        ) {
            let mut stream = Vec::new();
            for chunk in &chunks {
                write_size(&mut stream, chunk.len() as u64);
                stream.extend_from_slice(chunk);
                stream.extend_from_slice(b"\r\n");
            }
            stream.extend_from_slice(LAST);
            stream.extend_from_slice(&behind);
            let (payload, rest, ended) = decode(&stream, &steps).unwrap();
            prop_assert_eq!((payload, rest, ended), (chunks.concat(), behind, true));
        }

        #[test]
        fn cuts_change_nothing(
            stream in prop::collection::vec(prop::sample::select(b"01fg;a \r\n\r\n\r\n:x".to_vec()), 0..60),
            steps in prop::collection::vec(1usize..10, 1..10),
        ) {
            let whole = decode(&stream, &[stream.len().max(1)]);
            let cut = decode(&stream, &steps);
            prop_assert_eq!(whole.map(|(payload, _, ended)| (payload, ended)), cut.map(|(payload, _, ended)| (payload, ended)));
        }

        #[test]
        fn sizes_are_written_as_they_are_read(number: u64) {
            let mut out = Vec::new();
            write_hex(&mut out, number);
            prop_assert_eq!(size(&out), Some((number, &b""[..])));
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("{number:x}"));
        }
    }
}
