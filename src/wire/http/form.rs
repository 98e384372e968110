//! `multipart/form-data` (RFC 7578, RFC 2046), in which a browser posts an object: fields first, then `file`, whose data streams through.
//!
//! The fields are kept here. Of the file's data nothing is: it goes, in the order it is received, to where it is to be, and
//! [`scan`](Form::scan) is shown each byte once. The end of the file shows itself only by the delimiter behind it, so some of what was
//! received last may turn out not to be payload: [`payload_bytes`](Form::payload_bytes) says how much, from the file's first byte, is for
//! sure. What follows the file is ignored, as S3 says.

use std::borrow::Cow;

use super::line::Line;
use super::{is_field_value, trim};

/// Bytes before the file's data, delimiters and all, at most: S3 allows 20 KB.
pub const FIELDS_MAX: usize = 20 << 10;
/// Bytes of the longest boundary (RFC 2046, section 5.1.1).
pub const BOUNDARY_MAX: usize = 70;
/// Bytes of space behind a delimiter, which is allowed (RFC 2046, section 5.1.1) and which nobody sends.
const PADDING_MAX: usize = 64;

/// Why a body is no form with a file in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BadForm {
    /// The Content-Type is not `multipart/form-data` with a boundary: S3's `PreconditionFailed`.
    #[error("not multipart/form-data with a boundary")]
    ContentType,
    /// Not the grammar of a form, or it ended before its time: S3's `MalformedPOSTRequest`.
    #[error("malformed multipart/form-data")]
    Malformed,
    /// More than [`FIELDS_MAX`] bytes before the file: S3's `MaxPostPreDataLengthExceededError`.
    #[error("the fields before the file are too long")]
    TooLong,
    /// The form has no field `file`, of which S3 wants one.
    #[error("no file in the form")]
    NoFile,
}

/// What of a form comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Fields: for [`Form::fields`].
    Fields,
    /// The file's data: for [`Form::scan`].
    File,
    /// Nothing of interest.
    End,
}

/// Looks for the delimiter of a form in a stream.
#[derive(Clone, Debug)]
struct Delimiter {
    /// CRLF, `--` and the boundary. No CR is in it but the first.
    text: Box<[u8]>,
    /// So much of it ends what was searched.
    matched: usize,
}

impl Delimiter {
    /// The byte of `bytes` behind the delimiter, if that ends in them.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.matched == 0 {
                at += memchr::memchr(b'\r', &bytes[at..])? + 1;
                self.matched = 1;
            } else if bytes[at] == self.text[self.matched] {
                at += 1;
                self.matched += 1;
                if self.matched == self.text.len() {
                    self.matched = 0;
                    return Some(at);
                }
            } else {
                // Only at this byte can it begin again: there is no CR within what matched.
                self.matched = 0;
            }
        }
        None
    }
}

#[derive(Clone, Debug, Default)]
struct Field {
    name: String,
    value: Vec<u8>,
}

/// What the fields of a part's head say.
#[derive(Clone, Debug, Default)]
struct PartHead {
    name: Option<String>,
    file_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// Behind a delimiter, in its line.
    DelimiterLine,
    PartHead,
    Value,
    File,
    End,
}

/// A form being received.
#[derive(Clone, Debug)]
pub struct Form {
    delimiter: Delimiter,
    line: Line,
    state: State,
    /// Bytes before the file's data.
    front_bytes: usize,
    part: PartHead,
    fields: Vec<Field>,
    /// Bytes that were scanned, up to the delimiter's end.
    scanned_bytes: u64,
}

impl Form {
    /// A form of which nothing has come, by the request's Content-Type.
    ///
    /// # Errors
    /// `ContentType`.
    pub fn new(content_type: &str) -> Result<Form, BadForm> {
        let (kind, parameters) = content_type.split_once(';').ok_or(BadForm::ContentType)?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(BadForm::ContentType);
        }
        let boundary = parameter(parameters, "boundary").ok().flatten().ok_or(BadForm::ContentType)?;
        let is_good = (1..=BOUNDARY_MAX).contains(&boundary.len()) && boundary.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_good || boundary.ends_with(' ') {
            return Err(BadForm::ContentType);
        }
        let text = [b"\r\n--", boundary.as_bytes()].concat().into();
        Ok(Form {
            // The first delimiter may be the first line, without a CRLF before it.
            delimiter: Delimiter { text, matched: 2 },
            line: Line::default(),
            state: State::Preamble,
            front_bytes: 0,
            part: PartHead::default(),
            fields: Vec::new(),
            scanned_bytes: 0,
        })
    }

    /// What comes next.
    pub fn part(&self) -> Part {
        match self.state {
            State::Preamble | State::DelimiterLine | State::PartHead | State::Value => Part::Fields,
            State::File => Part::File,
            State::End => Part::End,
        }
    }

    /// Takes fields: all of `bytes`, or those before the file's data. Gives how many they are.
    ///
    /// # Errors
    /// When the form is malformed. The decoder is of no more use then.
    pub fn fields(&mut self, bytes: &[u8]) -> Result<usize, BadForm> {
        let mut used = 0;
        while self.part() == Part::Fields && used < bytes.len() {
            let room = FIELDS_MAX - self.front_bytes;
            if room == 0 {
                return Err(BadForm::TooLong);
            }
            let rest = &bytes[used..];
            let taken = self.take(&rest[..rest.len().min(room)])?;
            used += taken;
            self.front_bytes += taken;
        }
        Ok(used)
    }

    /// Takes something of the fields.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, BadForm> {
        match self.state {
            State::Preamble | State::Value => {
                let found = self.delimiter.find(bytes);
                let taken = found.unwrap_or(bytes.len());
                if self.state == State::Value {
                    let value = &mut self.fields.last_mut().expect("a value is of a field").value;
                    value.extend_from_slice(&bytes[..taken]);
                    if found.is_some() {
                        value.truncate(value.len() - self.delimiter.text.len());
                    }
                }
                if found.is_some() {
                    self.state = State::DelimiterLine;
                }
                Ok(taken)
            }
            State::DelimiterLine => {
                let (taken, line) = self.line.take(bytes, PADDING_MAX).map_err(|_| BadForm::Malformed)?;
                match line.map(trim) {
                    None => {}
                    Some([]) => self.state = State::PartHead,
                    Some([b'-', b'-', ..]) => return Err(BadForm::NoFile),
                    Some(_) => return Err(BadForm::Malformed),
                }
                Ok(taken)
            }
            State::PartHead => {
                let (taken, line) = self.line.take(bytes, FIELDS_MAX).map_err(|_| BadForm::Malformed)?;
                match line {
                    None => {}
                    Some([]) => self.begin()?,
                    Some(line) => self.part.read(line)?,
                }
                Ok(taken)
            }
            State::File | State::End => Ok(0),
        }
    }

    /// The head of a part has ended.
    fn begin(&mut self) -> Result<(), BadForm> {
        let name = self.part.name.as_deref().ok_or(BadForm::Malformed)?;
        if name.eq_ignore_ascii_case("file") {
            self.state = State::File;
        } else {
            self.fields.push(Field { name: name.into(), value: Vec::new() });
            self.part = PartHead::default();
            self.state = State::Value;
        }
        Ok(())
    }

    /// Looks at bytes of the file's data as they were received: all of them, each once. When the file [ends](Part::End) in them, what
    /// follows it is none of them.
    pub fn scan(&mut self, bytes: &[u8]) {
        if self.state == State::File {
            let found = self.delimiter.find(bytes);
            self.scanned_bytes += found.unwrap_or(bytes.len()) as u64;
            if found.is_some() {
                self.state = State::End;
            }
        }
    }

    /// Bytes of the file that are known to be its: all of them when it has ended. At most 74 that were scanned are not among them, the
    /// last ones, until more show what they are.
    pub fn payload_bytes(&self) -> u64 {
        let undecided = match self.state {
            State::File => self.delimiter.matched,
            State::End => self.delimiter.text.len(),
            _ => 0,
        };
        self.scanned_bytes - undecided as u64
    }

    /// The request's body has ended.
    ///
    /// # Errors
    /// `NoFile` or `Malformed` when the form is not whole by that.
    pub fn end(&self) -> Result<(), BadForm> {
        match self.state {
            State::End => Ok(()),
            // The last delimiter's line may lack its CRLF.
            State::DelimiterLine => Err(BadForm::NoFile),
            _ => Err(BadForm::Malformed),
        }
    }

    /// The fields before the file, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let is_whole = self.state != State::Value;
        let count = self.fields.len() - usize::from(!is_whole);
        self.fields[..count].iter().map(|field| (field.name.as_str(), field.value.as_slice()))
    }

    /// The value of the first field of that name, in any case, if it is UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.iter().find(|field| field.0.eq_ignore_ascii_case(name))?;
        str::from_utf8(value).ok()
    }

    /// The file's name as the browser sent it, which may be a path of either kind: of `${filename}` in a key.
    pub fn file_name(&self) -> Option<&str> {
        self.part.file_name.as_deref()
    }
}

impl PartHead {
    fn read(&mut self, line: &[u8]) -> Result<(), BadForm> {
        let line = str::from_utf8(line).map_err(|_| BadForm::Malformed)?;
        let (name, value) = line.split_once(':').ok_or(BadForm::Malformed)?;
        if !is_field_value(value.as_bytes()) {
            return Err(BadForm::Malformed);
        }
        if name.eq_ignore_ascii_case("content-disposition") {
            let (kind, parameters) = value.split_once(';').ok_or(BadForm::Malformed)?;
            if !kind.trim().eq_ignore_ascii_case("form-data") {
                return Err(BadForm::Malformed);
            }
            self.name = parameter(parameters, "name")?.map(Cow::into_owned);
            self.file_name = parameter(parameters, "filename")?.map(Cow::into_owned);
        }
        Ok(())
    }
}

/// The first parameter of that name in a list of `; name=value` and `; name="value"`.
fn parameter<'a>(mut list: &'a str, wanted: &str) -> Result<Option<Cow<'a, str>>, BadForm> {
    loop {
        list = list.trim_start_matches([' ', '\t', ';']);
        if list.is_empty() {
            return Ok(None);
        }
        let (name, rest) = list.split_once('=').ok_or(BadForm::Malformed)?;
        let (value, behind) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted).ok_or(BadForm::Malformed)?,
            None => {
                let (value, behind) = rest.split_at(rest.find(';').unwrap_or(rest.len()));
                (Cow::Borrowed(value.trim_end()), behind)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Ok(Some(value));
        }
        list = behind;
    }
}

/// The text up to the closing quote, and what is behind that. A backslash escapes a quote and otherwise stands for itself: some browsers
/// send whole paths, in which it parts directories.
fn unquote(quoted: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = quoted.bytes().enumerate().find(|&(at, byte)| byte == b'"' && (at == 0 || quoted.as_bytes()[at - 1] != b'\\'))?.0;
    let (value, behind) = quoted.split_at(end);
    let value = if value.contains("\\\"") { Cow::Owned(value.replace("\\\"", "\"")) } else { Cow::Borrowed(value) };
    Some((value, &behind[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a form said: its fields, the file's name, its data, and whether it ended.
    #[derive(Debug, PartialEq)]
    struct Seen {
        fields: Vec<(String, String)>,
        file_name: Option<String>,
        data: Vec<u8>,
        ended: bool,
    }

    /// Reads a form that comes in pieces of the given lengths, in turn.
    fn read(boundary: &str, body: &[u8], steps: &[usize]) -> Result<Seen, BadForm> {
        let mut form = Form::new(&format!("multipart/form-data; boundary={boundary}"))?;
        let (mut rest, mut data) = (body, Vec::new());
        for step in steps.iter().cycle() {
            let (mut piece, later) = rest.split_at((*step).min(rest.len()));
            rest = later;
            if form.part() == Part::Fields {
                piece = &piece[form.fields(piece)?..];
            }
            let before = form.payload_bytes();
            form.scan(piece);
            data.extend_from_slice(piece);
            assert!(form.payload_bytes() >= before && form.payload_bytes() <= data.len() as u64);
            if form.part() == Part::File {
                assert!(data.len() as u64 - form.payload_bytes() < 4 + boundary.len() as u64, "little is held back");
            }
            if rest.is_empty() {
                break;
            }
        }
        data.truncate(form.payload_bytes() as usize);
        let fields = form.iter().map(|(name, value)| (name.into(), String::from_utf8_lossy(value).into())).collect();
        Ok(Seen { fields, file_name: form.file_name().map(Into::into), data, ended: form.end().is_ok() })
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    /// The form of "Browser-based uploads using HTTP POST" in the S3 API reference, shortened.
    const EXAMPLE: &str = "--9431149156168\r\n\
        Content-Disposition: form-data; name=\"key\"\r\n\r\nuser/user1/MyPicture.jpg\r\n--9431149156168\r\n\
        Content-Disposition: form-data; name=\"acl\"\r\n\r\npublic-read\r\n--9431149156168\r\n\
        Content-Disposition: form-data; name=\"x-amz-meta-tag\"\r\n\r\n\r\n--9431149156168\r\n\
        Content-Disposition: form-data; name=\"Policy\"\r\n\r\neyAi\r\n-\r\n--943114\r\n--9431149156168\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"MyFilename.jpg\"\r\nContent-Type: image/jpeg\r\n\r\n\
        file\r\r\n--943114915616\r\n\r\n-content\r\n--9431149156168\r\n\
        Content-Disposition: form-data; name=\"submit\"\r\n\r\nUpload to Amazon S3\r\n--9431149156168--\r\n";

    #[test]
    fn a_form_is_read_however_it_is_cut() {
        for step in 1..=EXAMPLE.len() {
            let seen = read("9431149156168", EXAMPLE.as_bytes(), &[step]).unwrap();
            let fields = [
                pair("key", "user/user1/MyPicture.jpg"),
                pair("acl", "public-read"),
                pair("x-amz-meta-tag", ""),
                pair("Policy", "eyAi\r\n-\r\n--943114"),
            ];
            assert_eq!(seen.fields, fields, "pieces of {step}");
            assert_eq!((seen.file_name.as_deref(), seen.ended), (Some("MyFilename.jpg"), true));
            assert_eq!(seen.data, b"file\r\r\n--943114915616\r\n\r\n-content");
        }
    }

    #[test]
    fn names_are_found_in_any_case() {
        let mut form = Form::new("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"").unwrap();
        let text = "preamble\r\n--a b \t\r\ncontent-disposition:form-data;NAME=kEy\r\nX-Other: 1\r\n\r\nv\r\n--a b\r\n\
            Content-Disposition: form-data; filename=\"C:\\dir\\a\\\"b;c.txt\"; name=\"FILE\"\r\nContent-Type: text/plain \r\n\r\nrest";
        let used = form.fields(text.as_bytes()).unwrap();
        assert_eq!((&text[used..], form.part()), ("rest", Part::File));
        assert_eq!((form.text("Key"), form.text("none")), (Some("v"), None));
        assert_eq!(form.file_name(), Some("C:\\dir\\a\"b;c.txt"));
    }

    #[test]
    fn content_types_without_a_boundary_are_refused() {
        for text in [
            "",
            "multipart/form-data",
            "multipart/form-data;",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=\"a",
            "multipart/form-data; boundary=\"a \"",
            "multipart/form-data; boundary=a\u{e9}",
            "multipart/form-data; boundary=\"a\r\nb\"",
            "multipart/mixed; boundary=a",
            &format!("multipart/form-data; boundary={}", "a".repeat(71)),
        ] {
            assert_eq!(Form::new(text).unwrap_err(), BadForm::ContentType, "{text:?}");
        }
    }

    #[test]
    fn malformed_forms_are_refused_however_they_are_cut() {
        let key = "Content-Disposition: form-data; name=\"key\"\r\n\r\n";
        for (body, why) in [
            ("--b--\r\n".to_string(), BadForm::NoFile),
            (format!("--b\r\n{key}v\r\n--b--\r\n"), BadForm::NoFile),
            ("--bad\r\n".to_string(), BadForm::Malformed),
            ("--b\r\n\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nContent-Type: text/plain\r\n\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nno colon\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nContent-Disposition: attachment; name=\"key\"\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nContent-Disposition: form-data; name=\"key\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nContent-Disposition: form-data; name\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nA: b\nc\r\n".to_string(), BadForm::Malformed),
            ("--b\r\nA: b\rc".to_string(), BadForm::Malformed),
            (format!("--b\r\n{key}{}", "v".repeat(FIELDS_MAX)), BadForm::TooLong),
            ("x".repeat(FIELDS_MAX + 1), BadForm::TooLong),
        ] {
            for step in [1, 2, 3, 7, 1000, body.len()] {
                assert_eq!(read("b", body.as_bytes(), &[step]), Err(why), "{:.60?} in pieces of {step}", body);
            }
        }
    }

    #[test]
    fn a_form_that_stops_early_is_not_whole() {
        for (cut, _) in
            EXAMPLE.char_indices().filter(|&(at, _)| at < EXAMPLE.find("\r\nContent-Disposition: form-data; name=\"submit\"").unwrap())
        {
            let seen = read("9431149156168", &EXAMPLE.as_bytes()[..cut], &[97]).unwrap();
            assert!(!seen.ended, "{cut} bytes");
        }
    }

    proptest! {
        #[test]
        fn the_file_is_what_was_sent(
            data in prop::collection::vec(prop::sample::select(b"\r\n--ab".to_vec()), 0..200),
            values in prop::collection::vec("[a-z\r\n-]{0,20}", 0..5),
            steps in prop::collection::vec(1usize..50, 1..20),
        ) {
            // The boundary is in neither.
            let boundary = "abx";
            let mut body = Vec::new();
            for (number, value) in values.iter().enumerate() {
                body.extend(format!("--abx\r\nContent-Disposition: form-data; name=\"n{number}\"\r\n\r\n{value}\r\n").bytes());
            }
            prop_assume!(!values.iter().any(|value| value.contains("--abx")));
            body.extend_from_slice(b"--abx\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n");
            body.extend_from_slice(&data);
            body.extend_from_slice(b"\r\n--abx--\r\n");
            let seen = read(boundary, &body, &steps).unwrap();
            let fields: Vec<_> = values.iter().enumerate().map(|(number, value)| pair(&format!("n{number}"), value)).collect();
            prop_assert_eq!(seen, Seen { fields, file_name: None, data, ended: true });
        }

        #[test]
        fn cuts_change_nothing(
            parts in prop::collection::vec(prop::sample::select(vec![
                "--b", "\r\n", "\r", "\n", "--", "\r\n--b\r\n", "Content-Disposition: form-data; name=\"a\"", "\r\n\r\n",
                "Content-Disposition: form-data; name=\"file\"", "x", ";", "\"", "A: b",
            ]), 0..30),
            steps in prop::collection::vec(1usize..20, 1..10),
        ) {
            let body = parts.concat();
            prop_assert_eq!(read("b", body.as_bytes(), &[body.len().max(1)]), read("b", body.as_bytes(), &steps));
        }
    }
}
