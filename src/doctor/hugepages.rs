//! Hugepages: what is reserved, what is free, and on which node.

use super::{Area, Check, Status, names, read_number};
use crate::base::units::human_bytes;
use std::path::{Path, PathBuf};

/// The hugepages that regions are on. (Those of 1 GiB are for who builds on the library and asks for them.)
const PAGE_BYTES: u64 = 2 << 20;
/// Of unified-rdma-test's region, 64 MiB. A region is on pages of one kind, all of it.
const PAGES_WANTED: u64 = 32;

/// The machine's, and those of each node of a machine that has several.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![of_machine(Path::new("/sys/kernel/mm"))];
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

fn directory(parent: &Path) -> PathBuf {
    parent.join(format!("hugepages/hugepages-{}kB", PAGE_BYTES >> 10))
}

fn of_machine(parent: &Path) -> Check {
    let name = format!("hugepages of {}", human_bytes(PAGE_BYTES));
    let directory = directory(parent);
    let number = |file: &str| read_number(directory.join(file)).unwrap_or(0);
    if !directory.exists() {
        let cause = "this processor or kernel has no pages of this size";
        return Check::missing(Area::Memory, name, "not supported", cause, "nothing: smaller pages are used");
    }
    // What somebody has mapped and not touched yet is still counted as free.
    let free = number("free_hugepages").saturating_sub(number("resv_hugepages"));
    let (total, overcommit) = (number("nr_hugepages"), number("nr_overcommit_hugepages"));
    let found = format!("{total} reserved, {free} free ({})", human_bytes(free * PAGE_BYTES));
    let reserve = format!(
        "echo 512 | sudo tee {}/nr_hugepages   (1 GiB; at every start: boot with hugepagesz=2M hugepages=512)",
        directory.display()
    );
    match (total + overcommit, free + overcommit) {
        (0, _) => {
            Check::missing(Area::Memory, name, found, "none are reserved: regions use smaller pages, at more cost in TLB misses", reserve)
        }
        (_, 0) => {
            Check::warning(Area::Memory, name, found, "all of them are in use", format!("stop their user, or reserve more: {reserve}"))
        }
        (_, free) if free < PAGES_WANTED => {
            let cause = "a region of 64 MiB takes 32 of them; where there are fewer all of it is on plain pages";
            Check::warning(Area::Memory, name, found, cause, reserve)
        }
        _ => Check::ok(Area::Memory, name, found),
    }
}

/// What is free on `node`; a region is bound to the node of its devices.
fn of_node(node: &str) -> Check {
    let parent = Path::new("/sys/devices/system/node").join(node);
    let directory = directory(&parent);
    let free = read_number(directory.join("free_hugepages")).unwrap_or(0);
    let mut check = Check::ok(Area::Memory, format!("hugepages on {node}"), format!("{free} free of {}", human_bytes(PAGE_BYTES)));
    if free < PAGES_WANTED {
        check.status = Status::Warning;
        check.cause = Some("a region for devices of this node would use plain pages".into());
        check.remedy = Some(format!("echo 512 | sudo tee {}/nr_hugepages", directory.display()));
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
        let status = || of_machine(root.path()).status;
        assert_eq!(status(), Status::Missing);
        let pages = directory(root.path());
        fs::create_dir_all(&pages).expect("a directory");
        let set = |file: &str, value: &str| fs::write(pages.join(file), value).expect("a file");
        set("nr_hugepages", "0\n");
        assert!(of_machine(root.path()).remedy.expect("one").contains("nr_hugepages"));
        set("nr_hugepages", "64\n");
        assert_eq!(status(), Status::Warning);
        // A region is on pages of one kind, all of it.
        set("free_hugepages", "31\n");
        assert!(of_machine(root.path()).cause.is_some_and(|cause| cause.contains("64 MiB")));
        set("free_hugepages", "32\n");
        assert_eq!(status(), Status::Ok);
        assert_eq!(of_machine(root.path()).found, "64 reserved, 32 free (64 MiB)");
        assert!(checks().iter().all(|check| !check.name.contains("1 GiB")), "no program asks for those");
    }
}
