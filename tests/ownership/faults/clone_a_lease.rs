//! Only a frozen run has more than one holder.
fn main() {
    let region = basin::mem::Region::map(&basin::mem::RegionConfig::new(4096)).unwrap();
    let slab = basin::mem::Slab::new(&region, 2).unwrap();
    let run = slab.run(2048).unwrap();
    let _second = run.clone();
}
