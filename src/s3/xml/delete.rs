//! Deleting many objects with one request.

use super::reader::{Document, Element, Limits, malformed};
use super::writer::Writer;
use crate::s3::error::{Code, S3Error};
use crate::wire::http::date;

/// Objects of one request at most (API_DeleteObjects).
pub const OBJECTS_MAX: usize = 1000;
/// A thousand keys of 1,024 bytes, each of which may be a reference of 6, and what is around them; six elements each.
pub const LIMITS: Limits = Limits { bytes: 8 << 20, elements: OBJECTS_MAX * 6 + 2 };

/// Bytes of the identifier of a version.
const VERSION_BYTES: usize = 16;

/// An object to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectIdentifier {
    /// Its key.
    pub key: String,
    /// Which version; without it the current one.
    pub version_id: Option<String>,
    /// Only if this is its ETag: without quotes, or `*`.
    pub etag: Option<String>,
    /// Only if it was put at this second, in milliseconds since 1970.
    pub modified_ms: Option<u64>,
    /// Only if it has so many bytes.
    pub size: Option<u64>,
}

/// `Delete`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// What to delete, in order.
    pub objects: Vec<ObjectIdentifier>,
    /// Whether the answer names only what failed.
    pub is_quiet: bool,
}

impl ObjectIdentifier {
    fn read(element: Element<'_>) -> Result<ObjectIdentifier, S3Error> {
        element.only(&["Key", "VersionId", "ETag", "LastModifiedTime", "Size"])?;
        let key = element.need_string("Key")?;
        if key.is_empty() {
            return Err(Code::UserKeyMustBeSpecified.into());
        }
        Ok(ObjectIdentifier {
            key,
            // An empty one is none: some clients always write the element.
            version_id: element.get_string("VersionId")?.filter(|version| !version.is_empty()),
            etag: element.get("ETag")?.map(Element::etag).transpose()?,
            modified_ms: element.get("LastModifiedTime")?.map(time_ms).transpose()?,
            size: element.get_number("Size")?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.open("Object");
        writer.text("Key", &self.key);
        writer.text_if("VersionId", self.version_id.as_deref());
        if let Some(etag) = &self.etag {
            if etag == "*" { writer.text("ETag", etag) } else { writer.etag(etag) }
        }
        if let Some(modified_ms) = self.modified_ms {
            writer.text("LastModifiedTime", &date::http((modified_ms / 1000).try_into().unwrap_or(i64::MAX)));
        }
        writer.number_if("Size", self.size);
        writer.close("Object");
    }
}

/// SDKs write this one time as HTTP does, `Wed, 21 Oct 2015 07:28:00 GMT`; the reference has both forms. Years of two digits, for which the
/// other reader needs to know the time, nobody writes.
fn time_ms(element: Element<'_>) -> Result<u64, S3Error> {
    match date::parse_http(element.string()?.trim_ascii(), 0) {
        Some(seconds) => u64::try_from(seconds).map(|seconds| seconds * 1000).map_err(|_| malformed()),
        None => element.time_ms(),
    }
}

impl Delete {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`, also of no objects and of more than [`OBJECTS_MAX`]; `UserKeyMustBeSpecified` of an empty key.
    pub fn parse(body: &[u8]) -> Result<Delete, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("Delete")?;
        root.only(&["Object", "Quiet"])?;
        let objects = root.all("Object").map(ObjectIdentifier::read).collect::<Result<Vec<_>, _>>()?;
        if objects.is_empty() || objects.len() > OBJECTS_MAX {
            return Err(malformed());
        }
        Ok(Delete { objects, is_quiet: root.get_flag("Quiet")? })
    }

    /// The most bytes of an answer to it in which errors have no messages.
    pub fn answer_bytes_max(&self) -> usize {
        let mut longest = DeleteResult::default();
        for ObjectIdentifier { key, version_id, .. } in &self.objects {
            let (key, version_id) = (key.clone(), version_id.clone());
            if self.is_quiet {
                let code = Code::ALL.iter().map(|code| code.name()).max_by_key(|name| name.len()).unwrap_or_default().to_owned();
                longest.errors.push(NotDeleted { key, version_id, code, message: String::new() });
            } else {
                // That takes more than any error does.
                let marker = Some("0".repeat(VERSION_BYTES));
                longest.deleted.push(Deleted { key, version_id, is_delete_marker: true, delete_marker_version_id: marker });
            }
        }
        longest.to_xml().len()
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("Delete");
        self.objects.iter().for_each(|object| object.write(&mut writer));
        if self.is_quiet {
            writer.flag("Quiet", true);
        }
        writer.finish()
    }
}

/// An object that was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Its key.
    pub key: String,
    /// The version that the request named.
    pub version_id: Option<String>,
    /// Whether a delete marker was made, or the version was one.
    pub is_delete_marker: bool,
    /// The version that the delete marker is.
    pub delete_marker_version_id: Option<String>,
}

/// An object that could not be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotDeleted {
    /// Its key.
    pub key: String,
    /// The version that the request named.
    pub version_id: Option<String>,
    /// The error's name: that of a [`Code`].
    pub code: String,
    /// For people.
    pub message: String,
}

/// `DeleteResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteResult {
    /// What was deleted; nothing if the request was quiet.
    pub deleted: Vec<Deleted>,
    /// What was not.
    pub errors: Vec<NotDeleted>,
}

impl DeleteResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<DeleteResult, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("DeleteResult")?;
        let deleted = |element: Element<'_>| {
            Ok(Deleted {
                key: element.need_string("Key")?,
                version_id: element.get_string("VersionId")?,
                is_delete_marker: element.get_flag("DeleteMarker")?,
                delete_marker_version_id: element.get_string("DeleteMarkerVersionId")?,
            })
        };
        let error = |element: Element<'_>| {
            Ok(NotDeleted {
                key: element.get_string("Key")?.unwrap_or_default(),
                version_id: element.get_string("VersionId")?,
                code: element.need_string("Code")?,
                message: element.get_string("Message")?.unwrap_or_default(),
            })
        };
        Ok(DeleteResult {
            deleted: root.all("Deleted").map(deleted).collect::<Result<_, S3Error>>()?,
            errors: root.all("Error").map(error).collect::<Result<_, S3Error>>()?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("DeleteResult");
        for deleted in &self.deleted {
            writer.open("Deleted");
            writer.text("Key", &deleted.key);
            writer.text_if("VersionId", deleted.version_id.as_deref());
            if deleted.is_delete_marker {
                writer.flag("DeleteMarker", true);
            }
            writer.text_if("DeleteMarkerVersionId", deleted.delete_marker_version_id.as_deref());
            writer.close("Deleted");
        }
        for error in &self.errors {
            writer.open("Error");
            writer.text("Key", &error.key);
            writer.text_if("VersionId", error.version_id.as_deref());
            writer.text("Code", &error.code);
            writer.text("Message", &error.message);
            writer.close("Error");
        }
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::{code, dense};

    /// API_DeleteObjects.
    #[test]
    fn requests_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
    <Object>
         <Key>sample1.txt</Key>
         <VersionId>OYcLXagmS.WaD..oyH4KRguB95_YhLs7</VersionId>
         <ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag>
         <LastModifiedTime>Wed, 21 Oct 2015 07:28:00 GMT</LastModifiedTime>
         <Size>12</Size>
    </Object>
    <Object>
         <Key>sample2.txt</Key>
         <ETag>*</ETag>
    </Object>
    <Quiet>true</Quiet>
</Delete>"#;
        let read = Delete::parse(body.as_bytes()).expect("two objects");
        assert_eq!(read.objects[0].modified_ms, Some(1_445_412_480_000));
        assert_eq!(read.to_xml(), dense(body));
        let other = body.replace("Wed, 21 Oct 2015 07:28:00 GMT", "2015-10-21T07:28:00Z");
        assert_eq!(Delete::parse(other.as_bytes()), Ok(read));
    }

    /// boto3 puts `Quiet` behind, the SDK for Go before the objects; keys are as they are, with white space.
    #[test]
    fn what_clients_write() {
        let body = "<Delete><Quiet>false</Quiet><Object><VersionId></VersionId><Key> a&amp;b&#13;\n&#x1;</Key></Object></Delete>";
        let read = Delete::parse(body.as_bytes()).expect("an object");
        assert_eq!((read.objects[0].key.as_str(), &read.objects[0].version_id, read.is_quiet), (" a&b\r\n\u{1}", &None, false));
    }

    #[test]
    fn refused() {
        let with = |inner: &str| format!("<Delete>{inner}</Delete>");
        let object = "<Object><Key>a</Key></Object>";
        assert_eq!(Delete::parse(with(&object.repeat(1000)).as_bytes()).map(|read| read.objects.len()), Ok(1000));
        for body in [
            with(""),
            with(&object.repeat(1001)),
            with("<Object/>"),
            with("<Object>a</Object>"),
            with("<Object><Key>a</Key><Key>b</Key></Object>"),
            with("<Object><Key>a</Key><Size>-1</Size></Object>"),
            with("<Object><Key>a</Key><LastModifiedTime>Wed, 21 Oct 1965 07:28:00 GMT</LastModifiedTime></Object>"),
            with("<Object><Key>a</Key><LastModifiedTime>now</LastModifiedTime></Object>"),
            with("<Object><Key>a</Key><IfOld/></Object>"),
            with(&format!("{object}<Quiet>maybe</Quiet>")),
            with(&format!("{object}<Force>true</Force>")),
        ] {
            assert_eq!(code(Delete::parse(body.as_bytes())), Some(Code::MalformedXml), "{body:.200}");
        }
        assert_eq!(code(Delete::parse(with("<Object><Key/></Object>").as_bytes())), Some(Code::UserKeyMustBeSpecified));
        assert_eq!(code(Delete::parse(&vec![b' '; LIMITS.bytes + 1])), Some(Code::MaxMessageLengthExceeded));
    }

    /// A thousand of the longest keys, in the longest way to write them, fit.
    #[test]
    fn the_longest_request() {
        let object = ObjectIdentifier { key: "\u{1f}".repeat(1024), version_id: Some("v".repeat(1024)), ..ObjectIdentifier::default() };
        let delete = Delete { objects: vec![object; OBJECTS_MAX], is_quiet: true };
        assert_eq!(Delete::parse(delete.to_xml().as_bytes()), Ok(delete));
    }

    /// Whatever becomes of each object, the answer is no longer than was foreseen; and that is no guess.
    #[test]
    fn answers_are_as_long_as_foreseen() {
        let object = |key: &str, version: Option<&str>| ObjectIdentifier {
            key: key.into(),
            version_id: version.map(str::to_owned),
            ..ObjectIdentifier::default()
        };
        let objects = vec![object("a", None), object("&<\u{1}", Some("null")), object("b/c", Some("0123456789abcdef"))];
        for is_quiet in [false, true] {
            let asked = Delete { objects: objects.clone(), is_quiet };
            let mut lengths = Vec::new();
            for code in Code::ALL {
                // Each of them fails, or none, or those at odd places.
                for failing in 0..8 {
                    let mut result = DeleteResult::default();
                    for (at, ObjectIdentifier { key, version_id, .. }) in asked.objects.iter().enumerate() {
                        let (key, version_id) = (key.clone(), version_id.clone());
                        if failing >> at & 1 == 1 {
                            result.errors.push(NotDeleted { key, version_id, code: code.name().into(), message: String::new() });
                        } else if !is_quiet {
                            let marker = Some(format!("{:016x}", u64::MAX));
                            result.deleted.push(Deleted { key, version_id, is_delete_marker: true, delete_marker_version_id: marker });
                        }
                    }
                    lengths.push(result.to_xml().len());
                }
            }
            assert_eq!(lengths.into_iter().max(), Some(asked.answer_bytes_max()), "quiet: {is_quiet}");
        }
    }

    /// API_DeleteObjects.
    #[test]
    fn answers_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Deleted>
    <Key>SampleDocument.txt</Key>
    <VersionId>OYcLXagmS.WaD..oyH4KRguB95_YhLs7</VersionId>
  </Deleted>
  <Deleted>
    <Key>sample1.txt</Key>
    <DeleteMarker>true</DeleteMarker>
    <DeleteMarkerVersionId>NeQt5xeFTfgPJD8B4CGWnkSLtluMr11s</DeleteMarkerVersionId>
  </Deleted>
  <Error>
    <Key>sample2.txt</Key>
    <Code>AccessDenied</Code>
    <Message>Access Denied</Message>
  </Error>
</DeleteResult>"#;
        let read = DeleteResult::parse(body.as_bytes()).expect("an answer");
        assert_eq!((read.deleted.len(), read.errors[0].code.as_str()), (2, "AccessDenied"));
        assert_eq!(read.to_xml(), dense(body));
        assert_eq!(DeleteResult::parse(DeleteResult::default().to_xml().as_bytes()), Ok(DeleteResult::default()));
    }
}
