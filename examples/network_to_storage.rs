//! Flow 1 in one process: UDP datagrams go to the disk from the chunks they arrived in, each with a timestamp in its header.
//!
//! `cargo build --example network_to_storage && sudo target/debug/examples/network_to_storage lo`: AF_XDP needs root. On `lo` it
//! sends the datagrams itself and knows their content; on another interface it says where to send them, and what comes back from
//! the disk must be what came from the network.

mod packets;

use basin::base::error::ErrorKind;
use basin::base::{Error, Lba, Result};
use basin::device::block::{Disk, DiskConfig, Durability};
use basin::flow::log::{self, Origin};
use basin::flow::pattern::Pattern;
use basin::mem::{Gather, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, launch};

const COUNT: u64 = 2000;
const BYTES: usize = 1400;

fn main() -> Result<()> {
    let usage = || Error::new(ErrorKind::Usage, "name an interface: network_to_storage IFNAME");
    let ifname = std::env::args().nth(1).ok_or_else(usage)?;
    launch::<(), _, _, _>(vec![CoreConfig::default()], |_, core, _| capture(core, ifname.clone()))?.into_iter().collect()
}

async fn capture(core: Core, ifname: String) -> Result<()> {
    let region = Region::map(&RegionConfig::new(32 << 20))?;
    let interface = packets::interface(&region, &ifname, &[packets::PORT])?;
    let path = std::env::temp_dir().join(format!("basin-example-{}", std::process::id()));
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig::sized(&path, 32 << 20))?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    let packets = packets::Packets::open(&core, &interface)?;
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    let block = disk.info().block_bytes;
    let ours = packets.begin(COUNT, BYTES)?;

    let (mut stored, mut head, mut writes) = (0, 0, Vec::new());
    // Of each payload as it came, for the end.
    let mut sums = Vec::with_capacity(COUNT as usize);
    while stored < COUNT {
        let mut gather = Gather::new();
        for packets::Datagram { buf, source, received_ns, .. } in packets.next((COUNT - stored) as usize).await? {
            sums.push(crc32fast::hash(buf.as_slice()));
            let origin = Origin { stream: 1, sequence: stored, source, port: packets::PORT, received_ns, epoch: 1 };
            let short = |_| Error::new(ErrorKind::Unavailable, "a datagram that is short or not plain IPv4: pack it (flow::log::Packed)");
            let full = |_| Error::new(ErrorKind::Failed, "a batch that does not fit a gather");
            gather.push(log::record_in_place(buf, &origin).map_err(short)?).map_err(full)?;
            stored += 1;
        }
        packets::pad(&mut gather, &slab, block)?;
        let (lba, len) = (Lba(head), gather.len_bytes());
        let written = disk.write_gather(lba, gather, Durability::AtFlush).await;
        written.map(drop).map_err(|failed| disk.explain("writing", lba, failed))?;
        writes.push((lba, len));
        head += u64::from(len / block);
    }
    disk.flush().await.map_err(|failed| disk.explain("flushing", Lba(0), failed))?;

    let (mut found, mut wrong) = (0, None);
    for (lba, len) in &writes {
        let run = disk.read(*lba, slab.run(*len)?).await.map_err(|failed| disk.explain("reading", *lba, failed))?;
        let walked = log::walk(run.as_slice(), 0, |header, payload| {
            found += 1;
            if let (true, Err(mismatch)) = (ours, Pattern::new(7, header.sequence).check(payload)) {
                wrong.get_or_insert(format!("datagram {}: {mismatch}", header.sequence));
            }
            if sums.get(header.sequence as usize) != Some(&crc32fast::hash(payload)) {
                wrong.get_or_insert(format!("datagram {} is not on the disk as it came from {ifname}", header.sequence));
            }
        });
        walked.map_err(|(at, error)| Error::new(ErrorKind::Failed, format!("the record at byte {at} after block {lba}: {error}")))?;
    }
    std::fs::remove_file(&path).map_err(|error| Error::io("removing the file", &error))?;
    match wrong {
        Some(wrong) => return Err(Error::new(ErrorKind::Failed, wrong)),
        None if found != COUNT => return Err(Error::new(ErrorKind::Failed, format!("{found} of {COUNT} datagrams are on the disk"))),
        None => println!("{found} datagrams went to the disk in {} writes and were read back as they came", writes.len()),
    }
    Ok(())
}
