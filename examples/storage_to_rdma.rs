//! Flow 4 in one process: blocks are read into chunks and WRITTEN from them to a peer's memory; a hot block is kept frozen and
//! answers without a read.
//!
//! `cargo run --example storage_to_rdma`: needs no privileges and no hardware.

mod pair;

use std::collections::HashMap;

use basin::base::error::ErrorKind;
use basin::base::{Error, Lba, Result};
use basin::device::block::{Disk, DiskConfig, Durability};
use basin::device::rdma::{Access, Remote};
use basin::flow::pattern::Pattern;
use basin::mem::{Region, RegionConfig, Shared, Slab};
use basin::reactor::{Core, CoreConfig, launch};

/// 4 MiB on the disk in blocks of 64 KiB, the first of which are hot.
const BLOCKS: u64 = 64;
const HOT: u64 = 8;
const REQUESTS: u64 = 256;
const BYTES: u32 = 64 << 10;

fn main() -> Result<()> {
    launch::<(), _, _, _>(vec![CoreConfig::default()], |_, core, _| serve(core))?.into_iter().collect()
}

async fn serve(core: Core) -> Result<()> {
    let region = Region::map(&RegionConfig::new(16 << 20))?;
    let slab = Slab::new(&region, region.chunks())?;
    core.adopt_slab(&slab);
    let path = std::env::temp_dir().join(format!("basin-example-{}", std::process::id()));
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig::sized(&path, 16 << 20))?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    let (server, client) = pair::connect(&pair::open(&core, &region)?, &pair::open(&core, &region)?)?;

    let lba_of = |block: u64| Lba(block * u64::from(BYTES / disk.info().block_bytes));
    for block in 0..BLOCKS {
        let mut run = slab.run(BYTES)?;
        Pattern::new(7, block).fill(run.as_mut_slice());
        let written = disk.write(lba_of(block), run, Durability::AtFlush).await;
        written.map(drop).map_err(|failed| disk.explain("writing", lba_of(block), failed))?;
    }

    let mut hot: HashMap<u64, Shared> = HashMap::new();
    let mut hits = 0;
    for request in 0..REQUESTS {
        // Every other request asks for a hot block.
        let block = if request % 2 == 0 { request / 2 % HOT } else { request % BLOCKS };
        let full = |_| Error::new(ErrorKind::Unavailable, "no room for a further window");
        let window = client.qp.grant(slab.run(BYTES)?, Access::WRITE).await.map_err(full)?;
        let shared = match hot.get(&block) {
            Some(kept) => {
                hits += 1;
                kept.clone()
            }
            None => {
                let read = disk.read(lba_of(block), slab.run(BYTES)?).await;
                read.map_err(|failed| disk.explain("reading", lba_of(block), failed))?.freeze()
            }
        };
        if block < HOT {
            hot.insert(block, shared.clone());
        }
        let written = server.qp.write(shared, Remote::of(&window), None).await;
        written.map(drop).map_err(|failed| failed.into_error("writing to the peer"))?;
        let got = client.hca.revoke(window).await;
        let checked = Pattern::new(7, block).check(got.as_slice());
        checked.map_err(|wrong| Error::new(ErrorKind::Failed, format!("block {block}: {wrong}")))?;
    }
    println!("{REQUESTS} blocks of {BYTES} bytes went to a peer, {hits} of them without a read; all are right");
    std::fs::remove_file(&path).map_err(|error| Error::io("removing the file", &error))
}
