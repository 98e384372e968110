//! What a request is answered with, before it is bytes.

use std::borrow::Cow;

use super::encryption::reading::Reading;
use super::error::Code;

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Fields of its header, but for those every answer has.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// Its body.
    pub content: Content,
    /// Of an error: which.
    pub code: Option<Code>,
}

/// The body of an answer.
pub enum Content {
    /// None, and its length is told as 0, or not at all where the status has none.
    None,
    /// A document.
    Document(Vec<u8>),
    /// An object's bytes.
    Object(Box<Reading>),
    /// None, of an object with so many bytes: the answer to HEAD.
    Told(u64),
}

impl Answer {
    /// One without a body.
    pub fn new(status: u16) -> Answer {
        Answer { status, headers: Vec::new(), content: Content::None, code: None }
    }

    /// A document of XML.
    pub fn xml(document: impl Into<Vec<u8>>) -> Answer {
        Answer::new(200).header("content-type", "application/xml").content(Content::Document(document.into()))
    }

    /// With a field.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With a field, if there is a value.
    #[must_use]
    pub fn maybe(self, name: &'static str, value: Option<impl Into<String>>) -> Answer {
        match value {
            Some(value) => self.header(name, value),
            None => self,
        }
    }

    /// With a body.
    #[must_use]
    pub fn content(mut self, content: Content) -> Answer {
        self.content = content;
        self
    }
}
