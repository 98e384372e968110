//! Object ownership: who owns what others put into a bucket, and whether lists of access count there
//! (about-object-ownership.html).

use super::acl::{AclRef, Permission};
use super::canonical::CanonicalId;
use super::requested::{Canned, Named, Requested, RequestedGrant};
use crate::s3::error::{Code, S3Error};

/// The rule of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// The bucket's owner owns all objects, and there are no lists.
    BucketOwnerEnforced,
    /// The bucket's owner owns what is put with `bucket-owner-full-control`.
    BucketOwnerPreferred,
    /// Who puts an object owns it. What holds for a bucket that was told nothing.
    #[default]
    ObjectWriter,
}

impl Ownership {
    /// Every rule.
    pub const ALL: [Ownership; 3] = [Ownership::BucketOwnerEnforced, Ownership::BucketOwnerPreferred, Ownership::ObjectWriter];

    /// As XML and `x-amz-object-ownership` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Ownership::BucketOwnerEnforced => "BucketOwnerEnforced",
            Ownership::BucketOwnerPreferred => "BucketOwnerPreferred",
            Ownership::ObjectWriter => "ObjectWriter",
        }
    }

    /// The rule of that name.
    pub fn from_name(name: &str) -> Option<Ownership> {
        Ownership::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Whether lists of access count. Where they do not, the lists told are private ones of the bucket's owner.
    pub const fn has_acls(self) -> bool {
        !matches!(self, Ownership::BucketOwnerEnforced)
    }

    /// Who owns an object that `writer` puts.
    pub fn object_owner(self, writer: CanonicalId, bucket_owner: CanonicalId, requested: Option<&Requested>) -> CanonicalId {
        let is_given = matches!(requested, Some(Requested::Canned(Canned::BucketOwnerFullControl)));
        match self {
            Ownership::BucketOwnerEnforced => bucket_owner,
            Ownership::BucketOwnerPreferred if is_given => bucket_owner,
            _ => writer,
        }
    }

    /// Whether an object may be put with the list a request asks for: without lists only where it is none, or all to the bucket's owner.
    ///
    /// # Errors
    /// `AccessControlListNotSupported`.
    pub fn check_put(self, requested: Option<&Requested>, bucket_owner: CanonicalId) -> Result<(), S3Error> {
        let gives_all = |grants: &[RequestedGrant]| {
            let is_to_owner = |grant: &RequestedGrant| matches!(&grant.grantee, Named::Id(id) if id.parse() == Ok(bucket_owner));
            matches!(grants, [grant] if grant.permission == Permission::FullControl && is_to_owner(grant))
        };
        let is_fine = match requested {
            _ if self.has_acls() => true,
            None | Some(Requested::Canned(Canned::BucketOwnerFullControl)) => true,
            Some(Requested::Canned(_)) => false,
            Some(Requested::Headers(grants) | Requested::Document(_, grants)) => gives_all(grants),
        };
        if is_fine { Ok(()) } else { Err(Code::AccessControlListNotSupported.into()) }
    }

    /// Whether the list of something that is there may be set.
    ///
    /// # Errors
    /// `AccessControlListNotSupported` where lists do not count.
    pub fn check_put_acl(self) -> Result<(), S3Error> {
        if self.has_acls() { Ok(()) } else { Err(Code::AccessControlListNotSupported.into()) }
    }

    /// Whether a bucket with that list may have the rule: where lists do not count, only one that gives nothing to others. To be asked when
    /// a bucket is created and when the rule is set.
    ///
    /// # Errors
    /// `InvalidBucketAclWithObjectOwnership`.
    pub fn check_bucket_acl(self, acl: AclRef<'_>) -> Result<(), S3Error> {
        if self.has_acls() || !acl.grants_to_others() { Ok(()) } else { Err(Code::InvalidBucketAclWithObjectOwnership.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::acl::Acl;
    use super::super::action::Of;
    use super::*;

    const BUCKET_OWNER: CanonicalId = CanonicalId::from_bytes([1; 32]);
    const WRITER: CanonicalId = CanonicalId::from_bytes([2; 32]);

    #[test]
    fn names() {
        for rule in Ownership::ALL {
            assert_eq!(Ownership::from_name(rule.name()), Some(rule));
        }
        assert_eq!(Ownership::from_name("objectWriter"), None);
    }

    /// about-object-ownership.html: who owns what is put.
    #[test]
    fn owners() {
        let full = Requested::Canned(Canned::BucketOwnerFullControl);
        let read = Requested::Canned(Canned::BucketOwnerRead);
        for (rule, requested, owner) in [
            (Ownership::ObjectWriter, None, WRITER),
            (Ownership::ObjectWriter, Some(&full), WRITER),
            (Ownership::BucketOwnerPreferred, None, WRITER),
            (Ownership::BucketOwnerPreferred, Some(&read), WRITER),
            (Ownership::BucketOwnerPreferred, Some(&full), BUCKET_OWNER),
            (Ownership::BucketOwnerEnforced, None, BUCKET_OWNER),
            (Ownership::BucketOwnerEnforced, Some(&full), BUCKET_OWNER),
        ] {
            assert_eq!(rule.object_owner(WRITER, BUCKET_OWNER, requested), owner, "{rule:?} {requested:?}");
        }
    }

    #[test]
    fn lists_that_do_not_count() {
        let grant = |id: CanonicalId, permission| RequestedGrant { grantee: Named::Id(id.to_string()), permission };
        let enforced = Ownership::BucketOwnerEnforced;
        for (requested, is_fine) in [
            (None, true),
            (Some(Requested::Canned(Canned::BucketOwnerFullControl)), true),
            (Some(Requested::Canned(Canned::Private)), false),
            (Some(Requested::Canned(Canned::PublicRead)), false),
            (Some(Requested::Headers(vec![grant(BUCKET_OWNER, Permission::FullControl)])), true),
            (Some(Requested::Document(None, vec![grant(BUCKET_OWNER, Permission::FullControl)])), true),
            (Some(Requested::Headers(vec![grant(BUCKET_OWNER, Permission::Read)])), false),
            (Some(Requested::Headers(vec![grant(WRITER, Permission::FullControl)])), false),
            (Some(Requested::Headers(vec![])), false),
        ] {
            let expected = if is_fine { Ok(()) } else { Err(S3Error::new(Code::AccessControlListNotSupported)) };
            assert_eq!(enforced.check_put(requested.as_ref(), BUCKET_OWNER), expected, "{requested:?}");
            assert_eq!(Ownership::ObjectWriter.check_put(requested.as_ref(), BUCKET_OWNER), Ok(()));
            assert_eq!(Ownership::BucketOwnerPreferred.check_put(requested.as_ref(), BUCKET_OWNER), Ok(()));
        }
        assert_eq!(enforced.check_put_acl(), Err(Code::AccessControlListNotSupported.into()));
        assert_eq!(Ownership::ObjectWriter.check_put_acl(), Ok(()));
    }

    #[test]
    fn buckets_whose_lists_give_something_away() {
        for canned in Canned::ALL {
            let acl = canned.acl(Of::Bucket, BUCKET_OWNER, BUCKET_OWNER);
            let gives =
                matches!(canned, Canned::PublicRead | Canned::PublicReadWrite | Canned::AuthenticatedRead | Canned::LogDeliveryWrite);
            let expected = if gives { Err(S3Error::new(Code::InvalidBucketAclWithObjectOwnership)) } else { Ok(()) };
            assert_eq!(Ownership::BucketOwnerEnforced.check_bucket_acl(acl.view()), expected, "{canned:?}");
            assert_eq!(Ownership::ObjectWriter.check_bucket_acl(acl.view()), Ok(()));
        }
        assert_eq!(Ownership::BucketOwnerEnforced.check_bucket_acl(Acl::private(WRITER).view()), Ok(()));
    }
}
