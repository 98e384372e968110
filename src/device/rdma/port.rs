//! The kernel's RDMA devices, their ports and addresses, as sysfs shows them; whether or not a library could open them.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// Where the kernel lists its RDMA devices.
pub const CLASS: &str = "/sys/class/infiniband";

/// The last address of a port that a queue pair can be told: `sgid_index` is a byte.
pub const INDEX_MAX: u32 = u8::MAX as u32;

/// What an address of a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// RoCE v2: UDP packets.
    RoceV2,
    /// InfiniBand, or RoCE v1: Ethernet packets of their own type.
    IbOrRoceV1,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    /// The address; IPv4 is mapped into IPv6.
    pub address: Ipv6Addr,
    /// What it is for; `None` when the kernel does not say.
    pub kind: Option<GidKind>,
    /// The network interface it belongs to; empty on InfiniBand.
    pub interface: String,
}

impl Gid {
    /// Whether it is taken where none was named: on Ethernet those of RoCE v2 alone.
    pub fn is_usable(&self, on_infiniband: bool) -> bool {
        self.index <= INDEX_MAX && (on_infiniband || self.kind == Some(GidKind::RoceV2))
    }
}

/// The names of the kernel's RDMA devices, sorted.
pub fn devices() -> Vec<String> {
    let entries = std::fs::read_dir(CLASS).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The directory of a port.
pub fn directory(device: &str, port: u8) -> PathBuf {
    Path::new(CLASS).join(device).join("ports").join(port.to_string())
}

/// The addresses of a port, given its directory, by index. Unused places are left out.
pub fn gids(port: &Path) -> Vec<Gid> {
    let names = std::fs::read_dir(port.join("gids")).into_iter().flatten().flatten();
    let mut indexes: Vec<u32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    indexes.sort_unstable();
    indexes.into_iter().filter_map(|index| gid(port, index)).collect()
}

fn gid(port: &Path, index: u32) -> Option<Gid> {
    let read = |directory: &str| std::fs::read_to_string(port.join(directory).join(index.to_string())).ok();
    let address: Ipv6Addr = read("gids")?.trim().parse().ok()?;
    // An unused place is all zeros, or a prefix with a zero interface identifier.
    if address.segments()[4..] == [0; 4] {
        return None;
    }
    let kind = match read("gid_attrs/types").as_deref().map(str::trim) {
        Some("RoCE v2") => Some(GidKind::RoceV2),
        Some("IB/RoCE v1") => Some(GidKind::IbOrRoceV1),
        _ => None,
    };
    let interface = read("gid_attrs/ndevs").map_or_else(String::new, |name| name.trim().to_owned());
    Some(Gid { index, address, kind, interface })
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.index)?;
        match self.address.to_ipv4_mapped() {
            Some(v4) => write!(f, "{v4}")?,
            None => write!(f, "{}", self.address)?,
        }
        f.write_str(match self.kind {
            Some(GidKind::RoceV2) => " RoCE v2",
            Some(GidKind::IbOrRoceV1) => " IB/RoCE v1",
            None => " type unknown",
        })?;
        if self.interface.is_empty() { Ok(()) } else { write!(f, " {}", self.interface) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let set = |file: &str, value: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        };
        set("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000\n");
        set("gids/10", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        set("gid_attrs/types/10", "RoCE v2\n");
        set("gid_attrs/ndevs/10", "eth1\n");
        set("gids/2", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
        let found = gids(root.path());
        assert_eq!(found.iter().map(|gid| gid.index).collect::<Vec<_>>(), [2, 10], "by number, without the unused");
        assert_eq!(found[0].kind, None);
        assert_eq!(found[1].to_string(), "10: 10.77.0.1 RoCE v2 eth1");
        assert_eq!(found[1].kind, Some(GidKind::RoceV2));
    }
}
