//! The keys of the server that objects' keys are sealed under: a file of TOML, which only the server may read.
//!
//! ```toml
//! default = "main"
//! [keys]
//! main = "pO3upElrwuEXSoFwCfnZPdSsmt/xWeFa0N9KgDijwVs="
//! ```
//!
//! `default` is the key of SSE-S3, and of SSE-KMS where none is named. To change it, another is added and made the default: what is there
//! stays readable as long as its key stays in the file. A file that the configuration names is only read. Without one the server has a
//! file beside its store, which it makes when a key is needed first, and keys that are asked for by name are made in it. Servers of devices
//! that were started in one directory share that file: a new key is written beside those that are in it by then.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::Deserialize;

use super::cipher::Cipher;
use super::{Encryption, Kind};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::s3::config::Hidden;
use crate::s3::config::draft::Draft;
use crate::s3::error::{Code, S3Error};

/// What is in a file of keys.
const EXAMPLE: &str =
    "it has a line default = \"main\", and under [keys] main = \"KEY\", where KEY is made by: head -c 32 /dev/urandom | base64";
/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of a key that is sealed: what it was sealed with once, the key, and a tag.
const SEALED_BYTES: usize = NONCE_LEN + KEY_BYTES + 16;
/// Keys in a file that the server makes.
const KEYS_MAX: usize = 1000;
/// Bytes of a key's name.
const NAME_MAX: usize = 128;

/// A key of 256 bits. It does not show itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    fn random() -> Key {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).expect("the kernel's random source answers");
        Key(key)
    }

    fn aead(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.0).expect("a key of AES-256 has 32 bytes"))
    }
}

/// An object's own key, sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed(pub [u8; SEALED_BYTES]);

/// What a key is sealed for: it opens for nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The bucket's name.
    pub bucket: &'a str,
    /// The object's.
    pub key: &'a str,
}

/// What is authenticated with a sealed key: each piece behind its length.
fn authenticated(kind: &Kind, place: Place<'_>) -> Vec<u8> {
    let (name, context, front): (&str, &str, &[u8]) = match kind {
        Kind::Server { key } => (key, "", b"SSE-S3"),
        Kind::Named { key, context, .. } => (key, context.as_deref().unwrap_or_default(), b"SSE-KMS"),
        Kind::Customer { .. } => ("", "", b"SSE-C"),
    };
    let mut bytes = Vec::new();
    for piece in [front, name.as_bytes(), context.as_bytes(), place.bucket.as_bytes(), place.key.as_bytes()] {
        bytes.extend_from_slice(&(piece.len() as u64).to_le_bytes());
        bytes.extend_from_slice(piece);
    }
    bytes
}

/// Makes a key for an object that is going to be in this place, and seals it under another.
pub fn seal(under: &Key, kind: Kind, place: Place<'_>) -> (Encryption, Cipher) {
    let own = Key::random();
    let mut sealed = [0; SEALED_BYTES];
    let (nonce, rest) = sealed.split_first_chunk_mut::<NONCE_LEN>().expect("it is longer");
    getrandom::fill(nonce).expect("the kernel's random source answers");
    let (key, tag) = rest.split_at_mut(KEY_BYTES);
    key.copy_from_slice(&own.0);
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let made = under.aead().seal_in_place_separate_tag(nonce, Aad::from(authenticated(&kind, place)), key);
    tag.copy_from_slice(made.expect("32 bytes can be sealed").as_ref());
    (Encryption { kind, sealed: Sealed(sealed) }, Cipher::new(&own.0))
}

/// Opens the key of the object in this place; `None` where it was sealed under another key, for another place, or was changed.
pub fn open(under: &Key, encryption: &Encryption, place: Place<'_>) -> Option<Cipher> {
    let (nonce, rest) = encryption.sealed.0.split_first_chunk::<NONCE_LEN>().expect("it is longer");
    let mut opened = [0; KEY_BYTES + 16];
    opened.copy_from_slice(rest);
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let aad = Aad::from(authenticated(&encryption.kind, place));
    let own = under.aead().open_in_place(nonce, aad, &mut opened).ok()?;
    Some(Cipher::new((&*own).try_into().expect("as long as it was")))
}

/// The server's keys. One for all cores.
#[derive(Debug)]
pub struct Keys {
    path: PathBuf,
    /// Keys are made in it.
    is_own: bool,
    /// Clients' keys may come without TLS.
    allows_plain: bool,
    kept: Mutex<Kept>,
}

/// What is in the file.
#[derive(Clone, Debug, Default)]
struct Kept {
    default: Box<str>,
    keys: BTreeMap<Box<str>, Key>,
}

impl Keys {
    /// The keys of a file that is only read.
    ///
    /// # Errors
    /// It cannot be read, or is not what it is to be.
    pub fn load(path: &Path) -> Result<Keys> {
        let kept = read(path)?.ok_or_else(|| {
            let error = Error::new(ErrorKind::Usage, format!("encryption.keys: {} is not there", path.display()));
            error.remedy(format!("make it, for the server alone to read. {EXAMPLE}"))
        })?;
        Ok(Keys { path: path.into(), is_own: false, allows_plain: false, kept: Mutex::new(kept) })
    }

    /// The keys of a file of the server's own, which need not be there.
    ///
    /// # Errors
    /// It cannot be read, or is not what it is to be.
    pub fn own(path: &Path) -> Result<Keys> {
        let kept = read(path)?.unwrap_or_default();
        Ok(Keys { path: path.into(), is_own: true, allows_plain: false, kept: Mutex::new(kept) })
    }

    /// They with or without leave for clients of other machines to send keys of theirs without TLS.
    #[must_use]
    pub fn allowing_plain(self, allows_plain: bool) -> Keys {
        Keys { allows_plain, ..self }
    }

    /// Whether clients of other machines may send keys of theirs without TLS.
    pub fn allows_plain(&self) -> bool {
        self.allows_plain
    }

    /// A key by name, or the default one, for something that is going to be encrypted. Where keys are made, it is made if it is not there,
    /// and is in the file when this returns.
    ///
    /// # Errors
    /// `KMS.NotFoundException`; `InternalError`: it cannot be written down.
    pub fn take(&self, name: Option<&str>) -> std::result::Result<(Box<str>, Key), S3Error> {
        // What is in it is whole even where somebody panicked.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.named(name) {
            return Ok(found);
        }
        let asked = name.unwrap_or(&kept.default);
        let no_such = |what: String| Err(S3Error::with(Code::KmsNotFoundException, what).field("KeyId", asked));
        if !self.is_own {
            return no_such(format!("Key '{asked}' does not exist"));
        }
        if asked.len() > NAME_MAX || !asked.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')) {
            return no_such(format!("Invalid keyId '{}'", asked.escape_debug()));
        }
        let cannot = |error: &dyn fmt::Display| {
            tracing::error!(%error, path = %self.path.display(), "a new key of encryption cannot be kept");
            S3Error::with(Code::InternalError, "The server cannot keep a new key of encryption")
        };
        // Nobody else writes the file now, and what another server has written since this one read it stays.
        let draft = Draft::of(&self.path).map_err(|error| cannot(&error))?;
        let there = read(&self.path).map_err(|error| cannot(&format_args!("{error:#}")))?;
        let mut next = kept.with(there).map_err(|other| cannot(&format_args!("the file has another key of the name '{other}' by now")))?;
        if let Some(found) = next.named(name) {
            *kept = next;
            return Ok(found);
        }
        if next.keys.len() >= KEYS_MAX {
            return no_such(format!("Key '{asked}' does not exist, and there are {KEYS_MAX} others"));
        }
        let random = Key::random();
        let made: Box<str> = match asked {
            // A name of its own: another file would not be taken for this one.
            "" => format!("basin-{}", base16ct::lower::encode_string(&Key::random().0[..4])).into(),
            asked => asked.into(),
        };
        if next.default.is_empty() {
            next.default = made.clone();
        }
        next.keys.insert(made.clone(), random.clone());
        draft.replace(&next.text()).map_err(|error| cannot(&error))?;
        tracing::info!(name = &*made, path = %self.path.display(), "made a key of encryption: without this file what it encrypts is lost");
        *kept = next;
        Ok((made, random))
    }

    /// A key that something was encrypted under. The server's own file is looked at once more where it is not known: it may be one that
    /// was brought back.
    ///
    /// # Errors
    /// `KMS.NotFoundException`.
    pub fn find(&self, name: &str) -> std::result::Result<Key, S3Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = kept.keys.get(name) {
            return Ok(key.clone());
        }
        if self.is_own {
            match read(&self.path) {
                Ok(there) => {
                    if let Some(key) = there.and_then(|there| there.keys.get(name).cloned()) {
                        kept.keys.insert(name.into(), key.clone());
                        return Ok(key);
                    }
                }
                Err(error) => tracing::error!("{error:#}"),
            }
        }
        tracing::error!(name, path = %self.path.display(), "a key that an object was encrypted under is not in the file of keys");
        Err(S3Error::with(Code::KmsNotFoundException, "The key that the object was encrypted under is not there any more"))
    }
}

impl Kept {
    /// A key by name, or the default one, with its name.
    fn named(&self, name: Option<&str>) -> Option<(Box<str>, Key)> {
        let found = self.keys.get_key_value(name.unwrap_or(&self.default))?;
        Some((found.0.clone(), found.1.clone()))
    }

    /// Both; the default is the other's, if there is another. An error is the name that has a key in each.
    fn with(&self, other: Option<Kept>) -> std::result::Result<Kept, Box<str>> {
        let mut both = self.clone();
        let Some(other) = other else { return Ok(both) };
        for (name, key) in other.keys {
            // Which of them is of use is not known, and one of them would be lost.
            if both.keys.insert(name.clone(), key.clone()).is_some_and(|ours| ours != key) {
                return Err(name);
            }
        }
        both.default = other.default;
        Ok(both)
    }

    /// The file.
    fn text(&self) -> String {
        let mut text = format!(
            "# Objects of the store are encrypted under these keys. Who has them can read the objects; without them nobody can.\n\
            default = \"{}\"\n\n[keys]\n",
            self.default
        );
        for (name, key) in &self.keys {
            text += &format!("\"{name}\" = \"{}\"\n", BASE64_STANDARD.encode(key.0));
        }
        text
    }
}

fn read(path: &Path) -> Result<Option<Kept>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        default: String,
        keys: BTreeMap<String, Hidden>,
    }
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let error = Error::io(format!("reading the keys of encryption in {shown}"), &error);
            return Err(error.remedy("run as their owner, or name another file: encryption.keys"));
        }
    };
    let wrong = |what: String| Error::new(ErrorKind::Usage, format!("{shown}: {what}")).remedy(EXAMPLE);
    let file: File = toml::from_str(&text).map_err(|error: toml::de::Error| wrong(error.message().into()))?;
    let mut kept = Kept { default: file.default.into(), keys: BTreeMap::new() };
    for (name, Hidden(value)) in file.keys {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(wrong(format!("a key's name of {} bytes: 1 to {NAME_MAX}", name.len())));
        }
        let key = BASE64_STANDARD.decode(value.trim()).ok().and_then(|bytes| bytes.try_into().ok());
        let key = key.ok_or_else(|| wrong(format!("the key '{name}' is not 32 bytes in Base64")))?;
        kept.keys.insert(name.into(), Key(key));
    }
    match kept.keys.contains_key(&kept.default) {
        true => Ok(Some(kept)),
        false => Err(wrong(format!("default = \"{}\", and there is no such key under [keys]", kept.default))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'_> = Place { bucket: "b", key: "k" };

    fn kinds() -> [Kind; 3] {
        [
            Kind::Server { key: "main".into() },
            Kind::Named { key: "main".into(), context: Some("e30=".into()), has_bucket_key: false },
            Kind::Customer { md5: [1; 16] },
        ]
    }

    fn applied(cipher: &Cipher) -> [u8; 16] {
        let mut bytes = [0; 16];
        cipher.apply(0, 0, &mut bytes);
        bytes
    }

    #[test]
    fn a_sealed_key_opens_under_its_key_in_its_place_and_unchanged() {
        let (under, other) = (Key::random(), Key::random());
        for kind in kinds() {
            let (encryption, cipher) = seal(&under, kind.clone(), PLACE);
            assert_eq!(applied(&open(&under, &encryption, PLACE).unwrap()), applied(&cipher));
            assert!(open(&other, &encryption, PLACE).is_none(), "another key");
            for place in [Place { bucket: "c", key: "k" }, Place { bucket: "b", key: "l" }, Place { bucket: "bk", key: "" }] {
                assert!(open(&under, &encryption, place).is_none(), "{place:?}");
            }
            for at in 0..SEALED_BYTES {
                let mut changed = encryption.clone();
                changed.sealed.0[at] ^= 1;
                assert!(open(&under, &changed, PLACE).is_none(), "byte {at}");
            }
            for other in kinds().into_iter().filter(|other| *other != kind) {
                assert!(open(&under, &Encryption { kind: other, ..encryption.clone() }, PLACE).is_none(), "as of another kind");
            }
            let (_, second) = seal(&under, kind, PLACE);
            assert_ne!(applied(&second), applied(&cipher), "each object has its own key");
        }
    }

    #[test]
    fn keys_of_the_servers_own_are_made_and_kept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("store.keys");
        let keys = Keys::own(&path).unwrap();
        assert!(!path.exists(), "they may not be needed");
        let (default, first) = keys.take(None).unwrap();
        assert_eq!(keys.take(None).unwrap(), (default.clone(), first.clone()));
        let (_, named) = keys.take(Some("of/mine")).unwrap();
        assert_ne!(named, first);
        assert_eq!(keys.take(Some("a\"b")).unwrap_err().code, Code::KmsNotFoundException);
        assert_eq!(keys.find("nobody's").unwrap_err().code, Code::KmsNotFoundException);
        let again = Keys::own(&path).unwrap();
        assert_eq!((again.find(&default).unwrap(), again.find("of/mine").unwrap()), (first.clone(), named));
        assert_eq!(again.take(None).unwrap(), (default, first));
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn servers_that_share_a_file_lose_no_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("basin.keys");
        // All of them have read it before there is anything in it.
        let [one, other, third] = [(); 3].map(|()| Keys::own(&path).unwrap());
        let (default, first) = one.take(None).unwrap();
        assert_eq!(other.take(None).unwrap(), (default.clone(), first.clone()), "the default one is all of theirs");
        let (_, named) = other.take(Some("payroll")).unwrap();
        let (_, last) = one.take(Some("archive")).unwrap();
        assert_eq!(third.take(Some("payroll")).unwrap().1, named);
        let again = Keys::own(&path).unwrap();
        for keys in [&again, &one, &other, &third] {
            for (name, key) in [(&*default, &first), ("payroll", &named), ("archive", &last)] {
                assert_eq!(keys.find(name).unwrap(), *key, "{name}");
            }
        }
        assert_eq!(again.take(None).unwrap(), (default, first));
        let names: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["basin.keys"], "nothing else is left");
    }

    #[test]
    fn servers_that_write_a_file_at_once_lose_no_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("basin.keys");
        let mut made: Vec<(Box<str>, Key)> = std::thread::scope(|scope| {
            let servers: Vec<_> = (0..8).map(|server| (server, Keys::own(&path).unwrap())).collect();
            let begin = |(server, keys): (u32, Keys)| {
                scope.spawn(move || {
                    let named = (0..8).map(|key| format!("{server}-{key}"));
                    let named: Vec<_> = named.map(|name| keys.take(Some(&name)).unwrap()).collect();
                    named.into_iter().chain([keys.take(None).unwrap()]).collect::<Vec<_>>()
                })
            };
            let threads: Vec<_> = servers.into_iter().map(begin).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let all = Keys::own(&path).unwrap();
        for (name, key) in &made {
            assert_eq!(all.find(name).unwrap(), *key, "{name}");
        }
        made.sort_by(|one, other| one.0.cmp(&other.0));
        made.dedup();
        assert_eq!(made.len(), 8 * 8, "the default one is one of the first of them");
    }

    #[test]
    fn a_file_that_was_changed_by_hand_is_not_written_over() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("basin.keys");
        let keys = Keys::own(&path).unwrap();
        let (default, first) = keys.take(None).unwrap();
        // It is taken away, and brought back with another default.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let fresh = Keys::own(&path).unwrap();
        assert_eq!(fresh.find(&default).unwrap_err().code, Code::KmsNotFoundException);
        let head = "default = \"new\"\n[keys]\n";
        let line = |name: &str, number: u8| format!("\"{name}\" = \"{}\"\n", BASE64_STANDARD.encode([number; KEY_BYTES]));
        let before = text.lines().last().unwrap();
        std::fs::write(&path, format!("{head}{}{before}\n", line("new", 1))).unwrap();
        assert_eq!(fresh.find(&default).unwrap(), first, "without a new start");
        keys.take(Some("another")).unwrap();
        assert_eq!(Keys::own(&path).unwrap().take(None).unwrap(), ("new".into(), Key([1; KEY_BYTES])));
        // What cannot be read, or has another key of a name, stays as it is.
        for text in ["default = ".to_owned(), format!("{head}{}{}", line("new", 1), line(&default, 2))] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(keys.take(Some("third")).unwrap_err().code, Code::InternalError);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(keys.find(&default).unwrap(), first);
        }
    }

    #[test]
    fn a_file_that_is_named_is_only_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("keys.toml");
        let missing = Keys::load(&path).unwrap_err();
        assert!(missing.to_string().contains("keys.toml"), "{missing}");
        let secret = BASE64_STANDARD.encode([7; 32]);
        std::fs::write(&path, format!("default = \"a\"\n[keys]\na = \"{secret}\"\n")).unwrap();
        let keys = Keys::load(&path).unwrap();
        assert_eq!(keys.take(None).unwrap(), ("a".into(), Key([7; 32])));
        assert_eq!(keys.take(Some("b")).unwrap_err().code, Code::KmsNotFoundException);
        assert!(!format!("{keys:?}").contains("7, 7"), "it does not show its keys");
        for (text, says) in [
            ("default = \"b\"\n[keys]\na = \"SECRET\"".to_string(), "\"b\""),
            ("default = \"a\"\n[keys]\na = \"AAAA\"".to_string(), "'a'"),
            ("default = \"a\"\n[keys]\na = 5".to_string(), "text"),
            ("default = \"a\"\nother = 1\n[keys]\na = \"SECRET\"".to_string(), "other"),
        ] {
            std::fs::write(&path, text.replace("SECRET", &secret)).unwrap();
            let error = Keys::load(&path).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("keys.toml") && !error.contains(&secret), "{error}");
        }
    }
}
