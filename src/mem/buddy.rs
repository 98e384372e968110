//! A buddy allocator over chunk numbers: runs of 1 to 512 consecutive chunks, aligned so that none crosses a huge page.
//!
//! Works on numbers alone and touches no chunk. All operations are O(orders); nothing is allocated after `new`.

/// Orders 0 (one chunk) to 9 (512 chunks: 1 MiB of 2 KiB chunks).
const ORDERS: usize = crate::base::limits::RUN_MAX_CHUNKS.ilog2() as usize + 1;
const NONE: u32 = u32::MAX;
/// In `order`: this chunk does not begin a free block.
const NOT_FREE: u8 = u8::MAX;

/// Free blocks of the chunks `first .. first + count`.
pub struct Buddy {
    first: u32,
    /// Heads of the free lists by order; numbers relative to `first`.
    heads: [u32; ORDERS],
    /// Per chunk: the links of the free list it heads a block in, and that block's order.
    links: Box<[Link]>,
    order: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Link {
    next: u32,
    previous: u32,
}

impl Buddy {
    /// All of `first .. first + count` free.
    pub fn new(first: u32, count: u32) -> Buddy {
        let links = vec![Link { next: NONE, previous: NONE }; count as usize].into_boxed_slice();
        let order = vec![NOT_FREE; count as usize].into_boxed_slice();
        let mut buddy = Buddy { first, heads: [NONE; ORDERS], links, order };
        buddy.give(first, count);
        buddy
    }

    /// Takes `count` consecutive chunks and returns the first, or `None` when no free block is that long.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        debug_assert!(count >= 1);
        let wanted = count.next_power_of_two().ilog2() as usize;
        let found = (wanted..ORDERS).find(|&order| self.heads[order] != NONE)?;
        let block = self.heads[found];
        self.unlink(block, found);
        // The lower part is ours; what is above `count` goes back in the largest pieces that fit.
        let (start, end) = (block + count, block + (1 << found));
        self.insert_range(start, end, false);
        Some(self.first + block)
    }

    /// Takes `count` consecutive chunks that may be more than the largest block, beginning with such a block, and returns the first. Looks
    /// at each largest block from the front on: for who wants that seldom.
    pub fn take_across(&mut self, count: u32) -> Option<u32> {
        const LARGEST: u32 = 1 << (ORDERS - 1);
        let blocks = count.div_ceil(LARGEST);
        let begins = self.first.next_multiple_of(LARGEST) - self.first;
        let mut free = 0;
        let last = (begins..self.order.len() as u32).step_by(LARGEST as usize).find(|&block| {
            free = if usize::from(self.order[block as usize]) == ORDERS - 1 { free + 1 } else { 0 };
            free == blocks
        })?;
        let end = last + LARGEST;
        let start = end - blocks * LARGEST;
        for block in (start..end).step_by(LARGEST as usize) {
            self.unlink(block, ORDERS - 1);
        }
        // What is above `count` goes back, as in `take`.
        self.insert_range(start + count, end, false);
        Some(self.first + start)
    }

    /// Gives back `count` chunks from `chunk` on, merging them with free neighbours.
    ///
    /// # Panics
    /// When a chunk was free already or is not of this allocator: leases make both impossible, so it is a bug of ours.
    pub fn give(&mut self, chunk: u32, count: u32) {
        let start = chunk.checked_sub(self.first).expect("a chunk of another slab");
        assert!(start as usize + count as usize <= self.order.len(), "a chunk of another slab");
        self.insert_range(start, start + count, true);
    }

    fn insert_range(&mut self, mut start: u32, end: u32, merge: bool) {
        while start < end {
            // Blocks are aligned by their absolute number, so that a run never crosses a huge page.
            let aligned = (self.first + start).trailing_zeros().min(ORDERS as u32 - 1);
            let fits = (end - start).ilog2();
            let order = aligned.min(fits) as usize;
            if merge {
                self.merge(start, order)
            } else {
                self.link(start, order)
            }
            start += 1 << order;
        }
    }

    fn merge(&mut self, mut block: u32, mut order: usize) {
        assert_eq!(self.order[block as usize], NOT_FREE, "chunk {} was returned twice", self.first + block);
        while order + 1 < ORDERS {
            let buddy = (self.first + block) ^ (1 << order);
            let Some(buddy) = buddy.checked_sub(self.first) else { break };
            if self.order.get(buddy as usize).is_none_or(|&o| o as usize != order) {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.link(block, order);
    }

    fn link(&mut self, block: u32, order: usize) {
        let head = self.heads[order];
        self.links[block as usize] = Link { next: head, previous: NONE };
        if head != NONE {
            self.links[head as usize].previous = block;
        }
        self.heads[order] = block;
        self.order[block as usize] = order as u8;
    }

    fn unlink(&mut self, block: u32, order: usize) {
        let Link { next, previous } = self.links[block as usize];
        if previous == NONE {
            self.heads[order] = next
        } else {
            self.links[previous as usize].next = next
        }
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
        self.order[block as usize] = NOT_FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_merge_back_to_the_largest_block() {
        let mut buddy = Buddy::new(512, 1024);
        let (a, b, c) = (buddy.take(3).unwrap(), buddy.take(512).unwrap(), buddy.take(1).unwrap());
        assert_eq!(b % 512, 0);
        assert!(buddy.take(512).is_none());
        buddy.give(a, 3);
        buddy.give(c, 1);
        buddy.give(b, 512);
        assert!(buddy.take(512).is_some() && buddy.take(512).is_some() && buddy.take(1).is_none());
    }

    #[test]
    #[should_panic(expected = "returned twice")]
    fn a_double_free_is_caught() {
        let mut buddy = Buddy::new(0, 8);
        let chunk = buddy.take(1).unwrap();
        buddy.give(chunk, 1);
        // The merged block of eight begins here, so the second return meets a free block.
        buddy.give(0, 1);
    }

    proptest! {
        /// Whatever is taken overlaps nothing else taken, stays inside, and when all is back the largest blocks are whole.
        #[test]
        fn taken_runs_are_disjoint(
            first in 0u32..2000,
            count in 1u32..3000,
            steps in proptest::collection::vec((1u32..=512, any::<u8>(), 1u32..4), 1..200),
        ) {
            let mut buddy = Buddy::new(first, count);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (want, pick, times) in steps {
                let want = if pick % 5 == 1 { want * times } else { want };
                if pick % 3 == 0 && !held.is_empty() {
                    let (chunk, n) = held.swap_remove(pick as usize % held.len());
                    buddy.give(chunk, n);
                } else if pick % 5 == 1 {
                    if let Some(chunk) = buddy.take_across(want) {
                        prop_assert!(chunk >= first && chunk + want <= first + count && chunk % 512 == 0);
                        prop_assert!(held.iter().all(|&(c, n)| chunk + want <= c || c + n <= chunk));
                        held.push((chunk, want));
                    }
                } else if let Some(chunk) = buddy.take(want) {
                    prop_assert!(chunk >= first && chunk + want <= first + count);
                    prop_assert!(chunk / 512 == (chunk + want - 1) / 512, "a run crosses its aligned block");
                    prop_assert!(held.iter().all(|&(c, n)| chunk + want <= c || c + n <= chunk));
                    held.push((chunk, want));
                }
            }
            for (chunk, n) in held { buddy.give(chunk, n); }
            let mut left = 0;
            for size in (0..ORDERS).rev().map(|order| 1u32 << order) {
                while buddy.take(size).is_some() { left += size; }
            }
            prop_assert_eq!(left, count);
        }
    }
}
