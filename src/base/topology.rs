//! Where cores, memory and devices sit: read from sysfs.

use std::fs;
use std::path::Path;

/// The NUMA node of a device in sysfs (`/sys/class/net/eth0`, `/sys/block/nvme0n1`), or `None` on a machine without NUMA or
/// for a virtual device.
pub fn device_node(sysfs: &Path) -> Option<u32> {
    ["device/numa_node", "device/device/numa_node"]
        .iter()
        .find_map(|file| fs::read_to_string(sysfs.join(file)).ok())
        .and_then(|text| text.trim().parse::<i32>().ok())
        // The kernel writes -1 where it does not know.
        .and_then(|node| u32::try_from(node).ok())
}

/// The NUMA node a processor belongs to; node 0 where the kernel shows none.
pub fn cpu_node(cpu: usize) -> u32 {
    fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}"))
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .unwrap_or(0)
}

/// The number of NUMA nodes that have memory, at least 1.
pub fn nodes() -> usize {
    fs::read_to_string("/sys/devices/system/node/has_memory").map_or(1, |text| parse_list(&text).len().max(1))
}

/// Reads the kernel's list form, `0-3,8`.
pub fn parse_list(text: &str) -> Vec<usize> {
    text.trim()
        .split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((first, last)) => Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?),
            None => part.parse::<usize>().ok().map(|only| only..=only),
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernel_lists() {
        assert_eq!(super::parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(super::parse_list("\n"), [] as [usize; 0]);
    }
}
