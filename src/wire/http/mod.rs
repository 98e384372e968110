//! HTTP/1.1 (RFC 9110, RFC 9112) as S3 speaks it: heads, bodies, addresses, dates and forms, without I/O.
//!
//! Nothing here waits, reads a clock or holds payload. Bytes of framing go in and what they mean comes out; payload stays where
//! it was received, and a decoder is only told how much of it was taken:
//!
//! ```
//! use basin::wire::http::body::{Body, Wants};
//! use basin::wire::http::head::{Framing, Head};
//!
//! let mut stream: &[u8] = b"PUT /b/k HTTP/1.1\r\nHost: s3\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n";
//! let (head, used) = Head::parse(stream).unwrap().expect("all of it is there");
//! stream = &stream[used..];
//! assert_eq!((head.method(), head.path(), head.framing()), ("PUT", "/b/k", Framing::Length(5)));
//!
//! let mut body = Body::new(head.framing(), None).unwrap();
//! loop {
//!     match body.wants() {
//!         Wants::Line => stream = &stream[body.framing(stream).unwrap().used..],
//!         Wants::Data(most) => {
//!             let count = most.min(stream.len() as u64);
//!             stream = &stream[count as usize..];
//!             body.data(count);
//!         }
//!         Wants::End => break,
//!     }
//! }
//! assert_eq!((body.payload_bytes(), stream), (5, &b"GET / HTTP/1.1\r\n"[..]));
//! ```
//!
//! | module | what it reads or writes |
//! | --- | --- |
//! | [`head`] | the head of a request |
//! | [`answer`] | the head of an answer, read |
//! | [`respond`] | the head of an answer, written |
//! | [`body`] | a body in any framing that S3 has |
//! | [`chunked`] | `Transfer-Encoding: chunked` |
//! | [`aws_chunked`] | `Content-Encoding: aws-chunked`: signed chunks, trailers |
//! | [`uri`] | percent-encoding in paths, queries and listings |
//! | [`date`] | the dates of HTTP, of XML and of signatures |
//! | [`form`] | `multipart/form-data`, in which browsers post objects |

pub mod answer;
pub mod aws_chunked;
pub mod body;
pub mod chunked;
pub mod date;
mod fields;
pub mod form;
pub mod head;
mod line;
pub mod respond;
pub mod uri;

/// The ASCII letters and digits, and these bytes.
const fn alphanumeric_and(others: &[u8]) -> [bool; 256] {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < set.len() {
        set[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        set[others[at] as usize] = true;
        at += 1;
    }
    set
}

/// Whether it may be in a token: a method, the name of a header field (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    static TOKEN: [bool; 256] = alphanumeric_and(b"!#$%&'*+-.^_`|~");
    TOKEN[usize::from(byte)]
}

/// Whether it may be the value of a header field (RFC 9110, section 5.5): visible, space, tab, or not ASCII.
fn is_field_value(value: &[u8]) -> bool {
    // All bytes are looked at, so that many are looked at at once.
    value.iter().fold(true, |is_good, &byte| is_good & (byte == b'\t' || (byte >= b' ' && byte != 0x7f)))
}

/// Whether a header can have such a field.
pub fn is_field(name: &str, value: &[u8]) -> bool {
    !name.is_empty() && name.bytes().all(is_token) && is_field_value(value)
}

/// Without the space and tabs around it (RFC 9110, section 5.6.3).
fn trim(bytes: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes.iter().take_while(|byte| is_space(byte)).count();
    let end = bytes[start..].iter().rev().take_while(|byte| is_space(byte)).count();
    &bytes[start..bytes.len() - end]
}
