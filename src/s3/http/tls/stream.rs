//! The bytes of a connection behind TLS.
//!
//! rustls is told what has come, and says what is to be done: it has plaintext, wants something sent, or can go no further without more.
//! Nothing of it waits; the waiting is all here.

use std::net::SocketAddr;
use std::rc::Rc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic};
use rustls::{CertificateError, ProtocolVersion};

use super::end::End;
use super::inbox::{Inbox, Wanted, no_memory};
use super::{PASSES, Tls};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::socket::TcpStream;
use crate::mem::Run;
use crate::reactor::Core;
use crate::s3::rdma::transfer::lease;

/// Bytes of ciphertext that are sent at once: few enough that they are still in the cache.
const SEALED: usize = 64 << 10;
/// Bytes of plaintext that are encrypted at once: what of them fits into [`SEALED`] with what each record has around it, at most 29 bytes
/// (RFC 5288, section 3, and RFC 8446, section 5.2), and with an update of keys in front.
const PLAIN_AT_ONCE: usize = SEALED - SLACK;
const SLACK: usize = 512;
/// The longest record, without what is around it.
const RECORD: usize = 16 << 10;
const _: () = assert!(PLAIN_AT_ONCE.div_ceil(RECORD) * 29 < SLACK / 2);

/// What is still taken of what a peer sends that has no handshake, and for how long.
const DRAINED: usize = 256 << 10;
const LINGER: Nanos = Nanos::from_secs(2);

/// What somebody who speaks HTTP here is told, and all others who do not speak TLS are not.
const NOT_HERE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 57\r\n\r\n\
    This port is for HTTPS: ask for https:// and not http://\n";

/// A connection: its server's end, or its client's.
pub struct TlsStream<E: End = UnbufferedServerConnection> {
    core: Core,
    tls: Rc<Tls<E::Who>>,
    tcp: TcpStream,
    rustls: E,
    inbox: Inbox,
    /// Plaintext that came and was not asked for yet, from `taken` on.
    plain: Vec<u8>,
    taken: usize,
    /// What rustls wants sent by itself: a handshake's messages, tickets, alerts.
    outbox: Vec<u8>,
    /// The peer has said that nothing more comes.
    has_ended: bool,
    /// Something was being written when the writing ended: what follows would make no sense.
    is_torn: bool,
    /// We have said that nothing more comes, or there is nobody to say it to.
    is_closed: bool,
    /// The peer has broken the protocol.
    is_broken: bool,
}

/// What rustls had to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// So many bytes of plaintext.
    Plain(usize),
    /// Something that is in the outbox now.
    Speaks,
    /// It needs more of what the peer sends.
    Waits,
    /// The handshake is far enough that plaintext can be sent.
    Ready,
    /// The peer has ended.
    Ended,
}

impl TlsStream {
    /// A server's end, which says nothing until its handshake is made.
    ///
    /// # Errors
    /// The configuration allows no connection.
    pub fn new(core: &Core, tls: &Rc<Tls>, tcp: TcpStream) -> Result<TlsStream> {
        let rustls = UnbufferedServerConnection::new(tls.identity.serving());
        let rustls = rustls.map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: {error}")))?;
        Ok(TlsStream::of(core, tls, tcp, rustls))
    }
}

impl<E: End> TlsStream<E> {
    /// An end of which nothing was said yet.
    pub(super) fn of(core: &Core, tls: &Rc<Tls<E::Who>>, tcp: TcpStream, rustls: E) -> TlsStream<E> {
        TlsStream {
            core: core.clone(),
            tls: tls.clone(),
            tcp,
            rustls,
            inbox: Inbox::default(),
            plain: Vec::new(),
            taken: 0,
            outbox: Vec::new(),
            has_ended: false,
            is_torn: false,
            is_closed: false,
            is_broken: false,
        }
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.tcp.peer_addr()
    }

    /// Over which TLS, as policies name it.
    pub fn version(&self) -> Option<&'static str> {
        match self.rustls.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => Some("1.3"),
            Some(ProtocolVersion::TLSv1_2) => Some("1.2"),
            _ => None,
        }
    }

    /// The connection below: what comes there is ciphertext.
    pub fn tcp(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// Makes the handshake, and counts how it went. Who goes without a word has not begun one.
    ///
    /// # Errors
    /// The peer speaks no TLS, or none that we do; it went, or the connection failed. It has been told what is wrong.
    pub async fn handshake(&mut self) -> Result<()> {
        let made = self.make_handshake().await;
        match &made {
            Ok(true) => self.tls.counters.handshakes.add(1),
            Ok(false) => {}
            Err(_) => self.tls.counters.failed_handshakes.add(1),
        }
        made.map(drop)
    }

    /// Counts a handshake that took too long.
    pub fn count_late(&self) {
        self.tls.counters.failed_handshakes.add(1);
    }

    /// Whether a handshake was made; not if the peer went without a word.
    async fn make_handshake(&mut self) -> Result<bool> {
        let mut received = 0;
        loop {
            let step = match self.step(None) {
                Ok((step, _)) => step,
                Err(error) => {
                    // What is wrong is in it.
                    let _ = self.flush().await;
                    self.drain().await;
                    return Err(error);
                }
            };
            match step {
                Step::Ready if !self.rustls.is_handshaking() => {
                    self.flush().await?;
                    return Ok(true);
                }
                Step::Plain(_) | Step::Speaks => {}
                Step::Ended if self.rustls.is_handshaking() => return Err(self.cut("before the handshake was made")),
                // Who only wanted to see whether there is a server.
                Step::Ended => self.has_ended = true,
                Step::Waits | Step::Ready => {
                    self.flush().await?;
                    let count = self.inbox.fill(&mut self.tcp, &self.core, &self.tls, Wanted::Handshake).await?;
                    match (count, received) {
                        (0, 0) => {
                            self.is_closed = true;
                            return Ok(false);
                        }
                        (0, _) => return Err(self.cut("in the handshake")),
                        // A method of HTTP; a record of a handshake begins with 22.
                        (_, 0) if E::IS_SERVER && self.inbox.bytes()[0].is_ascii_uppercase() => {
                            self.is_closed = true;
                            self.tcp.write_all(NOT_HERE).await?;
                            self.drain().await;
                            return Err(Error::new(ErrorKind::Protocol, format!("{} speaks HTTP where HTTPS is", self.tcp.peer_addr())));
                        }
                        _ => received += count,
                    }
                }
            }
        }
    }

    /// Says that nothing more is written, and takes a little of what still comes: the kernel would take back what was said.
    async fn drain(&mut self) {
        let _ = self.tcp.finish();
        let tcp = &mut self.tcp;
        let taking = async {
            let mut taken = 0;
            while taken < DRAINED {
                tcp.consume(tcp.pending().len());
                match tcp.more().await {
                    Ok(count @ 1..) => taken += count,
                    _ => return,
                }
            }
        };
        let _ = self.core.timeout(LINGER, taking).await;
    }

    /// What has come and was not taken.
    pub fn pending(&self) -> &[u8] {
        &self.plain[self.taken..]
    }

    /// Takes the first bytes of what has come.
    ///
    /// # Panics
    /// With more than there are.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.pending().len(), "more is taken than has come");
        self.taken += count;
        if self.taken == self.plain.len() {
            // A connection that waits for its peer has no memory.
            (self.plain, self.taken) = (Vec::new(), 0);
        }
    }

    /// Waits for more, adds it to [`TlsStream::pending`], and says how many bytes: none once the peer has said that it is the end. May be
    /// dropped half-way.
    ///
    /// # Errors
    /// The connection failed, or was cut off before that was said.
    pub async fn more(&mut self) -> Result<usize> {
        loop {
            match self.next(None, Wanted::Little).await? {
                Some((count, _)) => return Ok(count),
                None if self.has_ended => return Ok(0),
                None => {}
            }
        }
    }

    /// Receives up to `most` bytes into a run's view from `at` on; none at the end. May be dropped half-way.
    ///
    /// # Errors
    /// As for [`TlsStream::more`].
    ///
    /// # Panics
    /// When the view ends before `at` and `most`.
    pub async fn receive(&mut self, run: &mut Run, at: u32, most: u32) -> Result<u32> {
        let room = &mut run.as_mut_slice()[at as usize..(at + most) as usize];
        if !self.pending().is_empty() {
            let count = room.len().min(self.pending().len());
            self.tls.ledger.copy(&mut room[..count], &self.pending()[..count]);
            self.consume(count);
            return Ok(count as u32);
        }
        let wanted = if room.len() > RECORD { Wanted::Much } else { Wanted::Little };
        loop {
            match self.next(Some(&mut *room), wanted).await? {
                Some((_, count)) => return Ok(count as u32),
                None if self.has_ended => return Ok(0),
                None => {}
            }
        }
    }

    /// The next record: its bytes, and how many of them went into `room`, where there is one; the others are pending. Nothing where
    /// something else was said.
    async fn next(&mut self, room: Option<&mut [u8]>, wanted: Wanted) -> Result<Option<(usize, usize)>> {
        if self.has_ended {
            return Ok(None);
        }
        let step = self.step(room);
        if step.is_err() {
            // The peer is told what is wrong; that it is told matters less than that it is wrong.
            let _ = self.flush().await;
        }
        match step? {
            (Step::Plain(count), placed) => {
                self.tls.counters.tls_copied.set(self.tls.ledger.copied_bytes());
                Ok(Some((count, placed)))
            }
            (Step::Ended, _) => {
                self.has_ended = true;
                Ok(None)
            }
            (Step::Speaks, _) => Ok(None),
            (Step::Waits | Step::Ready, _) => {
                self.flush().await?;
                match self.inbox.fill(&mut self.tcp, &self.core, &self.tls, wanted).await? {
                    0 => Err(self.cut("without saying that it is the end")),
                    _ => Ok(None),
                }
            }
        }
    }

    /// One step with what has come. Plaintext goes into `room` as far as that reaches, and how much is told beside the step.
    fn step(&mut self, mut room: Option<&mut [u8]>) -> Result<(Step, usize)> {
        if self.is_broken {
            return Err(Error::new(ErrorKind::Protocol, format!("{} has broken TLS", self.tcp.peer_addr())));
        }
        let UnbufferedStatus { mut discard, state } = self.rustls.process(self.inbox.bytes());
        let mut placed = 0;
        let step = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut count = 0;
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(broken)?;
                    discard += record.discard;
                    let bytes = record.payload;
                    (0..PASSES.0).for_each(|_| self.tls.ledger.note(bytes.len() as u32));
                    let here = room.as_ref().map_or(0, |room| (room.len() - placed).min(bytes.len()));
                    if let Some(room) = &mut room {
                        self.tls.ledger.copy(&mut room[placed..placed + here], &bytes[..here]);
                    }
                    placed += here;
                    self.tls.ledger.note((bytes.len() - here) as u32);
                    self.plain.extend_from_slice(&bytes[here..]);
                    count += bytes.len();
                }
                Ok(Step::Plain(count))
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut self.outbox, |room| data.encode(room)).map(|()| Step::Speaks),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is sent before anything is waited for.
                data.done();
                Ok(Step::Speaks)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Step::Waits),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Ready),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ended),
            // There is no early data: none is allowed.
            Ok(other) => Err(Error::new(ErrorKind::Failed, format!("TLS: {other:?} is not expected"))),
            Err(error) => Err(broken(error)),
        };
        self.inbox.consume(discard);
        if step.is_err() {
            self.complain();
        }
        step.map(|step| (step, placed))
    }

    /// Puts what rustls has to say to the peer of an error into the outbox. It is asked for no more than that: it would look at what was
    /// wrong a second time, and complain of it again, which it takes for a bug of its own.
    fn complain(&mut self) {
        (self.is_broken, self.is_closed) = (true, true);
        while self.rustls.wants_write() {
            let UnbufferedStatus { discard, state } = self.rustls.process(self.inbox.bytes());
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
            if encode(&mut self.outbox, |room| data.encode(room)).is_err() {
                return;
            }
            self.inbox.consume(discard);
        }
    }

    /// Sends what rustls wanted sent.
    async fn flush(&mut self) -> Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let outbox = std::mem::take(&mut self.outbox);
        self.is_torn = true;
        self.tcp.write_all(&outbox).await?;
        self.is_torn = false;
        Ok(())
    }

    /// Writes all pieces. A write that is dropped half-way ends the connection.
    ///
    /// # Errors
    /// The connection is gone; there is no memory; or one of both ends has said that nothing more comes.
    pub async fn write(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
        if left == 0 {
            return Ok(());
        }
        // Each piece may end a record.
        let size = left.min(PLAIN_AT_ONCE) + SLACK;
        let mut run = lease(&self.core, &self.tls.slab, size as u32).await.map_err(|_| no_memory())?;
        let mut at = (0, 0);
        while left > 0 {
            self.until_ready()?;
            self.flush().await?;
            let (plain, sealed) = self.with_traffic(|traffic| seal(traffic, pieces, &mut at, run.as_mut_slice()))?;
            (0..PASSES.1).for_each(|_| self.tls.ledger.note(plain as u32));
            left -= plain;
            self.is_torn = true;
            self.tcp.write_all(&run.as_slice()[..sealed]).await?;
            self.is_torn = false;
        }
        self.tls.counters.tls_copied.set(self.tls.ledger.copied_bytes());
        Ok(())
    }

    /// Goes on with what has come until plaintext can be sent. What the peer sent before it has its answer is kept.
    fn until_ready(&mut self) -> Result<()> {
        loop {
            match self.step(None)?.0 {
                Step::Ready => return Ok(()),
                Step::Plain(_) | Step::Speaks => {}
                // It may still listen.
                Step::Ended if !self.has_ended => self.has_ended = true,
                Step::Waits | Step::Ended => return Err(Error::new(ErrorKind::Failed, "TLS: nothing can be sent any more")),
            }
        }
    }

    /// Says that nothing more comes. Nobody waits for it to arrive.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.is_closed, true) || self.is_torn || self.rustls.is_handshaking() {
            return;
        }
        let mut alert = [0; SLACK];
        let closing = |traffic: &mut WriteTraffic<'_, E::Data>| {
            traffic.queue_close_notify(&mut alert).map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: {error}")))
        };
        if self.until_ready().is_ok()
            && let Ok(count) = self.with_traffic(closing)
        {
            self.tcp.write_at_once(&alert[..count]);
        }
    }

    /// Does what can be done once plaintext can be sent. rustls is always shown all that has come, for it knows places in it.
    fn with_traffic<T>(&mut self, act: impl FnOnce(&mut WriteTraffic<'_, E::Data>) -> Result<T>) -> Result<T> {
        let UnbufferedStatus { discard, state } = self.rustls.process(self.inbox.bytes());
        let done = match state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => act(&mut traffic),
            _ => Err(Error::new(ErrorKind::Failed, "TLS: nothing can be sent")),
        };
        self.inbox.consume(discard);
        done
    }

    fn cut(&self, when: &str) -> Error {
        Error::new(ErrorKind::Protocol, format!("{} closed the connection {when}", self.tcp.peer_addr()))
    }
}

impl<E: End> Drop for TlsStream<E> {
    fn drop(&mut self) {
        // After a panic nothing is known of where it stands.
        if !std::thread::panicking() {
            self.close();
        }
    }
}

/// Encrypts as much of the pieces from `at` on as there is room for. How many bytes of them, and how many came of it.
fn seal<D>(traffic: &mut WriteTraffic<'_, D>, pieces: &[&[u8]], at: &mut (usize, usize), room: &mut [u8]) -> Result<(usize, usize)> {
    let (mut plain, mut sealed) = (0, 0);
    while let Some(piece) = pieces.get(at.0) {
        let rest = &piece[at.1..];
        let fits = (room.len() - sealed).saturating_sub(SLACK / 2);
        let now = &rest[..rest.len().min(fits)];
        if now.is_empty() && !rest.is_empty() {
            break;
        }
        sealed += traffic.encrypt(now, &mut room[sealed..]).map_err(|error| match error {
            EncryptError::EncryptExhausted => Error::new(ErrorKind::Failed, "TLS: a key was used as often as it may be"),
            EncryptError::InsufficientSize(size) => panic!("{size:?} for {} bytes: what is around records is counted wrong", now.len()),
        })?;
        plain += now.len();
        at.1 += now.len();
        if at.1 == piece.len() {
            *at = (at.0 + 1, 0);
        }
    }
    Ok((plain, sealed))
}

/// Adds to the outbox what is encoded into as much room as it turns out to need.
fn encode(outbox: &mut Vec<u8>, mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) -> Result<()> {
    let have = outbox.len();
    let needed = match encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Ok(_) => return Ok(()),
        Err(error) => return Err(Error::new(ErrorKind::Failed, format!("TLS: {error}"))),
    };
    outbox.resize(have + needed, 0);
    let written = encode(&mut outbox[have..]).map_err(|error| Error::new(ErrorKind::Failed, format!("TLS: {error}")))?;
    outbox.truncate(have + written);
    Ok(())
}

fn broken(error: rustls::Error) -> Error {
    let told = Error::new(ErrorKind::Protocol, format!("TLS: {error}"));
    // It is the other end's that a client does not believe.
    let wrong = match &error {
        rustls::Error::InvalidCertificate(wrong) => wrong,
        rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            return told.remedy("see whether it is a port for HTTPS: of HTTP ask for http://");
        }
        _ => return told,
    };
    told.remedy(match wrong {
        CertificateError::UnknownIssuer => {
            "believe who has issued it: --ca FILE, or SSL_CERT_FILE; or the server leaves out a certificate between that one and its own"
        }
        // Of the name alone an issuer was found.
        CertificateError::BadSignature => {
            "believe the issuer it has now, of the same name and with another key: --ca FILE, or SSL_CERT_FILE"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the server needs a new one; or set this machine's clock",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => "name the server as its certificate does",
        // What webpki says, which rustls has no name for.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server needs one that is not an issuer's: openssl req -x509 … -addext basicConstraints=critical,CA:FALSE"
        }
        _ => "the server needs another one",
    })
}
