//! NVMe: controllers, their generic character devices and limits.

use super::{Area, Check, block, names, read, read_number};
use nix::unistd::{AccessFlags, access};
use std::path::{Path, PathBuf};

const GENERIC: &str = "/sys/class/nvme-generic";

/// One check for each namespace that has a character device; one saying why there is none.
pub(super) fn checks() -> Vec<Check> {
    let namespaces = names(GENERIC);
    if namespaces.is_empty() {
        return vec![none()];
    }
    namespaces.iter().map(|name| namespace(name)).collect()
}

fn none() -> Check {
    let controllers = names("/sys/class/nvme");
    let (found, cause, remedy) = if !controllers.is_empty() {
        ("controllers without character devices", "this kernel is older than 5.13", "use Linux 6.1 or later")
    } else if Path::new("/sys/module/nvme").exists() {
        ("none", "the driver is loaded, but there is no device", "nothing: any block device or file runs, by O_DIRECT")
    } else {
        (
            "none",
            "the driver is not loaded: there is no such device, or see kernel options",
            "nothing: any block device or file runs, by O_DIRECT",
        )
    };
    Check::missing(Area::Storage, "NVMe passthrough", found, cause, remedy)
}

fn namespace(name: &str) -> Check {
    let controller = PathBuf::from(GENERIC).join(name).join("device");
    let file = |file: &str| read(controller.join(file)).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let block_name = name.replacen("ng", "nvme", 1);
    let mut words: Vec<String> = [file("model"), file("transport"), Some(block::limits(&block_name))].into_iter().flatten().collect();
    words.push(match read_number("/sys/module/nvme/parameters/poll_queues") {
        Some(0) => "no poll queues".into(),
        Some(count) => format!("{count} poll queues"),
        None => "poll queues unknown".into(),
    });
    let found = words.join(", ");
    if let Some(state) = file("state").filter(|state| state != "live") {
        return Check::missing(Area::Storage, name, found, format!("the controller is {state}"), "look at: sudo dmesg | grep nvme");
    }
    let node = Path::new("/dev").join(name);
    match access(&node, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Check::ok(Area::Storage, name, found),
        Err(errno) => {
            let remedy = format!("run as root, or: sudo setfacl -m u:$USER:rw {}", node.display());
            Check::missing(Area::Storage, name, found, format!("{} cannot be opened: {}", node.display(), errno.desc()), remedy)
        }
    }
}
