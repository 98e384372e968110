//! What a device may touch has no slice.
fn main() {
    let region = basin::mem::Region::map(&basin::mem::RegionConfig::new(4096)).unwrap();
    let slab = basin::mem::Slab::new(&region, 2).unwrap();
    let ops = basin::device::Ops::new(1);
    let mut run = slab.run(2048).unwrap();
    let _op = ops.begin(run).unwrap();
    run.as_mut_slice()[0] = 1;
}
