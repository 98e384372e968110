//! Files that objects are got into, and descriptors that others are at the other end of.
//!
//! What is a file, or not there, is written under another name in its directory, and gets its own when all bytes are there, verified and
//! stable. A link to a file stays, and what it names is what is written anew; mode and owner stay, too. What is there and is no file (a
//! FIFO, a terminal, `/dev/null`) is opened and written to.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::Failure;
use super::place::shown_path;
use super::{there_already, usage};
use crate::base::{Error, Nanos, Result};
use crate::reactor::Core;

/// How long to wait before another look at a descriptor: at first, and at most.
const LOOK: Nanos = Nanos::from_micros(50);
const LOOK_MOST: Nanos = Nanos::from_millis(5);
/// What a file that is made anew in another's place may have of that one's mode.
const MODE: u32 = 0o777;

/// Where an object goes.
pub(super) struct Target {
    core: Core,
    to: PathBuf,
    file: File,
    /// Of a file: what it is as yet.
    half: Option<Half>,
    is_new: bool,
}

/// That nothing of that name is there, where `is_new` asks for it.
pub(super) fn look(to: &Path, is_new: bool) -> Result<(), Failure> {
    // Of a directory it is said that it is one.
    if is_new && fs::symlink_metadata(to).is_ok_and(|about| !about.is_dir()) {
        return Err(there_already(&shown_path(to)));
    }
    Ok(())
}

impl Target {
    /// Opens it; where it `is_new` there may be nothing of that name.
    pub async fn open(core: &Core, to: &Path, is_new: bool) -> Result<Target, Failure> {
        look(to, is_new)?;
        let explain = |error: io::Error| Error::io(format!("writing {}", shown_path(to)), &error);
        let about = match fs::metadata(to) {
            Ok(about) => Some(about),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(explain(error).into()),
            Err(_) if fs::symlink_metadata(to).is_ok() => {
                return Err(usage(format!("{}: a link to what is not there", shown_path(to)), "remove the link, or make what it names"));
            }
            Err(_) => None,
        };
        let target = |file, half| Target { core: core.clone(), to: to.to_path_buf(), file, half, is_new };
        if about.as_ref().is_some_and(Metadata::is_dir) {
            return Err(usage(format!("{} is a directory", shown_path(to)), "name a file in it"));
        }
        if let Some(about) = about.as_ref().filter(|about| !about.is_file()) {
            return Ok(target(open_other(core, to, about).await.map_err(explain)?, None));
        }
        let place = if about.is_some() { fs::canonicalize(to).map_err(explain)? } else { to.to_path_buf() };
        let (file, half) = Half::make(&place, about.as_ref()).map_err(explain)?;
        Ok(target(file, Some(half)))
    }

    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let explain = |error: io::Error| Error::io(format!("writing {}", shown_path(&self.to)), &error);
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(explain(io::ErrorKind::WriteZero.into())),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready(&self.core, &self.file, PollFlags::POLLOUT).await?,
                Err(error) => return Err(explain(error)),
            }
        }
        Ok(())
    }

    /// All is written: a file gets its name.
    pub fn finish(self) -> Result<(), Failure> {
        let Target { to, file, half: Some(half), is_new, .. } = self else { return Ok(()) };
        let done = file.sync_all().and_then(|()| half.become_file(is_new));
        match done {
            Err(error) if is_new && error.kind() == io::ErrorKind::AlreadyExists => Err(there_already(&shown_path(&to))),
            done => done.map_err(|error| Error::io(format!("writing {}", shown_path(&to)), &error).into()),
        }
    }
}

/// Opens what is no file. A FIFO that nobody reads yet is waited for.
async fn open_other(core: &Core, to: &Path, about: &Metadata) -> io::Result<File> {
    loop {
        // The core goes on while the other end does not.
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(to) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && about.file_type().is_fifo() => core.sleep(LOOK_MOST).await,
            done => return done,
        }
    }
}

/// Waits until a descriptor can be read from or written to.
pub(super) async fn ready(core: &Core, file: &impl AsFd, wanted: PollFlags) -> Result<()> {
    let mut pause = LOOK;
    loop {
        match poll(&mut [PollFd::new(file.as_fd(), wanted)], PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Error::from_errno("waiting for the other end of a file", errno as i32)),
        }
        core.sleep(pause).await;
        pause = Nanos(pause.0 * 2).min(LOOK_MOST);
    }
}

/// A file that is not whole yet, and goes away unless it becomes so.
struct Half {
    path: PathBuf,
    to: PathBuf,
}

impl Half {
    /// Makes it for a place where there is nothing, or a file with what is `known` of it.
    fn make(to: &Path, known: Option<&Metadata>) -> io::Result<(File, Half)> {
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let name = to.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
        // So short that the name has room for it.
        let short: String = name.chars().take(40).collect();
        for number in 0.. {
            let path = directory.join(format!(".{short}.{}-{number}.part", std::process::id()));
            // Until it has the mode of the other it is nobody else's.
            let mode = if known.is_some() { 0o600 } else { 0o666 };
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
                Ok(file) => {
                    let half = Half { path, to: to.to_path_buf() };
                    if let Some(known) = known {
                        like(&file, known)?;
                    }
                    return Ok((file, half));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop ends by an error")
    }

    fn become_file(self, is_new: bool) -> io::Result<()> {
        if !is_new {
            return fs::rename(&self.path, &self.to);
        }
        match renameat2(AT_FDCWD, &self.path, AT_FDCWD, &self.to, RenameFlags::RENAME_NOREPLACE) {
            // A file system without it; the first name goes away with this.
            Err(Errno::EINVAL | Errno::ENOSYS) => fs::hard_link(&self.path, &self.to),
            done => done.map_err(io::Error::from),
        }
    }
}

/// Gives a file the mode of another, and its owner and group where this user may.
fn like(file: &File, known: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (known.uid(), known.gid()) {
        let _ = fchown(file, Some(known.uid()), Some(known.gid()));
    }
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(known.mode() & MODE))
}

impl Drop for Half {
    fn drop(&mut self) {
        // After it became a file there is nothing of that name.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_file_goes_away_and_a_whole_one_takes_the_place_of_another() {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("name");
        let there = || (fs::read(&to).unwrap(), fs::read_dir(place.path()).unwrap().count());
        fs::write(&to, "old").unwrap();
        let (mut file, half) = Half::make(&to, None).unwrap();
        file.write_all(b"ha").unwrap();
        drop(half);
        assert_eq!(there(), (b"old".to_vec(), 1));
        let (mut file, half) = Half::make(&to, None).unwrap();
        file.write_all(b"new").unwrap();
        half.become_file(false).unwrap();
        assert_eq!(there(), (b"new".to_vec(), 1));
        let (_, half) = Half::make(&to, None).unwrap();
        assert_eq!(half.become_file(true).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(there(), (b"new".to_vec(), 1));
    }
}
