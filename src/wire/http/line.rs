//! Lines that end in CRLF, from a stream that comes in pieces.
//!
//! A line that lies whole in a piece is lent from there; only one that is cut is put together in memory of its own.

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadLine {
    /// A CR without the LF.
    BareCr,
    /// More bytes than a line may have.
    TooLong,
}

/// The line that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// What came of it before, with its CR.
    kept: Vec<u8>,
    /// It was given out: the next begins afresh.
    is_whole: bool,
}

impl Line {
    /// Takes of `bytes` what belongs to the line: how many they are, and the line without its end once it is whole. A line has at most
    /// `max` bytes; a LF in it is left to the caller.
    pub fn take<'a>(&'a mut self, bytes: &'a [u8], max: usize) -> Result<(usize, Option<&'a [u8]>), BadLine> {
        if self.is_whole {
            self.kept.clear();
            self.is_whole = false;
        }
        if self.kept.last() == Some(&b'\r') {
            return match bytes.first() {
                None => Ok((0, None)),
                Some(b'\n') => {
                    self.kept.pop();
                    self.is_whole = true;
                    Ok((1, Some(&self.kept)))
                }
                Some(_) => Err(BadLine::BareCr),
            };
        }
        let room = max.saturating_sub(self.kept.len());
        let within = &bytes[..bytes.len().min(room + 1)];
        let Some(at) = memchr::memchr(b'\r', within) else {
            if within.len() > room {
                return Err(BadLine::TooLong);
            }
            self.kept.extend_from_slice(bytes);
            return Ok((bytes.len(), None));
        };
        match bytes.get(at + 1) {
            None => {
                self.kept.extend_from_slice(bytes);
                Ok((bytes.len(), None))
            }
            Some(b'\n') if self.kept.is_empty() => Ok((at + 2, Some(&bytes[..at]))),
            Some(b'\n') => {
                self.kept.extend_from_slice(&bytes[..at]);
                self.is_whole = true;
                Ok((at + 2, Some(&self.kept)))
            }
            Some(_) => Err(BadLine::BareCr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines of `text` when it comes in pieces of `step` bytes.
    fn lines(text: &[u8], step: usize, max: usize) -> Result<Vec<Vec<u8>>, BadLine> {
        let mut line = Line::default();
        let mut found = Vec::new();
        for piece in text.chunks(step) {
            let mut rest = piece;
            while !rest.is_empty() {
                let (used, whole) = line.take(rest, max)?;
                assert!(used > 0, "a piece is used up");
                found.extend(whole.map(<[u8]>::to_vec));
                rest = &rest[used..];
            }
        }
        Ok(found)
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = b"abc\r\n\r\nd\ne\r\nrest";
        for step in 1..=text.len() {
            assert_eq!(lines(text, step, 4).unwrap(), [&b"abc"[..], b"", b"d\ne"], "pieces of {step}");
        }
    }

    #[test]
    fn bare_cr_and_long_lines_are_refused_however_they_are_cut() {
        for step in 1..=8 {
            assert_eq!(lines(b"ab\rc\r\n", step, 9), Err(BadLine::BareCr));
            assert_eq!(lines(b"ab\r\r\n", step, 9), Err(BadLine::BareCr));
            assert_eq!(lines(b"abcd\r\n", step, 3), Err(BadLine::TooLong));
            assert_eq!(lines(b"abcde", step, 3), Err(BadLine::TooLong));
            assert_eq!(lines(b"x\r\n", step, 0), Err(BadLine::TooLong));
            assert_eq!(lines(b"abc\r\n", step, 3).unwrap(), [b"abc"]);
        }
    }
}
