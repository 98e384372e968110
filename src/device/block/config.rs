//! What disk to open, and how.

use std::path::PathBuf;

use crate::base::Nanos;

/// How long an opening waits for a dead predecessor, whose writes go on landing for a while after its end (measured: 56–67 ms
/// after `waitpid`; its lock on the descriptor goes with the last of them).
pub const LOCK_WAIT: Nanos = Nanos::from_secs(2);

/// Which backend to use for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Passthrough for an NVMe namespace where the machine has its generic device, the core's io_uring for all else.
    #[default]
    Auto,
    /// The core's io_uring, also for an NVMe block device.
    Kernel,
    /// NVMe passthrough or an error.
    Passthrough,
}

/// What disk to open.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// A regular file, a block device or an NVMe generic device.
    pub path: PathBuf,
    /// For a regular file: its size at least. A missing file is created with it, a shorter one grown, all with zeros written.
    pub size_bytes: Option<u64>,
    /// The path once more, when what it carries may be destroyed.
    pub force_device: Option<String>,
    /// It is opened as a store of objects: otherwise a disk with one is refused, as others' data is.
    pub as_store: bool,
    /// Refuse writes; shares the lock with other readers and skips the guard.
    pub read_only: bool,
    /// Which backend.
    pub access: Access,
    /// Passthrough only: poll the device for completions instead of taking interrupts (`IORING_SETUP_IOPOLL`).
    pub busy_poll: bool,
    /// Passthrough only: entries of its submission queue.
    pub queue_entries: u32,
    /// Passthrough only: how long the device has for a command before the driver aborts it, and resets the controller if that does
    /// not help; whole milliseconds. `None`: as long as the driver gives it (30 s, `nvme_core.io_timeout`).
    pub command_timeout: Option<Nanos>,
    /// How long to wait for the lock.
    pub lock_wait: Nanos,
}

impl DiskConfig {
    /// The disk at `path`, as it is.
    pub fn new(path: impl Into<PathBuf>) -> DiskConfig {
        DiskConfig {
            path: path.into(),
            size_bytes: None,
            force_device: None,
            as_store: false,
            read_only: false,
            access: Access::Auto,
            busy_poll: false,
            queue_entries: 256,
            command_timeout: None,
            lock_wait: LOCK_WAIT,
        }
    }

    /// The disk at `path`; a regular file is created or grown to `size_bytes`.
    pub fn sized(path: impl Into<PathBuf>, size_bytes: u64) -> DiskConfig {
        DiskConfig { size_bytes: Some(size_bytes), ..DiskConfig::new(path) }
    }
}
