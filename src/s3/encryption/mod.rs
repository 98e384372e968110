//! Encryption of objects by the server: under its own keys (SSE-S3), under keys it has by name (SSE-KMS), or under a client's (SSE-C).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`asked`] | what a request asks for, and the keys that clients bring |
//! | [`keys`] | the keys of the server, in a file |
//! | [`cipher`] | AES-256 in counter mode |
//! | [`writing`], [`reading`] | puts and gets, with or without it |
//!
//! Each version of an object, and each upload, has a random key of its own, which is kept beside it, sealed (AES-256-GCM) under the key
//! that was asked for. Bytes are encrypted in the chunks they came in, and are as many as before: what is encrypted lies, is compacted and
//! is read in ranges as everything else. The checksum of S3 is that of the bytes as clients have them; the store has its own of what lies
//! there. docs/adr/0024 says why it is so.

pub mod asked;
pub mod cipher;
pub mod keys;
pub mod reading;
pub mod writing;

use super::answer::Answer;
use super::fields::Unreadable;
use keys::Sealed;

/// Under whose key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server's own (SSE-S3): which of them.
    Server {
        /// Its name, which is not told.
        key: Box<str>,
    },
    /// One that the server has by name (SSE-KMS).
    Named {
        /// Its name.
        key: Box<str>,
        /// What is authenticated with it: the JSON of `x-amz-server-side-encryption-context`, as it came in Base64.
        context: Option<Box<str>>,
        /// The bucket is to have a key of its own. It is told, and makes no difference here: no service is asked for keys.
        has_bucket_key: bool,
    },
    /// A client's (SSE-C), of which this is the MD5.
    Customer {
        /// The MD5.
        md5: [u8; 16],
    },
}

/// How an object, or what is going to be one, is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// Under whose key.
    pub kind: Kind,
    /// Its own key, sealed under that.
    pub sealed: Sealed,
}

/// What tells the pieces of an object apart that were encrypted on their own: the parts of an upload. 0 where it is in one piece.
///
/// The number of the part is in it, and something random: a part may be put again. It is kept in five bytes, for there may be ten
/// thousand of them.
pub type Nonce = u64;

/// Bytes of a nonce as it is kept.
pub const NONCE_BYTES: usize = 5;
/// Of which so many bits are random.
const NONCE_RANDOM_BITS: u32 = 26;

/// What an encrypted part of an upload keeps of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSeal {
    /// Its nonce.
    pub nonce: Nonce,
    /// The CRC64NVME of its bytes as clients have them.
    pub crc: u64,
    /// And as they lie there, by which it is known: the same bytes put again have the same ETag and another nonce.
    pub stored_crc: u64,
}

/// The nonce of a part that is going to be put.
pub fn nonce_of_part(number: u16) -> Nonce {
    let mut random = [0; 4];
    getrandom::fill(&mut random).expect("the kernel's random source answers");
    u64::from(number) << NONCE_RANDOM_BITS | u64::from(u32::from_le_bytes(random) >> (32 - NONCE_RANDOM_BITS))
}

const SERVER: u8 = 1;
const NAMED: u8 = 2;
const CUSTOMER: u8 = 3;
/// There is a context, at the end.
const WITH_CONTEXT: u8 = 1;
const WITH_BUCKET_KEY: u8 = 2;

impl Encryption {
    /// As the store keeps it: kind, flags, the sealed key; then a client key's MD5, or the length of a name, the name, and a context.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, flags) = match &self.kind {
            Kind::Server { .. } => (SERVER, 0),
            Kind::Named { context, has_bucket_key, .. } => {
                let context = if context.is_some() { WITH_CONTEXT } else { 0 };
                (NAMED, context | if *has_bucket_key { WITH_BUCKET_KEY } else { 0 })
            }
            Kind::Customer { .. } => (CUSTOMER, 0),
        };
        let mut bytes = vec![kind, flags];
        bytes.extend_from_slice(&self.sealed.0);
        match &self.kind {
            Kind::Server { key } | Kind::Named { key, .. } => {
                bytes.push(u8::try_from(key.len()).expect("names of keys are bounded"));
                bytes.extend_from_slice(key.as_bytes());
            }
            Kind::Customer { md5 } => bytes.extend_from_slice(md5),
        }
        if let Kind::Named { context: Some(context), .. } = &self.kind {
            bytes.extend_from_slice(context.as_bytes());
        }
        bytes
    }

    /// Reads what the store has kept.
    ///
    /// # Errors
    /// `Unreadable`: another program's, or a newer version's.
    pub fn parse(bytes: &[u8]) -> Result<Encryption, Unreadable> {
        let read = || {
            let ([kind, flags], rest) = bytes.split_first_chunk()?;
            let (sealed, rest) = rest.split_first_chunk()?;
            let text = |bytes| std::str::from_utf8(bytes).ok().map(Box::from);
            let named = || {
                let (length, rest) = rest.split_first()?;
                let (name, rest) = rest.split_at_checked(usize::from(*length))?;
                Some((text(name)?, rest))
            };
            let kind = match (*kind, *flags) {
                (SERVER, 0) => Kind::Server { key: named().filter(|(_, rest)| rest.is_empty())?.0 },
                (NAMED, flags) if flags & !(WITH_CONTEXT | WITH_BUCKET_KEY) == 0 => {
                    let (key, rest) = named()?;
                    let has_context = flags & WITH_CONTEXT != 0;
                    if !has_context && !rest.is_empty() {
                        return None;
                    }
                    let context = if has_context { Some(text(rest)?) } else { None };
                    Kind::Named { key, context, has_bucket_key: flags & WITH_BUCKET_KEY != 0 }
                }
                (CUSTOMER, 0) => Kind::Customer { md5: rest.try_into().ok()? },
                _ => return None,
            };
            Some(Encryption { kind, sealed: Sealed(*sealed) })
        };
        read().ok_or(Unreadable)
    }

    /// Whether ETags of what it encrypts are MD5s, where the bucket has such (API_Object.html: of SSE-S3 alone).
    pub fn allows_md5(&self) -> bool {
        matches!(self.kind, Kind::Server { .. })
    }

    /// With the fields that tell of it.
    pub fn tell(&self, mut answer: Answer) -> Answer {
        use base64::prelude::{BASE64_STANDARD, Engine as _};
        match &self.kind {
            Kind::Server { .. } => answer.header(asked::ALGORITHM, "AES256"),
            Kind::Named { key, has_bucket_key, .. } => {
                answer = answer.header(asked::ALGORITHM, "aws:kms").header(asked::KEY_ID, &**key);
                if *has_bucket_key { answer.header(asked::BUCKET_KEY, "true") } else { answer }
            }
            Kind::Customer { md5 } => answer.header(asked::OWN.algorithm, "AES256").header(asked::OWN.md5, BASE64_STANDARD.encode(md5)),
        }
    }
}

/// Of what may be encrypted: with the fields that tell how it is.
pub fn tell(answer: Answer, encryption: Option<&Encryption>) -> Answer {
    match encryption {
        Some(encryption) => encryption.tell(answer),
        None => answer,
    }
}

/// The same, told to who has just made it: with the context that was asked for, which reads do not tell.
pub fn tell_made(answer: Answer, encryption: Option<&Encryption>) -> Answer {
    let context = match encryption.map(|encryption| &encryption.kind) {
        Some(Kind::Named { context, .. }) => context.as_deref(),
        _ => None,
    };
    tell(answer, encryption).maybe(asked::CONTEXT, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_read_as_it_was_written() {
        let sealed = Sealed(std::array::from_fn(|at| at as u8));
        for kind in [
            Kind::Server { key: "main".into() },
            Kind::Named { key: "a".into(), context: None, has_bucket_key: false },
            Kind::Named { key: "".into(), context: Some("e30=".into()), has_bucket_key: true },
            Kind::Named { key: "a".into(), context: Some("".into()), has_bucket_key: false },
            Kind::Customer { md5: [9; 16] },
        ] {
            let encryption = Encryption { kind, sealed: sealed.clone() };
            let bytes = encryption.to_bytes();
            assert_eq!(Encryption::parse(&bytes), Ok(encryption.clone()));
            for short in 0..bytes.len() {
                assert_ne!(Encryption::parse(&bytes[..short]), Ok(encryption.clone()), "{short} bytes");
            }
        }
    }

    #[test]
    fn nonces_of_parts_fit_and_tell_them_apart() {
        for number in [1, 2, 9_999, 10_000] {
            let (one, other) = (nonce_of_part(number), nonce_of_part(number));
            assert!(one < 1 << (8 * NONCE_BYTES));
            assert_eq!((one >> NONCE_RANDOM_BITS, other >> NONCE_RANDOM_BITS), (u64::from(number), u64::from(number)));
            assert_ne!(one, 0, "which is of what is in one piece");
        }
        let several: std::collections::HashSet<Nonce> = (0..8).map(|_| nonce_of_part(1)).collect();
        assert!(several.len() > 1, "the same part put again");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Encryption::parse(&bytes);
        }
    }
}
