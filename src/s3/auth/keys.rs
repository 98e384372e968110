//! Signing keys of version 4, and the cache of them: deriving one costs four HMACs, a request that finds it in the cache one.

use std::cell::RefCell;
use std::fmt;

use hashbrown::{Equivalent, HashMap};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::{Secret, Service};
use crate::wire::http::aws_chunked::Signature;

/// Keys that a half of the cache holds. Ours: a core serves some hundred users at a time, each with one key a day; an entry is about 400
/// bytes, so both halves are at most 400 KiB.
const HALF: usize = 512;

/// A hash in hexadecimal digits, lower case.
pub(super) type Hex = [u8; 64];

pub(super) fn hex(hash: &[u8; 32]) -> Hex {
    let mut out = [0; 64];
    base16ct::lower::encode(hash, &mut out).expect("64 digits for 32 bytes");
    out
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}

fn mac(key: &Hmac<Sha256>, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = key.clone();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// What a signing key is for: a day, a region, a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope<'a> {
    pub(super) access_key: &'a str,
    pub(super) date: &'a str,
    pub(super) region: &'a str,
    pub(super) service: Service,
}

/// A signing key. It does not show itself.
#[derive(Clone)]
pub(super) struct SigningKey(Hmac<Sha256>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

impl SigningKey {
    /// API/sig-v4-header-based-auth.html, "Task 3: Calculate Signature".
    pub(super) fn derive(secret: &Secret, scope: Scope<'_>) -> SigningKey {
        let first = [b"AWS4", secret.bytes()].concat();
        let parts = [scope.date, scope.region, scope.service.name(), super::sigv4::TERMINAL];
        SigningKey(parts.iter().fold(keyed(&first), |key, part| keyed(&mac(&key, &[part.as_bytes()]))))
    }

    /// The signature of these bytes, one after the other.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> Signature {
        mac(&self.0, parts)
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Id {
    access_key: Box<str>,
    date: Box<str>,
    region: Box<str>,
    service: Service,
}

impl Id {
    fn scope(&self) -> Scope<'_> {
        Scope { access_key: &self.access_key, date: &self.date, region: &self.region, service: self.service }
    }
}

impl Equivalent<Id> for Scope<'_> {
    fn equivalent(&self, id: &Id) -> bool {
        *self == id.scope()
    }
}

type Half = HashMap<Id, (Secret, SigningKey)>;

/// The keys used last: those of the current half, and of the one before it.
#[derive(Default)]
struct Halves {
    current: Half,
    before: Half,
}

/// The cache. A key counts as long as the secret that it was made of is the one that holds.
pub(super) struct Keys(RefCell<Halves>);

impl Keys {
    pub(super) fn new() -> Keys {
        Keys(RefCell::default())
    }

    /// The key for a scope, from the cache if it is there.
    pub(super) fn get(&self, scope: Scope<'_>, secret: &Secret) -> SigningKey {
        let halves = &mut *self.0.borrow_mut();
        if let Some((of, key)) = halves.current.get(&scope)
            && of == secret
        {
            return key.clone();
        }
        let kept = halves.before.remove(&scope).filter(|(of, _)| of == secret);
        let key = kept.map_or_else(|| SigningKey::derive(secret, scope), |(_, key)| key);
        if halves.current.len() >= HALF {
            halves.before = std::mem::take(&mut halves.current);
        }
        let id = Id { access_key: scope.access_key.into(), date: scope.date.into(), region: scope.region.into(), service: scope.service };
        halves.current.insert(id, (secret.clone(), key.clone()));
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope<'a>(access_key: &'a str, date: &'a str) -> Scope<'a> {
        Scope { access_key, date, region: "us-east-1", service: Service::S3 }
    }

    /// The key of the POST example (API/sigv4-post-example.html).
    #[test]
    fn derived() {
        let secret = Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let key = SigningKey::derive(&secret, scope("AKIAIOSFODNN7EXAMPLE", "20151229"));
        let known = base16ct::lower::decode_vec("cbcef1ebeaefc82cce6530b9f0a9ae598846065f5c5bae0674bd5ebc4ba52d28").unwrap();
        assert_eq!(key.sign(&[b"a", b"bc"]), mac(&keyed(&known), &[b"abc"]));
        assert_eq!(format!("{key:?} {secret:?}"), "SigningKey(..) Secret(..)");
    }

    #[test]
    fn a_key_is_that_of_its_secret_and_scope() {
        let keys = Keys::new();
        let (one, two) = (Secret::new("one"), Secret::new("two"));
        let sign = |scope, secret: &Secret| {
            let signature = keys.get(scope, secret).sign(&[b"x"]);
            assert_eq!(signature, keys.get(scope, secret).sign(&[b"x"]), "from the cache");
            assert_eq!(signature, SigningKey::derive(secret, scope).sign(&[b"x"]));
            signature
        };
        let first = sign(scope("a", "20130524"), &one);
        assert_ne!(first, sign(scope("a", "20130524"), &two), "the secret was changed");
        assert_eq!(first, sign(scope("a", "20130524"), &one), "and changed back");
        assert_ne!(first, sign(scope("a", "20130525"), &one));
        assert_ne!(first, sign(Scope { region: "eu-west-1", ..scope("a", "20130524") }, &one));
        assert_ne!(first, sign(Scope { service: Service::S3Express, ..scope("a", "20130524") }, &one));
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let keys = Keys::new();
        let secret = Secret::new("one");
        let names: Vec<_> = (0..3 * HALF).map(|at| at.to_string()).collect();
        for name in &names {
            keys.get(scope(name, "20130524"), &secret);
            keys.get(scope("often", "20130524"), &secret);
            let halves = keys.0.borrow();
            assert!(halves.current.len() <= HALF && halves.before.len() <= HALF);
            assert!(halves.current.contains_key(&scope("often", "20130524")));
        }
        let other = Secret::new("other");
        let key = {
            let halves = keys.0.borrow();
            let (id, _) = halves.before.iter().next().expect("the half before is kept");
            id.access_key.clone()
        };
        let expected = SigningKey::derive(&other, scope(&key, "20130524")).sign(&[b"x"]);
        assert_eq!(keys.get(scope(&key, "20130524"), &other).sign(&[b"x"]), expected, "the secret was changed");
        let halves = keys.0.borrow();
        assert!(!halves.current.contains_key(&scope("0", "20130524")) && !halves.before.contains_key(&scope("0", "20130524")));
    }
}
