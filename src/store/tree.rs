//! An ordered set of numbers, whose order is that of what they stand for: a B+ tree of entry numbers.
//!
//! The names are not in the tree. Whoever asks gives a comparison of what is looked for with the entry of a number, so that an object
//! costs the tree four bytes and what its leaf has free. Leaves are linked, for lists.

use std::cmp::Ordering;

use super::pool::Pool;

/// Numbers in a node: four cache lines of a leaf.
const FANOUT: usize = 64;
/// A node with fewer is joined with a neighbour where both fit.
const SPARSE: usize = FANOUT / 4;
/// What a joined node has at most, so that it is not split again at once.
const JOINED_MAX: usize = FANOUT * 3 / 4;

/// No node.
const NONE: u32 = u32::MAX;

/// Where a number is, until the tree is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    leaf: u32,
    at: u8,
}

/// The set.
pub struct Tree {
    leaves: Pool<Leaf>,
    inner: Pool<Inner>,
    /// A leaf when `height` is 0, otherwise an inner node.
    root: u32,
    height: u8,
    len: u64,
}

#[derive(Clone)]
struct Leaf {
    next: u32,
    len: u8,
    ids: [u32; FANOUT],
}

/// Children in order, each with the lowest number below it.
#[derive(Clone)]
struct Inner {
    len: u8,
    lowest: [u32; FANOUT],
    children: [u32; FANOUT],
}

impl Default for Tree {
    fn default() -> Tree {
        let mut leaves = Pool::default();
        let root = leaves.put(Leaf { next: NONE, len: 0, ids: [0; FANOUT] });
        Tree { leaves, inner: Pool::default(), root, height: 0, len: 0 }
    }
}

/// What an insertion did to a node, for the one above.
enum Grown {
    /// No new node.
    Within,
    /// A new node follows it, whose lowest number is the first.
    Split { lowest: u32, node: u32 },
}

impl Tree {
    /// How many numbers there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        self.leaves.bytes() + self.inner.bytes()
    }

    /// Puts `id` in its place. `order` tells how an entry stands to the new one: `Less` when it comes before.
    ///
    /// # Errors
    /// The number of the entry that is `Equal`: it stays.
    pub fn insert(&mut self, id: u32, mut order: impl FnMut(u32) -> Ordering) -> Result<(), u32> {
        match self.insert_below(self.root, self.height, id, &mut order)? {
            Grown::Within => {}
            Grown::Split { lowest, node } => {
                let mut root = Inner { len: 2, lowest: [0; FANOUT], children: [0; FANOUT] };
                (root.lowest[0], root.children[0]) = (self.lowest(self.root, self.height), self.root);
                (root.lowest[1], root.children[1]) = (lowest, node);
                self.root = self.inner.put(root);
                self.height += 1;
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Takes the number whose entry is `Equal` out.
    pub fn remove(&mut self, mut order: impl FnMut(u32) -> Ordering) -> Option<u32> {
        let id = self.remove_below(self.root, self.height, &mut order)?;
        self.len -= 1;
        while self.height > 0 && self.inner[self.root].len == 1 {
            let old = self.root;
            self.root = self.inner[old].children[0];
            self.inner.give(old);
            self.height -= 1;
        }
        Some(id)
    }

    /// The first number whose entry is not `Less`: its place, or that behind the last.
    pub fn seek(&self, mut order: impl FnMut(u32) -> Ordering) -> Cursor {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inner[node];
            node = inner.children[inner.child(&mut order)];
        }
        let leaf = &self.leaves[node];
        self.settle(Cursor { leaf: node, at: leaf.ids().partition_point(|&id| order(id) == Ordering::Less) as u8 })
    }

    /// The last number.
    pub fn last(&self) -> Option<u32> {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inner[node];
            node = inner.children[usize::from(inner.len) - 1];
        }
        self.leaves[node].ids().last().copied()
    }

    /// The number at a cursor, `None` behind the last.
    pub fn get(&self, cursor: Cursor) -> Option<u32> {
        self.leaves[cursor.leaf].ids().get(usize::from(cursor.at)).copied()
    }

    /// The place behind.
    pub fn next(&self, cursor: Cursor) -> Cursor {
        self.settle(Cursor { at: cursor.at + 1, ..cursor })
    }

    /// From behind the end of a leaf to the start of the next.
    fn settle(&self, cursor: Cursor) -> Cursor {
        let leaf = &self.leaves[cursor.leaf];
        let is_behind = cursor.at >= leaf.len && leaf.next != NONE;
        if is_behind { Cursor { leaf: leaf.next, at: 0 } } else { Cursor { at: cursor.at.min(leaf.len), ..cursor } }
    }

    /// The lowest number below a node that has any.
    fn lowest(&self, node: u32, height: u8) -> u32 {
        if height == 0 { self.leaves[node].ids[0] } else { self.inner[node].lowest[0] }
    }

    fn insert_below(&mut self, node: u32, height: u8, id: u32, order: &mut impl FnMut(u32) -> Ordering) -> Result<Grown, u32> {
        if height == 0 {
            return self.insert_leaf(node, id, order);
        }
        let at = self.inner[node].child(order);
        let child = self.inner[node].children[at];
        let grown = self.insert_below(child, height - 1, id, order)?;
        self.inner[node].lowest[at] = self.lowest(child, height - 1);
        let Grown::Split { lowest, node: new } = grown else { return Ok(Grown::Within) };
        let inner = &mut self.inner[node];
        let at = at + 1;
        if usize::from(inner.len) < FANOUT {
            inner.put(at, lowest, new);
            return Ok(Grown::Within);
        }
        // Never one child alone: it would have no neighbour.
        let keep = split_at(at).min(FANOUT - 1);
        let mut right = inner.cut(keep);
        if at > keep {
            right.put(at - keep, lowest, new)
        } else {
            inner.put(at, lowest, new)
        }
        let lowest = right.lowest[0];
        Ok(Grown::Split { lowest, node: self.inner.put(right) })
    }

    fn insert_leaf(&mut self, node: u32, id: u32, order: &mut impl FnMut(u32) -> Ordering) -> Result<Grown, u32> {
        let leaf = &mut self.leaves[node];
        let at = leaf.ids().partition_point(|&id| order(id) == Ordering::Less);
        if let Some(&there) = leaf.ids().get(at).filter(|&&id| order(id) == Ordering::Equal) {
            return Err(there);
        }
        if usize::from(leaf.len) < FANOUT {
            insert(&mut leaf.ids, &mut leaf.len, at, id);
            return Ok(Grown::Within);
        }
        let keep = split_at(at);
        let mut right = Leaf { next: leaf.next, len: (FANOUT - keep) as u8, ids: [0; FANOUT] };
        right.ids[..FANOUT - keep].copy_from_slice(&leaf.ids[keep..]);
        leaf.len = keep as u8;
        if at > keep || at == FANOUT {
            insert(&mut right.ids, &mut right.len, at - keep, id);
        } else {
            insert(&mut leaf.ids, &mut leaf.len, at, id);
        }
        let lowest = right.ids[0];
        let new = self.leaves.put(right);
        self.leaves[node].next = new;
        Ok(Grown::Split { lowest, node: new })
    }

    fn remove_below(&mut self, node: u32, height: u8, order: &mut impl FnMut(u32) -> Ordering) -> Option<u32> {
        if height == 0 {
            let leaf = &mut self.leaves[node];
            let at = leaf.ids().partition_point(|&id| order(id) == Ordering::Less);
            let id = *leaf.ids().get(at).filter(|&&id| order(id) == Ordering::Equal)?;
            remove(&mut leaf.ids, &mut leaf.len, at);
            return Some(id);
        }
        let at = self.inner[node].child(order);
        let child = self.inner[node].children[at];
        let id = self.remove_below(child, height - 1, order)?;
        if self.count(child, height - 1) > 0 {
            self.inner[node].lowest[at] = self.lowest(child, height - 1);
        }
        if self.count(child, height - 1) < SPARSE {
            // With the one before it, or the one behind the first.
            let left = at.saturating_sub(1);
            if left + 1 < usize::from(self.inner[node].len) {
                self.join(node, left, height - 1);
            }
        }
        Some(id)
    }

    fn count(&self, node: u32, height: u8) -> usize {
        usize::from(if height == 0 { self.leaves[node].len } else { self.inner[node].len })
    }

    /// Joins child `left` of `parent` with the one behind it where one node can hold both, and evens them out otherwise.
    fn join(&mut self, parent: u32, left: usize, height: u8) {
        let [into, from] = [left, left + 1].map(|at| self.inner[parent].children[at]);
        let both = self.count(into, height) + self.count(from, height);
        let keep = if both > JOINED_MAX { both / 2 } else { both };
        if height == 0 {
            let (mut first, mut second) = (self.leaves[into].clone(), self.leaves[from].clone());
            share(&mut first.ids, &mut second.ids, first.len, second.len, keep);
            (first.len, second.len) = (keep as u8, (both - keep) as u8);
            if second.len == 0 {
                first.next = second.next;
            }
            (self.leaves[into], self.leaves[from]) = (first, second);
        } else {
            let (mut first, mut second) = (self.inner[into].clone(), self.inner[from].clone());
            share(&mut first.lowest, &mut second.lowest, first.len, second.len, keep);
            share(&mut first.children, &mut second.children, first.len, second.len, keep);
            (first.len, second.len) = (keep as u8, (both - keep) as u8);
            (self.inner[into], self.inner[from]) = (first, second);
        }
        self.inner[parent].lowest[left] = self.lowest(into, height);
        if keep < both {
            self.inner[parent].lowest[left + 1] = self.lowest(from, height);
            return;
        }
        self.inner[parent].remove(left + 1);
        if height == 0 { self.leaves.give(from) } else { self.inner.give(from) }
    }
}

/// Moves between the ends of two lists that follow one another, until the first has `keep`.
fn share(first: &mut [u32; FANOUT], second: &mut [u32; FANOUT], first_len: u8, second_len: u8, keep: usize) {
    let (before, behind) = (usize::from(first_len), usize::from(second_len));
    if keep > before {
        let more = keep - before;
        first[before..keep].copy_from_slice(&second[..more]);
        second.copy_within(more..behind, 0);
    } else {
        let fewer = before - keep;
        second.copy_within(..behind, fewer);
        second[..fewer].copy_from_slice(&first[keep..before]);
    }
}

/// Where a full node is cut when something comes in at `at`: in the middle, and at the end for what comes in order.
fn split_at(at: usize) -> usize {
    if at == FANOUT { FANOUT } else { FANOUT / 2 }
}

fn insert(list: &mut [u32; FANOUT], len: &mut u8, at: usize, value: u32) {
    list.copy_within(at..usize::from(*len), at + 1);
    list[at] = value;
    *len += 1;
}

fn remove(list: &mut [u32; FANOUT], len: &mut u8, at: usize) {
    list.copy_within(at + 1..usize::from(*len), at);
    *len -= 1;
}

impl Leaf {
    fn ids(&self) -> &[u32] {
        &self.ids[..usize::from(self.len)]
    }
}

impl Inner {
    /// Below which child what is looked for would be.
    fn child(&self, order: &mut impl FnMut(u32) -> Ordering) -> usize {
        self.lowest[1..usize::from(self.len)].partition_point(|&id| order(id) != Ordering::Greater)
    }

    fn put(&mut self, at: usize, lowest: u32, node: u32) {
        let mut len = self.len;
        insert(&mut self.lowest, &mut len, at, lowest);
        insert(&mut self.children, &mut self.len, at, node);
    }

    fn remove(&mut self, at: usize) {
        let mut len = self.len;
        remove(&mut self.lowest, &mut len, at);
        remove(&mut self.children, &mut self.len, at);
    }

    /// Keeps the first; gives the others.
    fn cut(&mut self, keep: usize) -> Inner {
        let mut right = Inner { len: self.len - keep as u8, lowest: [0; FANOUT], children: [0; FANOUT] };
        let more = usize::from(right.len);
        right.lowest[..more].copy_from_slice(&self.lowest[keep..keep + more]);
        right.children[..more].copy_from_slice(&self.children[keep..keep + more]);
        self.len = keep as u8;
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn all(tree: &Tree) -> Vec<u32> {
        let mut cursor = tree.seek(|_| Ordering::Greater);
        std::iter::from_fn(|| {
            let id = tree.get(cursor)?;
            cursor = tree.next(cursor);
            Some(id)
        })
        .collect()
    }

    #[test]
    fn in_order_leaves_are_full() {
        let mut tree = Tree::default();
        let many = 200_000u32;
        (0..many).for_each(|id| tree.insert(id, |there| there.cmp(&id)).unwrap());
        assert_eq!(tree.len(), u64::from(many));
        assert!(tree.leaves.len() <= many.div_ceil(FANOUT as u32));
        assert_eq!(tree.insert(7, |there| there.cmp(&7)), Err(7));
        assert!(all(&tree).into_iter().eq(0..many));
    }

    proptest! {
        /// As a set of the standard library does it, in every order, down to nothing and up again.
        #[test]
        fn as_an_ordered_set(
            steps in prop::collection::vec((any::<bool>(), 0u32..700), 1..4000),
            probes in prop::collection::vec(0u32..700, 20),
        ) {
            let (mut tree, mut model) = (Tree::default(), BTreeSet::new());
            for (is_in, id) in steps {
                if is_in {
                    prop_assert_eq!(tree.insert(id, |there| there.cmp(&id)).is_ok(), model.insert(id));
                } else {
                    prop_assert_eq!(tree.remove(|there| there.cmp(&id)).is_some(), model.remove(&id));
                }
            }
            prop_assert_eq!(tree.len(), model.len() as u64);
            prop_assert_eq!(all(&tree), model.iter().copied().collect::<Vec<_>>());
            for probe in probes {
                let found = tree.get(tree.seek(|there| there.cmp(&probe)));
                prop_assert_eq!(found, model.range(probe..).next().copied());
            }
            for id in model {
                prop_assert_eq!(tree.remove(|there| there.cmp(&id)), Some(id));
            }
            prop_assert!(tree.is_empty() && all(&tree).is_empty());
        }
    }
}
