//! A frozen run cannot be written.
fn main() {
    let region = basin::mem::Region::map(&basin::mem::RegionConfig::new(4096)).unwrap();
    let slab = basin::mem::Slab::new(&region, 2).unwrap();
    let mut shared = slab.run(2048).unwrap().freeze();
    shared.as_mut_slice()[0] = 1;
}
