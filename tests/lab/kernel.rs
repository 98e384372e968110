//! The guest is what the lab says it is.

use super::guest::{in_lab, read};

#[test]
fn the_kernel_is_the_lab_s() {
    if !in_lab() {
        return;
    }
    let release = read("/proc/sys/kernel/osrelease");
    assert_eq!(release, std::env::var("BASIN_LAB_RELEASE").expect("the lab names its kernel"));
    let config = read(format!("/boot/config-{release}"));
    assert!(config.lines().any(|line| line == "CONFIG_RDMA_RXE=m"), "the configuration is that of a kernel with rxe");
}

#[test]
fn the_root_may_be_written_without_reaching_the_host() {
    if !in_lab() {
        return;
    }
    let mounts = read("/proc/self/mounts");
    let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).expect("there is a root");
    assert!(root.starts_with("overlay "), "{root}");
    std::fs::write("/etc/basin-lab", "in memory").expect("the upper layer can be written");
    let project = mounts.lines().find(|line| line.split(' ').nth(1) == Some(env!("CARGO_MANIFEST_DIR"))).expect("the project is mounted");
    assert!(project.contains(" 9p rw"), "{project}");
}

#[test]
fn hugepages_and_locked_memory_are_there() {
    if !in_lab() {
        return;
    }
    let pages: u32 = read("/proc/sys/vm/nr_hugepages").parse().expect("a number");
    assert!(pages >= 512, "{pages} hugepages, too few for a region of 1 GiB");
    let limits = read("/proc/self/limits");
    let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).expect("the kernel tells this limit");
    assert!(locked.contains("unlimited"), "{locked}");
}
