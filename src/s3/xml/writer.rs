//! Writes the documents of S3: text behind text into one string, no tree.
//!
//! Text is escaped so that it reads back as it was: `&`, `<`, `>` and `"`, and every control character below U+0020 as a reference,
//! `&#xD;`, since a parser would change or refuse it. XML 1.0 cannot hold most of those, nor U+FFFE and U+FFFF, not even as references.
//! Keys may have them, and S3 answers such keys with references all the same: strict parsers refuse the answer, so clients that must not
//! fail ask for `encoding-type=url`. We do as S3 does.

use super::Name;
use crate::wire::http::{date, uri};

/// What every document begins with. A writer that sends it before the rest is known strips it from the rest.
pub const HEADER: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
/// The namespace of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// A document in the making.
pub struct Writer {
    out: String,
    root: &'static str,
}

impl Writer {
    /// A document of S3's namespace.
    pub fn new(root: &'static str) -> Writer {
        Writer::in_namespace(root, NAMESPACE)
    }

    /// A document of another namespace.
    pub fn in_namespace(root: &'static str, namespace: &str) -> Writer {
        let mut writer = Writer { out: HEADER.to_owned(), root };
        writer.push(&["<", root, " xmlns=\"", namespace, "\">"]);
        writer
    }

    /// A document without a namespace, as errors are.
    pub fn bare(root: &'static str) -> Writer {
        let mut writer = Writer { out: HEADER.to_owned(), root };
        writer.open(root);
        writer
    }

    /// Makes room for so many bytes more.
    pub fn reserve(&mut self, bytes: usize) {
        self.out.reserve(bytes);
    }

    /// What is written so far, which can be sent.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// The document, or what was not taken of it.
    pub fn finish(mut self) -> String {
        self.close(self.root);
        self.out
    }

    fn push(&mut self, pieces: &[&str]) {
        for piece in pieces {
            self.out.push_str(piece);
        }
    }

    /// Opens an element.
    pub fn open(&mut self, name: &str) {
        self.push(&["<", name, ">"]);
    }

    /// Opens an element with its attributes, as they are written.
    pub fn open_with(&mut self, name: &str, attributes: &str) {
        self.push(&["<", name, " ", attributes, ">"]);
    }

    /// Closes it.
    pub fn close(&mut self, name: &str) {
        self.push(&["</", name, ">"]);
    }

    /// An element with elements in it.
    pub fn within(&mut self, name: &str, inner: impl FnOnce(&mut Writer)) {
        self.open(name);
        inner(self);
        self.close(name);
    }

    /// Text inside the element that is open.
    pub fn content(&mut self, value: &str) {
        escape(value, &mut self.out);
    }

    /// An element with text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.open(name);
        self.content(value);
        self.close(name);
    }

    /// An element with text, if there is some.
    pub fn text_if(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// An element with a name, percent-encoded or not.
    pub fn name(&mut self, element: &str, value: &str, is_encoded: bool) {
        if !is_encoded {
            return self.text(element, value);
        }
        self.open(element);
        // What needs escapes is encoded.
        uri::encode_listed(value.as_bytes()).for_each(|piece| self.out.push_str(piece));
        self.close(element);
    }

    /// An element with a number.
    pub fn number(&mut self, name: &str, value: u64) {
        self.push(&["<", name, ">", itoa::Buffer::new().format(value)]);
        self.close(name);
    }

    /// An element with a number, if there is one.
    pub fn number_if(&mut self, name: &str, value: Option<impl Into<u64>>) {
        if let Some(value) = value {
            self.number(name, value.into());
        }
    }

    /// An element with a truth value.
    pub fn flag(&mut self, name: &str, value: bool) {
        self.push(&["<", name, if value { ">true</" } else { ">false</" }, name, ">"]);
    }

    /// An element with a time in milliseconds since 1970: `2009-10-12T17:50:30.000Z`.
    pub fn time(&mut self, name: &str, time_ms: u64) {
        self.open(name);
        self.out.push_str(&date::iso8601(time_ms.try_into().unwrap_or(i64::MAX)));
        self.close(name);
    }

    /// The same as S3 tells when something was made or changed: in whole seconds, as `Last-Modified` has them.
    pub fn seconds(&mut self, name: &str, time_ms: u64) {
        self.time(name, time_ms / 1000 * 1000);
    }

    /// The element of an ETag, which gets its quotes.
    pub fn etag(&mut self, etag: &str) {
        self.out.push_str("<ETag>&quot;");
        self.content(etag);
        self.out.push_str("&quot;</ETag>");
    }

    /// An element with one of an enumeration.
    pub fn one(&mut self, name: &str, value: impl Name) {
        self.push(&["<", name, ">", value.name(), "</", name, ">"]);
    }

    /// An element with one of an enumeration, if there is one.
    pub fn one_if(&mut self, name: &str, value: Option<impl Name>) {
        if let Some(value) = value {
            self.one(name, value);
        }
    }
}

/// Whether XML 1.0 can have a character, as such or by reference.
pub fn is_of_xml(character: char) -> bool {
    !matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// References to the control characters.
const CONTROLS: [&str; 32] = [
    "&#x0;", "&#x1;", "&#x2;", "&#x3;", "&#x4;", "&#x5;", "&#x6;", "&#x7;", "&#x8;", "&#x9;", "&#xA;", "&#xB;", "&#xC;", "&#xD;", "&#xE;",
    "&#xF;", "&#x10;", "&#x11;", "&#x12;", "&#x13;", "&#x14;", "&#x15;", "&#x16;", "&#x17;", "&#x18;", "&#x19;", "&#x1A;", "&#x1B;",
    "&#x1C;", "&#x1D;", "&#x1E;", "&#x1F;",
];

/// Bytes that text is not copied through. U+FFFE and U+FFFF begin with 0xEF, as others do.
const SPECIAL: [bool; 256] = {
    let mut special = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        special[byte] = byte < 0x20 || matches!(byte as u8, b'&' | b'<' | b'>' | b'"' | 0xef);
        byte += 1;
    }
    special
};

/// Appends text so that it is read as it is, in an element or in an attribute between double quotes.
pub fn escape(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = rest.bytes().position(|byte| SPECIAL[usize::from(byte)]) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut behind = special.chars();
        match behind.next() {
            Some('&') => out.push_str("&amp;"),
            Some('<') => out.push_str("&lt;"),
            Some('>') => out.push_str("&gt;"),
            Some('"') => out.push_str("&quot;"),
            Some('\u{fffe}') => out.push_str("&#xFFFE;"),
            Some('\u{ffff}') => out.push_str("&#xFFFF;"),
            Some(control @ '\0'..'\u{20}') => out.push_str(CONTROLS[control as usize]),
            other => out.extend(other),
        }
        rest = behind.as_str();
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document() {
        let mut writer = Writer::new("A");
        writer.text("B", "a<b");
        assert_eq!(
            writer.take(),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<A xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><B>a&lt;b</B>"
        );
        writer.within("C", |writer| {
            writer.number("N", u64::MAX);
            writer.number_if("O", None::<u32>);
            writer.flag("T", true);
            writer.flag("F", false);
        });
        writer.time("D", 1_255_369_830_000);
        writer.etag("ab\"");
        writer.name("K", "a b<\u{1}", false);
        writer.name("K", "a b/<\u{1}é", true);
        assert_eq!(
            writer.finish(),
            "<C><N>18446744073709551615</N><T>true</T><F>false</F></C><D>2009-10-12T17:50:30.000Z</D><ETag>&quot;ab&quot;&quot;</ETag>\
             <K>a b&lt;&#x1;</K><K>a%20b/%3C%01%C3%A9</K></A>"
        );
        assert_eq!(Writer::bare("A").finish().strip_prefix(HEADER), Some("<A></A>"));
    }

    #[test]
    fn escapes() {
        let escaped = |value| {
            let mut out = String::new();
            escape(value, &mut out);
            out
        };
        assert_eq!(escaped("a&b<c>d\"e'f"), "a&amp;b&lt;c&gt;d&quot;e'f");
        assert_eq!(escaped("\r\n\t\0\u{1}\u{1f} \u{7f}"), "&#xD;&#xA;&#x9;&#x0;&#x1;&#x1F; \u{7f}");
        assert_eq!(escaped("é\u{ffff}\u{fffe}\u{fffd}\u{10ffff}"), "é&#xFFFF;&#xFFFE;\u{fffd}\u{10ffff}");
        assert_eq!(escaped(""), "");
    }
}
