//! Reading items: nobody sees a byte that was not compared with its checksum.
//!
//! A place that was looked up may be written anew before it is read: the item was overwritten or moved, and its segment emptied and taken
//! again. Then what is there is no item with this number in this place, and whoever looked it up does so again.

use std::ops::Range;
use std::sync::Arc;

use super::failure::no_memory;
use super::log::Written;
use super::segments::Segments;
use crate::base::{Lba, Result, limits};
use crate::device::block::Disk;
use crate::mem::{Gather, Run, Slab};
use crate::wire::store::item::{Fields, Head, What};
use crate::wire::store::{DATA_BLOCK, checksums_of_parts};

/// What errors tell was done.
const READING: &str = "reading the store";
/// Items up to this many bytes are read at once; of a longer one the head first, where not all of it is asked for.
const AT_ONCE: u32 = 64 << 10;

/// An item as it was read.
#[derive(Debug)]
pub struct Read {
    /// What belongs to it, in the words of the layer above.
    pub properties: Box<[u8]>,
    /// Of an object the tags it was put with.
    pub tags: Box<[u8]>,
    /// Of an object or a part what it is.
    pub fields: Fields,
    /// Bytes of its data.
    pub data_bytes: u32,
    /// The bytes that were asked for, in order: views of what was read.
    pub runs: Vec<Run>,
}

/// What is in the place of an item.
#[derive(Debug)]
pub enum Found {
    /// The item.
    Item(Read),
    /// Something else: it is not there any more, or its head has rotted.
    NoItem,
    /// The item, whose data has rotted: the first byte of the block it was found in, in the data.
    Rotten(u32),
}

/// Where the item with this head is, at `address`.
pub fn at_of(head: &Head, address: u64) -> Written {
    let (item_bytes, head_bytes) = (head.place.item_bytes, head.item.head_bytes(head.place.data_bytes));
    Written { sequence: head.item.sequence, address, item_bytes, head_bytes }
}

/// Reads items of a store.
#[derive(Clone)]
pub struct Reader {
    /// The store's disk.
    pub disk: Disk,
    /// Memory to read to.
    pub slab: Slab,
    /// The store's segments.
    pub segments: Arc<Segments>,
}

/// Bytes of a device in runs, the first and the last of which may have more.
struct Blocks {
    runs: Vec<Run>,
}

impl Reader {
    /// The item that is to be at `at`, with the part `range` of its data, of which what it does not have is left out.
    ///
    /// # Errors
    /// The device's, or no memory.
    pub async fn item(&self, at: &Written, range: Range<u32>) -> Result<Found> {
        let salt = self.segments.salt(at.address);
        let all = range.start == 0 && range.end >= at.item_bytes - at.head_bytes;
        if all || at.item_bytes <= AT_ONCE {
            let blocks = self.blocks(at.address, at.item_bytes).await?;
            let Some((read, head)) = parse(&blocks, at, salt) else { return Ok(Found::NoItem) };
            let data = cut(blocks, head.data_offset, head.data_bytes);
            return Ok(finish(read, &head, data, 0, range));
        }
        let blocks = self.blocks(at.address, at.head_bytes).await?;
        let Some((read, head)) = parse(&blocks, at, salt) else { return Ok(Found::NoItem) };
        let end = range.end.min(head.data_bytes);
        let from = (range.start / DATA_BLOCK * DATA_BLOCK).min(end);
        let to = end.next_multiple_of(DATA_BLOCK).min(head.data_bytes);
        if from == to {
            return Ok(Found::Item(read));
        }
        let blocks = self.blocks(at.address + u64::from(head.data_offset + from), to - from).await?;
        Ok(finish(read, &head, blocks, from, range))
    }

    /// `bytes` bytes from byte `address` of the device on: views of the whole blocks they are in.
    async fn blocks(&self, address: u64, bytes: u32) -> Result<Blocks> {
        let block = u64::from(self.disk.info().block_bytes);
        let from = address / block * block;
        let whole = (address + u64::from(bytes)).next_multiple_of(block) - from;
        let lba = Lba(from / block);
        let runs = if whole <= limits::IO_MAX_BYTES.into() {
            let read = self.disk.read(lba, self.slab.run(whole as u32).map_err(|exhausted| no_memory(READING, exhausted))?).await;
            vec![read.map_err(|failed| self.disk.explain("reading the store:", lba, failed))?]
        } else {
            self.long(lba, whole).await?
        };
        Ok(cut(Blocks { runs }, (address - from) as u32, bytes))
    }

    /// More than fits into a run.
    async fn long(&self, lba: Lba, bytes: u64) -> Result<Vec<Run>> {
        let (block, mut at, mut reads) = (u64::from(self.disk.info().block_bytes), 0, Vec::new());
        while at < bytes {
            let lba = Lba(lba.0 + at / block);
            let mut gather = Gather::with_room(2);
            let most = (bytes - at).min(limits::GATHER_MAX_BYTES.into()) as u32;
            while gather.len_bytes() < most {
                let run = self
                    .slab
                    .run((most - gather.len_bytes()).min(limits::IO_MAX_BYTES))
                    .map_err(|exhausted| no_memory(READING, exhausted))?;
                gather.push(run).unwrap_or_else(|_| unreachable!("it is within the bounds of a gather"));
            }
            reads.push((self.disk.read_gather(lba, gather), lba));
            at += u64::from(most);
        }
        let mut runs = Vec::new();
        for (read, lba) in reads {
            let mut gather = read.await.map_err(|failed| self.disk.explain("reading the store:", lba, failed))?;
            runs.extend(gather.drain());
        }
        Ok(runs)
    }
}

/// What a head says of the data behind it.
struct Sums {
    data_offset: u32,
    data_bytes: u32,
    checksums: Vec<u64>,
}

/// The head that `blocks` begin with, if it is that of the item at `at`.
fn parse(blocks: &Blocks, at: &Written, salt: u64) -> Option<(Read, Sums)> {
    let head = Head::parse(blocks.runs.first()?.as_slice(), salt, at.address).ok()?;
    let is_it = head.item.sequence == at.sequence && head.place.item_bytes == at.item_bytes;
    let (data_offset, data_bytes) = (head.place.data_offset, head.place.data_bytes);
    let sums = Sums { data_offset, data_bytes, checksums: head.checksums.iter().map(|sum| sum.get()).collect() };
    let fields = match head.item.what {
        What::Object(object) | What::Part(object) => object.fields,
        _ => Fields::default(),
    };
    let (properties, tags) = head.item.properties_and_tags();
    is_it.then(|| (Read { properties: properties.into(), tags: tags.into(), fields, data_bytes, runs: Vec::new() }, sums))
}

/// `bytes` bytes of them from byte `start` on.
fn cut(blocks: Blocks, start: u32, bytes: u32) -> Blocks {
    let (mut skip, mut left) = (start, bytes);
    let mut runs = Vec::new();
    for mut run in blocks.runs {
        let (before, len) = (skip.min(run.len()), run.len());
        let taken = (len - before).min(left);
        if taken > 0 {
            run.set_view(run.start() + before, taken);
            runs.push(run);
        }
        (skip, left) = (skip - before, left - taken);
    }
    Blocks { runs }
}

/// Compares `data`, which begins at byte `from` of the item's, with its checksums, and leaves `range` of the item's data.
fn finish(mut read: Read, sums: &Sums, data: Blocks, from: u32, range: Range<u32>) -> Found {
    let parts: Vec<&[u8]> = data.runs.iter().map(Run::as_slice).collect();
    let first = from / DATA_BLOCK;
    let wanted = sums.checksums.get(first as usize..).unwrap_or_default();
    let found = checksums_of_parts(&parts);
    if let Some(block) = found.iter().enumerate().position(|(at, sum)| wanted.get(at) != Some(sum)) {
        return Found::Rotten((first + block as u32) * DATA_BLOCK);
    }
    let end = range.end.min(sums.data_bytes);
    let start = range.start.min(end);
    read.runs = cut(data, start - from.min(start), end - start).runs;
    Found::Item(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::store::draft::{Draft, Kind};
    use crate::store::log::{Appended, Log};
    use crate::store::segments::Purpose;
    use crate::store::testing::World;

    #[test]
    fn any_part_of_an_item_is_read_and_any_changed_bit_is_told() {
        for (block, seed) in [(512, 1), (4096, 2)] {
            let Some(world) = World::new(block, Default::default(), seed) else { return };
            let env = world.log_env();
            let core = world.core.clone();
            let run = async move {
                let mut rng = Rng::seeded(seed);
                let log = Log::new(env.clone(), &world.sequences(), Rng::seeded(seed));
                let writer = world.core.spawn(log.clone().writer());
                let reader = Reader { disk: env.disk.clone(), slab: env.slab.clone(), segments: env.segments.clone() };
                for len in [0, 1, 100, 4096, 5000, 70_000, 300_001, 1 << 20] {
                    let bytes: Vec<u8> = (0..len).map(|at: u32| (at / 7 + at % 7) as u8).collect();
                    let data: Vec<Run> = (len > 0)
                        .then(|| {
                            let mut run = env.slab.run(len).unwrap();
                            run.as_mut_slice().copy_from_slice(&bytes);
                            run
                        })
                        .into_iter()
                        .collect();
                    let name = b"name".as_slice().into();
                    let draft = Draft {
                        kind: Kind::Extent,
                        shard: 0,
                        time_ms: 0,
                        bucket: 0,
                        number: Some(0),
                        name,
                        properties: b"more".as_slice().into(),
                    };
                    let Appended { at, .. } = log.append(Purpose::Put, draft, data).await.unwrap();
                    for _ in 0..20 {
                        let start = rng.below(u64::from(len) + 2) as u32;
                        let end = start + rng.below(u64::from(len) + 2) as u32;
                        for range in [start..end, 0..u32::MAX] {
                            let Found::Item(read) = reader.item(&at, range.clone()).await.unwrap() else {
                                panic!("{len} bytes, {range:?}")
                            };
                            let got: Vec<u8> = read.runs.iter().flat_map(|run| run.as_slice().to_vec()).collect();
                            let wanted = &bytes[range.start.min(len) as usize..range.end.min(len).max(range.start.min(len)) as usize];
                            assert!(got == wanted, "{len} bytes, {range:?}: {} bytes", got.len());
                            assert_eq!((&*read.properties, read.data_bytes), (b"more".as_slice(), len));
                        }
                    }
                    let elsewhere = Written { sequence: at.sequence + 1, ..at };
                    assert!(matches!(reader.item(&elsewhere, 0..1).await.unwrap(), Found::NoItem));
                    // One bit of what was written is changed on the device: of the head, the data or the padding.
                    for _ in 0..20 {
                        let bit = rng.below(u64::from(at.item_bytes) * 8);
                        world.flip(at.address * 8 + bit).await;
                        match reader.item(&at, 0..u32::MAX).await.unwrap() {
                            // It was in a gap.
                            Found::Item(read) => {
                                assert!(read.runs.iter().flat_map(|run| run.as_slice().to_vec()).eq(bytes.iter().copied()))
                            }
                            Found::NoItem => {}
                            Found::Rotten(block) => assert!(block < len && block.is_multiple_of(DATA_BLOCK)),
                        }
                        world.flip(at.address * 8 + bit).await;
                    }
                }
                log.close();
                writer.await.expect("the writer does not panic");
            };
            core.run(run).unwrap();
        }
    }
}
