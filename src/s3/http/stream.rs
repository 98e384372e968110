//! The bytes of a connection, and how long it may take over them.

use std::net::SocketAddr;
use std::rc::Rc;

use super::tls::Tls;
use super::tls::stream::TlsStream;
use crate::base::{Error, Nanos, Result};
use crate::device::socket::TcpStream;
use crate::mem::{Ledger, Run, Slab};
use crate::reactor::Core;
use crate::s3::patience::Patience;

/// How long a peer may take to send more of a message, or take more of one.
const PATIENCE: Patience = Patience { usual: Nanos::from_secs(30), if_short: Nanos::from_secs(5) };

/// How long what a peer still sends is read once it has its answer.
const LINGER: Nanos = Nanos::from_secs(2);

/// A connection.
pub struct Stream {
    core: Core,
    ledger: Ledger,
    /// The memory that pieces of messages are in.
    slab: Slab,
    way: Way,
}

/// How its bytes go.
enum Way {
    Plain(TcpStream),
    // On the heap: what is kept of a connection that waits is small.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// A connection without encryption.
    pub fn plain(core: &Core, ledger: &Ledger, slab: &Slab, tcp: TcpStream) -> Stream {
        Stream { core: core.clone(), ledger: ledger.clone(), slab: slab.clone(), way: Way::Plain(tcp) }
    }

    /// A connection behind TLS, of which nothing can be read or written before [`Stream::begin`].
    ///
    /// # Errors
    /// TLS cannot be had.
    pub fn tls(core: &Core, ledger: &Ledger, slab: &Slab, tls: &Rc<Tls>, tcp: TcpStream) -> Result<Stream> {
        let way = Way::Tls(Box::new(TlsStream::new(core, tls, tcp)?));
        Ok(Stream { core: core.clone(), ledger: ledger.clone(), slab: slab.clone(), way })
    }

    /// Makes what has to be made before the first byte: a handshake, in `patience` at most.
    ///
    /// # Errors
    /// There was none, or the peer took too long.
    pub async fn begin(&mut self, patience: Nanos) -> Result<()> {
        let Way::Tls(tls) = &mut self.way else { return Ok(()) };
        match self.core.timeout(patience, tls.handshake()).await {
            Ok(made) => made,
            Err(late) => {
                tls.count_late();
                Err(late.into())
            }
        }
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        match &self.way {
            Way::Plain(tcp) => tcp.peer_addr(),
            Way::Tls(tls) => tls.peer(),
        }
    }

    /// Over which TLS, if it is encrypted: `1.2`, `1.3`.
    pub fn tls_version(&self) -> Option<&'static str> {
        match &self.way {
            Way::Plain(_) => None,
            Way::Tls(tls) => tls.version(),
        }
    }

    /// What has come and was not taken.
    pub fn pending(&self) -> &[u8] {
        match &self.way {
            Way::Plain(tcp) => tcp.pending(),
            Way::Tls(tls) => tls.pending(),
        }
    }

    /// Takes the first bytes of what has come.
    pub fn consume(&mut self, count: usize) {
        match &mut self.way {
            Way::Plain(tcp) => tcp.consume(count),
            Way::Tls(tls) => tls.consume(count),
        }
    }

    /// Waits for more, `patience` at most, and says how many bytes: none at the end.
    ///
    /// # Errors
    /// The connection failed, or the time was up (`ETIMEDOUT`).
    pub async fn more_within(&mut self, patience: Nanos) -> Result<usize> {
        match &mut self.way {
            Way::Plain(tcp) => self.core.timeout(patience, tcp.more()).await,
            Way::Tls(tls) => self.core.timeout(patience, tls.more()).await,
        }
        .map_err(Error::from)?
    }

    /// Waits for more of a message.
    ///
    /// # Errors
    /// The connection failed, or the peer took too long.
    pub async fn more(&mut self) -> Result<usize> {
        self.more_within(PATIENCE.usual).await
    }

    /// Receives up to `most` bytes into a run's view from `at` on; none at the end.
    ///
    /// # Errors
    /// The connection failed, or the peer took longer than `patience` (`ETIMEDOUT`): nothing is lost then, and it may be tried again.
    pub async fn receive(&mut self, patience: Nanos, run: &mut Run, at: u32, most: u32) -> Result<u32> {
        match &mut self.way {
            Way::Plain(tcp) => self.core.timeout(patience, tcp.receive(run, at, most, &self.ledger)).await,
            Way::Tls(tls) => self.core.timeout(patience, tls.receive(run, at, most)).await,
        }
        .map_err(Error::from)?
    }

    /// Says that nothing more will be written, and reads what the peer had on its way, for a while: it is not to lose the answer.
    pub async fn linger(&mut self) {
        let tcp = match &mut self.way {
            Way::Plain(tcp) => tcp,
            Way::Tls(tls) => {
                tls.close();
                // It is thrown away without being decrypted.
                tls.tcp()
            }
        };
        if tcp.finish().is_err() {
            return;
        }
        let until = self.core.now().saturating_add(LINGER);
        while self.core.now() < until {
            let pending = tcp.pending().len();
            tcp.consume(pending);
            if !matches!(self.core.timeout(until.since(self.core.now()), tcp.more()).await, Ok(Ok(1..))) {
                return;
            }
        }
    }

    /// Writes all pieces.
    ///
    /// # Errors
    /// The connection is gone, or the peer took nothing for too long.
    pub async fn write(&mut self, pieces: &[&[u8]]) -> Result<()> {
        // A mebibyte in this time is slower than any link that is of use.
        match &mut self.way {
            Way::Plain(tcp) => PATIENCE.wait(&self.core, &self.slab, tcp.write_pieces(pieces)).await?,
            Way::Tls(tls) => PATIENCE.wait(&self.core, &self.slab, tls.write(pieces)).await?,
        }
    }
}
