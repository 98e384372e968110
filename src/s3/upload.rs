//! What belongs to an upload: what the object it becomes will have.

use super::access::CanonicalId;
use super::fields::{self, Unreadable, Writer};
use super::labels::Labels;
use super::meta::Meta;

/// What an object will have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadMeta {
    /// Who began it.
    pub initiator: Option<CanonicalId>,
    /// What stays as it is.
    pub meta: Meta,
    /// What may be changed later.
    pub labels: Labels,
    /// What the request said of the object that policies may ask for again when parts come.
    pub said: Vec<(Box<str>, Box<str>)>,
}

const META: u8 = 1;
const LABELS: u8 = 2;
const INITIATOR: u8 = 3;
const SAID: u8 = 4;

impl UploadMeta {
    /// As the store keeps it.
    pub fn to_bytes(&self) -> Box<[u8]> {
        let mut writer = Writer::new();
        writer.bytes(META, &self.meta.to_bytes());
        writer.bytes(LABELS, &self.labels.to_bytes());
        if let Some(initiator) = &self.initiator {
            writer.bytes(INITIATOR, initiator.as_bytes());
        }
        self.said.iter().for_each(|(name, value)| writer.pair(SAID, name, value));
        writer.finish()
    }

    /// Reads what the store has kept.
    ///
    /// # Errors
    /// `Unreadable`: another program's, or a newer version's.
    pub fn parse(bytes: &[u8]) -> Result<UploadMeta, Unreadable> {
        let mut read = UploadMeta::default();
        for field in fields::read(bytes)? {
            match field? {
                (META, value) => read.meta = Meta::parse(value)?,
                (LABELS, value) => read.labels = Labels::parse(value)?,
                (INITIATOR, value) => read.initiator = Some(CanonicalId::from_bytes(value.try_into().map_err(|_| Unreadable)?)),
                (SAID, value) => read.said.push(fields::pair(value)?),
                _ => {}
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::lock::Lock;
    use crate::s3::xml::lock::{HoldStatus, Mode};

    #[test]
    fn it_is_read_as_it_was_written() {
        let meta = Meta { content_type: Some("text/plain".into()), ..Meta::default() };
        let lock = Lock { retention: Some((Mode::Compliance, 5)), legal_hold: Some(HoldStatus::On) };
        let labels = Labels { tags: vec![("a".into(), "b".into())], acl: None, lock };
        let said = vec![("x-amz-acl".into(), "private".into()), ("x-amz-storage-class".into(), "STANDARD".into())];
        let both = UploadMeta { initiator: Some(CanonicalId::from_bytes([3; 32])), meta, labels, said };
        assert_eq!(UploadMeta::parse(&both.to_bytes()), Ok(both));
    }
}
