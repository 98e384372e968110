//! What a process brings to the flows: a core, its share of the region, a disk, an HCA, a packet port. Opened once, before the
//! first flow; what cannot be opened is remembered with its reason, and the flows that need it are skipped with that reason.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::block::{Disk, DiskParcel};
use crate::device::kernel_copies::{KernelCopies, Share};
use crate::device::rdma::endpoint::choose;
use crate::device::rdma::{Access, Hca, Qp, QpConfig, QpState};
use crate::flow::FlowKind;
use crate::flow::commit::Committer;
use crate::flow::control::{Channel, Grant, Message, Plan, Tally};
use crate::flow::crew::{Crew, Either, either};
use crate::flow::extent::{Extent, Extents};
use crate::flow::hub::Hub;
use crate::flow::log;
use crate::flow::post::Post;
use crate::flow::rdma_to_rdma::Gathering;
use crate::flow::report::{Meter, Row};
use crate::mem::{Buf, Exhausted, Ledger, Run, Slab, Window};
use crate::reactor::{Core, QueueId};

/// How often who waits for memory looks whether there is some.
const LOOK: Nanos = Nanos::from_micros(50);
/// How long nothing at all may move on the core while somebody waits for memory. Tasks that have taken part of what they need may
/// wait for each other, and then nobody gets any.
const PATIENCE: Nanos = Nanos::from_secs(10);

/// The disk and what is known of it.
pub struct Store {
    disk: Disk,
    committer: Committer,
    epoch: u32,
    extents: Arc<Extents>,
}

/// A node among those of its process: one on each core.
#[derive(Clone)]
pub struct Place {
    /// The mail to the others, if there are any.
    pub post: Option<Rc<Post>>,
    /// How many of the cores, the first ones, have an HCA.
    pub rdma_cores: usize,
}

impl Place {
    /// This core's number.
    pub fn core(&self) -> usize {
        self.post.as_ref().map_or(0, |post| post.number())
    }

    /// Cores of the process.
    pub fn cores(&self) -> usize {
        self.post.as_ref().map_or(1, |post| post.cores())
    }
}

/// A process's devices. Clones are the same node.
#[derive(Clone)]
pub struct Node {
    inner: Rc<Inner>,
}

struct Inner {
    core: Core,
    slab: Slab,
    place: Place,
    store: OnceCell<Store>,
    /// A device of the kernel may be taken out and come back.
    hca: RefCell<Option<Result<(Hca, QueueId), String>>>,
    hub: OnceCell<Result<Rc<Hub>, String>>,
    gathering: RefCell<Vec<Rc<Gathering>>>,
    copies: OnceCell<Arc<KernelCopies>>,
    /// Operations of the flow under way, for a progress bar.
    operations: Rc<Cell<u64>>,
}

impl Node {
    /// A node with no devices yet.
    pub fn new(core: &Core, slab: &Slab, place: Place) -> Node {
        let (core, slab) = (core.clone(), slab.clone());
        Node {
            inner: Rc::new(Inner {
                core,
                slab,
                place,
                store: OnceCell::new(),
                hca: RefCell::default(),
                hub: OnceCell::new(),
                gathering: RefCell::default(),
                copies: OnceCell::new(),
                operations: Rc::default(),
            }),
        }
    }

    /// The core everything runs on.
    pub fn core(&self) -> &Core {
        &self.inner.core
    }

    /// The core's share of the region.
    pub fn slab(&self) -> &Slab {
        &self.inner.slab
    }

    /// Which of the process's cores this is.
    pub fn place(&self) -> &Place {
        &self.inner.place
    }

    /// Brings in a disk whose header was claimed with `epoch`; what is stored goes into `extents`.
    pub fn set_disk(&self, disk: Disk, epoch: u32, extents: Arc<Extents>) {
        let store = Store { committer: Committer::new(&self.inner.core, &disk), disk, epoch, extents };
        assert!(self.inner.store.set(store).is_ok(), "a node has one disk");
    }

    /// The disk for the node of another core: what its [`Node::set_disk`] takes.
    pub fn share_disk(&self) -> Result<Option<(DiskParcel, u32, Arc<Extents>)>> {
        let share = |store: &Store| Ok((store.disk.detach()?, store.epoch, store.extents.clone()));
        self.inner.store.get().map(share).transpose()
    }

    /// Brings in an HCA, which the core polls from here on, or the reason why there is none.
    pub fn set_hca(&self, opened: Result<Hca>) {
        let entered = opened.map_err(|error| error.to_string()).map(|hca| {
            let queue = self.inner.core.attach(hca.queue());
            (hca, queue)
        });
        let before = self.inner.hca.replace(Some(entered));
        assert!(!matches!(before, Some(Ok(_))), "a node has one HCA");
    }

    /// The HCA's device is gone, for this reason. Waits until the flows under way have let go of it, and closes it.
    pub async fn lose_hca(&self, reason: &Error) {
        const LOOK: Nanos = Nanos::from_millis(10);
        let Some(Ok((hca, id))) = self.inner.hca.replace(Some(Err(reason.to_string()))) else { return };
        let queue = hca.queue();
        drop(hca);
        // Ours and the core's are left: nothing of a flow's is in flight any more.
        while Rc::strong_count(&queue) > 2 {
            self.inner.core.sleep(LOOK).await;
        }
        self.inner.core.detach(id);
    }

    /// Brings in a packet port's hub, or the reason why there is none.
    pub fn set_hub(&self, opened: Result<Rc<Hub>>) {
        assert!(self.inner.hub.set(opened.map_err(|error| error.to_string())).is_ok(), "a node has one hub");
    }

    /// Brings in what counts the kernel's copies.
    pub fn set_kernel_copies(&self, copies: Arc<KernelCopies>) {
        assert!(self.inner.copies.set(copies).is_ok(), "the kernel's copies are counted once");
    }

    /// A flow's share of what the kernel copies from now on, where that is counted.
    pub fn kernel_copies(&self) -> Option<Share> {
        self.inner.copies.get().map(KernelCopies::begin)
    }

    /// A meter that starts now and whose operations [`Node::operations`] shows.
    pub fn meter(&self) -> Meter {
        Meter::start(self.inner.core.now(), self.inner.operations.clone())
    }

    /// Operations the flow under way has completed.
    pub fn operations(&self) -> u64 {
        self.inner.operations.get()
    }

    /// A flow begins.
    pub fn reset_operations(&self) {
        self.inner.operations.set(0);
    }

    /// Why `plan` cannot run here, if it cannot.
    pub fn obstacle(&self, plan: &Plan) -> Option<String> {
        let flow = plan.flow;
        let store = match flow {
            FlowKind::NetworkToStorage => self.log_store().err(),
            flow => flow.uses_storage().then(|| self.store().err()).flatten(),
        };
        let hub = flow.uses_packets().then(|| self.hub().err()).flatten();
        let hca = plan.uses_rdma().then(|| self.hca().err()).flatten();
        hub.or(hca).or(store).or_else(|| plan.carried_by(self).err()).map(|error| format!("{error:#}"))
    }

    /// The disk.
    pub fn disk(&self) -> Result<&Disk> {
        self.store().map(|store| &store.disk)
    }

    /// Group commit for the disk.
    pub fn committer(&self) -> Result<&Committer> {
        self.store().map(|store| &store.committer)
    }

    /// How often the disk has been opened for writing; 0 without a disk.
    pub fn epoch(&self) -> u32 {
        self.store().map_or(0, |store| store.epoch)
    }

    fn store(&self) -> Result<&Store> {
        self.inner.store.get().ok_or_else(|| Error::new(ErrorKind::Unavailable, "no block device was given"))
    }

    /// The RDMA device.
    pub fn hca(&self) -> Result<Hca> {
        match &*self.inner.hca.borrow() {
            Some(Ok((hca, _))) => Ok(hca.clone()),
            Some(Err(reason)) => Err(Error::new(ErrorKind::Unavailable, reason.clone())),
            None => Err(Error::new(ErrorKind::Unavailable, "no RDMA device was given")),
        }
    }

    /// The streams of the packet port.
    pub fn hub(&self) -> Result<Rc<Hub>> {
        match self.inner.hub.get() {
            Some(Ok(hub)) => Ok(hub.clone()),
            Some(Err(reason)) => Err(Error::new(ErrorKind::Unavailable, reason.clone())),
            None => Err(Error::new(ErrorKind::Unavailable, "no network interface was given")),
        }
    }

    /// The rings that wait for more peers: each has a session, so there are no more than clients.
    pub fn gathering(&self) -> RefMut<'_, Vec<Rc<Gathering>>> {
        self.inner.gathering.borrow_mut()
    }

    /// Takes `blocks` of the device for a flow.
    pub fn allocate(&self, blocks: u64) -> Result<Extent> {
        self.store()?.extents.take(blocks)
    }

    /// Takes blocks of the device for a recording of `expected` bytes, or of a stream nobody knows the length of.
    pub fn allocate_for_stream(&self, expected: Option<u64>) -> Result<Extent> {
        let store = self.log_store()?;
        store.extents.take(store.extents.for_stream(expected)?)
    }

    /// The disk, if streams can be stored on it.
    fn log_store(&self) -> Result<&Store> {
        let store = self.store()?;
        let info = store.disk.info();
        if info.block_bytes != log::BLOCK {
            let what = format!("{} has blocks of {} bytes, streams need blocks of {}", info.path.display(), info.block_bytes, log::BLOCK);
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("give a file, or a device with blocks of 512 bytes"));
        }
        store.extents.for_stream(None)?;
        Ok(store)
    }

    /// A stream number nobody else has. With several cores it says which one the stream is on.
    pub fn new_stream(&self) -> u32 {
        self.inner.place.post.as_ref().map_or_else(|| self.inner.core.rng().u32(), |post| post.draw_stream())
    }

    /// Leases a chunk; waits a while when the slab is exhausted, for operations on their way will return some.
    pub async fn buf(&self) -> Result<Buf, Exhausted> {
        self.buf_while(|| true).await
    }

    /// Leases a run; waits a while when there is none that long.
    pub async fn run(&self, len_bytes: u32) -> Result<Run, Exhausted> {
        self.run_while(len_bytes, || true).await
    }

    /// Leases a chunk; waits for it as long as `wanted`. A flow that ends must not wait for what others keep.
    pub async fn buf_while(&self, wanted: impl Fn() -> bool) -> Result<Buf, Exhausted> {
        self.lease(Slab::buf, wanted).await
    }

    /// Leases a run; waits for it as long as `wanted`.
    pub async fn run_while(&self, len_bytes: u32, wanted: impl Fn() -> bool) -> Result<Run, Exhausted> {
        self.lease(|slab| slab.run(len_bytes), wanted).await
    }

    async fn lease<T>(&self, take: impl Fn(&Slab) -> Result<T, Exhausted>, wanted: impl Fn() -> bool) -> Result<T, Exhausted> {
        let (mut census, mut moved_at) = (self.slab().census(), self.core().now());
        loop {
            match take(self.slab()) {
                Err(exhausted) if wanted() => {
                    let (now, before) = (self.core().now(), std::mem::replace(&mut census, self.slab().census()));
                    if census != before {
                        moved_at = now;
                    } else if now.since(moved_at) > PATIENCE {
                        return Err(exhausted);
                    }
                    self.core().sleep(LOOK).await;
                }
                leased => return leased,
            }
        }
    }

    /// Leases a chunk for `qp`, or none once that is down.
    ///
    /// # Errors
    /// There is none, and nothing moves that could return one.
    pub async fn buf_for(&self, qp: &Pair) -> Result<Option<Buf>> {
        match self.buf_while(|| qp.is_up()).await {
            Err(exhausted) if qp.is_up() => Err(exhausted.into()),
            leased => Ok(leased.ok()),
        }
    }

    /// Leases a run for `qp`, or none once that is down.
    ///
    /// # Errors
    /// As [`Node::buf_for`].
    pub async fn run_for(&self, qp: &Pair, len_bytes: u32) -> Result<Option<Run>> {
        match self.run_while(len_bytes, || qp.is_up()).await {
            Err(exhausted) if qp.is_up() => Err(exhausted.into()),
            leased => Ok(leased.ok()),
        }
    }

    /// A queue pair for `plan`, not yet connected.
    pub fn new_qp(&self, plan: &Plan) -> Result<Rc<Pair>> {
        // Each slot has at most one request, one answer and one WRITE under way; receives are posted twice over.
        let depth = 4 * plan.depth.next_power_of_two().max(16);
        // A ring posts receives for two rounds, each of twice as many steps as it has other peers.
        let ring = if plan.flow == FlowKind::RdmaToRdma { plan.peers.saturating_mul(4) } else { 0 };
        let Some(service) = plan.transport.service() else {
            return Err(Error::new(ErrorKind::Usage, format!("there is no queue pair for {}", plan.transport)));
        };
        let ledger = Ledger::new();
        let config =
            QpConfig { transport: service, send_depth: depth, recv_depth: depth.max(ring), ledger: ledger.clone(), ..QpConfig::default() };
        let hca = self.hca()?;
        Ok(Rc::new(Pair { qp: hca.create_qp(&config)?, hca, ledger }))
    }

    /// The server's half of connecting a queue pair: its end first, then the client's.
    pub async fn accept(&self, channel: &mut Channel, plan: &Plan) -> Result<Rc<Pair>> {
        let qp = self.new_qp(plan)?;
        channel.send(&Message::Endpoints { endpoints: vec![qp.local()] }).await?;
        let [remote] = &channel.endpoints().await?[..] else {
            return Err(Error::new(ErrorKind::Protocol, "one queue pair was expected"));
        };
        qp.connect(remote)?;
        Ok(qp)
    }

    /// The client's half, until the server is ready.
    pub async fn connect(&self, channel: &mut Channel, plan: &Plan) -> Result<Link> {
        let [remote] = &channel.endpoints().await?[..] else {
            return Err(Error::new(ErrorKind::Protocol, "one queue pair was expected"));
        };
        let qp = self.new_qp(plan)?;
        // The devices' best packets may be larger than those of the wire they have in common.
        plan.fits(choose(&qp.local(), remote)?.1)?;
        // The server may send as soon as it is told, which is to find an end that hears it.
        qp.connect(remote)?;
        channel.send(&Message::Endpoints { endpoints: vec![qp.local()] }).await?;
        match channel.answer().await? {
            Message::Ready { stream, grants, .. } => Ok(Link { qp, stream, grants }),
            other => Err(channel.unexpected(&other, "ready")),
        }
    }

    /// Lets a crew that was set to work post its receives. A message that finds none is lost on some transports, and held up on others.
    pub async fn posted(&self) {
        self.core().yield_now().await;
    }

    /// Waits on the server until the client has finished, is gone, somebody of the crew fails, or all of it ended with the queue pair.
    pub async fn attend(&self, channel: &mut Channel, crew: &mut Crew, qp: Option<&Pair>) -> Result<()> {
        let ended = either(channel.receive(), crew.ended()).await;
        match ended {
            Either::Left(Ok(Message::Finished { .. })) => Ok(()),
            Either::Left(Ok(other)) => Err(channel.unexpected(&other, "finished")),
            Either::Left(Err(error)) => Err(error),
            // The crew's own error is the better one; see Crew::finish.
            Either::Right(()) => match qp.filter(|qp| !crew.has_failed() && !qp.is_up()) {
                Some(qp) => Err(qp.went_down("before the client had finished")),
                None => Ok(()),
            },
        }
    }

    /// Waits on the server until `done`, for a moment at most: a client that has everything says so over TCP, which may be heard
    /// before the acknowledgements its queue pair has sent. A queue pair taken down in between would flush what has arrived.
    pub async fn settle(&self, done: impl Fn() -> bool) {
        const WITHIN: Nanos = Nanos::from_secs(2);
        let begun = self.core().now();
        while !done() && self.core().now().since(begun) < WITHIN {
            self.core().sleep(Nanos::from_micros(100)).await;
        }
    }

    /// Ends a flow on the client: tells the server, takes its tally, and makes the row of both.
    pub async fn finish(&self, channel: &mut Channel, qp: Option<&Pair>, row: Row, worked: Result<()>) -> Result<Row> {
        let error = worked.err().map(|error| error.to_string());
        channel.send(&Message::Finished { operations: row.operations, error: error.clone() }).await?;
        let tally = match channel.receive().await {
            Ok(Message::Result(tally)) => tally,
            Ok(other) => return Err(channel.unexpected(&other, "result")),
            // Both failed: the row says both.
            Err(theirs) => match error {
                Some(ours) => return Err(Error::new(ErrorKind::Failed, format!("{ours}; {theirs}"))),
                None => return Err(theirs),
            },
        };
        let mut row = Row { error, ..row }.with_tally(&tally);
        row.bytes_copied_user += qp.map_or(0, Pair::copied_bytes);
        Ok(row)
    }

    /// The part of a tally that every flow with a disk has.
    pub fn tally(&self) -> Tally {
        Tally { block_mode: self.disk().ok().map(|disk| disk.info().backend.name().to_string()), ..Tally::default() }
    }

    /// The part of a tally that every flow over a queue pair has.
    pub fn rdma_tally(&self, qp: &Pair) -> Tally {
        Tally { rdma_backend: Some(qp.route()), bytes_copied_user: qp.copied_bytes(), ..self.tally() }
    }
}

/// A queue pair and what counts its copies. The tasks of a flow share it; any of them may end it for all.
pub struct Pair {
    qp: Qp,
    hca: Hca,
    ledger: Ledger,
}

impl std::ops::Deref for Pair {
    type Target = Qp;
    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl Pair {
    /// Opens a run to the peer.
    ///
    /// # Errors
    /// The device has no room for a further grant.
    pub async fn open(&self, run: Run, access: Access) -> Result<Window> {
        self.grant(run, access).await.map_err(|_| Error::new(ErrorKind::Unavailable, "the RDMA device has no room for a further window"))
    }

    /// Whether it has not gone down: what waits for it will come.
    pub fn is_up(&self) -> bool {
        self.state() != QpState::Error
    }

    /// The error of a task whose queue pair went down while it waited.
    pub fn went_down(&self, when: &str) -> Error {
        let why = self.why_down().map_or(String::new(), |why| format!(": {why}"));
        Error::new(ErrorKind::Failed, format!("the queue pair went down {when}{why}"))
    }

    /// Ends a grant.
    pub async fn revoke(&self, window: Window) -> Run {
        self.hca.revoke(window).await
    }

    /// Payload bytes copied by CPU for this queue pair.
    pub fn copied_bytes(&self) -> u64 {
        self.ledger.copied_bytes()
    }
}

/// A connected queue pair, and what the server said when it was ready.
pub struct Link {
    /// The queue pair.
    pub qp: Rc<Pair>,
    /// The stream to write into datagrams; for flow 4 the number of blocks.
    pub stream: u32,
    /// Windows of the server.
    pub grants: Vec<Grant>,
}

/// Says when a run has done what was asked: a count of operations or a time.
#[derive(Clone)]
pub struct RunClock {
    limit: Option<(Core, Nanos)>,
    count: u64,
}

impl RunClock {
    /// Never ends by itself.
    pub fn endless() -> RunClock {
        RunClock { limit: None, count: u64::MAX }
    }

    /// Whether operation `sequence` is still to be done.
    pub fn goes_on(&self, sequence: u64) -> bool {
        sequence < self.count && self.limit.as_ref().is_none_or(|(core, end)| core.now() < *end)
    }
}

impl Plan {
    /// A clock that starts now.
    pub fn clock(&self, core: &Core) -> RunClock {
        let limit = self.seconds.map(|seconds| (core.clone(), core.now().saturating_add(Nanos((seconds * 1e9) as u64))));
        RunClock { limit, count: self.count.unwrap_or(u64::MAX) }
    }

    /// How long an answer is waited for where it may be lost.
    pub fn lost_after(&self) -> Nanos {
        Nanos::from_millis(self.lost_after_ms)
    }

    /// Datagrams that may be unacknowledged.
    pub fn window(&self, per_depth: u32) -> u32 {
        (self.depth * per_depth).clamp(16, 1024)
    }

    /// Places of `stride_bytes` a flow needs on the device: one per operation, but no more than an eighth of the device holds;
    /// and at least twice the depth, so that no two operations under way share one.
    pub fn places(&self, node: &Node, stride_bytes: u32) -> Result<u64> {
        let disk = node.disk()?;
        let room = node.store()?.extents.share() * u64::from(disk.info().block_bytes) / u64::from(stride_bytes);
        Ok(self.count.unwrap_or(u64::MAX).min(room).max(2 * u64::from(self.depth)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::rdma::{HcaEnv, RdmaName};
    use crate::device::socket::TcpStream;
    use crate::flow::Transport;
    use crate::mem::{PageKind, Region, RegionConfig};
    use crate::reactor::CoreConfig;

    /// A node of `chunks` chunks of 2 KiB with an HCA and nothing else, or `None` where there is no io_uring.
    pub fn node_of(chunks: u32, config: CoreConfig) -> Option<Node> {
        node_with(chunks, config, &RdmaName::SoftMemory)
    }

    fn node_with(chunks: u32, config: CoreConfig, name: &RdmaName) -> Option<Node> {
        let core = Core::new(config).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(u64::from(chunks) << 11) }).unwrap();
        let slab = Slab::new(&region, chunks).unwrap();
        let node = Node::new(&core, &slab, Place { post: None, rdma_cores: 1 });
        let env = HcaEnv::new(core.ops().clone(), region, crate::base::Rng::from_kernel());
        node.set_hca(Hca::open(env, name));
        node.hca().unwrap();
        Some(node)
    }

    /// What a client may ask for, the least of it.
    pub fn plan_of(flow: FlowKind) -> Plan {
        let (size_bytes, seed, rdma) = (4096, 0, "soft:mem".into());
        let (count, seconds, depth, peers, lost_after_ms) = (Some(1), None, 1, 2, 2000);
        Plan { flow, transport: Transport::Rc, size_bytes, count, seconds, depth, seed, peers, rdma, lost_after_ms }
    }

    /// A server that is told of a queue pair may send to it at once.
    #[test]
    fn a_client_is_connected_before_it_tells_of_itself() {
        let Some(node) = node_with(128, CoreConfig::default(), &RdmaName::SoftShm) else { return };
        let (core, plan) = (node.core().clone(), plan_of(FlowKind::RdmaToStorage));
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [near, far] = [near, listener.accept().unwrap().0].map(|socket| TcpStream::attach(core.uring(), socket).unwrap());
        let env = HcaEnv::new(core.ops().clone(), node.slab().region().clone(), crate::base::Rng::from_kernel());
        let there = Hca::open(env, &RdmaName::SoftShm).unwrap();
        let end = there.create_qp(&QpConfig::default()).unwrap();
        let mut told = end.local();
        // The tag of nobody, whom the client would make the link with: connecting to it fails.
        told.link.as_mut().unwrap().tag = u128::MAX;
        let main = async move {
            let mut server = Channel::to_client(node.core(), far, "the client".into()).unwrap();
            server.send(&Message::Endpoints { endpoints: vec![told] }).await.unwrap();
            let mut client = Channel::to_server(node.core(), near, "the server".into());
            let error = node.connect(&mut client, &plan).await.err().expect("nobody is there");
            assert!(error.to_string().contains("the peer's socket"), "{error}");
            drop(client);
            let said = server.receive().await;
            assert!(said.is_err(), "it told of a queue pair that nobody reaches: {said:?}");
        };
        core.clone().run(main).unwrap();
    }

    /// The kernel may wait for it: nothing but the flows under way may keep it.
    #[test]
    fn a_device_that_is_gone_is_let_go_of_once_its_flows_have_and_may_come_back() {
        let Some(node) = node_of(128, CoreConfig::default()) else { return };
        let (core, plan) = (node.core().clone(), plan_of(FlowKind::RdmaToRdma));
        let device = Rc::downgrade(&node.hca().unwrap().queue());
        let main = {
            let (node, core) = (node.clone(), core.clone());
            async move {
                let pair = node.new_qp(&plan).unwrap();
                let losing = {
                    let node = node.clone();
                    let reason = Error::new(ErrorKind::Unavailable, "the RDMA device rxe9 was taken out");
                    core.spawn(async move { node.lose_hca(&reason).await })
                };
                core.sleep(Nanos::from_millis(30)).await;
                assert!(device.upgrade().is_some(), "a flow has it");
                assert!(node.new_qp(&plan).err().is_some_and(|error| error.to_string().contains("rxe9")));
                assert!(node.obstacle(&plan).is_some_and(|why| why.contains("rxe9")));
                drop(pair);
                assert!(core.timeout(Nanos::from_secs(30), losing).await.is_ok(), "its device was not let go of");
                assert!(device.upgrade().is_none());
                let env = HcaEnv::new(core.ops().clone(), node.slab().region().clone(), crate::base::Rng::seeded(2));
                node.set_hca(Hca::open(env, &RdmaName::SoftMemory));
                assert!(node.obstacle(&plan).is_none());
                drop(node.new_qp(&plan).unwrap());
            }
        };
        core.run(main).unwrap();
    }

    /// A session that ends while others have all the memory must not wait for them.
    #[test]
    fn a_crew_that_waits_for_memory_ends_with_its_queue_pair() {
        let Some(node) = node_of(128, CoreConfig::default()) else { return };
        let (core, slab, plan) = (node.core().clone(), node.slab().clone(), plan_of(FlowKind::RdmaToStorage));
        let others = slab.run(256 << 10).unwrap();
        let main = {
            let (node, core) = (node.clone(), core.clone());
            async move {
                let qp = node.new_qp(&plan).unwrap();
                let mut crew = Crew::new();
                for _ in 0..2 {
                    let (node, qp) = (node.clone(), qp.clone());
                    crew.add(&core.clone(), async move {
                        let Ok(run) = node.run_while(4096, || qp.is_up()).await else { return Ok(()) };
                        qp.recv(run).await.map(drop).map_err(|failed| failed.into_error("receiving"))
                    })
                    .unwrap();
                }
                core.sleep(Nanos::from_millis(2)).await;
                qp.disconnect();
                core.timeout(Nanos::from_secs(30), crew.finish()).await
            }
        };
        assert!(matches!(core.run(main).unwrap(), Ok(Ok(()))));
        drop(others);
        assert_eq!(slab.census().free, 128);
    }
}
