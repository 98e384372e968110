//! The bandwidth programs of perftest: the client moves messages of one size, the server lends its memory or receives.
//!
//! Every step of the TCP exchange is symmetric: the client writes its message and reads the server's of the same shape. The
//! figures the client measured go to the server in the end; a server says them, a client tells its own.

use std::cell::Cell;
use std::collections::VecDeque;

use super::station::Station;
use super::{Options, Role, Summary};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Psn, Qpn, Result, Rkey};
use crate::device::Op;
use crate::device::ops::Refused;
use crate::device::rdma::{Access, Change, Qp, QpEndpoint, Remote, Transport};
use crate::device::socket::TcpStream;
use crate::mem::payload::Lease;
use crate::mem::{Run, Shared, Window};
use crate::proto::rc::Mtu;
use crate::wire::native::perftest::{DONE, KEYS_LEN, Keys, VERSION, VERSION_LEN};
use crate::wire::roce::UDP_PORT;

/// Operations under way: what the stock programs post, and as many messages of the largest size as the region holds.
const DEPTH: u32 = 128;
const DEPTH_BYTES: u32 = 32 << 20;
/// The page and the cache line that the stock programs tell: a client walks through so much of the server's memory.
const CYCLE_BYTES: u32 = 4096;
const CACHE_LINE_BYTES: u32 = 64;
/// What is in a window before anyone writes to it.
const BLANK: u8 = 0xa5;

/// What the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `ib_write_bw`.
    Write,
    /// `ib_read_bw`.
    Read,
    /// `ib_send_bw`.
    Send,
    /// `ib_atomic_bw` with fetch and add, its default: of 1, on numbers a cache line apart.
    FetchAdd,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Write => "RDMA WRITE",
            Operation::Read => "RDMA READ",
            Operation::Send => "SEND",
            Operation::FetchAdd => "fetch and add",
        }
    }

    /// What the server's memory is open to. A client tells of memory too, which nobody touches.
    fn access(self) -> Access {
        match self {
            Operation::Write | Operation::Send => Access::WRITE,
            Operation::Read => Access::READ,
            Operation::FetchAdd => Access::ATOMIC,
        }
    }
}

pub async fn run(station: &Station, stream: &mut TcpStream, role: Role, operation: Operation, options: &Options) -> Result<Summary> {
    let mut exchange = Exchange { station, stream, role };
    let mtu = exchange.introduce(options).await?;
    let qp = station.hca.create_qp(&station.qp_config(options))?;
    let window = qp
        .grant(station.filled(window_bytes(options.size_bytes), BLANK)?, operation.access())
        .await
        .map_err(|_| Error::new(ErrorKind::Failed, "lending memory: the device has no room for a grant"))?;
    let test = Test { station, qp: &qp, role, operation, size: options.size_bytes, iterations: options.iterations };
    let done = test.run(&mut exchange, &window, mtu).await;
    // The connection first: then nobody can reach the window.
    qp.disconnect();
    let memory = station.hca.revoke(window).await;
    let (bytes, span) = done?;
    if role == Role::Server {
        judge(&memory, operation, options)?;
    }
    let what = format!("{} over {}", operation.name(), qp.route());
    Ok(Summary::new(what, bytes / u64::from(options.size_bytes), bytes, span))
}

/// Whether a client that reports success did here what it says.
fn judge(memory: &Run, operation: Operation, options: &Options) -> Result<()> {
    if operation == Operation::Write && memory.as_slice().iter().all(|&byte| byte == BLANK) {
        return Err(Error::new(ErrorKind::Protocol, "the client reports success, but nothing was written here"));
    }
    if operation == Operation::FetchAdd {
        let (numbers, _) = memory.as_slice().as_chunks::<8>();
        let blank = u64::from_ne_bytes([BLANK; 8]);
        let sum = numbers.iter().fold(0, |sum: u64, number| sum.wrapping_add(u64::from_ne_bytes(*number).wrapping_sub(blank)));
        if sum != u64::from(options.iterations) {
            let what = format!("{} additions of 1 make {sum}: some were lost or executed twice", options.iterations);
            return Err(Error::new(ErrorKind::Protocol, what).remedy("if ib_atomic_bw ran with -A CMP_AND_SWAP, let it fetch and add"));
        }
    }
    Ok(())
}

/// As the stock programs make it: a message or a cycle, twice, for both directions.
fn window_bytes(size: u32) -> u32 {
    2 * size.max(CYCLE_BYTES)
}

/// The conversation beside the queue pair.
struct Exchange<'a> {
    station: &'a Station,
    stream: &'a mut TcpStream,
    role: Role,
}

impl Exchange<'_> {
    /// Ours for theirs.
    async fn swap<const N: usize>(&mut self, ours: [u8; N]) -> Result<[u8; N]> {
        let Exchange { station, stream, role } = self;
        let step = async {
            let mut theirs = [0; N];
            // The stock programs take a message with one read, so it must not come in one piece with the next.
            if *role == Role::Client {
                stream.write_all(&ours).await?;
            }
            stream.read_exact(&mut theirs).await?;
            if *role == Role::Server {
                stream.write_all(&ours).await?;
            }
            Ok(theirs)
        };
        station.patiently("the other program's exchange", step).await
    }

    /// Version, sizes and path MTU. Returns the path MTU in bytes.
    async fn introduce(&mut self, options: &Options) -> Result<u32> {
        let version: [u8; VERSION_LEN] = self.swap(VERSION).await?;
        let text = String::from_utf8_lossy(&version).trim_end_matches('\0').to_owned();
        if !text.starts_with("5.") && !text.starts_with("6.") {
            let what = format!("{} speaks version '{text}' of perftest's exchange", self.stream.peer_addr());
            return Err(Error::new(ErrorKind::Protocol, what).remedy("versions 5.70 to 6 are known here"));
        }
        self.swap(CYCLE_BYTES.to_be_bytes()).await?;
        self.swap(CACHE_LINE_BYTES.to_be_bytes()).await?;
        let most = self.station.path_mtu(options);
        let code = Mtu::ALL.iter().take_while(|mtu| mtu.bytes() <= most).count();
        let [digit, _] = self.swap([b'0' + code as u8, 0]).await?;
        let theirs = usize::from(digit.wrapping_sub(b'1'));
        let mtu = Mtu::ALL.get(theirs).ok_or_else(|| self.nonsense("a path MTU", &[digit]))?;
        Ok(mtu.bytes().min(most))
    }

    async fn keys(&mut self, ours: &Keys) -> Result<Keys> {
        let theirs: [u8; KEYS_LEN] = self.swap(ours.encode()).await?;
        Keys::parse(&theirs).map_err(|_| self.nonsense("its keys", &theirs))
    }

    /// The figures of the report: size, count, peak and average rate, messages per second.
    async fn report(&mut self, size: u32, iterations: u32, span: Nanos) -> Result<(u64, u64)> {
        let seconds = span.as_secs_f64().max(1e-9);
        let mib = f64::from(size) * f64::from(iterations) / seconds / f64::from(1 << 20);
        let bytes = u64::from_be_bytes(self.swap(u64::from(size).to_be_bytes()).await?);
        let count = u64::from_be_bytes(self.swap(u64::from(iterations).to_be_bytes()).await?);
        // perftest counts messages in millions.
        for figure in [mib, mib, f64::from(iterations) / seconds / 1e6] {
            self.swap(figure.to_be_bytes()).await?;
        }
        Ok((bytes, count))
    }

    fn nonsense(&self, what: &str, bytes: &[u8]) -> Error {
        let text = String::from_utf8_lossy(bytes).into_owned();
        Error::new(ErrorKind::Protocol, format!("{} sent '{text}' as {what}", self.stream.peer_addr()))
    }
}

/// What a client works with.
struct Client {
    depth: u32,
    /// The server's memory.
    remote: Remote,
    source: Shared,
    /// What READs and atomics fill.
    sinks: Vec<Run>,
}

/// One run of a program.
struct Test<'a> {
    station: &'a Station,
    qp: &'a Qp,
    role: Role,
    operation: Operation,
    size: u32,
    iterations: u32,
}

impl Test<'_> {
    /// Returns the bytes moved and how long it took.
    async fn run(&self, exchange: &mut Exchange<'_>, window: &Window, mtu: u32) -> Result<(u64, Nanos)> {
        let local = self.qp.local();
        let gid = crate::device::rdma::endpoint::gid(self.station.address().ip());
        let (qpn, psn, rkey) = (Qpn(local.qpn), Psn::new(local.psn), Rkey(window.rkey()));
        let ours = Keys { lid: 0, out_reads: u16::from(local.reads), qpn, psn, rkey, va: window.address(), gid };
        let theirs = exchange.keys(&ours).await?;
        self.qp.connect(&QpEndpoint {
            transport: Transport::Rc,
            qpn: theirs.qpn.0,
            psn: theirs.psn.get(),
            qkey: 0,
            reads: u8::try_from(theirs.out_reads).unwrap_or(u8::MAX),
            link: None,
            address: Some((theirs.address(), UDP_PORT).into()),
            mtu,
            is_port_fixed: true,
            fabric: None,
        })?;
        let depth = DEPTH.min(DEPTH_BYTES / self.size).min(self.iterations).max(2);
        let mut receives = VecDeque::new();
        if (self.role, self.operation) == (Role::Server, Operation::Send) {
            for _ in 0..depth {
                receives.push_back(self.qp.submit_recv(self.station.filled(self.size, BLANK)?).map_err(|_| full())?);
            }
        }
        // Twice more when both ends are connected, and once when receives are posted.
        for _ in 0..if self.operation == Operation::Send { 3 } else { 2 } {
            exchange.keys(&ours).await?;
        }
        let mut client = match self.role {
            Role::Client => Some(self.client(depth, &theirs)?),
            Role::Server => None,
        };
        let began = self.station.core.now();
        let (station, steps) = (self.station, Cell::new(0));
        match (&mut client, self.operation) {
            (Some(client), _) => station.patiently_by_step("the server's queue pair", &steps, self.operate(client, &steps)).await?,
            (None, Operation::Send) => {
                station.patiently_by_step("the client's next message", &steps, self.receive(receives, &steps)).await?;
            }
            (None, _) => {}
        }
        let worked = self.station.core.now().since(began);
        let mut moved = u64::from(self.size) * u64::from(self.iterations);
        if self.operation != Operation::Send {
            exchange.keys(&ours).await?;
            let (bytes, count) = exchange.report(self.size, self.iterations, worked).await?;
            if self.role == Role::Server {
                moved = bytes.saturating_mul(count);
                if bytes != u64::from(self.size) || count != u64::from(self.iterations) {
                    let what = format!("the client moved {count} messages of {bytes} bytes, not {} of {}", self.iterations, self.size);
                    return Err(Error::new(ErrorKind::Protocol, what).remedy("give both programs the same size and count"));
                }
            }
        }
        // A server of one-sided operations is told of their end.
        let span = if self.role == Role::Client { worked } else { self.station.core.now().since(began) };
        exchange.keys(&ours).await?;
        exchange.stream.write_all(&DONE).await?;
        Ok((moved, span))
    }

    async fn receive(&self, mut receives: VecDeque<Op<Run>>, steps: &Cell<u32>) -> Result<()> {
        for number in 0..self.iterations {
            let oldest = receives.pop_front().expect("as many as are posted again");
            let mut run = oldest.await.into_result().map_err(|failed| failed.into_error(format!("receiving message {number}")))?;
            steps.set(number);
            if run.len() != self.size {
                let what = format!("message {number} has {} bytes instead of {}", run.len(), self.size);
                return Err(Error::new(ErrorKind::Protocol, what).remedy("give both programs the same size"));
            }
            run.set_view(0, self.size);
            receives.push_back(self.qp.submit_recv(run).map_err(|_| full())?);
        }
        Ok(())
    }

    /// Memory for `depth` operations.
    fn client(&self, depth: u32, theirs: &Keys) -> Result<Client> {
        let remote = Remote { address: theirs.va, rkey: theirs.rkey.0, len: self.size };
        let mut source = self.station.slab.run(self.size)?;
        self.station.core.rng().fill(source.as_mut_slice());
        let mut sinks = Vec::new();
        if matches!(self.operation, Operation::Read | Operation::FetchAdd) {
            for _ in 0..depth {
                sinks.push(self.station.filled(self.size, BLANK)?);
            }
        }
        Ok(Client { depth, remote, source: source.freeze(), sinks })
    }

    async fn operate(&self, client: &mut Client, steps: &Cell<u32>) -> Result<()> {
        let Client { depth, remote, source, sinks } = client;
        let (qp, remote) = (self.qp, *remote);
        let sources = || (0..*depth).map(|_| source.clone());
        match self.operation {
            Operation::Write => self.repeat(sources(), steps, |source| qp.submit_write(source, remote, None)).await,
            Operation::Send => self.repeat(sources(), steps, |source| qp.submit_send(source, None)).await,
            Operation::Read => self.repeat(sinks.drain(..), steps, |sink| qp.submit_read(sink, remote)).await,
            Operation::FetchAdd => self.repeat(sinks.drain(..), steps, |sink| qp.submit_atomic(sink, remote, Change::Add(1))).await,
        }
    }

    /// Posts one operation after the other, as many under way as there are leases: what one gives back is the next one's.
    async fn repeat<L: Lease>(
        &self,
        leases: impl Iterator<Item = L>,
        steps: &Cell<u32>,
        mut post: impl FnMut(L) -> Result<Op<L>, Refused<L>>,
    ) -> Result<()> {
        let mut under_way = Vec::new();
        for lease in leases.take(self.iterations as usize) {
            under_way.push(post(lease).map_err(|_| full())?);
        }
        let depth = under_way.len() as u32;
        // Each is awaited in its place, which is the next one's: to move it is most of what a step costs.
        for number in 0..self.iterations {
            let place: &mut Op<L> = &mut under_way[(number % depth) as usize];
            let done = (&mut *place).await;
            if !done.outcome.is_ok() {
                return Err(done.outcome.status.to_error(format!("{} number {number}", self.operation.name())));
            }
            steps.set(number + 1);
            if number + depth < self.iterations {
                *place = post(done.lease).map_err(|_| full())?;
            }
        }
        Ok(())
    }
}

fn full() -> Error {
    Error::new(ErrorKind::Failed, "posting to a queue pair: the queue is full")
}
