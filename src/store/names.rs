//! The bytes of names, without what an allocation of each would cost: slots of a few sizes in pages.

/// Sizes of slots are multiples of this, in bytes.
const STEP: usize = 8;
/// The longest name in a slot, in bytes: S3's longest. Longer ones are allocated one by one.
const SLOT_MAX: usize = 1024;
/// Bytes of a page.
const PAGE: usize = 16 << 10;

/// The names.
pub struct Names {
    /// By size, in steps.
    classes: Vec<Class>,
    long: Vec<Box<[u8]>>,
    long_free: Vec<u32>,
}

#[derive(Default)]
struct Class {
    pages: Vec<Box<[u8]>>,
    free: Vec<u32>,
    slots: u32,
}

impl Default for Names {
    fn default() -> Names {
        Names { classes: (0..=SLOT_MAX / STEP).map(|_| Class::default()).collect(), long: Vec::new(), long_free: Vec::new() }
    }
}

/// Bytes of the slot of a name.
fn slot_bytes(len: usize) -> usize {
    len.max(1).next_multiple_of(STEP)
}

impl Names {
    /// Keeps a name; the number it is had back by, together with its length.
    ///
    /// # Panics
    /// At 2³² names of a size, which no memory holds.
    pub fn put(&mut self, name: &[u8]) -> u32 {
        if name.len() > SLOT_MAX {
            if let Some(free) = self.long_free.pop() {
                self.long[free as usize] = name.into();
                return free;
            }
            self.long.push(name.into());
            return (self.long.len() - 1) as u32;
        }
        let bytes = slot_bytes(name.len());
        let class = &mut self.classes[bytes / STEP];
        let in_page = (PAGE / bytes) as u32;
        let slot = class.free.pop().unwrap_or_else(|| {
            let slot = class.slots;
            class.slots = slot.checked_add(1).expect("fewer than 2^32 names of a size");
            if slot.is_multiple_of(in_page) {
                class.pages.push(vec![0; PAGE].into());
            }
            slot
        });
        let at = (slot % in_page) as usize * bytes;
        class.pages[(slot / in_page) as usize][at..at + name.len()].copy_from_slice(name);
        slot
    }

    /// The name of `len` bytes with a number.
    #[inline]
    pub fn get(&self, slot: u32, len: usize) -> &[u8] {
        if len > SLOT_MAX {
            return &self.long[slot as usize];
        }
        let bytes = slot_bytes(len);
        let in_page = (PAGE / bytes) as u32;
        let at = (slot % in_page) as usize * bytes;
        &self.classes[bytes / STEP].pages[(slot / in_page) as usize][at..at + len]
    }

    /// The name of `len` bytes with a number is not needed any more.
    pub fn give(&mut self, slot: u32, len: usize) {
        if len > SLOT_MAX {
            self.long[slot as usize] = Box::default();
            self.long_free.push(slot);
        } else {
            self.classes[slot_bytes(len) / STEP].free.push(slot);
        }
    }

    /// Bytes of memory they take.
    pub fn bytes(&self) -> usize {
        let pages = |class: &Class| class.pages.len() * (PAGE + size_of::<Box<[u8]>>()) + class.free.capacity() * size_of::<u32>();
        let long: usize = self.long.iter().map(|name| name.len() + size_of::<Box<[u8]>>()).sum();
        self.classes.iter().map(pages).sum::<usize>() + long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_their_slots_are_used_again() {
        let mut names = Names::default();
        let name = |number: usize| vec![number as u8; number % 1100];
        let slots: Vec<u32> = (0..5000).map(|number| names.put(&name(number))).collect();
        for (number, &slot) in slots.iter().enumerate() {
            assert_eq!(names.get(slot, name(number).len()), name(number));
        }
        let before = names.bytes();
        for (number, &slot) in slots.iter().enumerate() {
            names.give(slot, name(number).len());
        }
        let again: Vec<u32> = (0..5000).map(|number| names.put(&name(number + 5000 * 1100))).collect();
        assert!(names.bytes() <= before + 5000 * size_of::<u32>() * 2);
        assert!(again.iter().enumerate().all(|(number, &slot)| names.get(slot, name(number).len()) == name(number + 5000 * 1100)));
    }
}
