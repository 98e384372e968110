//! A connection to a server of S3.

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

use sha2::{Digest as _, Sha256};

use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::socket::TcpStream;
use crate::device::socket::tcp::Sent;
use crate::mem::{Ledger, Run};
use crate::reactor::{Core, Elapsed};
use crate::s3::auth;
use crate::s3::auth::sign::{Body, Signer};
use crate::s3::http::tls::client::{ClientStream, ClientTls};
use crate::wire::http::answer::{Answer, AnswerFraming};

/// How long a server may be silent.
const PATIENCE: Nanos = Nanos::from_secs(60);
/// The longest body that is taken whole.
const BODY_MAX: u64 = 16 << 20;

/// A connection. Requests on it are signed, and answered in order.
pub struct Http {
    core: Core,
    way: Way,
    host: String,
    patience: Nanos,
    /// A request went only in part.
    is_torn: bool,
    /// Bytes that the server is known to have.
    heard: u64,
}

/// How its bytes go.
enum Way {
    Plain(TcpStream),
    Tls(Box<ClientStream>),
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
        Http::connect_as(core, address, address.to_string(), PATIENCE).await
    }

    /// Connects to a server of that name, which may be silent for so long.
    ///
    /// # Errors
    /// As for [`Http::connect`].
    pub async fn connect_as(core: &Core, address: SocketAddr, host: String, patience: Nanos) -> Result<Http> {
        let tcp = core.timeout(patience, TcpStream::connect(core.uring(), address)).await.map_err(|_| silent(&host, patience))??;
        Ok(Http { core: core.clone(), way: Way::Plain(tcp), host, patience, is_torn: false, heard: 0 })
    }

    /// The same behind TLS; `trust` says whom to believe.
    ///
    /// # Errors
    /// As for [`Http::connect`]; the server speaks no TLS, or is not who it should be.
    pub async fn connect_tls(core: &Core, address: SocketAddr, host: String, patience: Nanos, trust: &Rc<ClientTls>) -> Result<Http> {
        let tcp = core.timeout(patience, TcpStream::connect(core.uring(), address)).await.map_err(|_| silent(&host, patience))??;
        let mut stream = ClientStream::to(core, trust, tcp, &host)?;
        let greeted = core.timeout(patience, stream.handshake()).await.map_err(|_| silent(&host, patience))?;
        greeted.map_err(|error| error.of(&format!("https://{host} ({address})")))?;
        Ok(Http { core: core.clone(), way: Way::Tls(Box::new(stream)), host, patience, is_torn: false, heard: 0 })
    }

    /// How long the server may be silent from now on.
    pub fn set_patience(&mut self, patience: Nanos) {
        self.patience = patience;
    }

    /// This end's address: what the server sees, if nothing is between.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&mut self) -> Result<SocketAddr> {
        match &mut self.way {
            Way::Plain(tcp) => tcp.local_addr(),
            Way::Tls(tls) => tls.tcp().local_addr(),
        }
    }

    /// Sends a request and takes its answer, head and body.
    ///
    /// # Errors
    /// The connection failed, the server is silent, or what it says is no answer. Its statuses are no errors here.
    pub async fn ask(&mut self, signer: &Signer, ask: Ask<'_>) -> Result<(Answer, Vec<u8>)> {
        let answer = self.begin(signer, ask, &[]).await?;
        let body = self.take(&answer).await?;
        Ok((answer, body))
    }

    /// Sends a request and takes the head of its answer, whose body is to be taken next. `pieces` is a body that is not signed, in place of
    /// the request's own.
    ///
    /// # Errors
    /// As for [`Http::ask`].
    pub async fn begin(&mut self, signer: &Signer, ask: Ask<'_>, pieces: &[&[u8]]) -> Result<Answer> {
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
        let length = ask.body.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let lengths = [("content-length", length.to_string())];
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
        let all: Vec<&[u8]> = [head.as_bytes(), ask.body].into_iter().chain(pieces.iter().copied()).collect();
        let (patience, heard) = (self.patience, &mut self.heard);
        // The request before was answered.
        let written = match &mut self.way {
            Way::Plain(tcp) => {
                let sent = tcp.sent();
                *heard = sent.written();
                while_it_goes(&self.core, patience, &sent, heard, tcp.write_pieces(&all)).await
            }
            Way::Tls(tls) => {
                let sent = tls.tcp().sent();
                *heard = sent.written();
                while_it_goes(&self.core, patience, &sent, heard, tls.write(&all)).await
            }
        };
        match written.map_err(|_| silent(&self.host, patience))? {
            Ok(()) => self.head(ask.method == "HEAD").await,
            // Who refuses a request may do so before all of it has come: what it says is worth more than that it left.
            Err(error) => {
                self.is_torn = true;
                self.head(ask.method == "HEAD").await.map_err(|_| error)
            }
        }
    }

    /// Whether another request may be sent once the body of this answer is taken.
    pub fn keeps_alive(&self, answer: &Answer) -> bool {
        answer.keeps_alive() && !self.is_torn
    }

    async fn head(&mut self, to_head: bool) -> Result<Answer> {
        loop {
            let parsed = Answer::parse(self.pending(), to_head).map_err(|bad| self.protocol(&bad.to_string()))?;
            match parsed {
                Some((answer, used)) => {
                    self.consume(used);
                    if !answer.is_interim() {
                        return Ok(answer);
                    }
                }
                None => self.more().await?,
            }
        }
    }

    /// How long the body of an answer is.
    ///
    /// # Errors
    /// It does not say so.
    pub fn length(&self, answer: &Answer) -> Result<u64> {
        match answer.framing() {
            AnswerFraming::None => Ok(0),
            AnswerFraming::Length(length) => Ok(length),
            AnswerFraming::Chunked | AnswerFraming::Close => Err(self.protocol("a body whose length it does not say")),
        }
    }

    /// Takes the whole body of an answer.
    ///
    /// # Errors
    /// The connection failed; the body is too long, or of a length that is not told.
    pub async fn take(&mut self, answer: &Answer) -> Result<Vec<u8>> {
        let length = match self.length(answer)? {
            length @ ..=BODY_MAX => length as usize,
            length => return Err(self.protocol(&format!("a body of {length} bytes"))),
        };
        while self.pending().len() < length {
            self.more().await?;
        }
        let body = self.pending()[..length].to_vec();
        self.consume(length);
        Ok(body)
    }

    /// Receives up to `most` bytes of an answer's body into a run's view from `at` on: one at least.
    ///
    /// # Errors
    /// The connection failed or ended.
    pub async fn receive(&mut self, run: &mut Run, at: u32, most: u32, ledger: &Ledger) -> Result<u32> {
        let count = match &mut self.way {
            Way::Plain(tcp) => self.core.timeout(self.patience, tcp.receive(run, at, most, ledger)).await,
            Way::Tls(tls) => self.core.timeout(self.patience, tls.receive(run, at, most)).await,
        };
        match count.map_err(|_| silent(&self.host, self.patience))?? {
            0 => Err(self.protocol("nothing more in the middle of an answer")),
            count => Ok(count),
        }
    }

    fn pending(&self) -> &[u8] {
        match &self.way {
            Way::Plain(tcp) => tcp.pending(),
            Way::Tls(tls) => tls.pending(),
        }
    }

    fn consume(&mut self, count: usize) {
        match &mut self.way {
            Way::Plain(tcp) => tcp.consume(count),
            Way::Tls(tls) => tls.consume(count),
        }
    }

    async fn more(&mut self) -> Result<()> {
        let (patience, heard) = (self.patience, &mut self.heard);
        let more = match &mut self.way {
            Way::Plain(tcp) => {
                let sent = tcp.sent();
                while_it_goes(&self.core, patience, &sent, heard, tcp.more()).await
            }
            Way::Tls(tls) => {
                let sent = tls.tcp().sent();
                while_it_goes(&self.core, patience, &sent, heard, tls.more()).await
            }
        };
        match more.map_err(|_| silent(&self.host, patience))?? {
            0 => Err(self.protocol("nothing more in the middle of an answer")),
            _ => Ok(()),
        }
    }

    fn protocol(&self, what: &str) -> Error {
        Error::new(ErrorKind::Protocol, format!("the S3 server {} sent {what}", self.host))
    }
}

/// That a server which is there, or may be, says nothing.
fn silent(host: &str, patience: Nanos) -> Error {
    let what = format!("the S3 server {host} has not answered for {} seconds", patience.as_secs_f64());
    Error::from_errno(what, libc::ETIMEDOUT).remedy("look whether it is alive, whether S3 is spoken there, and what is in between")
}

/// Looks for whether what was sent arrives, in the time that silence may last.
const LOOKS: u32 = 8;

/// Waits as long as what was sent goes on to arrive, and so long in silence. `heard` is what had arrived.
async fn while_it_goes<T>(
    core: &Core,
    patience: Nanos,
    sent: &Sent,
    heard: &mut u64,
    doing: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let mut doing = pin!(doing);
    let mut left = LOOKS;
    loop {
        match core.timeout(Nanos(patience.0.div_ceil(LOOKS.into())), doing.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(elapsed) => match sent.arrived() {
                arrived if arrived > *heard => (*heard, left) = (arrived, LOOKS),
                _ if left > 1 => left -= 1,
                _ => return Err(elapsed),
            },
        }
    }
}
