//! The NVMe controllers of the guest. Names of namespaces say nothing about their order: they are found by serial number and identifier.

use super::guest::{entries, in_lab, read, run};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The block device (`nvme0n1`) of namespace `nsid` of the controller with this serial number.
pub fn namespace(serial: &str, nsid: u32) -> String {
    let controller = entries("/sys/class/nvme").into_iter().find(|path| read(path.join("serial")) == serial);
    let controller = controller.unwrap_or_else(|| panic!("no NVMe controller has the serial number {serial}"));
    let name = |path: &PathBuf| path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
    let found = entries(&controller).into_iter().find(|path| {
        let of_block = Path::new("/sys/block").join(name(path)).exists();
        of_block && read(path.join("nsid")) == nsid.to_string()
    });
    name(&found.unwrap_or_else(|| panic!("{} has no namespace {nsid}", controller.display())))
}

fn queue(device: &str, attribute: &str) -> String {
    read(format!("/sys/block/{device}/queue/{attribute}"))
}

#[test]
fn one_controller_has_both_lba_sizes() {
    if !in_lab() {
        return;
    }
    for (nsid, lba) in [(1, "512"), (2, "4096")] {
        let device = namespace("basin0", nsid);
        assert_eq!(queue(&device, "logical_block_size"), lba, "namespace {nsid}");
        assert_eq!(queue(&device, "zoned"), "none");
        assert_eq!(queue(&device, "write_cache"), "write back");
        assert_eq!(queue(&device, "max_hw_sectors_kb"), "512", "the controller's MDTS");
        let generic = Path::new("/dev").join(device.replace("nvme", "ng"));
        assert!(generic.exists(), "{} for passthrough", generic.display());
    }
}

#[test]
fn another_is_zoned() {
    if !in_lab() {
        return;
    }
    let device = namespace("basin1", 1);
    assert_eq!(queue(&device, "zoned"), "host-managed");
    assert_eq!(queue(&device, "chunk_sectors"), (4 * 1024 * 1024 / 512).to_string(), "zones of 4 MiB");
}

#[test]
fn there_is_a_queue_to_poll() {
    if in_lab() {
        assert_eq!(read("/sys/module/nvme/parameters/poll_queues"), "1");
    }
}

#[test]
fn what_fio_writes_by_passthrough_it_reads_back() {
    if !in_lab() {
        return;
    }
    for (nsid, block) in [(1, "512"), (2, "4k")] {
        let device = namespace("basin0", nsid).replace("nvme", "ng");
        let line = format!(
            "fio --name=lab --filename=/dev/{device} --ioengine=io_uring_cmd --cmd_type=nvme --rw=randwrite --bs={block} --iodepth=8 \
             --fixedbufs --size=1M --verify=crc32c --verify_fatal=1 --verify_state_save=0"
        );
        let text = run(&line, Duration::from_secs(60));
        assert!(text.contains("err= 0"), "{text}");
    }
}
