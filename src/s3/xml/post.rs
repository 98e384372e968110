//! What the post of a form answers, if `success_action_status` is 201.

use super::SHORT;
use super::reader::Document;
use super::writer::Writer;
use crate::s3::error::S3Error;

/// `PostResponse`, which has no namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostResponse {
    /// The object's URL.
    pub location: String,
    /// The bucket.
    pub bucket: String,
    /// The object's key.
    pub key: String,
    /// The object's ETag, without quotes.
    pub etag: String,
}

impl PostResponse {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<PostResponse, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("PostResponse")?;
        Ok(PostResponse {
            location: root.need_string("Location")?,
            bucket: root.need_string("Bucket")?,
            key: root.need_string("Key")?,
            etag: root.need("ETag")?.etag()?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::bare("PostResponse");
        writer.text("Location", &self.location);
        writer.text("Bucket", &self.bucket);
        writer.text("Key", &self.key);
        writer.etag(&self.etag);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::dense;

    /// The reference's "POST Object", with the ETag as S3 sends it.
    #[test]
    fn the_example_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<PostResponse>
  <Location>http://Example-Bucket.s3.amazonaws.com/Example-Object</Location>
  <Bucket>Example-Bucket</Bucket>
  <Key>Example-Object</Key>
  <ETag>&quot;828ef3fdfa96f00ad9f27c383fc9ac7f&quot;</ETag>
</PostResponse>"#;
        let read = PostResponse::parse(body.as_bytes()).expect("an object");
        assert_eq!((read.etag.as_str(), read.to_xml()), ("828ef3fdfa96f00ad9f27c383fc9ac7f", dense(body)));
    }
}
