//! A block cache: clients ask for blocks of a disk over RDMA. A block that is in memory is written to the client from the chunks
//! it was read into, as often as it is asked for and to several clients at once; any other is read from the disk first and takes
//! the place of one that was not asked for lately.
//!
//! `cargo run --release --example block_cache`: needs no privileges and no hardware. Server and clients are one process; with an
//! argument the disk is that file, which is made.

mod pair;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use basin::base::error::ErrorKind;
use basin::base::{Error, Lba, Result, Rng};
use basin::device::block::{Disk, DiskConfig, Durability};
use basin::device::rdma::{Access, Remote};
use basin::flow::pattern::Pattern;
use basin::mem::{Buf, Region, RegionConfig, Run, Shared, Slab};
use basin::reactor::{Core, CoreConfig, launch};
use hdrhistogram::Histogram;

/// 64 MiB on the disk in blocks of 16 KiB, and room for an eighth of them in memory.
const BLOCKS: u64 = 4096;
const BYTES: u32 = 16 << 10;
const CACHED: usize = 512;
/// Each client has its own queue pair and one request under way.
const CLIENTS: u64 = 4;
const REQUESTS: u64 = 8000;

/// A request is three numbers of 8 bytes: the block, and the window to put it in.
const REQUEST_BYTES: u32 = 24;
/// The answer's immediate value.
const HIT: u32 = 1;
const MISS: u32 = 0;

fn main() -> Result<()> {
    let given = std::env::args().nth(1);
    let path = given.clone().map_or_else(|| std::env::temp_dir().join(format!("basin-example-{}", std::process::id())), Into::into);
    let ran = launch::<(), _, _, _>(vec![CoreConfig::default()], |_, core, _| run(core, DiskConfig::sized(&path, 80 << 20)));
    if given.is_none() {
        // An error before this one is the better one to tell.
        let _ = std::fs::remove_file(&path);
    }
    ran?.into_iter().collect()
}

async fn run(core: Core, config: DiskConfig) -> Result<()> {
    let region = Region::map(&RegionConfig::new(64 << 20))?;
    let slab = Slab::new(&region, region.chunks())?;
    core.adopt_slab(&slab);
    // With little locked memory each read pins its chunks instead, at some cost.
    if let Err(error) = core.uring().register_region(&region) {
        println!("not registered for storage: {error}");
    }
    let disk = Disk::open(core.uring(), core.ops(), &config)?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    fill(&disk, &slab).await?;

    let server = Rc::new(Server { disk, slab: slab.clone(), cache: RefCell::new(Clock::new(CACHED)), hits: Cell::new(0) });
    let (server_hca, client_hca) = (pair::open(&core, &region)?, pair::open(&core, &region)?);
    let times = Rc::new(RefCell::new([MISS, HIT].map(|_| Histogram::<u64>::new(3).expect("three digits are possible"))));
    let (mut serving, mut asking) = (Vec::new(), Vec::new());
    for client in 0..CLIENTS {
        let (near, far) = pair::connect(&server_hca, &client_hca)?;
        let server = server.clone();
        serving.push(core.spawn(async move { server.serve(near).await }));
        asking.push(core.spawn(ask(client, core.clone(), slab.clone(), far, times.clone())));
    }
    for task in asking.into_iter().chain(serving) {
        task.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
    }

    let (asked, hits) = (CLIENTS * REQUESTS, server.hits.get());
    println!("{asked} blocks of {BYTES} bytes served to {CLIENTS} clients, every byte verified");
    println!("hit rate {:.1}% with {CACHED} of {BLOCKS} blocks in memory", 100.0 * hits as f64 / asked as f64);
    for (what, times) in ["miss", "hit"].iter().zip(&*times.borrow()) {
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        println!("{what}: {} requests, p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs", times.len(), us(0.5), us(0.99), us(1.0));
    }
    if times.borrow()[HIT as usize].len() != hits {
        return Err(Error::new(ErrorKind::Failed, "the server and its clients have not counted the same hits"));
    }
    Ok(())
}

fn lba_of(disk: &Disk, block: u64) -> Lba {
    Lba(block * u64::from(BYTES / disk.info().block_bytes))
}

/// Writes the blocks that will be asked for.
async fn fill(disk: &Disk, slab: &Slab) -> Result<()> {
    let mut run = slab.run(BYTES)?;
    for block in 0..BLOCKS {
        Pattern::new(7, block).fill(run.as_mut_slice());
        let lba = lba_of(disk, block);
        run = disk.write(lba, run, Durability::AtFlush).await.map_err(|failed| disk.explain("writing", lba, failed))?;
    }
    disk.flush().await.map_err(|failed| disk.explain("flushing", Lba(0), failed))
}

/// The blocks in memory: a ring of places, and a hand that goes around. It passes places that were asked for since it was there
/// last, and takes the first that was not. (The CLOCK algorithm: nearly least recently used, for one bit per place.)
struct Clock {
    places: Vec<Place>,
    by_block: HashMap<u64, usize>,
    hand: usize,
    capacity: usize,
}

struct Place {
    block: u64,
    /// Frozen: the cache is one holder, each answer under way another. The chunks are free when the last lets go.
    bytes: Shared,
    is_asked_for: bool,
}

impl Clock {
    fn new(capacity: usize) -> Clock {
        Clock { places: Vec::with_capacity(capacity), by_block: HashMap::with_capacity(capacity), hand: 0, capacity }
    }

    fn get(&mut self, block: u64) -> Option<Shared> {
        let place = &mut self.places[*self.by_block.get(&block)?];
        place.is_asked_for = true;
        Some(place.bytes.clone())
    }

    fn insert(&mut self, block: u64, bytes: Shared) {
        // Two clients may have missed the same block at the same time: the first to come back has put it here.
        if self.by_block.contains_key(&block) {
            return;
        }
        let place = Place { block, bytes, is_asked_for: false };
        if self.places.len() < self.capacity {
            self.by_block.insert(block, self.places.len());
            self.places.push(place);
            return;
        }
        while std::mem::take(&mut self.places[self.hand].is_asked_for) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        self.by_block.insert(block, self.hand);
        let old = std::mem::replace(&mut self.places[self.hand], place);
        self.by_block.remove(&old.block);
        self.hand = (self.hand + 1) % self.capacity;
    }
}

struct Server {
    disk: Disk,
    slab: Slab,
    cache: RefCell<Clock>,
    hits: Cell<u64>,
}

impl Server {
    /// Answers one client until it is done.
    async fn serve(&self, near: pair::End) -> Result<()> {
        let mut spare: Run = self.slab.buf()?.into();
        let mut coming = near.qp.recv(self.slab.buf()?.into());
        for _ in 0..REQUESTS {
            let request = coming.await.map_err(|failed| failed.into_error("receiving a request"))?.run;
            // Before the answer, so that the client's next request, which may come with its acknowledgement, finds a receive.
            // Without one it would be told to try again later: more than half a millisecond.
            coming = near.qp.recv(spare);
            let number =
                |at: usize| request.as_slice().get(8 * at..8 * at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8")));
            let (Some(block @ 0..BLOCKS), Some(address), Some(rkey)) = (number(0), number(1), number(2)) else {
                return Err(Error::new(ErrorKind::Protocol, "a request that makes no sense"));
            };
            spare = request;
            spare.set_view(0, REQUEST_BYTES);
            let kept = self.cache.borrow_mut().get(block);
            let (bytes, immediate) = match kept {
                Some(kept) => (kept, HIT),
                None => (self.read(block).await?, MISS),
            };
            self.hits.set(self.hits.get() + u64::from(immediate == HIT));
            let remote = Remote { address, rkey: rkey as u32, len: BYTES };
            let written = near.qp.write(bytes, remote, Some(immediate)).await;
            written.map(drop).map_err(|failed| failed.into_error(format!("writing block {block} to the client")))?;
        }
        Ok(())
    }

    /// From the disk into chunks, which the cache keeps.
    async fn read(&self, block: u64) -> Result<Shared> {
        let lba = lba_of(&self.disk, block);
        let run = self.disk.read(lba, self.slab.run(BYTES)?).await.map_err(|failed| self.disk.explain("reading", lba, failed))?;
        let bytes = run.freeze();
        self.cache.borrow_mut().insert(block, bytes.clone());
        Ok(bytes)
    }
}

/// A client: asks for blocks, the first of them far more often than the last, and checks every byte.
async fn ask(client: u64, core: Core, slab: Slab, far: pair::End, times: Rc<RefCell<[Histogram<u64>; 2]>>) -> Result<()> {
    let mut rng = Rng::seeded(client);
    let (mut run, mut request) = (slab.run(BYTES)?, slab.buf()?);
    for _ in 0..REQUESTS {
        // Block k with a likelihood of 1/k (Zipf's law): the whole number below N^u, u even between 0 and 1.
        let block = (BLOCKS as f64).powf(rng.u32() as f64 / 2f64.powi(32)) as u64 - 1;
        let full = |_| Error::new(ErrorKind::Unavailable, "no room for a further window");
        let window = far.qp.grant(run, Access::WRITE).await.map_err(full)?;
        request.set_view(0, REQUEST_BYTES);
        let numbers = [block, window.address(), u64::from(window.rkey())];
        request.as_mut_slice().chunks_exact_mut(8).zip(numbers).for_each(|(bytes, number)| bytes.copy_from_slice(&number.to_le_bytes()));
        let begun = core.now();
        // A WRITE with immediate value takes a receive and none of its memory.
        let mut nothing: Buf = slab.buf()?;
        nothing.set_view(0, 0);
        let answer = far.qp.recv(nothing.into());
        request = far.qp.send(request, None).await.map_err(|failed| failed.into_error(format!("asking for block {block}")))?;
        let answer = answer.await.map_err(|failed| failed.into_error(format!("waiting for block {block}")))?;
        let took = core.now().since(begun);
        // Nobody looks at what the server can still change: the window is closed first.
        run = far.hca.revoke(window).await;
        let checked = Pattern::new(7, block).check(run.as_slice());
        checked.map_err(|wrong| Error::new(ErrorKind::Failed, format!("block {block}: {wrong}")))?;
        times.borrow_mut()[if answer.immediate == Some(HIT) { HIT } else { MISS } as usize].record(took.0).expect("it grows");
    }
    Ok(())
}
