//! Who guesses keys of memory gets nothing, on the wire: a window of the server is open to a client, the only one there is, and others
//! send WRITEs and READs for it.
//!
//! A wrong key ends its queue pair, so most guesses are packets without one: made here by hand, and sent from sockets of ours. The server's
//! metrics say how many it has judged, and only those count.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use basin::base::{Psn, Qpn, Rkey, Rng};
use basin::device::rdma::{Qp, QpConfig, QpEndpoint, Remote, Transport};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::Ground;
use basin::s3::rdma::connect::{CONNECT, ENDPOINT, PSN, REPLY, SESSION, TOKEN, of_token, token_of};
use basin::wire::ethernet::Mac;
use basin::wire::frame::Encapsulation;
use basin::wire::icrc::{self, Icrc};
use basin::wire::roce::{Aeth, BTH_LEN, Ext, HEADERS_MAX, Nak, Opcode, Packet, Repr, Reth, Syndrome};
use basin::wire::s3::token::{Endpoint, parse_psn};

use super::server::Server;
use super::{client_at, free_address, http, is_lab, metric, pattern, run_of, signer};

/// Guesses that the server must have judged; `BASIN_GUESSES` says another number.
const GUESSES: u64 = 100_000;
/// One in so many is by a session of the guesser's own, which it ends.
const OF_SESSIONS: u64 = 100;
/// Bytes of the window; its owner puts half of them.
const WINDOW: u32 = 64 << 10;
/// What guesses would write.
const EVIL: [u8; 64] = [0xa5; 64];
/// Packets between two looks at the metrics: what a socket's buffer holds.
const BURST: u64 = 2048;
/// How long an answer may take before it is asked again: what is sprayed takes the room of other packets.
const ANSWERED: Duration = Duration::from_millis(300);
/// For one window, whose owner has ten seconds.
const SLICE: Duration = Duration::from_secs(3);

/// Where the server's device is, and its metrics and HTTP.
#[derive(Clone, Copy)]
struct Target {
    device: SocketAddr,
    metrics: SocketAddr,
    http: SocketAddr,
}

impl Target {
    fn refused(&self, cause: &str) -> u64 {
        metric(self.metrics, &format!("basin_rdma_refused_total{{cause=\"{cause}\"}}"))
    }

    /// Guesses that were judged.
    fn judged(&self) -> u64 {
        ["memory", "stranger", "unknown"].into_iter().map(|cause| self.refused(cause)).sum()
    }

    /// The same once it grows no more: what was not judged by then was lost on its way, and is not counted.
    fn settled(&self) -> u64 {
        let mut judged = self.judged();
        loop {
            std::thread::sleep(Duration::from_millis(2));
            let before = std::mem::replace(&mut judged, self.judged());
            if before == judged {
                return judged;
            }
        }
    }
}

/// All that there is to know of a transfer: what its owner is told, and what is seen on the wire.
pub struct Window {
    qpn: Qpn,
    psn: Psn,
    pub rkey: Rkey,
    pub address: u64,
}

/// A socket that sends RoCE as it likes.
struct Sender {
    socket: UdpSocket,
    own: SocketAddr,
    target: SocketAddr,
}

impl Sender {
    fn new(own: &str, target: SocketAddr) -> Sender {
        let socket = UdpSocket::bind(own).unwrap();
        socket.set_read_timeout(Some(ANSWERED)).unwrap();
        Sender { own: socket.local_addr().unwrap(), socket, target }
    }

    fn send(&self, opcode: Opcode, (qpn, psn): (Qpn, Psn), reth: Reth) {
        let mut repr = Repr::new(opcode, qpn, psn);
        repr.ext = Ext::Reth(reth);
        repr.ack_request = true;
        let payload = if opcode == Opcode::RcWriteOnly { &EVIL[..] } else { &[] };
        repr.payload_len = payload.len() as u32;
        let none = Mac([0; 6]);
        let path =
            Encapsulation { src_mac: none, dst_mac: none, vlan: None, src: self.own, dst: self.target, traffic_class: 0, hop_limit: 64 };
        let front = path.header_len();
        let mut frame = vec![0; front + repr.packet_len()];
        path.emit(repr.packet_len() as u16, 0, &mut frame);
        let mut head = [0; HEADERS_MAX];
        let headers = repr.emit(&mut head);
        frame[front..front + headers].copy_from_slice(&head[..headers]);
        frame[front + headers..][..payload.len()].copy_from_slice(payload);
        let (ip, end) = (14, frame.len() - icrc::LEN);
        let (covered, rest) = frame[ip..end].split_at(front - ip + BTH_LEN);
        let sum = Icrc::start(covered).unwrap().update(rest).finish();
        frame[end..].copy_from_slice(&sum);
        // A full buffer loses it, as any network may.
        let _ = self.socket.send_to(&frame[front..], self.target);
    }

    /// A WRITE or a READ of the window, with that key.
    fn guess(&self, turn: u64, (qpn, psn): (Qpn, Psn), window: &Window, rkey: Rkey) {
        let opcode = if turn.is_multiple_of(2) { Opcode::RcWriteOnly } else { Opcode::RcReadRequest };
        let va = window.address + turn % u64::from(WINDOW / 64) * 64;
        self.send(opcode, (qpn, psn), Reth { va, rkey, len: EVIL.len() as u32 });
    }

    /// That nobody answers.
    fn hears_nothing(&self) {
        self.socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4096];
        assert!(self.socket.recv(&mut bytes).is_err(), "a stranger was answered");
    }

    /// Why a request was refused; nothing if no answer has come.
    fn nak(&self) -> Option<Nak> {
        let mut bytes = [0; 4096];
        let count = self.socket.recv(&mut bytes).ok()?;
        let packet = Packet::new_checked(&bytes[..count]).unwrap();
        match packet.repr().ext {
            Ext::Aeth(Aeth { syndrome: Syndrome::Nak(nak), .. }) if packet.repr().opcode == Opcode::RcAcknowledge => Some(nak),
            other => panic!("the answer to a guess is {:?} {other:?}", packet.repr().opcode),
        }
    }
}

/// A session of somebody who does not sign, as token mode allows it: the server's end, and the first PSN.
fn session(http: &mut TcpStream, own: SocketAddr, rng: &mut Rng) -> (Qpn, Psn) {
    let psn = Psn::new(rng.u32() | 1);
    let local = QpEndpoint {
        transport: Transport::Rc,
        qpn: 0x1234,
        psn: psn.get(),
        reads: 16,
        qkey: 0,
        link: None,
        address: Some(own),
        mtu: 1024,
        is_port_fixed: false,
        fabric: None,
    };
    let (token, endpoint) = (token_of(&local).encode(), serde_json::to_string(&local).unwrap());
    let (psn_hex, fields) = (format!("{:06x}", psn.get()), [TOKEN, PSN, ENDPOINT]);
    let lines = fields.iter().zip([&token, &psn_hex, &endpoint]).map(|(name, value)| format!("{name}: {value}\r\n"));
    // In one piece: several would wait for one another.
    let text = format!("POST {CONNECT} HTTP/1.1\r\nhost: h\r\n{}\r\n", lines.collect::<String>());
    http.write_all(text.as_bytes()).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        http.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "who guesses does not use up the sessions: {head}");
    let reply = head.lines().find_map(|line| line.strip_prefix(&format!("{REPLY}: 200:"))).unwrap();
    (Endpoint::parse(reply).unwrap().qpn, psn)
}

/// Guesses at a window until so many were judged in all, or for a while.
fn spray(target: &Target, window: &Window, (began, wanted): (u64, u64), rng: &mut Rng) {
    let stranger = Sender::new("127.0.0.13:0", target.device);
    let until = Instant::now() + SLICE;
    // One who knows everything and is somebody else.
    for turn in 0..64 {
        stranger.guess(turn, (window.qpn, window.psn), window, window.rkey);
    }
    let mut http = TcpStream::connect(target.http).unwrap();
    let mut judged = target.judged() - began;
    while judged < wanted && Instant::now() < until {
        for turn in 0..BURST {
            let qpn = if rng.below(2) == 0 { window.qpn } else { Qpn(2 + rng.below(0x00ff_fff0) as u32) };
            // Any, or one near it.
            let rkey = if rng.below(4) == 0 { Rkey(window.rkey.0.wrapping_add(rng.below(4096) as u32)) } else { Rkey(rng.u32()) };
            stranger.guess(turn, (qpn, Psn::new(rng.u32())), window, rkey);
        }
        target.settled();
        for turn in 0..BURST / OF_SESSIONS {
            let own = Sender::new("127.0.0.1:0", target.device);
            let (qpn, psn) = session(&mut http, own.own, rng);
            // The right one is for another queue pair.
            let rkey = if turn % 2 == 0 { window.rkey } else { Rkey(window.rkey.0 ^ (1 + rng.below(0xffff_fffe) as u32)) };
            let nak = (0..20).find_map(|_| {
                for at in 0..8 {
                    own.guess(turn / 2 + at, (qpn, psn.advance(at as u32)), window, rkey);
                }
                own.nak()
            });
            assert_eq!(nak, Some(Nak::RemoteAccess), "a wrong key of a queue pair's own peer is answered");
        }
        judged = target.judged() - began;
    }
    stranger.hears_nothing();
}

/// A transfer that the victim has prepared.
pub struct Prepared {
    qp: Qp,
    pub window: Window,
    pub session: String,
}

const PROTOCOL: (&str, &str) = ("x-amz-rdma-protocol", "hipobj-rc-v2");
const COOKIE: (&str, &str) = ("x-amz-rdma-cookie", "0badcafe");

impl Prepared {
    /// A PUT of so many bytes.
    pub async fn new(ground: &Ground, front: &mut Http, target: &str, bytes: u32) -> Prepared {
        Prepared::try_new(ground, front, target, bytes).await.expect("it is prepared")
    }

    /// The same, or the status with which it was refused.
    pub async fn try_new(ground: &Ground, front: &mut Http, target: &str, bytes: u32) -> Result<Prepared, u16> {
        let qp = ground.hca.create_qp(&QpConfig::default()).unwrap();
        let local = qp.local();
        let (token, psn, size) = (token_of(&local).encode(), format!("{:06x}", local.psn), bytes.to_string());
        let fields = [
            PROTOCOL,
            COOKIE,
            (TOKEN, &token),
            (PSN, &psn),
            ("x-amz-rdma-op", "PUT"),
            ("x-amz-rdma-target", target),
            ("x-amz-rdma-size", &size),
        ];
        let ask = HttpAsk { method: "POST", path: "/.hipobj-rc/prepare", query: "", fields: &fields, body: b"" };
        let (answer, _) = front.ask(&signer("main"), ask).await.unwrap();
        if answer.status() != 200 {
            return Err(answer.status());
        }
        let far = Endpoint::parse(answer.text(REPLY).unwrap().strip_prefix("200:").unwrap()).unwrap();
        qp.connect(&of_token(&far, parse_psn(answer.text(PSN).unwrap()).unwrap())).unwrap();
        let window = Window { qpn: far.qpn, psn: Psn::new(local.psn), rkey: Rkey(far.memory.rkey), address: far.memory.address };
        Ok(Prepared { qp, window, session: answer.text(SESSION).unwrap().to_owned() })
    }

    /// Takes it back.
    pub async fn cancel(&self, front: &mut Http) -> u16 {
        let told = [PROTOCOL, COOKIE, (SESSION, self.session.as_str())];
        http(front, "POST", "/.hipobj-rc/cancel", &told, b"").await.0
    }

    /// Says that it is ready, and writes nothing.
    pub async fn wait(&self, front: &mut Http) -> u16 {
        let qpn = format!("{:x}", self.qp.local().qpn);
        let told = [PROTOCOL, COOKIE, (SESSION, self.session.as_str()), ("x-amz-rdma-qpn", &qpn)];
        http(front, "POST", "/.hipobj-rc/ready", &told, b"").await.0
    }

    /// Puts into the window, and says so.
    pub async fn finish(&self, ground: &Ground, front: &mut Http, content: &[u8]) -> u16 {
        let remote = Remote { address: self.window.address, rkey: self.window.rkey.0, len: content.len() as u32 };
        let writing = self.qp.submit_write(run_of(ground, content).freeze(), remote, Some(0x0bad_cafe)).unwrap();
        let qpn = format!("{:x}", self.qp.local().qpn);
        let told = [PROTOCOL, COOKIE, (SESSION, self.session.as_str()), ("x-amz-rdma-qpn", &qpn)];
        let (status, ..) = http(front, "POST", "/.hipobj-rc/ready", &told, b"").await;
        drop(writing.await);
        status
    }
}

/// At RoCE's own port any port of the peer's address is the peer: whoever is at that address, and knows the rest, has the key to guess.
async fn of_the_victims_host(ground: &Ground, front: &mut Http, target: &Target, rng: &mut Rng) {
    let beside = Sender::new("127.0.0.12:0", target.device);
    // Without the number of the next packet nothing is judged, and the transfer goes on.
    let prepared = Prepared::new(ground, front, "/guessed/beside", WINDOW).await;
    for turn in 0..256 {
        let ahead = 1 + rng.below(1 << 22) as u32;
        let psn = Psn::new(prepared.window.psn.get().wrapping_add(if turn % 2 == 0 { ahead } else { ahead.wrapping_neg() }));
        beside.guess(turn, (prepared.window.qpn, psn), &prepared.window, prepared.window.rkey);
    }
    let content = pattern(WINDOW as usize, 1);
    assert_eq!(prepared.finish(ground, front, &content).await, 200);
    // What comes late, with everything right, finds neither the window nor its queue pair.
    let before = (target.refused("memory"), target.refused("unknown"));
    let next = prepared.window.psn.advance(WINDOW.div_ceil(1024));
    for turn in 0..8 {
        beside.guess(turn, (prepared.window.qpn, next.advance(turn as u32)), &prepared.window, prepared.window.rkey);
    }
    assert!(http(front, "GET", "/guessed/beside", &[], b"").await.2 == content);
    let until = Instant::now() + Duration::from_secs(20);
    while (target.refused("memory"), target.refused("unknown")) != (before.0, before.1 + 8) {
        assert!(Instant::now() < until, "what came late was not refused: {before:?}");
    }
    // With it, a wrong key ends the transfer, and nothing is stored.
    let before = target.refused("memory");
    let prepared = Prepared::new(ground, front, "/guessed/ended", WINDOW).await;
    beside.guess(0, (prepared.window.qpn, prepared.window.psn), &prepared.window, Rkey(prepared.window.rkey.0 ^ 1));
    assert_eq!(prepared.finish(ground, front, &content).await, 500);
    assert_eq!(http(front, "GET", "/guessed/ended", &[], b"").await.0, 404);
    assert_eq!(target.refused("memory"), before + 1);
}

async fn attacked(ground: &Ground, target: &Target, wanted: u64) -> u64 {
    let (mut front, mut rng) = (Http::connect(&ground.core, target.http).await.unwrap(), Rng::seeded(11));
    assert_eq!(http(&mut front, "PUT", "/guessed", &[], b"").await.0, 200);
    let began = target.judged();
    let mut windows = 0;
    while target.judged() - began < wanted {
        let prepared = Prepared::new(ground, &mut front, "/guessed/one", WINDOW).await;
        spray(target, &prepared.window, (began, wanted), &mut rng);
        // What its owner leaves out stays empty, and what he puts is his.
        let content = pattern(WINDOW as usize / 2, windows);
        assert_eq!(prepared.finish(ground, &mut front, &content).await, 200);
        let (status, _, body) = http(&mut front, "GET", "/guessed/one", &[], b"").await;
        assert!(status == 200 && body.len() == WINDOW as usize, "{status}, {} bytes", body.len());
        let (put, left) = body.split_at(content.len());
        assert!(put == content && left.iter().all(|&byte| byte == 0), "somebody wrote to the window");
        windows += 1;
    }
    of_the_victims_host(ground, &mut front, target, &mut rng).await;
    windows
}

#[test]
fn a_million_guesses_on_the_wire_get_nothing_and_are_logged() {
    if is_lab() {
        // rxe has the port there.
        return;
    }
    let wanted = std::env::var("BASIN_GUESSES").map_or(GUESSES, |text| text.parse().expect("a number of guesses"));
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (log, metrics) = (place.path().join("log"), free_address());
    let settings = [
        ("BASIN_RDMA_ADDRESS", "127.0.0.11"),
        ("BASIN_RDMA_UDP_PORT", "4791"),
        ("BASIN_METRICS_LISTEN", &metrics.to_string()),
        ("SERVER_LOG", log.to_str().unwrap()),
    ];
    let server = Server::start_at(1, "256M", "soft:udp", &settings);
    let target = Target { device: "127.0.0.11:4791".parse().unwrap(), metrics, http: server.address };
    let begun = Instant::now();
    client_at("soft:udp", Some("127.0.0.12:4791".parse().unwrap()), async move |ground| {
        let windows = attacked(&ground, &target, wanted).await;
        println!("{windows} windows were guessed at");
    });
    let took = begun.elapsed();
    let counted = ["memory", "stranger", "unknown", "damaged"].map(|cause| target.refused(cause));
    let [memory, strangers, unknown, damaged] = counted;
    assert!(memory >= wanted / OF_SESSIONS / 2 && strangers > wanted / 4 && unknown > wanted / 4 && damaged == 0, "{counted:?}");
    // All of it is told within a while, in few lines.
    let told = |log: &str| -> u64 {
        let lines = log.lines().filter(|line| line.contains("packets over RDMA were refused"));
        let numbers = lines.flat_map(|line| ["memory=", "strangers=", "unknown="].map(|name| line.split_once(name).unwrap().1));
        numbers.map(|rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let until = Instant::now() + Duration::from_secs(30);
    let text = loop {
        let text = std::fs::read_to_string(&log).unwrap();
        if told(&text) == memory + strangers + unknown {
            break text;
        }
        assert!(Instant::now() < until, "{counted:?} were refused, and {} told:\n{text}", told(&text));
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(text.contains("WARN") && text.contains("the peer asked for memory it was not granted"), "{text}");
    let lines = text.lines().count() as u64;
    assert!(lines < 50 + 25 * (2 + begun.elapsed().as_secs() / 5), "{lines} lines");
    let judged = memory + strangers + unknown;
    println!("{judged} guesses, {memory} of them by {memory} queue pairs, in {:.1} s; {lines} lines of log", took.as_secs_f64());
}
