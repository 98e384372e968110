//! A server whose store is not there yet makes one, in a file.

use std::fs::TryLockError;
use std::io::Read;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::beside;
use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::store::format::FormatConfig;
use crate::store::tools::{Format, make};

/// In so many bytes of its beginning a file says what it is, if it is anything.
const UNFINISHED_BYTES: u64 = 1 << 20;

/// Makes a store of so many bytes where nothing is.
///
/// # Errors
/// It cannot be made there; or there is a link, which leads nowhere.
pub fn make_missing(device: &Path, size_bytes: u64, say: fn(&str)) -> Result<()> {
    // A device that is not there is nothing that can be made: who opens it says so.
    let is_device = device.starts_with("/dev") && !device.starts_with("/dev/shm");
    if is_device || device.exists() {
        return Ok(());
    }
    let shown = device.display();
    if device.is_symlink() {
        // What it leads to may come: it is not taken for a wrong setting.
        let error = Error::new(ErrorKind::Unavailable, format!("{shown} is a link to what is not there"));
        return Err(error.remedy("mount what it leads to; or remove the link, and a new store is made in its place"));
    }
    // In the log, too: where its file system is not mounted this is another store.
    tracing::warn!(device = %shown, bytes = size_bytes, "there is no store: a new one is made");
    say(&format!("making a store of {} MiB in {shown}", size_bytes >> 20));
    make_file(size_bytes, device)
}

/// Makes the file with the store, under another name until it is whole: a server that is ended meanwhile leaves nothing that the next one
/// could take for somebody's.
fn make_file(size_bytes: u64, device: &Path) -> Result<()> {
    let new = beside(device, ".new");
    if new.exists() {
        remove_unfinished(&new)?;
    }
    let config = FormatConfig { now_ms: unix_now_ns() / 1_000_000, ..FormatConfig::default() };
    let made = make(&Format { path: new.clone(), size_bytes: Some(size_bytes), force_device: None, config });
    if made.as_ref().is_err_and(|error| !matches!(error.kind(), ErrorKind::Busy | ErrorKind::Refused)) {
        // Where it could not be made at all it is not there; and another server's is left alone.
        let _ = std::fs::remove_file(&new);
    }
    made?;
    let shown = device.display();
    take_name(&new, device).map_err(|error| {
        // Nobody has used it, and no other server would: what is in it is a store.
        let _ = std::fs::remove_file(&new);
        Error::io(format!("giving the new store the name {shown}"), &error).remedy("see what has that name by now, and start again")
    })?;
    let folder = device.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::io(format!("making the name {shown} stable"), &error))
}

/// Removes what a server has left that was ended while it made a file: zeros, which nobody works on.
fn remove_unfinished(new: &Path) -> Result<()> {
    let shown = new.display();
    let what = format!("removing {shown}, which was not made whole");
    let failed = |error: std::io::Error| Error::io(what.clone(), &error);
    let file = std::fs::File::open(new).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let what = format!("{shown} is being made into a store by another process");
            return Err(Error::new(ErrorKind::Busy, what).remedy("wait until it has done that; or give another path"));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let mut head = Vec::new();
    (&file).take(UNFINISHED_BYTES).read_to_end(&mut head).map_err(failed)?;
    if head.iter().any(|byte| *byte != 0) {
        let what = format!("{shown} is not empty, and the store is to be made under that name");
        return Err(Error::new(ErrorKind::Refused, what).remedy("move it away, or remove it if nobody needs it; or give another path"));
    }
    std::fs::remove_file(new).map_err(failed)
}

/// Gives a file a name that nothing has yet.
fn take_name(new: &Path, name: &Path) -> std::io::Result<()> {
    match renameat2(AT_FDCWD, new, AT_FDCWD, name, RenameFlags::RENAME_NOREPLACE) {
        // A file system that cannot say so.
        Err(Errno::EINVAL | Errno::ENOSYS) => std::fs::rename(new, name),
        done => done.map_err(std::io::Error::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE_BYTES: u64 = 33 << 20;

    fn names(place: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_to_what_is_not_there_is_no_place_for_a_store() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("store.img");
        std::os::unix::fs::symlink(place.path().join("not-mounted/store.img"), &link).unwrap();
        let error = make_missing(&link, SIZE_BYTES, |said| panic!("it says: {said}")).unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("store.img is a link"), "{error}");
        assert!(error.remedy_text().is_some_and(|remedy| remedy.contains("mount")), "{error}");
        assert!(link.is_symlink() && names(place.path()) == ["store.img"], "{:?}", names(place.path()));
    }

    #[test]
    fn a_store_whose_name_is_taken_meanwhile_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let device = place.path().join("store.img");
        std::fs::write(&device, "another server's").unwrap();
        // As of one that looked before there was anything.
        let error = make_file(SIZE_BYTES, &device).unwrap_err();
        assert!(error.errno() == Some(libc::EEXIST) && error.remedy_text().is_some(), "{error}");
        assert_eq!(names(place.path()), ["store.img"]);
        assert_eq!(std::fs::read_to_string(&device).unwrap(), "another server's");
    }

    #[test]
    fn a_store_is_made_of_a_file_and_of_no_device() {
        let place = tempfile::tempdir().unwrap();
        let device = place.path().join("store.img");
        make_missing(&device, SIZE_BYTES, |said| assert!(said.starts_with("making a store of 33 MiB in "), "{said}")).unwrap();
        assert_eq!(names(place.path()), ["store.img"]);
        assert!(std::fs::metadata(&device).unwrap().len() >= SIZE_BYTES);
        for there in [&device, Path::new("/dev/of-basin-that-is-not-there")] {
            make_missing(there, SIZE_BYTES, |said| panic!("it says: {said}")).unwrap();
        }
    }
}
