//! A lease returns its chunks once.
fn main() {
    let region = basin::mem::Region::map(&basin::mem::RegionConfig::new(4096)).unwrap();
    let slab = basin::mem::Slab::new(&region, 2).unwrap();
    let buf = slab.buf().unwrap();
    drop(buf);
    drop(buf);
}
