//! Flow 5: ring all-reduce between peers.
//!
//! Every peer has a vector of floats in as many segments as there are peers, and a queue pair to each neighbour. In N−1 steps a
//! peer sends a segment to the right and adds its own to the one that comes from the left (reduce-scatter); in N−1 more the
//! finished segments go around (all-gather). The sum is made in the chunks the segment arrived in; those then are the segment,
//! and the old ones receive the next: nothing is copied.
//!
//! Who wants to stop says so in one more element of the vector, so that all stop after the same round.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, limits};
use crate::device::rdma::QpEndpoint;
use crate::device::{Op, ops};
use crate::flow::control::{Channel, Message, Plan, Tally};
use crate::flow::crew::{Crew, Either, either};
use crate::flow::node::{Node, Pair, RunClock};
use crate::flow::report::{Meter, Row};
use crate::mem::Run;

/// How long the ring waits for all its peers.
const GATHER_WITHIN: Nanos = Nanos::from_secs(60);

/// Element `index` of the vector of `rank` in `round`: a small whole number, so that sums of any order are exact.
fn element(seed: u64, rank: u32, round: u64, index: u64) -> f32 {
    let x = (seed ^ u64::from(rank) << 56 ^ round << 32 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x >> 40) & 0xff) as f32
}

/// One peer's place in the ring.
struct Member {
    node: Node,
    left: Rc<Pair>,
    right: Rc<Pair>,
    rank: u32,
    peers: u32,
    seed: u64,
    /// Elements of the vector, the stop element not among them.
    elements: u64,
    segment_bytes: u32,
    segments: Vec<Run>,
    /// Receives posted on the left queue pair, in order.
    posted: VecDeque<Op<Run>>,
    meter: Meter,
}

impl Member {
    /// Posts receives for two rounds, so that a neighbour who is ahead finds one.
    fn new(node: &Node, left: Rc<Pair>, right: Rc<Pair>, rank: u32, plan: &Plan) -> Result<Member> {
        let peers = plan.peers;
        let elements = u64::from(plan.size_bytes / 4);
        let segment_elements = (elements + 1).div_ceil(u64::from(peers));
        let segment_bytes = (segment_elements * 4) as u32;
        let segments: Result<Vec<Run>, _> = (0..peers).map(|_| node.slab().run(segment_bytes)).collect();
        let (segments, meter) = (segments?, node.meter());
        let node = node.clone();
        let mut member =
            Member { node, left, right, rank, peers, seed: plan.seed, elements, segment_bytes, segments, posted: VecDeque::new(), meter };
        for _ in 0..4 * (peers - 1) {
            let run = member.node.slab().run(segment_bytes)?;
            member.post(run)?;
        }
        Ok(member)
    }

    fn post(&mut self, mut run: Run) -> Result<()> {
        run.set_view(0, self.segment_bytes);
        let posted = self.left.submit_recv(run).map_err(|refused| self.left.explain("posting a receive", ops::refused(refused)))?;
        self.posted.push_back(posted);
        Ok(())
    }

    fn segment_at(&self, offset: i64) -> usize {
        (i64::from(self.rank) + offset).rem_euclid(i64::from(self.peers)) as usize
    }

    /// The numbers of segment `segment` begin at this element of the vector.
    fn first_of(&self, segment: usize) -> u64 {
        segment as u64 * u64::from(self.segment_bytes / 4)
    }

    fn fill(&mut self, round: u64, stop: bool) {
        let (seed, rank, elements) = (self.seed, self.rank, self.elements);
        for segment in 0..self.segments.len() {
            let first = self.first_of(segment);
            let floats = self.segments[segment].as_f32_mut().expect("segments are chunk-aligned");
            for (index, float) in (first..).zip(floats) {
                *float = match index {
                    _ if index < elements => element(seed, rank, round, index),
                    _ if index == elements => f32::from(u8::from(stop)),
                    _ => 0.0,
                };
            }
        }
    }

    /// Compares the result with a sum made here; says whether somebody wants to stop.
    fn check(&mut self, round: u64) -> Result<bool> {
        let (seed, peers, elements) = (self.seed, self.peers, self.elements);
        let mut stop = false;
        for segment in 0..self.segments.len() {
            let first = self.first_of(segment);
            let floats = self.segments[segment].as_f32_mut().expect("segments are chunk-aligned");
            for (index, float) in (first..).zip(floats) {
                let expected: f32 = match index {
                    _ if index < elements => (0..peers).map(|rank| element(seed, rank, round, index)).sum(),
                    _ if index == elements => {
                        stop = *float > 0.0;
                        continue;
                    }
                    _ => 0.0,
                };
                if *float != expected {
                    let what = format!("round {round}: element {index} of the sum is {float} instead of {expected}");
                    return Err(Error::new(ErrorKind::Failed, what));
                }
            }
        }
        Ok(stop)
    }

    /// Sends segment `out` to the right while the next message from the left comes in; returns what came.
    async fn step(&mut self, out: usize) -> Result<Run> {
        let empty = self.segments.swap_remove(out);
        let sending = self.right.send(empty, None);
        let incoming = self.posted.pop_front().expect("receives for two rounds are posted");
        let received = incoming
            .await
            .into_result()
            .map_err(|failed| self.left.explain(format!("receiving from rank {}", self.segment_at(-1)), failed))?;
        let sent = sending.await.map_err(|failed| self.right.explain(format!("sending to rank {}", self.segment_at(1)), failed))?;
        // swap_remove moved the last segment into the gap; put both back in their places.
        self.segments.push(sent);
        let last = self.segments.len() - 1;
        self.segments.swap(out, last);
        if received.len() != self.segment_bytes {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("a segment of {} bytes instead of {}", received.len(), self.segment_bytes),
            ));
        }
        Ok(received)
    }

    async fn round(&mut self) -> Result<()> {
        for step in 0..i64::from(self.peers) - 1 {
            let mut came = self.step(self.segment_at(-step)).await?;
            let into = self.segment_at(-step - 1);
            let mine = self.segments[into].as_f32_mut().expect("segments are chunk-aligned");
            let theirs = came.as_f32_mut().expect("segments are chunk-aligned");
            theirs.iter_mut().zip(mine).for_each(|(theirs, mine)| *theirs += *mine);
            let old = std::mem::replace(&mut self.segments[into], came);
            self.post(old)?;
        }
        for step in 0..i64::from(self.peers) - 1 {
            let came = self.step(self.segment_at(1 - step)).await?;
            let into = self.segment_at(-step);
            let old = std::mem::replace(&mut self.segments[into], came);
            self.post(old)?;
        }
        Ok(())
    }

    /// Rounds until the clock or a peer says stop. Every element of every round is checked.
    async fn run(&mut self, clock: &RunClock) -> Result<u64> {
        self.meter = self.node.meter();
        for round in 0.. {
            self.fill(round, !clock.goes_on(round + 1));
            let begun = self.node.core().now();
            self.round().await?;
            self.meter.record(begun, self.node.core().now(), self.elements * 4);
            if self.check(round)? {
                return Ok(round + 1);
            }
        }
        unreachable!("rounds are counted in 64 bits")
    }

    fn copied_bytes(&self) -> u64 {
        self.left.copied_bytes() + self.right.copied_bytes()
    }

    fn close(self) {
        self.left.disconnect();
        self.right.disconnect();
    }
}

/// A ring that is being gathered by the server.
pub struct Gathering {
    plan: Plan,
    joined: Cell<u32>,
    /// By rank: the left and the right queue pair.
    endpoints: RefCell<Vec<Option<[QpEndpoint; 2]>>>,
    ready: Cell<u32>,
    /// What rank 0, the server itself, found.
    result: RefCell<Option<Result<Tally>>>,
    abandoned: Cell<bool>,
}

impl Gathering {
    fn new(plan: &Plan) -> Rc<Gathering> {
        let endpoints = RefCell::new((0..plan.peers).map(|_| None).collect());
        // Of the first client's seed as much as `Ready` tells the others.
        let seed = u64::from(plan.seed as u32);
        Rc::new(Gathering {
            plan: Plan { seed, ..plan.clone() },
            joined: Cell::new(1),
            endpoints,
            ready: Cell::new(0),
            result: RefCell::new(None),
            abandoned: Cell::new(false),
        })
    }

    /// The ring among `waiting` that a client with `plan` belongs to, or a new one; and the client's rank in it.
    fn join(waiting: &mut Vec<Rc<Gathering>>, plan: &Plan) -> (Rc<Gathering>, u32) {
        waiting.retain(|ring| !ring.abandoned.get());
        let ring = waiting.iter().find(|ring| ring.takes(plan)).cloned().unwrap_or_else(|| {
            let ring = Gathering::new(plan);
            waiting.push(ring.clone());
            ring
        });
        let rank = ring.joined.get();
        ring.joined.set(rank + 1);
        if rank + 1 == plan.peers {
            waiting.retain(|other| !Rc::ptr_eq(other, &ring));
        }
        (ring, rank)
    }

    /// Whether a client that asks for `plan` can join. Each comes with a seed of its own; the ring has one.
    fn takes(&self, plan: &Plan) -> bool {
        self.plan == Plan { seed: self.plan.seed, ..plan.clone() } && !self.abandoned.get()
    }

    /// Waits until `done`; gathering a ring is not a hot path, so it looks every millisecond.
    async fn wait(&self, node: &Node, what: &str, done: impl Fn() -> bool) -> Result<()> {
        let begun = node.core().now();
        while !done() {
            if self.abandoned.get() {
                return Err(Error::new(ErrorKind::Failed, "a peer of the ring has gone"));
            }
            if node.core().now().since(begun) > GATHER_WITHIN {
                let what = format!("{what}: {} of {} peers after {} s", self.joined.get(), self.plan.peers, GATHER_WITHIN.as_secs_f64());
                return Err(Error::new(ErrorKind::Failed, what).remedy("start the other clients, or ask for fewer --peers"));
            }
            node.core().sleep(Nanos::from_millis(1)).await;
        }
        Ok(())
    }

    /// Ends when a peer has gone, and only then.
    async fn until_abandoned(&self, node: &Node) -> Error {
        while !self.abandoned.get() {
            node.core().sleep(Nanos::from_millis(10)).await;
        }
        Error::new(ErrorKind::Failed, "a peer of the ring has gone")
    }

    fn all_endpoints(&self) -> bool {
        self.endpoints.borrow().iter().all(Option::is_some)
    }

    /// The ends that the left and right queue pairs of `rank` connect to.
    fn neighbours(&self, rank: u32) -> [QpEndpoint; 2] {
        let endpoints = self.endpoints.borrow();
        let of = |rank: u32, side: usize| endpoints[(rank % self.plan.peers) as usize].as_ref().expect("all are there")[side].clone();
        [of(rank + self.plan.peers - 1, 1), of(rank + 1, 0)]
    }

    /// The server's own part: rank 0.
    async fn take_part(&self, node: &Node) -> Result<Tally> {
        let (left, right) = (node.new_qp(&self.plan)?, node.new_qp(&self.plan)?);
        self.endpoints.borrow_mut()[0] = Some([left.local(), right.local()]);
        self.wait(node, "gathering the ring", || self.all_endpoints()).await?;
        let [to_left, to_right] = self.neighbours(0);
        left.connect(&to_left)?;
        right.connect(&to_right)?;
        let mut member = Member::new(node, left, right, 0, &self.plan)?;
        self.ready.set(self.ready.get() + 1);
        let rounds = match self.wait(node, "starting the ring", || self.ready.get() == self.plan.peers).await {
            // The clients decide when to stop; this end never asks for it.
            // A neighbour that is gone sends nothing, and a receive waits for ever.
            Ok(()) => match either(member.run(&RunClock::endless()), self.until_abandoned(node)).await {
                Either::Left(rounds) => rounds,
                Either::Right(gone) => Err(gone),
            },
            Err(error) => Err(error),
        };
        let tally = Tally { verified: true, bytes_copied_user: member.copied_bytes(), ..node.rdma_tally(&member.left) };
        member.close();
        rounds.map(|operations| Tally { operations, ..tally })
    }
}

/// The server's side of one client: gathers the ring, takes part as rank 0, and passes endpoints on.
pub async fn serve(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    if !(2..=64).contains(&plan.peers) || plan.size_bytes / plan.peers + 4 > limits::IO_MAX_BYTES {
        return Err(Error::new(ErrorKind::Usage, format!("a ring of {} peers over {} bytes", plan.peers, plan.size_bytes)));
    }
    let (ring, rank) = Gathering::join(&mut node.gathering(), plan);
    let mut own = Crew::new();
    let mut manned = Ok(());
    if rank == 1 {
        let (ring, node) = (ring.clone(), node.clone());
        manned = own.add(&node.core().clone(), async move {
            let result = ring.take_part(&node).await;
            *ring.result.borrow_mut() = Some(result);
            Ok(())
        });
    }
    let outcome = match manned {
        Ok(()) => attend(node, channel, &ring, rank).await,
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        ring.abandoned.set(true);
    }
    own.finish().await?;
    outcome?;
    ring.wait(node, "finishing the ring", || ring.result.borrow().is_some()).await?;
    let result = ring.result.borrow();
    Ok(match result.as_ref().expect("waited for") {
        Ok(tally) => Tally { block_mode: None, ..tally.clone() },
        Err(error) => Tally { error: Some(error.to_string()), ..Tally::default() },
    })
}

async fn attend(node: &Node, channel: &mut Channel, ring: &Gathering, rank: u32) -> Result<()> {
    let seed = ring.plan.seed as u32;
    channel.send(&Message::Ready { stream: seed, grants: Vec::new(), rank }).await?;
    let endpoints: [QpEndpoint; 2] =
        channel.endpoints().await?.try_into().map_err(|_| Error::new(ErrorKind::Protocol, "a member of a ring has two queue pairs"))?;
    ring.endpoints.borrow_mut()[rank as usize] = Some(endpoints);
    ring.wait(node, "gathering the ring", || ring.all_endpoints()).await?;
    channel.send(&Message::Endpoints { endpoints: ring.neighbours(rank).to_vec() }).await?;
    match channel.answer().await? {
        Message::Go => ring.ready.set(ring.ready.get() + 1),
        other => return Err(channel.unexpected(&other, "go")),
    }
    ring.wait(node, "starting the ring", || ring.ready.get() == ring.plan.peers).await?;
    channel.send(&Message::Go).await?;
    let finished = match either(channel.receive(), ring.until_abandoned(node)).await {
        Either::Left(finished) => finished?,
        Either::Right(gone) => return Err(gone),
    };
    match finished {
        Message::Finished { .. } => Ok(()),
        other => Err(channel.unexpected(&other, "finished")),
    }
}

/// The client's side.
pub async fn request(node: &Node, channel: &mut Channel, plan: &Plan, _server: SocketAddr) -> Result<Row> {
    let (rank, seed) = match channel.answer().await? {
        Message::Ready { rank, stream, .. } => (rank, u64::from(stream)),
        other => return Err(channel.unexpected(&other, "ready")),
    };
    let (left, right) = (node.new_qp(plan)?, node.new_qp(plan)?);
    channel.send(&Message::Endpoints { endpoints: vec![left.local(), right.local()] }).await?;
    // The server answers when the last peer has come, which may take a while.
    let [to_left, to_right]: [QpEndpoint; 2] = match channel.receive().await? {
        Message::Endpoints { endpoints } => {
            endpoints.try_into().map_err(|_| Error::new(ErrorKind::Protocol, "a member of a ring has two neighbours"))?
        }
        other => return Err(channel.unexpected(&other, "endpoints")),
    };
    left.connect(&to_left)?;
    right.connect(&to_right)?;
    let mut member = Member::new(node, left, right, rank, &Plan { seed, ..plan.clone() })?;
    channel.send(&Message::Go).await?;
    match channel.receive().await? {
        Message::Go => {}
        other => return Err(channel.unexpected(&other, "go")),
    }
    // When the ring has broken the neighbours may be silent for ever.
    let worked = match channel.heed(member.run(&plan.clock(node.core()))).await {
        Ok(worked) => worked.map(drop),
        Err(broken) => {
            member.close();
            return Err(broken);
        }
    };
    let row = Row::new(plan.flow, plan.transport);
    // Close only after the server has finished too: the last acknowledgements may still be on their way.
    let mut row = row.measured(&member.meter);
    row.bytes_copied_user = member.copied_bytes();
    let row = node.finish(channel, None, row, worked).await;
    member.close();
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::FlowKind;
    use crate::flow::node::tests::{node_of, plan_of};
    use crate::reactor::CoreConfig;

    #[test]
    fn the_largest_ring_posts_its_receives_at_any_depth() {
        let Some(node) = node_of(1024, CoreConfig::default()) else { return };
        let plan = Plan { peers: 64, ..plan_of(FlowKind::RdmaToRdma) };
        let (left, right) = (node.new_qp(&plan).unwrap(), node.new_qp(&plan).unwrap());
        let member = Member::new(&node, left, right, 0, &plan).unwrap();
        assert_eq!(member.posted.len(), 4 * 63);
    }

    #[test]
    fn a_ring_of_another_kind_leaves_the_waiting_one_alone() {
        let small = Plan { peers: 3, ..plan_of(FlowKind::RdmaToRdma) };
        let large = Plan { size_bytes: 8192, ..small.clone() };
        let mut waiting = Vec::new();
        let (first, rank) = Gathering::join(&mut waiting, &small);
        assert_eq!(rank, 1);
        let (other, rank) = Gathering::join(&mut waiting, &large);
        assert!(rank == 1 && !Rc::ptr_eq(&first, &other));
        // With a seed of its own, as every client has.
        let (again, rank) = Gathering::join(&mut waiting, &Plan { seed: 7, ..small.clone() });
        assert!(rank == 2 && Rc::ptr_eq(&first, &again));
        let (again, rank) = Gathering::join(&mut waiting, &large);
        assert!(rank == 2 && Rc::ptr_eq(&other, &again) && waiting.is_empty());
        // One that a peer has left takes nobody.
        let (left, _) = Gathering::join(&mut waiting, &small);
        left.abandoned.set(true);
        let (fresh, rank) = Gathering::join(&mut waiting, &small);
        assert!(rank == 1 && !Rc::ptr_eq(&left, &fresh) && waiting.len() == 1);
    }
}
