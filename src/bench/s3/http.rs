//! A client over HTTP: a connection.

use std::rc::Rc;

use super::{DOCUMENT_MAX, Load, PATIENCE, shown_error};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::socket::TcpStream;
use crate::mem::{Ledger, Run, Slab};
use crate::s3::rdma::connect::REPLY;
use crate::wire::http::answer::{Answer, AnswerFraming};

/// Bytes received at once.
pub const RECEIVE_BYTES: u32 = 256 << 10;

/// A connection, and memory to receive in.
pub struct Client {
    load: Rc<Load>,
    tcp: TcpStream,
    run: Run,
    ledger: Ledger,
}

impl Client {
    /// Connects.
    pub async fn connect(load: &Rc<Load>, slab: &Slab) -> Result<Client> {
        Ok(Client { load: load.clone(), tcp: connected(load).await?, run: slab.run(RECEIVE_BYTES)?, ledger: Ledger::new() })
    }

    /// Connects anew: what the server still has to say would be taken for the next answer.
    pub async fn again(&mut self) -> Result<()> {
        self.tcp = connected(&self.load).await?;
        Ok(())
    }

    /// Makes the bucket; one that is there is as good.
    pub async fn make_bucket(&mut self) -> Result<()> {
        let load = self.load.clone();
        let fields: Vec<(&str, &str)> = load.options.etag.iter().map(|etag| ("x-basin-etag", etag.as_str())).collect();
        let head = load.head("PUT", &format!("/{}", load.options.bucket), &fields, Some(0));
        let core = load.core.clone();
        let making = async {
            let (answer, length) = self.answer_to(&head, &[]).await?;
            match answer.status() {
                200 | 409 => self.receive(length, None).await,
                status => Err(self.refused(status, length).await),
            }
        };
        core.timeout(PATIENCE, making).await.map_err(Error::from)?
    }

    /// Puts an object.
    pub async fn put(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        self.exchange(&load.head_of(true, number), load.bytes(number), None).await
    }

    /// Gets an object, which must be as it was put.
    pub async fn get(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        self.exchange(&load.head_of(false, number), &[], Some(load.bytes(number))).await
    }

    /// Sends a request and takes its answer, whose body is to be `wanted`, or of no interest.
    async fn exchange(&mut self, head: &[u8], body: &[u8], wanted: Option<&[u8]>) -> Result<()> {
        let core = self.load.core.clone();
        core.timeout(PATIENCE, self.exchange_in_time(head, body, wanted)).await.map_err(Error::from)?
    }

    async fn exchange_in_time(&mut self, head: &[u8], body: &[u8], wanted: Option<&[u8]>) -> Result<()> {
        let (answer, length) = self.answer_to(head, body).await?;
        if answer.status() != 200 {
            return Err(self.refused(answer.status(), length).await);
        }
        if let Some(wanted) = wanted
            && length != wanted.len() as u64
        {
            return Err(self.wrong(format!("{length} bytes instead of {}", wanted.len())));
        }
        self.receive(length, wanted.filter(|_| self.load.options.check)).await
    }

    /// Sends a request whose body, or that of its answer, goes by RDMA.
    pub async fn exchange_by_token(&mut self, head: &[u8]) -> Result<()> {
        let core = self.load.core.clone();
        let exchange = async {
            let (answer, length) = self.answer_to(head, &[]).await?;
            match (answer.status(), answer.text(REPLY)) {
                (200, Some("200")) | (206, Some("206")) if length == 0 => Ok(()),
                (200 | 206, reply) => {
                    let reply = reply.unwrap_or("nothing").to_owned();
                    self.receive(length, None).await?;
                    Err(self.wrong(format!("{length} bytes over HTTP, and said {reply} of RDMA")))
                }
                (status, _) => Err(self.refused(status, length).await),
            }
        };
        core.timeout(PATIENCE, exchange).await.map_err(Error::from)?
    }

    /// Sends a request; the head of the answer, and how long its body is.
    async fn answer_to(&mut self, head: &[u8], body: &[u8]) -> Result<(Answer, u64)> {
        self.tcp.write_pieces(&[head, body]).await?;
        let answer = loop {
            match Answer::parse(self.tcp.pending(), false).map_err(|bad| self.wrong(bad))? {
                Some((answer, used)) => {
                    self.tcp.consume(used);
                    if !answer.is_interim() {
                        break answer;
                    }
                }
                None if self.tcp.more().await? == 0 => return Err(self.wrong("the end in the middle of an answer")),
                None => {}
            }
        };
        match answer.framing() {
            AnswerFraming::None => Ok((answer, 0)),
            AnswerFraming::Length(length) => Ok((answer, length)),
            AnswerFraming::Chunked | AnswerFraming::Close => Err(self.wrong("a body whose length it does not say")),
        }
    }

    /// Receives a body, and compares it where that is wanted.
    async fn receive(&mut self, length: u64, wanted: Option<&[u8]>) -> Result<()> {
        let mut at = 0;
        while at < length {
            let most = (length - at).min(u64::from(RECEIVE_BYTES)) as u32;
            let count = self.tcp.receive(&mut self.run, 0, most, &self.ledger).await?;
            if count == 0 {
                return Err(self.wrong(format!("{at} of {length} bytes")));
            }
            let got = &self.run.as_slice()[..count as usize];
            if wanted.is_some_and(|wanted| wanted[at as usize..][..got.len()] != *got) {
                return Err(self.wrong(format!("other bytes than were put, from byte {at} on")));
            }
            at += u64::from(count);
        }
        Ok(())
    }

    /// What an answer with another status says.
    async fn refused(&mut self, status: u16, length: u64) -> Error {
        let length = length.min(DOCUMENT_MAX) as usize;
        while self.tcp.pending().len() < length && matches!(self.tcp.more().await, Ok(1..)) {}
        let length = length.min(self.tcp.pending().len());
        let document = String::from_utf8_lossy(&self.tcp.pending()[..length]).into_owned();
        self.tcp.consume(length);
        self.wrong(format!("status {status}: {}", shown_error(&document)))
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Protocol, format!("the S3 server {} sent {what}", self.load.address))
    }
}

async fn connected(load: &Load) -> Result<TcpStream> {
    load.core.timeout(PATIENCE, TcpStream::connect(load.core.uring(), load.address)).await.map_err(Error::from)?
}
