//! The client's end: which certificates it believes, and a connection to a server of a name.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::Tls;
use super::stream::TlsStream;
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::socket::TcpStream;
use crate::reactor::Core;

/// What the connections of a client share.
pub type ClientTls = Tls<Arc<ClientConfig>>;
/// The client's end of a connection.
pub type ClientStream = TlsStream<UnbufferedClientConnection>;

/// Where systems keep the certificates they believe: Debian and Arch, Red Hat, SUSE, Alpine.
const BUNDLES: [&str; 4] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"];

/// Believes the certificates in a file, or those of the system's bundle.
///
/// # Errors
/// There is no such file, or no certificate in it.
pub fn believing(file: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let from_environment = std::env::var_os("SSL_CERT_FILE").filter(|named| !named.is_empty()).map(Into::into);
    let of_system = || BUNDLES.iter().map(Path::new).find(|path| path.exists()).map(Path::to_path_buf);
    let remedy = "name a file of certificates in PEM: --ca FILE, or SSL_CERT_FILE";
    let path = file.map(Path::to_path_buf).or(from_environment).or_else(of_system).ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, format!("no certificates to believe: none of {}", BUNDLES.join(", "))).remedy(remedy)
    })?;
    let shown = path.display();
    let text = std::fs::read(&path).map_err(|error| Error::io(format!("reading {shown}"), &error).remedy(remedy))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|bad| Error::new(ErrorKind::Usage, format!("{shown}: no PEM: {bad}")).remedy(remedy))?;
        // A system's bundle has now and then one that is too old to be read; those that can be are enough.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(Error::new(ErrorKind::Usage, format!("{shown}: there is no certificate in it")).remedy(remedy));
    }
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let bare = versions.map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: {error}")))?;
    let mut config = bare.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl ClientStream {
    /// A connection to the server of this `host`, which may have a port behind it.
    ///
    /// # Errors
    /// It is no name that a certificate could have.
    pub fn to(core: &Core, tls: &Rc<ClientTls>, tcp: TcpStream, host: &str) -> Result<ClientStream> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
        let wrong = || Error::new(ErrorKind::Usage, format!("'{name}' is no name a certificate could have")).remedy("name the host");
        let name = ServerName::try_from(name.to_owned()).map_err(|_| wrong())?;
        let rustls = UnbufferedClientConnection::new(tls.identity.clone(), name);
        let rustls = rustls.map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: {error}")))?;
        Ok(TlsStream::of(core, tls, tcp, rustls))
    }
}
