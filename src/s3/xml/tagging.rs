//! Tags of buckets and objects, and the rules they keep in whatever way they come.

use super::SHORT;
use super::reader::{Document, Element};
use super::writer::Writer;
use crate::s3::error::{Code, S3Error};

/// Tags of an object at most (User Guide, "Categorizing your storage using tags").
pub const OBJECT_TAGS_MAX: usize = 10;
/// Tags of a bucket at most (User Guide, "Using cost allocation S3 bucket tags").
pub const BUCKET_TAGS_MAX: usize = 50;
/// Characters of a tag's key at most.
pub const KEY_CHARS_MAX: usize = 128;
/// Characters of a tag's value at most.
pub const VALUE_CHARS_MAX: usize = 256;

/// A tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Its key.
    pub key: String,
    /// Its value, which may be empty.
    pub value: String,
}

impl Tag {
    pub(super) fn read(element: Element<'_>) -> Result<Tag, S3Error> {
        element.only(&["Key", "Value"])?;
        Ok(Tag { key: element.need_string("Key")?, value: element.need_string("Value")? })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.within("Tag", |writer| {
            writer.text("Key", &self.key);
            writer.text("Value", &self.value);
        });
    }

    /// Whether it keeps S3's rules for tags.
    ///
    /// # Errors
    /// `InvalidTag`.
    pub fn check(&self) -> Result<(), S3Error> {
        let refused = |message: &str| Err(S3Error::with(Code::InvalidTag, message).field("TagKey", self.key.as_str()));
        if self.key.is_empty() || self.key.chars().count() > KEY_CHARS_MAX || !self.key.chars().all(is_allowed) {
            return refused("The TagKey you have provided is invalid");
        }
        if self.value.chars().count() > VALUE_CHARS_MAX || !self.value.chars().all(is_allowed) {
            return refused("The TagValue you have provided is invalid").map_err(|error| error.field("TagValue", self.value.as_str()));
        }
        if self.key.starts_with("aws:") {
            return refused("System tags cannot be added/updated by requester");
        }
        Ok(())
    }
}

/// Letters, numbers and spaces of all scripts, and some punctuation (User Guide, "Categorizing your storage using tags").
fn is_allowed(character: char) -> bool {
    character.is_alphanumeric() || (character.is_whitespace() && !character.is_control()) || "+-=._:/@".contains(character)
}

/// Whether tags keep S3's rules together.
///
/// # Errors
/// `InvalidTag`: too many, two with the same key, or one that is wrong.
pub fn check(tags: &[Tag], tags_max: usize) -> Result<(), S3Error> {
    if tags.len() > tags_max {
        let message = format!("{} tags cannot be greater than {tags_max}", if tags_max == OBJECT_TAGS_MAX { "Object" } else { "Bucket" });
        return Err(S3Error::with(Code::InvalidTag, message));
    }
    for (at, tag) in tags.iter().enumerate() {
        tag.check()?;
        if tags[..at].iter().any(|other| other.key == tag.key) {
            let message = "Cannot provide multiple Tags with the same key";
            return Err(S3Error::with(Code::InvalidTag, message).field("TagKey", tag.key.as_str()));
        }
    }
    Ok(())
}

/// `Tagging`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tagging {
    /// The tags, in order.
    pub tags: Vec<Tag>,
}

impl Tagging {
    /// Reads it, with [`OBJECT_TAGS_MAX`] or [`BUCKET_TAGS_MAX`].
    ///
    /// # Errors
    /// `MalformedXML`, `InvalidTag`.
    pub fn parse(body: &[u8], tags_max: usize) -> Result<Tagging, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("Tagging")?;
        root.only(&["TagSet"])?;
        let set = root.need("TagSet")?;
        set.only(&["Tag"])?;
        let tags = set.children().map(Tag::read).collect::<Result<Vec<_>, _>>()?;
        check(&tags, tags_max)?;
        Ok(Tagging { tags })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("Tagging");
        writer.within("TagSet", |writer| self.tags.iter().for_each(|tag| tag.write(writer)));
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::{code, dense};

    fn tag(key: &str, value: &str) -> Tag {
        Tag { key: key.into(), value: value.into() }
    }

    /// API_PutObjectTagging and API_GetBucketTagging.
    #[test]
    fn examples_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<Tagging xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <TagSet>
      <Tag>
         <Key>Project</Key>
         <Value>Project One</Value>
      </Tag>
      <Tag>
         <Key>User</Key>
         <Value>jsmith</Value>
      </Tag>
   </TagSet>
</Tagging>"#;
        let tagging = Tagging::parse(body.as_bytes(), BUCKET_TAGS_MAX).expect("tags");
        assert_eq!(tagging.tags, [tag("Project", "Project One"), tag("User", "jsmith")]);
        assert_eq!(tagging.to_xml(), dense(body));
        // As s3cmd writes it: no header, no namespace. And no tags.
        assert_eq!(Tagging::parse(b"<Tagging><TagSet/></Tagging>", OBJECT_TAGS_MAX), Ok(Tagging::default()));
    }

    #[test]
    fn the_rules_of_tags() {
        let many = |count| (0..count).map(|i| tag(&format!("k{i}"), "")).collect::<Vec<_>>();
        assert_eq!(check(&many(10), OBJECT_TAGS_MAX), Ok(()));
        assert_eq!(code(check(&many(11), OBJECT_TAGS_MAX)), Some(Code::InvalidTag));
        assert_eq!(check(&many(50), BUCKET_TAGS_MAX), Ok(()));
        assert_eq!(code(check(&many(51), BUCKET_TAGS_MAX)), Some(Code::InvalidTag));
        let long = |key, value| tag(&"é".repeat(key), &"é".repeat(value));
        assert_eq!(long(128, 256).check(), Ok(()));
        for wrong in [long(129, 0), long(1, 257), tag("", "a"), tag("aws:x", "a"), tag("a\n", ""), tag("a", "<"), tag("a#", "")] {
            assert_eq!(code(wrong.check()), Some(Code::InvalidTag), "{wrong:?}");
        }
        assert_eq!(tag("a b+-=._:/@Ж9", "日本 語").check(), Ok(()));
        assert_eq!(code(check(&[tag("a", "1"), tag("b", "1"), tag("a", "2")], OBJECT_TAGS_MAX)), Some(Code::InvalidTag));
    }

    #[test]
    fn malformed() {
        for body in [
            "<Tagging/>",
            "<Tagging><TagSet/><TagSet/></Tagging>",
            "<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>",
            "<Tagging><TagSet><Tag><Value>a</Value></Tag></TagSet></Tagging>",
            "<Tagging><TagSet><Tag><Key>a</Key><Key>b</Key><Value/></Tag></TagSet></Tagging>",
            "<Tagging><TagSet><Label/></TagSet></Tagging>",
            "<Tags><TagSet/></Tags>",
        ] {
            assert_eq!(code(Tagging::parse(body.as_bytes(), OBJECT_TAGS_MAX)), Some(Code::MalformedXml), "{body}");
        }
    }
}
