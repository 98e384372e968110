//! The bytes of a connection, and how long it may take over them.

use std::net::SocketAddr;

use crate::base::{Error, Nanos, Result};
use crate::device::socket::TcpStream;
use crate::mem::{Ledger, Run};
use crate::reactor::Core;

/// How long a peer may take to send or take more of a message.
const PATIENCE: Nanos = Nanos::from_secs(30);

/// How long what a peer still sends is read once it has its answer.
const LINGER: Nanos = Nanos::from_secs(2);

/// A connection.
pub struct Stream {
    core: Core,
    ledger: Ledger,
    tcp: TcpStream,
}

impl Stream {
    /// A connection without encryption.
    pub fn plain(core: &Core, ledger: &Ledger, tcp: TcpStream) -> Stream {
        Stream { core: core.clone(), ledger: ledger.clone(), tcp }
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.tcp.peer_addr()
    }

    /// Whether it is encrypted.
    pub fn is_secure(&self) -> bool {
        false
    }

    /// What has come and was not taken.
    pub fn pending(&self) -> &[u8] {
        self.tcp.pending()
    }

    /// Takes the first bytes of what has come.
    pub fn consume(&mut self, count: usize) {
        self.tcp.consume(count);
    }

    /// Waits for more, `patience` at most, and says how many bytes: none at the end.
    ///
    /// # Errors
    /// The connection failed, or the time was up (`ETIMEDOUT`).
    pub async fn more_within(&mut self, patience: Nanos) -> Result<usize> {
        self.core.timeout(patience, self.tcp.more()).await.map_err(Error::from)?
    }

    /// Waits for more of a message.
    ///
    /// # Errors
    /// The connection failed, or the peer took too long.
    pub async fn more(&mut self) -> Result<usize> {
        self.more_within(PATIENCE).await
    }

    /// Receives up to `most` bytes into a run's view from `at` on; none at the end.
    ///
    /// # Errors
    /// The connection failed, or the peer took too long.
    pub async fn receive(&mut self, run: &mut Run, at: u32, most: u32) -> Result<u32> {
        let receive = self.tcp.receive(run, at, most, &self.ledger);
        self.core.timeout(PATIENCE, receive).await.map_err(Error::from)?
    }

    /// Says that nothing more will be written, and reads what the peer had on its way, for a while: it is not to lose the answer.
    pub async fn linger(&mut self) {
        if self.tcp.finish().is_err() {
            return;
        }
        let until = self.core.now().saturating_add(LINGER);
        while self.core.now() < until {
            let pending = self.tcp.pending().len();
            self.tcp.consume(pending);
            if !matches!(self.more_within(until.since(self.core.now())).await, Ok(1..)) {
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
        self.core.timeout(PATIENCE, self.tcp.write_pieces(pieces)).await.map_err(Error::from)?
    }
}
