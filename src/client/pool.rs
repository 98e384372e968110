//! HTTP connections of an endpoint, kept while they can be used again.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::Way;
use super::options::{Endpoint, Options, Scheme};
use crate::base::{Nanos, Result};
use crate::mem::Slab;
use crate::reactor::Core;
use crate::s3::client::http::Http;
use crate::s3::http::tls::Tls;
use crate::s3::http::tls::client::{ClientTls, believing};

/// Connections that are kept without a request.
const IDLE_MAX: usize = 16;
/// For how long: servers close them after a while, and the first request on such a one fails.
const IDLE: Nanos = Nanos::from_secs(10);

/// An endpoint's connections.
pub struct Pool {
    core: Core,
    endpoint: Endpoint,
    address: SocketAddr,
    patience: Nanos,
    trust: Option<Rc<ClientTls>>,
    idle: RefCell<Vec<(Http, Nanos)>>,
}

/// The pools of all endpoints that speak HTTP; of those of RDMA, whose ports speak it too, where there are no others.
pub(super) fn all(core: &Core, slab: &Slab, options: &Options) -> Result<Vec<Pool>> {
    let speaks_http = |endpoint: &&Endpoint| endpoint.scheme != Scheme::Rdma;
    let mut endpoints: Vec<&Endpoint> = options.endpoints.iter().filter(speaks_http).collect();
    if endpoints.is_empty() {
        endpoints = options.endpoints.iter().collect();
    }
    let trust = if endpoints.iter().any(|endpoint| endpoint.scheme == Scheme::Https) {
        Some(Tls::new(believing(options.ca.as_deref())?, slab, Arc::default()))
    } else {
        None
    };
    let pool = |endpoint: &&Endpoint| {
        let trust = trust.clone().filter(|_| endpoint.scheme == Scheme::Https);
        let address = endpoint.address()?;
        let patience = options.patience;
        Ok(Pool { core: core.clone(), endpoint: (*endpoint).clone(), address, patience, trust, idle: RefCell::default() })
    };
    endpoints.iter().map(pool).collect()
}

impl Pool {
    /// A connection, and whether it has been used before.
    ///
    /// # Errors
    /// Nobody is there.
    pub async fn take(&self) -> Result<(Http, bool)> {
        let now = self.core.now();
        let kept = {
            let mut idle = self.idle.borrow_mut();
            idle.retain(|(_, since)| now.since(*since) < IDLE);
            idle.pop()
        };
        if let Some((http, _)) = kept {
            return Ok((http, true));
        }
        let host = self.endpoint.host.clone();
        let http = match &self.trust {
            Some(trust) => Http::connect_tls(&self.core, self.address, host, self.patience, trust).await?,
            None => Http::connect_as(&self.core, self.address, host, self.patience).await?,
        };
        Ok((http, false))
    }

    /// Keeps a connection on which an answer has come to its end.
    pub fn keep(&self, http: Http) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push((http, self.core.now()));
        }
    }

    /// The others are as old as one that failed.
    pub fn forget(&self) {
        self.idle.borrow_mut().clear();
    }

    /// The server.
    pub fn host(&self) -> &str {
        &self.endpoint.host
    }

    /// How requests go.
    pub fn way(&self) -> Way {
        if self.trust.is_some() { Way::Https } else { Way::Http }
    }
}
