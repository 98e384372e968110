//! The ownership rules, from outside the leases.

use std::thread;

use super::*;

fn slab(chunks: u32) -> Slab {
    let bytes = u64::from(chunks) * 2048;
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(bytes) }).unwrap();
    Slab::new(&region, chunks).unwrap()
}

#[test]
fn a_region_is_dealt_to_slabs_without_overlap() {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(64 * 2048) }).unwrap();
    let (a, b) = (Slab::new(&region, 40).unwrap(), Slab::new(&region, 24).unwrap());
    let last = (0..40).map(|_| a.buf().unwrap()).map(|buf| buf.first_chunk()).max().unwrap();
    assert!(last < b.buf().unwrap().first_chunk());
    let error = Slab::new(&region, 1).unwrap_err();
    assert!(error.to_string().contains("has 0 left"), "{error}");
}

#[test]
fn leases_are_counted_and_return_by_drop() {
    let slab = slab(64);
    let (buf, run) = (slab.buf().unwrap(), slab.run(10_000).unwrap());
    assert_eq!((buf.chunks(), run.chunks(), run.len()), (1, 5, 10_000));
    assert_eq!(slab.census(), Census { free: 58, owned: 6, total: 64, ..Census::default() });
    drop((buf, run));
    assert_eq!(slab.census().free, 64);
    slab.check();
}

#[test]
fn exhaustion_is_typed_and_passes() {
    let slab = slab(8);
    let held: Vec<Buf> = (0..8).map(|_| slab.buf().unwrap()).collect();
    assert_eq!(slab.buf().unwrap_err(), Exhausted { wanted: 1, free: 0, total: 8 });
    drop(held);
    // The singles sit in the magazine; a run must still find them.
    assert_eq!(slab.run(8 * 2048).unwrap().chunks(), 8);
    assert!(slab.run(crate::base::limits::IO_MAX_BYTES + 1).is_err());
}

#[test]
fn a_run_splits_into_bufs_and_joins_again() {
    let slab = slab(16);
    let mut run = slab.run(8 * 2048).unwrap();
    run.as_mut_slice().fill(7);
    let first = run.first_chunk();
    let mut bufs: Vec<Buf> = run.into_bufs().collect();
    assert!(bufs.iter().enumerate().all(|(i, buf)| buf.first_chunk() == first + i as u32 && buf.as_slice() == [7; 2048]));
    let mut joined = Run::from(bufs.remove(0));
    let stranger = bufs.pop().unwrap();
    for buf in bufs {
        joined.join(buf.into()).unwrap();
    }
    assert_eq!((joined.chunks(), joined.len()), (7, 7 * 2048));
    drop(slab.buf().unwrap());
    assert!(joined.join(slab.buf().unwrap().into()).is_err(), "a chunk that does not follow");
    joined.join(stranger.into()).unwrap();
    drop(joined);
    assert_eq!(slab.census().free, 16);
}

#[test]
fn bufs_not_taken_from_a_split_return_too() {
    let slab = slab(8);
    let run = slab.run(8 * 2048).unwrap();
    let kept = run.into_bufs().next();
    assert_eq!(slab.census().free, 7);
    drop(kept);
    assert_eq!(slab.census().free, 8);
}

#[test]
fn views_stay_inside() {
    let slab = slab(4);
    let mut run = slab.run(4096).unwrap();
    run.as_mut_slice()[100] = 9;
    run.set_view(100, 50);
    assert_eq!((run.as_slice().len(), run.as_slice()[0]), (50, 9));
    let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.set_view(4000, 97)));
    assert!(outside.is_err());
}

#[test]
fn a_parcel_travels_and_comes_home() {
    let slab = slab(8);
    let mut run = slab.run(4096).unwrap();
    run.as_mut_slice().fill(3);
    let parcel = run.detach();
    // Read and dropped on another core: its chunks are owned until the owner collects them.
    thread::spawn(move || assert!(parcel.as_slice().iter().all(|&byte| byte == 3))).join().unwrap();
    assert_eq!(slab.census().owned, 2);
    slab.collect_returns();
    assert_eq!(slab.census().free, 8);
    let parcel = slab.run(2048).unwrap().detach();
    let other = super::tests::slab(8);
    let parcel = parcel.attach(&other).unwrap_err();
    assert_eq!(parcel.attach(&slab).unwrap().len(), 2048);
    assert_eq!(slab.census().free, 8);
}

#[test]
fn a_guest_is_an_ordinary_lease_and_goes_home_when_dropped() {
    let home = slab(16);
    let parcels = [2048, 2 * 2048, 2048, 2048].map(|len| home.run(len).unwrap().detach());
    let visit = move || {
        let guests = Slab::for_guests(&parcels[0]);
        let stranger = slab(4).run(2048).unwrap().detach();
        assert!(stranger.attach(&guests).is_err(), "guests of one home only");
        let [one, two, three, four] = parcels.map(|parcel| parcel.attach(&guests).unwrap());
        let mut one = one;
        one.as_mut_slice().fill(5);
        assert_eq!(guests.census(), Census { owned: 5, total: 5, ..Census::default() });
        let flying = InFlight::launch(Payload::Run(one));
        assert_eq!((guests.census().in_flight, guests.census().owned), (1, 4));
        drop(flying.land());
        // Cut up, passed on, frozen, lost to a device: each leaves the count as it should.
        assert_eq!(two.into_bufs().count(), 2);
        drop(three.freeze());
        drop(InFlight::launch(Payload::Run(four)));
        guests.collect_returns();
        guests.check();
        assert_eq!(guests.census(), Census { quarantined: 1, total: 1, ..Census::default() });
        assert!(guests.buf().is_err() && guests.run(2048).is_err(), "it has nothing of its own");
    };
    thread::spawn(visit).join().unwrap();
    assert_eq!(home.census(), Census { free: 11, owned: 4, quarantined: 1, total: 16, ..Census::default() });
    home.collect_returns();
    home.check();
    assert_eq!(home.census(), Census { free: 15, quarantined: 1, total: 16, ..Census::default() });
}

#[test]
fn the_last_holder_of_a_share_sends_it_home() {
    let slab = slab(8);
    let shared = slab.run(4096).unwrap().freeze();
    let mut narrow = shared.slice(1000, 24);
    assert_eq!(narrow.offset().0, shared.offset().0 + 1000);
    assert!(narrow.sole_mut().is_none(), "another holder may read it");
    let shared = shared.thaw(&slab).unwrap_err();
    drop(shared);
    slab.collect_returns();
    assert_eq!(slab.census().owned, 2, "one holder is left");
    assert_eq!(narrow.sole_mut().map(|bytes| bytes.len()), Some(24));
    let run = narrow.thaw(&slab).unwrap();
    assert_eq!((run.start(), run.len()), (1000, 24));
    drop(run);
    assert_eq!(slab.census().free, 8);
}

#[test]
fn what_is_dropped_in_flight_is_quarantined() {
    let slab = slab(16);
    drop(InFlight::launch(Payload::Run(slab.run(4096).unwrap())));
    assert_eq!((slab.census().quarantined, slab.census().in_flight), (2, 0));
    let shared = slab.run(2048).unwrap().freeze();
    drop(InFlight::launch(Payload::Shared(shared.clone())));
    drop(InFlight::launch(Payload::Shared(shared.clone())));
    drop(shared);
    slab.collect_returns();
    assert_eq!((slab.census().quarantined, slab.census().owned), (3, 0), "counted once, never home");
    let mut gather = Gather::new();
    gather.push(slab.buf().unwrap()).unwrap();
    drop(InFlight::launch(Payload::Gather(gather)));
    assert_eq!(slab.census(), Census { free: 12, quarantined: 4, total: 16, ..Census::default() });
    slab.check();
}

#[test]
fn a_window_is_closed_by_proof_or_quarantined() {
    let slab = slab(8);
    let window = Window::open(slab.run(2048).unwrap(), 77, 1);
    assert!(slab.census().published == 1 && window.read_only_slice().is_none());
    let run = window.close(Revoked::new(77, 1));
    assert_eq!(slab.census().owned, 1);
    let window = Window::open_to_readers(run, 78, 1);
    assert_eq!(window.read_only_slice().map(<[u8]>::len), Some(2048));
    drop(window);
    assert_eq!(slab.census(), Census { free: 7, quarantined: 1, total: 8, ..Census::default() });
    let window = Window::open(slab.run(2048).unwrap(), 79, 1);
    let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(window.close(Revoked::new(80, 1)))));
    assert!(wrong.is_err());
}

#[test]
fn a_gather_merges_what_is_contiguous() {
    let slab = slab(16);
    let mut gather = Gather::new();
    for buf in slab.run(4 * 2048).unwrap().into_bufs() {
        gather.push(buf).unwrap();
    }
    assert_eq!((gather.pieces(), gather.runs().len(), gather.len_bytes()), (1, 4, 8192));
    let mut part = slab.buf().unwrap();
    part.set_view(512, 512);
    gather.push(part).unwrap();
    assert_eq!(gather.pieces(), 2);
    assert_eq!(gather.drain().count(), 5);
    assert_eq!(slab.census().free, 16);
    assert!(gather.is_empty() && gather.pieces() == 0);
}

#[test]
fn memory_outlives_its_slab_while_a_lease_does() {
    let slab = slab(4);
    let mut run = slab.run(2048).unwrap();
    drop(slab);
    run.as_mut_slice().fill(1);
    let parcel = run.detach();
    assert_eq!(parcel.as_slice()[2047], 1);
}
