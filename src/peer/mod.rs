//! `basin rdma-peer`: the other end of stock RDMA test programs, on the soft HCA or on a device of the kernel.
//!
//! | file | the program at the other end |
//! | --- | --- |
//! | `pingpong` | `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` |
//! | `rping` | `rping` |
//! | `perftest` | `ib_write_bw`, `ib_read_bw`, `ib_send_bw`, `ib_atomic_bw` |
//!
//! Each in both roles: without a host it is the server. The programs meet over TCP, or by rdma_cm, as the stock ones do; then bytes go
//! over RoCEv2 at its own port, 4791. Whatever the other program sends is judged: a wrong byte, or one that never came, is an error.

mod perftest;
mod pingpong;
mod rping;
mod station;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Serialize;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, limits};
use crate::device::rdma::{RdmaName, Transport};
use crate::device::socket::{TcpListener, TcpStream};
use crate::flow::crew::{Either, either};
use crate::reactor::{Core, CoreConfig, PollMode, launch};

pub use perftest::Operation;
use station::Station;

/// How long the other program may keep this one waiting for its next step. A guest under emulation takes seconds.
const PATIENCE: Nanos = Nanos::from_secs(60);

/// What to be the other end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ibv_rc_pingpong` and its kin.
    Pingpong(Transport),
    /// `ib_write_bw` and its kin.
    Perftest(Operation),
    /// `rping`.
    Rping,
}

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network interface.
    pub interface: String,
    /// `soft:udp`, `soft:xdp` or a device of the kernel.
    pub rdma: RdmaName,
    /// One of the interface's addresses; its first if not given, or the one nearest to the host's.
    pub address: Option<IpAddr>,
    /// The stock server's address; without it this end is the server.
    pub host: Option<IpAddr>,
    /// The TCP port of the exchange, or the `rdma_cm` port.
    pub port: u16,
    /// The program.
    pub program: Program,
    /// Bytes of a message, as told to the other program.
    pub size_bytes: u32,
    /// Messages, as told to the other program.
    pub iterations: u32,
    /// The path MTU in bytes, below the wire's largest.
    pub path_mtu: Option<u32>,
    /// A server ends after its first client.
    pub once: bool,
    /// What the core does when nothing has completed. The stock programs look without a pause.
    pub poll: PollMode,
    /// What was moved is said as one JSON object.
    pub json: bool,
}

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// Runs until it is done, or interrupted. `say` is given lines for the user.
///
/// # Errors
/// The device cannot be opened; the other program cannot be reached, breaks the exchange, or sent wrong bytes.
pub fn run(options: &Options, say: fn(&str)) -> Result<()> {
    if options.size_bytes == 0 || options.size_bytes > limits::IO_MAX_BYTES || options.iterations == 0 {
        let what = format!("{} messages of {} bytes", options.iterations, options.size_bytes);
        return Err(Error::new(ErrorKind::Usage, what).remedy(format!("at least one, of 1 to {} bytes", limits::IO_MAX_BYTES)));
    }
    let main = |_, core: Core, _| {
        let options = options.clone();
        async move { work(&core, &options, say).await }
    };
    launch::<(), _, _, _>(vec![CoreConfig { poll: options.poll, ..CoreConfig::default() }], main)?.into_iter().collect()
}

async fn work(core: &Core, options: &Options, say: fn(&str)) -> Result<()> {
    let station = Station::open(core, options)?;
    say(&format!("rdma     {} at {}", station.hca.caps().name, station.address()));
    if options.program == Program::Rping {
        return rping(&station, options, say).await;
    }
    if let Some(host) = options.host {
        let connected = core.timeout(PATIENCE, TcpStream::connect(core.uring(), SocketAddr::new(host, options.port))).await;
        let stream = connected.map_err(|_| silent(&host))??;
        return session(&station, stream, Role::Client, options, say).await;
    }
    let listener = listen(core, options.port)?;
    say(&format!("waiting  on TCP port {}", listener.local_addr().port()));
    loop {
        let Either::Left(accepted) = either(listener.accept(), core.stopping()).await else { return Ok(()) };
        let served = session(&station, accepted?, Role::Server, options, say).await;
        match served {
            Err(error) if !options.once => say(&format!("failed   {error}")),
            served if options.once => return served,
            _ => {}
        }
    }
}

async fn rping(station: &Station, options: &Options, say: fn(&str)) -> Result<()> {
    if let Some(host) = options.host {
        let done = rping::call(station, SocketAddr::new(host, options.port), options).await?;
        say(&done.line(host, options.json));
        return Ok(());
    }
    let listener = station.hca.listen(options.port)?;
    say(&format!("waiting  on rdma_cm port {}", options.port));
    loop {
        let served = rping::serve(station, &listener, options);
        let Either::Left(served) = either(served, station.core.stopping()).await else { return Ok(()) };
        match served {
            Ok((peer, done)) => say(&done.line(peer, options.json)),
            Err(error) if options.once => return Err(error),
            Err(error) => say(&format!("failed   {error}")),
        }
        if options.once {
            return Ok(());
        }
    }
}

/// On every address, of both families where the kernel has both.
fn listen(core: &Core, port: u16) -> Result<TcpListener> {
    let at = |address: IpAddr| TcpListener::bind(core.uring(), SocketAddr::new(address, port));
    at(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.errno() {
        Some(libc::EAFNOSUPPORT) => at(Ipv4Addr::UNSPECIFIED.into()),
        _ => Err(error),
    })
}

async fn session(station: &Station, mut stream: TcpStream, role: Role, options: &Options, say: fn(&str)) -> Result<()> {
    let peer = stream.peer_addr();
    let work = async {
        match options.program {
            Program::Pingpong(transport) => pingpong::run(station, &mut stream, role, transport, options).await,
            Program::Rping => unreachable!("it does not meet over TCP"),
            Program::Perftest(operation) => perftest::run(station, &mut stream, role, operation, options).await,
        }
    };
    let Either::Left(done) = either(work, station.core.stopping()).await else {
        return Err(Error::new(ErrorKind::Failed, format!("interrupted while {peer} was served")));
    };
    say(&done?.line(peer, options.json));
    Ok(())
}

fn silent(who: &impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Failed, format!("{who} did nothing for {} s", PATIENCE.as_secs_f64()))
        .remedy("check that the same program with the same options runs there, and that UDP port 4791 is not filtered")
}

/// What was moved.
#[derive(Serialize)]
struct Summary {
    what: String,
    messages: u64,
    bytes: u64,
    seconds: f64,
    mib_per_s: f64,
    messages_per_s: f64,
}

impl Summary {
    fn new(what: String, messages: u64, bytes: u64, span: Nanos) -> Summary {
        let seconds = span.as_secs_f64().max(1e-9);
        let (mib_per_s, messages_per_s) = (bytes as f64 / seconds / f64::from(1 << 20), messages as f64 / seconds);
        Summary { what, messages, bytes, seconds, mib_per_s, messages_per_s }
    }

    /// The line for the user, about this peer.
    fn line(&self, peer: impl fmt::Display, json: bool) -> String {
        let Summary { what, messages, bytes, mib_per_s, messages_per_s, .. } = self;
        if json {
            return serde_json::to_string(self).expect("numbers and text");
        }
        format!("done     {peer}: {what}, {messages} messages, {bytes} bytes, {mib_per_s:.2} MiB/s, {messages_per_s:.0} messages/s")
    }
}
