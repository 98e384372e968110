//! Who owns what the kernel's rings name: addresses back to leases.
//!
//! The kernel hands back UMEM addresses, in an order of its own. A table indexed by chunk says which slot holds the lease: four
//! bytes per chunk of the region, zero until used, so that only pages of chunks in use cost memory. A chunk being received into
//! has one slot; a shared chunk on its way out may have several, threaded as a list. Nothing is hashed or allocated after `new`.

use crate::base::RegionOffset;
use crate::device::OpId;
use crate::mem::payload::InFlight;

/// A slot number plus one; zero is none.
type Handle = u32;

/// What the kernel has of ours.
pub enum Frame {
    /// A chunk to receive into.
    Posted(InFlight),
    /// A packet sent with nobody waiting.
    Sent(InFlight),
    /// A packet of so many bytes sent by an operation, whose table has the lease.
    Awaited(OpId, u32),
    /// One of several pieces of such a packet.
    Piece(Group),
}

/// Names a packet of several pieces in [`Groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u32);

/// Packets of several pieces on their way out: the operation ends with its last piece, whatever order they come back in.
pub struct Groups {
    /// The operation, the packet's length in bytes, and the pieces not back yet; zero for a free place.
    places: Vec<(OpId, u32, u32)>,
    free: Vec<u32>,
}

impl Groups {
    /// Room for `capacity` packets.
    pub fn new(capacity: u32) -> Groups {
        Groups { places: vec![(OpId::from_bits(0), 0, 0); capacity as usize], free: (0..capacity).rev().collect() }
    }

    /// A packet of `bytes` in `pieces` pieces, at least one.
    ///
    /// # Panics
    /// When there are more packets than places: a packet has as many frames as pieces, and frames are bounded first.
    pub fn begin(&mut self, op: OpId, bytes: u32, pieces: u32) -> Group {
        let place = self.free.pop().expect("as many places as frames");
        self.places[place as usize] = (op, bytes, pieces);
        Group(place)
    }

    /// A piece is back; the operation and its length in bytes when it was the last.
    pub fn finish(&mut self, group: Group) -> Option<(OpId, u32)> {
        let (op, bytes, pieces) = &mut self.places[group.0 as usize];
        *pieces -= 1;
        if *pieces > 0 {
            return None;
        }
        let done = (*op, *bytes);
        self.free.push(group.0);
        Some(done)
    }
}

struct Slot {
    address: u64,
    next: Handle,
    frame: Option<Frame>,
}

/// The frames a port has given to the kernel.
pub struct Frames {
    chunk_shift: u32,
    /// By chunk: the first slot.
    heads: Vec<Handle>,
    slots: Vec<Slot>,
    /// Free slots, linked by `next`.
    free: Handle,
}

impl Frames {
    /// Room for `capacity` frames of a region of `chunks` chunks.
    pub fn new(chunks: u32, chunk_bytes: u32, capacity: u32) -> Frames {
        let slots =
            (1..=capacity).map(|next| Slot { address: 0, next: if next == capacity { 0 } else { next + 1 }, frame: None }).collect();
        Frames { chunk_shift: chunk_bytes.ilog2(), heads: vec![0; chunks as usize], slots, free: u32::from(capacity > 0) }
    }

    /// Keeps `frame` under the address the kernel is told.
    ///
    /// # Panics
    /// When the table is full or the address outside the region: rings are sized for the table and leases lie in the region.
    #[inline]
    pub fn insert(&mut self, address: RegionOffset, frame: Frame) {
        let handle = self.free;
        assert!(handle != 0, "more frames than the rings hold");
        let head = &mut self.heads[(address.0 >> self.chunk_shift) as usize];
        let slot = &mut self.slots[handle as usize - 1];
        self.free = slot.next;
        *slot = Slot { address: address.0, next: *head, frame: Some(frame) };
        *head = handle;
    }

    /// The lease of the chunk the kernel received into, wherever in the chunk the packet begins.
    #[inline]
    pub fn take_posted(&mut self, address: u64) -> Option<InFlight> {
        match self.take(address, |slot| matches!(slot.frame, Some(Frame::Posted(_))))? {
            Frame::Posted(payload) => Some(payload),
            _ => unreachable!("only a posted frame was looked for"),
        }
    }

    /// The frame sent from exactly this address. Of two, sent from the same shared bytes, the later one: they are alike.
    #[inline]
    pub fn take_sent(&mut self, address: u64) -> Option<Frame> {
        self.take(address, |slot| slot.address == address && !matches!(slot.frame, Some(Frame::Posted(_))))
    }

    #[inline]
    fn take(&mut self, address: u64, is_wanted: impl Fn(&Slot) -> bool) -> Option<Frame> {
        let chunk = usize::try_from(address >> self.chunk_shift).ok()?;
        let mut previous = 0;
        let mut handle = *self.heads.get(chunk)?;
        while handle != 0 {
            let slot = &self.slots[handle as usize - 1];
            let next = slot.next;
            if is_wanted(slot) {
                if previous == 0 {
                    self.heads[chunk] = next
                } else {
                    self.slots[previous as usize - 1].next = next
                }
                let slot = &mut self.slots[handle as usize - 1];
                slot.next = self.free;
                self.free = handle;
                return slot.frame.take();
            }
            (previous, handle) = (handle, next);
        }
        None
    }

    /// Takes every frame out: for when the kernel is known to have let go of all of them.
    pub fn drain(&mut self) -> impl Iterator<Item = Frame> + '_ {
        self.heads.fill(0);
        let capacity = self.slots.len() as u32;
        self.free = u32::from(capacity > 0);
        (1..).zip(&mut self.slots).filter_map(move |(handle, slot)| {
            slot.next = if handle == capacity { 0 } else { handle + 1 };
            slot.frame.take()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ops;
    use crate::mem::payload::Lease;
    use crate::mem::{PageKind, Region, RegionConfig, Slab};

    fn world() -> (Slab, Frames) {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 17) }).unwrap();
        (Slab::new(&region, 64).unwrap(), Frames::new(64, 2048, 4))
    }

    #[test]
    fn an_address_anywhere_in_the_chunk_names_what_was_posted() {
        let (slab, mut frames) = world();
        let buf = slab.buf().unwrap();
        let offset = buf.offset();
        frames.insert(offset, Frame::Posted(InFlight::launch(buf.into_payload())));
        assert!(frames.take_sent(offset.0).is_none(), "a completion cannot name a chunk that is being received into");
        assert!(frames.take_posted(offset.0 + 2048).is_none());
        assert!(frames.take_posted(u64::MAX).is_none());
        let payload = frames.take_posted(offset.0 + 512).expect("posted");
        assert!(frames.take_posted(offset.0 + 512).is_none(), "a second completion");
        drop(payload.land());
        assert_eq!(slab.census().free, 64);
    }

    #[test]
    fn a_shared_chunk_may_be_on_its_way_several_times() {
        let (slab, mut frames) = world();
        let shared = slab.run(2048).unwrap().freeze();
        let offsets = [shared.slice(0, 64).offset(), shared.slice(512, 64).offset(), shared.slice(0, 64).offset()];
        for (offset, share) in offsets.into_iter().zip([shared.clone(), shared.clone(), shared]) {
            frames.insert(offset, Frame::Sent(InFlight::launch(share.into_payload())));
        }
        for offset in [offsets[1], offsets[0], offsets[0]] {
            let Some(Frame::Sent(payload)) = frames.take_sent(offset.0) else { panic!("it was sent") };
            assert_eq!(slab.census().free, 0x3f);
            drop(payload.land());
        }
        assert!(frames.take_sent(offsets[0].0).is_none());
        slab.collect_returns();
        assert_eq!(slab.census().free, 64);
    }

    #[test]
    fn a_packet_of_several_pieces_ends_with_the_last_of_them() {
        let mut groups = Groups::new(2);
        let (one, other) = (OpId::from_bits(1 << 32), OpId::from_bits(2 << 32));
        let (a, b) = (groups.begin(one, 100, 2), groups.begin(other, 200, 1));
        assert_eq!(groups.finish(a), None);
        assert_eq!(groups.finish(b), Some((other, 200)));
        assert_eq!(groups.finish(a), Some((one, 100)));
    }

    #[test]
    fn a_full_table_says_so_and_drains_whole() {
        let (slab, mut frames) = world();
        let ops = Ops::new(1);
        let op = ops.begin(slab.buf().unwrap()).unwrap();
        for chunk in 0..4 {
            frames.insert(RegionOffset(chunk * 2048), Frame::Awaited(op.id(), 64));
        }
        assert_eq!(frames.free, 0);
        assert_eq!(frames.drain().count(), 4);
        for chunk in 0..4 {
            frames.insert(RegionOffset(chunk * 2048), Frame::Awaited(op.id(), 64));
        }
        assert_eq!(frames.free, 0);
        drop(ops.retract(op));
    }
}
