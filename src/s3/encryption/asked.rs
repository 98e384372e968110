//! What a request says of encryption, and what follows from it (UserGuide/UsingServerSideEncryption.html,
//! UserGuide/ServerSideEncryptionCustomerKeys.html).

use base64::prelude::{BASE64_STANDARD, Engine as _};
use md5::{Digest as _, Md5};

use super::cipher::Cipher;
use super::keys::{Key, Keys, Place, open, seal};
use super::{Encryption, Kind};
use crate::s3::error::{Code, S3Error};
use crate::s3::request::Request;
use crate::s3::service::headers::Said;
use crate::s3::xml::settings::{ServerSideEncryptionConfiguration, SseAlgorithm};

/// How an object is to be encrypted. The names of all other fields that say something of it begin so.
pub const ALGORITHM: &str = "x-amz-server-side-encryption";
/// Under which of the server's keys.
pub const KEY_ID: &str = "x-amz-server-side-encryption-aws-kms-key-id";
/// What is authenticated with it.
pub const CONTEXT: &str = "x-amz-server-side-encryption-context";
/// Whether the bucket is to have a key of its own.
pub const BUCKET_KEY: &str = "x-amz-server-side-encryption-bucket-key-enabled";

/// The fields that bring a client's key.
pub struct CustomerFields {
    /// Which algorithm it is for.
    pub algorithm: &'static str,
    /// The key.
    pub key: &'static str,
    /// Its MD5.
    pub md5: &'static str,
}

/// Of the object that a request is about.
pub const OWN: CustomerFields = CustomerFields {
    algorithm: "x-amz-server-side-encryption-customer-algorithm",
    key: "x-amz-server-side-encryption-customer-key",
    md5: "x-amz-server-side-encryption-customer-key-MD5",
};
/// Of the object that is copied.
pub const SOURCE: CustomerFields = CustomerFields {
    algorithm: "x-amz-copy-source-server-side-encryption-customer-algorithm",
    key: "x-amz-copy-source-server-side-encryption-customer-key",
    md5: "x-amz-copy-source-server-side-encryption-customer-key-MD5",
};

/// Bytes of a context, as it comes.
const CONTEXT_MAX: usize = 4096;

/// A key that a client has brought, and its MD5.
#[derive(Clone, Debug)]
pub struct CustomerKey {
    key: Key,
    md5: [u8; 16],
}

fn invalid(what: &str, name: &'static str, value: Option<&str>) -> S3Error {
    let error = S3Error::with(Code::InvalidArgument, what).field("ArgumentName", name);
    // A key is not repeated.
    error.field("ArgumentValue", value.unwrap_or("null"))
}

impl CustomerKey {
    /// The key that these fields bring, if they do.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidEncryptionAlgorithmError`: not all of them are there, or one is wrong.
    pub fn read(said: &Said<'_>, fields: &CustomerFields) -> Result<Option<CustomerKey>, S3Error> {
        const WHO: &str = "Requests specifying Server Side Encryption with Customer provided keys must provide";
        let (algorithm, key, md5) = (said.text(fields.algorithm), said.text(fields.key), said.text(fields.md5));
        let missing = |what: &str, name| Err(invalid(&format!("{WHO} {what}."), name, None));
        let (algorithm, key, md5) = match (algorithm, key, md5) {
            (None, None, None) => return Ok(None),
            (None, ..) => return missing("a valid encryption algorithm", fields.algorithm),
            (_, None, _) => return missing("an appropriate secret key", fields.key),
            (_, _, None) => return missing("the client calculated MD5 of the secret key", fields.md5),
            (Some(algorithm), Some(key), Some(md5)) => (algorithm, key, md5),
        };
        if algorithm != "AES256" {
            return Err(S3Error::new(Code::InvalidEncryptionAlgorithmError)
                .field("ArgumentName", fields.algorithm)
                .field("ArgumentValue", algorithm));
        }
        let key = BASE64_STANDARD.decode(key).ok().and_then(|key| key.try_into().ok());
        let key = key.ok_or_else(|| S3Error::with(Code::InvalidArgument, "The secret key was invalid for the specified algorithm."))?;
        let found: [u8; 16] = Md5::digest(key).into();
        if BASE64_STANDARD.decode(md5).ok().as_deref() != Some(&found) {
            let what = "The calculated MD5 hash of the key did not match the hash that was provided.";
            return Err(invalid(what, fields.md5, Some(md5)));
        }
        Ok(Some(CustomerKey { key: Key(key), md5: found }))
    }
}

/// A key that is brought where others can listen.
///
/// # Errors
/// `InvalidRequest`.
pub fn check_way(request: &Request, keys: &Keys) -> Result<(), S3Error> {
    if request.is_secure() || request.peer.to_canonical().is_loopback() || keys.allows_plain() {
        return Ok(());
    }
    let what = "Requests specifying Server Side Encryption with Customer provided keys must be made over a secure connection.";
    Err(S3Error::with(Code::InvalidRequest, what))
}

/// Whether a request says that the bucket has a key of its own.
///
/// # Errors
/// `InvalidArgument`.
pub fn bucket_key(said: &Said<'_>) -> Result<Option<bool>, S3Error> {
    match said.text(BUCKET_KEY) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        other => Err(invalid("It is true or false.", BUCKET_KEY, other)),
    }
}

/// What a request, or a bucket, asks for of an object to be.
#[derive(Debug)]
pub enum Asked {
    /// The server's own key.
    Server,
    /// A key by name, or the default one.
    Named {
        /// Its name.
        key: Option<Box<str>>,
        /// What is authenticated with it.
        context: Option<Box<str>>,
        /// Whether that the bucket has a key of its own is told.
        has_bucket_key: bool,
    },
    /// A client's.
    Customer(CustomerKey),
}

impl Asked {
    /// What a request asks for.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidEncryptionAlgorithmError`, `NotImplemented`.
    pub fn read(said: &Said<'_>) -> Result<Option<Asked>, S3Error> {
        if !said.mentions(ALGORITHM) {
            return Ok(None);
        }
        let customer = CustomerKey::read(said, &OWN)?;
        let (algorithm, key, context) = (said.text(ALGORITHM), said.text(KEY_ID), said.text(CONTEXT));
        if customer.is_some() && (algorithm.is_some() || key.is_some()) {
            let what = "Server Side Encryption with Customer provided key is incompatible with the encryption method specified";
            return Err(invalid(what, ALGORITHM, algorithm));
        }
        if let Some(customer) = customer {
            return Ok(Some(Asked::Customer(customer)));
        }
        let of_named = [(KEY_ID, key), (CONTEXT, context)].into_iter().find(|(_, value)| value.is_some());
        match (algorithm, of_named) {
            (None, None) => Ok(None),
            (Some("AES256"), None) => Ok(Some(Asked::Server)),
            (Some("aws:kms"), _) => {
                let has_bucket_key = bucket_key(said)?.unwrap_or(false);
                let (key, context) = (key.filter(|key| !key.is_empty()).map(Box::from), context.map(context_of).transpose()?);
                Ok(Some(Asked::Named { key, context, has_bucket_key }))
            }
            (Some(two @ ("aws:kms:dsse" | "aws:fsx" | "aws:backup")), _) => {
                Err(S3Error::with(Code::NotImplemented, format!("{two} is not implemented")).field("Header", ALGORITHM))
            }
            (None | Some("AES256"), Some((name, value))) => {
                let what = "Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : aws:kms";
                Err(invalid(what, name, value))
            }
            (other, _) => Err(invalid("The encryption method specified is not supported", ALGORITHM, other)),
        }
    }

    /// What a bucket asks for where a request does not.
    pub fn by_bucket(default: &ServerSideEncryptionConfiguration) -> Option<Asked> {
        match default.algorithm? {
            SseAlgorithm::Kms => Some(Asked::Named {
                key: default.kms_key_id.as_deref().filter(|key| !key.is_empty()).map(Box::from),
                context: None,
                has_bucket_key: default.is_bucket_key_enabled == Some(true),
            }),
            _ => Some(Asked::Server),
        }
    }

    /// Makes a key for an object that is to be in this place.
    ///
    /// # Errors
    /// `KMS.NotFoundException`; `InternalError`: a new key cannot be kept.
    pub fn begin(self, keys: &Keys, place: Place<'_>) -> Result<(Encryption, Cipher), S3Error> {
        let (under, kind) = match self {
            Asked::Server => {
                let (key, under) = keys.take(None)?;
                (under, Kind::Server { key })
            }
            Asked::Named { key, context, has_bucket_key } => {
                let (key, under) = keys.take(key.as_deref())?;
                (under, Kind::Named { key, context, has_bucket_key })
            }
            Asked::Customer(CustomerKey { key, md5 }) => (key, Kind::Customer { md5 }),
        };
        Ok(seal(&under, kind, place))
    }
}

/// A context: an object of JSON with text in it, in Base64. It is kept as it came.
fn context_of(text: &str) -> Result<Box<str>, S3Error> {
    let read = || {
        let bytes = BASE64_STANDARD.decode(text).ok().filter(|_| text.len() <= CONTEXT_MAX)?;
        serde_json::from_slice::<std::collections::BTreeMap<String, String>>(&bytes).ok()
    };
    match read() {
        Some(_) => Ok(text.into()),
        None => Err(invalid("The encryption context is an object of JSON with text for each name, in Base64.", CONTEXT, Some(text))),
    }
}

impl Encryption {
    /// What decrypts an object in this place, with the key that a client brings, if it is under such a key.
    ///
    /// # Errors
    /// `InvalidRequest`: none is brought, or one for what is not under it, or another. `KMS.NotFoundException`. `InternalError`: what is
    /// kept was changed.
    pub fn open(&self, keys: &Keys, customer: Option<&CustomerKey>, place: Place<'_>) -> Result<Cipher, S3Error> {
        let refused = |what| Err(S3Error::with(Code::InvalidRequest, what));
        let under = match (&self.kind, customer) {
            (Kind::Customer { md5 }, Some(brought)) if brought.md5 == *md5 => brought.key.clone(),
            (Kind::Customer { .. }, Some(_)) => {
                return refused("The provided encryption parameters did not match the ones used originally.");
            }
            (Kind::Customer { .. }, None) => return refused(MISSING),
            (_, Some(_)) => return refused(NOT_APPLICABLE),
            (Kind::Server { key } | Kind::Named { key, .. }, None) => keys.find(key)?,
        };
        open(&under, self, place).ok_or_else(|| match self.kind {
            Kind::Customer { .. } => S3Error::with(Code::AccessDenied, "The object was not encrypted with this key."),
            _ => {
                tracing::error!(bucket = place.bucket, key = place.key, "the key of an object was changed, or its server's key was");
                S3Error::with(Code::InternalError, "The key of the object cannot be opened")
            }
        })
    }
}

const MISSING: &str =
    "The object was stored using a form of Server Side Encryption. The correct parameters must be provided to retrieve the object.";
const NOT_APPLICABLE: &str = "The encryption parameters are not applicable to this object.";

/// Of an object that is not encrypted: that no key is brought for it.
///
/// # Errors
/// `InvalidRequest`.
pub fn check_none(customer: Option<&CustomerKey>) -> Result<(), S3Error> {
    if customer.is_some() { Err(S3Error::with(Code::InvalidRequest, NOT_APPLICABLE)) } else { Ok(()) }
}

impl Kind {
    /// Whether a request says that it is so, and nothing else.
    pub fn is_said_by(&self, said: &Said<'_>) -> bool {
        let is = |name, value: Option<&str>| said.text(name).is_none_or(|text| Some(text) == value);
        match self {
            Kind::Server { .. } => is(ALGORITHM, Some("AES256")) && [KEY_ID, CONTEXT, BUCKET_KEY].into_iter().all(|name| is(name, None)),
            Kind::Named { key, context, has_bucket_key } => {
                let has_bucket_key = if *has_bucket_key { "true" } else { "false" };
                is(ALGORITHM, Some("aws:kms"))
                    && is(KEY_ID, Some(key))
                    && is(CONTEXT, context.as_deref())
                    && is(BUCKET_KEY, Some(has_bucket_key))
            }
            Kind::Customer { .. } => false,
        }
    }
}

/// Of a request that makes no object: that it does not say how one is to be.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_not_asked(said: &Said<'_>) -> Result<(), S3Error> {
    match [ALGORITHM, KEY_ID, CONTEXT, BUCKET_KEY].into_iter().find(|name| said.text(name).is_some()) {
        Some(name) => Err(invalid(&format!("{name} header is not supported for this operation."), name, said.text(name))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::request::Arrival;
    use crate::wire::http::head::Head;

    #[test]
    fn a_clients_key_comes_where_nobody_listens() {
        let (head, _) = Head::parse(b"GET /b/k HTTP/1.1\r\nhost: h\r\n\r\n").unwrap().unwrap();
        let place = tempfile::tempdir().unwrap();
        let keys = |allows| Keys::own(&place.path().join("keys")).unwrap().allowing_plain(allows);
        let may = |peer: &str, tls_version, allows| {
            let arrival = Arrival { id: 1, now_ms: 1, peer: peer.parse().unwrap(), tls_version };
            check_way(&Request::new(head.clone(), &[], arrival).unwrap(), &keys(allows)).is_ok()
        };
        for here in ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"] {
            assert!(may(here, None, false), "{here}");
        }
        for elsewhere in ["10.0.0.1", "192.0.2.7", "2001:db8::1", "::ffff:10.0.0.1"] {
            assert!(!may(elsewhere, None, false), "{elsewhere}");
            assert!(may(elsewhere, Some("1.3"), false) && may(elsewhere, None, true), "{elsewhere}");
        }
    }
}
