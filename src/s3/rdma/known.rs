//! Answers to GETs that are known: the same words of the same user, about the same version in a bucket that was not changed, have the same
//! answer, and nothing of what found it need be done again.
//!
//! Kept is the answer to a GET of a whole object by its name alone, where nothing decides on it but what is compared: no policy looks at
//! the time or at where somebody is, no rule tells when the object ends, it has the tags and the list it was put with. The bytes are the
//! store's: what is kept is the answer's text.

use std::cell::Cell;
use std::rc::Rc;

use super::places::Places;
use crate::s3::access::users::User;
use crate::s3::answer::{Answer, Content};
use crate::s3::request::Request;
use crate::s3::service::Service;
use crate::s3::service::state::State;
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
    /// Of its bucket.
    state: State,
    version: Version,
    /// Of the store, when the object was last found to have this version, with the tags it was put with.
    edition: Cell<u64>,
    /// One part behind the other, so that they are found in few lines of the processor's cache: the access key, the target and the fields
    /// of the request, the object's name, and the fields of the answer.
    text: Box<[u8]>,
    /// Where those but the last end.
    ends: [usize; 4],
}

impl Kept {
    fn new(state: State, version: Version, parts: [&[u8]; 5]) -> Kept {
        let mut end = 0;
        let ends = [0, 1, 2, 3].map(|part| {
            end += parts[part].len();
            end
        });
        Kept { state, version, edition: Cell::new(u64::MAX), text: parts.concat().into(), ends }
    }

    /// The object: the number of its bucket, and its name.
    pub fn name(&self) -> (u32, &[u8]) {
        (self.state.id(), &self.text[self.ends[2]..self.ends[3]])
    }

    /// The fields of the answer, as lines.
    pub fn lines(&self) -> &[u8] {
        &self.text[self.ends[3]..]
    }

    fn is_to(&self, access_key: &str, asked: &frame::Request<'_>) -> bool {
        let [key, target, fields, _] = self.ends;
        self.text[..key] == *access_key.as_bytes() && self.text[key..target] == *asked.target && self.text[target..fields] == *asked.fields
    }
}

/// Those of a core.
pub struct Known {
    places: Places<Kept>,
}

impl Default for Known {
    fn default() -> Known {
        Known { places: Places::new(PLACES) }
    }
}

/// A GET whose answer may be kept, while it is found.
pub struct Candidate {
    state: State,
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
        (is_timeless && bucket.lifecycle.is_none()).then(|| Candidate { state: State::of(&bucket) })
    }

    /// Whether the bucket is as it was.
    pub fn holds(&self, store: &Store) -> bool {
        self.state.holds(store)
    }
}

impl Known {
    /// What is known of the answer to a GET, where the bucket is as it was.
    fn find(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<Rc<Kept>> {
        if asked.method != Method::Get {
            return None;
        }
        let words = (access_key, asked.target, asked.fields);
        self.places.find(words, |kept| kept.is_to(access_key, asked)).filter(|kept| kept.state.holds(store))
    }

    /// The object a GET asks for, which is in memory, and what is known of its answer, if that holds.
    pub fn hit(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<(Hit, Rc<Kept>)> {
        let kept = self.find(store, access_key, asked)?;
        let edition = store.edition();
        if kept.edition.get() == edition {
            return Some((store.hit_again(&kept.version)?, kept));
        }
        let (bucket, name) = kept.name();
        let hit = store.hit(bucket, name, Which::Newest)?;
        if hit.version != kept.version || hit.has_later_tags {
            return None;
        }
        kept.edition.set(edition);
        Some((hit, kept))
    }

    /// The same for one that may have to be read.
    pub async fn get(&self, store: &Store, access_key: &str, asked: &frame::Request<'_>) -> Option<(Get, Rc<Kept>)> {
        let kept = self.find(store, access_key, asked)?;
        let (bucket, name) = kept.name();
        let get = store.get(bucket, name, Which::Newest, 0..u64::MAX).await.ok()?;
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
        let parts = [access_key.as_bytes(), asked.target, asked.fields, request.key.as_bytes(), lines];
        let kept = Kept::new(of.state, get.version, parts);
        self.places.keep((access_key, asked.target, asked.fields), kept);
    }
}
