//! How fast packets move between two ports over a veth. A measurement, not run by default:
//! `cargo test --release --test packet_rate -- --ignored --nocapture`.
#![cfg(feature = "xdp")]

mod packet_net;

use std::time::{Duration, Instant};

use basin::base::Clock;
use basin::device::Ops;
use basin::device::packet::{Interface, InterfaceConfig, Port, PortConfig};
use basin::mem::{Buf, Slab};
use packet_net::*;

const SPAN: Duration = Duration::from_secs(2);

#[test]
#[ignore = "a measurement, not a check: run it by name on a quiet machine, as the file says"]
fn packets_per_second() {
    for len in [64, 1400] {
        in_namespaces(1, move |far| {
            // The frames are to the broadcast address: nobody needs to be asked for another.
            let sender = far.start(move || send(len));
            let world = World::open_sized(&InterfaceConfig::new("near", &[PORT]), &PortConfig::new(0), 16384);
            let (clock, mut got) = (Clock::start(), Vec::with_capacity(64));
            let queue = world.port.queue();
            let (start, before) = (Instant::now(), thread_time());
            let (mut received, mut consecutive, mut previous) = (0u64, 0u64, 0u32);
            while start.elapsed() < SPAN {
                let _ = queue.borrow_mut().poll(clock.now());
                received += world.port.receive(&mut got, 64).unwrap() as u64;
                for buf in got.drain(..) {
                    consecutive += u64::from(buf.first_chunk() == previous + 1);
                    previous = buf.first_chunk();
                }
            }
            let (span, used) = (start.elapsed().as_secs_f64(), thread_time());
            let ((sent, sender_ns), kernel) = (sender.recv().unwrap(), world.port.stats().unwrap().kernel);
            println!(
                "{len} B: sent {:.2} Mpps at {sender_ns:.0} ns of CPU a frame, received {:.2} Mpps at {:.0} ns a frame, polls that find \
                 nothing included; {:.2} % in consecutive chunks; {kernel:?}",
                sent / 1e6,
                received as f64 / span / 1e6,
                (used - before).as_nanos() as f64 / received as f64,
                100.0 * consecutive as f64 / received as f64,
            );
            assert!(received > 0 && world.port.stats().unwrap().faults == 0);
            world.close();
        });
    }
}

/// Sends frames of `len` bytes for as long as the measurement lasts; frames per second, and CPU time per frame in nanoseconds.
fn send(len: usize) -> (f64, f64) {
    let region = region(8192);
    let (slab, ops, clock) = (Slab::new(&region, 8192).unwrap(), Ops::new(16), Clock::start());
    let interface = Interface::open(&region, &InterfaceConfig::new("far", &[1])).unwrap();
    let sizes = PortConfig { receive_entries: 64, receive_chunks: 64, ..PortConfig::new(0) };
    let port = Port::open(&ops, &slab, &interface, &sizes).unwrap();
    let queue = port.queue();
    let mut frame = vec![0xff; 12];
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1, 0x30, 0x39]);
    frame.extend(PORT.to_be_bytes());
    frame.resize(len, 0);
    let mut burst: Vec<Buf> = Vec::with_capacity(64);
    let (start, before) = (Instant::now(), thread_time());
    let mut sent = 0;
    while start.elapsed() < SPAN {
        while burst.len() < 64
            && let Ok(mut buf) = slab.buf()
        {
            buf.set_view(0, len as u32);
            buf.as_mut_slice()[..42].copy_from_slice(&frame[..42]);
            burst.push(buf);
        }
        sent += port.post_all(&mut burst).unwrap();
        let _ = queue.borrow_mut().poll(clock.now());
    }
    let (span, used) = (start.elapsed().as_secs_f64(), thread_time() - before);
    queue.borrow_mut().quiesce(clock.now());
    while queue.borrow().in_flight() > 0 && start.elapsed() < 2 * SPAN {
        let _ = queue.borrow_mut().poll(clock.now());
    }
    (sent as f64 / span, used.as_nanos() as f64 / sent as f64)
}
