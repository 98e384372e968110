//! Multipart uploads and copies.

use super::SHORT;
use super::checksums::{Checksums, read_kind, read_kinds, write_kinds};
use super::owner::Owner;
use super::reader::{Document, Element, Limits, malformed};
use super::writer::Writer;
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::error::{Code, S3Error};

/// Parts of an upload at most (User Guide, "Amazon S3 multipart upload limits").
pub const PARTS_MAX: u16 = 10_000;
/// Ten thousand parts of up to 400 bytes: number, ETag and every checksum. Eight elements each.
pub const COMPLETE_LIMITS: Limits = Limits { bytes: 4 << 20, elements: PARTS_MAX as usize * 8 + 1 };
/// A page of parts or uploads has at most 1,000 (API_ListParts, API_ListMultipartUploads).
const LIST_LIMITS: Limits = Limits { bytes: 16 << 20, elements: 64 << 10 };

/// `InitiateMultipartUploadResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitiateMultipartUploadResult {
    /// The bucket.
    pub bucket: String,
    /// The key that the object will have.
    pub key: String,
    /// Which upload it is.
    pub upload_id: String,
}

impl InitiateMultipartUploadResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<InitiateMultipartUploadResult, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("InitiateMultipartUploadResult")?;
        Ok(InitiateMultipartUploadResult {
            bucket: root.need_string("Bucket")?,
            key: root.need_string("Key")?,
            upload_id: root.need_string("UploadId")?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("InitiateMultipartUploadResult");
        writer.text("Bucket", &self.bucket);
        writer.text("Key", &self.key);
        writer.text("UploadId", &self.upload_id);
        writer.finish()
    }
}

/// A part that an upload is completed with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletedPart {
    /// Its number, from 1 to [`PARTS_MAX`].
    pub number: u16,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its checksums.
    pub checksums: Checksums,
}

/// `CompleteMultipartUpload`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteMultipartUpload {
    /// The parts, as they were listed.
    pub parts: Vec<CompletedPart>,
}

impl CompletedPart {
    fn read(element: Element<'_>) -> Result<CompletedPart, S3Error> {
        let checksums = Checksums::read_all(element)?;
        if element.children().any(|child| !["PartNumber", "ETag"].contains(&child.name()) && !child.name().starts_with("Checksum")) {
            return Err(malformed());
        }
        let number: i64 = element.need("PartNumber")?.number()?;
        let message = "PartNumber must be an integer between 1 and 10000, inclusive";
        let number = u16::try_from(number).ok().filter(|number| (1..=PARTS_MAX).contains(number)).ok_or_else(|| {
            S3Error::with(Code::InvalidArgument, message).field("ArgumentName", "partNumber").field("ArgumentValue", number.to_string())
        })?;
        Ok(CompletedPart { number, etag: element.need("ETag")?.etag()?, checksums })
    }
}

impl CompleteMultipartUpload {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`, also of no body, no parts and more than [`PARTS_MAX`]; `InvalidArgument` of a number that no part can have;
    /// `NotImplemented` of checksums that are not known.
    pub fn parse(body: &[u8]) -> Result<CompleteMultipartUpload, S3Error> {
        if body.is_empty() {
            return Err(malformed());
        }
        let document = Document::parse(body, COMPLETE_LIMITS)?;
        let root = document.root("CompleteMultipartUpload")?;
        root.only(&["Part"])?;
        let parts = root.children().map(CompletedPart::read).collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() || parts.len() > usize::from(PARTS_MAX) {
            return Err(malformed());
        }
        Ok(CompleteMultipartUpload { parts })
    }

    /// Whether no part is listed behind one of a greater number. The same number twice is left to the caller: S3 refuses it, ceph's suite
    /// has it.
    ///
    /// # Errors
    /// `InvalidPartOrder`.
    pub fn check_order(&self) -> Result<(), S3Error> {
        if self.parts.is_sorted_by_key(|part| part.number) { Ok(()) } else { Err(Code::InvalidPartOrder.into()) }
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("CompleteMultipartUpload");
        writer.reserve(self.parts.len() * 128);
        for part in &self.parts {
            writer.open("Part");
            writer.number("PartNumber", part.number.into());
            writer.etag(&part.etag);
            part.checksums.write(&mut writer);
            writer.close("Part");
        }
        writer.finish()
    }
}

/// `CompleteMultipartUploadResult`. The answer may be an [`ErrorDocument`](super::failure::ErrorDocument) with status 200 instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteMultipartUploadResult {
    /// The object's URL.
    pub location: String,
    /// The bucket.
    pub bucket: String,
    /// The object's key.
    pub key: String,
    /// The object's ETag, without quotes.
    pub etag: String,
    /// The object's checksums.
    pub checksums: Checksums,
    /// What they are of.
    pub checksum_kind: Option<Kind>,
}

impl CompleteMultipartUploadResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<CompleteMultipartUploadResult, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("CompleteMultipartUploadResult")?;
        Ok(CompleteMultipartUploadResult {
            location: root.get_string("Location")?.unwrap_or_default(),
            bucket: root.get_string("Bucket")?.unwrap_or_default(),
            key: root.get_string("Key")?.unwrap_or_default(),
            etag: root.need("ETag")?.etag()?,
            checksums: Checksums::read(root)?,
            checksum_kind: read_kind(root)?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("CompleteMultipartUploadResult");
        writer.text("Location", &self.location);
        writer.text("Bucket", &self.bucket);
        writer.text("Key", &self.key);
        writer.etag(&self.etag);
        self.checksums.write(&mut writer);
        write_kinds(&mut writer, None, self.checksum_kind);
        writer.finish()
    }
}

/// A part in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its number.
    pub number: u16,
    /// When it was put.
    pub modified_ms: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its checksums.
    pub checksums: Checksums,
}

/// `ListPartsResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPartsResult {
    /// The bucket.
    pub bucket: String,
    /// The key that the object will have.
    pub key: String,
    /// Which upload it is.
    pub upload_id: String,
    /// Who began it.
    pub initiator: Option<Owner>,
    /// Whose the object will be.
    pub owner: Option<Owner>,
    /// Its storage class.
    pub storage_class: String,
    /// Behind which part the page begins.
    pub part_number_marker: u16,
    /// Where the next page begins, if there is one.
    pub next_part_number_marker: Option<u16>,
    /// How many parts were asked for.
    pub max_parts: u32,
    /// Whether there are more.
    pub is_truncated: bool,
    /// The algorithm of the checksum that the object will have.
    pub checksum_algorithm: Option<Algorithm>,
    /// What it will be of.
    pub checksum_kind: Option<Kind>,
    /// The parts, by number.
    pub parts: Vec<Part>,
}

impl Part {
    fn read(element: Element<'_>) -> Result<Part, S3Error> {
        Ok(Part {
            number: element.need("PartNumber")?.number()?,
            modified_ms: element.need("LastModified")?.time_ms()?,
            etag: element.need("ETag")?.etag()?,
            size: element.need("Size")?.number()?,
            checksums: Checksums::read(element)?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.open("Part");
        writer.number("PartNumber", self.number.into());
        writer.seconds("LastModified", self.modified_ms);
        writer.etag(&self.etag);
        writer.number("Size", self.size);
        self.checksums.write(writer);
        writer.close("Part");
    }
}

impl ListPartsResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ListPartsResult, S3Error> {
        let document = Document::parse(body, LIST_LIMITS)?;
        let root = document.root("ListPartsResult")?;
        let (checksum_algorithm, checksum_kind) = read_kinds(root)?;
        Ok(ListPartsResult {
            bucket: root.need_string("Bucket")?,
            key: root.need_string("Key")?,
            upload_id: root.need_string("UploadId")?,
            initiator: root.get("Initiator")?.map(Owner::read).transpose()?,
            owner: root.get("Owner")?.map(Owner::read).transpose()?,
            storage_class: root.get_string("StorageClass")?.unwrap_or_default(),
            part_number_marker: root.get_number("PartNumberMarker")?.unwrap_or_default(),
            next_part_number_marker: root.get_number("NextPartNumberMarker")?,
            max_parts: root.get_number("MaxParts")?.unwrap_or_default(),
            is_truncated: root.get_flag("IsTruncated")?,
            checksum_algorithm,
            checksum_kind,
            parts: root.all("Part").map(Part::read).collect::<Result<_, _>>()?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("ListPartsResult");
        writer.reserve(1024 + self.parts.len() * 240);
        writer.text("Bucket", &self.bucket);
        writer.text("Key", &self.key);
        writer.text("UploadId", &self.upload_id);
        for (name, owner) in [("Initiator", &self.initiator), ("Owner", &self.owner)] {
            if let Some(owner) = owner {
                owner.write(&mut writer, name);
            }
        }
        writer.text("StorageClass", &self.storage_class);
        writer.number("PartNumberMarker", self.part_number_marker.into());
        writer.number_if("NextPartNumberMarker", self.next_part_number_marker);
        writer.number("MaxParts", self.max_parts.into());
        writer.flag("IsTruncated", self.is_truncated);
        write_kinds(&mut writer, self.checksum_algorithm, self.checksum_kind);
        self.parts.iter().for_each(|part| part.write(&mut writer));
        writer.finish()
    }
}

/// An upload in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    /// The key that the object will have.
    pub key: String,
    /// Which upload it is.
    pub upload_id: String,
    /// Who began it.
    pub initiator: Option<Owner>,
    /// Whose the object will be.
    pub owner: Option<Owner>,
    /// Its storage class.
    pub storage_class: String,
    /// When it was begun.
    pub initiated_ms: u64,
    /// The algorithm of the checksum that the object will have.
    pub checksum_algorithm: Option<Algorithm>,
    /// What it will be of.
    pub checksum_kind: Option<Kind>,
}

/// `ListMultipartUploadsResult`. With `encoding-type=url` names are written percent-encoded, as in [`list`](super::list).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMultipartUploadsResult {
    /// The bucket.
    pub bucket: String,
    /// Behind which key the page begins; may be empty.
    pub key_marker: String,
    /// Behind which upload of that key; may be empty.
    pub upload_id_marker: String,
    /// Where the next page begins: a key.
    pub next_key_marker: Option<String>,
    /// Where the next page begins: an upload of that key.
    pub next_upload_id_marker: Option<String>,
    /// What the keys begin with; may be empty.
    pub prefix: String,
    /// What common prefixes end with; empty if there is none.
    pub delimiter: String,
    /// How many entries were asked for.
    pub max_uploads: u32,
    /// Whether there are more.
    pub is_truncated: bool,
    /// Whether names are written percent-encoded. Here they never are.
    pub is_encoded: bool,
    /// The uploads, in order.
    pub uploads: Vec<Upload>,
    /// The common prefixes, in order.
    pub common_prefixes: Vec<String>,
}

impl Upload {
    fn read(element: Element<'_>, is_encoded: bool) -> Result<Upload, S3Error> {
        let (checksum_algorithm, checksum_kind) = read_kinds(element)?;
        Ok(Upload {
            key: element.need("Key")?.decoded(is_encoded)?,
            upload_id: element.need_string("UploadId")?,
            initiator: element.get("Initiator")?.map(Owner::read).transpose()?,
            owner: element.get("Owner")?.map(Owner::read).transpose()?,
            storage_class: element.get_string("StorageClass")?.unwrap_or_default(),
            initiated_ms: element.need("Initiated")?.time_ms()?,
            checksum_algorithm,
            checksum_kind,
        })
    }

    fn write(&self, writer: &mut Writer, is_encoded: bool) {
        writer.open("Upload");
        writer.name("Key", &self.key, is_encoded);
        writer.text("UploadId", &self.upload_id);
        for (name, owner) in [("Initiator", &self.initiator), ("Owner", &self.owner)] {
            if let Some(owner) = owner {
                owner.write(writer, name);
            }
        }
        writer.text("StorageClass", &self.storage_class);
        writer.seconds("Initiated", self.initiated_ms);
        write_kinds(writer, self.checksum_algorithm, self.checksum_kind);
        writer.close("Upload");
    }
}

impl ListMultipartUploadsResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ListMultipartUploadsResult, S3Error> {
        let document = Document::parse(body, LIST_LIMITS)?;
        let root = document.root("ListMultipartUploadsResult")?;
        let is_encoded = root.get("EncodingType")?.is_some_and(|kind| kind.text() == "url");
        let prefix = |prefixes: Element<'_>| prefixes.need("Prefix")?.decoded(is_encoded);
        Ok(ListMultipartUploadsResult {
            bucket: root.need_string("Bucket")?,
            key_marker: root.get_decoded("KeyMarker", is_encoded)?.unwrap_or_default(),
            upload_id_marker: root.get_string("UploadIdMarker")?.unwrap_or_default(),
            next_key_marker: root.get_decoded("NextKeyMarker", is_encoded)?,
            next_upload_id_marker: root.get_string("NextUploadIdMarker")?,
            prefix: root.get_decoded("Prefix", is_encoded)?.unwrap_or_default(),
            delimiter: root.get_decoded("Delimiter", is_encoded)?.unwrap_or_default(),
            max_uploads: root.get_number("MaxUploads")?.unwrap_or_default(),
            is_truncated: root.get_flag("IsTruncated")?,
            is_encoded,
            uploads: root.all("Upload").map(|upload| Upload::read(upload, is_encoded)).collect::<Result<_, _>>()?,
            common_prefixes: root.all("CommonPrefixes").map(prefix).collect::<Result<_, _>>()?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("ListMultipartUploadsResult");
        writer.reserve(1024 + self.uploads.len() * 480 + self.common_prefixes.len() * 128);
        writer.text("Bucket", &self.bucket);
        writer.name("KeyMarker", &self.key_marker, self.is_encoded);
        writer.text("UploadIdMarker", &self.upload_id_marker);
        if let Some(marker) = &self.next_key_marker {
            writer.name("NextKeyMarker", marker, self.is_encoded);
        }
        writer.text_if("NextUploadIdMarker", self.next_upload_id_marker.as_deref());
        if !self.delimiter.is_empty() {
            writer.name("Delimiter", &self.delimiter, self.is_encoded);
        }
        writer.name("Prefix", &self.prefix, self.is_encoded);
        writer.number("MaxUploads", self.max_uploads.into());
        if self.is_encoded {
            writer.text("EncodingType", "url");
        }
        writer.flag("IsTruncated", self.is_truncated);
        self.uploads.iter().for_each(|upload| upload.write(&mut writer, self.is_encoded));
        for prefix in &self.common_prefixes {
            writer.open("CommonPrefixes");
            writer.name("Prefix", prefix, self.is_encoded);
            writer.close("CommonPrefixes");
        }
        writer.finish()
    }
}

/// `CopyObjectResult`, and of a part `CopyPartResult`. The answer may be an [`ErrorDocument`](super::failure::ErrorDocument) with status
/// 200 instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyResult {
    /// The copy's ETag, without quotes.
    pub etag: String,
    /// When it was made.
    pub modified_ms: u64,
    /// Its checksums.
    pub checksums: Checksums,
    /// What they are of; not said of parts.
    pub checksum_kind: Option<Kind>,
}

const COPY_OBJECT: &str = "CopyObjectResult";
const COPY_PART: &str = "CopyPartResult";

impl CopyResult {
    /// Reads either of them.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<CopyResult, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.any_root();
        if ![COPY_OBJECT, COPY_PART].contains(&root.name()) {
            return Err(malformed());
        }
        Ok(CopyResult {
            etag: root.need("ETag")?.etag()?,
            modified_ms: root.need("LastModified")?.time_ms()?,
            checksums: Checksums::read(root)?,
            checksum_kind: read_kind(root)?,
        })
    }

    /// Writes the answer of CopyObject.
    pub fn to_object_xml(&self) -> String {
        self.write(Writer::new(COPY_OBJECT))
    }

    /// Writes the answer of UploadPartCopy.
    pub fn to_part_xml(&self) -> String {
        self.write(Writer::new(COPY_PART))
    }

    fn write(&self, mut writer: Writer) -> String {
        writer.seconds("LastModified", self.modified_ms);
        writer.etag(&self.etag);
        write_kinds(&mut writer, None, self.checksum_kind);
        self.checksums.write(&mut writer);
        writer.finish()
    }
}

#[cfg(test)]
mod tests;
