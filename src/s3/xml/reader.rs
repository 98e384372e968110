//! Reads a small XML document into a tree, within bounds, and values out of the tree.
//!
//! The tree holds names without their prefix, and text; of attributes only `type` (`xsi:type` of ACLs). It is one vector of elements and
//! one string, so what a body costs is bounded by its length and the elements allowed. Refused with `MalformedXML`: what is not well-formed
//! or not UTF-8, document type declarations, entities other than the five predefined (so nothing expands), text beside elements, and
//! whatever is over the bounds; a body over its length is `MaxMessageLengthExceeded`.
//!
//! Against XML 1.0 one thing is allowed: references to characters it cannot hold, such as `&#x1;`. S3 writes keys with them.

use std::str::FromStr;

use quick_xml::Reader;
use quick_xml::events::{BytesDecl, BytesStart, Event};

use super::Name;
use crate::s3::error::{Code, S3Error};
use crate::wire::http::{date, uri};

/// Elements inside elements. The deepest document, a lifecycle rule's tag, has 7.
pub const DEPTH_MAX: usize = 16;
/// Attributes of one element. S3's have at most two: `xmlns:xsi` and `xsi:type`.
pub const ATTRIBUTES_MAX: usize = 16;

/// What a document may measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its length. What receives a body stops there.
    pub bytes: usize,
    /// Its elements.
    pub elements: usize,
}

/// The error of everything that is no document of S3.
pub(super) fn malformed() -> S3Error {
    S3Error::new(Code::MalformedXml)
}

/// A piece of the tree's text.
#[derive(Clone, Copy, Default)]
struct Span {
    from: u32,
    to: u32,
}

/// None, as the index of an element.
const NONE: u32 = u32::MAX;

struct Node {
    name: Span,
    text: Span,
    /// Of the attribute `type`, if it has one.
    kind: Option<Span>,
    first: u32,
    next: u32,
}

/// A document that was read.
pub struct Document {
    nodes: Vec<Node>,
    text: String,
}

/// An element that is not closed yet.
struct Open {
    index: u32,
    /// Its last child so far.
    last: u32,
}

impl Document {
    /// Reads a body.
    ///
    /// # Errors
    /// `MissingRequestBodyError` of an empty one, `MaxMessageLengthExceeded`, `MalformedXML`.
    pub fn parse(body: &[u8], limits: Limits) -> Result<Document, S3Error> {
        // Spans are of 32 bits.
        if body.len() > limits.bytes.min(1 << 30) {
            return Err(S3Error::new(Code::MaxMessageLengthExceeded).field("MaxMessageLengthBytes", limits.bytes.to_string()));
        }
        if body.is_empty() {
            return Err(S3Error::new(Code::MissingRequestBodyError));
        }
        if !has_only_characters(body) {
            return Err(malformed());
        }
        let text = std::str::from_utf8(body).map_err(|_| malformed())?;
        let mut parser = Parser {
            document: Document { nodes: Vec::new(), text: String::with_capacity(text.len() / 2) },
            open: Vec::with_capacity(DEPTH_MAX),
            elements_max: limits.elements,
        };
        parser.run(text.strip_prefix('\u{feff}').unwrap_or(text))?;
        Ok(parser.document)
    }

    /// Its root, which has that name.
    ///
    /// # Errors
    /// `MalformedXML` when the root is another.
    pub fn root(&self, name: &str) -> Result<Element<'_>, S3Error> {
        let root = self.any_root();
        if root.name() == name { Ok(root) } else { Err(malformed()) }
    }

    /// Its root, whatever its name.
    pub fn any_root(&self) -> Element<'_> {
        Element { document: self, index: 0 }
    }

    fn at(&self, span: Span) -> &str {
        &self.text[span.from as usize..span.to as usize]
    }

    fn push(&mut self, text: &str) -> Span {
        let from = self.text.len() as u32;
        self.text.push_str(text);
        Span { from, to: self.text.len() as u32 }
    }
}

struct Parser {
    document: Document,
    open: Vec<Open>,
    elements_max: usize,
}

impl Parser {
    fn run(&mut self, text: &str) -> Result<(), S3Error> {
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        config.expand_empty_elements = true;
        config.check_comments = true;
        loop {
            match reader.read_event().map_err(|_| malformed())? {
                Event::Start(start) => self.start(&start)?,
                Event::End(_) => self.end()?,
                Event::Text(text) => self.text(&text)?,
                Event::CData(data) => self.text(&data)?,
                Event::GeneralRef(reference) => self.reference(&reference)?,
                Event::Decl(declaration) if self.document.nodes.is_empty() && is_utf8(&declaration) => {}
                Event::Comment(_) | Event::PI(_) => {}
                // Empty elements are expanded: there are none.
                Event::Decl(_) | Event::DocType(_) | Event::Empty(_) => return Err(malformed()),
                Event::Eof => break,
            }
        }
        if self.open.is_empty() && !self.document.nodes.is_empty() { Ok(()) } else { Err(malformed()) }
    }

    fn start(&mut self, start: &BytesStart<'_>) -> Result<(), S3Error> {
        let nodes = &mut self.document.nodes;
        if nodes.len() >= self.elements_max || self.open.len() >= DEPTH_MAX {
            return Err(malformed());
        }
        let index = nodes.len() as u32;
        match self.open.last_mut() {
            Some(parent) => {
                let last = std::mem::replace(&mut parent.last, index);
                match last {
                    NONE => {
                        // What stands before the first child is no value.
                        let before = std::mem::take(&mut nodes[parent.index as usize].text);
                        nodes[parent.index as usize].first = index;
                        if !is_blank(self.document.at(before)) {
                            return Err(malformed());
                        }
                    }
                    last => nodes[last as usize].next = index,
                }
            }
            None if index > 0 => return Err(malformed()),
            None => {}
        }
        let mut kind = None;
        for (count, attribute) in start.attributes().enumerate() {
            let attribute = attribute.map_err(|_| malformed())?;
            if count >= ATTRIBUTES_MAX {
                return Err(malformed());
            }
            if attribute.key.local_name().into_inner() == "type" && kind.is_none() {
                kind = Some(self.document.push(&attribute.value));
            }
        }
        let name = self.document.push(start.local_name().into_inner());
        let here = self.document.text.len() as u32;
        self.document.nodes.push(Node { name, text: Span { from: here, to: here }, kind, first: NONE, next: NONE });
        self.open.push(Open { index, last: NONE });
        Ok(())
    }

    fn end(&mut self) -> Result<(), S3Error> {
        self.open.pop().map(|_| ()).ok_or_else(malformed)
    }

    /// Text as it stands in the document.
    fn text(&mut self, text: &str) -> Result<(), S3Error> {
        // XML 1.0, section 2.11: however lines end, the text has `\n`.
        if !text.as_bytes().contains(&b'\r') {
            return self.append(text);
        }
        let mut lines = text.split('\r');
        let first = lines.next().unwrap_or_default();
        self.append(first)?;
        for line in lines {
            self.append("\n")?;
            self.append(line.strip_prefix('\n').unwrap_or(line))?;
        }
        Ok(())
    }

    fn reference(&mut self, name: &str) -> Result<(), S3Error> {
        let character = match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => character(name).ok_or_else(malformed)?,
        };
        if self.open.is_empty() {
            return Err(malformed());
        }
        self.append(character.encode_utf8(&mut [0; 4]))
    }

    fn append(&mut self, text: &str) -> Result<(), S3Error> {
        match self.open.last() {
            Some(Open { index, last: NONE }) => {
                let to = self.document.push(text).to;
                self.document.nodes[*index as usize].text.to = to;
                Ok(())
            }
            _ if is_blank(text) => Ok(()),
            _ => Err(malformed()),
        }
    }
}

/// The character of `#65` or `#x41`. What XML 1.0 cannot hold is allowed, as S3 does.
fn character(reference: &str) -> Option<char> {
    let number = reference.strip_prefix('#')?;
    let (digits, radix) = match number.strip_prefix('x') {
        Some(digits) => (digits, 16),
        None => (number, 10),
    };
    // `from_str_radix` takes a sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok().and_then(char::from_u32)
}

/// Whether it says that the document is in UTF-8, or nothing.
fn is_utf8(declaration: &BytesDecl<'_>) -> bool {
    match declaration.encoding() {
        None => true,
        Some(Ok(encoding)) => ["utf-8", "utf8", "us-ascii"].iter().any(|name| encoding.eq_ignore_ascii_case(name)),
        Some(Err(_)) => false,
    }
}

/// XML 1.0, section 2.2: other control characters are no characters. Looks at several at a time.
fn has_only_characters(body: &[u8]) -> bool {
    let is_control = |byte: u8| (byte < b' ') & (byte != b'\t') & (byte != b'\n') & (byte != b'\r');
    body.chunks(64).all(|bytes| !bytes.iter().fold(false, |found, byte| found | is_control(*byte)))
}

fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
}

/// An element of a document.
#[derive(Clone, Copy)]
pub struct Element<'a> {
    document: &'a Document,
    index: u32,
}

impl<'a> Element<'a> {
    fn node(self) -> &'a Node {
        &self.document.nodes[self.index as usize]
    }

    /// Its name without a prefix.
    pub fn name(self) -> &'a str {
        self.document.at(self.node().name)
    }

    /// Its text; of an element with elements in it none.
    pub fn text(self) -> &'a str {
        self.document.at(self.node().text)
    }

    /// The value of its attribute `type`, whatever the prefix.
    pub fn kind(self) -> Option<&'a str> {
        self.node().kind.map(|kind| self.document.at(kind))
    }

    /// The elements in it, in order.
    pub fn children(self) -> impl Iterator<Item = Element<'a>> {
        let mut next = self.node().first;
        std::iter::from_fn(move || {
            let child = (next != NONE).then_some(Element { document: self.document, index: next })?;
            next = child.node().next;
            Some(child)
        })
    }

    /// Those of that name.
    pub fn all(self, name: &str) -> impl Iterator<Item = Element<'a>> {
        self.children().filter(move |child| child.name() == name)
    }

    /// The one of that name, if there is one.
    ///
    /// # Errors
    /// `MalformedXML` when there are more.
    pub fn get(self, name: &str) -> Result<Option<Element<'a>>, S3Error> {
        let mut all = self.all(name);
        match (all.next(), all.next()) {
            (found, None) => Ok(found),
            _ => Err(malformed()),
        }
    }

    /// The one of that name.
    ///
    /// # Errors
    /// `MalformedXML` when there is none, or more.
    pub fn need(self, name: &str) -> Result<Element<'a>, S3Error> {
        self.get(name)?.ok_or_else(malformed)
    }

    /// Whether it holds only elements of these names.
    ///
    /// # Errors
    /// `MalformedXML` when there are others, or text.
    pub fn only(self, names: &[&str]) -> Result<(), S3Error> {
        if is_blank(self.text()) && self.children().all(|child| names.contains(&child.name())) { Ok(()) } else { Err(malformed()) }
    }

    /// The text of an element that has only text.
    ///
    /// # Errors
    /// `MalformedXML` when there are elements in it.
    pub fn string(self) -> Result<String, S3Error> {
        if self.node().first == NONE { Ok(self.text().to_owned()) } else { Err(malformed()) }
    }

    /// Its text without white space around it, which values other than names may have.
    fn value(self) -> Result<&'a str, S3Error> {
        if self.node().first == NONE { Ok(self.text().trim_ascii()) } else { Err(malformed()) }
    }

    /// A number.
    ///
    /// # Errors
    /// `MalformedXML` when it is none, or out of range.
    pub fn number<T: FromStr>(self) -> Result<T, S3Error> {
        let digits = self.value()?;
        if digits.starts_with('+') {
            return Err(malformed());
        }
        digits.parse().map_err(|_| malformed())
    }

    /// A truth value: `true` and `false` in any case, as clients write them, or 1 and 0, which XML Schema has too.
    ///
    /// # Errors
    /// `MalformedXML` when it is none.
    pub fn flag(self) -> Result<bool, S3Error> {
        match self.value()? {
            "1" => Ok(true),
            "0" => Ok(false),
            word if word.eq_ignore_ascii_case("true") => Ok(true),
            word if word.eq_ignore_ascii_case("false") => Ok(false),
            _ => Err(malformed()),
        }
    }

    /// A time in milliseconds since 1970: `2009-10-12T17:50:30.000Z`. A day alone is its midnight.
    ///
    /// # Errors
    /// `MalformedXML` when it is none, or before 1970.
    pub fn time_ms(self) -> Result<u64, S3Error> {
        let time = self.value()?;
        let time_ms = date::parse_iso8601(time).or_else(|| date::parse_iso8601(&format!("{time}T00:00:00Z")));
        time_ms.and_then(|time_ms| time_ms.try_into().ok()).ok_or_else(malformed)
    }

    /// A name, percent-encoded or not. A `+` is a space, as S3 itself writes them.
    ///
    /// # Errors
    /// `MalformedXML` when it is not encoded as it should be.
    pub fn decoded(self, is_encoded: bool) -> Result<String, S3Error> {
        let name = self.string()?;
        if is_encoded { uri::decode_query(&name).map(Into::into).map_err(|_| malformed()) } else { Ok(name) }
    }

    /// The name in the element of that name, if there is one.
    ///
    /// # Errors
    /// `MalformedXML` as of [`Element::decoded`].
    pub fn get_decoded(self, name: &str, is_encoded: bool) -> Result<Option<String>, S3Error> {
        self.get(name)?.map(|element| element.decoded(is_encoded)).transpose()
    }

    /// One of an enumeration.
    ///
    /// # Errors
    /// `MalformedXML` when it has no such name.
    pub fn one<T: Name>(self) -> Result<T, S3Error> {
        T::from_name(self.value()?).ok_or_else(malformed)
    }

    /// An ETag, without the quotes it may have.
    ///
    /// # Errors
    /// `MalformedXML` when there are elements in it.
    pub fn etag(self) -> Result<String, S3Error> {
        let etag = self.value()?;
        Ok(etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag).to_owned())
    }

    /// The text of the element of that name, if there is one.
    ///
    /// # Errors
    /// `MalformedXML` when there are more, or elements in it.
    pub fn get_string(self, name: &str) -> Result<Option<String>, S3Error> {
        self.get(name)?.map(Element::string).transpose()
    }

    /// The text of the element of that name.
    ///
    /// # Errors
    /// `MalformedXML` when there is none, there are more, or elements in it.
    pub fn need_string(self, name: &str) -> Result<String, S3Error> {
        self.need(name)?.string()
    }

    /// The truth value of the element of that name; `false` without it.
    ///
    /// # Errors
    /// `MalformedXML` as of [`Element::flag`].
    pub fn get_flag(self, name: &str) -> Result<bool, S3Error> {
        self.get(name)?.map_or(Ok(false), Element::flag)
    }

    /// The number of the element of that name, if there is one.
    ///
    /// # Errors
    /// `MalformedXML` as of [`Element::number`].
    pub fn get_number<T: FromStr>(self, name: &str) -> Result<Option<T>, S3Error> {
        self.get(name)?.map(Element::number).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bytes: 1 << 16, elements: 100 };

    fn code(body: &str) -> Option<Code> {
        Document::parse(body.as_bytes(), LIMITS).err().map(|error| error.code)
    }

    fn text(body: &str) -> String {
        Document::parse(body.as_bytes(), LIMITS).expect("it is well-formed").any_root().text().to_owned()
    }

    #[test]
    fn a_tree() {
        let body =
            b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8' standalone=\"yes\"?>\n<!-- list --><s3:A xmlns:s3='urn:x' b=\"c\">\r\n\
            <B>1</B> <C x:type='t'><D/></C><!-- --><B>2</B>\t</s3:A>\n<!-- end -->\n";
        let document = Document::parse(body, LIMITS).expect("it is well-formed");
        let root = document.root("A").expect("its name");
        assert_eq!(root.children().map(Element::name).collect::<Vec<_>>(), ["B", "C", "B"]);
        assert_eq!(root.all("B").map(Element::text).collect::<Vec<_>>(), ["1", "2"]);
        let c = root.need("C").expect("there is one");
        assert_eq!(c.kind(), Some("t"));
        assert_eq!(c.get("D").expect("at most one").expect("one").text(), "");
        assert!(root.get("B").is_err() && root.need("D").is_err() && root.get("D").is_ok_and(|none| none.is_none()));
        assert!(root.only(&["B", "C"]).is_ok() && root.only(&["B"]).is_err());
        assert!(document.root("B").is_err() && root.string().is_err());
    }

    #[test]
    fn text_of_all_kinds() {
        assert_eq!(text("<A> a&lt;&amp;&gt;&quot;&apos; b </A>"), " a<&>\"' b ");
        assert_eq!(text("<A>&#65;&#x42;&#x1F600;</A>"), "AB\u{1F600}");
        assert_eq!(text("<A>a<!-- x -->b<![CDATA[<&amp;]]>c<?pi x?>d</A>"), "ab<&amp;cd");
        assert_eq!(text("<A>1\r\n2\r3\n4\r\r\n5&#13;6</A>"), "1\n2\n3\n4\n\n5\r6");
        // Not XML 1.0: what S3 writes of keys with such characters.
        assert_eq!(text("<A>&#x1;&#0;&#xFFFF;</A>"), "\u{1}\0\u{ffff}");
    }

    #[test]
    fn values() {
        let body = b"<A><N> 12 </N><P>+1</P><M>-3</M><T>True</T><F>0</F><D>2009-10-12T17:50:30.000Z</D><C>2017-09-27</C><B>1969-12-31</B>\
            <E>&quot;ab&quot;</E><G>ab</G><U>a+b%2B/%C3%A9</U><W>%</W></A>";
        let document = Document::parse(body, LIMITS).expect("it is well-formed");
        let root = document.any_root();
        let child = |name| root.need(name).expect("there is one");
        assert_eq!(child("N").number::<u16>(), Ok(12));
        assert_eq!(child("M").number::<i32>(), Ok(-3));
        assert!(child("M").number::<u32>().is_err() && child("P").number::<u32>().is_err() && child("T").number::<u32>().is_err());
        assert_eq!((child("T").flag(), child("F").flag(), child("N").flag().is_err()), (Ok(true), Ok(false), true));
        assert_eq!(child("D").time_ms(), Ok(1_255_369_830_000));
        assert_eq!((child("C").time_ms(), child("B").time_ms()), (Ok(1_506_470_400_000), Err(malformed())));
        assert_eq!((child("U").decoded(true), child("U").decoded(false)), (Ok("a b+/é".into()), Ok("a+b%2B/%C3%A9".into())));
        assert_eq!((child("W").decoded(true), child("W").decoded(false)), (Err(malformed()), Ok("%".into())));
        assert_eq!((child("E").etag(), child("G").etag()), (Ok("ab".into()), Ok("ab".into())));
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        for body in [
            " ",
            "text",
            "<A>",
            "</A>",
            "<A></B>",
            "<A></A><B/>",
            "<A/>text",
            "<A/>&lt;",
            "x<A/>",
            "<A>text<B/></A>",
            "<A><B/>text</A>",
            "<A><B/>&#65;</A>",
            "<A><![CDATA[x]]><B/></A>",
            "<A",
            "<A b=c/>",
            "<A b='1' b='2'/>",
            "<A>&</A>",
            "<A>&amp</A>",
            "<A>&#xD800;</A>",
            "<A>&#x110000;</A>",
            "<A>&#+65;</A>",
            "<A>&#;</A>",
            "<A>\u{1}</A>",
            "<A><!-- </A>",
            "<A><!-- -- --></A>",
            "<A><![CDATA[ </A>",
            "<A/><?xml version='1.0'?>",
            "<?xml version='1.0' encoding='UTF-16'?><A/>",
            "<?xml version='1.0' encoding='latin1'?><A/>",
        ] {
            assert_eq!(code(body), Some(Code::MalformedXml), "{body:?}");
        }
        assert_eq!(Document::parse(b"<A>\xff</A>", LIMITS).err().map(|error| error.code), Some(Code::MalformedXml));
        assert_eq!(Document::parse(b"\xff\xfe<\0A\0/\0>\0", LIMITS).err().map(|error| error.code), Some(Code::MalformedXml));
        assert_eq!(code(""), Some(Code::MissingRequestBodyError));
    }

    #[test]
    fn entities_and_document_types_are_refused() {
        let mut laughs = "<!DOCTYPE lolz [<!ENTITY lol \"lol\">".to_owned();
        for i in 1..10 {
            laughs += &format!("<!ENTITY lol{i} \"{}\">", format!("&lol{};", i - 1).repeat(10));
        }
        for body in [
            laughs + "]><A>&lol9;</A>",
            "<!DOCTYPE A SYSTEM \"file:///etc/passwd\"><A/>".to_owned(),
            "<!DOCTYPE A [<!ENTITY x SYSTEM \"http://localhost/\">]><A>&x;</A>".to_owned(),
            "<A>&nbsp;</A>".to_owned(),
            "<A>&lol;</A>".to_owned(),
        ] {
            assert_eq!(code(&body), Some(Code::MalformedXml), "{body:?}");
        }
    }

    #[test]
    fn bounds() {
        let nested = |depth| "<A>".repeat(depth) + &"</A>".repeat(depth);
        assert_eq!(code(&nested(DEPTH_MAX)), None);
        assert_eq!(code(&nested(DEPTH_MAX + 1)), Some(Code::MalformedXml));
        assert_eq!(code(&"<A>".repeat(20_000)), Some(Code::MalformedXml));
        let wide = |count: usize| format!("<A>{}</A>", "<B/>".repeat(count));
        assert_eq!(code(&wide(LIMITS.elements - 1)), None);
        assert_eq!(code(&wide(LIMITS.elements)), Some(Code::MalformedXml));
        let dressed = |count: usize| format!("<A {}/>", (0..count).map(|i| format!("a{i}='' ")).collect::<String>());
        assert_eq!(code(&dressed(ATTRIBUTES_MAX)), None);
        assert_eq!(code(&dressed(ATTRIBUTES_MAX + 1)), Some(Code::MalformedXml));
        assert_eq!(code(&dressed(6000)), Some(Code::MalformedXml));
        let long = |bytes: usize| format!("<A>{}</A>", "x".repeat(bytes - 7));
        assert_eq!(code(&long(LIMITS.bytes)), None);
        assert_eq!(code(&long(LIMITS.bytes + 1)), Some(Code::MaxMessageLengthExceeded));
    }
}
