//! A connection to a server of S3.

use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::socket::TcpStream;
use crate::reactor::Core;
use crate::s3::auth;
use crate::s3::auth::sign::{Body, Signer};
use crate::wire::http::answer::{Answer, AnswerFraming};

/// How long a server may be silent.
const PATIENCE: Nanos = Nanos::from_secs(60);
/// The longest body that is taken whole.
const BODY_MAX: u64 = 16 << 20;

/// A connection. Requests on it are signed, and answered in order.
pub struct Http {
    core: Core,
    tcp: TcpStream,
    host: String,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, percent-encoded.
    pub path: &'a str,
    /// The query, percent-encoded; without its `?`.
    pub query: &'a str,
    /// Fields beside those that a connection and a signature have.
    pub fields: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

impl Http {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or there is no way there.
    pub async fn connect(core: &Core, address: SocketAddr) -> Result<Http> {
        let tcp = core.timeout(PATIENCE, TcpStream::connect(core.uring(), address)).await.map_err(Error::from)??;
        Ok(Http { core: core.clone(), tcp, host: address.to_string() })
    }

    /// This end's address: what the server sees, if nothing is between.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Sends a request and takes its answer, head and body.
    ///
    /// # Errors
    /// The connection failed, the server is silent, or what it says is no answer. Its statuses are no errors here.
    pub async fn ask(&mut self, signer: &Signer, ask: Ask<'_>) -> Result<(Answer, Vec<u8>)> {
        let mut headers: Vec<(&str, &[u8])> = vec![("host", self.host.as_bytes())];
        headers.extend(ask.fields.iter().map(|(name, value)| (*name, value.as_bytes())));
        let request = auth::Request { method: ask.method, path: ask.path, query: ask.query, headers: &headers };
        let body = if ask.body.is_empty() { Body::Unsigned } else { Body::Sha256(Sha256::digest(ask.body).into()) };
        let signed = signer.sign(request, body, unix_now_ns() / 1_000_000);
        let mut head = format!("{} {}", ask.method, ask.path);
        if !ask.query.is_empty() {
            head.push('?');
            head.push_str(ask.query);
        }
        head.push_str(" HTTP/1.1\r\n");
        let lengths = [("content-length", ask.body.len().to_string())];
        let own = [("host", self.host.as_str())];
        let fields = own.iter().chain(ask.fields).copied();
        let added = signed.headers.iter().chain(&lengths).map(|(name, value)| (*name, value.as_str()));
        for (name, value) in fields.chain(added) {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        self.core.timeout(PATIENCE, self.tcp.write_pieces(&[head.as_bytes(), ask.body])).await.map_err(Error::from)??;
        self.answer(ask.method == "HEAD").await
    }

    async fn answer(&mut self, to_head: bool) -> Result<(Answer, Vec<u8>)> {
        let answer = loop {
            let parsed = Answer::parse(self.tcp.pending(), to_head).map_err(|bad| self.protocol(&bad.to_string()))?;
            match parsed {
                Some((answer, used)) => {
                    self.tcp.consume(used);
                    if !answer.is_interim() {
                        break answer;
                    }
                }
                None => self.more().await?,
            }
        };
        let length = match answer.framing() {
            AnswerFraming::None => 0,
            AnswerFraming::Length(length) if length <= BODY_MAX => length as usize,
            AnswerFraming::Length(length) => return Err(self.protocol(&format!("a body of {length} bytes"))),
            AnswerFraming::Chunked | AnswerFraming::Close => return Err(self.protocol("a body whose length it does not say")),
        };
        while self.tcp.pending().len() < length {
            self.more().await?;
        }
        let body = self.tcp.pending()[..length].to_vec();
        self.tcp.consume(length);
        Ok((answer, body))
    }

    async fn more(&mut self) -> Result<()> {
        match self.core.timeout(PATIENCE, self.tcp.more()).await.map_err(Error::from)?? {
            0 => Err(self.protocol("nothing more in the middle of an answer")),
            _ => Ok(()),
        }
    }

    fn protocol(&self, what: &str) -> Error {
        Error::new(ErrorKind::Protocol, format!("the S3 server {} sent {what}", self.host))
    }
}
