//! RDMA: the libraries that are loaded at run time, the devices of the kernel, their ports and addresses.

use super::{Area, Check, Status, link_name, list, names, read};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::rdma;
use crate::device::rdma::port::{self, CLASS, Gid};
use nix::unistd::{AccessFlags, access};
use std::fs;
use std::path::{Path, PathBuf};

/// Names that stand for Basin's own RDMA and its wires.
const SOFT: [&str; 4] = ["soft", "soft:xdp", "soft:udp", "soft:shm"];
/// Addresses of a port shown at most.
const GIDS_SHOWN: usize = 4;

/// What was named of the kernel's RDMA devices.
#[derive(Debug)]
pub(super) struct Named {
    pub device: String,
    /// As in its directory. Without one it is the first, as when it is opened.
    port: String,
}

/// The verbs device of that name, and its port; `None` for the soft ones.
pub(super) fn named(name: &str) -> Result<Option<Named>> {
    if SOFT.contains(&name) {
        return Ok(None);
    }
    let known = names(CLASS);
    let (device, port) = name.split_once(':').unwrap_or((name, "1"));
    if known.iter().any(|other| other == device) {
        return Ok(Some(Named { device: device.to_owned(), port: port.to_owned() }));
    }
    let what = format!("there is no RDMA device '{name}'");
    let remedy = format!("name one of {}, or a verbs device (found here: {})", SOFT.join(", "), list(&known));
    Err(Error::new(ErrorKind::Usage, what).remedy(remedy))
}

/// Libraries, and the port that was named or every port of all devices.
pub(super) fn checks(only: Option<&Named>) -> Vec<Check> {
    let mut checks = vec![library("libibverbs.so.1", "libibverbs1 ibverbs-providers"), connection_manager()];
    let devices: Vec<String> = match only {
        Some(only) => vec![only.device.clone()],
        None => names(CLASS),
    };
    if devices.is_empty() {
        checks.push(no_device());
    }
    // Asked only where there is something to find.
    let known = if devices.is_empty() { Ok(Vec::new()) } else { rdma::known_to_libibverbs() };
    for device in devices {
        let directory = Path::new(CLASS).join(&device);
        checks.push(provided(access_to(&device, &directory), &known));
        checks.extend(ports(&device, only.map(|only| only.port.as_str()), &directory.join("ports")));
    }
    checks
}

/// A check of the port `only` in the directory of a device's ports, or of each of them.
fn ports(device: &str, only: Option<&str>, directory: &Path) -> Vec<Check> {
    let ports = names(directory);
    match only {
        Some(port) if !ports.iter().any(|other| other == port) => {
            let remedy = format!("its ports are {}: name one as {device}:PORT", list(&ports));
            vec![Check::missing(Area::Rdma, format!("{device} port {port}"), "none", "the device has no such port", remedy)]
        }
        _ => {
            let chosen = ports.iter().filter(|port| only.is_none_or(|only| only == **port));
            chosen.map(|port| check_port(device, port, &directory.join(port))).collect()
        }
    }
}

/// The check of a device, which the library must know besides: it has a part of its own (a provider) for each kind.
fn provided(check: Check, known: &std::result::Result<Vec<String>, i32>) -> Check {
    match known {
        // What cannot be opened is not listed either; a library that is not there has a check of its own.
        _ if check.status != Status::Ok => check,
        Err(libc::EOPNOTSUPP) => check,
        Ok(known) if known.contains(&check.name) => check,
        _ => {
            let cause = "libibverbs does not know it: the provider for its kind is not installed";
            let remedy = "sudo apt-get install ibverbs-providers (elsewhere it is in rdma-core)";
            Check::missing(Area::Rdma, check.name, check.found, cause, remedy)
        }
    }
}

/// Whether the dynamic linker would find `name`; it is looked up in its cache and the usual directories, not loaded.
fn library(name: &str, packages: &str) -> Check {
    let mut needle = name.as_bytes().to_vec();
    needle.push(0);
    let cached = fs::read("/etc/ld.so.cache").is_ok_and(|cache| cache.windows(needle.len()).any(|window| window == needle));
    let search = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let directories =
        search.split(':').filter(|path| !path.is_empty()).chain(["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"]);
    let found = directories.map(|directory| Path::new(directory).join(name)).find(|path| path.exists());
    match (cached, found) {
        (true, _) => Check::ok(Area::Rdma, name, "installed"),
        (false, Some(path)) => Check::ok(Area::Rdma, name, path.display().to_string()),
        (false, None) => Check::missing(
            Area::Rdma,
            name,
            "not installed",
            "it is loaded only for verbs devices; soft RDMA does without",
            format!("sudo apt-get install {packages}"),
        ),
    }
}

/// The kernel's connection manager.
fn connection_manager() -> Check {
    const NODE: &str = "/dev/infiniband/rdma_cm";
    let cause = "without it devices of the kernel make no connections by rdma_cm (rping); all else works";
    match access(Path::new(NODE), AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Check::ok(Area::Rdma, "rdma_cm", NODE),
        Err(nix::errno::Errno::EACCES) => {
            Check::warning(Area::Rdma, "rdma_cm", format!("{NODE} cannot be opened"), cause, format!("sudo chmod 666 {NODE}"))
        }
        Err(_) => Check::warning(Area::Rdma, "rdma_cm", "not loaded", cause, "nothing for soft RDMA; sudo modprobe rdma_ucm"),
    }
}

fn no_device() -> Check {
    let (cause, remedy) = match Path::new("/sys/module/ib_core").exists() || Path::new(CLASS).exists() {
        true => (
            "the kernel's RDMA core is loaded, but no device is registered",
            "nothing for soft RDMA; for the kernel's: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev IFNAME",
        ),
        false => (
            "no RDMA driver is loaded (or this kernel has none: see kernel options)",
            "nothing for soft RDMA; for a NIC load its driver (sudo modprobe mlx5_ib)",
        ),
    };
    Check::missing(Area::Rdma, "devices", "none", cause, remedy)
}

/// Whether this user may open the device.
fn access_to(device: &str, directory: &Path) -> Check {
    let driver = link_name(directory.join("device/driver")).unwrap_or_else(|| "software".into());
    let firmware = read(directory.join("fw_ver"))
        .filter(|version| !version.is_empty())
        .map_or_else(String::new, |version| format!(", firmware {version}"));
    let found = format!("{driver}{firmware}");
    // /sys/class/infiniband_verbs/uverbsN/ibdev holds the device's name.
    let uverbs = names("/sys/class/infiniband_verbs")
        .into_iter()
        .find(|name| read(format!("/sys/class/infiniband_verbs/{name}/ibdev")).as_deref() == Some(device));
    let Some(uverbs) = uverbs else {
        let cause = "it has no verbs descriptor: the module ib_uverbs is not loaded";
        return Check::missing(Area::Rdma, device, found, cause, "sudo modprobe ib_uverbs");
    };
    let node = PathBuf::from("/dev/infiniband").join(uverbs);
    match access(&node, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Check::ok(Area::Rdma, device, found),
        Err(errno) => {
            let cause = format!("{} cannot be opened: {}", node.display(), errno.desc());
            let remedy = format!("sudo chmod 666 {}   (the udev rules of rdma-core do so)", node.display());
            Check::missing(Area::Rdma, device, found, cause, remedy)
        }
    }
}

/// One port: state, speed, addresses.
fn check_port(device: &str, number: &str, directory: &Path) -> Check {
    let file = |name: &str| read(directory.join(name)).unwrap_or_else(|| "?".into());
    // "4: ACTIVE"
    let state = file("state").split_once(": ").map_or_else(|| "?".to_owned(), |(_, state)| state.to_owned());
    let on_infiniband = file("link_layer") == "InfiniBand";
    let (usable, others): (Vec<Gid>, Vec<Gid>) = port::gids(directory).into_iter().partition(|gid| gid.is_usable(on_infiniband));
    // Those that are taken first: on a NIC they may be behind as many of RoCE v1.
    let addresses: Vec<&Gid> = usable.iter().chain(&others).collect();
    let shown: Vec<String> = addresses.iter().take(GIDS_SHOWN).map(|gid| gid.to_string()).collect();
    let more = if addresses.len() > GIDS_SHOWN { format!(" and {} more", addresses.len() - GIDS_SHOWN) } else { String::new() };
    let found = format!("{state}, {}, {}; GIDs: {}{more}", file("link_layer"), file("rate"), list(&shown));
    let name = format!("{device} port {number}");
    if state != "ACTIVE" {
        return Check::missing(
            Area::Rdma,
            name,
            found,
            "the port is not active",
            "look at the cable, the link of its interface, and the subnet manager on InfiniBand",
        );
    }
    if usable.is_empty() {
        let cause = match others.is_empty() {
            true => "the port has no address",
            false => "none of its addresses is one of RoCE v2, and no other is taken unasked",
        };
        let remedy = "give the port's network interface an IP address, or name an address with --gid-index; iWARP (siw, irdma) has none";
        return Check::missing(Area::Rdma, name, found, cause, remedy);
    }
    Check::ok(Area::Rdma, name, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_names_need_no_device() {
        assert!(SOFT.iter().all(|name| named(name).expect("it is known").is_none()));
        assert!(named("mlx9_9").expect_err("no such device").to_string().contains("soft:xdp"));
    }

    #[test]
    fn a_port_is_read_from_sysfs() {
        let root = tempfile::tempdir().expect("a directory");
        let set = |file: &str, value: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, value).expect("a file");
        };
        set("state", "4: ACTIVE\n");
        set("link_layer", "Ethernet\n");
        set("rate", "100 Gb/sec (4X EDR)\n");
        set("gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(check_port("mlx5_0", "1", root.path()).status, Status::Missing);
        set("gids/1", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
        set("gid_attrs/types/1", "IB/RoCE v1\n");
        let old = check_port("mlx5_0", "1", root.path());
        assert!(old.status == Status::Missing && old.cause.as_deref().is_some_and(|cause| cause.contains("RoCE v2")), "{old:?}");
        set("link_layer", "InfiniBand\n");
        assert_eq!(check_port("ib0", "1", root.path()).status, Status::Ok, "InfiniBand has its own");
        set("link_layer", "Ethernet\n");
        set("gids/10", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        set("gid_attrs/types/10", "RoCE v2\n");
        set("gid_attrs/ndevs/10", "eth1\n");
        let check = check_port("mlx5_0", "1", root.path());
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.ends_with("GIDs: 10: 10.77.0.1 RoCE v2 eth1, 1: fe80::5054:ff:fe12:3456 IB/RoCE v1"), "{}", check.found);
        set("state", "1: DOWN\n");
        assert_eq!(check_port("mlx5_0", "1", root.path()).status, Status::Missing);
    }

    #[test]
    fn the_port_that_was_named_is_looked_at_and_no_other() {
        let root = tempfile::tempdir().expect("a directory");
        ["1", "2"].iter().for_each(|port| fs::create_dir(root.path().join(port)).expect("a directory"));
        let told = |only| ports("mlx5_0", only, root.path()).into_iter().map(|check| check.name).collect::<Vec<_>>();
        assert_eq!(told(None), ["mlx5_0 port 1", "mlx5_0 port 2"]);
        assert_eq!(told(Some("2")), ["mlx5_0 port 2"]);
        let none = ports("mlx5_0", Some("3"), root.path());
        assert_eq!((none.len(), none[0].status, &none[0].name[..]), (1, Status::Missing, "mlx5_0 port 3"));
        assert!(none[0].remedy.as_deref().is_some_and(|remedy| remedy.contains("1, 2")), "{none:?}");
    }

    #[test]
    fn a_device_without_a_provider_is_missing() {
        let status = |known| provided(Check::ok(Area::Rdma, "mlx5_0", "mlx5_core"), &known).status;
        assert_eq!(status(Ok(vec!["mlx5_0".into()])), Status::Ok);
        assert_eq!(status(Err(libc::EOPNOTSUPP)), Status::Ok, "what is not there has a check of its own");
        for known in [Ok(vec![]), Ok(vec!["rxe0".into()]), Err(libc::ENOSYS)] {
            assert_eq!(status(known), Status::Missing);
        }
        let closed = provided(Check::missing(Area::Rdma, "mlx5_0", "", "closed", "open it"), &Ok(vec![]));
        assert_eq!(closed.cause.as_deref(), Some("closed"));
    }
}
