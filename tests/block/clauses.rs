//! The clauses of a disk's contract.

use basin::base::{Lba, Rng};
use basin::device::block::{Disk, Durability, Fault, Space, ZoneAction};
use basin::device::{Failed, Outcome, Status};
use basin::mem::{Gather, Run};
use futures::future::join_all;

use crate::world::World;

pub const CAPACITY: u64 = 8 << 20;

/// Every clause of the contract, on the first [`CAPACITY`] bytes and the end of a disk.
pub fn suite(world: &World, disk: &Disk) {
    assert!(disk.info().capacity_bytes >= CAPACITY, "{:?}", disk.info());
    for clause in [
        random_access_agrees_with_a_model,
        operations_at_once_keep_apart,
        a_gather_is_its_pieces_in_order,
        shared_and_single_chunk_leases,
        the_end_of_the_disk,
        misalignment_is_refused_and_named,
        dropped_futures_return_their_memory,
        a_cancelled_operation_ends,
        a_full_table_gives_the_lease_back,
        flush_and_durable_writes,
        discard_is_allowed_where_claimed,
        zeroes_are_written_where_the_disk_can,
    ] {
        clause(world, disk);
        world.assert_balanced();
    }
}

fn filled(world: &World, len: u32, rng: &mut Rng) -> Run {
    let mut run = world.slab.run(len).unwrap();
    rng.fill(run.as_mut_slice());
    run
}

fn random_access_agrees_with_a_model(world: &World, disk: &Disk) {
    let mut rng = Rng::seeded(1);
    let block = u64::from(disk.info().block_bytes);
    let mut model = vec![0u8; CAPACITY as usize];
    // A known start.
    for at in (0..CAPACITY).step_by(1 << 20) {
        let run = filled(world, 1 << 20, &mut rng);
        model[at as usize..][..1 << 20].copy_from_slice(run.as_slice());
        drop(world.run(disk, disk.write(Lba(at / block), run, Durability::AtFlush)).unwrap());
    }
    for _ in 0..300 {
        let blocks = if rng.chance(50_000) { (1 << 20) / block } else { 1 + rng.below(32) };
        let lba = rng.below(CAPACITY / block - blocks + 1);
        let (at, len) = ((lba * block) as usize, (blocks * block) as usize);
        if rng.chance(500_000) {
            let run = filled(world, len as u32, &mut rng);
            model[at..at + len].copy_from_slice(run.as_slice());
            let written = world.run(disk, disk.write(Lba(lba), run, Durability::AtFlush)).unwrap();
            assert_eq!(written.as_slice(), &model[at..at + len], "a write leaves its memory as it was");
        } else {
            let read = world.run(disk, disk.read(Lba(lba), world.slab.run(len as u32).unwrap())).unwrap();
            assert!(read.as_slice() == &model[at..at + len], "block {lba}, {blocks} blocks");
        }
    }
}

fn operations_at_once_keep_apart(world: &World, disk: &Disk) {
    let mut rng = Rng::seeded(2);
    let per = 4096 / u64::from(disk.info().block_bytes);
    let runs: Vec<Run> = (0..32).map(|_| filled(world, 4096, &mut rng)).collect();
    let contents: Vec<Vec<u8>> = runs.iter().map(|run| run.as_slice().to_vec()).collect();
    let writes = (0u64..).zip(runs).map(|(i, run)| disk.write(Lba(i * per), run, Durability::AtFlush));
    for written in world.run(disk, join_all(writes)) {
        drop(written.unwrap());
    }
    let reads = (0u64..32).map(|i| disk.read(Lba(i * per), world.slab.run(4096).unwrap()));
    for (read, content) in world.run(disk, join_all(reads)).into_iter().zip(contents) {
        assert!(read.unwrap().as_slice() == content);
    }
}

fn a_gather_is_its_pieces_in_order(world: &World, disk: &Disk) {
    let mut rng = Rng::seeded(3);
    let block = disk.info().block_bytes;
    // Every other chunk, views of different lengths, some in the middle of a chunk; then neighbours, which merge.
    let chunks: Vec<_> = (0..64).map(|_| world.slab.buf().unwrap()).collect();
    let mut kept = Vec::new();
    let mut gather = Gather::new();
    let mut content = Vec::new();
    for (i, chunk) in chunks.into_iter().enumerate() {
        let mut run: Run = chunk.into();
        if i < 40 && i % 2 == 1 {
            kept.push(run);
            continue;
        }
        rng.fill(run.as_mut_slice());
        if block <= 512 && i < 40 {
            run.set_view(512, 512 * (1 + rng.below(3) as u32));
        } else if block > run.len() {
            continue;
        }
        content.extend_from_slice(run.as_slice());
        gather.push(run).unwrap();
    }
    drop(kept);
    if content.is_empty() {
        return;
    }
    assert!(gather.pieces() > 4);
    let mut written = world.run(disk, disk.write_gather(Lba(8), gather, Durability::AtFlush)).unwrap();
    assert_eq!(written.len_bytes() as usize, content.len());
    // Back in one piece, then into scattered memory.
    let read = world.run(disk, disk.read(Lba(8), world.slab.run(content.len() as u32).unwrap())).unwrap();
    assert!(read.as_slice() == content);
    let runs: Vec<Run> = written.drain().collect();
    for mut run in runs {
        run.as_mut_slice().fill(0xee);
        written.push(run).unwrap();
    }
    let mut read = world.run(disk, disk.read_gather(Lba(8), written)).unwrap();
    let scattered: Vec<u8> = read.drain().flat_map(|run| run.as_slice().to_vec()).collect();
    assert!(scattered == content);
}

fn shared_and_single_chunk_leases(world: &World, disk: &Disk) {
    let mut run = world.slab.run(8192).unwrap();
    run.as_mut_slice().fill(7);
    let shared = run.freeze();
    // Two writes from one memory at once.
    let other = shared.clone();
    let both = futures::future::join(disk.write(Lba(0), shared, Durability::AtFlush), disk.write(Lba(16), other, Durability::AtFlush));
    let (a, b) = world.run(disk, both);
    let run = {
        drop(b.unwrap());
        a.unwrap().thaw(&world.slab).unwrap()
    };
    assert_eq!(run.len(), 8192);
    if disk.info().block_bytes <= world.slab.chunk_bytes() {
        let buf = world.slab.buf().unwrap();
        drop(world.run(disk, disk.write(Lba(0), buf, Durability::AtFlush)).unwrap());
    }
}

fn fault<L>(result: Result<L, Failed<L>>) -> (Outcome, L) {
    let Err(Failed { outcome, lease }) = result else { panic!("it must be refused") };
    (outcome, lease)
}

fn the_end_of_the_disk(world: &World, disk: &Disk) {
    let (block, blocks) = (disk.info().block_bytes, disk.info().blocks());
    let run = world.run(disk, disk.read(Lba(blocks - 1), world.slab.run(block).unwrap())).unwrap();
    let (outcome, run) = fault(world.run(disk, disk.write(Lba(blocks), run, Durability::Now)));
    assert_eq!(outcome.status, Status::Block(Fault::PastEnd));
    // The byte offset would wrap.
    let (outcome, run) = fault(world.run(disk, disk.read(Lba(u64::MAX / 2), run)));
    assert_eq!(outcome.status, Status::Block(Fault::PastEnd));
    drop(run);
    let (outcome, run) = fault(world.run(disk, disk.read(Lba(blocks - 1), world.slab.run(2 * block).unwrap())));
    let text = disk.explain("reading", Lba(blocks - 1), Failed { outcome, lease: run }).to_string();
    assert!(text.contains("past the end") && text.contains(&blocks.to_string()) && text.contains(&(2 * block).to_string()), "{text}");
}

fn misalignment_is_refused_and_named(world: &World, disk: &Disk) {
    let (block, align) = (disk.info().block_bytes, disk.info().memory_align);
    let mut run = world.slab.run(4 * block).unwrap();
    run.set_len(block + 1);
    let (outcome, mut run) = fault(world.run(disk, disk.write(Lba(0), run, Durability::AtFlush)));
    assert_eq!(outcome.status, Status::Block(Fault::Length));
    run.set_len(0);
    let (outcome, mut run) = fault(world.run(disk, disk.read(Lba(0), run)));
    assert_eq!(outcome.status, Status::Block(Fault::Empty));
    if align > 1 {
        run.set_view(align / 2, block);
        let (outcome, mut run) = fault(world.run(disk, disk.read(Lba(0), run)));
        assert_eq!(outcome.status, Status::Block(Fault::Memory));
        run.set_view(align / 2, block);
        let text = disk.explain("reading", Lba(0), Failed { outcome, lease: run }).to_string();
        assert!(text.contains(&format!("multiple of {align}")), "{text}");
        // What the contract allows the device takes: any multiple of the alignment.
        let mut run = world.slab.run(4 * block).unwrap();
        run.set_view(align, block);
        drop(world.run(disk, disk.read(Lba(0), run)).unwrap());
    }
}

fn dropped_futures_return_their_memory(world: &World, disk: &Disk) {
    let begin = |i: u64| disk.write(Lba(i * 8), world.slab.run(64 << 10).unwrap(), Durability::AtFlush);
    (0..32).for_each(|i| drop(begin(i)));
    // Nothing came back by dropping.
    assert_eq!(world.slab.census().in_flight, 32 * 32);
    world.drain(disk);
    // And dropped while the device is at it.
    for i in 0..32 {
        let io = begin(i);
        world.turn(disk);
        drop(io);
    }
    world.drain(disk);
}

fn a_cancelled_operation_ends(world: &World, disk: &Disk) {
    let ios: Vec<_> = (0..8).map(|i| disk.read(Lba(i), world.slab.run(4096).unwrap())).collect();
    for io in &ios {
        world.uring.cancel(io.id().expect("it is in flight"));
    }
    for result in world.run(disk, join_all(ios)) {
        let status = result.map_or_else(|failed| failed.outcome.status, |_| Status::Ok);
        assert!(matches!(status, Status::Ok | Status::Cancelled), "{status:?}");
    }
    world.drain(disk);
}

fn a_full_table_gives_the_lease_back(world: &World, disk: &Disk) {
    let mut ios: Vec<_> = (0..world.ops.capacity() as u64).map(|i| disk.read(Lba(i), world.slab.run(4096).unwrap())).collect();
    let (outcome, run) = fault(world.run(disk, disk.read(Lba(0), world.slab.run(4096).unwrap())));
    assert_eq!(outcome.status, Status::Os(libc::EAGAIN));
    assert_eq!(run.len(), 4096);
    for result in world.run(disk, join_all(ios.drain(..))) {
        drop(result.unwrap());
    }
}

fn flush_and_durable_writes(world: &World, disk: &Disk) {
    let mut rng = Rng::seeded(4);
    let run = filled(world, 8192, &mut rng);
    let content = run.as_slice().to_vec();
    let run = world.run(disk, disk.write(Lba(4), run, Durability::Now)).unwrap();
    drop(run);
    world.run(disk, disk.flush()).unwrap();
    // Pipelined flushes.
    for result in world.run(disk, join_all((0..8).map(|_| disk.flush()))) {
        result.unwrap();
    }
    let read = world.run(disk, disk.read(Lba(4), world.slab.run(8192).unwrap())).unwrap();
    assert!(read.as_slice() == content);
}

fn discard_is_allowed_where_claimed(world: &World, disk: &Disk) {
    let per = 4096 / u64::from(disk.info().block_bytes);
    let result = world.run(disk, disk.discard(Lba(16 * per), 16 * per));
    if !disk.info().supports_discard {
        assert_eq!(fault(result).0.status, Status::Block(Fault::NoDiscard));
        return;
    }
    result.unwrap();
    // Neighbours are untouched, and the discarded blocks can be written again.
    let mut run = world.slab.run(4096).unwrap();
    run.as_mut_slice().fill(0x5a);
    drop(world.run(disk, disk.write(Lba(16 * per), run, Durability::AtFlush)).unwrap());
    let read = world.run(disk, disk.read(Lba(16 * per), world.slab.run(4096).unwrap())).unwrap();
    assert!(read.as_slice().iter().all(|&byte| byte == 0x5a));
    let past = world.run(disk, disk.discard(Lba(disk.info().blocks()), 1));
    assert_eq!(fault(past).0.status, Status::Block(Fault::PastEnd));
}

fn zeroes_are_written_where_the_disk_can(world: &World, disk: &Disk) {
    let mut rng = Rng::seeded(5);
    let per = 4096 / u64::from(disk.info().block_bytes);
    for space in [Space::Kept, Space::Released] {
        let run = filled(world, 256 << 10, &mut rng);
        let content = run.as_slice().to_vec();
        drop(world.run(disk, disk.write(Lba(0), run, Durability::AtFlush)).unwrap());
        match world.run(disk, disk.write_zeroes(Lba(16 * per), 32 * per, space)) {
            Ok(()) => {}
            // tmpfs makes holes and no zeros.
            Err(Failed { outcome, .. }) if !disk.info().direct && outcome.status == Status::Os(libc::EOPNOTSUPP) => continue,
            Err(failed) => panic!("{space:?}: {}", disk.explain("zeroing", Lba(16 * per), failed)),
        }
        let read = world.run(disk, disk.read(Lba(0), world.slab.run(256 << 10).unwrap())).unwrap();
        let (before, after) = (16 * 4096, 48 * 4096);
        assert!(
            read.as_slice()[..before] == content[..before] && read.as_slice()[after..] == content[after..],
            "{space:?}: the neighbours"
        );
        assert!(read.as_slice()[before..after].iter().all(|&byte| byte == 0), "{space:?}");
    }
    let (outcome, ()) = fault(world.run(disk, disk.write_zeroes(Lba(disk.info().blocks() - 1), 2, Space::Kept)));
    assert_eq!(outcome.status, Status::Block(Fault::PastEnd));
    let (outcome, ()) = fault(world.run(disk, disk.write_zeroes(Lba(0), 0, Space::Kept)));
    assert_eq!(outcome.status, Status::Block(Fault::Empty));
    let (outcome, ()) = fault(world.run(disk, disk.manage_zone(Lba(0), ZoneAction::Reset)));
    assert_eq!(outcome.status, Status::Block(Fault::NotZoned));
}
