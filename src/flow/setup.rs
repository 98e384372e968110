//! From a user's words to a node: maps the region, opens what the flows of this end need, and says what came of it.
//!
//! What this machine cannot give (no privilege, no memory) is noted and the flows that need it are skipped; a wrong name, a
//! device in use or one with data on it ends the program, because the user meant something else.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::block::{Disk, DiskConfig, DiskParcel, header};
use crate::device::kernel_copies::KernelCopies;
use crate::device::packet::{Inlet, Interface, Link};
#[cfg(feature = "xdp")]
use crate::device::packet::{InterfaceConfig, Port, PortConfig, Splitter};
use crate::device::rdma::{Hca, HcaEnv, HcaEvent, RdmaName, VerbsConfig, port};
use crate::device::uring::Registration;
use crate::flow::Transport;
use crate::flow::crew::{Either, either};
use crate::flow::extent::Extents;
use crate::flow::hub::{Datagram, Hub, Unknown};
#[cfg(feature = "xdp")]
use crate::flow::log;
use crate::flow::node::{Node, Place};
use crate::flow::options::{DISK_BYTES, Options};
use crate::flow::post::{Client, Letter, Post};
use crate::flow::server::Say;
use crate::mem::{Region, RegionConfig, Slab};
use crate::reactor::Core;
use crate::wire::roce;

/// Who writes the header of a disk.
const OWNER: &str = "unified-rdma-test";

/// Entries of a queue's rings: 4 ms of a million packets a second in a small region, 16 ms in one of 256 MiB. A disk may take that
/// long for one flush.
const RINGS: [u32; 3] = [16_384, 8192, 4096];

/// What a queue receives packets with.
#[derive(Clone, Copy, Default)]
struct Room {
    /// Entries of its rings.
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has rings"))]
    ring: u32,
    /// Chunks: the rings', as many in inboxes, and as many in writes on their way.
    chunks: u32,
}

impl Room {
    fn of(region: &Region, queues: usize) -> Room {
        let most = region.chunks() / 2 / queues as u32;
        let ring = RINGS.into_iter().find(|ring| 3 * ring <= most).unwrap_or(RINGS[2]);
        Room { ring, chunks: most.min(3 * ring) }
    }
}

/// Which end is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the disk and the packet port.
    Server,
    /// Talks to the server with this address.
    Client(IpAddr),
}

/// What core 0 has opened for all.
#[derive(Clone)]
struct Supplies {
    region: Region,
    link: Link,
    /// The interface opened for packets, or why it is not; `None` where nobody wants packets.
    interface: Option<Result<Interface>>,
    mode: String,
    /// Queues of the interface that are ours: queue `i` is core `i`'s.
    queues: usize,
    room: Room,
    slab_chunks: u32,
    copies: Option<Arc<KernelCopies>>,
}

/// What a core gets from core 0.
pub struct Delivery {
    supplies: Supplies,
    /// Where to take the registration of the region over from.
    registration: Option<Arc<Registration>>,
    disk: Option<(DiskParcel, u32, Arc<Extents>)>,
}

/// Opens everything, or on a further core of the process what is its own. Each line of `say` is for the user.
///
/// # Errors
/// A wrong name, a device in use, a device with foreign data, no memory at all; or the process is to end.
pub async fn open(core: &Core, options: &Options, role: Role, post: Option<&Rc<Post>>, mut say: impl FnMut(String)) -> Result<Node> {
    match post {
        None => Ok(lead(core, options, role, None, &mut say).await?.0),
        Some(post) if post.number() > 0 => join(core, options, role, post, &mut say).await,
        Some(post) => {
            let (node, supplies, registration) = lead(core, options, role, Some(post), &mut say).await?;
            for to in 1..post.cores() {
                let (supplies, registration, disk) = (supplies.clone(), registration.clone(), node.share_disk()?);
                post.send(to, Letter::Delivery(Box::new(Delivery { supplies, registration, disk })));
            }
            let mut ready = 1;
            while ready < post.cores() {
                ready += usize::from(matches!(next_letter(core, post).await?, Letter::Ready));
            }
            Ok(node)
        }
    }
}

/// The next letter during set-up. What comes too early (packets of an earlier run) is nobody's, and is dropped.
async fn next_letter(core: &Core, post: &Post) -> Result<Letter> {
    match either(post.receive(), core.stopping()).await {
        Either::Left(letter) => Ok(letter),
        Either::Right(()) => Err(Error::new(ErrorKind::Failed, "interrupted while it was set up")),
    }
}

/// Core 0's part: what is opened once, and its own.
async fn lead(
    core: &Core,
    options: &Options,
    role: Role,
    post: Option<&Rc<Post>>,
    say: &mut dyn FnMut(String),
) -> Result<(Node, Supplies, Option<Arc<Registration>>)> {
    let cores = post.map_or(1, |post| post.cores());
    let link = Link::find(&options.interface)?;
    let region = Region::map(&RegionConfig::new(options.region_bytes))?;
    say(format!("region   {} on {}{}", human_bytes(region.bytes()), region.pages().name(), because(region.fallback())));
    let registration = register(core, &region, cores).unwrap_or_else(|error| {
        say(unregistered("", &error));
        None
    });
    let copies =
        options.kernel_copies.then(|| KernelCopies::open().map(Arc::new)).transpose().unwrap_or_else(|error| uncounted(&error, say));
    let wanted = packets_wanted(options, role);
    let queues = if wanted { queues_of(&link, cores) } else { 0 };
    let room = if wanted { Room::of(&region, queues) } else { Room::default() };
    let opened = wanted.then(|| {
        let interface = open_interface(options, &region, role)?;
        let packets = open_queue(core, options, &interface, 0, room, role, copies.as_deref())?;
        Ok::<_, Error>((interface, packets))
    });
    let (interface, packets) = match opened {
        None => (None, None),
        Some(Ok((interface, packets))) => {
            let whose = match queues {
                1 => "queue 0".to_owned(),
                queues => format!("queues 0-{}", queues - 1),
            };
            say(format!("network  {} {whose}, {}{}", link.name, packets.mode, because(packets.fallback.as_deref())));
            let all = link.rx_queues as usize;
            if queues < all && !link.is_loopback() {
                say(format!(
                    "network  what comes in on the other queues of {} stays with the kernel: --cores {all} has them all",
                    link.name
                ));
            }
            (Some(Ok(interface)), Some(packets))
        }
        Some(Err(error)) if error.kind() == ErrorKind::Unavailable => {
            say(format!("network  no AF_XDP on {}: {error}", link.name));
            (Some(Err(error)), None)
        }
        Some(Err(error)) => return Err(error),
    };
    let others = if packets.is_some() { queues as u32 - 1 } else { 0 };
    // A slab that was dealt for packets and not used is small change.
    let slab_chunks = (region.undealt().saturating_sub(others * room.chunks)) / cores as u32;
    let mode = packets.as_ref().map(|packets| packets.mode.clone()).unwrap_or_default();
    let mut supplies = Supplies { region, link, interface, mode, queues, room, slab_chunks, copies };
    let node = equip(core, options, role, post, &supplies, packets, say)?;
    if role == Role::Server {
        // A file that is there is as long as its owner made it.
        let size_bytes = options.disk_bytes.or_else(|| (!options.block.exists()).then_some(DISK_BYTES));
        let config = DiskConfig { force_device: options.force_device.clone(), size_bytes, ..DiskConfig::new(&options.block) };
        let disk = Disk::open(core.uring(), core.ops(), &config)?;
        if let Some(queue) = disk.queue() {
            core.attach(queue);
        }
        let claimed = header::claim(&disk, node.slab(), OWNER).await?;
        say(format!("storage  {}", disk.info().summary()));
        let extents = Extents::new(disk.info());
        node.set_disk(disk, claimed.epoch as u32, extents);
        if let Some(Err(error)) = supplies.copies.as_ref().map(|copies| copies.watch_storage(&options.block)) {
            supplies.copies = uncounted(&error, say);
        }
    }
    supplies.copies.iter().for_each(|copies| node.set_kernel_copies(copies.clone()));
    Ok((node, supplies, registration))
}

/// A further core's part.
async fn join(core: &Core, options: &Options, role: Role, post: &Rc<Post>, say: &mut dyn FnMut(String)) -> Result<Node> {
    let Delivery { supplies, registration, disk } = loop {
        if let Letter::Delivery(delivery) = next_letter(core, post).await? {
            break *delivery;
        }
    };
    // Before Linux 6.12 every core registers for itself, and the limit that was enough for the first may not be for all.
    if let Some(registration) = registration
        && let Err(error) = core.uring().share_registration(&registration)
    {
        say(unregistered(&format!(" for core {}", post.number()), &error));
    }
    let packets = match &supplies.interface {
        Some(Ok(interface)) if post.number() < supplies.queues => {
            Some(open_queue(core, options, interface, post.number(), supplies.room, role, supplies.copies.as_deref())?)
        }
        _ => None,
    };
    let node = equip(core, options, role, Some(post), &supplies, packets, &mut |_| ())?;
    if let Some((disk, epoch, extents)) = disk {
        let disk = disk.attach(core.uring(), core.ops())?;
        if let Some(queue) = disk.queue() {
            core.attach(queue);
        }
        node.set_disk(disk, epoch, extents);
    }
    supplies.copies.iter().for_each(|copies| node.set_kernel_copies(copies.clone()));
    post.send(0, Letter::Ready);
    Ok(node)
}

/// Registers the region with the core's ring; for several cores in one place that all of them share.
fn register(core: &Core, region: &Region, cores: usize) -> Result<Option<Arc<Registration>>> {
    if cores == 1 {
        return core.uring().register_region(region).map(|()| None);
    }
    let registration = Arc::new(Registration::new(region)?);
    core.uring().share_registration(&registration)?;
    Ok(Some(registration))
}

/// What is said of a region that is not registered. Plain reads and writes work without: the kernel pins pages for each of them.
fn unregistered(whose: &str, error: &Error) -> String {
    format!("region   not registered for storage{whose}, each I/O pins its memory instead: {error}")
}

/// A node with the core's share of the region, its HCA and its packets.
fn equip(
    core: &Core,
    options: &Options,
    role: Role,
    post: Option<&Rc<Post>>,
    supplies: &Supplies,
    packets: Option<Packets>,
    say: &mut dyn FnMut(String),
) -> Result<Node> {
    let Supplies { region, link, interface, mode, queues, slab_chunks, .. } = supplies;
    let cores = post.map_or(1, |post| post.cores());
    // RoCE over AF_XDP takes a queue to send from.
    let rdma_cores = if options.rdma == RdmaName::SoftXdp && matches!(interface, Some(Ok(_))) { *queues } else { cores };
    let slab = Slab::new(region, *slab_chunks)?;
    core.adopt_slab(&slab);
    let node = Node::new(core, &slab, Place { post: post.cloned(), rdma_cores });
    let (flows, roce) = packets.map_or((None, None), |packets| (packets.flows, packets.roce));
    match interface {
        Some(Ok(_)) if has_flows(options, role) => node.set_hub(Ok(Hub::new(core, &slab, flows, mode, options.port, post.cloned())?)),
        Some(Err(error)) => node.set_hub(Err(error.clone())),
        _ => {}
    }
    let number = node.place().core();
    if number >= rdma_cores {
        let what = format!("core {number} owns none of the {queues} receive queues of {}", link.name);
        node.set_hca(Err(Error::new(ErrorKind::Unavailable, what).remedy("give the interface more queues, or use soft:udp")));
        return Ok(node);
    }
    match open_hca(core, options, &node, link, role, roce) {
        Ok(hca) => {
            let alone = if rdma_cores < cores { format!(", on the {rdma_cores} of {cores} cores that own a queue") } else { String::new() };
            let caps = hca.caps();
            say(format!("rdma     {}{alone}{}", caps.name, because(caps.note.as_deref())));
            node.set_hca(Ok(hca));
        }
        Err(error) if error.kind() == ErrorKind::Unavailable && !matches!(options.rdma, RdmaName::Verbs(_)) => {
            say(format!("rdma     no {}: {error}", options.rdma));
            node.set_hca(Err(error));
        }
        Err(error) => return Err(error),
    }
    Ok(node)
}

/// Queues that cores own: one each, as far as there are some.
fn queues_of(link: &Link, cores: usize) -> usize {
    // A loopback interface has one queue; what answers on it is one socket.
    if link.is_loopback() { 1 } else { cores.min(link.rx_queues as usize).max(1) }
}

/// Says why nobody counts what the kernel copies.
fn uncounted(error: &Error, say: &mut dyn FnMut(String)) -> Option<Arc<KernelCopies>> {
    say(format!("copies   the kernel's are not counted: {error:#}"));
    None
}

fn because(reason: Option<&str>) -> String {
    reason.map_or(String::new(), |reason| format!(" ({reason})"))
}

/// A server receives packets; a client only where RDMA itself goes through AF_XDP, or the flows are frames of its own.
fn packets_wanted(options: &Options, role: Role) -> bool {
    has_flows(options, role) || options.rdma == RdmaName::SoftXdp
}

/// Whether packets of the flows come in here: on a client those that are answered by frames.
fn has_flows(options: &Options, role: Role) -> bool {
    role == Role::Server || options.transport == Transport::Raw
}

fn open_hca(core: &Core, options: &Options, node: &Node, link: &Link, role: Role, roce: Option<Inlet>) -> Result<Hca> {
    let like = match role {
        Role::Client(server) => server,
        Role::Server => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let address = link.address_for(like).or_else(|| link.addresses.first().map(|&(address, _)| address));
    // Without one the HCA would be on loopback, where no other host reaches it.
    if address.is_none() && !link.is_loopback() && matches!(options.rdma, RdmaName::Soft | RdmaName::SoftUdp | RdmaName::SoftXdp) {
        let error = Error::new(ErrorKind::Unavailable, format!("the interface {} has no IP address", link.name));
        return Err(error.remedy(format!("give it one (ip address add ADDRESS/PREFIX dev {}), or use soft:shm on one host", link.name)));
    }
    let (rng, region) = (Rng::from_kernel(), node.slab().region().clone());
    let verbs = VerbsConfig { gid_index: options.gid_index, ..VerbsConfig::default() };
    let uring = Some(core.uring().clone());
    let of_core = HcaEnv { uring, ..HcaEnv::new(core.ops().clone(), region, rng) };
    let mut env = HcaEnv { address, interface: link.index, link_mtu: Some(link.mtu), verbs, ..of_core };
    if let Some(inlet) = roce {
        env.udp_port = roce::UDP_PORT;
        env.inlets = vec![inlet];
        env.slab = Some(node.slab().clone());
        env.strays = node.place().post.as_ref().filter(|_| node.place().rdma_cores > 1).map(Post::strays);
    }
    Hca::open(env, &options.rdma)
}

struct Packets {
    mode: String,
    fallback: Option<String>,
    flows: Option<Inlet>,
    roce: Option<Inlet>,
}

#[cfg(feature = "xdp")]
fn open_interface(options: &Options, region: &Region, role: Role) -> Result<Interface> {
    let mut ports = Vec::new();
    if has_flows(options, role) {
        ports.push(options.port);
    }
    if options.rdma == RdmaName::SoftXdp {
        ports.push(roce::UDP_PORT);
    }
    let config = InterfaceConfig { headroom: log::HEADROOM, ..InterfaceConfig::new(&options.interface, &ports) };
    // Datagrams of the flows fit a chunk.
    let config = if options.rdma == RdmaName::SoftXdp { config.for_whole_mtu(region)? } else { config };
    Interface::open(region, &config)
}

#[cfg(feature = "xdp")]
fn open_queue(
    core: &Core,
    options: &Options,
    interface: &Interface,
    queue: usize,
    room: Room,
    role: Role,
    copies: Option<&KernelCopies>,
) -> Result<Packets> {
    // A slab of their own keeps the chunks of arriving packets in address order.
    let slab = Slab::new(interface.region(), room.chunks)?;
    core.adopt_slab(&slab);
    let config = PortConfig { receive_entries: room.ring, receive_chunks: room.chunks.min(room.ring), ..PortConfig::new(queue as u32) };
    let port = Port::open(core.ops(), &slab, interface, &config)?;
    core.attach(port.queue());
    copies.map_or(Ok(()), |copies| copies.watch_socket(port.cookie()))?;
    let (mode, fallback) = (port.mode().to_string(), interface.fallback().map(str::to_owned));
    let splitter = Splitter::new(core.ops(), port);
    let flows = has_flows(options, role).then(|| splitter.inlet(&[options.port]));
    let roce = (options.rdma == RdmaName::SoftXdp).then(|| splitter.inlet(&[roce::UDP_PORT]));
    Ok(Packets { mode, fallback, flows, roce })
}

#[cfg(not(feature = "xdp"))]
fn open_interface(_: &Options, _: &Region, _: Role) -> Result<Interface> {
    crate::device::packet::require()?;
    Err(Error::new(ErrorKind::Unavailable, "built without AF_XDP"))
}

#[cfg(not(feature = "xdp"))]
fn open_queue(_: &Core, _: &Options, interface: &Interface, _: usize, _: Room, _: Role, _: Option<&KernelCopies>) -> Result<Packets> {
    match *interface {}
}

/// The seed of a run's content.
pub fn seed(node: &Node) -> u64 {
    node.core().rng().u64()
}

/// Minds a device of the kernel: says what happens to its port; and when it is taken out, lets go of it, for which the kernel may wait,
/// and opens it again once one of its name is there. Until then flows that need it are refused with the reason.
async fn mind_hca(node: Node, options: Options, role: Role, say: Say) {
    /// How often it is looked for.
    const LOOK: Nanos = Nanos::from_secs(1);
    let RdmaName::Verbs(named) = &options.rdma else { return };
    let device = named.split(':').next().unwrap_or(named);
    let core = node.core();
    loop {
        let Ok(hca) = node.hca() else { return };
        loop {
            match hca.next_event().await {
                HcaEvent::PortDown => say(format!("rdma     the port of {named} is down: what is sent fails when its retries are used up")),
                HcaEvent::PortUp => say(format!("rdma     the port of {named} is up")),
                // Told by the flows.
                HcaEvent::QpError { .. } | HcaEvent::PeerGone { .. } => {}
                HcaEvent::DeviceGone => break,
            }
        }
        drop(hca);
        let reason = Error::new(ErrorKind::Unavailable, format!("the RDMA device {device} failed or was taken out"))
            .remedy(format!("it is used again as soon as there is one of this name: rdma link show {device}"));
        say(format!("rdma     {reason}"));
        node.lose_hca(&reason).await;
        let hca = loop {
            core.sleep(LOOK).await;
            if port::devices().iter().any(|there| there == device)
                && let Ok(link) = Link::find(&options.interface)
                // One that is there and does not open is not ready yet, or the kernel still waits for others to close it.
                && let Ok(hca) = open_hca(core, &options, &node, &link, role, None)
            {
                break hca;
            }
        };
        let caps = hca.caps();
        say(format!("rdma     {device} is back: {}{}", caps.name, because(caps.note.as_deref())));
        node.set_hca(Ok(hca));
    }
}

/// The tasks of a node beside its flows: the hub's, recordings of streams that begin by themselves, the mail, and the minder of the HCA.
/// `client` takes the clients that core 0 deals, and is told when one has gone.
pub fn start(node: &Node, options: &Options, role: Role, say: &Say, client: impl Fn(Option<Client>) + 'static) {
    let core = node.core();
    core.spawn(mind_hca(node.clone(), options.clone(), role, say.clone()));
    let unknown: Rc<Unknown> = match node.hub() {
        Err(_) => Rc::new(|_, _| ()),
        Ok(hub) => {
            let unknown = recorder(node, &hub);
            let told = unknown.clone();
            core.spawn(async move { hub.run(&*told).await });
            unknown
        }
    };
    let Some(post) = node.place().post.clone() else { return };
    let line = post.clone();
    core.spawn(async move { line.deliver().await });
    let node = node.clone();
    core.spawn(async move {
        let open = |letter| match (letter, node.hub()) {
            (Letter::Client(dealt), _) => client(Some(*dealt)),
            (Letter::Gone, _) => client(None),
            (Letter::Packet(parcels), _) => post.take_packet(parcels),
            (Letter::Datagram { parcel, received_ns, header, reply }, Ok(hub)) => {
                hub.deal(Datagram { buf: post.welcome(parcel), received_ns, header, reply }, &*unknown);
            }
            (Letter::Answer { reply, header }, Ok(hub)) => hub.answer(&reply, header),
            // Without a hub there are no streams; the rest is said during set-up alone.
            (Letter::Datagram { .. } | Letter::Answer { .. } | Letter::Delivery(_) | Letter::Ready, _) => {}
        };
        post.run(open).await;
    });
}

/// Records streams that begin by themselves.
fn recorder(node: &Node, hub: &Rc<Hub>) -> Rc<Unknown> {
    let (node, hub) = (node.clone(), hub.clone());
    Rc::new(move |stream, inbox| {
        let recording = crate::flow::network_to_storage::record_unknown(node.clone(), hub.clone(), stream, inbox);
        // At a peer's wish: a full task table refuses the stream.
        if node.core().try_spawn(recording).is_err() {
            hub.close(stream);
        }
    })
}
