//! `basin rdma-peer` on the kernel's own device, by verbs, against the stock programs on the same device: both roles.

use super::guest::{finish, in_lab, run, start};
use super::interop::rping_both_ways;
use super::rdma::{gid, listening};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18_515;
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const ADDRESS6: Ipv6Addr = Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 15);

/// `name` and its options as the stock program knows them, and as ours does.
fn both_ways(name: &str, gid_option: &str, stock: &str, ours: &str) {
    if !in_lab() {
        return;
    }
    let stock = format!("{name} -d rxe0 {gid_option} {} {stock}", gid("rxe0", ADDRESS.to_ipv6_mapped()));
    let ours = format!("{} rdma-peer eth0 rxe0 {name} {ours}", env!("CARGO_BIN_EXE_basin"));
    for (server, client, our_side) in
        [(format!("{ours} --once"), format!("{stock} {ADDRESS}"), "server"), (stock.clone(), format!("{ours} {ADDRESS}"), "client")]
    {
        let started = start(&server);
        listening("", PORT);
        let (said, served) = (run(&client, LIMIT), finish(started, &server, LIMIT));
        let (our, their) = if our_side == "server" { (served, said) } else { (said, served) };
        assert!(our.contains("verbs:rxe0") && our.contains("done     "), "{name}, ours as {our_side}: {our}");
        assert!(!their.contains("invalid data"), "{name}, ours as {our_side}: {their}");
    }
}

#[test]
fn ibv_rc_pingpong_by_verbs() {
    both_ways("ibv_rc_pingpong", "-g", "-s 4096 -n 100", "--size 4096 --iterations 100");
}

#[test]
fn perftest_by_verbs() {
    // -F: a clock that perftest cannot tell on a busy machine is no error.
    for name in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        both_ways(name, "-x", "-s 65536 -n 200 -F", "--size 65536 --iterations 200");
    }
    both_ways("ib_atomic_bw", "-x", "-n 200 -F", "--iterations 200");
}

#[test]
fn rping_by_verbs() {
    if !in_lab() {
        return;
    }
    run(&format!("ip address replace {ADDRESS6}/64 dev eth0 nodad"), LIMIT);
    let program = format!("{} rdma-peer eth0 rxe0", env!("CARGO_BIN_EXE_basin"));
    let own = [IpAddr::V4(ADDRESS), IpAddr::V6(ADDRESS6)];
    rping_both_ways(&program, &own.map(|address| (address, address)));
    run(&format!("ip address delete {ADDRESS6}/64 dev eth0"), LIMIT);
}
