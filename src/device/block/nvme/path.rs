//! Finds the generic device of a namespace, and the namespace of a generic device, in sysfs.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::identify::kernel_at_least;
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::base::privileges::{Capability, Privileges};
use crate::device::block::guard;

/// A namespace under both its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacePath {
    /// `/dev/ng0n1`.
    pub generic: PathBuf,
    /// `/dev/nvme0n1`; missing where the kernel has no block device for the namespace's format.
    pub block: Option<PathBuf>,
    /// The block device's directory in sysfs.
    pub sys: Option<PathBuf>,
}

/// Whether the kernel takes commands of a process that holds this: before Linux 6.2 those of CAP_SYS_ADMIN alone
/// (drivers/nvme/host/ioctl.c).
pub fn takes_commands(held: &Privileges) -> bool {
    held.has(Capability::SysAdmin) || kernel_at_least(6, 2)
}

impl NamespacePath {
    /// Whether the generic device is there, may be opened for reading and writing by this user, and takes commands of this process.
    pub fn usable(&self) -> bool {
        takes_commands(&Privileges::of_this_process()) && fs::OpenOptions::new().read(true).write(true).open(&self.generic).is_ok()
    }
}

/// The namespace that `path` names, by its block or its generic device; `None` for anything else, a partition included.
pub fn find(sys: &Path, _path: &Path, meta: &Metadata) -> Option<NamespacePath> {
    let kind = meta.file_type();
    if kind.is_block_device() {
        by_number(sys, "block", meta.rdev())
    } else if kind.is_char_device() {
        by_number(sys, "char", meta.rdev())
    } else {
        None
    }
}

fn by_number(sys: &Path, class: &str, dev: u64) -> Option<NamespacePath> {
    let link = sys.join(format!("dev/{class}/{}:{}", libc::major(dev), libc::minor(dev)));
    let dir = fs::canonicalize(link).ok()?;
    let name = dir.file_name()?.to_str()?;
    // Both are children of the controller, or of the subsystem where the kernel joins paths; a partition is a child of neither.
    let number = name.strip_prefix(if class == "block" { "nvme" } else { "ng" })?;
    if dir.join("partition").exists() {
        return None;
    }
    let sibling = |prefix: &str| dir.parent().map(|parent| parent.join(format!("{prefix}{number}"))).filter(|path| path.exists());
    sibling("ng").map(|_| {
        let block = sibling("nvme");
        NamespacePath {
            generic: PathBuf::from(format!("/dev/ng{number}")),
            sys: block.clone(),
            block: block.map(|_| PathBuf::from(format!("/dev/nvme{number}"))),
        }
    })
}

/// What to say when passthrough was asked for and there is none.
pub fn none_found(path: &Path) -> Error {
    let what = format!("{} is no NVMe namespace with a generic device (/dev/ngXnY)", path.display());
    Error::new(ErrorKind::Unavailable, what).remedy(format!("the block devices here are: {}; a file path works too", guard::devices()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with a namespace under a controller and under a subsystem, and a partition.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let link = |class: &str, number: &str, to: &str| {
            let target = root.path().join("devices").join(to);
            fs::create_dir_all(&target).unwrap();
            let dir = root.path().join("dev").join(class);
            fs::create_dir_all(&dir).unwrap();
            std::os::unix::fs::symlink(target, dir.join(number)).unwrap();
        };
        link("block", "259:0", "pci/nvme/nvme0/nvme0n1");
        link("char", "242:0", "pci/nvme/nvme0/ng0n1");
        link("block", "259:1", "pci/nvme/nvme0/nvme0n1/nvme0n1p1");
        fs::write(root.path().join("devices/pci/nvme/nvme0/nvme0n1/nvme0n1p1/partition"), "1").unwrap();
        link("char", "242:5", "virtual/nvme-subsystem/nvme-subsys1/ng1n2");
        link("block", "254:0", "virtio/vda");
        root
    }

    #[test]
    fn block_and_generic_names_lead_to_one_another() {
        let sys = sysfs();
        let found = by_number(sys.path(), "block", libc::makedev(259, 0)).unwrap();
        assert_eq!(found.generic, Path::new("/dev/ng0n1"));
        assert_eq!(found.block.as_deref(), Some(Path::new("/dev/nvme0n1")));
        assert_eq!(by_number(sys.path(), "char", libc::makedev(242, 0)), Some(found));
        // A namespace without a block device, under a subsystem.
        let lone = by_number(sys.path(), "char", libc::makedev(242, 5)).unwrap();
        assert_eq!((lone.generic.as_path(), lone.block), (Path::new("/dev/ng1n2"), None));
    }

    #[test]
    fn partitions_and_other_devices_have_no_passthrough() {
        let sys = sysfs();
        assert_eq!(by_number(sys.path(), "block", libc::makedev(259, 1)), None);
        assert_eq!(by_number(sys.path(), "block", libc::makedev(254, 0)), None);
        assert_eq!(by_number(sys.path(), "block", libc::makedev(1, 1)), None);
    }
}
