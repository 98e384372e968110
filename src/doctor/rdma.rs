//! RDMA: the libraries that are loaded at run time, the devices of the kernel, their ports and addresses.

use super::{Area, Check, link_name, list, names, read};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::rdma::port::{self, CLASS};
use nix::unistd::{AccessFlags, access};
use std::fs;
use std::path::{Path, PathBuf};

/// Names that stand for Basin's own RDMA and its wires.
const SOFT: [&str; 4] = ["soft", "soft:xdp", "soft:udp", "soft:shm"];
/// Addresses of a port shown at most.
const GIDS_SHOWN: usize = 4;

/// The verbs device of that name; `None` for the soft ones.
pub(super) fn named(name: &str) -> Result<Option<String>> {
    if SOFT.contains(&name) {
        return Ok(None);
    }
    let known = names(CLASS);
    // A port of a device is checked with its device.
    let device = name.split_once(':').map_or(name, |(device, _)| device);
    if known.iter().any(|other| other == device) {
        return Ok(Some(device.to_owned()));
    }
    let what = format!("there is no RDMA device '{name}'");
    let remedy = format!("name one of {}, or a verbs device (found here: {})", SOFT.join(", "), list(&known));
    Err(Error::new(ErrorKind::Usage, what).remedy(remedy))
}

/// Libraries, and every port of `only` or of all devices.
pub(super) fn checks(only: Option<&str>) -> Vec<Check> {
    let mut checks = vec![library("libibverbs.so.1", "libibverbs1 ibverbs-providers"), connection_manager()];
    let devices: Vec<String> = match only {
        Some(name) => vec![name.to_owned()],
        None => names(CLASS),
    };
    if devices.is_empty() {
        checks.push(no_device());
    }
    for device in devices {
        let directory = Path::new(CLASS).join(&device);
        checks.push(access_to(&device, &directory));
        checks.extend(names(directory.join("ports")).iter().map(|port| check_port(&device, port, &directory.join("ports").join(port))));
    }
    checks
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
    let addresses = port::gids(directory);
    let shown: Vec<String> = addresses.iter().take(GIDS_SHOWN).map(|gid| gid.to_string()).collect();
    let more = if addresses.len() > GIDS_SHOWN { format!(" and {} more", addresses.len() - GIDS_SHOWN) } else { String::new() };
    let found = format!("{state}, {}, {}; GIDs: {}{more}", file("link_layer"), file("rate"), list(&shown));
    let name = format!("{device} port {number}");
    if state != "ACTIVE" {
        return Check::warning(
            Area::Rdma,
            name,
            found,
            "the port is not active",
            "look at the cable, the link of its interface, and the subnet manager on InfiniBand",
        );
    }
    if addresses.is_empty() {
        return Check::warning(Area::Rdma, name, found, "the port has no address", "give the port's network interface an IP address");
    }
    Check::ok(Area::Rdma, name, found)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
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
        assert_eq!(check_port("mlx5_0", "1", root.path()).status, Status::Warning);
        set("gids/10", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        set("gid_attrs/types/10", "RoCE v2\n");
        set("gid_attrs/ndevs/10", "eth1\n");
        let check = check_port("mlx5_0", "1", root.path());
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.ends_with("GIDs: 10: 10.77.0.1 RoCE v2 eth1"), "{}", check.found);
        set("state", "1: DOWN\n");
        assert_eq!(check_port("mlx5_0", "1", root.path()).status, Status::Warning);
    }
}
