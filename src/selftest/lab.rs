//! The devices of a guest of the VM lab, all of which may be overwritten: docs/LAB.md.

use std::fs;
use std::path::{Path, PathBuf};

use super::Devices;

impl Devices {
    /// What the lab's guest has, if this is one.
    pub fn of_the_lab() -> Option<Devices> {
        std::env::var_os("BASIN_LAB")?;
        let exists = |class: &str, name: &str| Path::new("/sys/class").join(class).join(name).exists().then(|| name.to_owned());
        let interface = exists("net", "eth0");
        // The conventional ones first: tests of those take the first two.
        let disks = [namespaces("basin0"), namespaces("basin1")].concat();
        Some(Devices { interface, rdma: exists("infiniband", "rxe0"), disks, overwrite: true })
    }
}

/// The namespaces of the controller with this serial number, by identifier: their names say nothing about their order.
fn namespaces(serial: &str) -> Vec<PathBuf> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let of_serial = entries(Path::new("/sys/class/nvme")).into_iter().filter(|path| read(path.join("serial")) == serial);
    let mut found: Vec<(u32, PathBuf)> = of_serial
        .flat_map(|controller| entries(&controller))
        .filter_map(|path| {
            let device = Path::new("/dev").join(path.file_name()?);
            Some((read(path.join("nsid")).parse().ok()?, device))
        })
        .filter(|(_, device)| device.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvme")))
        .collect();
    found.sort();
    found.into_iter().map(|(_, device)| device).collect()
}
