//! The store's index alone: memory of an object, and how long puts, gets, lists and moves take with ten million of them.
//!
//! `cargo bench --bench store_index [-- OBJECTS]`. Processor time of one thread. Names have 40 bytes, in 1000 directories, and come in no
//! order; then in order, as from a checkpoint.

use std::hint::black_box;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use basin::base::Rng;
use basin::store::index::{After, Index, Line, Query, Version};

const OBJECTS: u64 = 10_000_000;
const NAME_BYTES: usize = 40;
const BUCKET: u32 = 1;
const GETS: u64 = 2_000_000;
const PAGES: u32 = 200;
const PAGE: usize = 1000;

fn main() {
    let given = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let objects = given.unwrap_or(OBJECTS);
    println!("{objects} objects with names of {NAME_BYTES} bytes\n");
    let mut order: Vec<u64> = (0..objects).collect();
    let mut rng = Rng::seeded(1);
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let mut index = Index::default();
    let spent = cpu(|| order.iter().for_each(|&number| put(&mut index, number)));
    tell("put, in no order", spent, objects);
    let bytes = index.bytes() as f64 / objects as f64;
    println!("{:<34} {:>9.1} bytes, {:.1} beside the name", "memory of an object", bytes, bytes - NAME_BYTES as f64);
    let spent = cpu(|| {
        for _ in 0..GETS {
            black_box(index.newest(BUCKET, name(rng.below(objects), &mut [0; NAME_BYTES]))).expect("all were put");
        }
    });
    tell("get", spent, GETS);
    for (what, delimiter, prefix) in [("page of 1000", &b""[..], &b""[..]), ("page of 1000 directories", b"/", b"d")] {
        let mut lines = 0;
        let spent = cpu(|| {
            for _ in 0..PAGES {
                let mut name_buffer = [0; NAME_BYTES];
                let after = name(rng.below(objects), &mut name_buffer);
                let after = if delimiter.is_empty() { After::Name(after) } else { After::Nothing };
                let (page, _) = index.list(&Query { bucket: BUCKET, prefix, delimiter, after, limit: PAGE }, usize::MAX);
                lines += page.iter().filter(|line| matches!(line, Line::Object(..) | Line::Prefix(_))).count();
            }
        });
        println!("{what:<34} {:>9.3} ms ({} lines)", spent.as_secs_f64() * 1e3 / f64::from(PAGES), lines / PAGES as usize);
    }
    let spent = cpu(|| order.iter().take(GETS as usize).for_each(|&number| put(&mut index, number + objects)));
    tell("overwrite or put", spent, GETS.min(objects));
    drop(index);
    let mut index = Index::default();
    let spent = cpu(|| (0..objects).for_each(|number| put(&mut index, number)));
    tell("put, in order", spent, objects);
    println!("{:<34} {:>9.1} bytes", "memory of an object", index.bytes() as f64 / objects as f64);
}

fn put(index: &mut Index, number: u64) {
    let version = Version {
        address: (1 << 20) + number * 4416,
        item_bytes: 4416,
        head_bytes: 160,
        sequence: number + 1,
        time_ms: 1_700_000_000_000 + number,
        size: 4096,
        etag: [number as u8; 16],
        parts: 0,
        is_null: true,
        is_delete_marker: false,
        has_extents: false,
        has_opaque_etag: true,
        listed: 0,
    };
    black_box(index.put(BUCKET, name(number, &mut [0; NAME_BYTES]), &version));
}

/// `dddd/…`: in the order of the numbers.
fn name(number: u64, to: &mut [u8; NAME_BYTES]) -> &[u8] {
    use std::io::Write;
    let directory = number / 10_000 % 1000;
    write!(&mut to[..], "d{directory:04}/object-{number:012}-of-the-store").expect("it fits");
    to
}

fn tell(what: &str, spent: Duration, count: u64) {
    let each = spent.as_nanos() as f64 / count as f64;
    println!("{what:<34} {each:>9.0} ns ({:.2} million a second)", 1e3 / each);
}

/// Processor time of this thread.
fn cpu(work: impl FnOnce()) -> Duration {
    let now = || {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("every thread has its account");
        [usage.user_time(), usage.system_time()]
            .map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000))
            .iter()
            .sum::<Duration>()
    };
    let before = now();
    work();
    now() - before
}
