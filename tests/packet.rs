//! AF_XDP over veth pairs in namespaces made for each test. Needs root; says SKIPPED without.
#![cfg(feature = "xdp")]

mod packet_net;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use basin::device::packet::{InterfaceConfig, PacketMode};
use basin::mem::Buf;
use packet_net::*;

const UDP_PAYLOAD: usize = 14 + 20 + 8;

fn config() -> InterfaceConfig {
    InterfaceConfig::new("near", &[PORT])
}

/// The payload of datagram `number`: its number, then bytes that follow from it.
fn payload(number: u32, len: usize) -> Vec<u8> {
    let pattern = (0..len as u32 - 4).map(|i| (i.wrapping_mul(31).wrapping_add(number) >> 3) as u8);
    number.to_be_bytes().into_iter().chain(pattern).collect()
}

#[test]
fn datagrams_land_bit_for_bit_in_consecutive_chunks() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        assert_eq!(world.port.mode(), PacketMode::NativeCopy);
        const COUNT: u32 = 20_000;
        let sent = far.start(|| {
            let socket = UdpSocket::bind((FAR, 0)).unwrap();
            socket.connect((NEAR, PORT)).unwrap();
            for number in 0..COUNT {
                socket.send(&payload(number, 1400)).unwrap();
                if number % 128 == 127 {
                    // The reader is on the same two processors: let it keep up, so that nothing is dropped.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let mut next = 0;
        let (mut previous, mut consecutive) = (None, 0);
        let mut batch: Vec<Buf> = Vec::with_capacity(64);
        let all = world.poll_until(|| {
            world.port.receive(&mut batch, 64).unwrap();
            for buf in batch.drain(..) {
                assert_eq!(buf.start(), 512, "the frame begins at a multiple of 512");
                assert_eq!(buf.as_slice()[UDP_PAYLOAD..], payload(next, 1400), "datagram {next}");
                consecutive += u32::from(previous == Some(buf.first_chunk().wrapping_sub(1)));
                previous = Some(buf.first_chunk());
                next += 1;
            }
            next == COUNT
        });
        assert!(all, "{next} of {COUNT} datagrams came: {:?}", world.port.stats());
        sent.recv().unwrap();
        assert!(consecutive >= COUNT * 99 / 100, "{consecutive} of {COUNT} packets lie right after the one before");
        let stats = world.port.stats().unwrap();
        assert_eq!((stats.received, stats.faults, stats.split), (u64::from(COUNT), 0, 0));
        assert_eq!(stats.steered.redirected, u64::from(COUNT));
        world.close();
    });
}

/// Turns a received UDP frame around, in place: addresses and ports change sides. The UDP checksum is left out, which IPv4 allows:
/// a veth delivers what its sender's kernel left for hardware to fill in.
fn turn_around(frame: &mut [u8]) {
    let swap = |frame: &mut [u8], a: usize, b: usize, len: usize| (0..len).for_each(|i| frame.swap(a + i, b + i));
    swap(frame, 0, 6, 6);
    swap(frame, 26, 30, 4);
    swap(frame, 34, 36, 2);
    frame[40..42].fill(0);
}

#[test]
fn the_chunks_received_go_back_out() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        const COUNT: u32 = 2000;
        let echoed = far.start(|| {
            let socket = UdpSocket::bind((FAR, 0)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let near: SocketAddr = (NEAR.parse::<std::net::IpAddr>().unwrap(), PORT).into();
            let mut bytes = [0; 2048];
            for number in 0..COUNT {
                socket.send_to(&payload(number, 700), near).unwrap();
                let (len, from) = socket.recv_from(&mut bytes).unwrap();
                assert_eq!((from, &bytes[..len]), (near, &payload(number, 700)[..]));
            }
        });
        let mut batch = Vec::with_capacity(64);
        let mut answered = 0;
        let mut waiting = Vec::new();
        let all = world.poll_until(|| {
            world.port.receive(&mut batch, 64).unwrap();
            for mut buf in batch.drain(..) {
                turn_around(buf.as_mut_slice());
                // Every other one with nobody waiting.
                if answered % 2 == 0 {
                    world.port.post(buf).unwrap();
                } else {
                    waiting.push(world.port.send(buf).unwrap());
                }
                answered += 1;
            }
            answered == COUNT
        });
        assert!(all, "{answered} of {COUNT} answered");
        assert!(world.poll_until(|| world.port.stats().unwrap().sending == 0), "{:?}", world.port.stats());
        echoed.recv().unwrap();
        assert_eq!(waiting.len(), COUNT as usize / 2);
        for op in waiting {
            let done = ended(op);
            assert_eq!(done.outcome, basin::device::Outcome::ok(UDP_PAYLOAD as u32 + 700));
        }
        let stats = world.port.stats().unwrap();
        assert_eq!((stats.sent, stats.returned, stats.faults), (u64::from(COUNT), u64::from(COUNT), 0));
        world.close();
    });
}
