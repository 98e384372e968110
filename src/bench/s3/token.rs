//! A client over HTTP whose objects go by RDMA (`x-amz-rdma-token`): a connection, a queue pair, and a window that stays open, as clients
//! have whose memory is registered once. Objects that are longer than a run are got in ranges.

use std::collections::HashMap;
use std::rc::Rc;

use super::http;
use super::{Load, RUN_MAX, SIGNED_FOR};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::rdma::{Access, Qp, QpConfig};
use crate::mem::{Slab, Window};
use crate::s3::client::http::{Ask, Http};
use crate::s3::client::native::Ground;
use crate::s3::rdma::connect::{CONNECT, ENDPOINT, PSN, SESSION, TOKEN, token_of};

/// A connection and a queue pair.
pub struct Client {
    load: Rc<Load>,
    ground: Ground,
    http: http::Client,
    qp: Qp,
    session: String,
    /// What the server reads from or writes to, and for which of the two it is open.
    window: Option<(Window, Access)>,
    /// Of requests, by what is done, number of object, and piece, as long as they are signed.
    heads: HashMap<(bool, u64, u64), Rc<[u8]>>,
    signed: Nanos,
}

impl Client {
    /// Connects both.
    pub async fn connect(load: &Rc<Load>, ground: &Ground, slab: &Slab) -> Result<Client> {
        let (qp, session) = connected(load, ground).await?;
        let http = http::Client::connect(load, slab).await?;
        let (load, ground, heads) = (load.clone(), ground.clone(), HashMap::new());
        Ok(Client { load, ground, http, qp, session, window: None, heads, signed: Nanos::ZERO })
    }

    /// Connects both anew.
    pub async fn again(&mut self) -> Result<()> {
        if let Some((window, _)) = self.window.take() {
            drop(self.ground.hca.revoke(window).await);
        }
        self.heads.clear();
        self.http.again().await?;
        (self.qp, self.session) = connected(&self.load, &self.ground).await?;
        Ok(())
    }

    /// Makes the bucket; one that is there is as good.
    pub async fn make_bucket(&mut self) -> Result<()> {
        self.http.make_bucket().await
    }

    /// Puts an object: its bytes are in the window once and for all, each object's from another place on.
    pub async fn put(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        if load.options.size_bytes > RUN_MAX {
            return self.http.put(number).await;
        }
        let first = load.shift(number) as u64;
        self.open(Access::READ).await?;
        let head = self.head(true, number, (first, load.options.size_bytes), None);
        self.http.exchange_by_token(&head).await
    }

    /// Gets an object, a range at a time.
    pub async fn get(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        let size = load.options.size_bytes;
        let mut at = 0;
        while at < size {
            let bytes = (size - at).min(RUN_MAX);
            self.open(Access::WRITE).await?;
            let head = self.head(false, number, (0, bytes), (size > RUN_MAX).then_some(at));
            self.http.exchange_by_token(&head).await?;
            if load.options.check {
                let (window, _) = self.window.take().expect("it was opened");
                let run = self.ground.hca.revoke(window).await;
                self.heads.clear();
                if run.as_slice()[..bytes as usize] != load.bytes(number)[at as usize..][..bytes as usize] {
                    let what = format!("the S3 server {} wrote other bytes than were put, from byte {at} on", load.address);
                    return Err(Error::new(ErrorKind::Protocol, what));
                }
            }
            at += bytes;
        }
        Ok(())
    }

    /// Opens the window for this, if it is not.
    async fn open(&mut self, access: Access) -> Result<()> {
        if self.window.as_ref().is_some_and(|(_, is_for)| *is_for == access) {
            return Ok(());
        }
        if let Some((window, _)) = self.window.take() {
            drop(self.ground.hca.revoke(window).await);
        }
        self.heads.clear();
        let pattern = &self.load.pattern;
        let bytes = pattern.len().min(2 * RUN_MAX as usize);
        let mut run = self.ground.slab.run(bytes as u32)?;
        run.set_len(bytes as u32);
        if access.reads() {
            run.as_mut_slice().copy_from_slice(&pattern[..bytes]);
        }
        let busy = |_| Error::new(ErrorKind::Busy, "a window: the RDMA device has no more");
        self.window = Some((self.qp.grant(run, access).await.map_err(busy)?, access));
        Ok(())
    }

    /// A request whose bytes are in the window from `place.0` on, `place.1` of them; of an object that is got in ranges from `at` on.
    fn head(&mut self, is_put: bool, number: u64, (first, bytes): (u64, u64), at: Option<u64>) -> Rc<[u8]> {
        let now = self.load.core.now();
        if now.since(self.signed) > SIGNED_FOR {
            self.heads.clear();
            self.signed = now;
        }
        let (window, _) = self.window.as_ref().expect("it was opened");
        let (load, session) = (&self.load, &self.session);
        let head = self.heads.entry((is_put, number, at.unwrap_or(0))).or_insert_with(|| {
            let token = format!("rc:{session}:{:x}:{bytes:x}:{:x}", window.address() + first, window.rkey());
            let range = at.map(|at| format!("bytes={at}-{}", at + bytes - 1));
            let fields: Vec<(&str, &str)> =
                [(TOKEN, token.as_str())].into_iter().chain(range.as_deref().map(|range| ("range", range))).collect();
            let (method, length) = if is_put { ("PUT", Some(0)) } else { ("GET", None) };
            load.head(method, load.path(number), &fields, length)
        });
        head.clone()
    }
}

/// A queue pair that the server knows, and by what name.
async fn connected(load: &Load, ground: &Ground) -> Result<(Qp, String)> {
    let mut http = Http::connect(&ground.core, load.address).await?;
    let qp = ground.hca.create_qp(&QpConfig { ledger: ground.ledger.clone(), ..QpConfig::default() })?;
    let local = qp.local();
    let endpoint = serde_json::to_string(&local).expect("an endpoint is plain data");
    let (token, psn) = (token_of(&local).encode(), format!("{:06x}", local.psn));
    let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint)];
    let (answer, _) = http.ask(&load.signer, Ask { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" }).await?;
    let told = (answer.text(ENDPOINT).and_then(|text| serde_json::from_str(text).ok()), answer.text(SESSION));
    let (Some(remote), Some(session)) = told else {
        let what = format!("the S3 server {} connects no queue pair: status {}", load.address, answer.status());
        return Err(Error::new(ErrorKind::Unavailable, what).remedy("look whether it has RDMA"));
    };
    qp.connect(&remote)?;
    Ok((qp, session.to_owned()))
}
