//! Which server, and who asks.
//!
//! A variable of the environment that is empty says nothing, as for a server.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use clap::Args;

use super::super::{Credentials, Endpoint, Options, Scheme};
use crate::base::error::ErrorKind;
use crate::base::units::parse_bytes;
use crate::base::{Error, Result};

/// Where `basin serve` listens if it is told nothing.
const USUAL_ENDPOINTS: [&str; 2] = ["rdma://127.0.0.1:9100", "http://127.0.0.1:9000"];
/// Where `basin serve` keeps its key if it is told nothing.
const USUAL_CREDENTIALS: &str = "basin-data/store.img.credentials";
/// The region if nothing is said.
const USUAL_REGION: &str = "us-east-1";

/// Who asks.
#[derive(Args, Clone)]
pub struct Who {
    /// The access key [env: AWS_ACCESS_KEY_ID]
    #[arg(long)]
    access_key: Option<String>,
    /// Its secret [env: AWS_SECRET_ACCESS_KEY]
    #[arg(long)]
    secret_key: Option<String>,
    /// The file that basin serve keeps beside its store, in place of both [env: BASIN_CREDENTIALS]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["access_key", "secret_key"])]
    credentials: Option<OsString>,
    /// The region that is signed for
    #[arg(long, default_value = USUAL_REGION, env = "AWS_REGION")]
    region: String,
}

/// Which server, and who asks.
#[derive(Args, Clone, Debug)]
pub struct Reach {
    /// A server: rdma://HOST:9100, http://HOST:9000 or https://HOST; several of them, and RDMA is preferred. Without it this machine's
    #[arg(long = "endpoint", value_name = "URL", env = "BASIN_ENDPOINT", value_delimiter = ',')]
    endpoints: Vec<String>,
    #[command(flatten)]
    who: Who,
    /// The RDMA device: soft, soft:udp, soft:shm, soft:xdp, one of the kernel's, or off
    #[arg(long, default_value = "soft", value_name = "RDMA_DEV")]
    rdma: String,
    /// The network interface of soft:xdp; without it the one by which the server is reached
    #[arg(long, value_name = "IFNAME", env = "BASIN_RDMA_INTERFACE")]
    rdma_interface: Option<String>,
    /// Certificates to believe, in PEM; without it the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<std::path::PathBuf>,
    /// Bytes of registered memory
    #[arg(long, default_value = "96M", value_parser = bytes)]
    memory: u64,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
}

fn said(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

impl Reach {
    pub(super) fn options(&self) -> Result<Options> {
        let said_endpoints = self.endpoints.iter().map(String::as_str).filter(|text| !text.trim().is_empty());
        let mut endpoints: Vec<Endpoint> = said_endpoints.map(str::parse).collect::<Result<_>>()?;
        if endpoints.is_empty() {
            endpoints = USUAL_ENDPOINTS.iter().map(|text| text.parse()).collect::<Result<_>>()?;
        }
        if self.rdma == "off" {
            let is_rdma = |endpoint: &Endpoint| endpoint.scheme == Scheme::Rdma;
            // A port for RDMA speaks HTTP, too.
            let is_only = endpoints.iter().all(is_rdma);
            endpoints.retain(|endpoint| is_only || !is_rdma(endpoint));
            endpoints.iter_mut().filter(|_| is_only).for_each(|endpoint| endpoint.scheme = Scheme::Http);
        }
        if let Some(file) = self.ca.as_ref().filter(|_| endpoints.iter().all(|endpoint| endpoint.scheme != Scheme::Https)) {
            let what = format!("--ca {} with endpoints of which none is https://", file.display());
            return Err(Error::new(ErrorKind::Usage, what).remedy("name the server as https://HOST, or leave --ca out"));
        }
        let rdma = if self.rdma == "off" { "soft".to_owned() } else { self.rdma.clone() };
        let options = Options::new(endpoints, self.who.credentials()?);
        // Set for a server, perhaps: it says nothing of other devices.
        let rdma_interface = said(&self.rdma_interface).filter(|_| rdma == "soft:xdp").map(str::to_owned);
        let region = self.who.region().to_owned();
        Ok(Options { region, rdma, rdma_interface, memory_bytes: self.memory, ca: self.ca.clone(), ..options })
    }
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Who { access_key, credentials, region, .. } = self;
        let mut shown = f.debug_struct("Who");
        shown.field("access_key", access_key).field("credentials", credentials).field("region", region).finish_non_exhaustive()
    }
}

impl Who {
    /// The region that is signed for.
    pub fn region(&self) -> &str {
        if self.region.is_empty() { USUAL_REGION } else { &self.region }
    }

    /// The key and its secret: what is said, or those of the server of this directory.
    ///
    /// # Errors
    /// There are none, or half of them; the file cannot be read.
    pub fn credentials(&self) -> Result<Credentials> {
        self.credentials_in(|variable| std::env::var_os(variable))
    }

    /// The same in an environment: what is said here goes before it, and in it a file goes before a key.
    fn credentials_in(&self, environment: impl Fn(&str) -> Option<OsString>) -> Result<Credentials> {
        let variable = |name| environment(name).filter(|text| !text.is_empty());
        let is_key_said = said(&self.access_key).is_some() || said(&self.secret_key).is_some();
        let file = self.credentials.clone().filter(|path| !path.is_empty());
        if let Some(path) = file.or_else(|| variable("BASIN_CREDENTIALS").filter(|_| !is_key_said)) {
            return Credentials::read(Path::new(&path));
        }
        let text = |option: &Option<String>, name| said(option).map(str::to_owned).or_else(|| variable(name)?.into_string().ok());
        let (access_key, secret_key) = (text(&self.access_key, "AWS_ACCESS_KEY_ID"), text(&self.secret_key, "AWS_SECRET_ACCESS_KEY"));
        let remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name the file beside the server's store: --credentials FILE";
        let wrong = |what: &str| Err(Error::new(ErrorKind::Usage, what).remedy(remedy));
        match (access_key, secret_key) {
            (Some(access_key), Some(secret_key)) => Ok(Credentials { access_key, secret_key }),
            (Some(access_key), None) => wrong(&format!("the access key {access_key} without its secret")),
            (None, Some(_)) => wrong("a secret without its access key"),
            (None, None) if Path::new(USUAL_CREDENTIALS).exists() => Credentials::read(Path::new(USUAL_CREDENTIALS)),
            (None, None) => wrong("no access key"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        who: Who,
    }

    #[test]
    fn what_is_said_goes_before_the_environment() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("credentials");
        std::fs::write(&file, "access_key = \"OFFILE\"\nsecret_key = \"secret of the file\"\n").unwrap();
        let file = file.into_os_string();
        let asked = |options: &[&str], variables: &[(&str, OsString)]| {
            let who = Line::try_parse_from(["basin"].iter().chain(options)).map_err(|error| error.to_string())?.who;
            let found = who.credentials_in(|name| Some(variables.iter().find(|(known, _)| *known == name)?.1.clone()));
            found.map(|found| format!("{} {}", found.access_key, found.secret_key)).map_err(|error| error.to_string())
        };
        let keys = [("AWS_ACCESS_KEY_ID", "OFENV".into()), ("AWS_SECRET_ACCESS_KEY", "env".into())];
        let all = [("BASIN_CREDENTIALS", file.clone()), keys[0].clone(), keys[1].clone()];
        let said = ["--access-key", "SAID", "--secret-key", "mine"];
        assert_eq!(asked(&said, &all).unwrap(), "SAID mine");
        assert_eq!(asked(&said[..2], &all).unwrap(), "SAID env");
        assert_eq!(asked(&[], &all).unwrap(), "OFFILE secret of the file");
        assert_eq!(asked(&["--credentials", file.to_str().unwrap()], &keys).unwrap(), "OFFILE secret of the file");
        assert_eq!(asked(&[], &keys).unwrap(), "OFENV env");
        let both = [&said[..2], &["--credentials", file.to_str().unwrap()]].concat();
        assert!(asked(&both, &[]).unwrap_err().contains("cannot be used with"), "one of them would be ignored");
        assert!(asked(&said[..2], &[]).unwrap_err().contains("the access key SAID without its secret"));
    }
}
