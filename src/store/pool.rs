//! Things by number: a freed place is given to the next. Grows by a page at a time, so that nothing is ever moved.

/// Things in a page, as a power of two.
const PAGE: u32 = 10;

/// The things.
pub struct Pool<T> {
    pages: Vec<Vec<T>>,
    free: Vec<u32>,
    len: u32,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { pages: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Pool<T> {
    /// Puts a thing in; its number.
    ///
    /// # Panics
    /// At 2³² things, which no memory holds.
    pub fn put(&mut self, thing: T) -> u32 {
        if let Some(free) = self.free.pop() {
            self[free] = thing;
            return free;
        }
        let number = self.len;
        self.len = number.checked_add(1).expect("fewer than 2^32 things");
        if number.is_multiple_of(1 << PAGE) {
            self.pages.push(Vec::with_capacity(1 << PAGE));
        }
        self.pages.last_mut().expect("a page was made").push(thing);
        number
    }

    /// The place of `number` may be given to the next. What is there stays until then.
    pub fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// How many things are there.
    #[cfg(test)]
    pub fn len(&self) -> u32 {
        self.len - self.free.len() as u32
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        let pages = self.pages.len() * (size_of::<T>() << PAGE);
        pages + self.pages.capacity() * size_of::<Vec<T>>() + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> std::ops::Index<u32> for Pool<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.pages[(number >> PAGE) as usize][(number & ((1 << PAGE) - 1)) as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Pool<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.pages[(number >> PAGE) as usize][(number & ((1 << PAGE) - 1)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut pool = Pool::default();
        let numbers: Vec<u32> = (0..3000).map(|thing| pool.put(thing)).collect();
        assert!(numbers.iter().all(|&number| pool[number] == number));
        pool.give(17);
        assert_eq!((pool.len(), pool.put(5), pool[17], pool.len()), (2999, 17, 5, 3000));
        assert!(pool.bytes() >= 3000 * 4);
    }
}
