//! A bucket as it was when something was decided on it.

use std::cell::Cell;

use super::Bucket;
use crate::store::open::Store;

/// Which bucket it was, and as when it was made or last changed.
pub struct State {
    name: Box<str>,
    id: u32,
    since: u64,
    /// Of the store's buckets, when it was found to be so last.
    edition: Cell<u64>,
}

impl State {
    /// A bucket's.
    pub fn of(bucket: &Bucket) -> State {
        // Looked at when it is wanted first.
        State { name: bucket.name.clone(), id: bucket.id, since: bucket.since, edition: Cell::new(u64::MAX) }
    }

    /// The bucket's identifier.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the bucket is as it was. Where no bucket was changed since it was asked last, that costs nothing.
    #[inline]
    pub fn holds(&self, store: &Store) -> bool {
        let edition = store.buckets_edition();
        if self.edition.get() != edition {
            if store.bucket_at(self.name.as_bytes()) != Some((self.id, self.since)) {
                return false;
            }
            self.edition.set(edition);
        }
        true
    }
}
