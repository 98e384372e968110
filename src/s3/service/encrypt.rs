//! How an object is encrypted: as the request asks, or its bucket; and how one that is, is read.

use super::headers::Said;
use super::{Bucket, Call, readable};
use crate::s3::bucket::Etags;
use crate::s3::encryption::asked::{
    ALGORITHM, Asked, CustomerFields, CustomerKey, OWN, bucket_key, check_none, check_not_asked, check_way,
};
use crate::s3::encryption::cipher::Cipher;
use crate::s3::encryption::keys::Place;
use crate::s3::encryption::reading::{self, Reading, Segments};
use crate::s3::encryption::{Encryption, Kind};
use crate::s3::error::{Code, S3Error};
use crate::s3::fields::Unreadable;
use crate::s3::meta::Meta;
use crate::store::handle::Get;

/// What a bucket calls encryption with clients' keys where it refuses that.
const CUSTOMER: &str = "SSE-C";

/// What an object is going to be encrypted with.
pub struct Begun {
    /// As it is kept.
    pub encryption: Encryption,
    /// What does it.
    pub cipher: Cipher,
}

impl Bucket {
    /// What the ETags are of its objects that are encrypted like this, or are not.
    pub(super) fn etags_with(&self, encryption: Option<&Encryption>) -> Etags {
        match encryption {
            Some(encryption) if !encryption.allows_md5() => Etags::Opaque,
            _ => self.meta.etags,
        }
    }

    fn place<'a>(&'a self, key: &'a str) -> Place<'a> {
        Place { bucket: &self.name, key }
    }
}

impl Call<'_> {
    /// How an object is to be encrypted that a request, or a form, makes in a bucket: as it says, or as the bucket has it.
    ///
    /// # Errors
    /// What is wrong with what it says; `AccessDenied`: the bucket does not have it; `NotImplemented`: directory buckets do not.
    pub(super) fn encryption_asked(&self, bucket: &Bucket, said: &Said<'_>) -> Result<Option<Asked>, S3Error> {
        let asked = Asked::read(said)?;
        if asked.is_some() && bucket.meta.is_directory {
            return Err(S3Error::with(Code::NotImplemented, "Objects of directory buckets are not encrypted"));
        }
        if matches!(asked, Some(Asked::Customer(_))) {
            check_way(self.request, self.service().keys())?;
            if bucket.encryption.as_ref().is_some_and(|rules| rules.blocked.iter().any(|kind| kind == CUSTOMER)) {
                let what = "The bucket does not take objects that are encrypted with customer provided keys.";
                return Err(S3Error::with(Code::AccessDenied, what));
            }
        }
        if asked.is_some() {
            return Ok(asked);
        }
        let mut usual = bucket.encryption.as_ref().and_then(Asked::by_bucket);
        // It can be said alone, of what the bucket asks for.
        let said_of_key = bucket_key(said)?;
        if let (Some(is_so), Some(Asked::Named { has_bucket_key, .. })) = (said_of_key, &mut usual) {
            *has_bucket_key = is_so;
        }
        Ok(usual)
    }

    /// That a key by name is used by somebody: it may be made for who names it.
    ///
    /// # Errors
    /// `InvalidArgument`: the request is nobody's.
    fn check_somebody(&self) -> Result<(), S3Error> {
        if !self.is_anonymous() {
            return Ok(());
        }
        let what = "Requests specifying Server Side Encryption with AWS KMS managed keys must be signed.";
        Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "Authorization").field("ArgumentValue", "null"))
    }

    /// Makes what an object with this key is encrypted with.
    ///
    /// # Errors
    /// `InvalidArgument`: nobody asks for a key by name. `KMS.NotFoundException`, `InternalError`.
    pub(super) fn begin_encryption(&self, bucket: &Bucket, key: &str, asked: Option<Asked>) -> Result<Option<Begun>, S3Error> {
        if matches!(asked, Some(Asked::Named { .. })) {
            self.check_somebody()?;
        }
        let begin = |asked: Asked| asked.begin(self.service().keys(), bucket.place(key));
        Ok(asked.map(begin).transpose()?.map(|(encryption, cipher)| Begun { encryption, cipher }))
    }

    /// The key that a request brings for an object that is there, if it does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn customer_key(&self, fields: &CustomerFields) -> Result<Option<CustomerKey>, S3Error> {
        self.customer_key_in(&Said::of(self.request), fields)
    }

    fn customer_key_in(&self, said: &Said<'_>, fields: &CustomerFields) -> Result<Option<CustomerKey>, S3Error> {
        let brought = CustomerKey::read(said, fields)?;
        if brought.is_some() {
            check_way(self.request, self.service().keys())?;
        }
        Ok(brought)
    }

    /// The same, where the request makes no object and may not say how one is to be.
    ///
    /// # Errors
    /// `InvalidArgument`: it does. What is wrong with the key.
    pub(super) fn customer_key_alone(&self, fields: &CustomerFields) -> Result<Option<CustomerKey>, S3Error> {
        let said = Said::of(self.request);
        // Most say nothing of it, and are looked at once.
        if !said.mentions(ALGORITHM) {
            return Ok(None);
        }
        check_not_asked(&said)?;
        self.customer_key_in(&said, fields)
    }

    /// The key that comes with a part, if one does. How its upload is encrypted may be said once more: S3 refuses that, but clients say it.
    ///
    /// # Errors
    /// As of [`Call::customer_key_alone`].
    pub(super) fn customer_key_of_part(&self, of_upload: Option<&Encryption>) -> Result<Option<CustomerKey>, S3Error> {
        let said = Said::of(self.request);
        if !said.mentions(ALGORITHM) {
            return Ok(None);
        }
        if !of_upload.is_some_and(|encryption| encryption.kind.is_said_by(&said)) {
            check_not_asked(&said)?;
        }
        self.customer_key_in(&said, &OWN)
    }

    /// Whether what is told of an object may be told to who brings this key, or none.
    ///
    /// # Errors
    /// `InvalidRequest`: the key is missing, is another, or is of no use.
    pub(super) fn check_key(&self, bucket: &Bucket, key: &str, meta: &Meta, brought: Option<&CustomerKey>) -> Result<(), S3Error> {
        match &meta.encryption {
            None => check_none(brought),
            // What is told of what is encrypted with the server's keys is told without them.
            Some(Encryption { kind: Kind::Server { .. } | Kind::Named { .. }, .. }) => check_none(brought),
            Some(encryption) => encryption.open(self.service().keys(), brought, bucket.place(key)).map(drop),
        }
    }

    /// What decrypts an object, if it is encrypted, with the key that was brought.
    ///
    /// # Errors
    /// As of [`Encryption::open`]; `InvalidArgument`: it is under a key by name, and nobody asks.
    pub(super) fn open(
        &self,
        bucket: &Bucket,
        key: &str,
        encryption: Option<&Encryption>,
        brought: Option<&CustomerKey>,
    ) -> Result<Option<Cipher>, S3Error> {
        match encryption {
            None => check_none(brought).map(|()| None),
            Some(encryption) => {
                if matches!(encryption.kind, Kind::Named { .. }) {
                    self.check_somebody()?;
                }
                encryption.open(self.service().keys(), brought, bucket.place(key)).map(Some)
            }
        }
    }

    /// A get of an object as clients have it.
    ///
    /// # Errors
    /// `InternalError`: what is kept of its parts is not of this object.
    pub(super) fn reading(&self, get: Get, meta: &Meta, cipher: Option<Cipher>) -> Result<Reading, S3Error> {
        let Some(cipher) = cipher else { return Ok(Reading::plain(get)) };
        let bytes = meta.parts.iter().try_fold(0u64, |all, bytes| all.checked_add(*bytes));
        let segments = match (meta.parts.is_empty(), meta.nonces.len() == meta.parts.len() && bytes == Some(get.version.size)) {
            (true, _) => Segments::one(),
            (false, true) => Segments::of(meta.parts.iter().copied().zip(meta.nonces.iter().copied())),
            (false, false) => return Err(readable(Unreadable)),
        };
        let service = self.service();
        let place = reading::Place { core: service.core().clone(), slab: service.store().slab().clone(), ledger: service.ledger().clone() };
        Ok(Reading::decrypted(get, cipher, segments, place))
    }
}
