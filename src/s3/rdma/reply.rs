//! What a client of the native mode is told, before it is a frame.

use super::transfer::Writes;
use crate::mem::Shared;
use crate::s3::answer::{Answer, Content};
use crate::s3::error::{CODE_FIELD, Code, HOST_ID, S3Error};
use crate::s3::service::TOO_LONG;

/// What a client is told, before it is bytes.
pub struct Reply<'a> {
    pub status: u16,
    /// Of an error: which.
    pub code: Option<Code>,
    /// Lines of HTTP.
    pub fields: Vec<u8>,
    pub bytes: u64,
    pub crc: u64,
    pub body: ReplyBody<'a>,
}

impl Reply<'_> {
    /// Bytes of a body that it has.
    pub fn sent(&self) -> u64 {
        if matches!(self.body, ReplyBody::None) { 0 } else { self.bytes }
    }
}

pub enum ReplyBody<'a> {
    None,
    /// In the window, once these WRITEs are done.
    Window(Writes<'a>),
    /// In the message, from these pieces.
    Pieces(Vec<Shared>),
    Document(Vec<u8>),
}

/// What does not fit, and what would be needed.
pub fn too_long(bytes: u64) -> Reply<'static> {
    Reply { status: TOO_LONG, code: None, fields: Vec::new(), bytes, crc: 0, body: ReplyBody::None }
}

/// An error of a request that cannot be read.
pub fn told_apart(error: &S3Error) -> Answer {
    told_of(error, "", "")
}

/// An error of a request for what is at this path, which has this number.
pub fn told_of(error: &S3Error, path: &str, id: &str) -> Answer {
    let (status, document) = (error.code.status(), error.to_xml(path, id, HOST_ID));
    // An answer to HEAD has no document.
    let answer = Answer { code: Some(error.code), ..Answer::new(status) };
    let answer = answer.header("content-type", "application/xml").header(CODE_FIELD, error.code.name());
    answer.content(Content::Document(document.into_bytes()))
}

/// What a client put years ago may be no field any more, and what was foreseen to fit may not.
pub fn broken() -> Reply<'static> {
    Reply { status: 500, code: Some(Code::InternalError), fields: Vec::new(), bytes: 0, crc: 0, body: ReplyBody::None }
}
