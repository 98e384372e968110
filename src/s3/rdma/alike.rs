//! Puts that are like one before: the same words of the same user for another object of a bucket that was not changed, and what is decided
//! on them need not be decided again.
//!
//! Alike are puts of whole objects that fit a message, with fields that say what the object is and nothing else, into buckets whose ETags
//! are no MD5. What they have in common is [`Alike`]; the object's name and bytes are the request's.

use std::borrow::Cow;
use std::rc::Rc;

use super::places::Places;
use crate::s3::access::users::User;
use crate::s3::request::{KEY_MAX, Request};
use crate::s3::service::Service;
use crate::s3::service::put::Alike;
use crate::store::open::Store;
use crate::wire::http::uri;
use crate::wire::s3::frame::{self, Body, Method};

/// Kinds of puts that a core knows, each in the place that its words have.
const PLACES: usize = 256;
/// The longest words that are kept.
const WORDS_MAX: usize = 1024;
/// Fields that may be in such a request, and those whose names begin so.
const FIELDS: [&str; 8] =
    ["host", "user-agent", "content-type", "content-language", "content-disposition", "content-encoding", "cache-control", "expires"];
const FIELDS_FRONT: &str = "x-amz-meta-";

/// The words of a put: what it has in common with others, and the object's name.
struct Words<'a> {
    bucket: &'a [u8],
    fields: &'a [u8],
    key: &'a str,
}

impl<'a> Words<'a> {
    /// Of a put of a whole object in its message. Nothing where the name has bytes that there are not to be in a target.
    fn of(asked: &frame::Request<'a>) -> Option<Words<'a>> {
        if asked.method != Method::Put || !matches!(asked.body, Body::Inline(_)) {
            return None;
        }
        let path = asked.target.strip_prefix(b"/")?;
        let (bucket, key) = path.split_at(path.iter().position(|&byte| byte == b'/')?);
        let key = &key[1..];
        let is_short = bucket.len() + asked.fields.len() <= WORDS_MAX;
        // A bucket's name has nothing that would be encoded.
        let is_plain = !bucket.contains(&b'%') && key.iter().all(|&byte| is_of_path(byte));
        let key = std::str::from_utf8(key).ok()?;
        (is_short && is_plain).then_some(Words { bucket, fields: asked.fields, key })
    }

    /// The object's name, if it is one.
    fn name(&self) -> Option<Cow<'a, str>> {
        let name = if self.key.contains('%') { uri::decode_path(self.key).ok()? } else { self.key.into() };
        (!name.is_empty() && name.len() <= KEY_MAX).then_some(name)
    }
}

/// Whether it may be in a path (RFC 3986, section 3.3).
fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~/%!$&'()*+,;=:@".contains(&byte)
}

struct Kept {
    access_key: Box<str>,
    bucket: Box<[u8]>,
    fields: Box<[u8]>,
    alike: Alike,
}

impl Kept {
    fn is_of(&self, access_key: &str, words: &Words<'_>) -> bool {
        *self.access_key == *access_key && *self.bucket == *words.bucket && *self.fields == *words.fields
    }
}

/// Those that a core knows.
pub struct Puts {
    places: Places<Kept>,
}

impl Default for Puts {
    fn default() -> Puts {
        Puts { places: Places::new(PLACES) }
    }
}

/// A put like one before: what they have in common, and the object's name.
pub struct Found {
    kept: Rc<Kept>,
    /// The object's name.
    pub key: Box<str>,
}

impl Found {
    /// What they have in common.
    pub fn alike(&self) -> &Alike {
        &self.kept.alike
    }
}

impl Puts {
    /// What is known of puts like this one, where their bucket is as it was.
    pub fn find(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<Found> {
        let words = Words::of(asked)?;
        let kept = self.places.find((access_key, words.bucket, words.fields), |kept| kept.is_of(access_key, &words))?;
        if !kept.alike.holds(store) {
            return None;
        }
        Some(Found { kept, key: words.name()?.into() })
    }

    /// What others like this one will have in common, if nothing else is to decide on them; before it is done.
    pub fn candidate(service: &Service, user: &User, request: &Request, asked: &frame::Request<'_>) -> Option<Alike> {
        Words::of(asked)?;
        let may_be = |name: &str| {
            let begins = name.get(..FIELDS_FRONT.len()).is_some_and(|front| front.eq_ignore_ascii_case(FIELDS_FRONT));
            begins || FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name))
        };
        if !request.head.headers().all(|(name, _)| may_be(name)) {
            return None;
        }
        Alike::of(service, user, request)
    }

    /// Keeps what a put that was done has in common with others.
    pub fn keep(&self, alike: Alike, access_key: &str, asked: &frame::Request<'_>) {
        let Some(words) = Words::of(asked) else { return };
        let (bucket, fields) = (words.bucket.into(), words.fields.into());
        let kept = Kept { access_key: access_key.into(), bucket, fields, alike };
        self.places.keep((access_key, words.bucket, words.fields), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::s3::Memory;

    fn asked<'a>(method: Method, target: &'a str, body: Body<'a>) -> frame::Request<'a> {
        let window = Memory { address: 0, bytes: 1, rkey: 0 };
        frame::Request {
            method,
            id: 1,
            window,
            list: &[],
            crc: 0,
            is_summed_later: false,
            target: target.as_bytes(),
            fields: b"a: b\r\n",
            body,
        }
    }

    #[test]
    fn names_are_read_as_those_of_requests_are_and_others_left_to_them() {
        let inline = Body::Inline(b"x");
        for (target, bucket, name) in [
            ("/b/k", "b", Some("k")),
            ("/b//k/", "b", Some("/k/")),
            ("/b/a%20b%2Fc+d", "b", Some("a b/c+d")),
            ("/b/%E2%82%AC", "b", Some("€")),
            ("/b/", "b", None),
            ("/b/%E2%82", "b", None),
            ("/b/%zz", "b", None),
        ] {
            let asked = asked(Method::Put, target, inline);
            let words = Words::of(&asked).unwrap();
            assert_eq!((words.bucket, words.name().as_deref()), (bucket.as_bytes(), name), "{target}");
        }
        let long = format!("/b/{}", "k".repeat(KEY_MAX));
        assert!(Words::of(&asked(Method::Put, &long, inline)).unwrap().name().is_some());
        let longer = format!("{long}k");
        assert!(Words::of(&asked(Method::Put, &longer, inline)).unwrap().name().is_none());
        for target in ["/b", "b/k", "*", "/b/k?acl", "/b/k#x", "/b/a b", "/%62/k", "http://h/b/k", "/b/€", "/b/a\\b", "/b/\"", "/b/<"] {
            assert!(Words::of(&asked(Method::Put, target, inline)).is_none(), "{target}");
        }
        assert!(Words::of(&asked(Method::Get, "/b/k", inline)).is_none());
        assert!(
            Words::of(&asked(Method::Put, "/b/k", Body::Granted)).is_none() && Words::of(&asked(Method::Put, "/b/k", Body::None)).is_none()
        );
    }
}
