//! The kernel's soft RDMA device, and the stock programs on it: the ground the verbs backend and the soft HCA are tested on.

use super::guest::{entries, finish, in_lab, read, run, start};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

const DEVICE: &str = "rxe0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const LIMIT: Duration = Duration::from_secs(60);

/// The index of the RoCE v2 GID of `address` on `device`.
pub fn gid(device: &str, address: Ipv6Addr) -> u32 {
    let port = format!("/sys/class/infiniband/{device}/ports/1");
    let holds = |index: u32| {
        // An index nobody uses cannot be read.
        let kind = std::fs::read_to_string(format!("{port}/gid_attrs/types/{index}")).unwrap_or_default();
        kind.trim() == "RoCE v2" && read(format!("{port}/gids/{index}")).parse() == Ok(address)
    };
    (0..entries(format!("{port}/gids")).len() as u32).find(|index| holds(*index)).unwrap_or_else(|| panic!("no GID for {address}"))
}

/// Waits until a server listens on the TCP port by which the stock programs exchange their numbers. `inside` goes in front of a
/// command that sees the server's network.
pub fn listening(inside: &str, port: u16) {
    let wanted = format!(":{port:04X} ");
    let deadline = Instant::now() + LIMIT;
    let state = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    while !run(&format!("{inside}cat /proc/self/net/tcp /proc/self/net/tcp6"), LIMIT)
        .lines()
        .any(|line| line.contains(&wanted) && state(line).as_deref() == Some("0A"))
    {
        assert!(Instant::now() < deadline, "no server listens on {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Both ends of one of libibverbs' pingpong programs over the device, 200 iterations.
fn pingpong(program: &str, port: u16) {
    let gid = gid(DEVICE, ADDRESS.to_ipv6_mapped());
    let line = format!("{program} -d {DEVICE} -g {gid} -n 200 -p {port}");
    let server = start(&line);
    listening("", port);
    let client = run(&format!("{line} {ADDRESS}"), LIMIT);
    for text in [client, finish(server, &line, LIMIT)] {
        assert!(text.contains("200 iters in") && text.contains(&format!("GID ::ffff:{ADDRESS}")), "{text}");
    }
}

#[test]
fn the_device_is_up_on_its_interface() {
    if !in_lab() {
        return;
    }
    let link = run(&format!("rdma link show {DEVICE}/1"), LIMIT);
    assert!(link.contains("state ACTIVE") && link.contains("netdev eth0"), "{link}");
}

#[test]
fn stock_rc_pingpong_passes() {
    if in_lab() {
        pingpong("ibv_rc_pingpong", 18_515);
    }
}

#[test]
fn stock_uc_pingpong_passes() {
    if in_lab() {
        pingpong("ibv_uc_pingpong", 18_516);
    }
}

#[test]
fn stock_ud_pingpong_passes() {
    if in_lab() {
        pingpong("ibv_ud_pingpong", 18_517);
    }
}
