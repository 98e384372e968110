//! Flow 3: UDP datagrams to a peer's memory.
//!
//! A datagram arrives in a UMEM chunk; the same chunk, viewed on the content behind the datagram header, is sent to the peer
//! with the sequence number as immediate value. The test's client is both ends: it sends the datagrams and is the RDMA peer
//! they come out at.
//!
//! A datagram may be lost on its way to the server, and on transports that lose messages behind it too. One that a whole window has
//! overtaken is lost, and so is one that does not come out for too long.
//!
//! Over `raw` there is no RDMA: the same chunk goes back as a frame, with the headers in front of the content written anew.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::Failed;
use crate::flow::Transport;
use crate::flow::answers::{SILENCE, silence};
use crate::flow::control::{Channel, Message, Plan, Tally};
use crate::flow::crew::{Crew, Either, either};
use crate::flow::datagrams::Datagrams;
use crate::flow::hub::{Datagram, Hub, Pace};
use crate::flow::node::{Node, Pair};
use crate::flow::pattern::Pattern;
use crate::flow::report::{Meter, Row};
use crate::flow::window::{Credit, Inbox};
use crate::mem::Buf;
use crate::wire::native::datagram;

/// How long the server waits for the last acknowledgements: longer than all retries of a queue pair take, 8.5 seconds.
const ACKNOWLEDGED_WITHIN: Nanos = Nanos::from_secs(10);

/// Datagrams handed to the kernel and not yet reaped.
const SENDS: usize = 64;

/// Sends each datagram on as it comes, in order, with up to `depth` on their way.
async fn forward(qp: Rc<Pair>, inbox: Rc<Inbox<Datagram>>, depth: u32, forwarded: Rc<Cell<u64>>) -> Result<()> {
    let mut sends = VecDeque::with_capacity(depth as usize);
    while let Some(Datagram { mut buf, header, .. }) = inbox.pop().await {
        let datagram::Repr::Data { sequence, .. } = header else { continue };
        let (start, len) = (buf.start() + datagram::LEN as u32, buf.len() - datagram::LEN as u32);
        buf.set_view(start, len);
        if sends.len() == depth as usize
            && let Some(oldest) = sends.pop_front()
        {
            sent(&qp, oldest, &forwarded).await?;
        }
        sends.push_back(qp.send(buf, Some(sequence as u32)));
    }
    for rest in sends {
        sent(&qp, rest, &forwarded).await?;
    }
    Ok(())
}

async fn sent(qp: &Pair, send: impl Future<Output = std::result::Result<Buf, Failed<Buf>>>, forwarded: &Cell<u64>) -> Result<()> {
    send.await.map(drop).map_err(|failed| qp.explain("forwarding a datagram", failed))?;
    forwarded.set(forwarded.get() + 1);
    Ok(())
}

/// Sends each datagram back as a frame, as it comes.
async fn reflect(node: Node, hub: Rc<Hub>, inbox: Rc<Inbox<Datagram>>, forwarded: Rc<Cell<u64>>) -> Result<()> {
    while let Some(Datagram { buf, header, reply, .. }) = inbox.pop().await {
        let datagram::Repr::Data { .. } = header else { continue };
        let mut posted = hub.send(reply.encapsulation(), buf);
        while let Err(buf) = posted {
            if inbox.is_closed() {
                return Ok(());
            }
            // The ring is full: there is room after a poll, unless the interface is down.
            node.core().yield_now().await;
            posted = hub.send(reply.encapsulation(), buf);
        }
        forwarded.set(forwarded.get() + 1);
    }
    Ok(())
}

/// The server's side over `raw`.
async fn serve_frames(node: &Node, channel: &mut Channel) -> Result<Tally> {
    let hub = node.hub()?;
    let stream = node.new_stream();
    let opened = hub.open(stream, Pace::Prompt);
    let forwarded = Rc::new(Cell::new(0));
    let mut crew = Crew::new();
    crew.add(node.core(), reflect(node.clone(), hub.clone(), opened.inbox(), forwarded.clone()))?;
    channel.send(&Message::Ready { stream, grants: Vec::new(), rank: 1 }).await?;
    let finished = node.attend(channel, &mut crew, None).await;
    opened.close();
    crew.finish().await?;
    finished?;
    let operations = forwarded.get();
    Ok(Tally { operations, verified: operations > 0, packet_mode: Some(hub.mode()), ..Tally::default() })
}

/// The server's side: forwards until the client has finished.
pub async fn serve(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    if plan.transport == Transport::Raw {
        return serve_frames(node, channel).await;
    }
    let hub = node.hub()?;
    let qp = node.accept(channel, plan).await?;
    let stream = node.new_stream();
    let opened = hub.open(stream, Pace::Prompt);
    let forwarded = Rc::new(Cell::new(0));
    let mut crew = Crew::new();
    crew.add(node.core(), forward(qp.clone(), opened.inbox(), plan.depth, forwarded.clone()))?;
    channel.send(&Message::Ready { stream, grants: Vec::new(), rank: 1 }).await?;
    let finished = node.attend(channel, &mut crew, Some(&qp)).await;
    opened.close();
    if finished.is_ok() && !crew.has_failed() {
        // With its inbox closed the forwarder ends when the last datagram is acknowledged.
        let _ = node.core().timeout(ACKNOWLEDGED_WITHIN, crew.ended()).await;
    }
    qp.disconnect();
    let worked = crew.finish().await;
    finished?;
    worked?;
    let operations = forwarded.get();
    Ok(Tally { operations, verified: operations > 0, packet_mode: Some(hub.mode()), block_mode: None, ..node.rdma_tally(&qp) })
}

struct Client {
    node: Node,
    plan: Plan,
    credit: Credit,
    /// When the datagram in each place of the window was sent, until it came out.
    places: RefCell<Vec<Option<(u64, Nanos)>>>,
    lost: Cell<u64>,
    /// Came out after they were counted as lost, or once more.
    late: Cell<u64>,
    /// When one last came out.
    heard: Cell<Nanos>,
    meter: RefCell<Meter>,
    sending: Cell<bool>,
}

impl Client {
    fn place(&self, sequence: u64) -> usize {
        (sequence % self.places.borrow().len() as u64) as usize
    }

    /// Sends datagrams, a window at a time, until the count or the time is reached.
    async fn send(&self, link: &Datagrams, stream: u32) -> Result<()> {
        let clock = self.plan.clock(self.node.core());
        let mut sends = VecDeque::with_capacity(SENDS);
        let mut sequence = 0;
        while clock.goes_on(sequence) {
            while self.node.core().timeout(self.plan.lost_after(), self.credit.take()).await.is_err() {
                self.write_off()?;
            }
            let mut buf = link.buf(datagram::LEN as u32 + self.plan.size_bytes).await?;
            let (header, content) = buf.as_mut_slice().split_at_mut(datagram::LEN);
            header.copy_from_slice(&datagram::Repr::Data { stream, sequence, total: 0 }.encode());
            Pattern::new(self.plan.seed, sequence).fill(content);
            let place = self.place(sequence);
            let overtaken = self.places.borrow_mut()[place].replace((sequence, self.node.core().now()));
            if overtaken.is_some() {
                self.lose(1);
            }
            if sends.len() == SENDS
                && let Some(oldest) = sends.pop_front()
            {
                oldest.await?;
            }
            sends.push_back(link.send(buf));
            sequence += 1;
        }
        for rest in sends {
            rest.await?;
        }
        // The last window: everything comes out or is written off.
        let begun = self.node.core().now();
        while self.places.borrow().iter().any(Option::is_some) {
            self.node.core().sleep(Nanos::from_millis(1)).await;
            if self.node.core().now().since(begun) > self.plan.lost_after() {
                self.write_off()?;
            }
        }
        self.sending.set(false);
        Ok(())
    }

    /// Counts as lost what has not come out for too long.
    fn write_off(&self) -> Result<()> {
        let now = self.node.core().now();
        let mut given = 0;
        for place in self.places.borrow_mut().iter_mut() {
            if place.is_some_and(|(_, at)| now.since(at) >= self.plan.lost_after()) {
                *place = None;
                given += 1;
            }
        }
        self.lose(given);
        let is_silent = self.plan.transport.loses() && now.since(self.heard.get()) >= SILENCE;
        if is_silent { Err(silence(self.plan.transport)) } else { Ok(()) }
    }

    fn lose(&self, count: u32) {
        self.lost.set(self.lost.get() + u64::from(count));
        self.credit.give(count);
    }

    /// Takes what comes out as frames.
    async fn receive_frames(&self, link: &Datagrams) -> Result<()> {
        loop {
            let (datagram::Repr::Data { sequence, .. }, buf) = link.receive().await else { continue };
            self.take(sequence as u32, buf.as_slice().get(datagram::LEN..).unwrap_or_default())?;
        }
    }

    /// One of the receivers: takes what comes out of a queue pair.
    async fn receive(&self, qp: &Pair) -> Result<()> {
        let mut run = self.node.slab().run(self.plan.size_bytes)?;
        loop {
            run.set_len(self.plan.size_bytes);
            let Ok(received) = qp.recv(run).await else {
                // The queue pair is closed at the end; before that something is wrong.
                return if self.sending.get() { Err(qp.went_down("before everything came out")) } else { Ok(()) };
            };
            run = received.run;
            let low = received.immediate.ok_or_else(|| Error::new(ErrorKind::Protocol, "a message without a sequence number"))?;
            self.take(low, run.as_slice())?;
        }
    }

    /// A datagram has come out: every byte is checked.
    fn take(&self, low: u32, content: &[u8]) -> Result<()> {
        self.heard.set(self.node.core().now());
        // The window is far below 2³² datagrams, so the low half of a sequence number names its place.
        let place = self.place(u64::from(low));
        let Some((sequence, begun)) = self.places.borrow_mut()[place].take_if(|(sequence, _)| *sequence as u32 == low) else {
            // Written off before it came.
            self.late.set(self.late.get() + 1);
            return Ok(());
        };
        if content.len() != self.plan.size_bytes as usize {
            return Err(Error::new(ErrorKind::Failed, format!("datagram {sequence} came out with {} bytes", content.len())));
        }
        Pattern::new(self.plan.seed, sequence)
            .check(content)
            .map_err(|mismatch| Error::new(ErrorKind::Failed, format!("datagram {sequence} came out wrong: {mismatch}")))?;
        self.meter.borrow_mut().record(begun, self.node.core().now(), u64::from(self.plan.size_bytes));
        self.credit.give(1);
        Ok(())
    }
}

/// The client's side.
pub async fn request(node: &Node, channel: &mut Channel, plan: &Plan, server: SocketAddr) -> Result<Row> {
    let core = node.core();
    let (qp, stream) = if plan.transport == Transport::Raw {
        match channel.answer().await? {
            Message::Ready { stream, .. } => (None, stream),
            other => return Err(channel.unexpected(&other, "ready")),
        }
    } else {
        let link = node.connect(channel, plan).await?;
        (Some(link.qp), link.stream)
    };
    let link = Rc::new(Datagrams::open(node, plan, server, stream)?);
    // A power of two, so that places follow from the low bits alone.
    let window = plan.depth.next_power_of_two();
    let client = Rc::new(Client {
        node: node.clone(),
        plan: plan.clone(),
        credit: Credit::new(core.ops(), window),
        places: RefCell::new(vec![None; window as usize]),
        lost: Cell::new(0),
        late: Cell::new(0),
        heard: Cell::new(core.now()),
        meter: RefCell::new(node.meter()),
        sending: Cell::new(true),
    });
    let mut receivers = Crew::new();
    match &qp {
        Some(qp) => {
            for _ in 0..2 * window {
                let (client, qp) = (client.clone(), qp.clone());
                receivers.add(core, async move { client.receive(&qp).await })?;
            }
        }
        None => {
            let (client, link) = (client.clone(), link.clone());
            receivers.add(core, async move { client.receive_frames(&link).await })?;
        }
    }
    node.posted().await;
    // The receivers end by themselves only when one of them fails.
    let heeded = channel.heed(either(client.send(&link, stream), receivers.ended())).await;
    client.sending.set(false);
    let sent = match heeded {
        Ok(Either::Left(sent)) => sent,
        Ok(Either::Right(())) => receivers.take_failure().map_or(Ok(()), Err),
        Err(error) => {
            if let Some(qp) = qp {
                qp.disconnect();
                // They end because of it.
                let _ = receivers.finish().await;
            }
            return Err(error);
        }
    };
    let row = Row::new(plan.flow, plan.transport).measured(&client.meter.borrow()).without(client.lost.get(), client.late.get());
    // The queue pair lives until the server has its tally: an acknowledgement that was lost is asked for again.
    let row = node.finish(channel, qp.as_deref(), row, sent).await;
    if let Some(qp) = qp {
        qp.disconnect();
        receivers.finish().await?;
    }
    row
}
