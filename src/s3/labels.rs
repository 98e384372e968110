//! What may be changed of an object version that is there: its tags, who may do what, and what holds it. Kept in what the store calls a
//! version's tags.

use super::fields::{self, Unreadable, Writer};
use super::lock::{self, Lock};
use crate::store::failure::{Failure, Outcome};

/// Tags: names and values.
pub type Tags = Vec<(Box<str>, Box<str>)>;

/// What may be changed of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Names and values.
    pub tags: Tags,
    /// Who may do what beside the owner: the access layer's form of it.
    pub acl: Option<Box<[u8]>>,
    /// What holds it.
    pub lock: Lock,
}

const TAG: u8 = 1;
const ACL: u8 = 2;
const RETENTION: u8 = 3;
const LEGAL_HOLD: u8 = 4;

impl Labels {
    /// As the store keeps it; no bytes where there is nothing.
    pub fn to_bytes(&self) -> Box<[u8]> {
        if *self == Labels::default() {
            return Box::default();
        }
        let mut writer = Writer::new();
        for (name, value) in &self.tags {
            writer.pair(TAG, name, value);
        }
        if let Some(acl) = &self.acl {
            writer.bytes(ACL, acl);
        }
        if let Some(retention) = self.lock.retention {
            writer.bytes(RETENTION, &lock::retention_to_bytes(retention));
        }
        if let Some(status) = self.lock.legal_hold {
            writer.bytes(LEGAL_HOLD, &lock::hold_to_bytes(status));
        }
        writer.finish()
    }

    /// Reads what the store has kept.
    ///
    /// # Errors
    /// `Unreadable`: another program's, or a newer version's.
    pub fn parse(bytes: &[u8]) -> Result<Labels, Unreadable> {
        let mut labels = Labels::default();
        for field in fields::read(bytes)? {
            match field? {
                (TAG, value) => labels.tags.push(fields::pair(value)?),
                (ACL, value) => labels.acl = Some(value.into()),
                (RETENTION, value) => labels.lock.retention = Some(lock::retention_from_bytes(value)?),
                (LEGAL_HOLD, value) => labels.lock.legal_hold = Some(lock::hold_from_bytes(value)?),
                _ => {}
            }
        }
        Ok(labels)
    }

    /// The same, within the store.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn kept(bytes: &[u8]) -> Outcome<Labels> {
        Labels::parse(bytes).map_err(|unreadable| Failure::Corrupt(format!("a version whose labels cannot be read: {unreadable}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::lock::{HoldStatus, Mode};

    #[test]
    fn they_are_read_as_they_were_written() {
        let tags = vec![("color".into(), "blau".into()), ("ä".into(), "".into())];
        for retention in [None, Some((Mode::Governance, 1)), Some((Mode::Compliance, u64::MAX))] {
            for legal_hold in [None, Some(HoldStatus::On), Some(HoldStatus::Off)] {
                let lock = Lock { retention, legal_hold };
                let labels = Labels { tags: tags.clone(), acl: Some(vec![1, 2, 3].into()), lock };
                assert_eq!(Labels::parse(&labels.to_bytes()), Ok(labels));
            }
        }
        assert!(Labels::default().to_bytes().is_empty());
        assert_eq!(Labels::parse(b""), Ok(Labels::default()));
    }

    #[test]
    fn a_lock_that_cannot_be_read_is_not_taken_for_none() {
        for (tag, value) in
            [(RETENTION, &[3, 0, 0, 0, 0, 0, 0, 0, 0][..]), (RETENTION, &[1]), (RETENTION, b""), (LEGAL_HOLD, &[2]), (LEGAL_HOLD, b"")]
        {
            let mut writer = Writer::new();
            writer.bytes(tag, value);
            assert_eq!(Labels::parse(&writer.finish()), Err(Unreadable), "{tag}: {value:?}");
        }
    }
}
