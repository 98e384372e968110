//! The exclusive lock: `flock` on the descriptor that does the I/O.
//!
//! A lock file beside the disk would be free as soon as its holder is dead, while the holder's writes go on landing for tens of
//! milliseconds. The lock on the I/O descriptor itself stays until the last of them is done. So an opening waits a while, and
//! only then says who holds it.

use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};

const RETRY: Duration = Duration::from_millis(5);

/// Tries `attempt` until it stops saying busy (`None`), for `wait` at least. The tries are counted: time in which this process did not
/// run is none that the other one had.
pub fn wait_until<T>(wait: Nanos, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let pauses = u128::from(wait.0).div_ceil(RETRY.as_nanos());
    for _ in 0..pauses {
        if let Some(done) = attempt() {
            return Some(done);
        }
        std::thread::sleep(RETRY);
    }
    attempt()
}

/// Locks `file`, shared for a reader, exclusive otherwise, waiting at most `wait`.
///
/// # Errors
/// `Busy`, with the holder where the kernel tells it.
pub fn lock(file: &File, path: &Path, read_only: bool, wait: Nanos) -> Result<()> {
    let locked = wait_until(wait, || match if read_only { file.try_lock_shared() } else { file.try_lock() } {
        Ok(()) => Some(Ok(())),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => Some(Err(Error::io(format!("locking {}", path.display()), &error))),
    });
    locked.unwrap_or_else(|| Err(busy(file, path)))
}

fn busy(file: &File, path: &Path) -> Error {
    let by = match holder_of(file) {
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            match name.trim() {
                "" => format!("process {pid}, which has ended but whose I/O has not"),
                name => format!("process {pid} ({name})"),
            }
        }
        None => "another process".into(),
    };
    Error::new(ErrorKind::Busy, format!("{} is in use by {by}", path.display()))
        .remedy("stop it, or give another path; a process just killed needs a moment until its last writes have landed")
}

/// The process that holds a lock on `file`.
///
/// A read of `/proc/locks` tells what is true at one moment, but no more than a page of it, and the next one goes on by counting: a
/// lock that ended between the two hides another. So a read asks for all there may be, and what is not found is looked for again.
fn holder_of(file: &File) -> Option<u32> {
    const TRIES: usize = 8;
    let meta = file.metadata().ok()?;
    (0..TRIES).find_map(|_| {
        let mut locks = String::with_capacity(1 << 16);
        File::open("/proc/locks").ok()?.read_to_string(&mut locks).ok()?;
        holder(&locks, meta.dev(), meta.ino())
    })
}

/// The process that holds a lock on a file, out of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF`.
fn holder(locks: &str, dev: u64, ino: u64) -> Option<u32> {
    let wanted = format!("{:02x}:{:02x}:{ino}", libc::major(dev), libc::minor(dev));
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().filter(|&field| field != "->");
        let (_number, kind, _advisory, _mode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let (pid, file) = (fields.next()?, fields.next()?);
        // 0 or -1: the holder is in a PID namespace we do not see.
        (kind == "FLOCK" && file == wanted).then(|| pid.parse().ok().filter(|&pid| pid > 0))?
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn proc_locks_tells_the_holder() {
        let text = "1: POSIX  ADVISORY  WRITE 12 fe:00:131 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 9 fe:00:131 0 EOF\n";
        assert_eq!(holder(text, libc::makedev(0xfe, 0), 131), Some(4711));
        assert_eq!(holder(text, libc::makedev(0xfe, 1), 131), None);
        assert_eq!(holder(text, libc::makedev(0xfe, 0), 13), None);
    }

    #[test]
    fn the_holder_is_told_while_other_locks_come_and_go() {
        let file = tempfile::tempfile().unwrap();
        lock(&file, Path::new("file"), false, Nanos::ZERO).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let others: Vec<File> = (0..20).map(|_| tempfile::tempfile().unwrap()).collect();
                    while !ended.load(Ordering::Relaxed) {
                        others.iter().for_each(|other| other.try_lock().unwrap());
                        others.iter().for_each(|other| other.unlock().unwrap());
                    }
                });
            }
            let told = (0..2000).filter(|_| holder_of(&file) == Some(std::process::id())).count();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(told, 2000);
        });
    }

    #[test]
    fn two_openers_the_second_is_told_who() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (a, b) = (File::open(file.path()).unwrap(), File::open(file.path()).unwrap());
        lock(&a, file.path(), false, Nanos::ZERO).unwrap();
        let error = lock(&b, file.path(), false, Nanos::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(a);
        lock(&b, file.path(), true, Nanos::ZERO).unwrap();
        lock(&File::open(file.path()).unwrap(), file.path(), true, Nanos::ZERO).unwrap();
    }
}
