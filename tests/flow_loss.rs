//! Flows over transports that lose messages, between two nodes on a network that loses, doubles, reorders and damages frames by seed.
//!
//! Nothing hangs; every operation is either done, with its bytes right, or counted as lost; every chunk comes back.

use std::net::{Ipv4Addr, TcpListener, TcpStream as StdStream};

use basin::base::{Nanos, Rng};
use basin::device::block::Disk;
use basin::device::rdma::{Hca, HcaEnv};
use basin::device::sim::disk::{Image, SimDisk, SimDiskConfig};
use basin::device::sim::network::{Faults, Network};
use basin::device::socket::TcpStream;
use basin::flow::control::{Channel, Message, Plan, Tally};
use basin::flow::extent::Extents;
use basin::flow::node::{Node, Place};
use basin::flow::report::{Row, json};
use basin::flow::{FlowKind, Transport, rdma_to_storage, storage_to_rdma};
use basin::mem::{PageKind, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, PollMode};
use futures::future::join;

/// Chunks of each node: 16 MiB.
const CHUNKS: u32 = 8192;
const COUNT: u64 = 400;

/// What a run goes through.
#[derive(Clone, Copy)]
struct Trial {
    flow: FlowKind,
    transport: Transport,
    size_bytes: u32,
    seed: u64,
    faults: Faults,
    lost_after_ms: u64,
    /// One in ten of the disk's operations takes so long.
    slow: Nanos,
}

const QUIET: Trial = Trial {
    flow: FlowKind::RdmaToStorage,
    transport: Transport::Uc,
    size_bytes: 9000,
    seed: 1,
    faults: Faults::NONE,
    lost_after_ms: 60_000,
    slow: Nanos::ZERO,
};

fn node(core: &Core, network: &Network, seed: u64, address: &str) -> Node {
    let pages = vec![PageKind::Plain];
    let region = Region::map(&RegionConfig { pages, ..RegionConfig::new(u64::from(CHUNKS) * 2048) }).unwrap();
    let slab = Slab::new(&region, CHUNKS).unwrap();
    core.adopt_slab(&slab);
    let node = Node::new(core, &slab, Place { post: None, rdma_cores: 1 });
    let env = HcaEnv::new(core.ops().clone(), region, Rng::seeded(seed));
    let hca = Hca::simulated(env, network.plug(address.parse().unwrap())).unwrap();
    core.attach(hca.queue());
    node.set_hca(Ok(hca));
    node
}

/// Both ends of one flow on one core; `None` where there is no io_uring.
fn run(trial: Trial) -> Option<(Row, Tally)> {
    // The simulated network does not wake a core that sleeps.
    let config = CoreConfig { poll: PollMode::Busy, ..CoreConfig::default() };
    let core = Core::new(config).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
    let network = Network::new(trial.seed, trial.faults);
    let (server, client) = (node(&core, &network, trial.seed + 1, "10.0.0.1:4791"), node(&core, &network, trial.seed + 2, "10.0.0.2:4791"));
    let config = SimDiskConfig { slow_ppm: 100_000, slow: trial.slow, ..SimDiskConfig::new(64 << 20) };
    let disk = Disk::simulated(core.ops(), SimDisk::new(config, core.ops(), Image::default(), Rng::seeded(trial.seed)));
    core.attach(disk.queue().unwrap());
    let extents = Extents::new(disk.info());
    server.set_disk(disk, 1, extents);
    let Trial { flow, transport, size_bytes, seed, lost_after_ms, .. } = trial;
    let (count, seconds, depth, peers, rdma) = (Some(COUNT), None, 8, 2, "soft:udp".to_owned());
    let plan = Plan { flow, transport, size_bytes, count, seconds, depth, seed, peers, rdma, lost_after_ms };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let streams = [StdStream::connect(address).unwrap(), listener.accept().unwrap().0];
    let [mut to_server, mut to_client] =
        streams.map(|stream| Channel::to_server(&core, TcpStream::attach(core.uring(), stream).unwrap(), "the other end".into()));
    let handle = core.clone();
    let slabs = [server.slab().clone(), client.slab().clone()];
    let main = async move {
        let serving = async {
            let tally = match flow {
                FlowKind::RdmaToStorage => rdma_to_storage::serve(&server, &mut to_client, &plan).await,
                _ => storage_to_rdma::serve(&server, &mut to_client, &plan).await,
            }
            .unwrap_or_else(|error| panic!("the server: {error}"));
            to_client.send(&Message::Result(tally.clone())).await.unwrap();
            tally
        };
        let asking = async {
            match flow {
                FlowKind::RdmaToStorage => rdma_to_storage::request(&client, &mut to_server, &plan, address).await,
                _ => storage_to_rdma::request(&client, &mut to_server, &plan, address).await,
            }
            .unwrap_or_else(|error| panic!("the client: {error}"))
        };
        let ended = handle.timeout(Nanos::from_secs(180), join(serving, asking)).await;
        let (tally, row) = ended.expect("it hangs");
        // What is shared comes home with a later turn.
        handle.sleep(Nanos::from_millis(1)).await;
        (row, tally)
    };
    let (row, tally) = core.run(main).unwrap();
    for slab in slabs {
        let census = slab.census();
        assert_eq!((census.free, census.total), (CHUNKS, CHUNKS), "{census}");
    }
    assert_eq!(core.ops().faults(), 0, "a completion without an operation");
    assert!(row.verified && row.error.is_none(), "{}", json(std::slice::from_ref(&row)));
    assert_eq!(row.operations + row.lost, COUNT, "each is done or lost: {}", json(std::slice::from_ref(&row)));
    assert!(tally.operations >= row.operations, "the server did {tally:?} and the client says {}", row.operations);
    // A request may be answered twice; a message is stored once.
    assert!(tally.operations <= COUNT || flow == FlowKind::StorageToRdma, "the server did {tally:?}");
    Some((row, tally))
}

/// Flows, transports and sizes that go together: a message of several packets, and one of one.
const CARRIED: [(FlowKind, Transport, u32); 4] = [
    (FlowKind::RdmaToStorage, Transport::Uc, 9000),
    (FlowKind::StorageToRdma, Transport::Uc, 9000),
    (FlowKind::RdmaToStorage, Transport::Ud, 1000),
    (FlowKind::StorageToRdma, Transport::Ud, 1000),
];

#[test]
fn nothing_is_lost_where_the_network_loses_nothing() {
    for (flow, transport, size_bytes) in CARRIED {
        let Some((row, tally)) = run(Trial { flow, transport, size_bytes, ..QUIET }) else { return };
        assert_eq!((row.operations, row.lost, row.late, tally.operations), (COUNT, 0, 0, COUNT), "{flow} {transport}");
    }
}

#[test]
fn every_operation_is_done_or_lost() {
    for (flow, transport, size_bytes) in CARRIED {
        for seed in 1..=6 {
            let trial = Trial { flow, transport, size_bytes, seed, faults: Faults::each(20_000), lost_after_ms: 30, ..QUIET };
            let Some((row, _)) = run(trial) else { return };
            assert!(row.lost > 0, "{flow} {transport}, seed {seed}: of 400 operations and 2 % of packets");
        }
    }
}

#[test]
fn what_comes_twice_is_taken_once() {
    for (flow, transport, size_bytes) in CARRIED {
        let faults = Faults { duplicate_ppm: 200_000, ..Faults::NONE };
        let Some((row, tally)) = run(Trial { flow, transport, size_bytes, faults, ..QUIET }) else { return };
        assert_eq!((row.operations, row.lost), (COUNT, 0), "{flow} {transport}");
        let is_connected = transport == Transport::Uc;
        assert!(row.late == 0 || !is_connected, "{flow} {transport}: a connection doubles nothing");
        assert!(tally.operations == COUNT || (flow, is_connected) == (FlowKind::StorageToRdma, false), "{flow} {transport}: {tally:?}");
    }
}

/// The disk, or the network, holds answers back for longer than they are waited for.
#[test]
fn late_answers_are_not_taken_for_others() {
    let mut late = 0;
    for (flow, transport, size_bytes) in CARRIED {
        for seed in 1..=4 {
            let faults = Faults { reorder_ppm: 200_000, delay: Nanos::from_millis(2), ..Faults::NONE };
            let slow = Nanos::from_millis(20);
            let Some((row, _)) = run(Trial { flow, transport, size_bytes, seed, faults, lost_after_ms: 12, slow }) else { return };
            assert!(row.lost > 0, "{flow} {transport}, seed {seed}");
            // A WRITE that comes late finds its window shut, and nobody is told.
            let is_told = flow == FlowKind::RdmaToStorage || transport == Transport::Ud;
            assert!(row.late > 0 || !is_told, "{flow} {transport}, seed {seed}: the trial shows nothing");
            late += row.late;
        }
    }
    println!("{late} late answers");
}
