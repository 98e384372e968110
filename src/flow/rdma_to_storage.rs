//! Flow 2: a peer's SENDs and WRITEs to the block device.
//!
//! The peer works in slots. The operations of a slot are by turns a SEND, which lands in a receive we posted, and a WRITE with
//! immediate, which lands in the slot's window; both carry their sequence number as the immediate value. A window is revoked
//! before anybody here looks at what is in it; its run then goes to the disk as it is. When the write is durable, a small SEND
//! says so and names the slot's window.
//!
//! Where messages may be lost, so may a WRITE that has filled half a window, or the acknowledgement that names the next one. The peer
//! therefore writes to a window once: until it is named again, which says that nothing is on its way there, the slot SENDs.

use std::cell::{Cell, RefCell};
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
use crate::flow::commit::Committer;
use crate::flow::control::{Channel, Grant, Message, Plan, Tally};
use crate::flow::crew::Crew;
use crate::flow::extent::Extent;
use crate::flow::node::{Node, Pair, RunClock};
use crate::flow::pattern::Pattern;
use crate::flow::report::{Meter, Row};
use crate::mem::{Run, Window};

/// What the server sends when an operation is durable: 24 bytes, little-endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Ack {
    sequence: U64,
    /// The slot's window for its next WRITE, if it has one.
    address: U64,
    rkey: U32,
    len: U32,
}

/// Whether operation `sequence` should be a WRITE. The operations of a slot take turns.
fn is_write(sequence: u64, depth: u32) -> bool {
    !(sequence / u64::from(depth)).is_multiple_of(2)
}

/// The places of an extent: a ring that passes over those being written, because a device may take any two writes in any order.
struct Places {
    all: Vec<Place>,
    next: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Empty,
    Writing,
    /// The message with this sequence number.
    Holds(u64),
}

impl Places {
    fn new(count: u64) -> Places {
        Places { all: vec![Place::Empty; count as usize], next: 0 }
    }

    /// The next place for a message. There are at least as many as workers ([`Plan::places`]), each of which writes at one.
    fn begin(&mut self) -> usize {
        while self.all[self.next] == Place::Writing {
            self.next = (self.next + 1) % self.all.len();
        }
        let place = self.next;
        self.all[place] = Place::Writing;
        self.next = (place + 1) % self.all.len();
        place
    }

    fn end(&mut self, place: usize, sequence: u64) {
        self.all[place] = Place::Holds(sequence);
    }

    /// Messages that are stored, with their places.
    fn stored(&self) -> Vec<(u64, u64)> {
        let held = |(place, state): (u64, &Place)| if let Place::Holds(sequence) = *state { Some((place, sequence)) } else { None };
        (0..).zip(&self.all).filter_map(held).collect()
    }
}

struct Server {
    node: Node,
    qp: Rc<Pair>,
    transport: Transport,
    depth: u32,
    size_bytes: u32,
    /// Bytes one operation takes on the device.
    stride_bytes: u32,
    extent: Extent,
    committer: Committer,
    windows: RefCell<Vec<Option<Window>>>,
    /// The last message of each slot, the low half of its sequence number. A datagram may come twice, or after its slot's next.
    newest: RefCell<Vec<Option<u32>>>,
    places: RefCell<Places>,
    operations: Cell<u64>,
    /// Messages that are not stored, or whose acknowledgement the peer has not yet been seen to have.
    storing: Cell<u32>,
    /// The client has all it waits for: what is stored from here on it has given up.
    ending: Cell<bool>,
}

impl Server {
    async fn grant(&self) -> Result<Window> {
        let mut run = self.node.slab().run(self.stride_bytes)?;
        run.set_len(self.size_bytes);
        self.qp.open(run, Access::WRITE).await
    }

    /// A window for each slot, where there are WRITEs.
    async fn grant_all(&self) -> Result<()> {
        for _ in 0..self.depth {
            let window = if self.transport.writes() { Some(self.grant().await?) } else { None };
            self.windows.borrow_mut().push(window);
        }
        Ok(())
    }

    /// Whether a slot has had no later message than this one. Asked once for each.
    fn is_newest(&self, slot: usize, sequence: u32) -> bool {
        let newest = &mut self.newest.borrow_mut()[slot];
        let is_newer = newest.is_none_or(|newest| (sequence.wrapping_sub(newest) as i32) > 0);
        if is_newer {
            *newest = Some(sequence);
        }
        is_newer
    }

    /// One of `depth` workers: takes whatever message comes next and sees it to the disk.
    async fn work(&self) -> Result<()> {
        loop {
            let Some(mut run) = self.node.run_for(&self.qp, self.stride_bytes).await? else { return Ok(()) };
            run.set_len(self.size_bytes);
            let Ok(received) = self.qp.recv(run).await else { return Ok(()) };
            self.storing.set(self.storing.get() + 1);
            self.store(received.immediate, received.run).await?;
            self.storing.set(self.storing.get() - 1);
        }
    }

    async fn store(&self, immediate: Option<u32>, landed: Run) -> Result<()> {
        let protocol = |what: String| Error::new(ErrorKind::Protocol, what);
        let low = immediate.ok_or_else(|| protocol("the peer sent a message without a sequence number".into()))?;
        let (sequence, slot) = (u64::from(low), (low % self.depth) as usize);
        if !self.is_newest(slot, low) {
            // The peer has given it up, or has its acknowledgement.
            return if self.transport.loses() { Ok(()) } else { Err(protocol(format!("message {sequence} came twice"))) };
        }
        // What a WRITE wrote is in the window, and nothing in the receive it took.
        let mut run = if landed.is_empty() {
            drop(landed);
            let Some(window) = self.windows.borrow_mut()[slot].take() else {
                return Err(protocol(format!("the peer wrote twice to slot {slot}")));
            };
            // From here on the peer cannot change it.
            let run = self.qp.revoke(window).await;
            let fresh = self.grant().await?;
            self.windows.borrow_mut()[slot] = Some(fresh);
            run
        } else {
            landed
        };
        if run.len() != self.size_bytes {
            return Err(protocol(format!("message {sequence} has {} bytes instead of {}", run.len(), self.size_bytes)));
        }
        run.set_len(self.stride_bytes);
        run.as_mut_slice()[self.size_bytes as usize..].fill(0);
        let disk = self.node.disk()?;
        let place = self.places.borrow_mut().begin();
        let lba = Lba(self.extent.start.0 + place as u64 * u64::from(self.stride_bytes / disk.info().block_bytes));
        let run = disk
            .write(lba, run, Durability::AtFlush)
            .await
            .map_err(|failed| disk.explain(&format!("writing message {sequence}:"), lba, failed))?;
        drop(run);
        self.committer.commit().await?;
        self.places.borrow_mut().end(place, sequence);
        self.operations.set(self.operations.get() + 1);
        let mut ack = Ack { sequence: sequence.into(), address: 0.into(), rkey: 0.into(), len: 0.into() };
        if let Some(window) = &self.windows.borrow()[slot] {
            (ack.address, ack.rkey, ack.len) = (window.address().into(), window.rkey().into(), window.len().into());
        }
        let mut buf = self.node.buf_while(|| self.qp.is_up()).await?;
        buf.set_view(0, size_of::<Ack>() as u32);
        buf.as_mut_slice().copy_from_slice(ack.as_bytes());
        match self.qp.send(buf, None).await {
            Err(_) if self.ending.get() && self.transport.loses() => Ok(()),
            sent => sent.map(drop).map_err(|failed| self.qp.explain("acknowledging", failed)),
        }
    }

    /// Reads back what is stored and compares it with what was to be sent.
    async fn verify(&self, seed: u64) -> Result<()> {
        let disk = self.node.disk()?;
        let blocks = u64::from(self.stride_bytes / disk.info().block_bytes);
        let stored = self.places.borrow().stored();
        for (place, sequence) in stored {
            let lba = Lba(self.extent.start.0 + place * blocks);
            let run = self.node.run(self.stride_bytes).await?;
            let run = disk.read(lba, run).await.map_err(|failed| disk.explain("reading back", lba, failed))?;
            Pattern::new(seed, sequence)
                .check(&run.as_slice()[..self.size_bytes as usize])
                .map_err(|mismatch| Error::new(ErrorKind::Failed, format!("message {sequence} at block {lba}: {mismatch}")))?;
        }
        Ok(())
    }
}

/// The server's side: stores until the client has finished, then reads everything back.
pub async fn serve(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    let qp = node.accept(channel, plan).await?;
    let disk = node.disk()?;
    let stride_bytes = plan.size_bytes.next_multiple_of(disk.info().block_bytes);
    let places = plan.places(node, stride_bytes)?;
    let extent = node.allocate(places * u64::from(stride_bytes / disk.info().block_bytes))?;
    let server = Rc::new(Server {
        node: node.clone(),
        qp: qp.clone(),
        transport: plan.transport,
        depth: plan.depth,
        size_bytes: plan.size_bytes,
        stride_bytes,
        extent,
        committer: node.committer()?.clone(),
        windows: RefCell::default(),
        newest: RefCell::new(vec![None; plan.depth as usize]),
        places: RefCell::new(Places::new(places)),
        operations: Cell::new(0),
        storing: Cell::new(0),
        ending: Cell::new(false),
    });
    let granted = server.grant_all().await;
    let mut crew = Crew::new();
    // Twice the depth: while a message is being made durable a receive for the slot's next one is posted.
    let manned = granted.and_then(|()| {
        (0..2 * plan.depth).try_for_each(|_| {
            let server = server.clone();
            crew.add(node.core(), async move { server.work().await })
        })
    });
    node.posted().await;
    let grants = server.windows.borrow().iter().flatten().map(|w| Grant { address: w.address(), rkey: w.rkey(), len: w.len() }).collect();
    // Whatever fails from here on, the windows are taken back below: dropped open, their chunks would be lost.
    let ready = match manned {
        Ok(()) => channel.send(&Message::Ready { stream: 0, grants, rank: 1 }).await,
        Err(error) => Err(error),
    };
    let finished = match ready {
        Ok(()) => node.attend(channel, &mut crew, Some(&qp)).await,
        Err(error) => Err(error),
    };
    if finished.is_ok() && !crew.has_failed() {
        node.settle(|| server.storing.get() == 0).await;
    }
    server.ending.set(finished.is_ok());
    // Receives flush and the workers end; with the queue pair closed no grant is left, so the windows come back.
    qp.disconnect();
    let worked = crew.finish().await;
    for window in server.windows.take().into_iter().flatten() {
        drop(server.qp.revoke(window).await);
    }
    finished?;
    worked?;
    let operations = server.operations.get();
    let mut tally = Tally { operations, bytes_written: operations * u64::from(stride_bytes), ..node.rdma_tally(&qp) };
    match server.verify(plan.seed).await {
        Ok(()) => tally.verified = operations > 0,
        Err(error) => tally.error = Some(error.to_string()),
    }
    Ok(tally)
}

struct Client {
    node: Node,
    qp: Rc<Pair>,
    plan: Plan,
    /// Of each slot, until it is written to.
    windows: RefCell<Vec<Option<Grant>>>,
    acks: Answers<Ack>,
    meter: RefCell<Meter>,
    clock: RunClock,
}

impl Client {
    async fn work(&self, slot: u32) -> Result<()> {
        let Plan { depth, seed, size_bytes, .. } = self.plan;
        let mut run = self.node.slab().run(size_bytes)?;
        let mut sequence = u64::from(slot);
        while self.clock.goes_on(sequence) {
            Pattern::new(seed, sequence).fill(run.as_mut_slice());
            let begun = self.node.core().now();
            // Sequence numbers travel in 32 bits; the server counts no further either.
            let immediate = Some(sequence as u32);
            let what = |failed: crate::device::Failed<Run>| self.qp.explain(format!("message {sequence}"), failed);
            let window = if is_write(sequence, depth) { self.windows.borrow_mut()[slot as usize].take() } else { None };
            self.acks.expect(slot, u64::from(sequence as u32));
            run = match window {
                Some(Grant { address, rkey, len }) => self.qp.write(run, Remote { address, rkey, len }, immediate).await.map_err(what)?,
                None => self.qp.send(run, immediate).await.map_err(what)?,
            };
            match self.acks.wait(slot).await? {
                Answer::Came(ack) => {
                    let window = Grant { address: ack.address.get(), rkey: ack.rkey.get(), len: ack.len.get() };
                    self.windows.borrow_mut()[slot as usize] = (window.rkey != 0).then_some(window);
                    self.meter.borrow_mut().record(begun, self.node.core().now(), u64::from(size_bytes));
                }
                Answer::Lost => {}
                Answer::Closed => return Err(self.qp.went_down(&format!("before message {sequence} was acknowledged"))),
            }
            sequence += u64::from(depth);
        }
        Ok(())
    }

    /// Deals acknowledgements to the slots they are for.
    async fn listen(&self) -> Result<()> {
        loop {
            let Some(mut buf) = self.node.buf_for(&self.qp).await? else { break };
            buf.set_view(0, size_of::<Ack>() as u32);
            let Ok(received) = self.qp.recv(buf.into()).await else { break };
            let Ok(ack) = Ack::read_from_bytes(received.run.as_slice()) else {
                return Err(Error::new(ErrorKind::Protocol, format!("an acknowledgement of {} bytes", received.run.len())));
            };
            let sequence = ack.sequence.get();
            // One that nobody waits for is for nobody: its message was counted as lost.
            let _ = self.acks.deliver(sequence % u64::from(self.plan.depth), sequence, ack);
        }
        self.acks.close();
        Ok(())
    }
}

/// The client's side.
pub async fn request(node: &Node, channel: &mut Channel, plan: &Plan, _server: SocketAddr) -> Result<Row> {
    let link = node.connect(channel, plan).await?;
    let core = node.core();
    let wanted = if plan.transport.writes() { plan.depth as usize } else { 0 };
    if link.grants.len() != wanted {
        return Err(Error::new(ErrorKind::Protocol, format!("the server granted {} windows instead of {wanted}", link.grants.len())));
    }
    let mut windows: Vec<_> = link.grants.into_iter().map(Some).collect();
    windows.resize(plan.depth as usize, None);
    let client = Rc::new(Client {
        node: node.clone(),
        qp: link.qp.clone(),
        plan: plan.clone(),
        windows: RefCell::new(windows),
        acks: Answers::new(core, plan),
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
    // All done, or the first failure: either way nothing more is to come.
    if heeded.is_err() || workers.has_failed() {
        link.qp.disconnect();
    }
    let worked = workers.finish().await;
    let row = Row::new(plan.flow, plan.transport).measured(&client.meter.borrow()).without(client.acks.lost(), client.acks.late());
    let row = match heeded {
        Ok(()) => node.finish(channel, Some(&link.qp), row, worked).await,
        Err(error) => Err(error),
    };
    link.qp.disconnect();
    listeners.finish().await?;
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_being_written_is_passed_over_however_long_it_takes() {
        let mut places = Places::new(8);
        let slow = places.begin();
        for sequence in 1..100 {
            let place = places.begin();
            assert_ne!(place, slow);
            places.end(place, sequence);
        }
        assert_eq!(places.stored().len(), 7);
        assert!(places.stored().iter().all(|&(place, sequence)| place != slow as u64 && sequence >= 93), "the last ones are there");
        places.end(slow, 0);
        assert!(places.stored().contains(&(slow as u64, 0)));
        // All but one at once.
        let busy: Vec<usize> = (0..7).map(|_| places.begin()).collect();
        let last = places.begin();
        assert!(!busy.contains(&last));
    }
}
