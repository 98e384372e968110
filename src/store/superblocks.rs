//! The superblocks of a store, which are looked for first, and what is wrong with a disk that has none that will do.

use super::failure::no_memory;
use super::recover::{lba, read};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::block::header::{self, Header as DiskHeader};
use crate::device::block::{BackendKind, Disk, Durability};
use crate::mem::Slab;
use crate::wire::store::superblock::{self, Superblock, Unusable};

/// The superblock in force.
///
/// # Errors
/// `Refused`: the disk is no store, or one of a newer format, or has larger blocks than the store was made on. `Protocol`: both
/// superblocks are damaged. `Failed`: some of the store was cut off. Otherwise the device's.
pub async fn read_superblock(disk: &Disk, slab: &Slab) -> Result<Superblock> {
    find_superblock(disk, slab).await.map(|(superblock, _)| superblock)
}

/// The same, and whether the disk's header is in front of it. That has nothing that a reader needs.
pub(super) async fn find_superblock(disk: &Disk, slab: &Slab) -> Result<(Superblock, bool)> {
    let info = disk.info();
    let (path, size) = (info.path.display(), info.blocks() * u64::from(info.block_bytes));
    let header = if size >= u64::from(header::BYTES) { header::read(disk, slab).await } else { Ok(None) };
    let (owner, unread) = match header {
        Ok(header) => (header.map(|DiskHeader { owner, .. }| owner), None),
        // Of another version.
        Err(error) if error.kind() == ErrorKind::Refused => return Err(error),
        // A first block that cannot be read is as one that is damaged, if the rest is that of a store.
        Err(error) => (None, Some(error)),
    };
    let is_headed = owner.as_deref() == Some(header::STORE);
    let no_store = |what: String| {
        Error::new(ErrorKind::Refused, what).remedy(format!("basin store format {path} makes one, and destroys what is there"))
    };
    if let Some(owner) = owner.filter(|_| !is_headed) {
        return Err(no_store(format!("{path} is a disk of {owner}, and no store")));
    }
    let (mut best, mut why, mut failed) = (None::<Superblock>, Vec::new(), None);
    for number in [0, 1] {
        let address = Superblock::address(number);
        if address + u64::from(superblock::BYTES) > size {
            why.push(format!("byte {address}: it was cut off"));
            continue;
        }
        let run = match read(disk, slab, address, superblock::BYTES).await {
            Ok(run) => run,
            // The other one may do.
            Err(error) => {
                why.push(format!("{error:#}"));
                failed = Some(error);
                continue;
            }
        };
        match Superblock::parse(run.as_slice()) {
            Ok(found) if best.is_none_or(|best| best.number < found.number) => best = Some(found),
            Ok(_) => {}
            // The other one may be of the same newer program, and older: neither is for us.
            Err(newer @ (Unusable::Version(_) | Unusable::Features(_))) => {
                return Err(
                    Error::new(ErrorKind::Refused, format!("the store on {path}: {newer}")).remedy("open it with the program that made it")
                );
            }
            Err(unusable) => why.push(format!("byte {address}: {unusable}")),
        }
    }
    let Some(best) = best else {
        if let Some(error) = unread.or(failed) {
            return Err(error);
        }
        if !is_headed {
            return Err(no_store(format!("{path} is no store")));
        }
        let what = format!("the store on {path} has no superblock left ({})", why.join("; "));
        return Err(Error::new(ErrorKind::Protocol, what).remedy(
            "restore it from a copy; the items in its segments may be whole, and docs/STORE.md has their format, but no command of \
             Basin's finds them without a superblock",
        ));
    };
    let made = best.segment_at(best.segments);
    if size < made {
        return Err(cut(disk, size, made));
    }
    if !best.block_bytes.is_multiple_of(info.block_bytes) {
        let (of_store, of_disk) = (best.block_bytes, info.block_bytes);
        let what = format!("the store on {path} was made on blocks of {of_store} bytes, and {path} has blocks of {of_disk}");
        return Err(Error::new(ErrorKind::Refused, what).remedy(format!("copy it to a disk with blocks of {of_store} bytes, or of fewer")));
    }
    Ok((best, is_headed))
}

/// A store of `made` bytes on a disk of fewer.
#[cold]
fn cut(disk: &Disk, size: u64, made: u64) -> Error {
    let (path, info) = (disk.info().path.display(), disk.info());
    let what = format!("the store on {path} was made with {made} bytes, and {path} has only {size}: it was cut");
    let longer = match (info.device, info.backend) {
        (true, BackendKind::File | BackendKind::Nvme) => format!("make the device as large again, or copy it to one of {made} bytes"),
        _ => format!("take a copy that is whole; without one, truncate -s {made} {path}"),
    };
    Error::new(ErrorKind::Failed, what).remedy(format!("{longer}, and basin store check {path} names what is lost"))
}

/// A store that has lost its header. Somebody may have meant it to be gone, so nothing is written to it.
#[cold]
pub(super) fn headless(disk: &Disk) -> Error {
    let path = disk.info().path.display();
    let what = format!("the first block of {path} is damaged: behind it is a store, whose superblock is whole");
    Error::new(ErrorKind::Refused, what).remedy(format!(
        "basin store stat, check and dump {path} read it as it is; to write to it, give it the first {0} bytes of any other store, \
         which say only that it is one: dd if=OTHER of={path} bs={0} count=1 conv=notrunc",
        header::BYTES
    ))
}

/// Writes a superblock, stable when this returns.
pub async fn write_superblock(disk: &Disk, slab: &Slab, superblock: &Superblock) -> Result<()> {
    let mut run = slab.run(superblock::BYTES).map_err(|exhausted| no_memory("writing to the store", exhausted))?;
    superblock.emit(run.as_mut_slice());
    let lba = lba(disk, Superblock::address(superblock.number));
    let written = disk.write(lba, run, Durability::Now).await;
    written.map(drop).map_err(|failed| disk.explain("writing a superblock:", lba, failed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::sim::disk::{Image, SimDiskConfig};
    use crate::store::format::{FormatConfig, format};
    use crate::store::recover::{Options, recover};
    use crate::store::testing::{SEGMENT, SEGMENTS, World, disk_config};
    use crate::wire::store::SEGMENTS_AT;

    #[test]
    fn a_store_that_was_cut_says_how_long_it_was() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let run = async move {
            format(&world.disk, &world.slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap();
            world.disk.sim().expect("it is simulated").borrow_mut().power_cut()
        };
        let core = world.core.clone();
        let image = core.run(run).unwrap();
        let made = SEGMENTS_AT + u64::from(SEGMENT) * u64::from(SEGMENTS);
        for left in [made - 512, SEGMENTS_AT, 12_288] {
            let config = SimDiskConfig { capacity_bytes: left, ..disk_config(512) };
            let Some(world) = World::with(config, image.clone(), 2) else { return };
            let core = world.core.clone();
            core.run(async move {
                let options = Options { cores: 1, is_read_only: false };
                let refused = recover(&world.core, &world.disk, &world.slab, options).await.err().expect("some of it is gone");
                let text = refused.to_string();
                assert_eq!(refused.kind(), ErrorKind::Failed, "{text}");
                assert!(text.contains(&format!("{made} bytes")) && text.contains(&format!("only {left}")), "{text}");
                assert!(text.contains("basin store check sim"), "{text}");
            })
            .unwrap();
        }
    }

    #[test]
    fn a_store_without_its_first_block_is_known() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let (core, disk, slab) = (world.core.clone(), world.disk.clone(), world.slab.clone());
        let run = async move {
            format(&disk, &slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap();
            let erase = async |address: u64| {
                let mut run = slab.run(4096).unwrap();
                run.as_mut_slice().fill(0);
                disk.write(lba(&disk, address), run, Durability::Now).await.map(drop).map_err(|failed| failed.outcome).unwrap();
            };
            erase(0).await;
            let options = Options { cores: 1, is_read_only: false };
            let refused = recover(&core, &disk, &slab, options).await.err().expect("it is damaged").to_string();
            assert!(refused.contains("first block") && !refused.contains("format"), "{refused}");
            let found = recover(&core, &disk, &slab, Options { is_read_only: true, ..options }).await.unwrap();
            assert!(found.census.is_header_lost);
            // What the remedy says mends it.
            header::claim(&disk, &slab, header::STORE).await.unwrap();
            assert!(recover(&core, &disk, &slab, options).await.is_ok());
            erase(4096).await;
            erase(8192).await;
            let refused = recover(&core, &disk, &slab, options).await.err().expect("it is damaged").to_string();
            assert!(refused.contains("no superblock left") && refused.contains("from a copy"), "{refused}");
        };
        world.core.run(run).unwrap();
    }
}
