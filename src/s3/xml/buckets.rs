//! Buckets: created, listed, and where they are. What is set on one is in [`settings`](super::settings), and where it is long in files of
//! its own.

use super::owner::Owner;
use super::reader::{Document, Element, Limits, malformed};
use super::tagging::{self, BUCKET_TAGS_MAX, Tag};
use super::writer::Writer;
use super::{SHORT, names};
use crate::s3::error::S3Error;

/// A page of buckets is at most 10,000 (API_ListBuckets), each five elements.
const LIST: Limits = Limits { bytes: 8 << 20, elements: 64 << 10 };

names! {
    /// What kind of place a directory bucket is in.
    LocationType {
        /// An availability zone.
        AvailabilityZone = "AvailabilityZone",
        /// A local zone.
        LocalZone = "LocalZone",
    }
}

names! {
    /// How a directory bucket's objects are kept.
    DataRedundancy {
        /// In one availability zone.
        SingleAvailabilityZone = "SingleAvailabilityZone",
        /// In one local zone.
        SingleLocalZone = "SingleLocalZone",
    }
}

/// `CreateBucketConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateBucketConfiguration {
    /// The region it shall be in.
    pub location_constraint: Option<String>,
    /// Of a directory bucket the zone it shall be in.
    pub location: Option<(LocationType, String)>,
    /// Of a directory bucket how its objects are kept. It is a directory bucket if this or the zone is there.
    pub data_redundancy: Option<DataRedundancy>,
    /// Tags it gets at once.
    pub tags: Vec<Tag>,
}

impl CreateBucketConfiguration {
    /// Reads it; no body at all says nothing.
    ///
    /// # Errors
    /// `MalformedXML`, `InvalidTag`.
    pub fn parse(body: &[u8]) -> Result<CreateBucketConfiguration, S3Error> {
        if body.is_empty() {
            return Ok(CreateBucketConfiguration::default());
        }
        let document = Document::parse(body, SHORT)?;
        let root = document.root("CreateBucketConfiguration")?;
        root.only(&["LocationConstraint", "Location", "Bucket", "Tags"])?;
        let mut read = CreateBucketConfiguration {
            location_constraint: root.get_string("LocationConstraint")?,
            ..CreateBucketConfiguration::default()
        };
        if let Some(location) = root.get("Location")? {
            location.only(&["Name", "Type"])?;
            read.location = Some((location.need("Type")?.one()?, location.need_string("Name")?));
        }
        if let Some(bucket) = root.get("Bucket")? {
            bucket.only(&["DataRedundancy", "Type"])?;
            if bucket.need_string("Type")? != "Directory" {
                return Err(malformed());
            }
            read.data_redundancy = Some(bucket.need("DataRedundancy")?.one()?);
        }
        if let Some(tags) = root.get("Tags")? {
            tags.only(&["Tag"])?;
            read.tags = tags.children().map(Tag::read).collect::<Result<_, _>>()?;
            tagging::check(&read.tags, BUCKET_TAGS_MAX)?;
        }
        Ok(read)
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("CreateBucketConfiguration");
        writer.text_if("LocationConstraint", self.location_constraint.as_deref());
        if let Some((kind, name)) = &self.location {
            writer.within("Location", |writer| {
                writer.text("Name", name);
                writer.one("Type", *kind);
            });
        }
        if let Some(redundancy) = self.data_redundancy {
            writer.within("Bucket", |writer| {
                writer.one("DataRedundancy", redundancy);
                writer.text("Type", "Directory");
            });
        }
        if !self.tags.is_empty() {
            writer.within("Tags", |writer| self.tags.iter().for_each(|tag| tag.write(writer)));
        }
        writer.finish()
    }
}

/// A bucket in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created_ms: u64,
    /// The region it is in, where the list says so.
    pub region: Option<String>,
}

/// `ListAllMyBucketsResult`, and for directory buckets `ListAllMyDirectoryBucketsResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListAllMyBucketsResult {
    /// Whose they are; lists of directory buckets do not say it.
    pub owner: Option<Owner>,
    /// The buckets, by name.
    pub buckets: Vec<Bucket>,
    /// Where the next page begins.
    pub continuation_token: Option<String>,
    /// What their names begin with, if it was asked for.
    pub prefix: Option<String>,
}

const BUCKETS: &str = "ListAllMyBucketsResult";
const DIRECTORY_BUCKETS: &str = "ListAllMyDirectoryBucketsResult";

impl ListAllMyBucketsResult {
    /// Reads either of them.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ListAllMyBucketsResult, S3Error> {
        let document = Document::parse(body, LIST)?;
        let root = document.any_root();
        if ![BUCKETS, DIRECTORY_BUCKETS].contains(&root.name()) {
            return Err(malformed());
        }
        let bucket = |element: Element<'_>| {
            Ok(Bucket {
                name: element.need_string("Name")?,
                created_ms: element.need("CreationDate")?.time_ms()?,
                region: element.get_string("BucketRegion")?,
            })
        };
        Ok(ListAllMyBucketsResult {
            owner: root.get("Owner")?.map(Owner::read).transpose()?,
            buckets: root.need("Buckets")?.all("Bucket").map(bucket).collect::<Result<_, S3Error>>()?,
            continuation_token: root.get_string("ContinuationToken")?,
            prefix: root.get_string("Prefix")?,
        })
    }

    /// Writes the answer of ListBuckets.
    pub fn to_xml(&self) -> String {
        self.write(Writer::new(BUCKETS))
    }

    /// Writes the answer of ListDirectoryBuckets.
    pub fn to_directory_xml(&self) -> String {
        self.write(Writer::new(DIRECTORY_BUCKETS))
    }

    fn write(&self, mut writer: Writer) -> String {
        if let Some(owner) = &self.owner {
            owner.write(&mut writer, "Owner");
        }
        writer.open("Buckets");
        for bucket in &self.buckets {
            writer.within("Bucket", |writer| {
                writer.text("Name", &bucket.name);
                writer.seconds("CreationDate", bucket.created_ms);
                writer.text_if("BucketRegion", bucket.region.as_deref());
            });
        }
        writer.close("Buckets");
        writer.text_if("ContinuationToken", self.continuation_token.as_deref());
        writer.text_if("Prefix", self.prefix.as_deref());
        writer.finish()
    }
}

/// `LocationConstraint`, the answer of GetBucketLocation: the region, or nothing for us-east-1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocationConstraint(pub String);

impl LocationConstraint {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<LocationConstraint, S3Error> {
        Document::parse(body, SHORT)?.root("LocationConstraint")?.string().map(LocationConstraint)
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("LocationConstraint");
        writer.content(&self.0);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::error::Code;
    use crate::s3::xml::tests::{code, dense};

    /// API_CreateBucket.
    #[test]
    fn creating() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <LocationConstraint>Europe</LocationConstraint>
</CreateBucketConfiguration>"#;
        let read = CreateBucketConfiguration::parse(body.as_bytes()).expect("a region");
        assert_eq!((read.location_constraint.as_deref(), read.to_xml()), (Some("Europe"), dense(body)));
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <Location>
      <Name>usw2-az1</Name>
      <Type>AvailabilityZone</Type>
   </Location>
   <Bucket>
      <DataRedundancy>SingleAvailabilityZone</DataRedundancy>
      <Type>Directory</Type>
   </Bucket>
   <Tags>
      <Tag>
         <Key>a</Key>
         <Value>b</Value>
      </Tag>
   </Tags>
</CreateBucketConfiguration>"#;
        let read = CreateBucketConfiguration::parse(body.as_bytes()).expect("a directory bucket");
        assert_eq!(read.location, Some((LocationType::AvailabilityZone, "usw2-az1".into())));
        assert_eq!((read.data_redundancy, read.to_xml()), (Some(DataRedundancy::SingleAvailabilityZone), dense(body)));
        assert_eq!(CreateBucketConfiguration::parse(b""), Ok(CreateBucketConfiguration::default()));
        // s3cmd for us-east-1, and the SDK for Java.
        for body in [
            "<CreateBucketConfiguration><LocationConstraint></LocationConstraint></CreateBucketConfiguration>",
            "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>",
        ] {
            assert!(CreateBucketConfiguration::parse(body.as_bytes()).is_ok(), "{body}");
        }
        for inner in [
            "<Bucket><Type>General</Type><DataRedundancy>SingleLocalZone</DataRedundancy></Bucket>",
            "<Bucket><Type>Directory</Type><DataRedundancy>None</DataRedundancy></Bucket>",
            "<Location><Name>a</Name></Location>",
            "<Location><Name>a</Name><Type>Moon</Type></Location>",
            "<Region>a</Region>",
        ] {
            let body = format!("<CreateBucketConfiguration>{inner}</CreateBucketConfiguration>");
            assert_eq!(code(CreateBucketConfiguration::parse(body.as_bytes())), Some(Code::MalformedXml), "{body}");
        }
    }

    /// API_ListBuckets.
    #[test]
    fn listing() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <Owner>
      <ID>bcaf1ffd86f41caff1a493dc2ad8c2c281e37522a640e161ca5fb16fd081034f</ID>
      <DisplayName>webfile</DisplayName>
   </Owner>
   <Buckets>
      <Bucket>
         <Name>quotes</Name>
         <CreationDate>2006-02-03T16:45:09.000Z</CreationDate>
         <BucketRegion>us-west-2</BucketRegion>
      </Bucket>
      <Bucket>
         <Name>samples</Name>
         <CreationDate>2006-02-03T16:41:58.000Z</CreationDate>
      </Bucket>
   </Buckets>
   <ContinuationToken>AAAAMA==</ContinuationToken>
   <Prefix>s</Prefix>
</ListAllMyBucketsResult>"#;
        let read = ListAllMyBucketsResult::parse(body.as_bytes()).expect("buckets");
        assert_eq!((read.buckets[0].name.as_str(), read.buckets[0].created_ms), ("quotes", 1_138_985_109_000));
        assert_eq!(read.to_xml(), dense(body));
        let directories = ListAllMyBucketsResult { owner: None, ..read };
        let body = directories.to_directory_xml();
        assert!(body.contains("<ListAllMyDirectoryBucketsResult xmlns"), "{body}");
        assert_eq!(ListAllMyBucketsResult::parse(body.as_bytes()), Ok(directories));
        assert!(ListAllMyBucketsResult::default().to_xml().ends_with("/\"><Buckets></Buckets></ListAllMyBucketsResult>"));
    }

    /// API_GetBucketLocation.
    #[test]
    fn locations() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">us-west-2</LocationConstraint>"#;
        let read = LocationConstraint::parse(body.as_bytes()).expect("a region");
        assert_eq!((read.0.as_str(), read.to_xml().as_str()), ("us-west-2", body));
        assert_eq!(LocationConstraint::parse(b"<LocationConstraint/>"), Ok(LocationConstraint::default()));
    }
}
