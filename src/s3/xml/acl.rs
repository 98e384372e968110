//! Access control lists. What they mean is not known here.

use super::names;
use super::owner::Owner;
use super::reader::{Document, Element, Limits, malformed};
use super::writer::Writer;
use crate::s3::error::{Code, S3Error};

/// Grants at most (User Guide, "Access control list overview").
pub const GRANTS_MAX: usize = 100;
/// A hundred grants of seven elements.
const LIMITS: Limits = Limits { bytes: 128 << 10, elements: 1024 };

names! {
    /// What a grant allows.
    Permission {
        /// All of the others.
        FullControl = "FULL_CONTROL",
        /// Of a bucket, to put and delete objects.
        Write = "WRITE",
        /// To write the ACL.
        WriteAcp = "WRITE_ACP",
        /// To list a bucket, to read an object.
        Read = "READ",
        /// To read the ACL.
        ReadAcp = "READ_ACP",
    }
}

/// Whom a grant allows something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grantee {
    /// A user by the canonical identifier.
    User(Owner),
    /// A user by the e-mail address, which answers never have.
    Email(String),
    /// A group by its URI.
    Group(String),
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// To whom.
    pub grantee: Grantee,
    /// What.
    pub permission: Permission,
}

const USER: &str = "CanonicalUser";
const EMAIL: &str = "AmazonCustomerByEmail";
const GROUP: &str = "Group";
const SCHEMA_INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

impl Grantee {
    fn read(element: Element<'_>) -> Result<Grantee, S3Error> {
        match element.kind() {
            // A display name comes back as it was read; it says nothing.
            Some(USER) => Owner::read(element).map(Grantee::User),
            Some(EMAIL) => element.need_string("EmailAddress").map(Grantee::Email),
            Some(GROUP) => element.need_string("URI").map(Grantee::Group),
            _ => Err(malformed()),
        }
    }

    fn write(&self, writer: &mut Writer) {
        let kind = match self {
            Grantee::User(_) => USER,
            Grantee::Email(_) => EMAIL,
            Grantee::Group(_) => GROUP,
        };
        writer.open_with("Grantee", &format!("xmlns:xsi=\"{SCHEMA_INSTANCE}\" xsi:type=\"{kind}\""));
        match self {
            Grantee::User(user) => user.write_fields(writer),
            Grantee::Email(address) => writer.text("EmailAddress", address),
            Grantee::Group(uri) => writer.text("URI", uri),
        }
        writer.close("Grantee");
    }
}

impl Grant {
    pub(super) fn read(element: Element<'_>) -> Result<Grant, S3Error> {
        if element.name() != "Grant" {
            return Err(malformed());
        }
        element.only(&["Grantee", "Permission"])?;
        Ok(Grant { grantee: Grantee::read(element.need("Grantee")?)?, permission: element.need("Permission")?.one()? })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.within("Grant", |writer| {
            self.grantee.write(writer);
            writer.one("Permission", self.permission);
        });
    }
}

/// `AccessControlPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessControlPolicy {
    /// Whose bucket or object it is. Requests have it too, and may not change it.
    pub owner: Option<Owner>,
    /// The grants, in order.
    pub grants: Vec<Grant>,
}

impl AccessControlPolicy {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedACLError` of everything that is no ACL, or one of too many grants; `MaxMessageLengthExceeded`, `MissingRequestBodyError`.
    pub fn parse(body: &[u8]) -> Result<AccessControlPolicy, S3Error> {
        AccessControlPolicy::read(body).map_err(|error| match error.code {
            Code::MalformedXml => Code::MalformedAclError.into(),
            _ => error,
        })
    }

    fn read(body: &[u8]) -> Result<AccessControlPolicy, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("AccessControlPolicy")?;
        root.only(&["Owner", "AccessControlList"])?;
        let grants = root.need("AccessControlList")?.children().map(Grant::read).collect::<Result<Vec<_>, _>>()?;
        if grants.len() > GRANTS_MAX {
            return Err(malformed());
        }
        Ok(AccessControlPolicy { owner: root.get("Owner")?.map(Owner::read).transpose()?, grants })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("AccessControlPolicy");
        if let Some(owner) = &self.owner {
            owner.write(&mut writer, "Owner");
        }
        writer.within("AccessControlList", |writer| self.grants.iter().for_each(|grant| grant.write(writer)));
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::Name;
    use crate::s3::xml::tests::{code, dense};

    /// API_PutBucketAcl.
    const REFERENCE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<AccessControlPolicy xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Owner>
    <ID>852b113e7a2f25102679df27bb0ae12b3f85be6BucketOwnerCanonicalUserID</ID>
    <DisplayName>OwnerDisplayName</DisplayName>
  </Owner>
  <AccessControlList>
    <Grant>
      <Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">
        <ID>852b113e7a2f25102679df27bb0ae12b3f85be6BucketOwnerCanonicalUserID</ID>
        <DisplayName>OwnerDisplayName</DisplayName>
      </Grantee>
      <Permission>FULL_CONTROL</Permission>
    </Grant>
    <Grant>
      <Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="Group">
        <URI xmlns="">http://acs.amazonaws.com/groups/global/AllUsers</URI>
      </Grantee>
      <Permission xmlns="">READ</Permission>
    </Grant>
    <Grant>
      <Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="AmazonCustomerByEmail">
        <EmailAddress xmlns="">xyz@amazon.com</EmailAddress>
      </Grantee>
      <Permission xmlns="">WRITE_ACP</Permission>
    </Grant>
  </AccessControlList>
</AccessControlPolicy>"#;

    #[test]
    fn the_example_of_the_reference() {
        let read = AccessControlPolicy::parse(REFERENCE.as_bytes()).expect("three grants");
        assert_eq!(read.grants.iter().map(|grant| grant.permission.name()).collect::<Vec<_>>(), ["FULL_CONTROL", "READ", "WRITE_ACP"]);
        assert_eq!(read.grants[1].grantee, Grantee::Group("http://acs.amazonaws.com/groups/global/AllUsers".into()));
        assert_eq!(read.to_xml(), dense(&REFERENCE.replace(" xmlns=\"\"", "")));
    }

    /// boto3 says nothing of a display name and has the attribute in another order; minio-go has no namespace.
    #[test]
    fn other_ways_to_write_it() {
        let body = "<AccessControlPolicy><Owner><ID>a</ID></Owner><AccessControlList><Grant><Grantee xsi:type='CanonicalUser' \
                    xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance'><DisplayName>A</DisplayName><ID>a</ID></Grantee>\
                    <Permission>READ</Permission></Grant></AccessControlList></AccessControlPolicy>";
        let read = AccessControlPolicy::parse(body.as_bytes()).expect("a grant");
        assert_eq!(read.owner, Some(Owner { id: "a".into(), display_name: None }));
        let nobody = "<AccessControlPolicy><Owner><ID>a</ID></Owner><AccessControlList/></AccessControlPolicy>";
        assert!(AccessControlPolicy::parse(nobody.as_bytes()).is_ok_and(|read| read.grants.is_empty()));
    }

    #[test]
    fn refused() {
        let with = |grants: &str| format!("<AccessControlPolicy><AccessControlList>{grants}</AccessControlList></AccessControlPolicy>");
        let grant = "<Grant><Grantee xsi:type='Group'><URI>u</URI></Grantee><Permission>READ</Permission></Grant>";
        assert!(AccessControlPolicy::parse(with(&grant.repeat(100)).as_bytes()).is_ok());
        for body in [
            with(&grant.repeat(101)),
            with(&grant.replace("READ", "read")),
            with(&grant.replace("Group", "Robot")),
            with(&grant.replace(" xsi:type='Group'", "")),
            with(&grant.replace("URI", "ID")),
            with("<Grant/>"),
            with("<Grantee/>"),
            "<AccessControlPolicy/>".to_owned(),
            "<AccessControlPolicy>".to_owned(),
        ] {
            assert_eq!(code(AccessControlPolicy::parse(body.as_bytes())), Some(Code::MalformedAclError), "{body:.300}");
        }
    }
}
