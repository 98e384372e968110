//! Sessions of directory buckets: credentials that are good for one bucket and five minutes (API/API_CreateSession.html).
//!
//! Nothing of a session is kept. All that is to be known of it is in its token, under a MAC, and its secret is made of the token; whoever
//! has the server's key makes and opens them. The key is made of the store's identifier and the secrets of all users: every core has the
//! same, a restart changes nothing, and no user can make it.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use super::access::users::{KEY_MAX, Users};

/// How long a session lasts (API_CreateSession.html: five minutes).
pub const LIFE_MS: u64 = 5 * 60 * 1000;

const VERSION: u8 = 1;
const MAC_BYTES: usize = 32;
/// In front of the access key: version, mode, bucket, when that was made, when the session ends, and how long the access key is.
const FIXED_BYTES: usize = 1 + 1 + 4 + 8 + 8 + 1;
/// Characters of the longest token.
const TOKEN_MAX: usize = (FIXED_BYTES + KEY_MAX + MAC_BYTES).div_ceil(3) * 4;

/// What may be done in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// GetObject, HeadObject, ListObjectsV2, GetObjectAttributes, ListParts, ListMultipartUploads.
    ReadOnly,
    /// Everything that is done to objects.
    ReadWrite,
}

impl Mode {
    /// As requests and policies have it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::ReadOnly => "ReadOnly",
            Mode::ReadWrite => "ReadWrite",
        }
    }

    /// Reads it.
    pub fn parse(name: &str) -> Option<Mode> {
        [Mode::ReadOnly, Mode::ReadWrite].into_iter().find(|mode| mode.name() == name)
    }
}

/// What a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The bucket's identifier in the store.
    pub bucket: u32,
    /// When the bucket was made: another one may have its identifier one day.
    pub created_ms: u64,
    /// What may be done.
    pub mode: Mode,
    /// When it ends, milliseconds since 1970 (UTC).
    pub expires_ms: u64,
    /// The access key of the user who began it. It ends with that.
    pub access_key: Box<str>,
}

/// What a client is given. Not shown by `Debug`.
pub struct Credentials {
    /// What requests name.
    pub access_key: String,
    /// What they are signed with.
    pub secret: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// What makes and opens tokens. It does not show itself.
pub struct Seal(Hmac<Sha256>);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}

impl Seal {
    /// That of a store and those who use it.
    pub fn new(store: &[u8; 16], users: &Users) -> Seal {
        let mut of_all = keyed(store);
        of_all.update(b"basin: sessions of directory buckets");
        let mut secrets: Vec<(&str, &str)> = users.secrets().collect();
        secrets.sort_unstable();
        for text in secrets.into_iter().flat_map(|(access_key, secret)| [access_key, secret]) {
            of_all.update(&(text.len() as u64).to_le_bytes());
            of_all.update(text.as_bytes());
        }
        Seal(keyed(&of_all.finalize().into_bytes()))
    }

    fn mac(&self, what: &str, of: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = self.0.clone();
        mac.update(what.as_bytes());
        mac.update(of);
        mac.finalize().into_bytes().into()
    }

    /// The token of a session.
    ///
    /// # Panics
    /// Of an access key that is longer than a user's may be: a bug of the caller's.
    pub fn token(&self, session: &Session) -> String {
        let Session { bucket, created_ms, mode, expires_ms, access_key } = session;
        assert!(access_key.len() <= KEY_MAX, "an access key of {} bytes", access_key.len());
        let mut bytes = vec![VERSION, *mode as u8];
        bytes.extend_from_slice(&bucket.to_le_bytes());
        bytes.extend_from_slice(&created_ms.to_le_bytes());
        bytes.extend_from_slice(&expires_ms.to_le_bytes());
        bytes.push(access_key.len() as u8);
        bytes.extend_from_slice(access_key.as_bytes());
        let mac = self.mac("token", &bytes);
        bytes.extend_from_slice(&mac);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The session that a token is of, if it was made with this key. Whether it has ended, and is of the bucket that is asked for, is for
    /// the caller to see.
    pub fn open(&self, token: &str) -> Option<Session> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(Some(token).filter(|token| token.len() <= TOKEN_MAX)?).ok()?;
        let (said, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        if !bool::from(self.mac("token", said).ct_eq(mac)) {
            return None;
        }
        let (fixed, access_key) = said.split_first_chunk::<FIXED_BYTES>()?;
        let [VERSION, mode, ..] = *fixed else { return None };
        let number = |at: usize| fixed[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Session {
            bucket: u32::from_le_bytes(fixed[2..6].try_into().ok()?),
            created_ms: number(6)?,
            mode: [Mode::ReadOnly, Mode::ReadWrite].into_iter().find(|one| *one as u8 == mode)?,
            expires_ms: number(14)?,
            access_key: std::str::from_utf8(access_key).ok().filter(|text| text.len() == usize::from(fixed[22]))?.into(),
        })
    }

    /// What requests with a token name, and are signed with.
    pub fn credentials(&self, token: &str) -> Credentials {
        let id = self.mac("access key", token.as_bytes());
        // In the form of temporary credentials of S3's, which clients may look at.
        let access_key = format!("ASIA{}", base16ct::upper::encode_string(&id[..8]));
        Credentials { access_key, secret: BASE64_STANDARD.encode(self.mac("secret", token.as_bytes())) }
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::access::users::UserConfig;
    use proptest::prelude::*;

    fn users(keys: &[(&str, &str)]) -> Users {
        let config = |(at, (access_key, secret)): (usize, &(&str, &str))| {
            let json = format!(r#"{{"name": "u{at}", "access_keys": [{{"access_key": "{access_key}", "secret_key": "{secret}"}}]}}"#);
            serde_json::from_str::<UserConfig>(&json).unwrap()
        };
        Users::new(&keys.iter().enumerate().map(config).collect::<Vec<_>>()).unwrap()
    }

    fn seal() -> Seal {
        Seal::new(&[7; 16], &users(&[("first", "a long secret"), ("second", "another secret")]))
    }

    fn session() -> impl Strategy<Value = Session> {
        let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
        (any::<u32>(), any::<u64>(), mode, any::<u64>(), "[!-~]{3,128}").prop_map(|(bucket, created_ms, mode, expires_ms, key)| Session {
            bucket,
            created_ms,
            mode,
            expires_ms,
            access_key: key.into(),
        })
    }

    #[test]
    fn another_key_of_a_server_opens_nothing() {
        let one = Session { bucket: 3, created_ms: 5, mode: Mode::ReadOnly, expires_ms: 9, access_key: "first".into() };
        let token = seal().token(&one);
        assert_eq!(seal().open(&token), Some(one), "another core, or after a restart");
        let pairs = [("first", "a long secret"), ("second", "another secret")];
        let same = Seal::new(&[7; 16], &users(&[pairs[1], pairs[0]]));
        assert!(same.open(&token).is_some(), "in another order");
        assert_eq!(same.credentials(&token).secret, seal().credentials(&token).secret);
        for other in [
            Seal::new(&[8; 16], &users(&pairs)),
            Seal::new(&[7; 16], &users(&pairs[..1])),
            Seal::new(&[7; 16], &users(&[pairs[0], ("second", "another secreT")])),
            Seal::new(&[7; 16], &users(&[("firsta", " long secret"), pairs[1]])),
        ] {
            assert_eq!(other.open(&token), None);
            assert_ne!(other.credentials(&token).secret, seal().credentials(&token).secret);
        }
    }

    #[test]
    fn it_is_not_shown() {
        let token = seal().token(&Session { bucket: 3, created_ms: 5, mode: Mode::ReadOnly, expires_ms: 9, access_key: "first".into() });
        let credentials = seal().credentials(&token);
        assert_eq!(format!("{:?} {credentials:?}", seal()), "Seal(..) Credentials(..)");
        assert_ne!(credentials.secret, credentials.access_key);
        assert!(credentials.access_key.len() == 20 && credentials.access_key.starts_with("ASIA"));
    }

    #[test]
    fn modes() {
        assert_eq!((Mode::parse("ReadOnly"), Mode::parse("ReadWrite")), (Some(Mode::ReadOnly), Some(Mode::ReadWrite)));
        assert_eq!((Mode::parse("readonly"), Mode::parse("")), (None, None));
    }

    proptest! {
        #[test]
        fn a_token_is_opened_as_it_was_sealed(session in session()) {
            let token = seal().token(&session);
            prop_assert!(token.len() <= TOKEN_MAX);
            prop_assert_eq!(seal().open(&token), Some(session));
        }

        #[test]
        fn with_any_bit_changed_it_is_none(session in session(), at in any::<prop::sample::Index>()) {
            let seal = seal();
            let token = seal.token(&session);
            let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(&token).unwrap();
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(seal.open(&BASE64_URL_SAFE_NO_PAD.encode(&bytes)), None);
            let mut text = token.clone().into_bytes();
            let bit = at.index(text.len() * 8);
            text[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(std::str::from_utf8(&text).ok().and_then(|text| seal.open(text)), None);
            prop_assert_eq!(seal.open(&token[..at.index(token.len())]), None);
            prop_assert_eq!(seal.open(&format!("{token}A")), None);
        }

        #[test]
        fn nothing_makes_it_panic(token in ".{0,300}") {
            prop_assert_eq!(seal().open(&token), None);
        }
    }
}
