//! Captures multicast feeds, as a trading firm does: every datagram goes to the disk with its time of receipt, from the chunk it
//! arrived in, and is read back for gaps and inter-arrival times.
//!
//! `cargo build --release --example multicast_capture && sudo target/release/examples/multicast_capture eth0 239.1.1.1:5000`
//! captures until Ctrl-C; see `--help`. AF_XDP needs root.
//!
//! Times are the system clock's, read once for all datagrams taken from the ring together, right after they were taken. So a
//! time is never before the arrival, and later by the wake-up (about 20 µs; `--busy` does not sleep) or, under load, by the batch
//! before it. The NIC's own times are not read yet; the program says whether this driver has them.

mod packets;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;

use basin::base::error::ErrorKind;
use basin::base::{Error, Lba, Nanos, Result};
use basin::device::block::{Disk, DiskConfig, Durability, header};
use basin::device::packet::{Link, features};
use basin::flow::crew::{Either, either};
use basin::flow::log::{self, Origin, Packed};
use basin::flow::readback::{Export, each_record};
use basin::mem::{Gather, Ledger, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, PollMode, launch};
use clap::Parser;
use hdrhistogram::Histogram;
use packets::{BATCH, Datagram, Packets};
use socket2::{InterfaceIndexOrAddress, SockRef};

/// The disk's header takes its first block; records begin here.
const DATA_BEGINS: u64 = 64 << 10;
/// Writes on their way at once, of up to 510 KiB each.
const WRITES: usize = 4;

/// Captures UDP multicast groups to a disk.
#[derive(Clone, Parser)]
struct Args {
    /// The interface to receive on.
    interface: String,
    /// Groups and ports, such as 239.1.1.1:5000. All else that is sent to these ports is dropped.
    #[arg(required = true)]
    groups: Vec<SocketAddrV4>,
    /// Where to store: a file, which is made, or a block device.
    #[arg(long, default_value = "capture.basin")]
    file: PathBuf,
    /// The size of the file.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    size: u64,
    /// End after so many datagrams.
    #[arg(long)]
    count: Option<u64>,
    /// End after so long.
    #[arg(long)]
    seconds: Option<u64>,
    /// Where in a datagram the feed's own number of it is, 8 bytes, big-endian: then gaps are those of the feed. Without it
    /// datagrams are numbered as they come, and there are none.
    #[arg(long, value_name = "BYTE")]
    number_at: Option<usize>,
    /// Export to this pcapng file.
    #[arg(long)]
    export: Option<PathBuf>,
    /// Never sleep.
    #[arg(long)]
    busy: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let poll = if args.busy { PollMode::Busy } else { PollMode::Adaptive };
    launch::<(), _, _, _>(vec![CoreConfig { poll, ..CoreConfig::default() }], |_, core, _| run(core, args.clone()))?.into_iter().collect()
}

async fn run(core: Core, args: Args) -> Result<()> {
    let region = Region::map(&RegionConfig::new(64 << 20))?;
    let ports: Vec<u16> = args.groups.iter().map(SocketAddrV4::port).collect();
    let interface = packets::interface(&region, &args.interface, &ports)?;
    core.uring().register_region(&region)?;
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig::sized(&args.file, args.size << 20))?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    let packets = Packets::open(&core, &interface)?;
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    let epoch = header::claim(&disk, &slab, "multicast_capture").await?.epoch as u32;
    let link = packets.port().interface().link();
    let _membership = join(&args.groups, link)?;
    let nic_times = features::xdp_features(link.index)?.is_some_and(|features| features.receive_times);
    let nic_times = if nic_times { "the driver has times of its own, not used" } else { "the driver has no times of its own" };
    println!("times: the system clock, one for each batch; {nic_times}");
    println!("capturing {} groups to {}; end with Ctrl-C", args.groups.len(), args.file.display());

    let mut capture = Capture { core: &core, args: &args, slab: &slab, disk: &disk, epoch, next: BTreeMap::new(), ledger: Ledger::new() };
    let stored = capture.store(&packets).await?;
    let kernel = packets.port().stats()?.kernel;
    let dropped = kernel.rx_dropped + kernel.rx_ring_full;
    println!("{stored} datagrams stored, {dropped} dropped by the kernel for want of chunks or room");
    println!("{} bytes copied: datagrams under {} bytes are packed", capture.ledger.copied_bytes(), log::PACK_BELOW);
    report(&args, &disk, &slab, epoch, stored).await
}

/// Tells the kernel to join, so that switch and NIC deliver the groups. Nothing is read from the socket; its end is the end of
/// the membership. The XDP program takes the datagrams by their port before any socket sees them.
fn join(groups: &[SocketAddrV4], link: &Link) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|error| Error::io("opening a socket to join with", &error))?;
    for group in groups {
        let joined = SockRef::from(&socket).join_multicast_v4_n(group.ip(), &InterfaceIndexOrAddress::Index(link.index));
        joined.map_err(|error| Error::io(format!("joining {} on {}", group.ip(), link.name), &error))?;
    }
    Ok(socket)
}

struct Capture<'a> {
    core: &'a Core,
    args: &'a Args,
    slab: &'a Slab,
    disk: &'a Disk,
    epoch: u32,
    /// The next number of each group where the feed has none.
    next: BTreeMap<Ipv4Addr, u64>,
    ledger: Ledger,
}

impl Capture<'_> {
    /// Stores what comes until it is enough; how many datagrams that were.
    async fn store(&mut self, packets: &Packets) -> Result<u64> {
        let block = self.disk.info().block_bytes;
        let most = self.args.count.unwrap_or(u64::MAX);
        let end = self.args.seconds.map(|seconds| self.core.now().saturating_add(Nanos::from_secs(seconds)));
        let (mut stored, mut head) = (0, DATA_BEGINS / u64::from(block));
        let mut writes = VecDeque::new();
        while stored < most && !self.core.is_stopping() {
            let left = end.map_or(Nanos::from_secs(3600), |end| end.since(self.core.now()));
            if left == Nanos(0) {
                break;
            }
            let datagrams = packets.take((most - stored).min(BATCH as u64) as usize)?;
            if datagrams.is_empty() {
                let _: Either<bool, ()> = either(packets.wait(left), self.core.stopping()).await;
                continue;
            }
            let (gather, count) = self.records(datagrams)?;
            let (lba, blocks) = (Lba(head), u64::from(gather.len_bytes() / block));
            if count == 0 {
                continue;
            }
            if (head + blocks) * u64::from(block) > self.disk.info().capacity_bytes {
                println!("{} is full", self.args.file.display());
                break;
            }
            (stored, head) = (stored + count, head + blocks);
            if writes.len() == WRITES {
                ended(writes.pop_front()).await?;
            }
            let disk = self.disk.clone();
            writes.push_back(self.core.spawn(async move {
                let written = disk.write_gather(lba, gather, Durability::AtFlush).await;
                written.map(drop).map_err(|failed| disk.explain("writing", lba, failed))
            }));
        }
        while !writes.is_empty() {
            ended(writes.pop_front()).await?;
        }
        self.disk.flush().await.map_err(|failed| self.disk.explain("flushing", Lba(0), failed))?;
        Ok(stored)
    }

    /// What came, as whole blocks of records: from the chunks it came in, short datagrams packed together.
    fn records(&mut self, datagrams: Vec<Datagram>) -> Result<(Gather, u64)> {
        let (mut gather, mut pack, mut count) = (Gather::new(), None::<Packed>, 0);
        let full = |_| Error::new(ErrorKind::Failed, "a batch that does not fit a gather");
        for Datagram { buf, source, destination, received_ns } in datagrams {
            let SocketAddr::V4(group) = destination else { continue };
            if !self.args.groups.contains(&group) {
                continue;
            }
            let sequence = self.number(*group.ip(), buf.as_slice());
            let (stream, epoch) = (group.ip().to_bits(), self.epoch);
            let origin = Origin { stream, sequence, source, port: group.port(), received_ns, epoch };
            count += 1;
            let short = match log::record_in_place(buf, &origin) {
                Ok(record) => {
                    gather.push(record).map_err(full)?;
                    continue;
                }
                Err(short) => short,
            };
            if let Some(pack) = &mut pack
                && pack.push(short.as_slice(), &origin, &self.ledger)
            {
                continue;
            }
            let mut fresh = Packed::new(self.slab.buf()?);
            if !fresh.push(short.as_slice(), &origin, &self.ledger) {
                return Err(Error::new(ErrorKind::Failed, format!("a datagram of {} bytes does not fit a chunk", short.len())));
            }
            if let Some(done) = pack.replace(fresh) {
                gather.push(done.finish()).map_err(full)?;
            }
        }
        if let Some(pack) = pack {
            gather.push(pack.finish()).map_err(full)?;
        }
        packets::pad(&mut gather, self.slab, self.disk.info().block_bytes)?;
        Ok((gather, count))
    }

    /// The feed's number of a datagram, or ours. A datagram too short to have one, a heartbeat, gets the next.
    fn number(&mut self, group: Ipv4Addr, payload: &[u8]) -> u64 {
        let next = self.next.entry(group).or_default();
        let said = self.args.number_at.and_then(|at| payload.get(at..at.checked_add(8)?)?.try_into().ok());
        let number = said.map_or(*next, u64::from_be_bytes);
        *next = number.wrapping_add(1);
        number
    }
}

/// A write's end.
async fn ended(write: Option<basin::reactor::Task<Result<()>>>) -> Result<()> {
    let Some(write) = write else { return Ok(()) };
    write.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))?
}

/// Reads back what this capture has stored, prints what there is of each group, and exports it.
async fn report(args: &Args, disk: &Disk, slab: &Slab, epoch: u32, stored: u64) -> Result<()> {
    let mut export = args.export.as_deref().map(Export::create).transpose()?;
    let mut feeds: BTreeMap<Ipv4Addr, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    let damaged = each_record(disk, slab, |header, payload| {
        // Others are of captures before this one.
        if header.epoch != epoch {
            return Ok(());
        }
        let group = Ipv4Addr::from_bits(header.stream);
        let (numbers, times) = feeds.entry(group).or_default();
        numbers.push(header.sequence);
        times.push(header.received_ns);
        export.as_mut().map_or(Ok(()), |export| export.packet(header, Some(IpAddr::V4(group)), payload))
    })
    .await?;
    let found: usize = feeds.values().map(|(numbers, _)| numbers.len()).sum();
    for (group, (mut numbers, mut times)) in feeds {
        numbers.sort_unstable();
        times.sort_unstable();
        let (mut gaps, mut missing) = (0, 0);
        for step in numbers.windows(2).map(|pair| pair[1] - pair[0]).filter(|&step| step > 1) {
            (gaps, missing) = (gaps + 1, missing + step - 1);
        }
        let (count, first, last) = (numbers.len(), numbers[0], numbers[numbers.len() - 1]);
        println!("{group}: {count} datagrams, numbers {first} to {last}, {gaps} gaps, {missing} missing");
        let mut between: Histogram<u64> = Histogram::new(3).expect("three digits are possible");
        times.windows(2).for_each(|pair| between.record(pair[1] - pair[0]).expect("it grows"));
        let us = |quantile| between.value_at_quantile(quantile) as f64 / 1000.0;
        println!("{group}: inter-arrival p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs", us(0.5), us(0.99), us(0.999), us(1.0));
    }
    if let (Some(export), Some(path)) = (export, &args.export) {
        println!("exported {} packets to {}", export.finish()?, path.display());
    }
    match damaged.first() {
        Some((at, error)) => Err(Error::new(ErrorKind::Failed, format!("the record at byte {at} of {}: {error}", args.file.display()))),
        None if found as u64 != stored => Err(Error::new(ErrorKind::Failed, format!("{found} of {stored} datagrams are on the disk"))),
        None => Ok(()),
    }
}
