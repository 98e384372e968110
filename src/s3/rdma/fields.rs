//! Fields of answers of the native mode: lines as in HTTP/1.1.

use std::borrow::Cow;

use super::connect::BUCKET;
use crate::s3::octets;
use crate::wire::http::respond::Respond;

/// What an answer tells beside what was found.
#[derive(Clone, Copy)]
pub struct Label {
    /// The number of the request.
    pub id: u64,
    /// That of the bucket, for a client that has asked another core than the name's.
    pub bucket: Option<u32>,
}

/// Lines of an answer's fields, and those of its label.
pub fn labelled(lines: &[u8], label: Label) -> Vec<u8> {
    let mut fields = Vec::with_capacity(lines.len() + 96);
    put_fields(&mut fields, lines, label);
    fields
}

/// Appends both.
pub fn put_fields(fields: &mut Vec<u8>, lines: &[u8], label: Label) {
    fields.extend_from_slice(lines);
    put_label(fields, label);
}

/// Appends those of a label.
pub fn put_label(fields: &mut Vec<u8>, Label { id, bucket }: Label) {
    if let Some(bucket) = bucket {
        fields.extend_from_slice(format!("{BUCKET}: {bucket}\r\n").as_bytes());
    }
    let mut line = *b"x-amz-request-id: ________________\r\n";
    let digits: [u8; 16] = std::array::from_fn(|digit| b"0123456789ABCDEF"[(id >> (60 - 4 * digit) & 15) as usize]);
    line[18..34].copy_from_slice(&digits);
    fields.extend_from_slice(&line);
}

/// Fields as lines; nothing where one may not be in a line, or they are too many for a frame.
pub fn lines(headers: &[(Cow<'static, str>, String)]) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(512);
    let mut respond = Respond::new(&mut head, 200);
    for (name, value) in headers {
        respond.header(name, octets::told(value));
    }
    respond.finish().ok().filter(|()| head.len() <= usize::from(u16::MAX))?;
    // Without the first line, and the empty one that ends a head.
    let begins = head.windows(2).position(|pair| pair == b"\r\n")? + 2;
    head.truncate(head.len() - 2);
    head.drain(..begins);
    Some(head)
}
