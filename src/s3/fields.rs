//! Tagged fields: how what belongs to an object or a bucket is kept in the properties the store gives back.
//!
//! One byte of version, then fields: a tag of one byte, a length of four (little-endian), and the bytes. A tag may come more than once.
//! Readers skip tags they do not know; a version they do not know they refuse.

/// The version that is written.
const VERSION: u8 = 1;
/// Bytes of a tag and a length.
const HEAD: usize = 5;

/// Writes fields.
pub struct Writer(Vec<u8>);

impl Writer {
    /// No fields.
    pub fn new() -> Writer {
        Writer(vec![VERSION])
    }

    /// These, which were finished, and more; of so many bytes in all, about.
    pub fn behind(finished: &[u8], bytes: usize) -> Writer {
        let mut all = Vec::with_capacity(finished.len() + bytes);
        all.extend_from_slice(finished);
        Writer(all)
    }

    /// A field.
    pub fn bytes(&mut self, tag: u8, value: &[u8]) {
        self.0.push(tag);
        // What is longer than the store takes is refused by it.
        self.0.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.0.extend_from_slice(value);
    }

    /// A field of text, if there is some.
    pub fn text(&mut self, tag: u8, value: Option<&str>) {
        if let Some(value) = value {
            self.bytes(tag, value.as_bytes());
        }
    }

    /// A field of a name and a value.
    pub fn pair(&mut self, tag: u8, name: &str, value: &str) {
        // A name is shorter than the item that holds it, whose length is told in 16 bits.
        self.bytes(tag, &[&(name.len() as u16).to_le_bytes(), name.as_bytes(), value.as_bytes()].concat());
    }

    /// A field of a number.
    pub fn number(&mut self, tag: u8, value: u64) {
        self.bytes(tag, &value.to_le_bytes());
    }

    /// All of them.
    pub fn finish(self) -> Box<[u8]> {
        self.0.into()
    }
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

/// Not fields, or of a version that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its properties are none that this version reads")]
pub struct Unreadable;

/// Reads fields. Of no bytes at all there are none.
///
/// # Errors
/// `Unreadable`.
pub fn read(bytes: &[u8]) -> Result<Fields<'_>, Unreadable> {
    match bytes.split_first() {
        None => Ok(Fields(&[])),
        Some((&VERSION, rest)) => Ok(Fields(rest)),
        Some(_) => Err(Unreadable),
    }
}

/// Fields, in order: tag and bytes.
pub struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u8, &'a [u8]), Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut next = || {
            let (head, rest) = self.0.split_first_chunk::<HEAD>()?;
            let [tag, length @ ..] = *head;
            let length = u32::from_le_bytes(length) as usize;
            let (value, rest) = rest.split_at_checked(length)?;
            self.0 = rest;
            Some((tag, value))
        };
        let field = next().ok_or(Unreadable);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// A field's text.
///
/// # Errors
/// `Unreadable`: it is none.
pub fn text(value: &[u8]) -> Result<Box<str>, Unreadable> {
    std::str::from_utf8(value).map(Box::from).map_err(|_| Unreadable)
}

/// A field's name and value.
///
/// # Errors
/// `Unreadable`: it has none.
pub fn pair(value: &[u8]) -> Result<(Box<str>, Box<str>), Unreadable> {
    let (length, rest) = value.split_first_chunk().ok_or(Unreadable)?;
    let (name, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length))).ok_or(Unreadable)?;
    Ok((text(name)?, text(value)?))
}

/// A field's number.
///
/// # Errors
/// `Unreadable`: it is none.
pub fn number(value: &[u8]) -> Result<u64, Unreadable> {
    value.try_into().map(u64::from_le_bytes).map_err(|_| Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut writer = Writer::new();
        writer.text(1, Some("text/plain"));
        writer.text(2, None);
        writer.number(3, u64::MAX - 1);
        writer.bytes(1, b"");
        let bytes = writer.finish();
        let all: Vec<_> = read(&bytes).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], (1, &b"text/plain"[..]));
        assert_eq!((all[1].0, number(all[1].1)), (3, Ok(u64::MAX - 1)));
        assert_eq!(all[2], (1, &b""[..]));
        assert!(read(b"").unwrap().next().is_none());
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_refused() {
        let mut writer = Writer::new();
        writer.bytes(7, b"seven");
        let bytes = writer.finish();
        for cut in 2..bytes.len() {
            assert_eq!(read(&bytes[..cut]).unwrap().next(), Some(Err(Unreadable)), "{cut}");
        }
        assert!(read(&[2]).is_err());
        assert_eq!(text(&[0xff]), Err(Unreadable));
        assert_eq!(number(&[1, 2]), Err(Unreadable));
    }
}
