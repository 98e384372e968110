//! What may be changed of an object version that is there: its tags and who may do what. Kept in what the store calls a version's tags.

use super::fields::{self, Unreadable, Writer};

/// Tags: names and values.
pub type Tags = Vec<(Box<str>, Box<str>)>;

/// What may be changed of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Names and values.
    pub tags: Tags,
    /// Who may do what beside the owner: the access layer's form of it.
    pub acl: Option<Box<[u8]>>,
}

const TAG: u8 = 1;
const ACL: u8 = 2;

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
                _ => {}
            }
        }
        Ok(labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_as_they_were_written() {
        let labels = Labels { tags: vec![("color".into(), "blau".into()), ("ä".into(), "".into())], acl: Some(vec![1, 2, 3].into()) };
        assert_eq!(Labels::parse(&labels.to_bytes()), Ok(labels));
        assert!(Labels::default().to_bytes().is_empty());
        assert_eq!(Labels::parse(b""), Ok(Labels::default()));
    }
}
