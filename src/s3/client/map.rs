//! What a client knows of a server's cores: which has which names.
//!
//! A name's shard depends on the number of its bucket, which the server tells when it has passed a request on: until then, and where a
//! bucket was made anew, the client asks any core, and is answered all the same.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::wire::s3::deal::Deal;

/// Buckets whose numbers are kept. Of one more all are forgotten, and told again.
const BUCKETS_MAX: usize = 1024;

/// The shard map of a server, as far as it was told.
#[derive(Default)]
pub struct Map {
    deal: RefCell<Option<Deal>>,
    buckets: RefCell<HashMap<Box<str>, u32>>,
}

impl Map {
    /// What a session was told when it was connected: a server that was started again may have other cores.
    pub fn learn(&self, deal: Option<&Deal>) {
        if self.deal.borrow().as_ref() != deal {
            self.deal.replace(deal.cloned());
            self.buckets.borrow_mut().clear();
        }
    }

    /// What an answer to a request about a name in this bucket says of the bucket's number.
    pub fn heed(&self, bucket: &str, told: Option<&str>) {
        let Some(number) = told.and_then(|text| text.parse().ok()) else { return };
        let mut buckets = self.buckets.borrow_mut();
        if buckets.len() == BUCKETS_MAX && !buckets.contains_key(bucket) {
            buckets.clear();
        }
        buckets.insert(bucket.into(), number);
    }

    /// Whether there is anything to choose.
    pub fn is_dealt(&self) -> bool {
        self.deal.borrow().is_some()
    }

    /// The core that has a name, if that is known.
    pub fn core(&self, bucket: &str, key: &str) -> Option<usize> {
        let deal = self.deal.borrow();
        let deal = deal.as_ref().filter(|_| !key.is_empty())?;
        let number = *self.buckets.borrow().get(bucket)?;
        Some(deal.core(number, key.as_bytes()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_is_not_guessed_and_what_is_kept_is_bounded() {
        let map = Map::default();
        map.heed("b", Some("1"));
        assert_eq!(map.core("b", "a"), None, "there is no deal");
        let deal = Deal::new(|shard| shard / 128);
        map.learn(Some(&deal));
        assert_eq!(map.core("b", "a"), None, "of another server");
        map.heed("b", Some("x"));
        map.heed("b", None);
        assert_eq!(map.core("b", "a"), None);
        map.heed("b", Some("1"));
        // The vectors of the document: shards 131 and 2.
        assert_eq!((map.core("b", "a"), map.core("b", "b"), map.core("b", ""), map.core("c", "a")), (Some(1), Some(0), None, None));
        map.learn(Some(&deal));
        assert_eq!(map.core("b", "a"), Some(1));
        for number in 0..5000 {
            map.heed(&number.to_string(), Some("1"));
            assert!(map.buckets.borrow().len() <= BUCKETS_MAX);
            assert_eq!(map.core(&number.to_string(), "a"), Some(1));
        }
        map.learn(None);
        assert_eq!(map.core("4999", "a"), None);
    }
}
