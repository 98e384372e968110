//! AF_XDP over veth pairs in namespaces made for each test. Needs root; says SKIPPED without.
#![cfg(feature = "xdp")]

mod packet_net;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use basin::base::Clock;
use basin::base::error::ErrorKind;
use basin::device::packet::{
    Answer, Depth, Interface, InterfaceConfig, ModeWish, PacketMode, Port, PortConfig, Refusal, neighbours, probe,
};
use basin::device::{Ops, Outcome};
use basin::mem::{Buf, Gather, Run, Slab};
use packet_net::*;

const UDP_PAYLOAD: usize = 14 + 20 + 8;

fn config() -> InterfaceConfig {
    near(&[PORT])
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
        // What the reader has seen. The sender stays at most this far ahead, so that nothing is dropped on a busy machine.
        const AHEAD: u32 = 128;
        let seen = Arc::new(AtomicU32::new(0));
        let sent = far.start({
            let seen = seen.clone();
            move || {
                let socket = UdpSocket::bind((FAR, 0)).unwrap();
                socket.connect((NEAR, PORT)).unwrap();
                for number in 0..COUNT {
                    socket.send(&payload(number, 1400)).unwrap();
                    while number - seen.load(Ordering::Relaxed).min(number) >= AHEAD {
                        std::thread::yield_now();
                    }
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
                assert!(buf.as_slice()[UDP_PAYLOAD..] == payload(next, 1400), "datagram {next}: {:?}", &buf.as_slice()[..50]);
                consecutive += u32::from(previous == Some(buf.first_chunk().wrapping_sub(1)));
                previous = Some(buf.first_chunk());
                next += 1;
            }
            seen.store(next, Ordering::Relaxed);
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
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
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

#[test]
fn what_is_not_ours_stays_with_the_kernel() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        let listener = std::net::TcpListener::bind((NEAR, 7701)).unwrap();
        let other = UdpSocket::bind((NEAR, PORT + 1)).unwrap();
        other.set_nonblocking(true).unwrap();
        let done = far.start(|| {
            let pinged = output("ping", &format!("-c 2 -i 0.2 -W 2 {NEAR}")).0 && output("ping", &format!("-c 1 -W 2 {NEAR6}")).0;
            let connected = std::net::TcpStream::connect((NEAR, 7701)).is_ok();
            UdpSocket::bind((FAR, 0)).unwrap().send_to(b"other port", (NEAR, PORT + 1)).unwrap();
            (pinged, connected)
        });
        let mut result = None;
        assert!(world.poll_until(|| {
            result = result.or_else(|| done.try_recv().ok());
            result.is_some()
        }));
        assert_eq!(result, Some((true, true)), "ping and TCP");
        drop(listener.accept().unwrap());
        let mut bytes = [0; 32];
        let len = other.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"other port");
        let stats = world.port.stats().unwrap();
        assert_eq!((stats.received, stats.steered.redirected), (0, 0));
        assert!(stats.steered.passed >= 6, "{:?}", stats.steered);
        world.close();
    });
}

/// An Ethernet frame to `near` with these headers behind the addresses.
fn frame(to: [u8; 6], headers: &[&[u8]]) -> Vec<u8> {
    let mut frame = [to, [2, 0, 0, 0, 0, 9]].concat();
    headers.iter().for_each(|header| frame.extend_from_slice(header));
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(protocol: u8, fragment: u16) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1];
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header
}

fn ipv6(next: u8) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, 20, next, 64];
    header.extend([0; 32]);
    header
}

fn udp(port: u16) -> Vec<u8> {
    let mut header = vec![0x30, 0x39, 0, 0, 0, 20, 0, 0];
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header
}

#[test]
fn only_udp_to_the_ports_asked_for_is_steered() {
    in_namespaces(1, |far| {
        let world = World::open(&near(&[PORT, 4791, 65535]));
        let to = world.interface.link().mac;
        let (v4, v6, tag, double): (&[u8], &[u8], &[u8], &[u8]) = (&[8, 0], &[0x86, 0xdd], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 7]);
        let mut options = ipv4(17, 0);
        (options[0], options[3]) = (0x46, 44);
        options.extend([1, 1, 1, 1]);
        let cases: Vec<(&str, bool, Vec<u8>)> = vec![
            ("UDP over IPv4", true, frame(to, &[v4, &ipv4(17, 0), &udp(PORT)])),
            ("RoCE", true, frame(to, &[v4, &ipv4(17, 0), &udp(4791)])),
            ("the last port", true, frame(to, &[v4, &ipv4(17, 0), &udp(65535)])),
            ("with don't-fragment", true, frame(to, &[v4, &ipv4(17, 0x4000), &udp(PORT)])),
            ("with IP options", true, frame(to, &[v4, &options, &udp(PORT)])),
            ("UDP over IPv6", true, frame(to, &[v6, &ipv6(17), &udp(PORT)])),
            ("behind a VLAN tag", true, frame(to, &[tag, v4, &ipv4(17, 0), &udp(PORT)])),
            ("behind two", true, frame(to, &[double, tag, v6, &ipv6(17), &udp(PORT)])),
            ("another port", false, frame(to, &[v4, &ipv4(17, 0), &udp(PORT + 1)])),
            ("a port 64 away", false, frame(to, &[v4, &ipv4(17, 0), &udp(PORT + 64)])),
            ("TCP to the port", false, frame(to, &[v4, &ipv4(6, 0), &udp(PORT)])),
            ("a first fragment", false, frame(to, &[v4, &ipv4(17, 0x2000), &udp(PORT)])),
            ("a later fragment", false, frame(to, &[v4, &ipv4(17, 0x0010), &udp(PORT)])),
            ("an IPv6 extension header", false, frame(to, &[v6, &ipv6(0), &[17, 0, 0, 0, 0, 0, 0, 0], &udp(PORT)])),
            ("ARP", false, frame(to, &[&[8, 6], &ipv4(17, 0), &udp(PORT)])),
            ("a header cut off", false, frame(to, &[&[8, 0], &ipv4(17, 0), &udp(PORT)])[..36].to_vec()),
        ];
        for (name, is_ours, bytes) in cases {
            let before = world.interface.steered().unwrap();
            let sent = bytes.clone();
            far.run(move || send_raw("far", &sent));
            let mut got = Vec::with_capacity(4);
            assert!(
                world.poll_until(|| {
                    world.port.receive(&mut got, 4).unwrap();
                    let now = world.interface.steered().unwrap();
                    !got.is_empty() || now.passed > before.passed
                }),
                "{name}: neither steered nor passed"
            );
            // The kernel's own discovery packets pass too, so a packet that is not ours is told by what did not come.
            if is_ours {
                let arrived = world.poll_until(|| world.port.receive(&mut got, 4).is_ok() && !got.is_empty());
                assert!(arrived, "{name}: it passed");
                assert_eq!(got[0].as_slice(), bytes, "{name}");
            } else {
                std::thread::sleep(Duration::from_millis(5));
                world.port.receive(&mut got, 4).unwrap();
                assert!(got.is_empty(), "{name}: it was steered");
            }
        }
        world.close();
    });
}

#[test]
fn skb_mode_works_and_says_so() {
    in_namespaces(1, |far| {
        let world = World::open(&InterfaceConfig { mode: ModeWish::Skb, headroom: 214, ..config() });
        assert_eq!(world.port.mode(), PacketMode::SkbCopy);
        far.run(|| send_datagrams(100, 1000));
        let mut got = Vec::with_capacity(100);
        assert!(world.poll_until(|| world.port.receive(&mut got, 100).is_ok() && got.len() == 100));
        for (number, buf) in (0..).zip(&got) {
            assert_eq!(buf.as_slice()[UDP_PAYLOAD..], payload(number, 1000));
            assert_eq!((buf.start() as usize + UDP_PAYLOAD) % 512, 0, "the payload begins at a multiple of 512");
        }
        drop(got);
        world.close();
    });
}

fn send_datagrams(count: u32, len: usize) {
    let socket = UdpSocket::bind((FAR, 0)).unwrap();
    for number in 0..count {
        socket.send_to(&payload(number, len), (NEAR, PORT)).unwrap();
    }
}

#[test]
fn a_mode_the_driver_lacks_is_refused_with_the_remedy() {
    in_namespaces(1, |_| {
        let region = region(512);
        let (slab, ops) = (Slab::new(&region, 512).unwrap(), Ops::new(16));
        let interface = Interface::open(&region, &InterfaceConfig { mode: ModeWish::ZeroCopy, ..config() }).unwrap();
        let error = Port::open(&ops, &slab, &interface, &PortConfig::new(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("queue 0 of near") && error.remedy_text().unwrap().contains("native"), "{error}");
        let error = Port::open(&ops, &slab, &interface, &PortConfig::new(7)).unwrap_err();
        assert!(error.to_string().contains("1 receive queues"), "{error}");
        drop(interface);
        let found = probe("near", Depth::Try).unwrap();
        assert_eq!((found.native.clone(), found.skb.clone(), found.several_chunks.clone()), (Answer::Yes, Answer::Yes, Answer::Yes));
        assert!(matches!(found.zero_copy, Answer::No(_)), "{}", found.zero_copy);
        assert_eq!(found.best(), Some(PacketMode::NativeCopy));
        assert_eq!(found.link.driver.as_deref(), Some("veth"));
        let asked = probe("near", Depth::Ask).unwrap();
        assert!(matches!((&asked.native, &asked.zero_copy), (Answer::Yes, Answer::No(_)) | (Answer::Unknown(_), Answer::Unknown(_))));
    });
}

#[test]
fn a_frame_of_several_pieces_goes_out_as_one() {
    in_namespaces(1, |far| {
        let world = World::open(&InterfaceConfig { several_chunks: true, ..config() });
        let to = far.run(|| basin::device::packet::Link::find("far").unwrap().mac);
        // Bound before anything is sent; a socket stays in the namespace it was made in.
        let socket = far.run(|| UdpSocket::bind((FAR, 9900)).unwrap());
        let echoed = far.start(move || {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = [0; 2048];
            let len = socket.recv(&mut bytes).unwrap();
            bytes[..len].to_vec()
        });
        let body = payload(7, 1200);
        let mut header = world.slab.buf().unwrap();
        let mut ip = ipv4(17, 0);
        ip[2..4].copy_from_slice(&1228u16.to_be_bytes());
        (ip[15], ip[19]) = (1, 2);
        let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
        let mut udp = udp(9900);
        udp[4..6].copy_from_slice(&1208u16.to_be_bytes());
        let bytes = &frame(to, &[&[8, 0], &ip, &udp])[..UDP_PAYLOAD];
        header.set_view(256, bytes.len() as u32);
        header.as_mut_slice().copy_from_slice(bytes);
        let mut first = world.slab.buf().unwrap();
        first.set_view(512, 700);
        first.as_mut_slice().copy_from_slice(&body[..700]);
        let mut second = world.slab.buf().unwrap();
        second.set_view(3, 500);
        second.as_mut_slice().copy_from_slice(&body[700..]);
        let mut gather = Gather::new();
        [header, first, second].into_iter().for_each(|piece| gather.push(piece).unwrap());
        let op = world.port.send_gather(gather).unwrap();
        assert!(world.poll_until(|| world.port.stats().unwrap().sending == 0), "{:?}", world.port.stats());
        assert_eq!(echoed.recv().unwrap(), body);
        let mut done = ended(op);
        assert_eq!(done.outcome, Outcome::ok(1242));
        assert_eq!(done.lease.drain().count(), 3);

        // Eighteen pieces are one too many.
        let mut gather = Gather::new();
        let held: Vec<Buf> = (0..36).map(|_| world.slab.buf().unwrap()).collect();
        for mut piece in held.into_iter().step_by(2) {
            piece.set_view(0, 64);
            gather.push(piece).unwrap();
        }
        let refused = world.port.send_gather(gather).map(drop).unwrap_err();
        assert_eq!((refused.reason, refused.lease.runs().len()), (Refusal::TooManyPieces, 18));
        drop(refused);
        world.close();
    });
}

#[test]
fn frames_longer_than_a_chunk_arrive_in_fragments() {
    in_namespaces(1, |far| {
        ip("link set near mtu 3500");
        far.run(|| ip("link set far mtu 3500"));
        let world = World::open(&InterfaceConfig { several_chunks: true, ..config() });
        far.run(|| send_datagrams(3, 3000));
        let mut fragments = Vec::with_capacity(16);
        let all = world.poll_until(|| {
            world.port.receive_fragments(&mut fragments, 16).unwrap();
            fragments.iter().filter(|fragment| !fragment.more).count() == 3
        });
        assert!(all, "{fragments:?}");
        let mut bytes = Vec::new();
        let mut number = 0;
        for fragment in fragments.drain(..) {
            bytes.extend_from_slice(fragment.buf.as_slice());
            if !fragment.more {
                assert_eq!(bytes[UDP_PAYLOAD..], payload(number, 3000));
                bytes.clear();
                number += 1;
            }
        }
        // The reader of single chunks is told by a counter, and gets the short frame behind the long ones.
        far.run(|| {
            send_datagrams(2, 3000);
            send_datagrams(1, 100);
        });
        let mut got = Vec::with_capacity(4);
        assert!(world.poll_until(|| world.port.receive(&mut got, 1).unwrap() == 1));
        assert_eq!(got[0].as_slice()[UDP_PAYLOAD..], payload(0, 100));
        assert_eq!(world.port.stats().unwrap().split, 2);
        drop(got);
        world.close();
    });
}

#[test]
fn what_cannot_be_sent_comes_back_with_the_reason() {
    in_namespaces(1, |_| {
        let ports = PortConfig { receive_entries: 64, receive_chunks: 64, transmit_entries: 64, ..PortConfig::new(0) };
        let world = World::open_sized(&config(), &ports, 512);
        let reason = |lease: Run| world.port.send(lease).map(drop).unwrap_err();
        let mut short = world.slab.run(2048).unwrap();
        short.set_len(13);
        assert_eq!(reason(short).reason, Refusal::TooShort);
        assert_eq!(reason(world.slab.run(4096).unwrap()).reason, Refusal::SpansChunks);
        let elsewhere = region(16);
        assert_eq!(reason(Slab::new(&elsewhere, 16).unwrap().run(64).unwrap()).reason, Refusal::OtherRegion);
        let mut gather = Gather::new();
        for start in [0, 512] {
            let mut piece = world.slab.buf().unwrap();
            piece.set_view(start, 256);
            gather.push(piece).unwrap();
        }
        let refused = world.port.send_gather(gather).map(drop).unwrap_err();
        assert_eq!(refused.reason, Refusal::TooManyPieces, "one chunk per packet unless asked for otherwise");
        drop(refused);

        // A frame to nobody, until the ring is full.
        let broadcast = frame([0xff; 6], &[&[0x88, 0xb5]]);
        let mut frames: Vec<Buf> = (0..100)
            .map(|_| {
                let mut buf = world.slab.buf().unwrap();
                buf.set_view(0, 60);
                buf.as_mut_slice().copy_from_slice(&broadcast);
                buf
            })
            .collect();
        assert_eq!(world.port.post_all(&mut frames).unwrap(), 64);
        assert_eq!(frames.len(), 36);
        let refused = world.port.post(frames.pop().unwrap()).unwrap_err();
        assert_eq!(refused.reason, Refusal::Full);
        assert!(world.poll_until(|| world.port.stats().unwrap().sending == 0), "{:?}", world.port.stats());
        assert_eq!(world.port.post_all(&mut frames).unwrap(), 35);
        drop(refused);
        world.close();
    });
}

#[test]
fn two_queues_share_the_region() {
    in_namespaces(2, |far| {
        let region = region(2048);
        let ops = Ops::new(64);
        let interface = Interface::open(&region, &config()).unwrap();
        assert_eq!(interface.link().rx_queues, 2);
        let clock = Clock::start();
        let sizes = PortConfig { receive_entries: 256, receive_chunks: 256, transmit_entries: 64, ..PortConfig::new(0) };
        let slabs: Vec<Slab> = (0..2).map(|_| Slab::new(&region, 1024).unwrap()).collect();
        let open = |queue: u32| Port::open(&ops, &slabs[queue as usize], &interface, &PortConfig { queue, ..sizes }).unwrap();
        let mut ports = vec![open(0), open(1)];
        let error = Port::open(&ops, &slabs[0], &interface, &sizes).unwrap_err();
        assert!(error.to_string().contains("already open in this process"), "{error}");

        let receive = |ports: &[Port], count: u32| {
            far.run(move || send_datagrams(count, 200));
            let mut got = Vec::with_capacity(256);
            let end = Instant::now() + PATIENCE;
            while got.len() < count as usize && Instant::now() < end {
                for port in ports {
                    let _ = port.queue().borrow_mut().poll(clock.now());
                    port.receive(&mut got, 64).unwrap();
                }
            }
            assert_eq!(got.len(), count as usize);
        };
        receive(&ports, 100);
        // The one that brought the UMEM goes; the other carries on with it, and the first comes back onto it.
        let close = |port: Port| {
            port.queue().borrow_mut().quiesce(clock.now());
            let end = Instant::now() + PATIENCE;
            while port.queue().borrow().in_flight() > 0 && Instant::now() < end {
                let _ = port.queue().borrow_mut().poll(clock.now());
            }
            assert_eq!(port.queue().borrow().in_flight(), 0, "the kernel lets go of one queue of a shared UMEM");
        };
        close(ports.remove(0));
        assert_eq!(slabs[0].census().free, 1024);
        ports.insert(0, open(0));
        receive(&ports, 100);
        ports.into_iter().for_each(close);
        assert!(slabs.iter().all(|slab| slab.census().free == 1024));
    });
}

#[test]
fn neighbours_are_found_over_the_interface() {
    in_namespaces(1, |far| {
        ip(&format!("route add 10.99.0.0/16 via {FAR}"));
        let mac = far.run(|| basin::device::packet::Link::find("far").unwrap().mac);
        let link = basin::device::packet::Link::find("near").unwrap();
        assert_eq!(link.addresses.iter().filter(|(address, _)| address.is_ipv4()).count(), 1);
        let find = |address: &str| basin::device::packet::resolve(&link, address.parse().unwrap(), Duration::from_secs(2));
        let path = find(FAR).unwrap();
        assert_eq!((path.destination_mac, path.source_mac, path.source.to_string()), (mac, link.mac, NEAR.into()));
        let path = find(FAR6).unwrap();
        assert_eq!((path.destination_mac, path.source.to_string()), (mac, NEAR6.into()));
        let path = find("10.99.1.2").unwrap();
        assert_eq!((path.destination_mac, path.next_hop.to_string()), (mac, FAR.into()), "by way of the router");
        let error = basin::device::packet::resolve(&link, "10.77.0.200".parse().unwrap(), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("nobody answers for 10.77.0.200 on near within 50 ms"), "{error}");
        let error = find("192.0.2.1").unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENETUNREACH), "{error}");
        ip("route add 192.0.2.0/24 dev lo");
        assert!(find("192.0.2.1").unwrap_err().to_string().contains("leaves by lo, not by near"));
        // Whose device sends by this interface whatever the routes are asks for less, and is answered at once.
        let is_known = |address: &str| neighbours::is_known(&link, address.parse().unwrap()).unwrap();
        for (address, known) in [(FAR, true), (FAR6, true), ("10.99.1.2", true), (NEAR, true), ("10.77.0.201", false), ("192.0.2.1", false)]
        {
            // Who waits does so each time.
            let is_at_once = (0..5).any(|_| {
                let begun = Instant::now();
                assert_eq!(is_known(address), known, "{address}");
                begun.elapsed() < Duration::from_millis(500)
            });
            assert!(is_at_once, "{address} was waited for");
        }
        ip(&format!("neigh del {FAR} dev near"));
        let begun = Instant::now();
        while !is_known(FAR) {
            assert!(begun.elapsed() < PATIENCE, "it is not looked up");
        }
    });
}
