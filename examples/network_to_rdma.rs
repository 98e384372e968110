//! Flow 3 in one process: UDP datagrams are SENT to an RDMA peer from the chunks they arrived in.
//!
//! `cargo build --example network_to_rdma && sudo target/debug/examples/network_to_rdma lo`: AF_XDP needs root. On `lo` it sends
//! the datagrams itself and knows their content; on another interface it says where to send them, and what the peer has must be
//! what came from the network.

mod packets;
mod pair;

use basin::base::error::ErrorKind;
use basin::base::{Error, Result};
use basin::flow::pattern::Pattern;
use basin::mem::{Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, launch};

const COUNT: u64 = 2000;
const BYTES: usize = 1400;

fn main() -> Result<()> {
    let usage = || Error::new(ErrorKind::Usage, "name an interface: network_to_rdma IFNAME");
    let ifname = std::env::args().nth(1).ok_or_else(usage)?;
    launch::<(), _, _, _>(vec![CoreConfig::default()], |_, core, _| forward(core, ifname.clone()))?.into_iter().collect()
}

async fn forward(core: Core, ifname: String) -> Result<()> {
    let region = Region::map(&RegionConfig::new(32 << 20))?;
    let packets = packets::Packets::open(&core, &packets::interface(&region, &ifname, &[packets::PORT])?)?;
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    let (near, far) = pair::connect(&pair::open(&core, &region)?, &pair::open(&core, &region)?)?;
    let ours = packets.begin(COUNT, BYTES)?;

    let mut forwarded = 0;
    while forwarded < COUNT {
        for packets::Datagram { buf, .. } in packets.next((COUNT - forwarded) as usize).await? {
            // The receive first, so that the peer is never asked to wait.
            let coming = far.qp.recv(slab.buf()?.into());
            let sum = crc32fast::hash(buf.as_slice());
            let sent = near.qp.send(buf, Some(forwarded as u32)).await;
            // The chunk is the kernel's to receive into again.
            sent.map(drop).map_err(|failed| failed.into_error("forwarding a datagram"))?;
            let came = coming.await.map_err(|failed| failed.into_error("receiving at the peer"))?;
            let checked = if ours { Pattern::new(7, forwarded).check(came.run.as_slice()) } else { Ok(()) };
            checked.map_err(|wrong| Error::new(ErrorKind::Failed, format!("datagram {forwarded}: {wrong}")))?;
            if crc32fast::hash(came.run.as_slice()) != sum {
                return Err(Error::new(ErrorKind::Failed, format!("datagram {forwarded} is not at the peer as it came from {ifname}")));
            }
            forwarded += 1;
        }
    }
    println!("{forwarded} datagrams went from {ifname} to an RDMA peer and are there as they came");
    Ok(())
}
