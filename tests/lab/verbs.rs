//! `unified-rdma-test` on the kernel's RDMA device, both ends in the guest.

use basin::base::Rng;
use basin::base::error::ErrorKind;
use basin::device::Ops;
use basin::device::rdma::{Hca, HcaEnv, RawConfig, VerbsConfig};
use basin::mem::{Ledger, PageKind, Region, RegionConfig, Slab};
use std::process::{Command, Stdio};

use super::guest::{command, finish, in_lab, read, run};
use std::fs::File;
use std::time::Duration;

const TOOL: &str = env!("CARGO_BIN_EXE_unified-rdma-test");
const LIMIT: Duration = Duration::from_secs(180);

/// Runs `flows` between two ends on `device`, and gives the client's rows.
fn rows(interface: &str, device: &str, address: &str, port: u16, flows: &[&str]) -> Vec<serde_json::Value> {
    let disk = tempfile::tempdir().expect("a directory");
    let ends = format!("{TOOL} {interface} {device} {}", disk.path().join("disk.img").display());
    let line = format!("{ends} server --once --port {port} --disk-size 128M");
    // The client waits for it.
    let log = disk.path().join("server.log");
    let server = command(&line).stderr(File::create(&log).expect("a log")).spawn().expect("it starts");
    let flows: String = flows.iter().map(|flow| format!(" --flow {flow}")).collect();
    let text = run(&format!("{ends} {address} --port {port} --json --depth 8 --count 100{flows}"), LIMIT);
    finish(server, &line, LIMIT);
    let said = read(&log);
    assert!(said.contains("0 owned, 0 in flight, 0 published, 0 quarantined"), "{said}");
    text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

/// Every row is verified, over this backend, and nothing was copied by CPU.
fn assert_moved(rows: &[serde_json::Value], flows: usize, backend: &str) {
    assert_eq!(rows.len(), flows, "{rows:?}");
    for row in rows {
        assert_eq!(
            (row["verified"].as_bool(), row["bytes_copied_user"].as_u64(), row["lost"].as_u64()),
            (Some(true), Some(0), Some(0)),
            "{row}"
        );
        assert!(row["rdma_backend"].is_null() && row["flow"] == "network-to-storage" || row["rdma_backend"] == backend, "{row}");
    }
}

#[test]
fn rdma_flows_copy_nothing() {
    if !in_lab() {
        return;
    }
    let flows = ["rdma-to-storage", "storage-to-rdma", "rdma-to-rdma"];
    assert_moved(&rows("eth0", "rxe0", "10.0.2.15", 9101, &flows), 3, "verbs:rxe0");
}

#[test]
fn all_flows_run_over_loopback() {
    if !in_lab() {
        return;
    }
    run("ip link set lo up", LIMIT);
    run("rdma link add rxelo type rxe netdev lo", LIMIT);
    let rows = rows("lo", "rxelo", "127.0.0.1", 9102, &["all"]);
    run("rdma link delete rxelo", LIMIT);
    assert_moved(&rows, 5, "verbs:rxelo");
}

#[test]
fn a_wrong_device_port_or_address_is_named_with_those_there_are() {
    if !in_lab() {
        return;
    }
    for (device, more, expected) in
        [("rxe9", "", "found: rxe0"), ("rxe0:2", "", "its ports are 1 to 1"), ("rxe0", "--gid-index 77", "10.0.2.15 RoCE v2 eth0")]
    {
        let line = format!("{TOOL} eth0 {device} /tmp/none.img 10.0.2.15 {more}");
        let output = command(&line).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{line}: {said}");
    }
}

/// The kernel makes a buffer of each kind of pages, and another program sees the region's bytes in it; rxe takes none, and says so.
#[test]
fn dma_buffers_are_the_region_s_memory() {
    if !in_lab() {
        return;
    }
    const MIB: u64 = 1 << 20;
    for pages in [PageKind::Plain, PageKind::Huge2M] {
        let region = Region::map(&RegionConfig { pages: vec![pages], ..RegionConfig::new(8 * MIB) }).unwrap();
        let slab = Slab::new(&region, region.chunks()).unwrap();
        let mut run = slab.run(1 << 20).unwrap();
        run.as_mut_slice().fill(0x5a);
        let at = run.address() - region.base() as u64;
        let buffer = region.dma_buf(2 * (at / (2 * MIB)) * MIB, 2 * MIB).unwrap();
        let program = "import mmap; print(bytes(mmap.mmap(0, 2 << 20, mmap.MAP_SHARED, mmap.PROT_READ)).count(0x5a))";
        let seen = Command::new("python3").args(["-c", program]).stdin(Stdio::from(buffer)).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), (1 << 20).to_string(), "{pages:?}: {seen:?}");
        assert!(region.dma_buf(0, 16 * MIB).is_err_and(|error| error.to_string().contains("16 MiB")), "more than there is");

        let env = HcaEnv::new(Ops::new(64), region.clone(), Rng::from_kernel());
        let verbs = VerbsConfig { dma_buf: true, ..VerbsConfig::default() };
        let refused = Hca::open(HcaEnv { verbs, ..env }, &"rxe0".parse().unwrap()).err().expect("rxe takes no DMA buffers");
        let text = refused.to_string();
        assert!(refused.kind() == ErrorKind::Unavailable && text.contains("DMA buffer") && text.contains("rxe0"), "{text}");
    }
}

/// rxe has no queue pairs for frames, and says so; the soft HCA points to AF_XDP.
#[test]
fn raw_packet_queue_pairs_are_the_device_s_to_refuse() {
    if !in_lab() {
        return;
    }
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
    for name in ["rxe0", "soft"] {
        let hca = Hca::open(HcaEnv::new(Ops::new(64), region.clone(), Rng::from_kernel()), &name.parse().unwrap()).unwrap();
        let config = RawConfig { send_depth: 4, recv_depth: 4, udp_ports: vec![9], ledger: Ledger::new() };
        let text = hca.create_raw_qp(&config).err().map(|error| (error.kind(), error.to_string())).expect("it has none");
        assert!(text.0 == ErrorKind::Unavailable && text.1.contains(name) && text.1.contains("AF_XDP"), "{text:?}");
        let too_deep = hca.create_raw_qp(&RawConfig { send_depth: 0, ..config }).err().expect("no request at once").kind();
        assert_eq!(too_deep, if name == "soft" { ErrorKind::Unavailable } else { ErrorKind::Usage });
    }
}
