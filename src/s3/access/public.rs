//! The public access block: what a bucket's owner keeps from becoming public, whatever lists and policies say
//! (access-control-block-public-access.html).

use super::acl::AclRef;
use super::policy::Policy;
use crate::s3::error::{Code, S3Error};

/// The four flags of a bucket. None of them where nothing was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PublicAccessBlock {
    /// Public lists are not set.
    pub block_public_acls: bool,
    /// What lists grant to the public does not count.
    pub ignore_public_acls: bool,
    /// Public policies are not set.
    pub block_public_policy: bool,
    /// While its policy is public, only the account of the bucket's owner gets in.
    pub restrict_public_buckets: bool,
}

impl PublicAccessBlock {
    /// Nothing may become public.
    pub const ALL: PublicAccessBlock =
        PublicAccessBlock { block_public_acls: true, ignore_public_acls: true, block_public_policy: true, restrict_public_buckets: true };

    /// As it is kept: a byte each.
    pub fn to_bytes(self) -> [u8; 4] {
        [self.block_public_acls, self.ignore_public_acls, self.block_public_policy, self.restrict_public_buckets].map(u8::from)
    }

    /// As it was kept, if these are such bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<PublicAccessBlock> {
        let flags: [u8; 4] = bytes.try_into().ok().filter(|flags: &[u8; 4]| flags.iter().all(|&flag| flag <= 1))?;
        let [block_public_acls, ignore_public_acls, block_public_policy, restrict_public_buckets] = flags.map(|flag| flag == 1);
        Some(PublicAccessBlock { block_public_acls, ignore_public_acls, block_public_policy, restrict_public_buckets })
    }

    /// What holds where both do: a bucket's and its account's.
    pub fn or(self, other: PublicAccessBlock) -> PublicAccessBlock {
        PublicAccessBlock {
            block_public_acls: self.block_public_acls || other.block_public_acls,
            ignore_public_acls: self.ignore_public_acls || other.ignore_public_acls,
            block_public_policy: self.block_public_policy || other.block_public_policy,
            restrict_public_buckets: self.restrict_public_buckets || other.restrict_public_buckets,
        }
    }

    /// Whether a list may be set, by a request of its own or with what it is of.
    ///
    /// # Errors
    /// `AccessDenied` for a public one that is blocked.
    pub fn check_acl(self, acl: AclRef<'_>) -> Result<(), S3Error> {
        if self.block_public_acls && acl.is_public() { Err(Code::AccessDenied.into()) } else { Ok(()) }
    }

    /// Whether a policy may be set.
    ///
    /// # Errors
    /// `AccessDenied` for a public one that is blocked.
    pub fn check_policy(self, policy: &Policy) -> Result<(), S3Error> {
        if self.block_public_policy && policy.is_public() { Err(Code::AccessDenied.into()) } else { Ok(()) }
    }
}

/// Whether a bucket is public, as GetBucketPolicyStatus tells it. S3 tells of the policy alone; servers that are used like it tell of the
/// list, too.
pub fn is_public(policy: Option<&Policy>, acl: AclRef<'_>) -> bool {
    policy.is_some_and(Policy::is_public) || acl.is_public()
}

#[cfg(test)]
mod tests {
    use super::super::acl::{Acl, Grant, Permission};
    use super::super::action::Of;
    use super::super::canonical::CanonicalId;
    use super::super::requested::Canned;
    use super::*;

    #[test]
    fn flags_are_read_as_they_were_kept() {
        for bits in 0..16_u8 {
            let bytes = [0, 1, 2, 3].map(|bit| bits >> bit & 1);
            let block = PublicAccessBlock::from_bytes(&bytes).unwrap();
            assert_eq!(block.to_bytes(), bytes);
            assert_eq!(block.or(PublicAccessBlock::default()), block);
            assert_eq!(block.or(PublicAccessBlock::from_bytes(&bytes.map(|flag| 1 - flag)).unwrap()).to_bytes(), [1; 4]);
        }
        for bad in [&[][..], &[0, 0, 0], &[0, 0, 0, 2], &[0; 5]] {
            assert_eq!(PublicAccessBlock::from_bytes(bad), None);
        }
    }

    #[test]
    fn what_is_blocked() {
        let owner = CanonicalId::from_bytes([1; 32]);
        let blocks = PublicAccessBlock { block_public_acls: true, ..PublicAccessBlock::default() };
        for canned in Canned::ALL {
            let is_public = matches!(canned, Canned::PublicRead | Canned::PublicReadWrite | Canned::AuthenticatedRead);
            let acl = canned.acl(Of::Object, owner, owner);
            assert_eq!(blocks.check_acl(acl.view()).is_err(), is_public, "{canned:?}");
            assert_eq!(PublicAccessBlock::default().check_acl(acl.view()), Ok(()));
        }
        let mut acl = Acl::private(owner);
        acl.grants.push(Grant::user(CanonicalId::ANONYMOUS, Permission::Read));
        assert!(blocks.check_acl(acl.view()).is_err() && acl.view().is_public());
        assert_eq!(blocks.check_acl(Acl::private(CanonicalId::ANONYMOUS).view()), Ok(()), "of what nobody has put");
        let everyone = r#"{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}}"#;
        let policy = Policy::for_bucket(everyone.as_bytes(), "b").unwrap();
        let blocks = PublicAccessBlock { block_public_policy: true, ..PublicAccessBlock::default() };
        assert_eq!(blocks.check_policy(&policy), Err(Code::AccessDenied.into()));
        assert_eq!(PublicAccessBlock::default().check_policy(&policy), Ok(()));
        assert!(is_public(Some(&policy), AclRef::private(owner)));
        assert!(is_public(None, Canned::AuthenticatedRead.acl(Of::Bucket, owner, owner).view()));
        assert!(!is_public(None, AclRef::private(owner)));
    }
}
