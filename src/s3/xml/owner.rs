//! Who owns a bucket, an object or an upload, or began an upload.

use super::reader::Element;
use super::writer::Writer;
use crate::s3::error::S3Error;

/// A user, as documents name one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The canonical identifier.
    pub id: String,
    /// The name shown. S3 sends none any more; others do.
    pub display_name: Option<String>,
}

impl Owner {
    pub(super) fn read(element: Element<'_>) -> Result<Owner, S3Error> {
        Ok(Owner { id: element.need_string("ID")?, display_name: element.get_string("DisplayName")? })
    }

    pub(super) fn write(&self, writer: &mut Writer, name: &str) {
        writer.within(name, |writer| self.write_fields(writer));
    }

    pub(super) fn write_fields(&self, writer: &mut Writer) {
        writer.text("ID", &self.id);
        writer.text_if("DisplayName", self.display_name.as_deref());
    }
}
