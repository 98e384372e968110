//! The decision: whether who sends a request may do what it asks for (how-s3-evaluates-access-control.html).
//!
//! Denials come first: of the user's policies, of the bucket's policy, of the public access block. Then something must allow it:
//!
//! - an administrator: nothing, and nothing denies it;
//! - a user of the account that owns it, to whom no policy is attached: being the owner. Where a list of access can grant the action it has
//!   to (it does to begin with, and the list itself the owner may always read and write), or the bucket's policy;
//! - a user of that account with policies: those, or the bucket's policy naming the user or everyone, or a list naming a group;
//! - a user of another account, or nobody: the bucket's policy or a list, and the user's policies, too, if there are any.
//!
//! What is done to a bucket belongs to its owner, and so do putting, deleting and tagging objects. Reading an object and its list belong to
//! the object's owner: where that is another account than the bucket's, the bucket's policy can only deny (bucket-policies.html).

use super::acl::{AclRef, Grantee, Group, Permission};
use super::action::{Action, Of};
use super::canonical::CanonicalId;
use super::key::{Context, Requester, Scope, Work};
use super::ownership::Ownership;
use super::policy::{Policy, Verdict};
use super::principal::Naming;
use super::public::PublicAccessBlock;
use super::resource::About;
use crate::s3::error::{Code, S3Error};

/// What decides on a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    /// Its name.
    pub name: &'a str,
    /// The account of its owner, by number, if it is known.
    pub account: Option<&'a str>,
    /// A directory bucket.
    pub is_directory: bool,
    /// Its owner and its list.
    pub acl: AclRef<'a>,
    /// Its policy.
    pub policy: Option<&'a Policy>,
    /// Its public access block.
    pub block: PublicAccessBlock,
    /// Who owns its objects.
    pub ownership: Ownership,
}

/// What a request is for.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// The service.
    Service,
    /// A bucket that is to be created.
    NewBucket {
        /// Its name.
        name: &'a str,
        /// A directory bucket.
        is_directory: bool,
    },
    /// A bucket.
    Bucket(&'a Bucket<'a>),
    /// An object.
    Object {
        /// The bucket it is in.
        bucket: &'a Bucket<'a>,
        /// Its key.
        key: &'a [u8],
        /// Its owner and its list, if it is there. Of an upload its initiator, and [`AclRef::private`].
        acl: Option<AclRef<'a>>,
    },
}

/// A request that is to be decided.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who sends it.
    pub requester: Requester<'a>,
    /// What it is to do.
    pub action: Action,
    /// To what.
    pub target: Target<'a>,
    /// What else it says.
    pub context: &'a Context<'a>,
}

/// Why a request is denied. For logs: who sent it is told no more than that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The bucket's policy says so.
    #[error("the policy of the bucket denies it")]
    ByBucketPolicy,
    /// A policy attached to the user says so.
    #[error("a policy of the user denies it")]
    ByUserPolicy,
    /// Policies are attached to the user, and none allows it.
    #[error("no policy of the user allows it")]
    NotByUserPolicy,
    /// The policy is public, and the block keeps other accounts out.
    #[error("the bucket is restricted to the account of its owner while its policy is public")]
    Restricted,
    /// Nothing allows it.
    #[error("neither the policy of the bucket nor a list of access allows it")]
    NotGranted,
    /// Policies of buckets are for the account of the owner alone.
    #[error("only the account of the bucket's owner may do it")]
    NotTheOwner,
    /// The texts with wildcards of the policies, held against what the request says, are more than may be compared.
    #[error("its policies take too long to be held against the request")]
    TooLong,
}

impl From<Denied> for S3Error {
    fn from(denied: Denied) -> S3Error {
        match denied {
            // API/API_PutBucketPolicy.html: with the permission, but of another account.
            Denied::NotTheOwner => Code::MethodNotAllowed.into(),
            _ => Code::AccessDenied.into(),
        }
    }
}

/// Decides on a request.
///
/// # Errors
/// `Denied`, with the first reason there is.
pub fn decide(request: &Request<'_>) -> Result<(), Denied> {
    let user = request.requester.user();
    if user.is_some_and(|user| user.is_admin) {
        return Ok(());
    }
    let work = Work::default();
    let decided = decide_within(request, &work);
    if work.is_used_up() { Err(Denied::TooLong) } else { decided }
}

fn decide_within(request: &Request<'_>, work: &Work) -> Result<(), Denied> {
    let user = request.requester.user();
    let scope = request.scope(work);
    let of_user = request.user_verdict(&scope);
    if of_user.is_some_and(|verdict| verdict.is_denied) {
        return Err(Denied::ByUserPolicy);
    }
    let user_allows = of_user.is_none_or(|verdict| verdict.allowed.is_some());
    let (bucket, object_acl) = match request.target {
        Target::Bucket(bucket) => (bucket, None),
        Target::Object { bucket, acl, .. } => (bucket, acl),
        // Who did not sign owns no buckets, and is told of none.
        Target::Service | Target::NewBucket { .. } if user.is_none() && request.action != Action::ListAllMyBuckets => {
            return Err(Denied::NotGranted);
        }
        Target::Service | Target::NewBucket { .. } => return if user_allows { Ok(()) } else { Err(Denied::NotByUserPolicy) },
    };
    let is_of_bucket_owner = request.requester.id() == bucket.acl.owner;
    if request.is_owners_own(bucket) && of_user.is_none() {
        return Ok(());
    }
    let of_bucket = bucket.policy.map_or(Verdict::default(), |policy| policy.verdict(request.action, request.about(), &scope));
    if of_bucket.is_denied {
        return Err(Denied::ByBucketPolicy);
    }
    if bucket.block.restrict_public_buckets && !is_of_bucket_owner && bucket.policy.is_some_and(Policy::is_public) {
        return Err(Denied::Restricted);
    }
    let granted = request.granted(bucket, object_acl, of_bucket);
    let is_allowed = match of_user {
        None => granted.to.is_some(),
        Some(_) if granted.is_to_owner => user_allows || granted.to == Some(Naming::Directly),
        Some(_) => user_allows && granted.to.is_some(),
    };
    match is_allowed {
        true if request.action.is_of_policy() && !is_of_bucket_owner => Err(Denied::NotTheOwner),
        true => Ok(()),
        false if !user_allows && granted.to.is_some() => Err(Denied::NotByUserPolicy),
        false => Err(Denied::NotGranted),
    }
}

/// Whether who asks for an object that is not there may be told so: who may list the bucket, and is not denied what was asked for
/// (API/API_GetObject.html, "Permissions"). Otherwise the answer is that of an object that may not be read.
///
/// # Errors
/// `Denied`, with the first reason there is.
pub fn may_know_absent(request: &Request<'_>) -> Result<(), Denied> {
    match decide(request) {
        Err(denied @ (Denied::ByBucketPolicy | Denied::ByUserPolicy | Denied::Restricted | Denied::TooLong)) => Err(denied),
        _ => match request.target {
            Target::Object { bucket, key, .. } => {
                // As if it were listed by its name.
                let context = Context { prefix: std::str::from_utf8(key).ok(), ..*request.context };
                decide(&Request { action: Action::ListBucket, target: Target::Bucket(bucket), context: &context, ..*request })
            }
            _ => Ok(()),
        },
    }
}

/// What grants a request, the user's policies aside.
struct Granted {
    /// How what grants it names the requester, if something does.
    to: Option<Naming>,
    /// Whether the requester's account owns what it is done to.
    is_to_owner: bool,
}

impl<'a> Request<'a> {
    fn scope<'s>(&self, work: &'s Work) -> Scope<'s>
    where
        'a: 's,
    {
        let account = match self.target {
            Target::Bucket(bucket) | Target::Object { bucket, .. } => bucket.account,
            Target::NewBucket { .. } | Target::Service => self.requester.user().map(|user| &*user.account),
        };
        Scope { work, requester: self.requester, account, context: self.context }
    }

    fn about(&self) -> About<'a> {
        match self.target {
            Target::Service => About::Service,
            Target::NewBucket { name, is_directory } | Target::Bucket(&Bucket { name, is_directory, .. }) => {
                About::Bucket { name, is_directory }
            }
            Target::Object { bucket, key, .. } => About::Object { bucket: bucket.name, key },
        }
    }

    /// What the policies that are attached to the user say, if there are any.
    fn user_verdict(&self, scope: &Scope<'_>) -> Option<Verdict> {
        let policies = self.requester.user().map(|user| &user.policies).filter(|policies| !policies.is_empty())?;
        Some(policies.iter().fold(Verdict::default(), |all, policy| {
            let one = policy.verdict(self.action, self.about(), scope);
            Verdict { is_denied: all.is_denied || one.is_denied, allowed: all.allowed.max(one.allowed) }
        }))
    }

    /// Whether it is of the bucket's policy and sent by the account that owns the bucket, which no policy keeps from that
    /// (API/API_PutBucketPolicy.html: the root user "can always use this operation").
    fn is_owners_own(&self, bucket: &Bucket<'_>) -> bool {
        self.action.is_of_policy() && self.requester.id() == bucket.acl.owner
    }

    fn granted(&self, bucket: &Bucket<'_>, object_acl: Option<AclRef<'_>>, of_bucket: Verdict) -> Granted {
        let id = self.requester.id();
        let has_acls = bucket.ownership.has_acls();
        let rule = self.action.granted_by().filter(|_| has_acls);
        let acl = match rule {
            Some((Of::Object, _)) => object_acl.unwrap_or(AclRef::private(bucket.acl.owner)),
            _ => bucket.acl,
        };
        let by_policy = of_bucket.allowed.filter(|_| acl.owner == bucket.acl.owner);
        let by_acl = rule.and_then(|(_, permission)| self.by_acl(acl, permission, bucket.block.ignore_public_acls));
        let is_to_owner = acl.owner == id && !(bucket.block.ignore_public_acls && id == CanonicalId::ANONYMOUS);
        // An owner may lose what lists grant, but not the lists.
        let is_owners = is_to_owner && rule.is_none_or(|(_, permission)| matches!(permission, Permission::ReadAcp | Permission::WriteAcp));
        let is_initiators =
            self.action.is_of_initiator() && self.requester.user().is_some() && object_acl.is_some_and(|upload| upload.owner == id);
        let by_right = (is_owners || is_initiators).then_some(Naming::Account);
        Granted { to: by_policy.max(by_acl).max(by_right), is_to_owner }
    }

    /// How a list names the requester with a permission.
    fn by_acl(&self, acl: AclRef<'_>, wanted: Permission, ignores_public: bool) -> Option<Naming> {
        let id: CanonicalId = self.requester.id();
        let naming = |grantee| match grantee {
            public if ignores_public && public.is_public() => None,
            Grantee::User(grantee) => (grantee == id).then_some(Naming::Account),
            Grantee::Group(Group::AllUsers) => Some(Naming::Directly),
            Grantee::Group(Group::AuthenticatedUsers) => self.requester.user().map(|_| Naming::Directly),
            Grantee::Group(Group::LogDelivery) => None,
        };
        acl.grants().filter(|grant| grant.permission.has(wanted)).filter_map(|grant| naming(grant.grantee)).max()
    }
}
