//! Access control lists: who is granted what on a bucket or an object, and how that is kept.
//!
//! A list belongs to something with an owner, whom everyone who keeps lists knows anyway: the kept form has the grants alone, and the owner
//! in them takes one byte. [`AclRef`] answers from either form without copying it.
//!
//! The kept form: a byte of version, then the grants. A grant is a byte, the grantee's kind in the high four bits and the permission in the
//! low ones; behind it, if the kind is an account other than the owner, the 32 bytes of its canonical identifier.

use super::canonical::CanonicalId;

/// Grants in a list at most (acl-overview.html: "An ACL can have up to 100 grants").
pub const GRANTS_MAX: usize = 100;
/// The longest kept form: the version, and grants to accounts that are not the owner.
pub const STORED_MAX: usize = 1 + GRANTS_MAX * 33;

const VERSION: u8 = 1;

/// What is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Permission {
    /// All of the others.
    FullControl = 0,
    /// To list a bucket, to read an object.
    Read = 1,
    /// To put and delete objects of a bucket. Nothing on an object.
    Write = 2,
    /// To read the list.
    ReadAcp = 3,
    /// To write the list.
    WriteAcp = 4,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Permission; 5] =
        [Permission::FullControl, Permission::Read, Permission::Write, Permission::ReadAcp, Permission::WriteAcp];

    /// As XML has it.
    pub const fn name(self) -> &'static str {
        match self {
            Permission::FullControl => "FULL_CONTROL",
            Permission::Read => "READ",
            Permission::Write => "WRITE",
            Permission::ReadAcp => "READ_ACP",
            Permission::WriteAcp => "WRITE_ACP",
        }
    }

    /// The permission of that name.
    pub fn from_name(name: &str) -> Option<Permission> {
        Permission::ALL.into_iter().find(|permission| permission.name() == name)
    }

    /// Whether it has `wanted` in it.
    pub fn has(self, wanted: Permission) -> bool {
        self == Permission::FullControl || self == wanted
    }
}

/// A group that S3 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Group {
    /// Everyone, signed or not.
    AllUsers = 1,
    /// Everyone who signed, of whatever account.
    AuthenticatedUsers = 2,
    /// Who delivers logs.
    LogDelivery = 3,
}

impl Group {
    /// Every group.
    pub const ALL: [Group; 3] = [Group::AllUsers, Group::AuthenticatedUsers, Group::LogDelivery];

    /// As requests and XML name it.
    pub const fn uri(self) -> &'static str {
        match self {
            Group::AllUsers => "http://acs.amazonaws.com/groups/global/AllUsers",
            Group::AuthenticatedUsers => "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
            Group::LogDelivery => "http://acs.amazonaws.com/groups/s3/LogDelivery",
        }
    }

    /// The group of that name.
    pub fn from_uri(uri: &str) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.uri() == uri)
    }

    /// Whether a grant to it is to the public (access-control-block-public-access.html, "The meaning of public", ACLs).
    pub const fn is_public(self) -> bool {
        matches!(self, Group::AllUsers | Group::AuthenticatedUsers)
    }
}

impl Grantee {
    /// Whether it is the public, or whoever has signed nothing.
    pub fn is_public(self) -> bool {
        match self {
            Grantee::Group(group) => group.is_public(),
            Grantee::User(id) => id == CanonicalId::ANONYMOUS,
        }
    }
}

/// To whom something is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grantee {
    /// An account.
    User(CanonicalId),
    /// A group.
    Group(Group),
}

/// A line of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// To whom.
    pub grantee: Grantee,
    /// What.
    pub permission: Permission,
}

impl Grant {
    /// A permission for an account.
    pub const fn user(id: CanonicalId, permission: Permission) -> Grant {
        Grant { grantee: Grantee::User(id), permission }
    }

    /// A permission for a group.
    pub const fn group(group: Group, permission: Permission) -> Grant {
        Grant { grantee: Grantee::Group(group), permission }
    }

    /// Whether it is to the public: by a group, or by the identifier that nobody has.
    fn is_public(&self) -> bool {
        self.grantee.is_public()
    }
}

/// A list and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Who owns what it is of.
    pub owner: CanonicalId,
    /// The grants, in the order they are told.
    pub grants: Vec<Grant>,
}

/// A kept list that is none, or a newer version's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an access control list that this version does not read")]
pub struct UnreadableAcl;

/// Kinds of grantees in the kept form; groups have their own numbers.
const KIND_OWNER: u8 = 0;
const KIND_USER: u8 = 4;

impl Acl {
    /// What is given where nothing was asked for: all to the owner.
    pub fn private(owner: CanonicalId) -> Acl {
        Acl { owner, grants: vec![Grant::user(owner, Permission::FullControl)] }
    }

    /// The list as it is kept.
    pub fn to_bytes(&self) -> Box<[u8]> {
        let mut bytes = vec![VERSION];
        for Grant { grantee, permission } in &self.grants {
            let low = *permission as u8;
            match grantee {
                Grantee::User(id) if *id == self.owner => bytes.push(KIND_OWNER << 4 | low),
                Grantee::User(id) => {
                    bytes.push(KIND_USER << 4 | low);
                    bytes.extend_from_slice(id.as_bytes());
                }
                Grantee::Group(group) => bytes.push((*group as u8) << 4 | low),
            }
        }
        bytes.into()
    }

    /// The list that was kept for something of `owner`'s.
    ///
    /// # Errors
    /// `UnreadableAcl` where the bytes are none.
    pub fn from_bytes(owner: CanonicalId, bytes: &[u8]) -> Result<Acl, UnreadableAcl> {
        Ok(AclRef::from_bytes(owner, bytes)?.to_owned())
    }

    /// A view of it.
    pub fn view(&self) -> AclRef<'_> {
        AclRef { owner: self.owner, grants: Grants(Form::Plain(&self.grants)) }
    }
}

/// A list, read where it is.
#[derive(Clone, Copy, Debug)]
pub struct AclRef<'a> {
    /// Who owns what it is of.
    pub owner: CanonicalId,
    grants: Grants<'a>,
}

impl<'a> AclRef<'a> {
    /// All to the owner: what holds where no list is kept.
    pub fn private(owner: CanonicalId) -> AclRef<'a> {
        const PRIVATE: &[u8] = &[KIND_OWNER << 4 | Permission::FullControl as u8];
        AclRef { owner, grants: Grants(Form::Stored(PRIVATE, owner)) }
    }

    /// The list that was kept for something of `owner`'s.
    ///
    /// # Errors
    /// `UnreadableAcl` where the bytes are none.
    pub fn from_bytes(owner: CanonicalId, bytes: &'a [u8]) -> Result<AclRef<'a>, UnreadableAcl> {
        let (&VERSION, grants) = bytes.split_first().ok_or(UnreadableAcl)? else { return Err(UnreadableAcl) };
        let mut rest = grants;
        while !rest.is_empty() {
            rest = read(rest, owner).ok_or(UnreadableAcl)?.1;
        }
        Ok(AclRef { owner, grants: Grants(Form::Stored(grants, owner)) })
    }

    /// The grants, in order.
    pub fn grants(&self) -> Grants<'a> {
        self.grants
    }

    /// Whether it grants anything to the public.
    pub fn is_public(&self) -> bool {
        // What nobody has put is nobody's, as what others put is theirs.
        self.grants.into_iter().any(|grant| grant.is_public() && grant.grantee != Grantee::User(self.owner))
    }

    /// Whether it grants anything to someone other than its owner.
    pub fn grants_to_others(&self) -> bool {
        self.grants.into_iter().any(|grant| grant.grantee != Grantee::User(self.owner))
    }

    /// A list of its own.
    pub fn to_owned(&self) -> Acl {
        Acl { owner: self.owner, grants: self.grants.collect() }
    }
}

/// The grants of a list.
#[derive(Clone, Copy, Debug)]
pub struct Grants<'a>(Form<'a>);

#[derive(Clone, Copy, Debug)]
enum Form<'a> {
    Plain(&'a [Grant]),
    /// Of what belongs to this owner.
    Stored(&'a [u8], CanonicalId),
}

impl Iterator for Grants<'_> {
    type Item = Grant;

    fn next(&mut self) -> Option<Grant> {
        match &mut self.0 {
            Form::Plain(grants) => {
                let (first, rest) = grants.split_first()?;
                *grants = rest;
                Some(*first)
            }
            Form::Stored(bytes, owner) => {
                let (grant, rest) = read(bytes, *owner)?;
                *bytes = rest;
                Some(grant)
            }
        }
    }
}

/// The first grant of the kept form, and what follows.
fn read(bytes: &[u8], owner: CanonicalId) -> Option<(Grant, &[u8])> {
    let (&head, rest) = bytes.split_first()?;
    let permission = Permission::ALL.into_iter().find(|permission| *permission as u8 == head & 15)?;
    let (grantee, rest) = match head >> 4 {
        KIND_OWNER => (Grantee::User(owner), rest),
        KIND_USER => {
            let (id, rest) = rest.split_first_chunk()?;
            (Grantee::User(CanonicalId::from_bytes(*id)), rest)
        }
        kind => (Grantee::Group(Group::ALL.into_iter().find(|group| *group as u8 == kind)?), rest),
    };
    Some((Grant { grantee, permission }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: CanonicalId = CanonicalId::from_bytes([1; 32]);
    const OTHER: CanonicalId = CanonicalId::from_bytes([2; 32]);

    #[test]
    fn names() {
        for permission in Permission::ALL {
            assert_eq!(Permission::from_name(permission.name()), Some(permission));
        }
        for group in Group::ALL {
            assert_eq!(Group::from_uri(group.uri()), Some(group));
        }
        assert_eq!(Permission::from_name("read"), None);
        assert_eq!(Group::from_uri("http://acs.amazonaws.com/groups/global/Everyone"), None);
        for wanted in Permission::ALL {
            assert!(Permission::FullControl.has(wanted));
            assert_eq!(Permission::Read.has(wanted), wanted == Permission::Read);
        }
    }

    /// Kept lists stay readable: these bytes are on disks.
    #[test]
    fn the_kept_form() {
        let all = Acl {
            owner: OWNER,
            grants: vec![
                Grant::group(Group::AllUsers, Permission::Read),
                Grant::group(Group::AuthenticatedUsers, Permission::Write),
                Grant::group(Group::LogDelivery, Permission::ReadAcp),
                Grant::user(OWNER, Permission::FullControl),
                Grant::user(OTHER, Permission::WriteAcp),
            ],
        };
        let expected = [&[1, 0x11, 0x22, 0x33, 0x00, 0x44][..], &[2; 32]].concat();
        assert_eq!(*all.to_bytes(), expected[..]);
        assert_eq!(Acl::from_bytes(OWNER, &expected), Ok(all));
        assert_eq!(*Acl::private(OWNER).to_bytes(), [1, 0]);
        assert_eq!(AclRef::private(OWNER).to_owned(), Acl::private(OWNER));
        assert_eq!(Acl::from_bytes(OWNER, &[1]), Ok(Acl { owner: OWNER, grants: vec![] }), "all was revoked");
        for bad in [&[][..], &[0], &[2], &[1, 0x05], &[1, 0x50], &expected[..expected.len() - 1]] {
            assert_eq!(Acl::from_bytes(OWNER, bad), Err(UnreadableAcl), "{bad:?}");
        }
    }

    #[test]
    fn what_is_public() {
        let with = |grant| Acl { owner: OWNER, grants: vec![grant] };
        for permission in Permission::ALL {
            assert!(with(Grant::group(Group::AllUsers, permission)).view().is_public());
            assert!(with(Grant::group(Group::AuthenticatedUsers, permission)).view().is_public());
            assert!(!with(Grant::group(Group::LogDelivery, permission)).view().is_public());
            assert!(!with(Grant::user(OTHER, permission)).view().is_public());
            assert!(with(Grant::user(OTHER, permission)).view().grants_to_others());
            assert!(with(Grant::group(Group::LogDelivery, permission)).view().grants_to_others());
            assert!(!with(Grant::user(OWNER, permission)).view().grants_to_others());
        }
    }

    fn grant() -> impl Strategy<Value = Grant> {
        let user = (0_u8..4).prop_map(|byte| Grantee::User(CanonicalId::from_bytes([byte; 32])));
        let group = (0_usize..3).prop_map(|at| Grantee::Group(Group::ALL[at]));
        (prop_oneof![user, group], 0_usize..5).prop_map(|(grantee, at)| Grant { grantee, permission: Permission::ALL[at] })
    }

    proptest! {
        #[test]
        fn lists_are_read_as_they_were_kept(grants in prop::collection::vec(grant(), 0..GRANTS_MAX)) {
            let acl = Acl { owner: OWNER, grants };
            let bytes = acl.to_bytes();
            prop_assert!(bytes.len() <= STORED_MAX);
            let view = AclRef::from_bytes(OWNER, &bytes).unwrap();
            prop_assert_eq!(view.to_owned(), acl.clone());
            prop_assert_eq!(view.is_public(), acl.view().is_public());
        }

        #[test]
        fn any_bytes_are_a_list_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(acl) = Acl::from_bytes(OWNER, &bytes) {
                // An owner told by identifier comes back shorter, and is the same list.
                prop_assert_eq!(Acl::from_bytes(OWNER, &acl.to_bytes()), Ok(acl));
            }
        }
    }
}
