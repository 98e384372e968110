//! Who the server says it is: a certificate and its key, read when the server starts, and again when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::reactor::Core;

/// How often the files are looked at.
const LOOK: Nanos = Nanos::from_secs(10);
/// The most bytes of either file: a chain of a few certificates is some 10 KiB.
const FILE_MAX: u64 = 1 << 20;

/// So long before a certificate ends the log says that it will: a week.
const SOON_S: u64 = 7 * 86_400;
/// After the last time that a certificate can name, the end of the year 9999.
const AFTER_ALL_S: u64 = 253_402_300_800;

/// A certificate and its key. All cores have the same.
pub struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    /// Taken for a moment by each connection that begins, and when the files have changed.
    serving: Mutex<Serving>,
    /// What the files were when they were looked at last, whether or not they could be used.
    seen: Mutex<Seen>,
}

/// What serves.
#[derive(Clone)]
struct Serving {
    config: Arc<ServerConfig>,
    /// When the last of the chain's certificates begins and the first one ends, in seconds since 1970; unknown if none of them can be read
    /// as one.
    begins_s: Option<u64>,
    ends_s: Option<u64>,
}

/// How much of its time a certificate has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    NotYet,
    Long,
    Soon,
    Ended,
}

impl Term {
    pub(super) fn of(begins_s: Option<u64>, ends_s: Option<u64>, now_s: u64) -> Term {
        match ends_s {
            _ if begins_s.is_some_and(|begins_s| begins_s > now_s) => Term::NotYet,
            Some(ends_s) if ends_s < now_s => Term::Ended,
            Some(ends_s) if ends_s < now_s + SOON_S => Term::Soon,
            _ => Term::Long,
        }
    }
}

/// What files were, without their content: a digest, or why they could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Content([u8; 32]),
    Nothing(String),
}

/// What was found when the files were looked at.
#[derive(Debug)]
pub enum Look {
    /// What was there before.
    Same,
    /// Others, which serve from now on.
    New,
    /// Something that cannot be used: what served goes on.
    Bad(Error),
}

impl Identity {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// A file cannot be read, has not what is wanted, or the two do not belong together.
    pub fn load(certificate: &Path, key: &Path) -> Result<Identity> {
        let (certificate, key) = (certificate.to_path_buf(), key.to_path_buf());
        let (pems, seen) = read_both(&certificate, &key);
        let (certificates, keys) = pems?;
        let serving = Mutex::new(config(&certificate, &certificates, &key, &keys)?);
        Ok(Identity { certificate, key, serving, seen: Mutex::new(seen) })
    }

    /// What a connection that begins now is to serve with.
    pub fn serving(&self) -> Arc<ServerConfig> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// When the first certificate of the chain ends, in seconds since 1970, if any can be read.
    pub fn ends_s(&self) -> Option<u64> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).ends_s
    }

    /// When the last one of it begins.
    pub fn begins_s(&self) -> Option<u64> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).begins_s
    }

    /// Looks whether the files are others now, and takes those if they can be used. What is bad is told once.
    pub fn look(&self) -> Look {
        let (pems, now) = read_both(&self.certificate, &self.key);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return Look::Same;
        }
        *seen = now;
        match pems.and_then(|(certificates, keys)| config(&self.certificate, &certificates, &self.key, &keys)) {
            Ok(new) => {
                *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = new;
                Look::New
            }
            Err(error) => Look::Bad(error),
        }
    }

    /// Looks at the files now and then, until the task is ended. One core does it for all.
    pub async fn watch(self: Arc<Identity>, core: Core) {
        let mut told = Term::Long;
        loop {
            let term = Term::of(self.begins_s(), self.ends_s(), unix_now_ns() / 1_000_000_000);
            if std::mem::replace(&mut told, term) != term {
                self.warn_of(term);
            }
            core.sleep(LOOK).await;
            match self.look() {
                Look::Same => {}
                Look::New => tracing::info!(certificate = %self.certificate.display(), "the new certificate serves from now on"),
                Look::Bad(error) => tracing::warn!("{error:#}; the certificate that served goes on"),
            }
        }
    }

    fn warn_of(&self, term: Term) {
        let certificate = self.certificate.display();
        let at = if term == Term::NotYet { self.begins_s() } else { self.ends_s() };
        let at = at.map(|at_s| crate::s3::time::iso(at_s * 1000)).unwrap_or_default();
        match term {
            Term::Long => {}
            Term::NotYet => {
                tracing::warn!(%certificate, at, "a certificate of the chain is not valid yet, by this clock: clients refuse it")
            }
            Term::Soon => {
                tracing::warn!(%certificate, at, "a certificate of the chain ends soon; a new one serves as soon as the files are there")
            }
            Term::Ended => tracing::warn!(%certificate, at, "a certificate of the chain has ended: clients refuse it"),
        }
    }
}

/// When the last of these certificates begins and the first one ends, in seconds since 1970.
fn term_of(chain: &[CertificateDer<'_>]) -> (Option<u64>, Option<u64>) {
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    // Whoever signed it, it has not begun in 1970 and has ended after all, which is what is looked at first.
    let why = |certificate: &CertificateDer<'_>, then_s: u64| {
        let certificate = ParsedCertificate::try_from(certificate).ok()?;
        let then = UnixTime::since_unix_epoch(std::time::Duration::from_secs(then_s));
        match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], then, algorithms) {
            Err(rustls::Error::InvalidCertificate(why)) => Some(why),
            _ => None,
        }
    };
    let begins = chain.iter().filter_map(|one| match why(one, 0) {
        Some(CertificateError::NotValidYetContext { not_before, .. }) => Some(not_before.as_secs()),
        _ => None,
    });
    let ends = chain.iter().filter_map(|one| match why(one, AFTER_ALL_S) {
        Some(CertificateError::ExpiredContext { not_after, .. }) => Some(not_after.as_secs()),
        _ => None,
    });
    (begins.max(), ends.min())
}

type Pems = (Vec<u8>, Vec<u8>);

/// Both files, and what is remembered of them.
fn read_both(certificate: &Path, key: &Path) -> (Result<Pems>, Seen) {
    let read = || -> Result<Pems> { Ok((read(certificate, "https.certificate")?, read(key, "https.key")?)) };
    match read() {
        Ok((certificates, keys)) => {
            let mut digest = Sha256::new();
            digest.update((certificates.len() as u64).to_le_bytes());
            digest.update(&certificates);
            digest.update(&keys);
            let seen = Seen::Content(digest.finalize().into());
            (Ok((certificates, keys)), seen)
        }
        Err(error) => {
            let seen = Seen::Nothing(error.to_string());
            (Err(error), seen)
        }
    }
}

fn read(path: &Path, setting: &str) -> Result<Vec<u8>> {
    use std::io::Read;
    let explain = |error: std::io::Error| {
        let remedy = format!("let {setting} name a file in PEM that the server may read");
        Error::io(format!("reading {}", path.display()), &error).remedy(remedy)
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes)).map_err(explain)?;
    Ok(bytes)
}

/// How connections are served with this certificate and key.
fn config(certificate: &Path, certificates: &[u8], key: &Path, keys: &[u8]) -> Result<Serving> {
    let wrong =
        |path: &Path, what: String, remedy: &str| Error::new(ErrorKind::Usage, format!("{}: {what}", path.display())).remedy(remedy);
    let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let chain =
        chain.map_err(|bad| wrong(certificate, format!("no PEM: {bad}"), "https.certificate names a chain of certificates in PEM"))?;
    if chain.is_empty() {
        let remedy = "https.certificate names a file with -----BEGIN CERTIFICATE----- in it, the server's own first";
        return Err(wrong(certificate, "there is no certificate in it".into(), remedy));
    }
    for (at, one) in chain.iter().enumerate() {
        // Clients that look at all of the chain would refuse it.
        if let Err(rustls::Error::InvalidCertificate(CertificateError::BadEncoding)) = ParsedCertificate::try_from(one) {
            let what = format!("certificate {} of {} in it is none", at + 1, chain.len());
            return Err(wrong(certificate, what, "look at each: openssl storeutl -noout -text -certs FILE; leave that one out"));
        }
    }
    let (begins_s, ends_s) = term_of(&chain);
    let private = PrivateKeyDer::from_pem_slice(keys).map_err(|bad| match bad {
        // The older form has lines in it that are no base64.
        _ if keys.windows(9).any(|word| word == b"ENCRYPTED") => {
            wrong(key, "its key is encrypted".into(), "decrypt it: openssl pkey -in KEY -out PLAIN")
        }
        pem::Error::NoItemsFound => {
            wrong(key, "there is no private key in it".into(), "https.key names a file with -----BEGIN PRIVATE KEY----- in it")
        }
        bad => wrong(key, format!("no PEM: {bad}"), "https.key names a private key in PEM"),
    })?;
    let provider = Arc::new(ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let bare = versions.map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: {error}")))?.with_no_client_auth();
    let mut config = bare.with_single_cert(chain, private).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let remedy = "give the key that the certificate was made with; in a chain the server's own certificate comes first";
            wrong(key, format!("not the key of {}", certificate.display()), remedy)
        }
        rustls::Error::InvalidCertificate(bad) => {
            wrong(certificate, format!("its first certificate: {bad}"), "give an X.509 v3 certificate")
        }
        error => wrong(key, format!("cannot be used: {error}"), "an RSA key of 2048 bits or more, or one of P-256, P-384 or Ed25519"),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Who comes again needs no new handshake, whichever core answers. Tickets end with the certificate that they were given under.
    config.ticketer =
        ring::Ticketer::new().map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: making a key for tickets: {error}")))?;
    Ok(Serving { config: Arc::new(config), begins_s, ends_s })
}
