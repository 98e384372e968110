//! The actions of S3 by their names in policies, what each is done to, and which permission of an ACL stands for it.

use super::acl::Permission;

/// What an action is done to, as the resource of a policy names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum On {
    /// The service: no bucket yet, or all of them.
    Service,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
}

/// Whose ACL may grant an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// The bucket's.
    Bucket,
    /// The object's.
    Object,
}

macro_rules! actions {
    ($($on:ident { $($variant:ident $name:literal $(by $of:ident $permission:ident)?;)* })*) => {
        /// An action of S3.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Action {
            $($(#[doc = concat!("`", $name, "`")] $variant,)*)*
        }

        impl Action {
            /// Every action.
            pub const ALL: &[Action] = &[$($(Action::$variant,)*)*];

            /// As policies name it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Action::$variant => $name,)*)*
                }
            }

            /// What it is done to.
            pub const fn on(self) -> On {
                match self {
                    $($(Action::$variant => On::$on,)*)*
                }
            }

            /// The permission of an ACL that stands for it, if there is one.
            pub const fn granted_by(self) -> Option<(Of, Permission)> {
                match self {
                    $($($(Action::$variant => Some((Of::$of, Permission::$permission)),)?)*)*
                    _ => None,
                }
            }
        }
    };
}

// The names are those of the service authorization reference (list_amazons3.html, list_amazons3express.html) without access points,
// multi-region access points, jobs, storage lens, access grants, tables and outposts. The permissions are those of acl-overview.html,
// "Mapping of ACL permissions and access policy permissions"; DeleteObject and the attributes go with PutObject and GetObject, and
// DeleteObjectVersion, which a WRITE grants to the bucket's owner alone, is the owner's anyway.
actions! {
    Service {
        GetAccountPublicAccessBlock "s3:GetAccountPublicAccessBlock";
        ListAllMyBuckets "s3:ListAllMyBuckets";
        PutAccountPublicAccessBlock "s3:PutAccountPublicAccessBlock";
        ListAllMyDirectoryBuckets "s3express:ListAllMyDirectoryBuckets";
    }
    Bucket {
        CreateBucket "s3:CreateBucket";
        CreateBucketMetadataTableConfiguration "s3:CreateBucketMetadataTableConfiguration";
        DeleteBucket "s3:DeleteBucket";
        DeleteBucketMetadataTableConfiguration "s3:DeleteBucketMetadataTableConfiguration";
        DeleteBucketPolicy "s3:DeleteBucketPolicy";
        DeleteBucketWebsite "s3:DeleteBucketWebsite";
        GetAccelerateConfiguration "s3:GetAccelerateConfiguration";
        GetAnalyticsConfiguration "s3:GetAnalyticsConfiguration";
        GetBucketAbac "s3:GetBucketAbac";
        GetBucketAcl "s3:GetBucketAcl" by Bucket ReadAcp;
        GetBucketCors "s3:GetBucketCORS";
        GetBucketLocation "s3:GetBucketLocation";
        GetBucketLogging "s3:GetBucketLogging";
        GetBucketMetadataTableConfiguration "s3:GetBucketMetadataTableConfiguration";
        GetBucketNotification "s3:GetBucketNotification";
        GetBucketObjectLockConfiguration "s3:GetBucketObjectLockConfiguration";
        GetBucketOwnershipControls "s3:GetBucketOwnershipControls";
        GetBucketPolicy "s3:GetBucketPolicy";
        GetBucketPolicyStatus "s3:GetBucketPolicyStatus";
        GetBucketPublicAccessBlock "s3:GetBucketPublicAccessBlock";
        GetBucketRequestPayment "s3:GetBucketRequestPayment";
        GetBucketTagging "s3:GetBucketTagging";
        GetBucketVersioning "s3:GetBucketVersioning";
        GetBucketWebsite "s3:GetBucketWebsite";
        GetEncryptionConfiguration "s3:GetEncryptionConfiguration";
        GetIntelligentTieringConfiguration "s3:GetIntelligentTieringConfiguration";
        GetInventoryConfiguration "s3:GetInventoryConfiguration";
        GetLifecycleConfiguration "s3:GetLifecycleConfiguration";
        GetMetricsConfiguration "s3:GetMetricsConfiguration";
        GetReplicationConfiguration "s3:GetReplicationConfiguration";
        ListBucket "s3:ListBucket" by Bucket Read;
        ListBucketMultipartUploads "s3:ListBucketMultipartUploads" by Bucket Read;
        ListBucketVersions "s3:ListBucketVersions" by Bucket Read;
        ListTagsForResource "s3:ListTagsForResource";
        PutAccelerateConfiguration "s3:PutAccelerateConfiguration";
        PutAnalyticsConfiguration "s3:PutAnalyticsConfiguration";
        PutBucketAbac "s3:PutBucketAbac";
        PutBucketAcl "s3:PutBucketAcl" by Bucket WriteAcp;
        PutBucketCors "s3:PutBucketCORS";
        PutBucketLogging "s3:PutBucketLogging";
        PutBucketNotification "s3:PutBucketNotification";
        PutBucketObjectLockConfiguration "s3:PutBucketObjectLockConfiguration";
        PutBucketOwnershipControls "s3:PutBucketOwnershipControls";
        PutBucketPolicy "s3:PutBucketPolicy";
        PutBucketPublicAccessBlock "s3:PutBucketPublicAccessBlock";
        PutBucketRequestPayment "s3:PutBucketRequestPayment";
        PutBucketTagging "s3:PutBucketTagging";
        PutBucketVersioning "s3:PutBucketVersioning";
        PutBucketWebsite "s3:PutBucketWebsite";
        PutEncryptionConfiguration "s3:PutEncryptionConfiguration";
        PutIntelligentTieringConfiguration "s3:PutIntelligentTieringConfiguration";
        PutInventoryConfiguration "s3:PutInventoryConfiguration";
        PutLifecycleConfiguration "s3:PutLifecycleConfiguration";
        PutMetricsConfiguration "s3:PutMetricsConfiguration";
        PutReplicationConfiguration "s3:PutReplicationConfiguration";
        TagResource "s3:TagResource";
        UntagResource "s3:UntagResource";
        ExpressCreateBucket "s3express:CreateBucket";
        ExpressCreateSession "s3express:CreateSession";
        ExpressDeleteBucket "s3express:DeleteBucket";
        ExpressDeleteBucketPolicy "s3express:DeleteBucketPolicy";
        ExpressGetBucketPolicy "s3express:GetBucketPolicy";
        ExpressGetEncryptionConfiguration "s3express:GetEncryptionConfiguration";
        ExpressGetLifecycleConfiguration "s3express:GetLifecycleConfiguration";
        ExpressListTagsForResource "s3express:ListTagsForResource";
        ExpressPutBucketPolicy "s3express:PutBucketPolicy";
        ExpressPutEncryptionConfiguration "s3express:PutEncryptionConfiguration";
        ExpressPutLifecycleConfiguration "s3express:PutLifecycleConfiguration";
        ExpressTagResource "s3express:TagResource";
        ExpressUntagResource "s3express:UntagResource";
    }
    Object {
        AbortMultipartUpload "s3:AbortMultipartUpload";
        BypassGovernanceRetention "s3:BypassGovernanceRetention";
        DeleteObject "s3:DeleteObject" by Bucket Write;
        DeleteObjectTagging "s3:DeleteObjectTagging";
        DeleteObjectVersion "s3:DeleteObjectVersion";
        DeleteObjectVersionTagging "s3:DeleteObjectVersionTagging";
        GetObject "s3:GetObject" by Object Read;
        GetObjectAcl "s3:GetObjectAcl" by Object ReadAcp;
        GetObjectAttributes "s3:GetObjectAttributes" by Object Read;
        GetObjectLegalHold "s3:GetObjectLegalHold";
        GetObjectRetention "s3:GetObjectRetention";
        GetObjectTagging "s3:GetObjectTagging";
        GetObjectTorrent "s3:GetObjectTorrent" by Object Read;
        GetObjectVersion "s3:GetObjectVersion" by Object Read;
        GetObjectVersionAcl "s3:GetObjectVersionAcl" by Object ReadAcp;
        GetObjectVersionAttributes "s3:GetObjectVersionAttributes" by Object Read;
        GetObjectVersionForReplication "s3:GetObjectVersionForReplication";
        GetObjectVersionTagging "s3:GetObjectVersionTagging";
        GetObjectVersionTorrent "s3:GetObjectVersionTorrent" by Object Read;
        InitiateReplication "s3:InitiateReplication";
        ListMultipartUploadParts "s3:ListMultipartUploadParts";
        ObjectOwnerOverrideToBucketOwner "s3:ObjectOwnerOverrideToBucketOwner";
        PutObject "s3:PutObject" by Bucket Write;
        PutObjectAcl "s3:PutObjectAcl" by Object WriteAcp;
        PutObjectLegalHold "s3:PutObjectLegalHold";
        PutObjectRetention "s3:PutObjectRetention";
        PutObjectTagging "s3:PutObjectTagging";
        PutObjectVersionAcl "s3:PutObjectVersionAcl" by Object WriteAcp;
        PutObjectVersionTagging "s3:PutObjectVersionTagging";
        ReplicateDelete "s3:ReplicateDelete";
        ReplicateObject "s3:ReplicateObject";
        ReplicateTags "s3:ReplicateTags";
        RestoreObject "s3:RestoreObject";
        UpdateObjectEncryption "s3:UpdateObjectEncryption";
    }
}

impl Action {
    /// The action of that name; case does not matter.
    pub fn from_name(name: &str) -> Option<Action> {
        Action::ALL.iter().copied().find(|action| action.name().eq_ignore_ascii_case(name))
    }

    /// Whether it reads, sets or removes the policy of a bucket.
    pub const fn is_of_policy(self) -> bool {
        matches!(
            self,
            Action::GetBucketPolicy
                | Action::PutBucketPolicy
                | Action::DeleteBucketPolicy
                | Action::ExpressGetBucketPolicy
                | Action::ExpressPutBucketPolicy
                | Action::ExpressDeleteBucketPolicy
        )
    }

    /// Whether who began an upload may do it with that upload (API/API_AbortMultipartUpload.html, API_ListParts.html).
    pub const fn is_of_initiator(self) -> bool {
        matches!(self, Action::AbortMultipartUpload | Action::ListMultipartUploadParts)
    }
}

/// A set of actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ActionSet(u128);

const _: () = assert!(Action::ALL.len() <= u128::BITS as usize, "an action has a bit");

impl ActionSet {
    pub(super) fn of(actions: impl IntoIterator<Item = Action>) -> ActionSet {
        ActionSet(actions.into_iter().fold(0, |set, action| set | 1 << action as u8))
    }

    pub(super) fn has(self, action: Action) -> bool {
        self.0 >> action as u8 & 1 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn or(self, other: ActionSet) -> ActionSet {
        ActionSet(self.0 | other.0)
    }

    /// Those that are not in it.
    pub(super) fn others(self) -> ActionSet {
        ActionSet(!self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names() {
        let names: HashSet<_> = Action::ALL.iter().map(|action| action.name()).collect();
        assert_eq!(names.len(), Action::ALL.len());
        for (number, &action) in Action::ALL.iter().enumerate() {
            assert_eq!(action as usize, number, "a bit of its own");
            assert_eq!(Action::from_name(action.name()), Some(action));
            assert_eq!(Action::from_name(&action.name().to_uppercase()), Some(action));
            assert!(action.name().starts_with("s3:") || action.name().starts_with("s3express:"));
        }
        assert_eq!(Action::from_name("s3:HeadObject"), None);
        assert_eq!(Action::from_name("s3:GetBucketCORS"), Some(Action::GetBucketCors));
    }

    /// acl-overview.html, "Mapping of ACL permissions and access policy permissions".
    #[test]
    fn permissions_of_acls() {
        let granted = |of, permission| -> Vec<&str> {
            let all = Action::ALL.iter().filter(|action| action.granted_by() == Some((of, permission)));
            all.map(|action| action.name()).collect()
        };
        assert_eq!(granted(Of::Bucket, Permission::Read), ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:ListBucketVersions"]);
        assert_eq!(granted(Of::Bucket, Permission::Write), ["s3:DeleteObject", "s3:PutObject"]);
        assert_eq!(granted(Of::Bucket, Permission::ReadAcp), ["s3:GetBucketAcl"]);
        assert_eq!(granted(Of::Bucket, Permission::WriteAcp), ["s3:PutBucketAcl"]);
        assert!(granted(Of::Object, Permission::Read).contains(&"s3:GetObjectVersion"));
        assert!(granted(Of::Object, Permission::Write).is_empty());
        assert_eq!(granted(Of::Object, Permission::ReadAcp), ["s3:GetObjectAcl", "s3:GetObjectVersionAcl"]);
        assert_eq!(granted(Of::Object, Permission::WriteAcp), ["s3:PutObjectAcl", "s3:PutObjectVersionAcl"]);
    }

    #[test]
    fn sets() {
        let set = ActionSet::of([Action::GetObject, Action::UpdateObjectEncryption]);
        assert!(set.has(Action::GetObject) && set.has(Action::UpdateObjectEncryption) && !set.has(Action::PutObject));
        assert!(!set.others().has(Action::GetObject) && set.others().has(Action::PutObject));
        assert!(ActionSet::default().is_empty() && !set.is_empty());
    }
}
