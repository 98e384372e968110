//! The bytes of a write: heads and what is copied, put together by the processor, and data where it lies.

use std::borrow::Cow;

use super::{Batch, Inner};
use crate::base::{Result, limits};
use crate::mem::{Gather, Run};
use crate::store::failure::no_memory;
use crate::store::layout::Stretch;
use crate::wire::store::checksums_of_parts;
use crate::wire::store::segment::{self, Header};
use crate::wire::store::superblock::Superblock;

/// Whose data a run of a write is: of the batch's item with this number, and how much of it is data.
pub(super) struct Owner {
    pub item: usize,
    pub len: u32,
}

impl Inner {
    /// The memory of a batch in the order of the device, where what is staged and what lies elsewhere take turns; of the latter whose it
    /// is, and its length.
    pub(super) fn gathered(&self, batch: &mut Batch) -> Result<Vec<(Gather, Vec<Option<Owner>>)>> {
        let begin = |pieces: usize| (Gather::with_room(pieces.min(limits::GATHER_MAX)), Vec::with_capacity(pieces.min(limits::GATHER_MAX)));
        let (mut full, mut last) = (Vec::new(), begin(2 * batch.items.len()));
        let mut push = |owner: Option<Owner>, run: Run| {
            if let Err(run) = last.0.push(run) {
                full.push(std::mem::replace(&mut last, begin(limits::GATHER_MAX)));
                last.0.push(run).expect("an empty gather takes a run");
            }
            last.1.push(owner);
        };
        for stretch in batch.layout.stretches() {
            match stretch {
                Stretch::Staged { from, to } => push(None, self.staged(batch, from, to)?),
                Stretch::Data { item, .. } => {
                    for mut run in std::mem::take(&mut batch.items[item].0.data.runs) {
                        let len = run.len();
                        pad(&mut run, self.block());
                        push(Some(Owner { item, len }), run);
                    }
                }
            }
        }
        full.push(last);
        Ok(full)
    }

    /// The heads and copied data of a staged stretch; in front of the first the segment's header, if it is to be written.
    fn staged(&self, batch: &Batch, from: u32, to: u32) -> Result<Run> {
        let before = if from == 0 && batch.generation.is_some() { segment::BYTES } else { 0 };
        let mut run = self.env.slab.run(before + to - from).map_err(|exhausted| no_memory(super::WRITING, exhausted))?;
        let (header, bytes) = run.as_mut_slice().split_at_mut(before as usize);
        if let Some(generation) = batch.generation.filter(|_| !header.is_empty()) {
            let Superblock { epoch, id, .. } = self.env.superblock;
            let (segment, kind) = (batch.opening.segment, segment::Kind::Log);
            Header { segment, kind, generation, epoch, salt: batch.salt }.emit(&id, header);
        }
        self.fill(batch, from, to, bytes);
        Ok(run)
    }

    /// Fills one staged stretch, from byte `from` up to `to` of the write.
    fn fill(&self, batch: &Batch, from: u32, to: u32, bytes: &mut [u8]) {
        let mut filled = from;
        for ((pending, written), spot) in batch.items.iter().zip(batch.layout.spots()) {
            if !(from..to).contains(&spot.at) {
                continue;
            }
            let at = (spot.at - from) as usize;
            let item = pending.draft.item(written.sequence);
            let parts: Vec<&[u8]> = pending.data.runs.iter().map(Run::as_slice).collect();
            let sums = pending.data.sums.as_ref().map_or_else(|| checksums_of_parts(&parts).into(), Cow::from);
            item.emit(spot.place, sums.iter().copied(), batch.salt, written.address, &mut bytes[at..]);
            let mut end = at + spot.place.data_offset as usize;
            if spot.is_copied {
                for part in parts {
                    self.env.ledger.copy(&mut bytes[end..end + part.len()], part);
                    end += part.len();
                }
                let next = at + spot.place.item_bytes as usize;
                bytes[end..next].fill(0);
                end = next;
            }
            filled = from + end as u32;
        }
        bytes[(filled - from) as usize..].fill(0);
    }
}

/// Fills the last block of a run up with zeros.
fn pad(run: &mut Run, block: u32) {
    let (start, len) = (run.start(), run.len());
    run.set_view(start, len.next_multiple_of(block));
    run.as_mut_slice()[len as usize..].fill(0);
}
