//! Hugepages: what is reserved, what is free, and on which node.

use super::{Area, Check, Status, names, read_number};
use crate::base::units::human_bytes;
use std::path::{Path, PathBuf};

/// Every size of hugepage Basin uses, with the boot parameter that reserves it.
const SIZES: [(u64, &str); 2] = [(2 << 20, "hugepagesz=2M hugepages=512"), (1 << 30, "hugepagesz=1G hugepages=4")];

/// One check for each size, and one for each node of a machine that has several.
pub(super) fn checks() -> Vec<Check> {
    let mut checks: Vec<Check> = SIZES.into_iter().map(|(bytes, boot)| size(Path::new("/sys/kernel/mm"), bytes, boot)).collect();
    let nodes: Vec<String> =
        names("/sys/devices/system/node").into_iter().filter(|name| name.strip_prefix("node").is_some_and(is_number)).collect();
    if nodes.len() > 1 {
        checks.extend(nodes.iter().map(|node| of_node(node)));
    }
    checks
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn directory(parent: &Path, bytes: u64) -> PathBuf {
    parent.join(format!("hugepages/hugepages-{}kB", bytes >> 10))
}

fn size(parent: &Path, bytes: u64, boot: &str) -> Check {
    let name = format!("hugepages of {}", human_bytes(bytes));
    let directory = directory(parent, bytes);
    let number = |file: &str| read_number(directory.join(file)).unwrap_or(0);
    if !directory.exists() {
        let cause = "this processor or kernel has no pages of this size";
        return Check::missing(Area::Memory, name, "not supported", cause, "nothing: smaller pages are used");
    }
    // What somebody has mapped and not touched yet is still counted as free.
    let free = number("free_hugepages").saturating_sub(number("resv_hugepages"));
    let (total, overcommit) = (number("nr_hugepages"), number("nr_overcommit_hugepages"));
    let found = format!("{total} reserved, {free} free ({})", human_bytes(free * bytes));
    let reserve = if bytes == 2 << 20 {
        format!("echo 512 | sudo tee {}/nr_hugepages   (1 GiB; at every start: boot with {boot})", directory.display())
    } else {
        format!("boot with {boot}: so large pages are rarely found later")
    };
    match (total + overcommit, free + overcommit) {
        (0, _) => {
            Check::missing(Area::Memory, name, found, "none are reserved: regions use smaller pages, at more cost in TLB misses", reserve)
        }
        (_, 0) => {
            Check::warning(Area::Memory, name, found, "all of them are in use", format!("stop their user, or reserve more: {reserve}"))
        }
        _ => Check::ok(Area::Memory, name, found),
    }
}

/// What is free on `node`; a region is bound to the node of its devices.
fn of_node(node: &str) -> Check {
    let parent = Path::new("/sys/devices/system/node").join(node);
    let free: Vec<(u64, u64)> =
        SIZES.iter().map(|(bytes, _)| (*bytes, read_number(directory(&parent, *bytes).join("free_hugepages")).unwrap_or(0))).collect();
    let found = free.iter().map(|(bytes, free)| format!("{free} free of {}", human_bytes(*bytes))).collect::<Vec<_>>().join(", ");
    let mut check = Check::ok(Area::Memory, format!("hugepages on {node}"), found);
    if free.iter().all(|(_, free)| *free == 0) {
        check.status = Status::Warning;
        check.cause = Some("a region for devices of this node would use plain pages".into());
        check.remedy = Some(format!("echo 512 | sudo tee {}/nr_hugepages", directory(&parent, 2 << 20).display()));
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reserved_used_up_and_absent_are_told_apart() {
        let root = tempfile::tempdir().expect("a directory");
        let status = || size(root.path(), 2 << 20, "hugepagesz=2M").status;
        assert_eq!(status(), Status::Missing);
        let pages = directory(root.path(), 2 << 20);
        fs::create_dir_all(&pages).expect("a directory");
        let set = |file: &str, value: &str| fs::write(pages.join(file), value).expect("a file");
        set("nr_hugepages", "0\n");
        assert!(size(root.path(), 2 << 20, "").remedy.expect("one").contains("nr_hugepages"));
        set("nr_hugepages", "8\n");
        assert_eq!(status(), Status::Warning);
        set("free_hugepages", "3\n");
        assert_eq!(status(), Status::Ok);
        assert_eq!(size(root.path(), 2 << 20, "").found, "8 reserved, 3 free (6 MiB)");
    }
}
