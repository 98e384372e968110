//! The session of a directory bucket.

use std::fmt;

use super::SHORT;
use super::reader::Document;
use super::writer::Writer;
use crate::s3::error::S3Error;

/// `CreateSessionResult`: credentials for one bucket. Not shown by `Debug`: they are secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CreateSessionResult {
    /// The key identifier that requests of the session are signed with.
    pub access_key_id: String,
    /// The secret key.
    pub secret_access_key: String,
    /// What requests of the session have in `x-amz-s3session-token`.
    pub session_token: String,
    /// When it ends.
    pub expires_ms: u64,
}

impl fmt::Debug for CreateSessionResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateSessionResult").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

impl CreateSessionResult {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<CreateSessionResult, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let credentials = document.root("CreateSessionResult")?.need("Credentials")?;
        Ok(CreateSessionResult {
            access_key_id: credentials.need_string("AccessKeyId")?,
            secret_access_key: credentials.need_string("SecretAccessKey")?,
            session_token: credentials.need_string("SessionToken")?,
            expires_ms: credentials.need("Expiration")?.time_ms()?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("CreateSessionResult");
        writer.within("Credentials", |writer| {
            writer.text("SessionToken", &self.session_token);
            writer.text("SecretAccessKey", &self.secret_access_key);
            writer.text("AccessKeyId", &self.access_key_id);
            writer.time("Expiration", self.expires_ms);
        });
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::dense;

    /// API_CreateSession.
    #[test]
    fn the_example_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CreateSessionResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <Credentials>
      <SessionToken>TESTSESSIONTOKEN</SessionToken>
      <SecretAccessKey>TESTSECRETKEY</SecretAccessKey>
      <AccessKeyId>TESTACCESSKEY</AccessKeyId>
      <Expiration>2024-01-29T18:53:46.000Z</Expiration>
   </Credentials>
</CreateSessionResult>"#;
        let read = CreateSessionResult::parse(body.as_bytes()).expect("a session");
        assert_eq!((read.expires_ms, read.to_xml()), (1_706_554_426_000, dense(body)));
        let shown = format!("{read:?}");
        assert!(shown.contains("TESTACCESSKEY") && !shown.contains("TESTSECRETKEY") && !shown.contains("TESTSESSIONTOKEN"), "{shown}");
    }
}
