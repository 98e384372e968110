//! Leases of other cores: parcels that came by mail, as ordinary leases again.

use std::cell::RefCell;

use crate::mem::{Parcel, Run, Slab};

/// The slabs that parcels of other cores are attached to, one for each slab they come from.
#[derive(Default)]
pub struct Guests {
    slabs: RefCell<Vec<Slab>>,
}

impl Guests {
    /// Makes a parcel a lease of this core. `adopt` is told of each new slab, so that the core counts it.
    pub fn welcome(&self, mut parcel: Parcel, adopt: impl FnOnce(&Slab)) -> Run {
        let mut slabs = self.slabs.borrow_mut();
        for slab in slabs.iter() {
            match parcel.attach(slab) {
                Ok(run) => return run,
                Err(other) => parcel = other,
            }
        }
        let slab = Slab::for_guests(&parcel);
        adopt(&slab);
        slabs.push(slab.clone());
        parcel.attach(&slab).expect("the slab was made for it")
    }
}
