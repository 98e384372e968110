//! A lease crosses cores as a parcel only.
fn main() {
    let region = basin::mem::Region::map(&basin::mem::RegionConfig::new(4096)).unwrap();
    let slab = basin::mem::Slab::new(&region, 2).unwrap();
    let run = slab.run(2048).unwrap();
    std::thread::spawn(move || drop(run));
}
