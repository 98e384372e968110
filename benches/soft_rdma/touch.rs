//! The bytes of a packet touched as the soft HCA touches them, and nothing else: copied into a frame with the ICRC on the way, checked
//! there, and copied to where they belong. From and to as much memory as the bench's WRITEs have in flight.

use std::hint::black_box;
use std::time::Instant;

use basin::mem::Ledger;
use basin::wire::icrc::Icrc;

use crate::{DEPTH, WRITE_BYTES};

/// IPv4, UDP, BTH.
const HEADERS: usize = 20 + 8 + 12;
/// Frames in use at a time: those of a poll or two.
const FRAMES: usize = 128;
const ROUNDS: usize = 4;

/// Nanoseconds of both ends together, for a packet of `path_mtu` bytes.
pub fn per_packet_ns(path_mtu: u32) -> f64 {
    let (mtu, bytes) = (path_mtu as usize, DEPTH * WRITE_BYTES as usize);
    let (source, mut sink) = (vec![0x5au8; bytes], vec![0u8; bytes]);
    let mut frames = vec![0u8; FRAMES * mtu];
    let mut headers = [0u8; HEADERS];
    headers[0] = 0x45;
    let ledger = Ledger::new();
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for (at, from) in source.chunks_exact(mtu).enumerate() {
            let frame = &mut frames[at % FRAMES * mtu..][..mtu];
            let start = Icrc::start(&headers).expect("headers");
            let mut crc = crc32fast::Hasher::new_with_initial(start.state());
            // SAFETY: both are slices of this function's own vectors.
            unsafe { ledger.fetch_crc32(frame, from.as_ptr(), &mut crc) };
            let sent = Icrc::resume(crc.finalize()).finish();
            let received = Icrc::start(&headers).expect("headers").update(frame).finish();
            assert_eq!(sent, received);
            // SAFETY: as above; `sink` is as long as `source`.
            unsafe { ledger.carry(sink.as_mut_ptr().add(at * mtu), frame.as_ptr(), mtu) };
        }
        best = best.min(started.elapsed().as_nanos() as f64 / (bytes / mtu) as f64);
        black_box(&sink);
    }
    best
}
