//! A file with secrets that is not there yet: it has its name when all of it is stable, and until then only one process writes it.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// What is going to be the file of a name, locked under another one. Whoever makes files of that name waits until it is dropped.
pub struct Draft {
    file: File,
    path: PathBuf,
    name: PathBuf,
    has_name: bool,
}

impl Draft {
    /// Waits until nobody else has one of that name, which can only be as long as it takes to write it.
    ///
    /// # Errors
    /// It cannot be made or locked.
    pub fn of(name: &Path) -> io::Result<Draft> {
        let mut ending = name.file_name().unwrap_or_default().to_os_string();
        ending.push(".new");
        let path = name.with_file_name(ending);
        loop {
            let made = File::options().write(true).create_new(true).mode(0o600).open(&path);
            let is_ours = made.is_ok();
            let file = match made {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    match File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
                        // It was given its name, or given up.
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        there => there?,
                    }
                }
                made => made?,
            };
            file.lock()?;
            let locked = file.metadata()?;
            let is_there = match std::fs::symlink_metadata(&path) {
                Ok(there) => (there.dev(), there.ino()) == (locked.dev(), locked.ino()),
                Err(error) if error.kind() == ErrorKind::NotFound => false,
                Err(error) => return Err(error),
            };
            match (is_there, is_ours) {
                (true, true) => return Ok(Draft { file, path, name: name.into(), has_name: false }),
                // A process has left it that was ended. Others may be able to read it: it is not written into.
                (true, false) => std::fs::remove_file(&path)?,
                (false, _) => {}
            }
        }
    }

    /// Writes it and gives it its name, in the place of the file that has that: at any time there is one of them, whole, and when this
    /// returns it is the new one.
    ///
    /// # Errors
    /// It cannot be written. Then the other is what it was.
    pub fn replace(mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.file.sync_all()?;
        std::fs::rename(&self.path, &self.name)?;
        self.has_name = true;
        let folder = self.name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }

    /// The same where nothing has the name.
    ///
    /// # Errors
    /// Something has it, or it cannot be written.
    pub fn make(self, text: &str) -> io::Result<()> {
        if self.name.exists() || self.name.is_symlink() {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        self.replace(text)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.has_name {
            // The lock is still held: it is no other's. Where it cannot be removed the next one takes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let (name, new) = (place.path().join("secret"), place.path().join("secret.new"));
        std::fs::write(&new, "left by a process that was ended, and longer").unwrap();
        Draft::of(&name).unwrap().make("first").unwrap();
        assert_eq!((std::fs::read_to_string(&name).unwrap().as_str(), new.exists()), ("first", false));
        assert_eq!(std::fs::metadata(&name).unwrap().mode() & 0o777, 0o600, "whatever that other one had");
        assert_eq!(Draft::of(&name).unwrap().make("second").unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(!new.exists(), "what is not used is removed");
        Draft::of(&name).unwrap().replace("third").unwrap();
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "third");
        std::os::unix::fs::symlink(place.path().join("elsewhere"), &new).unwrap();
        assert!(Draft::of(&name).is_err() && !place.path().join("elsewhere").exists(), "a link is not followed");
        std::fs::remove_file(&new).unwrap();
        std::fs::create_dir(&new).unwrap();
        assert!(Draft::of(&name).is_err(), "it is nowhere written but there");
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "third");
    }

    #[test]
    fn one_is_written_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let name = place.path().join("number");
        let name = &name;
        let number = || std::fs::read_to_string(name).map_or(0, |text| text.parse::<u32>().unwrap());
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for turn in 0..25 {
                        let draft = Draft::of(name).unwrap();
                        // Some are given up.
                        if (thread + turn) % 5 > 0 {
                            draft.replace(&(number() + 1).to_string()).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(number(), 8 * 20);
    }
}
