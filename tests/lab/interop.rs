//! `basin rdma-peer`, our soft HCA, against the kernel's rxe and the stock programs on it: both roles, IPv4 and IPv6, over a UDP socket
//! and over AF_XDP, with and without loss.
//!
//! A veth pair is the wire. Its one end has rxe; the other is in a network namespace, where UDP port 4791 is ours.

use super::guest::{command, finish, in_lab, read, run, start};
use super::rdma::{gid, listening};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// IPv4, IPv6, IPv6 of the link alone, and IPv4 in a VLAN.
const OURS: [IpAddr; 4] = addresses(1);
const STOCK: [IpAddr; 4] = addresses(2);
const LINK_LOCAL: usize = 2;
const VLAN: usize = 3;
/// The VLAN's interface in our namespace, and the stock programs'.
const OUR_VLAN: &str = "ours.5";
const STOCK_VLAN: &str = "stock.5";
const DEVICE: &str = "rxe_peer";
const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18_515;
const INSIDE: &str = "ip netns exec peer ";

const fn addresses(host: u8) -> [IpAddr; 4] {
    let low = host as u16;
    [
        IpAddr::V4(Ipv4Addr::new(10, 79, 0, host)),
        IpAddr::V6(Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, low)),
        IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x79, low)),
        IpAddr::V4(Ipv4Addr::new(10, 79, 5, host)),
    ]
}

/// The wire, made once.
fn wire() {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let lines = [
            "ip netns add peer".to_owned(),
            "ip link add stock numrxqueues 1 numtxqueues 1 type veth peer name ours numrxqueues 1 numtxqueues 1".to_owned(),
            "ip link set ours netns peer".to_owned(),
            format!("ip address add {}/24 dev stock", STOCK[0]),
            format!("ip address add {}/64 dev stock nodad", STOCK[1]),
            format!("ip address add {}/64 dev stock nodad", STOCK[LINK_LOCAL]),
            "ip link set stock up".to_owned(),
            format!("{INSIDE}ip address add {}/24 dev ours", OURS[0]),
            format!("{INSIDE}ip address add {}/64 dev ours nodad", OURS[1]),
            format!("{INSIDE}ip address add {}/64 dev ours nodad", OURS[LINK_LOCAL]),
            format!("{INSIDE}ip link set lo up"),
            format!("{INSIDE}ip link set ours up"),
            format!("rdma link add {DEVICE} type rxe netdev stock"),
            // Neighbours are known before the first packet.
            format!("{INSIDE}ping -c 1 {}", STOCK[0]),
            format!("{INSIDE}ping -c 1 {}", STOCK[1]),
        ];
        lines.iter().for_each(|line| drop(run(line, LIMIT)));
    });
}

/// Loses packets both ways while it lives. Frames sent by AF_XDP do not meet the queueing discipline.
struct Loss;

impl Loss {
    fn of(percent: u32) -> Loss {
        run(&format!("tc qdisc add dev stock root netem loss {percent}%"), LIMIT);
        run(&format!("{INSIDE}tc qdisc add dev ours root netem loss {percent}%"), LIMIT);
        Loss
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        run("tc qdisc del dev stock root", LIMIT);
        run(&format!("{INSIDE}tc qdisc del dev ours root"), LIMIT);
    }
}

/// Jumbo frames at both ends while it lives.
struct Jumbo;

impl Jumbo {
    fn frames() -> Jumbo {
        Jumbo::of(9000);
        Jumbo
    }

    fn of(mtu: u32) {
        run(&format!("ip link set stock mtu {mtu}"), LIMIT);
        run(&format!("{INSIDE}ip link set ours mtu {mtu}"), LIMIT);
    }
}

impl Drop for Jumbo {
    fn drop(&mut self) {
        Jumbo::of(1500);
    }
}

/// One program, with its words for the GID index and for the rest.
struct Program {
    name: &'static str,
    gid: &'static str,
    /// Options of both programs: ours are spelt out.
    stock: String,
    ours: String,
}

fn pingpong(name: &'static str, size: u32, iterations: u32) -> Program {
    Program { name, gid: "-g", stock: format!("-s {size} -n {iterations}"), ours: format!("--size {size} --iterations {iterations}") }
}

/// `-F`: on a busy machine perftest finds the clocks of a guest to disagree, and ends with an error where it was to tell the speed.
fn perftest(name: &'static str, iterations: u32) -> Program {
    Program { name, gid: "-x", stock: format!("-n {iterations} -F"), ours: format!("--iterations {iterations}") }
}

impl Program {
    /// The stock program looks at what arrived; only the pingpongs of connections can.
    fn checked(mut self) -> Program {
        self.stock.push_str(" -c");
        self
    }

    fn ours(&self, device: &str, family: usize) -> String {
        let basin = env!("CARGO_BIN_EXE_basin");
        let interface = if family == VLAN { OUR_VLAN } else { "ours" };
        format!("{INSIDE}{basin} rdma-peer {interface} {device} {} {} --address {} --once", self.name, self.ours, OURS[family])
    }

    fn stock(&self, family: usize) -> String {
        let address = match STOCK[family] {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        format!("{} -d {DEVICE} {} {} {}", self.name, self.gid, gid(DEVICE, address), self.stock)
    }

    /// The stock program's client against our server.
    fn serve(&self, device: &str, family: usize) {
        let ours = self.ours(device, family);
        let server = start(&ours);
        listening(INSIDE, PORT);
        // The programs meet over IPv4 whatever the packets are: perftest knows no other.
        let client = run(&format!("{} {}", self.stock(family), OURS[0]), LIMIT);
        self.judge(&finish(server, &ours, LIMIT), &client);
    }

    /// Our client against the stock program's server.
    fn call(&self, device: &str, family: usize) {
        let stock = self.stock(family);
        let server = start(&stock);
        listening("", PORT);
        let client = run(&format!("{} {}", self.ours(device, family), STOCK[0]), LIMIT);
        self.judge(&client, &finish(server, &stock, LIMIT));
    }

    fn judge(&self, ours: &str, stock: &str) {
        assert!(ours.contains("done     "), "{}: {ours}", self.name);
        // ibv_rc_pingpong says so when it was asked to look (-c), and ends well all the same.
        assert!(!stock.contains("invalid data"), "{}: {stock}", self.name);
    }

    /// With packets of that many bytes at both ends.
    fn at_path_mtu(mut self, bytes: u32) -> Program {
        self.stock.push_str(&format!(" -m {bytes}"));
        self.ours.push_str(&format!(" --mtu {bytes}"));
        self
    }

    fn both_ways(&self, device: &str) {
        if !in_lab() {
            return;
        }
        wire();
        for family in 0..2 {
            self.serve(device, family);
            self.call(device, family);
        }
    }
}

/// A test for each line: its name, the device of our end, and the program.
macro_rules! both_ways {
    ($($test:ident: $device:literal, $program:expr;)*) => {
        $(
            #[test]
            fn $test() {
                $program.both_ways($device);
            }
        )*
    };
}

both_ways! {
    rc_pingpong: "soft:udp", pingpong("ibv_rc_pingpong", 5000, 100).checked();
    rc_pingpong_over_af_xdp: "soft:xdp", pingpong("ibv_rc_pingpong", 4096, 100).checked();
    uc_pingpong: "soft:udp", pingpong("ibv_uc_pingpong", 4096, 50).checked();
    uc_pingpong_over_af_xdp: "soft:xdp", pingpong("ibv_uc_pingpong", 3000, 50);
    ud_pingpong: "soft:udp", pingpong("ibv_ud_pingpong", 1024, 50);
    ud_pingpong_over_af_xdp: "soft:xdp", pingpong("ibv_ud_pingpong", 1000, 50);
    write_bw: "soft:udp", perftest("ib_write_bw", 50);
    write_bw_over_af_xdp: "soft:xdp", perftest("ib_write_bw", 50);
    read_bw: "soft:udp", perftest("ib_read_bw", 50);
    read_bw_over_af_xdp: "soft:xdp", perftest("ib_read_bw", 50);
    send_bw: "soft:udp", perftest("ib_send_bw", 50);
    send_bw_over_af_xdp: "soft:xdp", perftest("ib_send_bw", 50);
    atomic_bw: "soft:udp", perftest("ib_atomic_bw", 200);
    atomic_bw_over_af_xdp: "soft:xdp", perftest("ib_atomic_bw", 200);
}

/// `rping` both ways between our program, `basin rdma-peer INTERFACE DEVICE` with what goes in front, and the stock one: at these
/// addresses, ours and the stock program's. By rdma_cm there is no TCP port to wait for: our server says when it waits, and the kernel
/// shows who listens.
pub fn rping_both_ways(program: &str, addresses: &[(IpAddr, IpAddr)]) {
    run("modprobe rdma_ucm", LIMIT);
    for (of_ours, of_stock) in addresses {
        let ours = format!("{program} rping --size 3000 --iterations 20 --address {of_ours} --once");
        let said = std::env::temp_dir().join("rping-peer");
        let output = std::fs::File::create(&said).expect("a file in /tmp");
        let server = command(&ours).stdout(output).stderr(Stdio::piped()).spawn().expect("our server starts");
        until("our server waits", || read(&said).contains("waiting"));
        run(&format!("rping -c -a {of_ours} -S 3000 -C 20 -V"), LIMIT);
        finish(server, &ours, LIMIT);
        assert!(read(&said).contains("every line as expected"), "{}", read(&said));

        let stock = format!("rping -s -a {of_stock} -S 3000 -C 20");
        let server = start(&stock);
        until("rping listens", || run("rdma resource show cm_id", LIMIT).contains("LISTEN"));
        let client = run(&ours.replace("rping ", &format!("rping {of_stock} ")), LIMIT);
        assert!(client.contains("every line as expected"), "{client}");
        finish(server, &stock, LIMIT);
    }
}

fn rping(device: &str) {
    if !in_lab() {
        return;
    }
    wire();
    let program = format!("{INSIDE}{} rdma-peer ours {device}", env!("CARGO_BIN_EXE_basin"));
    rping_both_ways(&program, &[(OURS[0], STOCK[0]), (OURS[1], STOCK[1])]);
}

fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !true_now() {
        assert!(Instant::now() < deadline, "{what}: not in {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn rping_by_rdma_cm() {
    rping("soft:udp");
    rping("soft:xdp");
}

/// The largest packets RoCE has, and over AF_XDP those that still fit a chunk.
#[test]
fn jumbo_frames() {
    if !in_lab() {
        return;
    }
    wire();
    let _jumbo = Jumbo::frames();
    for (device, path_mtu) in [("soft:udp", 4096), ("soft:xdp", 4096), ("soft:xdp", 2048)] {
        let program = pingpong("ibv_rc_pingpong", 20_000, 50).checked().at_path_mtu(path_mtu);
        for family in 0..2 {
            program.serve(device, family);
            program.call(device, family);
        }
    }
    // Which also agree on the largest by themselves.
    for device in ["soft:udp", "soft:xdp"] {
        for program in [perftest("ib_write_bw", 20), perftest("ib_read_bw", 20), perftest("ib_send_bw", 20).at_path_mtu(4096)] {
            program.serve(device, 0);
            program.call(device, 0);
        }
        let datagrams = pingpong("ibv_ud_pingpong", 4000, 50);
        datagrams.serve(device, 1);
        datagrams.call(device, 1);
    }
}

#[test]
fn link_local_addresses() {
    if !in_lab() {
        return;
    }
    wire();
    for device in ["soft:udp", "soft:xdp"] {
        let program = pingpong("ibv_rc_pingpong", 5000, 50).checked();
        program.serve(device, LINK_LOCAL);
        program.call(device, LINK_LOCAL);
    }
}

/// A VLAN between both, in the kernel at the other end. Its tags are in the frames, where programs see them.
fn vlan() {
    static MADE: OnceLock<()> = OnceLock::new();
    wire();
    MADE.get_or_init(|| {
        run(&format!("ip link add link stock name {STOCK_VLAN} type vlan id 5"), LIMIT);
        run(&format!("{INSIDE}ip link add link ours name {OUR_VLAN} type vlan id 5"), LIMIT);
        run(&format!("ip address add {}/24 dev {STOCK_VLAN}", STOCK[VLAN]), LIMIT);
        run(&format!("{INSIDE}ip address add {}/24 dev {OUR_VLAN}", OURS[VLAN]), LIMIT);
        run(&format!("ip link set {STOCK_VLAN} up"), LIMIT);
        run(&format!("{INSIDE}ip link set {OUR_VLAN} up"), LIMIT);
        run("ethtool -K stock txvlan off", LIMIT);
        run(&format!("{INSIDE}ping -c 1 {}", STOCK[VLAN]), LIMIT);
    });
}

fn received_in_vlan() -> u64 {
    read(format!("/sys/class/net/{STOCK_VLAN}/statistics/rx_packets")).parse().expect("packets are counted")
}

/// `rxe` has the VLAN's address among its own, and sends to it by the VLAN's interface.
#[test]
fn in_a_vlan() {
    if !in_lab() {
        return;
    }
    vlan();
    run(&format!("{INSIDE}ethtool -K ours rxvlan off"), LIMIT);
    for device in ["soft:udp", "soft:xdp"] {
        let before = received_in_vlan();
        let program = pingpong("ibv_rc_pingpong", 5000, 50).checked();
        program.serve(device, VLAN);
        program.call(device, VLAN);
        let packets = received_in_vlan() - before;
        assert!(packets >= 2 * 50 * 5, "{device}: 100 messages of five packets each, and {packets} came in the VLAN");
    }
}

/// The flows with `soft:xdp` on the VLAN's interface at one end, and sockets of the kernel's VLAN at the other.
#[test]
fn flows_in_a_vlan() {
    if !in_lab() {
        return;
    }
    vlan();
    let tool = env!("CARGO_BIN_EXE_unified-rdma-test");
    let doctor = |says: &str| {
        let text = run(&format!("{INSIDE}{} doctor {OUR_VLAN} soft:xdp", env!("CARGO_BIN_EXE_basin")), LIMIT);
        assert!(text.contains(says), "'{says}' is not in {text}");
    };
    let disk = std::env::temp_dir().join("vlan-disk");
    let server = format!("{INSIDE}{tool} {OUR_VLAN} soft:xdp {} server --disk-size 64M --once", disk.display());
    // What a NIC takes out of a frame no program can see.
    run(&format!("{INSIDE}ethtool -K ours rxvlan on"), LIMIT);
    let mut refused = start(&server);
    let said = std::io::BufReader::new(refused.stderr.take().expect("piped"));
    let said = std::io::BufRead::lines(said).map_while(Result::ok).find(|line| line.contains("no AF_XDP on ours.5"));
    assert!(said.is_some_and(|line| line.contains("ours takes the tags out of the frames it receives")));
    refused.kill().expect("it is our child");
    refused.wait().expect("it is our child");
    doctor("ethtool -K ours rxvlan off");

    run(&format!("{INSIDE}ethtool -K ours rxvlan off"), LIMIT);
    doctor("a VLAN on ours: veth");
    let before = received_in_vlan();
    let serving = start(&server);
    let client = format!("{tool} {STOCK_VLAN} soft:udp none {} --json --count 100", OURS[VLAN]);
    let client = until_it_listens(&client);
    assert!(client.matches("\"verified\": true").count() + client.matches("\"verified\":true").count() == 5, "{client}");
    finish(serving, &server, LIMIT);
    // Flow 4 alone is as many messages of 64 packets.
    assert!(received_in_vlan() - before > 100 * 64);
}

/// Runs a client, again while there is no server yet.
fn until_it_listens(line: &str) -> String {
    let deadline = Instant::now() + LIMIT;
    loop {
        let ended = command(line).output().expect("the program starts");
        let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        if ended.status.success() {
            return out.into_owned();
        }
        assert!(err.contains("refused") && Instant::now() < deadline, "{line}: {out}\n{err}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Every packet that is lost is sent again; atomics are still executed once.
#[test]
fn reliable_connections_with_loss() {
    if !in_lab() {
        return;
    }
    wire();
    let _loss = Loss::of(2);
    for program in [pingpong("ibv_rc_pingpong", 4096, 100), perftest("ib_write_bw", 20), perftest("ib_read_bw", 20)] {
        program.serve("soft:udp", 0);
        program.call("soft:udp", 0);
    }
    for program in [perftest("ib_send_bw", 20), perftest("ib_atomic_bw", 100)] {
        program.serve("soft:udp", 1);
        program.call("soft:udp", 1);
    }
}

/// What rxe sends again takes the requests behind it along, and among them there would be windows to bind.
#[test]
fn windows_with_loss() {
    if !in_lab() {
        return;
    }
    wire();
    let tool = env!("CARGO_BIN_EXE_unified-rdma-test");
    let disk = std::env::temp_dir().join("lossy-disk");
    let server = format!("{INSIDE}{tool} ours soft:xdp {} server --disk-size 64M --once", disk.display());
    let serving = start(&server);
    let _loss = Loss::of(3);
    let words = "--json --flow storage-to-rdma --size 4096 --depth 16 --count 400";
    let client = until_it_listens(&format!("{tool} stock {DEVICE} none {} {words}", OURS[0]));
    assert!(client.contains("\"verified\":true"), "{client}");
    finish(serving, &server, LIMIT);
    let counter = |name| read(format!("/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/{name}"));
    assert!(counter("completer_retry_err").trim() != "0", "rxe has sent nothing again");
}
