//! What a client is told: where servers are, who asks, and bounds.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The native mode of RDMA, connected at this port.
    Rdma,
    /// HTTP.
    Http,
    /// HTTP behind TLS.
    Https,
}

/// A server: `rdma://host:9100`, `http://host:9000`, `https://host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// `host:port`, or the host alone where the port is the usual one of HTTP or HTTPS: what requests are signed for.
    pub host: String,
}

impl Endpoint {
    /// Its address.
    ///
    /// # Errors
    /// The name has none.
    pub fn address(&self) -> Result<SocketAddr> {
        let usual = match self.scheme {
            Scheme::Rdma => 9100,
            Scheme::Http => 80,
            Scheme::Https => 443,
        };
        let has_port = self.host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let place = if has_port { self.host.clone() } else { format!("{}:{usual}", self.host) };
        let found = place.to_socket_addrs().map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("looking up {self}: {error}")).remedy("check the name of the server")
        })?;
        let mut all: Vec<_> = found.collect();
        // Servers listen at an IPv4 address unless they are told otherwise.
        all.sort_by_key(SocketAddr::is_ipv6);
        all.into_iter().next().ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{self} has no address")))
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint> {
        let wrong = || {
            let remedy = "name it as rdma://host:9100, http://host:9000 or https://host";
            Error::new(ErrorKind::Usage, format!("'{text}' is no endpoint")).remedy(remedy)
        };
        let (scheme, host) = text.trim().split_once("://").ok_or_else(wrong)?;
        let scheme = match scheme {
            "rdma" => Scheme::Rdma,
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(wrong()),
        };
        let host = host.trim_end_matches('/');
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || ".-_:[]".contains(letter);
        if host.is_empty() || !host.chars().all(is_name) {
            return Err(wrong());
        }
        if let Some((_, port)) = host.rsplit_once(':')
            && port.chars().all(|letter| letter.is_ascii_digit())
            && !port.parse::<u16>().is_ok_and(|port| port > 0)
        {
            let what = format!("'{text}' is no endpoint: there is no port '{port}'");
            return Err(Error::new(ErrorKind::Usage, what).remedy("a port is 1 to 65535"));
        }
        Ok(Endpoint { scheme, host: host.to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Rdma => "rdma",
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}", self.host)
    }
}

/// An access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Who asks.
    pub access_key: String,
    /// What requests are signed with.
    pub secret_key: String,
}

impl Credentials {
    /// Reads the file that `basin serve` keeps beside its store.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn read(path: &Path) -> Result<Credentials> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Kept {
            access_key: String,
            secret_key: String,
        }
        let shown = path.display();
        let remedy = "name the file that basin serve keeps beside its store: STORE.credentials";
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(format!("reading {shown}"), &error).remedy(remedy))?;
        // What is wrong with it is told without what is in it.
        let kept: Kept = toml::from_str(&text)
            .map_err(|_| Error::new(ErrorKind::Usage, format!("{shown}: there are no access_key and secret_key in it")).remedy(remedy))?;
        Ok(Credentials { access_key: kept.access_key, secret_key: kept.secret_key })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// What a client is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ends of one server, or of servers that have the same objects. RDMA is preferred; the others are used in this order.
    pub endpoints: Vec<Endpoint>,
    /// Who asks.
    pub credentials: Credentials,
    /// The region that is signed for.
    pub region: String,
    /// The RDMA device: `soft`, `soft:udp`, `soft:shm`, `soft:xdp`, or one of the kernel's.
    pub rdma: String,
    /// The network interface of `soft:xdp`; without it the one by which a server is reached.
    pub rdma_interface: Option<String>,
    /// Whether a server on this host that runs as the same user may look at the registered memory, all of it: over `soft:shm` it then
    /// copies what is put from there, once, where it takes two copies otherwise.
    pub rdma_lends: bool,
    /// Bytes of registered memory, for all buffers and messages: 8 MiB at least.
    pub memory_bytes: u64,
    /// How often a request is sent at most.
    pub tries: u32,
    /// How long a server may be silent over HTTP.
    pub patience: Nanos,
    /// How long a server may take over a request by RDMA, before HTTP is used; 0.25 s more for each MiB that it moves.
    pub rdma_patience: Nanos,
    /// Pieces of an object under way at a time.
    pub ahead: usize,
    /// A file of certificates to believe, in PEM; without it the system's.
    pub ca: Option<PathBuf>,
}

impl Options {
    /// With what is usual.
    pub fn new(endpoints: Vec<Endpoint>, credentials: Credentials) -> Options {
        Options {
            endpoints,
            credentials,
            region: "us-east-1".to_owned(),
            rdma: "soft".to_owned(),
            rdma_interface: None,
            rdma_lends: true,
            memory_bytes: 96 << 20,
            tries: 6,
            patience: Nanos::from_secs(30),
            rdma_patience: Nanos::from_secs(10),
            ahead: 4,
            ca: None,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: String, remedy: &str| Err(Error::new(ErrorKind::Usage, what).remedy(remedy));
        if self.endpoints.is_empty() {
            return wrong("no endpoint".to_owned(), "name one: --endpoint http://host:9000, or BASIN_ENDPOINT");
        }
        if self.memory_bytes < 8 << 20 {
            return wrong(format!("{} bytes of memory for a client", self.memory_bytes), "give it 8 MiB at least");
        }
        if self.tries == 0 || self.ahead == 0 {
            return wrong(format!("{} tries, {} pieces under way", self.tries, self.ahead), "one of each at least");
        }
        if self.patience == Nanos::ZERO || self.rdma_patience == Nanos::ZERO {
            return wrong("no time for a server to answer".to_owned(), "give it some");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_shown() {
        for (text, scheme, host) in [
            ("rdma://10.0.0.1:9100", Scheme::Rdma, "10.0.0.1:9100"),
            ("http://localhost:9000/", Scheme::Http, "localhost:9000"),
            (" https://s3.example.com", Scheme::Https, "s3.example.com"),
            ("http://[::1]:9000", Scheme::Http, "[::1]:9000"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.scheme, endpoint.host.as_str()), (scheme, host));
            assert_eq!(endpoint.to_string(), text.trim().trim_end_matches('/'));
        }
        for text in [
            "",
            "localhost:9000",
            "ftp://host",
            "http://",
            "http://a b",
            "http://host/path",
            "http://h\r\nx: y",
            "http://h:0",
            "http://h:65536",
            "rdma://h:",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.remedy_text().is_some(), "{text}: {error}");
        }
        let address = |text: &str| text.parse::<Endpoint>().unwrap().address().unwrap().to_string();
        assert_eq!(address("https://127.0.0.1"), "127.0.0.1:443");
        assert_eq!(address("rdma://127.0.0.1"), "127.0.0.1:9100");
        assert_eq!(address("http://[::1]:9000"), "[::1]:9000");
    }

    #[test]
    fn credentials_are_read_and_not_shown() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.credentials");
        std::fs::write(&path, "access_key = \"KEY\"\nsecret_key = \"hush\"\n").unwrap();
        let read = Credentials::read(&path).unwrap();
        assert_eq!((read.access_key.as_str(), read.secret_key.as_str()), ("KEY", "hush"));
        assert!(!format!("{read:?}").contains("hush"));
        std::fs::write(&path, "secret_key = \"hush\"\n").unwrap();
        let error = Credentials::read(&path).unwrap_err().to_string();
        assert!(error.contains("a.credentials") && !error.contains("hush"), "{error}");
        assert!(Credentials::read(&place.path().join("none")).unwrap_err().to_string().contains("none: ENOENT"));
    }
}
