//! Flow 2 in one process: a peer WRITEs into a window, and the chunks it landed in go to the disk as they are.
//!
//! `cargo run --example rdma_to_storage`: needs no privileges and no hardware.

mod pair;

use basin::base::error::ErrorKind;
use basin::base::{Error, Lba, Result};
use basin::device::block::{Disk, DiskConfig, Durability};
use basin::device::rdma::{Access, Remote};
use basin::flow::pattern::Pattern;
use basin::mem::{Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, launch};

/// 8 MiB in messages of 64 KiB.
const MESSAGES: u64 = 128;
const BYTES: u32 = 64 << 10;

fn main() -> Result<()> {
    launch::<(), _, _, _>(vec![CoreConfig::default()], |_, core, _| store(core))?.into_iter().collect()
}

async fn store(core: Core) -> Result<()> {
    let region = Region::map(&RegionConfig::new(16 << 20))?;
    let slab = Slab::new(&region, region.chunks())?;
    core.adopt_slab(&slab);
    let path = std::env::temp_dir().join(format!("basin-example-{}", std::process::id()));
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig::sized(&path, 16 << 20))?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    let (client, server) = pair::connect(&pair::open(&core, &region)?, &pair::open(&core, &region)?)?;

    let blocks = u64::from(BYTES / disk.info().block_bytes);
    for message in 0..MESSAGES {
        let full = |_| Error::new(ErrorKind::Unavailable, "no room for a further window");
        let window = server.qp.grant(slab.run(BYTES)?, Access::WRITE).await.map_err(full)?;
        let mut run = slab.run(BYTES)?;
        Pattern::new(7, message).fill(run.as_mut_slice());
        let written = client.qp.write(run, Remote::of(&window), None).await;
        drop(written.map_err(|failed| failed.into_error("writing to the peer"))?);
        // Nobody looks at what a peer can still change: the window is closed first.
        let landed = server.hca.revoke(window).await;
        let lba = Lba(message * blocks);
        disk.write(lba, landed, Durability::AtFlush).await.map(drop).map_err(|failed| disk.explain("writing", lba, failed))?;
    }
    disk.flush().await.map_err(|failed| disk.explain("flushing", Lba(0), failed))?;

    for message in 0..MESSAGES {
        let lba = Lba(message * blocks);
        let run = disk.read(lba, slab.run(BYTES)?).await.map_err(|failed| disk.explain("reading", lba, failed))?;
        let checked = Pattern::new(7, message).check(run.as_slice());
        checked.map_err(|wrong| Error::new(ErrorKind::Failed, format!("message {message}: {wrong}")))?;
    }
    println!("{MESSAGES} messages of {BYTES} bytes went from a peer to {} and were read back", path.display());
    std::fs::remove_file(&path).map_err(|error| Error::io("removing the file", &error))
}
