//! The kernel's rxe at one end and the soft HCA at the other, on a veth pair: what the two make of one another's packets.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use basin::base::Rng;
use basin::device::rdma::{Hca, HcaEnv, RdmaName, VerbsConfig};

use nix::sched::{CloneFlags, setns};

use super::world::{End, Made};

/// The kernel's end.
pub const DEVICE: &str = "rxe_mixed";
pub const OF_RXE: &str = "10.80.0.2";
pub const OF_SOFT: &str = "10.80.0.1";

/// rxe asks, the soft HCA answers.
pub static RXE_TO_SOFT: Made = Made { ends: || (rxe_end(), soft_end()), far_end: |_| soft_end(), is_verbs: true, binds_windows: true };
/// The soft HCA asks, rxe answers.
pub static SOFT_TO_RXE: Made = Made { ends: || (soft_end(), rxe_end()), far_end: |_| rxe_end(), is_verbs: true, binds_windows: true };

/// Runs a case in the lab, one after another: RoCE's port is there once.
pub fn in_lab(case: impl FnOnce()) {
    if std::env::var_os("BASIN_LAB").is_none() {
        let name = std::thread::current().name().unwrap_or("rdma").to_owned();
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: not in the VM lab; run `cargo xtask test lab`");
        return;
    }
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    wire();
    setns(home(), CloneFlags::CLONE_NEWNET).unwrap();
    case();
}

/// The guest's own namespace.
fn home() -> &'static OwnedFd {
    static HOME: OnceLock<OwnedFd> = OnceLock::new();
    HOME.get_or_init(|| File::open("/proc/1/ns/net").unwrap().into())
}

/// The wire, made once.
fn wire() {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let lines = [
            "ip netns add mixed".to_owned(),
            "ip link add mixed numrxqueues 1 numtxqueues 1 type veth peer name ours numrxqueues 1 numtxqueues 1".to_owned(),
            "ip link set ours netns mixed".to_owned(),
            format!("ip address add {OF_RXE}/24 dev mixed"),
            "ip link set mixed up".to_owned(),
            format!("ip netns exec mixed ip address add {OF_SOFT}/24 dev ours"),
            "ip netns exec mixed ip link set ours up".to_owned(),
            format!("rdma link add {DEVICE} type rxe netdev mixed"),
            "modprobe rdma_ucm".to_owned(),
            // Neighbours are known before the first packet.
            format!("ip netns exec mixed ping -c 1 {OF_RXE}"),
        ];
        lines.iter().for_each(|line| run(line));
    });
}

/// Runs a command line.
pub fn run(line: &str) {
    let mut words = line.split_whitespace();
    let done = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

fn rxe_end() -> End {
    let address: IpAddr = OF_RXE.parse().unwrap();
    setns(home(), CloneFlags::CLONE_NEWNET).unwrap();
    let verbs = VerbsConfig { mr_bytes_max: Some(3 << 20), ..VerbsConfig::default() };
    let open = |env| Hca::open(HcaEnv { address: Some(address), verbs, ..env }, &RdmaName::Verbs(DEVICE.to_owned())).unwrap();
    End { namespace: Some(home().try_clone().unwrap()), ..End::open(Rng::from_kernel().u64(), open) }
}

fn soft_end() -> End {
    let address: IpAddr = OF_SOFT.parse().unwrap();
    let namespace: OwnedFd = File::open("/run/netns/mixed").unwrap().into();
    setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
    let open = |env| {
        let env = HcaEnv { address: Some(address), link_mtu: Some(1500), udp_port: 4791, ..env };
        Hca::open(env, &RdmaName::SoftUdp).unwrap()
    };
    let end = End::open(Rng::from_kernel().u64(), open);
    setns(home(), CloneFlags::CLONE_NEWNET).unwrap();
    End { namespace: Some(namespace), ..end }
}
