//! Flow 5 in one process: ring all-reduce between four peers, summed in the chunks the neighbour's segments arrive in.
//!
//! `cargo run --example rdma_to_rdma`: needs no privileges and no hardware.

mod pair;

use basin::base::error::ErrorKind;
use basin::base::{Error, Result};
use basin::device::rdma::Qp;
use basin::mem::{Region, RegionConfig, Run, Slab};
use basin::reactor::{Core, CoreConfig, launch};

const PEERS: usize = 4;
/// A peer's vector is one segment per peer: 1 MiB in all.
const SEGMENT_BYTES: u32 = 256 << 10;

/// Element `at` of segment `segment` of a peer's vector: small whole numbers, so that sums of any order are exact.
fn element(rank: usize, segment: usize, at: usize) -> f32 {
    ((rank * 31 + segment * 7 + at) % 97) as f32
}

fn main() -> Result<()> {
    launch::<(), _, _, _>(vec![CoreConfig::default()], |_, core, _| all_reduce(core))?.into_iter().collect()
}

async fn all_reduce(core: Core) -> Result<()> {
    let region = Region::map(&RegionConfig::new(16 << 20))?;
    let slab = Slab::new(&region, region.chunks())?;
    core.adopt_slab(&slab);
    let devices = (0..PEERS).map(|_| pair::open(&core, &region)).collect::<Result<Vec<_>>>()?;
    let (mut lefts, mut rights): (Vec<Option<Qp>>, Vec<Option<Qp>>) = ((0..PEERS).map(|_| None).collect(), Vec::new());
    for rank in 0..PEERS {
        let next = (rank + 1) % PEERS;
        let (right, left) = pair::connect(&devices[rank], &devices[next])?;
        rights.push(Some(right.qp));
        lefts[next] = Some(left.qp);
    }
    let mut peers = Vec::new();
    for (rank, (left, right)) in lefts.into_iter().zip(rights).enumerate() {
        let (Some(left), Some(right)) = (left, right) else { unreachable!("every peer has two neighbours") };
        peers.push(core.spawn(peer(rank, slab.clone(), left, right)));
    }
    for peer in peers {
        peer.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
    }
    println!("{PEERS} peers have the same sum of their vectors of {} bytes", PEERS * SEGMENT_BYTES as usize);
    Ok(())
}

async fn peer(rank: usize, slab: Slab, left: Qp, right: Qp) -> Result<()> {
    let misaligned = || Error::new(ErrorKind::Failed, "a run is not aligned for floats");
    let mut segments: Vec<Option<Run>> = Vec::new();
    for segment in 0..PEERS {
        let mut run = slab.run(SEGMENT_BYTES)?;
        let floats = run.as_f32_mut().ok_or_else(misaligned)?;
        floats.iter_mut().enumerate().for_each(|(at, float)| *float = element(rank, segment, at));
        segments.push(Some(run));
    }
    // Reduce-scatter, then all-gather: the segments move on by one place in each step of both.
    for step in 0..2 * (PEERS - 1) {
        let (sends, receives) = ((rank + 2 * PEERS - step) % PEERS, (rank + 2 * PEERS - step - 1) % PEERS);
        let coming = left.recv(slab.run(SEGMENT_BYTES)?);
        let going = segments[sends].take().ok_or_else(|| Error::new(ErrorKind::Failed, "a segment is away"))?;
        segments[sends] = Some(right.send(going, None).await.map_err(|failed| failed.into_error("sending to the right"))?);
        let mut came = coming.await.map_err(|failed| failed.into_error("receiving from the left"))?.run;
        if step < PEERS - 1
            && let Some(own) = &mut segments[receives]
        {
            let (sum, own) = (came.as_f32_mut().ok_or_else(misaligned)?, own.as_f32_mut().ok_or_else(misaligned)?);
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += *own);
        }
        segments[receives] = Some(came);
    }
    for (segment, run) in segments.iter_mut().enumerate() {
        let floats = run.as_mut().and_then(|run| run.as_f32_mut()).ok_or_else(misaligned)?;
        let wrong = floats.iter().enumerate().find(|&(at, &sum)| sum != (0..PEERS).map(|rank| element(rank, segment, at)).sum::<f32>());
        if let Some((at, sum)) = wrong {
            return Err(Error::new(ErrorKind::Failed, format!("peer {rank}: element {at} of segment {segment} is {sum}")));
        }
    }
    Ok(())
}
