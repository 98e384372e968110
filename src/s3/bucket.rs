//! What belongs to a bucket, as it is kept in the store's properties.

use serde::Deserialize;

use super::access::canonical::CanonicalId;
use super::fields::{self, Unreadable, Writer};

/// Whether objects of a bucket have versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versioning {
    /// They never had.
    #[default]
    Never,
    /// Each put is a version of its own.
    Enabled,
    /// Puts replace the null version, and versions that are there stay.
    Suspended,
}

/// What the ETag of an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Etags {
    /// An MD5 of its bytes.
    #[default]
    Md5,
    /// Random, in the form of an object made of parts, which clients do not take for an MD5.
    Opaque,
}

impl Etags {
    /// As settings and headers have it.
    pub fn name(self) -> &'static str {
        match self {
            Etags::Md5 => "md5",
            Etags::Opaque => "opaque",
        }
    }

    /// Reads it.
    pub fn parse(name: &str) -> Option<Etags> {
        [Etags::Md5, Etags::Opaque].into_iter().find(|etags| etags.name() == name)
    }
}

/// What belongs to a bucket. Documents are kept as they were sent, once they were found to be in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketMeta {
    /// The canonical identifier of its owner.
    pub owner: CanonicalId,
    /// When it was made, milliseconds since 1970 (UTC).
    pub created_ms: u64,
    /// Its location constraint, where there is one.
    pub location: Option<Box<str>>,
    /// Whether its objects have versions.
    pub versioning: Versioning,
    /// What the ETags of its objects are.
    pub etags: Etags,
    /// A directory bucket: the fast class.
    pub is_directory: bool,
    /// Of a directory bucket: its zone is a local one.
    pub is_local: bool,
    /// Others than its owner have put objects into it.
    pub has_others: bool,
    /// The other things, by what they are.
    documents: Vec<(Document, Box<[u8]>)>,
}

/// A document of a bucket's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Document {
    /// Who may do what: the access layer's form of it.
    Acl = 16,
    /// Its policy: JSON.
    Policy = 17,
    /// From where browsers may use it: XML.
    Cors = 18,
    /// Its tags: XML.
    Tagging = 19,
    /// When its objects expire: XML.
    Lifecycle = 20,
    /// Who owns what others put: the name of the rule.
    Ownership = 21,
    /// The four flags of the public access block, a byte each.
    PublicAccessBlock = 22,
    /// How objects are encrypted where puts do not say: XML.
    Encryption = 23,
    /// Object lock: XML.
    ObjectLock = 24,
    /// Where requests are logged: XML.
    Logging = 25,
    /// Who pays: XML.
    RequestPayment = 26,
    /// Whom to tell of changes: XML.
    Notification = 27,
    /// A web site: XML.
    Website = 28,
    /// What moves at least, where rules say nothing of it and it is not the usual: the word that was put.
    TransitionSize = 29,
}

const DOCUMENTS: [Document; 14] = [
    Document::Acl,
    Document::Policy,
    Document::Cors,
    Document::Tagging,
    Document::Lifecycle,
    Document::Ownership,
    Document::PublicAccessBlock,
    Document::Encryption,
    Document::ObjectLock,
    Document::Logging,
    Document::RequestPayment,
    Document::Notification,
    Document::Website,
    Document::TransitionSize,
];

const OWNER: u8 = 1;
const CREATED: u8 = 2;
const LOCATION: u8 = 3;
const VERSIONING: u8 = 4;
const ETAGS: u8 = 5;
const DIRECTORY: u8 = 6;
const OTHERS: u8 = 7;
const LOCAL: u8 = 8;

impl BucketMeta {
    /// A new bucket's.
    pub fn new(owner: CanonicalId, created_ms: u64) -> BucketMeta {
        BucketMeta {
            owner,
            created_ms,
            location: None,
            versioning: Versioning::Never,
            etags: Etags::Md5,
            is_directory: false,
            is_local: false,
            has_others: false,
            documents: Vec::new(),
        }
    }

    /// A document, if it has it.
    pub fn document(&self, document: Document) -> Option<&[u8]> {
        self.documents.iter().find(|(of, _)| *of == document).map(|(_, bytes)| &**bytes)
    }

    /// Gives it a document, or takes it away.
    pub fn set_document(&mut self, document: Document, bytes: Option<&[u8]>) {
        self.documents.retain(|(of, _)| *of != document);
        self.documents.extend(bytes.map(|bytes| (document, bytes.into())));
    }

    /// As the store keeps it.
    pub fn to_bytes(&self) -> Box<[u8]> {
        let mut writer = Writer::new();
        writer.bytes(OWNER, self.owner.as_bytes());
        writer.number(CREATED, self.created_ms);
        writer.text(LOCATION, self.location.as_deref());
        match self.versioning {
            Versioning::Never => {}
            Versioning::Enabled => writer.bytes(VERSIONING, &[1]),
            Versioning::Suspended => writer.bytes(VERSIONING, &[2]),
        }
        if self.etags == Etags::Opaque {
            writer.bytes(ETAGS, &[1]);
        }
        if self.is_directory {
            writer.bytes(DIRECTORY, &[]);
        }
        if self.is_local {
            writer.bytes(LOCAL, &[]);
        }
        if self.has_others {
            writer.bytes(OTHERS, &[]);
        }
        for (document, bytes) in &self.documents {
            writer.bytes(*document as u8, bytes);
        }
        writer.finish()
    }

    /// Reads what the store has kept.
    ///
    /// # Errors
    /// `Unreadable`: another program's, a newer version's, or lost.
    pub fn parse(bytes: &[u8]) -> Result<BucketMeta, Unreadable> {
        let mut meta = BucketMeta::new(CanonicalId::ANONYMOUS, 0);
        let mut has_owner = false;
        for field in fields::read(bytes)? {
            let (tag, value) = field?;
            match (tag, value) {
                (OWNER, _) => {
                    meta.owner = CanonicalId::from_bytes(value.try_into().map_err(|_| Unreadable)?);
                    has_owner = true;
                }
                (CREATED, _) => meta.created_ms = fields::number(value)?,
                (LOCATION, _) => meta.location = Some(fields::text(value)?),
                (VERSIONING, [1]) => meta.versioning = Versioning::Enabled,
                (VERSIONING, [2]) => meta.versioning = Versioning::Suspended,
                (VERSIONING, _) => return Err(Unreadable),
                (ETAGS, _) => meta.etags = Etags::Opaque,
                (DIRECTORY, _) => meta.is_directory = true,
                (LOCAL, _) => meta.is_local = true,
                (OTHERS, _) => meta.has_others = true,
                _ => {
                    let document = DOCUMENTS.into_iter().find(|document| *document as u8 == tag);
                    meta.documents.extend(document.map(|document| (document, value.into())));
                }
            }
        }
        // A store that has lost what belongs to a bucket gives nothing. It is nobody's then, and not everybody's.
        if has_owner && meta.has_readable_bounds() { Ok(meta) } else { Err(Unreadable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::access::{Ownership, PublicAccessBlock};

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut meta = BucketMeta {
            owner: CanonicalId::from_bytes([7; 32]),
            created_ms: 1_700_000_000_123,
            location: Some("eu".into()),
            versioning: Versioning::Suspended,
            etags: Etags::Opaque,
            is_directory: true,
            is_local: true,
            has_others: true,
            documents: Vec::new(),
        };
        for (place, document) in DOCUMENTS.into_iter().enumerate() {
            meta.set_document(document, Some(&[place as u8; 3]));
        }
        meta.set_document(Document::Cors, Some(b"other"));
        meta.set_document(Document::Policy, None);
        // What cannot be read forbids nothing, and is not taken for that.
        assert!(BucketMeta::parse(&meta.to_bytes()).is_err());
        meta.set_document(Document::Ownership, Some(Ownership::BucketOwnerPreferred.name().as_bytes()));
        assert!(BucketMeta::parse(&meta.to_bytes()).is_err());
        meta.set_document(Document::PublicAccessBlock, Some(&PublicAccessBlock::ALL.to_bytes()));
        let read = BucketMeta::parse(&meta.to_bytes()).unwrap();
        assert_eq!(read, meta);
        assert_eq!((read.document(Document::Cors), read.document(Document::Policy)), (Some(&b"other"[..]), None));
        let new = BucketMeta::new(CanonicalId::ANONYMOUS, 1);
        assert_eq!(BucketMeta::parse(&new.to_bytes()), Ok(new));
        assert!(BucketMeta::parse(b"").is_err(), "nobody's, and not everybody's");
    }
}
