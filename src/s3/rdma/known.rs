//! Answers to GETs that are known: the same words of the same user, about the same version in a bucket that was not changed, have the same
//! answer, and nothing of what found it need be done again.
//!
//! Kept is the answer to a GET of a whole object by its name alone, where nothing decides on it but what is compared: no policy looks at
//! the time or at where somebody is, no rule tells when the object ends, it has the tags and the list it was put with. The bytes are the
//! store's: what is kept is the answer's text.

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::rc::Rc;

use hashbrown::DefaultHashBuilder;

use crate::s3::access::users::User;
use crate::s3::answer::{Answer, Content};
use crate::s3::request::Request;
use crate::s3::service::{Bucket, Service};
use crate::store::engine::Which;
use crate::store::get::Hit;
use crate::store::handle::Get;
use crate::store::index::Version;
use crate::store::open::Store;
use crate::wire::s3::frame::{self, Method};

/// Answers a core keeps, each in the place that its words have.
const PLACES: usize = 4096;
/// The longest words whose answers are kept, and the longest answers.
const WORDS_MAX: usize = 1024;
const LINES_MAX: usize = 1024;
/// Fields that may be in a request whose answer is kept: they ask for the same today and tomorrow.
const FIELDS: [&str; 4] = ["host", "x-amz-checksum-mode", "x-amz-expected-bucket-owner", "user-agent"];

/// An answer that is known.
pub struct Kept {
    access_key: Box<str>,
    target: Box<[u8]>,
    fields: Box<[u8]>,
    bucket: Box<str>,
    /// The bucket's identifier, and when it was made or last changed.
    state: (u32, u64),
    /// Of the store's buckets, when that was found last.
    edition: Cell<u64>,
    key: Box<str>,
    version: Version,
    /// The fields of the answer, as lines.
    pub lines: Box<[u8]>,
}

impl Kept {
    /// The object: the number of its bucket, and its name.
    pub fn name(&self) -> (u32, &[u8]) {
        (self.state.0, self.key.as_bytes())
    }

    fn is_to(&self, access_key: &str, asked: &frame::Request<'_>) -> bool {
        *self.access_key == *access_key && *self.target == *asked.target && *self.fields == *asked.fields
    }
}

/// Those of a core.
pub struct Known {
    places: RefCell<Box<[Option<Rc<Kept>>]>>,
    hasher: DefaultHashBuilder,
}

impl Default for Known {
    fn default() -> Known {
        Known { places: RefCell::new(vec![None; PLACES].into()), hasher: DefaultHashBuilder::default() }
    }
}

/// A GET whose answer may be kept, while it is found.
pub struct Candidate {
    bucket: Rc<Bucket>,
}

impl Candidate {
    /// A request of this user's, if nothing else but the object is to decide on its answer.
    pub fn new(service: &Service, user: &User, request: &Request, asked: &frame::Request<'_>) -> Option<Candidate> {
        let is_plain = asked.method == Method::Get && !asked.target.contains(&b'?') && asked.target.len() + asked.fields.len() <= WORDS_MAX;
        if !is_plain || !request.head.headers().all(|(name, _)| FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name))) {
            return None;
        }
        let bucket = service.find(&request.bucket).ok()??;
        let is_timeless = user.is_admin || (user.policies.is_empty() && bucket.policy.is_none());
        (is_timeless && bucket.lifecycle.is_none()).then_some(Candidate { bucket })
    }

    /// Whether the bucket is as it was.
    pub fn holds(&self, store: &Store) -> bool {
        store.bucket_at(self.bucket.name.as_bytes()) == Some((self.bucket.id, self.bucket.since))
    }
}

impl Known {
    fn place(&self, access_key: &str, asked: &frame::Request<'_>) -> usize {
        self.hasher.hash_one((access_key, asked.target, asked.fields)) as usize % PLACES
    }

    /// What is known of the answer to a GET, where the bucket is as it was.
    fn find(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<Rc<Kept>> {
        if asked.method != Method::Get {
            return None;
        }
        let kept = self.places.borrow()[self.place(access_key, asked)].clone().filter(|kept| kept.is_to(access_key, asked))?;
        let edition = store.buckets_edition();
        if kept.edition.get() != edition {
            if store.bucket_at(kept.bucket.as_bytes()) != Some(kept.state) {
                return None;
            }
            kept.edition.set(edition);
        }
        Some(kept)
    }

    /// The object a GET asks for, which is in memory, and what is known of its answer, if that holds.
    pub fn hit(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<(Hit, Rc<Kept>)> {
        let kept = self.find(store, access_key, asked)?;
        let hit = store.hit(kept.state.0, kept.key.as_bytes(), Which::Newest)?;
        (hit.version == kept.version && !hit.has_later_tags).then_some((hit, kept))
    }

    /// The same for one that may have to be read.
    pub async fn get(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<(Get, Rc<Kept>)> {
        let kept = self.find(store, access_key, asked)?;
        let get = store.get(kept.state.0, kept.key.as_bytes(), Which::Newest, 0..u64::MAX).await.ok()?;
        (get.version == kept.version && !get.has_later_tags()).then_some((get, kept))
    }

    /// Keeps an answer to a candidate, whose fields are these lines.
    pub fn keep(&self, of: Candidate, access_key: &str, request: &Request, asked: &frame::Request<'_>, (answer, lines): (&Answer, &[u8])) {
        let Content::Object(reading) = &answer.content else { return };
        // What is decrypted is not in memory as it is to be sent.
        let Some(get) = reading.as_plain() else { return };
        let is_whole = answer.status == 200 && get.range == (0..get.version.size) && !get.has_later_tags();
        if !is_whole || lines.len() > LINES_MAX {
            return;
        }
        let kept = Kept {
            access_key: access_key.into(),
            target: asked.target.into(),
            fields: asked.fields.into(),
            bucket: of.bucket.name.clone(),
            state: (of.bucket.id, of.bucket.since),
            // Looked at when it is wanted first.
            edition: Cell::new(u64::MAX),
            key: request.key.clone(),
            version: get.version,
            lines: lines.into(),
        };
        self.places.borrow_mut()[self.place(access_key, asked)] = Some(Rc::new(kept));
    }
}
