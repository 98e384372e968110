//! NVMe: controllers, their generic character devices and limits.

use super::{Area, Check, block, names, read, read_number};
use crate::base::privileges::Privileges;
use crate::device::block::nvme::takes_commands;
use nix::unistd::{AccessFlags, access};
use std::path::{Path, PathBuf};

const GENERIC: &str = "/sys/class/nvme-generic";

/// One check for each namespace that has a character device; one saying why there is none.
pub(super) fn checks(privileges: &Privileges) -> Vec<Check> {
    let namespaces = names(GENERIC);
    if namespaces.is_empty() {
        return vec![none()];
    }
    namespaces.iter().map(|name| namespace(name, takes_commands(privileges))).collect()
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

fn namespace(name: &str, takes_commands: bool) -> Check {
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
    let opened = access(&Path::new("/dev").join(name), AccessFlags::R_OK | AccessFlags::W_OK);
    judge(name, found, opened, block::is_zoned(&block_name), takes_commands)
}

/// What follows from whether the node can be opened, whether it has zones, and whether the kernel takes commands of this process there.
fn judge(name: &str, found: String, opened: nix::Result<()>, is_zoned: bool, takes_commands: bool) -> Check {
    let node = Path::new("/dev").join(name);
    match opened {
        Err(errno) => {
            let remedy = format!("run as root, or: sudo setfacl -m u:$USER:rw {}", node.display());
            Check::missing(Area::Storage, name, found, format!("{} cannot be opened: {}", node.display(), errno.desc()), remedy)
        }
        Ok(()) if !takes_commands => takes_none(name.to_owned(), name, found),
        Ok(()) if is_zoned => {
            Check::warning(Area::Storage, name, found, format!("passthrough runs; {}", block::ZONES), block::ZONES_REMEDY)
        }
        Ok(()) => Check::ok(Area::Storage, name, found),
    }
}

/// The check `name` of the namespace with the character device `generic`, whose commands the kernel does not take.
pub(super) fn takes_none(name: String, generic: &str, found: String) -> Check {
    let cause = "before Linux 6.2 the kernel takes commands of root alone (CAP_SYS_ADMIN), whoever may open the device";
    let block = generic.replacen("ng", "nvme", 1);
    let remedy = format!("run as root, use Linux 6.2 or later, or name /dev/{block}: it goes by the kernel");
    Check::missing(Area::Storage, name, found, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn what_may_be_opened_may_still_take_no_commands() {
        let judged = |opened, is_zoned, takes_commands| judge("ng0n1", String::new(), opened, is_zoned, takes_commands);
        let old = judged(Ok(()), false, false);
        assert!(old.status == Status::Missing && old.remedy.is_some_and(|remedy| remedy.contains("/dev/nvme0n1")));
        assert_eq!(judged(Ok(()), false, true).status, Status::Ok);
        let zoned = judged(Ok(()), true, true);
        assert!(zoned.status == Status::Warning && zoned.cause.is_some_and(|cause| cause.contains("zones")), "passthrough runs");
        assert_eq!(judged(Err(nix::errno::Errno::EACCES), true, true).status, Status::Missing);
    }
}
