//! What sysfs and procfs say about a block device: limits, relatives, users.

use std::fs;
use std::path::{Path, PathBuf};

/// A block device in sysfs.
#[derive(Clone, Debug)]
pub struct BlockSys {
    dir: PathBuf,
}

impl BlockSys {
    /// The device with this number, under a sysfs root (`/sys`, or a copy of it in a test).
    pub fn new(sys: &Path, dev: u64) -> Option<BlockSys> {
        let link = sys.join(format!("dev/block/{}:{}", libc::major(dev), libc::minor(dev)));
        fs::canonicalize(link).ok().map(|dir| BlockSys { dir })
    }

    /// `sda1`, `nvme0n1`.
    pub fn name(&self) -> String {
        self.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The whole disk this is a partition of, or itself.
    pub fn whole(&self) -> BlockSys {
        match self.dir.parent() {
            Some(parent) if self.dir.join("partition").exists() => BlockSys { dir: parent.to_path_buf() },
            _ => self.clone(),
        }
    }

    /// The partitions, if it is a whole disk.
    pub fn partitions(&self) -> Vec<BlockSys> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut found: Vec<_> =
            entries.map(|entry| entry.path()).filter(|path| path.join("partition").exists()).map(|dir| BlockSys { dir }).collect();
        found.sort_by_key(BlockSys::name);
        found
    }

    /// Devices built on it: device mapper, md, bcache.
    pub fn holders(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join("holders")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// `major:minor`.
    pub fn number(&self) -> Option<(u32, u32)> {
        let text = fs::read_to_string(self.dir.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// A number out of the queue's directory of the whole disk.
    pub fn queue(&self, file: &str) -> Option<u64> {
        self.queue_text(file)?.parse().ok()
    }

    /// A text out of the queue's directory of the whole disk.
    pub fn queue_text(&self, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.whole().dir.join("queue").join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The model, where the device tells it.
    pub fn model(&self) -> Option<String> {
        let text = fs::read_to_string(self.whole().dir.join("device/model")).ok()?;
        Some(text.trim().to_owned()).filter(|model| !model.is_empty())
    }
}

/// Block devices of the machine with their sizes, for messages: `vda (256 GiB), nvme0n1 (1.8 TiB)`. Empty ones are left out.
pub fn list(sys: &Path) -> String {
    let entries = fs::read_dir(sys.join("block")).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let sectors: u64 = fs::read_to_string(entry.path().join("size")).ok()?.trim().parse().ok()?;
            let size = crate::base::units::human_bytes(sectors * 512);
            (sectors > 0).then(|| format!("/dev/{} ({size})", entry.file_name().to_string_lossy()))
        })
        .collect();
    found.sort();
    if found.is_empty() { "none".into() } else { found.join(", ") }
}
