//! What a core remembers of requests by their words.

use std::cell::RefCell;
use std::hash::{BuildHasher, Hash};
use std::rc::Rc;

use hashbrown::DefaultHashBuilder;

/// So many things at most, each in the place that its words have: the last one stays there.
pub struct Places<T> {
    places: RefCell<Box<[Option<Rc<T>>]>>,
    hasher: DefaultHashBuilder,
}

impl<T> Places<T> {
    /// For so many, a power of two.
    pub fn new(count: usize) -> Places<T> {
        assert!(count.is_power_of_two(), "a place is found without a division");
        Places { places: RefCell::new(vec![None; count].into()), hasher: DefaultHashBuilder::default() }
    }

    /// What has the place of these words, if it is what is looked for.
    #[inline]
    pub fn find(&self, words: impl Hash, is_it: impl FnOnce(&T) -> bool) -> Option<Rc<T>> {
        let places = self.places.borrow();
        places[self.place(words, places.len())].as_ref().filter(|thing| is_it(thing)).cloned()
    }

    /// Gives it the place of these words.
    pub fn keep(&self, words: impl Hash, thing: T) {
        let mut places = self.places.borrow_mut();
        let place = self.place(words, places.len());
        places[place] = Some(Rc::new(thing));
    }

    #[inline]
    fn place(&self, words: impl Hash, count: usize) -> usize {
        self.hasher.hash_one(words) as usize & (count - 1)
    }
}
