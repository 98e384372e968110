//! Lists of objects and of versions.
//!
//! With `encoding-type=url` names are percent-encoded where they are written, and decoded where they are read. Tokens and version
//! identifiers never are, nor is the prefix in the first version of the list: boto3 asks for the encoding by itself and decodes everything
//! else, and ceph's suite expects that prefix as it was sent.

use super::checksums::{read_kinds, write_kinds};
use super::owner::Owner;
use super::reader::{Document, Element, Limits};
use super::writer::{Writer, is_of_xml};
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::error::S3Error;

/// A page has at most 1,000 names (API_ListObjectsV2). Ours are of at most 1,024 bytes, each of which may be a reference of 6; other
/// servers' elements are more than ours.
const LIMITS: Limits = Limits { bytes: 16 << 20, elements: 64 << 10 };
/// About how long an object is in a list beside its key.
const OBJECT_BYTES: usize = 320;

/// An object in a list, or a version of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// When it was put.
    pub modified_ms: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its length in bytes.
    pub size: u64,
    /// `STANDARD` and others.
    pub storage_class: String,
    /// Whose it is, if the list says so.
    pub owner: Option<Owner>,
    /// The algorithm of its checksum.
    pub checksum_algorithm: Option<Algorithm>,
    /// What its checksum is of.
    pub checksum_kind: Option<Kind>,
}

/// What lists of every kind say, and a page of objects or versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The bucket.
    pub bucket: String,
    /// What the names begin with; may be empty.
    pub prefix: String,
    /// What common prefixes end with; empty if there is none.
    pub delimiter: String,
    /// How many entries were asked for.
    pub max_keys: u32,
    /// Whether there are more.
    pub is_truncated: bool,
    /// Whether names are written percent-encoded, as `encoding-type=url` asks. Here they never are.
    pub is_encoded: bool,
    /// The objects or versions, in order.
    pub entries: Vec<T>,
    /// The common prefixes, in order.
    pub common_prefixes: Vec<String>,
}

/// `ListBucketResult` of the first version of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListBucketResult {
    /// The page.
    pub page: Page<Object>,
    /// Behind which key it begins; may be empty.
    pub marker: String,
    /// Where the next page begins. S3 says it only of lists with a delimiter that are truncated.
    pub next_marker: Option<String>,
}

/// `ListBucketResult` of the second version of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListBucketV2Result {
    /// The page.
    pub page: Page<Object>,
    /// Where it begins, if the request had a token.
    pub continuation_token: Option<String>,
    /// Where the next page begins, if there is one.
    pub next_continuation_token: Option<String>,
    /// Behind which key the list begins, if the request had it.
    pub start_after: Option<String>,
}

/// A version or a delete marker in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// A version of an object.
    Object {
        /// The object.
        object: Object,
        /// Which version.
        version_id: String,
        /// Whether it is the current one.
        is_latest: bool,
    },
    /// A delete marker.
    DeleteMarker {
        /// The key it deletes.
        key: String,
        /// Which version it is.
        version_id: String,
        /// Whether it is the current one.
        is_latest: bool,
        /// When it was put.
        modified_ms: u64,
        /// Whose it is.
        owner: Option<Owner>,
    },
}

/// `ListVersionsResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListVersionsResult {
    /// The page.
    pub page: Page<Version>,
    /// Behind which key it begins; may be empty.
    pub key_marker: String,
    /// Behind which version of that key; may be empty.
    pub version_id_marker: String,
    /// Where the next page begins: a key.
    pub next_key_marker: Option<String>,
    /// Where the next page begins: a version of that key.
    pub next_version_id_marker: Option<String>,
}

impl Object {
    fn read(element: Element<'_>, is_encoded: bool) -> Result<Object, S3Error> {
        let (checksum_algorithm, checksum_kind) = read_kinds(element)?;
        Ok(Object {
            key: element.need("Key")?.decoded(is_encoded)?,
            modified_ms: element.need("LastModified")?.time_ms()?,
            etag: element.get("ETag")?.map(Element::etag).transpose()?.unwrap_or_default(),
            size: element.need("Size")?.number()?,
            storage_class: element.get_string("StorageClass")?.unwrap_or_default(),
            owner: element.get("Owner")?.map(Owner::read).transpose()?,
            checksum_algorithm,
            checksum_kind,
        })
    }

    /// What stands behind the key, and of versions behind what says which it is.
    fn write_rest(&self, writer: &mut Writer) {
        writer.seconds("LastModified", self.modified_ms);
        writer.etag(&self.etag);
        write_kinds(writer, self.checksum_algorithm, self.checksum_kind);
        writer.number("Size", self.size);
        if let Some(owner) = &self.owner {
            owner.write(writer, "Owner");
        }
        writer.text("StorageClass", &self.storage_class);
    }

    fn write(&self, writer: &mut Writer, is_encoded: bool) {
        writer.open("Contents");
        writer.name("Key", &self.key, is_encoded);
        self.write_rest(writer);
        writer.close("Contents");
    }
}

impl<T> Default for Page<T> {
    fn default() -> Page<T> {
        Page {
            bucket: String::new(),
            prefix: String::new(),
            delimiter: String::new(),
            max_keys: 0,
            is_truncated: false,
            is_encoded: false,
            entries: Vec::new(),
            common_prefixes: Vec::new(),
        }
    }
}

impl<T> Page<T> {
    /// Reads it; `entry` reads an element that is an entry.
    fn read(root: Element<'_>, form: Form, entry: impl Fn(Element<'_>, bool) -> Option<Result<T, S3Error>>) -> Result<Page<T>, S3Error> {
        let is_encoded = root.get("EncodingType")?.is_some_and(|kind| kind.text() == "url");
        let prefix = |prefixes: Element<'_>| prefixes.need("Prefix")?.decoded(is_encoded);
        Ok(Page {
            bucket: root.need_string("Name")?,
            prefix: root.get_decoded("Prefix", is_encoded && form != Form::ObjectsV1)?.unwrap_or_default(),
            delimiter: root.get_decoded("Delimiter", is_encoded)?.unwrap_or_default(),
            max_keys: root.get_number("MaxKeys")?.unwrap_or_default(),
            is_truncated: root.get_flag("IsTruncated")?,
            is_encoded,
            entries: root.children().filter_map(|element| entry(element, is_encoded)).collect::<Result<_, _>>()?,
            common_prefixes: root.all("CommonPrefixes").map(prefix).collect::<Result<_, _>>()?,
        })
    }

    /// What stands before the markers.
    fn begin(&self, form: Form) -> Writer {
        let mut writer = Writer::new(form.root());
        writer.reserve(1024 + self.entries.len() * OBJECT_BYTES + self.common_prefixes.len() * 128);
        writer.text("Name", &self.bucket);
        // As clients expect it of the first version; but for what XML cannot hold.
        let is_plain = form == Form::ObjectsV1 && self.prefix.chars().all(is_of_xml);
        writer.name("Prefix", &self.prefix, self.is_encoded && !is_plain);
        writer
    }

    /// A marker, if there is one.
    fn marker(&self, writer: &mut Writer, name: &str, marker: Option<&str>) {
        if let Some(marker) = marker {
            writer.name(name, marker, self.is_encoded);
        }
    }

    /// What stands behind the markers.
    fn end(&self, mut writer: Writer, entry: impl Fn(&T, &mut Writer, bool)) -> String {
        writer.number("MaxKeys", self.max_keys.into());
        if !self.delimiter.is_empty() {
            writer.name("Delimiter", &self.delimiter, self.is_encoded);
        }
        if self.is_encoded {
            writer.text("EncodingType", "url");
        }
        writer.flag("IsTruncated", self.is_truncated);
        for each in &self.entries {
            entry(each, &mut writer, self.is_encoded);
        }
        for prefix in &self.common_prefixes {
            writer.open("CommonPrefixes");
            writer.name("Prefix", prefix, self.is_encoded);
            writer.close("CommonPrefixes");
        }
        writer.finish()
    }
}

/// Which list it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    ObjectsV1,
    ObjectsV2,
    Versions,
}

impl Form {
    fn root(self) -> &'static str {
        match self {
            Form::ObjectsV1 | Form::ObjectsV2 => "ListBucketResult",
            Form::Versions => "ListVersionsResult",
        }
    }
}

/// Reads an element that is an object.
fn contents(element: Element<'_>, is_encoded: bool) -> Option<Result<Object, S3Error>> {
    (element.name() == "Contents").then(|| Object::read(element, is_encoded))
}

impl ListBucketResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ListBucketResult, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root(Form::ObjectsV1.root())?;
        let page = Page::read(root, Form::ObjectsV1, contents)?;
        Ok(ListBucketResult {
            marker: root.get_decoded("Marker", page.is_encoded)?.unwrap_or_default(),
            next_marker: root.get_decoded("NextMarker", page.is_encoded)?,
            page,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = self.page.begin(Form::ObjectsV1);
        self.page.marker(&mut writer, "Marker", Some(&self.marker));
        self.page.marker(&mut writer, "NextMarker", self.next_marker.as_deref());
        self.page.end(writer, Object::write)
    }
}

impl ListBucketV2Result {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ListBucketV2Result, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root(Form::ObjectsV2.root())?;
        let page = Page::read(root, Form::ObjectsV2, contents)?;
        Ok(ListBucketV2Result {
            continuation_token: root.get_string("ContinuationToken")?,
            next_continuation_token: root.get_string("NextContinuationToken")?,
            start_after: root.get_decoded("StartAfter", page.is_encoded)?,
            page,
        })
    }

    /// How many objects and common prefixes it has.
    pub fn key_count(&self) -> usize {
        self.page.entries.len() + self.page.common_prefixes.len()
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = self.page.begin(Form::ObjectsV2);
        writer.text_if("ContinuationToken", self.continuation_token.as_deref());
        writer.text_if("NextContinuationToken", self.next_continuation_token.as_deref());
        self.page.marker(&mut writer, "StartAfter", self.start_after.as_deref());
        writer.number("KeyCount", self.key_count() as u64);
        self.page.end(writer, Object::write)
    }
}

impl Version {
    /// Its key.
    pub fn key(&self) -> &str {
        match self {
            Version::Object { object, .. } => &object.key,
            Version::DeleteMarker { key, .. } => key,
        }
    }

    /// Reads it, if it is one.
    fn read(element: Element<'_>, is_encoded: bool) -> Option<Result<Version, S3Error>> {
        match element.name() {
            "Version" => Some(Version::read_object(element, is_encoded)),
            "DeleteMarker" => Some(Version::read_marker(element, is_encoded)),
            _ => None,
        }
    }

    fn read_object(element: Element<'_>, is_encoded: bool) -> Result<Version, S3Error> {
        Ok(Version::Object {
            object: Object::read(element, is_encoded)?,
            version_id: element.need_string("VersionId")?,
            is_latest: element.need("IsLatest")?.flag()?,
        })
    }

    fn read_marker(element: Element<'_>, is_encoded: bool) -> Result<Version, S3Error> {
        Ok(Version::DeleteMarker {
            key: element.need("Key")?.decoded(is_encoded)?,
            version_id: element.need_string("VersionId")?,
            is_latest: element.need("IsLatest")?.flag()?,
            modified_ms: element.need("LastModified")?.time_ms()?,
            owner: element.get("Owner")?.map(Owner::read).transpose()?,
        })
    }

    fn write(&self, writer: &mut Writer, is_encoded: bool) {
        let (element, version_id, is_latest) = match self {
            Version::Object { version_id, is_latest, .. } => ("Version", version_id, *is_latest),
            Version::DeleteMarker { version_id, is_latest, .. } => ("DeleteMarker", version_id, *is_latest),
        };
        writer.open(element);
        writer.name("Key", self.key(), is_encoded);
        writer.text("VersionId", version_id);
        writer.flag("IsLatest", is_latest);
        match self {
            Version::Object { object, .. } => object.write_rest(writer),
            Version::DeleteMarker { modified_ms, owner, .. } => {
                writer.seconds("LastModified", *modified_ms);
                if let Some(owner) = owner {
                    owner.write(writer, "Owner");
                }
            }
        }
        writer.close(element);
    }
}

impl ListVersionsResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ListVersionsResult, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root(Form::Versions.root())?;
        let page = Page::read(root, Form::Versions, Version::read)?;
        Ok(ListVersionsResult {
            key_marker: root.get_decoded("KeyMarker", page.is_encoded)?.unwrap_or_default(),
            version_id_marker: root.get_string("VersionIdMarker")?.unwrap_or_default(),
            next_key_marker: root.get_decoded("NextKeyMarker", page.is_encoded)?,
            next_version_id_marker: root.get_string("NextVersionIdMarker")?,
            page,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = self.page.begin(Form::Versions);
        self.page.marker(&mut writer, "KeyMarker", Some(&self.key_marker));
        writer.text("VersionIdMarker", &self.version_id_marker);
        self.page.marker(&mut writer, "NextKeyMarker", self.next_key_marker.as_deref());
        writer.text_if("NextVersionIdMarker", self.next_version_id_marker.as_deref());
        self.page.end(writer, Version::write)
    }
}

#[cfg(test)]
mod tests;
