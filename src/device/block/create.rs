//! Makes a file of a given size whose blocks are written, not only reserved.
//!
//! A write to a block that was only allocated makes the file system convert its extent: 76k against 125k writes a second here, at
//! almost three times the CPU. So set-up writes zeros once. The file's size grows with what was written, never ahead of it, so
//! that an interrupted set-up leaves a shorter file which the next one continues.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Result, limits};
use crate::device::block::aligned;

/// Bytes per write: large enough that the device's bandwidth is the limit.
const STEP: usize = 4 << 20;

/// Grows `file`, `from` bytes long, to `to` bytes with zeros written, and makes that stable. `to` is whole blocks.
///
/// # Errors
/// The file system is full or failed; the file has its old size again.
pub fn grow(file: &File, path: &Path, from: u64, to: u64) -> Result<()> {
    // What a file has past its last whole block stays; the gap up to the next reads as zeros.
    let start = from.next_multiple_of(u64::from(limits::BLOCK_MAX_BYTES));
    let grown = write_zeros(file, start, to).and_then(|()| file.sync_all());
    grown.map_err(|error| {
        // Cutting back frees the space; should it fail too, the first error is the one to tell.
        let _ = file.set_len(from);
        explain(&error, path, from, to)
    })
}

fn write_zeros(file: &File, from: u64, to: u64) -> std::io::Result<()> {
    if from >= to {
        return Ok(());
    }
    reserve(file, from, to)?;
    let zeros = aligned::zeroed(STEP).map_err(|error| std::io::Error::other(error.to_string()))?;
    let mut at = from;
    while at < to {
        let step = (to - at).min(STEP as u64) as usize;
        match file.write_at(&zeros[..step], at) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(bytes) => at += bytes as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reserves the space at once, contiguous where the file system can, without growing the file: a full file system says so now and
/// not after minutes of writing.
fn reserve(file: &File, from: u64, to: u64) -> std::io::Result<()> {
    // SAFETY: the call takes no pointers; the descriptor is open.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, from as i64, (to - from) as i64) };
    match std::io::Error::last_os_error() {
        _ if rc == 0 => Ok(()),
        // A file system without it: the writes find out.
        error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINTR)) => Ok(()),
        error => Err(error),
    }
}

/// What makes less large.
const SMALLER: &str = "ask for a smaller size: --size of a store, --disk-size of unified-rdma-test";

fn explain(error: &std::io::Error, path: &Path, from: u64, to: u64) -> Error {
    let what = format!("making {} {} large", path.display(), human_bytes(to));
    let explained = Error::io(what, error);
    match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            let room = free_bytes(path).map_or(String::new(), |free| format!(", and {} are free", human_bytes(free)));
            explained
                .with_kind(ErrorKind::Unavailable)
                .remedy(format!("the file system is full: {} more are needed{room}; free some, or {SMALLER}", human_bytes(to - from)))
        }
        Some(libc::EFBIG) => explained.remedy(format!("larger than the file system or ulimit -f allows: {SMALLER}")),
        Some(libc::EDQUOT) => explained.remedy(format!("the user's disk quota is used up: {SMALLER}")),
        _ => explained,
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))).ok()?;
    Some(stat.blocks_available() * stat.fragment_size())
}
