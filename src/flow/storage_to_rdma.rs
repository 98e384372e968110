//! Flow 4: blocks from the device into a peer's memory.
//!
//! The peer asks with a small SEND that names a block and a window of its own. The block is read into chunks, or found in them:
//! hot blocks are kept frozen and any number of answers read the same chunks at once. A WRITE with immediate puts it into the
//! peer's window; the peer revokes the window before it looks. Datagrams know no windows: there a SEND takes the block to a receive.
//!
//! The immediate value says which request is answered. Where an answer may be lost, the window is revoked before its memory is offered
//! again, so that one that comes late finds it shut.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Result};
use crate::device::block::Durability;
use crate::device::rdma::{Access, Remote};
use crate::flow::Transport;
use crate::flow::answers::{Answer, Answers};
use crate::flow::control::{Channel, Message, Plan, Tally};
use crate::flow::crew::Crew;
use crate::flow::extent::Extent;
use crate::flow::node::{Node, Pair, RunClock};
use crate::flow::pattern::Pattern;
use crate::flow::report::{Meter, Row};
use crate::mem::payload::Lease;
use crate::mem::{Run, Shared};

/// What the client sends: 32 bytes, little-endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Request {
    /// The block wanted.
    block: U64,
    /// Where to put it.
    address: U64,
    rkey: U32,
    len: U32,
    /// What the answer's immediate value is to be.
    tag: U32,
    reserved: U32,
}

/// Slots there may be, as bits of a tag.
const SLOT_BITS: u32 = 8;

/// What an answer is known by: the slot in the low bits, and which of the slot's requests it is for. Their count goes around after 16
/// million, long after an answer is too late.
fn tag_of(sequence: u64, depth: u32) -> u32 {
    let (turn, slot) = (sequence / u64::from(depth), sequence % u64::from(depth));
    (turn << SLOT_BITS | slot) as u32
}

/// Blocks kept in memory. Requests ask for one of them every fourth time.
const HOT: u64 = 16;
/// Distinct blocks on the device at most: 64 MiB of the default size.
const BLOCKS_MAX: u64 = 1024;

/// Which block request `sequence` asks for: every fourth one a hot one.
fn block_of(sequence: u64, blocks: u64) -> u64 {
    if sequence % 4 == 3 { (sequence / 4) % HOT.min(blocks) } else { sequence % blocks }
}

struct Server {
    node: Node,
    qp: Rc<Pair>,
    transport: Transport,
    size_bytes: u32,
    stride_bytes: u32,
    extent: Extent,
    blocks: u64,
    /// Hot blocks that were read once.
    hot: RefCell<HashMap<u64, Shared>>,
    hits: Cell<u64>,
    operations: Cell<u64>,
    /// Requests not yet answered to the end.
    answering: Cell<u32>,
    /// The client has all it waits for: what is answered from here on it has given up.
    ending: Cell<bool>,
}

impl Server {
    fn lba(&self, block: u64) -> Result<Lba> {
        Ok(Lba(self.extent.start.0 + block * u64::from(self.stride_bytes / self.node.disk()?.info().block_bytes)))
    }

    /// Writes the blocks that will be asked for.
    async fn prepare(&self, seed: u64) -> Result<()> {
        let disk = self.node.disk()?;
        let mut run = self.node.run(self.stride_bytes).await?;
        for block in 0..self.blocks {
            run.set_len(self.stride_bytes);
            run.as_mut_slice()[self.size_bytes as usize..].fill(0);
            Pattern::new(seed, block).fill(&mut run.as_mut_slice()[..self.size_bytes as usize]);
            let lba = self.lba(block)?;
            let written = disk.write(lba, run, Durability::AtFlush).await;
            run = written.map_err(|failed| disk.explain("preparing: writing", lba, failed))?;
        }
        Ok(())
    }

    /// One of the workers: takes the next request and answers it.
    async fn work(&self) -> Result<()> {
        let Some(mut buf) = self.node.buf_for(&self.qp).await? else { return Ok(()) };
        loop {
            buf.set_view(0, size_of::<Request>() as u32);
            let Ok(received) = self.qp.recv(buf.into()).await else { return Ok(()) };
            let request = Request::read_from_bytes(received.run.as_slice())
                .map_err(|_| Error::new(ErrorKind::Protocol, format!("a request of {} bytes", received.run.len())))?;
            buf = crate::mem::Buf::try_from(received.run).expect("a request is received into one chunk");
            self.answering.set(self.answering.get() + 1);
            self.answer(&request).await?;
            self.answering.set(self.answering.get() - 1);
        }
    }

    async fn answer(&self, request: &Request) -> Result<()> {
        let block = request.block.get();
        if block >= self.blocks || request.len.get() < self.size_bytes {
            let what = format!("a request for block {block} of {} into {} bytes", self.blocks, request.len.get());
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let kept = self.hot.borrow().get(&block).cloned();
        if let Some(shared) = kept {
            self.hits.set(self.hits.get() + 1);
            self.put(shared, request).await?;
        } else {
            let lba = self.lba(block)?;
            let run = self.node.run_while(self.stride_bytes, || self.qp.is_up()).await?;
            let disk = self.node.disk()?;
            let mut run = disk.read(lba, run).await.map_err(|failed| disk.explain("reading", lba, failed))?;
            run.set_len(self.size_bytes);
            if block < HOT {
                let shared = run.freeze();
                self.hot.borrow_mut().insert(block, shared.clone());
                self.put(shared, request).await?;
            } else {
                self.put(run, request).await?;
            }
        }
        self.operations.set(self.operations.get() + 1);
        Ok(())
    }

    /// Brings a block to the peer.
    async fn put<L: Lease>(&self, lease: L, request: &Request) -> Result<()> {
        let tag = Some(request.tag.get());
        let put = if self.transport.writes() {
            let remote = Remote { address: request.address.get(), rkey: request.rkey.get(), len: self.size_bytes };
            self.qp.write(lease, remote, tag).await
        } else {
            self.qp.send(lease, tag).await
        };
        match put {
            Err(_) if self.ending.get() && self.transport.loses() => Ok(()),
            put => put
                .map(drop)
                .map_err(|failed| failed.outcome.status.to_error(format!("bringing block {} to the peer", request.block.get()))),
        }
    }
}

/// The server's side: answers until the client has finished.
pub async fn serve(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    let qp = node.accept(channel, plan).await?;
    let disk = node.disk()?;
    let stride_bytes = plan.size_bytes.next_multiple_of(disk.info().block_bytes);
    let blocks = plan.places(node, stride_bytes)?.min(BLOCKS_MAX);
    let extent = node.allocate(blocks * u64::from(stride_bytes / disk.info().block_bytes))?;
    let server = Rc::new(Server {
        node: node.clone(),
        qp: qp.clone(),
        transport: plan.transport,
        size_bytes: plan.size_bytes,
        stride_bytes,
        extent,
        blocks,
        hot: RefCell::default(),
        hits: Cell::new(0),
        operations: Cell::new(0),
        answering: Cell::new(0),
        ending: Cell::new(false),
    });
    server.prepare(plan.seed).await?;
    let mut crew = Crew::new();
    // Twice the depth: while one request is answered the receive for the next is posted.
    for _ in 0..2 * plan.depth {
        let server = server.clone();
        crew.add(node.core(), async move { server.work().await })?;
    }
    node.posted().await;
    // The client learns how many blocks there are in the place of a stream number.
    channel.send(&Message::Ready { stream: blocks as u32, grants: Vec::new(), rank: 1 }).await?;
    let finished = node.attend(channel, &mut crew, Some(&qp)).await;
    if finished.is_ok() && !crew.has_failed() {
        node.settle(|| server.answering.get() == 0).await;
    }
    server.ending.set(finished.is_ok());
    qp.disconnect();
    let worked = crew.finish().await;
    finished?;
    worked?;
    let operations = server.operations.get();
    Ok(Tally { operations, verified: operations > 0, cache_hits: server.hits.get(), ..node.rdma_tally(&qp) })
}

struct Client {
    node: Node,
    qp: Rc<Pair>,
    plan: Plan,
    blocks: u64,
    /// The blocks themselves where they come as SENDs, else nothing but the word.
    arrived: Answers<Run>,
    meter: RefCell<Meter>,
    clock: RunClock,
}

impl Client {
    async fn work(&self, slot: u32) -> Result<()> {
        let Plan { depth, seed, size_bytes, transport, .. } = self.plan;
        // Where blocks come as SENDs they bring their memory with them.
        let mut run = if transport.writes() { Some(self.node.slab().run(size_bytes)?) } else { None };
        let mut buf = self.node.buf().await?;
        let mut sequence = u64::from(slot);
        while self.clock.goes_on(sequence) {
            let (block, tag) = (block_of(sequence, self.blocks), tag_of(sequence, depth));
            let begun = self.node.core().now();
            let window = match run.take() {
                Some(run) => Some(self.qp.open(run, Access::WRITE).await?),
                None => None,
            };
            let (address, rkey) = window.as_ref().map_or((0, 0), |window| (window.address(), window.rkey()));
            let (block_wanted, address, rkey, len) = (block.into(), address.into(), rkey.into(), size_bytes.into());
            let request = Request { block: block_wanted, address, rkey, len, tag: tag.into(), reserved: 0.into() };
            buf.set_view(0, size_of::<Request>() as u32);
            buf.as_mut_slice().copy_from_slice(request.as_bytes());
            self.arrived.expect(slot, u64::from(tag));
            let asked = self.qp.send(buf, None).await;
            let answered = if asked.is_ok() { self.arrived.wait(slot).await } else { Ok(Answer::Closed) };
            // From here on nothing that comes late gets into its memory.
            if let Some(window) = window {
                run = Some(self.qp.revoke(window).await);
            }
            buf = asked.map_err(|failed| self.qp.explain(format!("asking for block {block}"), failed))?;
            let came = match answered? {
                Answer::Came(came) => came,
                Answer::Closed => return Err(self.qp.went_down(&format!("before block {block} came"))),
                Answer::Lost => {
                    sequence += u64::from(depth);
                    continue;
                }
            };
            self.meter.borrow_mut().record(begun, self.node.core().now(), u64::from(size_bytes));
            let content = run.as_ref().unwrap_or(&came).as_slice();
            if content.len() != size_bytes as usize {
                return Err(Error::new(ErrorKind::Failed, format!("block {block} came with {} bytes", content.len())));
            }
            Pattern::new(seed, block)
                .check(content)
                .map_err(|mismatch| Error::new(ErrorKind::Failed, format!("block {block} came wrong: {mismatch}")))?;
            sequence += u64::from(depth);
        }
        Ok(())
    }

    /// Deals arrivals to the slots they are for.
    async fn listen(&self) -> Result<()> {
        loop {
            // A WRITE with immediate takes a receive and none of its memory.
            let len = if self.plan.transport.writes() { 0 } else { self.plan.size_bytes };
            let Some(mut run) = self.node.run_for(&self.qp, len.max(1)).await? else { break };
            run.set_len(len);
            let Ok(received) = self.qp.recv(run).await else { break };
            let Some(tag) = received.immediate else {
                return Err(Error::new(ErrorKind::Protocol, "an answer that does not say to what"));
            };
            // One that nobody waits for any more goes back to the slab.
            let _ = self.arrived.deliver(u64::from(tag) % (1 << SLOT_BITS), u64::from(tag), received.run);
        }
        self.arrived.close();
        Ok(())
    }
}

/// The client's side.
pub async fn request(node: &Node, channel: &mut Channel, plan: &Plan, _server: SocketAddr) -> Result<Row> {
    let link = node.connect(channel, plan).await?;
    let core = node.core();
    let client = Rc::new(Client {
        node: node.clone(),
        qp: link.qp.clone(),
        plan: plan.clone(),
        blocks: u64::from(link.stream.max(1)),
        arrived: Answers::new(core, plan),
        meter: RefCell::new(node.meter()),
        clock: plan.clock(core),
    });
    let (mut listeners, mut workers) = (Crew::new(), Crew::new());
    for slot in 0..plan.depth {
        for _ in 0..2 {
            let client = client.clone();
            listeners.add(core, async move { client.listen().await })?;
        }
        let client = client.clone();
        workers.add(core, async move { client.work(slot).await })?;
    }
    let heeded = channel.heed(workers.ended()).await;
    if heeded.is_err() || workers.has_failed() {
        link.qp.disconnect();
    }
    let worked = workers.finish().await;
    let row = Row::new(plan.flow, plan.transport).measured(&client.meter.borrow()).without(client.arrived.lost(), client.arrived.late());
    let row = match heeded {
        Ok(()) => node.finish(channel, Some(&link.qp), row, worked).await,
        Err(error) => Err(error),
    };
    link.qp.disconnect();
    listeners.finish().await?;
    row
}
