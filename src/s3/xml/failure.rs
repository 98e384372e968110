//! The body of an error: written by the server, read by the client.

use super::reader::{Document, Limits};
use super::writer::Writer;
use crate::s3::error::{Code, S3Error};

/// What the body of an error may measure; those of S3 have less than a kilobyte.
const LIMITS: Limits = Limits { bytes: 64 << 10, elements: 64 };

impl S3Error {
    /// The body it is answered with. `resource` is the path that was asked for, or nothing; `host_id` may be nothing too.
    ///
    /// It has no namespace: clients of all kinds look for `/Error/Code`. What a client sent and XML cannot hold is not told again.
    pub fn to_xml(&self, resource: &str, request_id: &str, host_id: &str) -> String {
        let mut writer = Writer::bare("Error");
        writer.text("Code", self.code.name());
        writer.text("Message", &self.message);
        for (name, value) in &self.fields {
            writer.text(name, &value.replace(is_not_for_xml, "\u{fffd}"));
        }
        if !resource.is_empty() {
            writer.text("Resource", resource);
        }
        writer.text("RequestId", request_id);
        if !host_id.is_empty() {
            writer.text("HostId", host_id);
        }
        writer.finish()
    }
}

/// Whether no document of XML 1.0 can hold it (its section 2.2, `Char`).
pub(super) fn is_not_for_xml(character: char) -> bool {
    matches!(character, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}')
}

/// The body of an error, as a client reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorDocument {
    /// The code's name; one that [`Code`] has not stays readable.
    pub code: String,
    /// For people.
    pub message: String,
    /// The path that was asked for.
    pub resource: Option<String>,
    /// Identifies the request in the server's log.
    pub request_id: Option<String>,
    /// Says which host it was, in a way.
    pub host_id: Option<String>,
    /// What else it has, in order.
    pub fields: Vec<(String, String)>,
}

impl ErrorDocument {
    /// Reads the body of an answer as an error.
    ///
    /// Copies and completions send the head of their answer before they are done: a client reads this first from their answers with
    /// status 200, too.
    ///
    /// # Errors
    /// `MalformedXML` when it is something else.
    pub fn parse(body: &[u8]) -> Result<ErrorDocument, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("Error")?;
        let mut error = ErrorDocument { code: root.need_string("Code")?, ..ErrorDocument::default() };
        for element in root.children() {
            let value = element.text().to_owned();
            match element.name() {
                "Code" => {}
                "Message" => error.message = value,
                "Resource" => error.resource = Some(value),
                "RequestId" => error.request_id = Some(value),
                "HostId" => error.host_id = Some(value),
                name => error.fields.push((name.to_owned(), value)),
            }
        }
        Ok(error)
    }

    /// The code, if it is one that [`Code`] has.
    pub fn known(&self) -> Option<Code> {
        Code::from_name(&self.code)
    }

    /// A field's value.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API reference, "REST error responses".
    const REFERENCE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<Error>
  <Code>NoSuchKey</Code>
  <Message>The resource you requested does not exist</Message>
  <Resource>/mybucket/myfoto.jpg</Resource>
  <RequestId>4442587FB7D0A2F9</RequestId>
</Error>"#;

    #[test]
    fn the_example_of_the_reference() {
        let error = ErrorDocument::parse(REFERENCE.as_bytes()).expect("an error");
        assert_eq!(error.known(), Some(Code::NoSuchKey));
        assert_eq!(error.resource.as_deref(), Some("/mybucket/myfoto.jpg"));
        let written = S3Error::with(Code::NoSuchKey, error.message.clone()).to_xml("/mybucket/myfoto.jpg", "4442587FB7D0A2F9", "");
        assert_eq!(written, super::super::tests::dense(REFERENCE));
    }

    #[test]
    fn fields_and_escapes() {
        let error = S3Error::from(Code::NoSuchBucket).field("BucketName", "a<b\u{1}");
        let body = error.to_xml("", "1", "h&h");
        assert!(
            body.ends_with("<BucketName>a&lt;b\u{fffd}</BucketName><RequestId>1</RequestId><HostId>h&amp;h</HostId></Error>"),
            "{body}"
        );
        let read = ErrorDocument::parse(body.as_bytes()).expect("an error");
        assert_eq!((read.field("BucketName"), read.host_id.as_deref(), read.resource.as_deref()), (Some("a<b\u{fffd}"), Some("h&h"), None));
    }

    #[test]
    fn other_bodies_are_none() {
        for body in ["<CopyObjectResult/>", "<Error/>", "<Error><Code><X/></Code></Error>", "<html>", ""] {
            assert!(ErrorDocument::parse(body.as_bytes()).is_err(), "{body}");
        }
        let strange = ErrorDocument::parse(b"<Error><Code>XMinioStorageFull</Code></Error>").expect("an error");
        assert_eq!((strange.known(), strange.code.as_str()), (None, "XMinioStorageFull"));
    }
}
