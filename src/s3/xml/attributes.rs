//! What GetObjectAttributes answers.

use super::checksums::{Checksums, read_kind, write_kinds};
use super::reader::{Document, Element, Limits};
use super::writer::Writer;
use crate::s3::checksum::Kind;
use crate::s3::error::S3Error;

/// A page has at most 1,000 parts (API_GetObjectAttributes), each of up to nine elements.
const LIMITS: Limits = Limits { bytes: 1 << 20, elements: 16 << 10 };

/// A part that an object was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectPart {
    /// Its number.
    pub number: u16,
    /// Its length in bytes.
    pub size: u64,
    /// Its checksums.
    pub checksums: Checksums,
}

/// The parts that an object was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectParts {
    /// How many there are in all.
    pub total: u16,
    /// The page, where the answer has one. S3 lists parts only of objects with checksums of their parts.
    pub page: Option<PartsPage>,
}

/// A page of parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartsPage {
    /// Behind which part it begins.
    pub part_number_marker: u16,
    /// Where the next page begins.
    pub next_part_number_marker: u16,
    /// How many parts were asked for.
    pub max_parts: u32,
    /// Whether there are more.
    pub is_truncated: bool,
    /// The parts, by number.
    pub parts: Vec<ObjectPart>,
}

/// `GetObjectAttributesResponse`: what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectAttributes {
    /// The ETag, which this answer has without quotes.
    pub etag: Option<String>,
    /// The checksums.
    pub checksums: Option<(Checksums, Option<Kind>)>,
    /// The parts.
    pub parts: Option<ObjectParts>,
    /// The storage class.
    pub storage_class: Option<String>,
    /// The length in bytes.
    pub size: Option<u64>,
}

impl ObjectPart {
    fn read(element: Element<'_>) -> Result<ObjectPart, S3Error> {
        Ok(ObjectPart {
            number: element.need("PartNumber")?.number()?,
            size: element.need("Size")?.number()?,
            checksums: Checksums::read(element)?,
        })
    }
}

impl ObjectParts {
    fn read(element: Element<'_>) -> Result<ObjectParts, S3Error> {
        let page = match element.get("MaxParts")? {
            None => None,
            Some(max_parts) => Some(PartsPage {
                part_number_marker: element.get_number("PartNumberMarker")?.unwrap_or_default(),
                next_part_number_marker: element.get_number("NextPartNumberMarker")?.unwrap_or_default(),
                max_parts: max_parts.number()?,
                is_truncated: element.get_flag("IsTruncated")?,
                parts: element.all("Part").map(ObjectPart::read).collect::<Result<_, _>>()?,
            }),
        };
        Ok(ObjectParts { total: element.get_number("PartsCount")?.unwrap_or_default(), page })
    }

    fn write(&self, writer: &mut Writer) {
        writer.open("ObjectParts");
        writer.number("PartsCount", self.total.into());
        if let Some(page) = &self.page {
            writer.number("PartNumberMarker", page.part_number_marker.into());
            writer.number("NextPartNumberMarker", page.next_part_number_marker.into());
            writer.number("MaxParts", page.max_parts.into());
            writer.flag("IsTruncated", page.is_truncated);
            for part in &page.parts {
                writer.open("Part");
                writer.number("PartNumber", part.number.into());
                writer.number("Size", part.size);
                part.checksums.write(writer);
                writer.close("Part");
            }
        }
        writer.close("ObjectParts");
    }
}

impl ObjectAttributes {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ObjectAttributes, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("GetObjectAttributesResponse")?;
        let checksums = |element: Element<'_>| Ok::<_, S3Error>((Checksums::read(element)?, read_kind(element)?));
        Ok(ObjectAttributes {
            etag: root.get("ETag")?.map(Element::etag).transpose()?,
            checksums: root.get("Checksum")?.map(checksums).transpose()?,
            parts: root.get("ObjectParts")?.map(ObjectParts::read).transpose()?,
            storage_class: root.get_string("StorageClass")?,
            size: root.get_number("ObjectSize")?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("GetObjectAttributesResponse");
        writer.text_if("ETag", self.etag.as_deref());
        if let Some((checksums, kind)) = &self.checksums {
            writer.within("Checksum", |writer| {
                checksums.write(writer);
                write_kinds(writer, None, *kind);
            });
        }
        if let Some(parts) = &self.parts {
            parts.write(&mut writer);
        }
        writer.text_if("StorageClass", self.storage_class.as_deref());
        writer.number_if("ObjectSize", self.size);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::dense;

    /// API_GetObjectAttributes.
    #[test]
    fn the_example_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<GetObjectAttributesResponse xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <ETag>b2add96cc9702bbf4efb0ccdfc6b7747-3</ETag>
   <Checksum>
      <ChecksumSHA256>uWBwpe1dxI4Vw8Gf0X9ynOdw/SS6VBzfWm9giiv1sf4=-3</ChecksumSHA256>
      <ChecksumType>COMPOSITE</ChecksumType>
   </Checksum>
   <ObjectParts>
      <PartsCount>3</PartsCount>
      <PartNumberMarker>0</PartNumberMarker>
      <NextPartNumberMarker>1</NextPartNumberMarker>
      <MaxParts>1</MaxParts>
      <IsTruncated>true</IsTruncated>
      <Part>
         <PartNumber>1</PartNumber>
         <Size>5242880</Size>
         <ChecksumSHA256>arcu6553sHVAiX4MjW0j7I7vD4w6R+Gz9Ok0Q9lTa+0=</ChecksumSHA256>
      </Part>
   </ObjectParts>
   <StorageClass>STANDARD</StorageClass>
   <ObjectSize>15728640</ObjectSize>
</GetObjectAttributesResponse>"#;
        let read = ObjectAttributes::parse(body.as_bytes()).expect("attributes");
        assert_eq!((read.size, read.parts.as_ref().map(|parts| parts.total)), (Some(15_728_640), Some(3)));
        assert_eq!(read.to_xml(), dense(body));
        let short = ObjectAttributes { parts: Some(ObjectParts { total: 2, page: None }), ..ObjectAttributes::default() };
        assert!(short.to_xml().ends_with("/\"><ObjectParts><PartsCount>2</PartsCount></ObjectParts></GetObjectAttributesResponse>"));
        assert_eq!(ObjectAttributes::parse(short.to_xml().as_bytes()), Ok(short));
    }
}
