//! What the rules of a bucket say of a version or an upload: a decision without I/O.
//!
//! All rules in force count, and what is due by any of them is due: of several dates the earliest holds. What is due is judged by times
//! and numbers alone where that is enough; tags, which have to be read, are asked for only where they decide.
//!
//! From the User Guide, "Lifecycle configuration elements" and "Expiring objects":
//!
//! | version | with `Expiration` | with `NoncurrentVersionExpiration` |
//! | --- | --- | --- |
//! | current, an object | expires: as a DELETE of its name | |
//! | current, a delete marker behind which there is nothing | is removed | |
//! | current, any other delete marker | stays | |
//! | noncurrent, delete markers too | | is removed |

use crate::s3::bucket::{BucketMeta, Document};
use crate::s3::xml::lifecycle::{Expiration, Filter, LifecycleConfiguration, Rule, Status};

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// How the days of rules are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Days {
    /// As S3 does: what they come to is rounded up to the next midnight (UTC).
    Whole,
    /// So many milliseconds each, and nothing is rounded: for who wants to see rules at work.
    Short(u64),
}

impl Days {
    /// Days of so many seconds.
    pub fn of_seconds(seconds: u32) -> Days {
        match u64::from(seconds) * 1000 {
            DAY_MS => Days::Whole,
            day_ms => Days::Short(day_ms),
        }
    }

    /// When so many days have passed since then, in milliseconds since 1970 (UTC). What ends on a midnight itself ends on the next.
    pub fn after(self, then_ms: u64, days: u32) -> u64 {
        match self {
            Days::Whole => (then_ms / DAY_MS + u64::from(days) + 1) * DAY_MS,
            Days::Short(day_ms) => then_ms.saturating_add(day_ms.saturating_mul(days.into())),
        }
    }
}

/// A version, as rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The object's name.
    pub key: &'a [u8],
    /// Its bytes.
    pub size: u64,
    /// When it was put, in milliseconds since 1970 (UTC).
    pub put_ms: u64,
    /// It is a delete marker.
    pub is_marker: bool,
    /// How it stands to the others of its name.
    pub standing: Standing,
}

/// How a version stands to the others of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is the newest.
    Current {
        /// There is no other.
        is_alone: bool,
    },
    /// Another was put after it.
    Noncurrent {
        /// When that was, in milliseconds since 1970 (UTC).
        since_ms: u64,
        /// Versions that are newer and noncurrent themselves.
        newer: u32,
    },
}

/// What is to be done with a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Keep,
    /// That depends on its tags.
    ReadTags,
    /// It expires, as if its name was deleted: where versions are kept it becomes noncurrent.
    Expire,
    /// It is removed for good.
    EndVersion,
    /// The same, of a delete marker.
    EndMarker,
}

/// A tag: name and value.
pub type Tag = (Box<str>, Box<str>);

/// The rules of a bucket that are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Those of a document.
    pub fn new(document: LifecycleConfiguration) -> Rules {
        Rules(document.rules.into_iter().filter(|rule| rule.status == Status::Enabled).collect())
    }

    /// Those of a bucket, if it has any. A document that cannot be read is told and ends nothing.
    pub fn of(bucket: &BucketMeta) -> Option<Rules> {
        let rules = match LifecycleConfiguration::parse(bucket.document(Document::Lifecycle)?) {
            Ok(document) => Rules::new(document),
            Err(error) => {
                tracing::error!("a bucket's lifecycle configuration cannot be read: {error}; put it again");
                return None;
            }
        };
        (!rules.0.is_empty()).then_some(rules)
    }

    /// What is to be done with a version. `tags` are those it has, where they were read.
    pub fn decide(&self, seen: &Seen<'_>, tags: Option<&[Tag]>, days: Days, now_ms: u64) -> Verdict {
        let verdict = match (seen.standing, seen.is_marker) {
            (_, true) => Verdict::EndMarker,
            (Standing::Current { .. }, false) => Verdict::Expire,
            (Standing::Noncurrent { .. }, false) => Verdict::EndVersion,
        };
        let mut asks_for_tags = false;
        for rule in self.0.iter().filter(|rule| is_due(rule, seen, days, now_ms) && fits(&rule.filter, seen)) {
            match tags {
                _ if rule.filter.tags.is_empty() => return verdict,
                Some(tags) if has_all(tags, &rule.filter) => return verdict,
                Some(_) => {}
                None => asks_for_tags = true,
            }
        }
        if asks_for_tags { Verdict::ReadTags } else { Verdict::Keep }
    }

    /// When a current version with these tags expires, in milliseconds since 1970 (UTC), and by which rule; of several at the same time by
    /// the first.
    pub fn expiration(&self, seen: &Seen<'_>, tags: &[Tag], days: Days) -> Option<(u64, &str)> {
        let fitting = self.0.iter().filter(|rule| fits(&rule.filter, seen) && has_all(tags, &rule.filter));
        let dated = fitting.filter_map(|rule| Some((expires_at(rule, seen.put_ms, days)?, id_of(rule))));
        dated.min_by_key(|(date, _)| *date)
    }

    /// When an upload that was begun then is aborted if it is not complete, and by which rule.
    pub fn abort(&self, key: &[u8], begun_ms: u64, days: Days) -> Option<(u64, &str)> {
        let fitting = self.0.iter().filter(|rule| begins(key, &rule.filter));
        let dated = fitting.filter_map(|rule| Some((days.after(begun_ms, rule.abort_uploads_days?), id_of(rule))));
        dated.min_by_key(|(date, _)| *date)
    }

    /// What the names begin with whose versions may end; none of these begins with another.
    pub fn version_prefixes(&self) -> Vec<&str> {
        self.prefixes(|rule| rule.expiration.is_some() || rule.noncurrent_expiration.is_some())
    }

    /// The same of uploads.
    pub fn upload_prefixes(&self) -> Vec<&str> {
        self.prefixes(|rule| rule.abort_uploads_days.is_some())
    }

    fn prefixes(&self, counts: impl Fn(&Rule) -> bool) -> Vec<&str> {
        let counting = self.0.iter().filter(|rule| counts(rule));
        let mut all: Vec<&str> = counting.map(|rule| rule.filter.prefix.as_deref().unwrap_or_default()).collect();
        all.sort_unstable();
        // What begins with another stands right behind it, or behind one that does too.
        all.dedup_by(|next, kept| next.starts_with(*kept));
        all
    }
}

fn id_of(rule: &Rule) -> &str {
    rule.id.as_deref().unwrap_or_default()
}

/// When a current version expires by a rule of days or of a date.
fn expires_at(rule: &Rule, put_ms: u64, days: Days) -> Option<u64> {
    match rule.expiration? {
        Expiration::Days(count) => Some(days.after(put_ms, count)),
        Expiration::Date(date) => Some(date),
        Expiration::DeleteMarker(_) => None,
    }
}

/// Whether the times and numbers of a rule are reached.
fn is_due(rule: &Rule, seen: &Seen<'_>, days: Days, now_ms: u64) -> bool {
    match seen.standing {
        Standing::Current { is_alone } if seen.is_marker => {
            // One that hides nothing goes at once where a rule says so, and else when it is as old as objects may become.
            let at_once = rule.expiration == Some(Expiration::DeleteMarker(true));
            is_alone && (at_once || expires_at(rule, seen.put_ms, days).is_some_and(|date| date <= now_ms))
        }
        Standing::Current { .. } => expires_at(rule, seen.put_ms, days).is_some_and(|date| date <= now_ms),
        Standing::Noncurrent { since_ms, newer } => rule.noncurrent_expiration.is_some_and(|asked| {
            asked.newer_versions.is_none_or(|kept| newer >= kept) && asked.days.is_none_or(|count| days.after(since_ms, count) <= now_ms)
        }),
    }
}

fn begins(key: &[u8], filter: &Filter) -> bool {
    key.starts_with(filter.prefix.as_deref().unwrap_or_default().as_bytes())
}

/// Whether a version is one that a filter is for, but for its tags. A delete marker has neither tags nor a size, so that rules by those are
/// not for it, as S3 lets none of them name `ExpiredObjectDeleteMarker`.
fn fits(filter: &Filter, seen: &Seen<'_>) -> bool {
    let has_sizes = filter.size_greater_than.is_some() || filter.size_less_than.is_some();
    begins(seen.key, filter)
        && !(seen.is_marker && (has_sizes || !filter.tags.is_empty()))
        && filter.size_greater_than.is_none_or(|size| seen.size > size)
        && filter.size_less_than.is_none_or(|size| seen.size < size)
}

/// Whether the tags a filter names are all among these.
fn has_all(tags: &[Tag], filter: &Filter) -> bool {
    filter.tags.iter().all(|wanted| tags.iter().any(|(name, value)| **name == *wanted.key && **value == *wanted.value))
}

#[cfg(test)]
mod tests;
