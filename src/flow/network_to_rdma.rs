//! Flow 3: UDP datagrams to a peer's memory.
//!
//! A datagram arrives in a UMEM chunk; the same chunk, viewed on the content behind the datagram header, is sent to the peer
//! with the sequence number as immediate value. The test's client is both ends: it sends the datagrams and is the RDMA peer
//! they come out at.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::Failed;
use crate::device::socket::UdpSocket;
use crate::flow::control::{Channel, Message, Plan, Tally};
use crate::flow::crew::{Crew, Either, either};
use crate::flow::hub::{Datagram, Pace};
use crate::flow::node::{Node, Pair};
use crate::flow::pattern::Pattern;
use crate::flow::report::{Meter, Row};
use crate::flow::window::{Credit, Inbox};
use crate::mem::Buf;
use crate::wire::native::datagram;

/// How long the client waits for a datagram to come out before it counts it as lost.
const LOST_AFTER: Nanos = Nanos::from_secs(2);

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

/// The server's side: forwards until the client has finished.
pub async fn serve(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
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
    qp: Rc<Pair>,
    plan: Plan,
    credit: Credit,
    /// When the datagram in each place of the window was sent, until it came out.
    places: RefCell<Vec<Option<(u64, Nanos)>>>,
    lost: Cell<u64>,
    meter: RefCell<Meter>,
    sending: Cell<bool>,
}

impl Client {
    fn place(&self, sequence: u64) -> usize {
        (sequence % self.places.borrow().len() as u64) as usize
    }

    /// Sends datagrams, a window at a time, until the count or the time is reached.
    async fn send(&self, socket: UdpSocket, stream: u32) -> Result<()> {
        let clock = self.plan.clock(self.node.core());
        let mut sends = VecDeque::with_capacity(SENDS);
        let mut sequence = 0;
        while clock.goes_on(sequence) {
            while self.node.core().timeout(LOST_AFTER, self.credit.take()).await.is_err() {
                self.write_off();
            }
            let mut buf = self.node.buf().await?;
            buf.set_view(0, datagram::LEN as u32 + self.plan.size_bytes);
            let (header, content) = buf.as_mut_slice().split_at_mut(datagram::LEN);
            header.copy_from_slice(&datagram::Repr::Data { stream, sequence, total: 0 }.encode());
            Pattern::new(self.plan.seed, sequence).fill(content);
            let place = self.place(sequence);
            self.places.borrow_mut()[place] = Some((sequence, self.node.core().now()));
            if sends.len() == SENDS
                && let Some(oldest) = sends.pop_front()
            {
                socket.reap(oldest).await?;
            }
            sends.push_back(socket.send(buf));
            sequence += 1;
        }
        for rest in sends {
            socket.reap(rest).await?;
        }
        // The last window: everything comes out or is written off.
        let begun = self.node.core().now();
        while self.places.borrow().iter().any(Option::is_some) {
            self.node.core().sleep(Nanos::from_millis(1)).await;
            if self.node.core().now().since(begun) > LOST_AFTER {
                self.write_off();
            }
        }
        self.sending.set(false);
        Ok(())
    }

    /// Counts as lost what has not come out for too long.
    fn write_off(&self) {
        let now = self.node.core().now();
        let mut given = 0;
        for place in self.places.borrow_mut().iter_mut() {
            if place.is_some_and(|(_, at)| now.since(at) >= LOST_AFTER) {
                *place = None;
                given += 1;
            }
        }
        self.lost.set(self.lost.get() + u64::from(given));
        self.credit.give(given);
    }

    /// One of the receivers: takes what comes out and checks every byte.
    async fn receive(&self) -> Result<()> {
        let mut run = self.node.slab().run(self.plan.size_bytes)?;
        loop {
            run.set_len(self.plan.size_bytes);
            let Ok(received) = self.qp.recv(run).await else {
                // The queue pair is closed at the end; before that something is wrong.
                return if self.sending.get() { Err(self.qp.went_down("before everything came out")) } else { Ok(()) };
            };
            run = received.run;
            // The window is far below 2³² datagrams, so the low half of a sequence number names its place.
            let low = received.immediate.ok_or_else(|| Error::new(ErrorKind::Protocol, "a message without a sequence number"))?;
            let place = self.place(u64::from(low));
            let Some((sequence, begun)) = self.places.borrow_mut()[place].take_if(|(sequence, _)| *sequence as u32 == low) else {
                // Written off before it came.
                continue;
            };
            if run.len() != self.plan.size_bytes {
                return Err(Error::new(ErrorKind::Failed, format!("datagram {sequence} came out with {} bytes", run.len())));
            }
            Pattern::new(self.plan.seed, sequence)
                .check(run.as_slice())
                .map_err(|mismatch| Error::new(ErrorKind::Failed, format!("datagram {sequence} came out wrong: {mismatch}")))?;
            self.meter.borrow_mut().record(begun, self.node.core().now(), u64::from(self.plan.size_bytes));
            self.credit.give(1);
        }
    }
}

/// The client's side.
pub async fn request(node: &Node, channel: &mut Channel, plan: &Plan, server: SocketAddr) -> Result<Row> {
    let link = node.connect(channel, plan).await?;
    let core = node.core();
    let socket = UdpSocket::connect(core.uring(), server)?;
    // A power of two, so that places follow from the low bits alone.
    let window = plan.depth.next_power_of_two();
    let client = Rc::new(Client {
        node: node.clone(),
        qp: link.qp.clone(),
        plan: plan.clone(),
        credit: Credit::new(core.ops(), window),
        places: RefCell::new(vec![None; window as usize]),
        lost: Cell::new(0),
        meter: RefCell::new(node.meter()),
        sending: Cell::new(true),
    });
    let mut receivers = Crew::new();
    for _ in 0..2 * window {
        let client = client.clone();
        receivers.add(core, async move { client.receive().await })?;
    }
    // The receivers end by themselves only when one of them fails.
    let heeded = channel.heed(either(client.send(socket, link.stream), receivers.ended())).await;
    client.sending.set(false);
    let sent = match heeded {
        Ok(Either::Left(sent)) => sent,
        Ok(Either::Right(())) => receivers.take_failure().map_or(Ok(()), Err),
        Err(error) => {
            link.qp.disconnect();
            // They end because of it.
            let _ = receivers.finish().await;
            return Err(error);
        }
    };
    let row = Row::new(plan.flow, plan.transport).measured(&client.meter.borrow());
    let row = Row { lost: client.lost.get(), ..row };
    // The queue pair lives until the server has its tally: an acknowledgement that was lost is asked for again.
    let row = node.finish(channel, Some(&link.qp), row, sent).await;
    link.qp.disconnect();
    receivers.finish().await?;
    row
}
