//! What of a tree is copied, and what came of it. What cannot be copied does not keep the rest from it: it is told, and counted.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::super::bucket::Entry;
use super::super::{Client, Failure};
use super::place::{Place, S3Place, path_of, shown_path};
use super::{complain, usage};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// What one of a tree is copied from and to.
pub(super) enum Step {
    Up(PathBuf, S3Place),
    Down(S3Place, PathBuf),
    Over(S3Place, S3Place),
}

/// A step, and the bytes that it moves as far as is known before.
pub(super) struct Planned {
    pub step: Step,
    pub bytes: u64,
}

/// How many were copied, and how many were not.
#[derive(Default)]
pub(super) struct Tally {
    copied: Cell<u64>,
    there: Cell<u64>,
    failed: Cell<u64>,
}

impl Tally {
    pub fn copied(&self) {
        self.copied.set(self.copied.get() + 1);
    }

    /// One was left as it is.
    pub fn was_there(&self) {
        self.there.set(self.there.get() + 1);
    }

    pub fn there(&self) -> u64 {
        self.there.get()
    }

    /// Says why one was not.
    pub fn failed(&self, failure: &Failure) {
        complain(failure);
        self.failed.set(self.failed.get() + 1);
    }

    pub fn count(&self) -> u64 {
        self.copied.get()
    }

    /// What of it is an error: each was told already.
    pub fn outcome(&self) -> Result<(), Failure> {
        match self.failed.get() {
            0 => Ok(()),
            failed => {
                Err(Error::new(ErrorKind::Failed, format!("not copied: {failed} of {}", failed + self.there() + self.count())).into())
            }
        }
    }
}

/// What has to be copied of a tree.
pub(super) async fn plan(client: &Client, from: Place, to: Place, tally: &Tally) -> Result<VecDeque<Planned>, Failure> {
    match (from, to) {
        (Place::File(from), Place::S3(to)) => Ok(plan_up(&from, &to, tally)?),
        (Place::Stream, _) => Err(usage("several objects from standard input".into(), "without --recursive it is one object")),
        (Place::S3(_), Place::Stream) => Err(usage("several objects to standard output".into(), "basin cat, one by one")),
        (Place::S3(from), to) => plan_from(client, &from, &to, tally).await,
        _ => Err(usage("basin cp --recursive: neither is s3://bucket".into(), "copy a directory to s3://bucket/prefix, or back")),
    }
}

fn plan_up(from: &Path, to: &S3Place, tally: &Tally) -> Result<VecDeque<Planned>> {
    let (mut steps, front) = (VecDeque::new(), with_slash(&to.key));
    for path in files(from, tally)? {
        match path.strip_prefix(from).unwrap_or(&path).to_str() {
            Some(rest) => {
                let place = S3Place { bucket: to.bucket.clone(), key: format!("{front}{rest}") };
                // What cannot be looked at says so when it is copied.
                let bytes = fs::metadata(&path).map_or(0, |about| about.len());
                steps.push_back(Planned { step: Step::Up(path, place), bytes });
            }
            None => tally.failed(&usage(format!("{}: it has no name that a key can have", shown_path(&path)), "rename it")),
        }
    }
    Ok(steps)
}

async fn plan_from(client: &Client, from: &S3Place, to: &Place, tally: &Tally) -> Result<VecDeque<Planned>, Failure> {
    let (mut steps, front) = (VecDeque::new(), with_slash(&from.key));
    let (mut listing, mut is_there) = (client.list(&from.bucket, &front, ""), false);
    while let Some(entry) = listing.next().await? {
        is_there = true;
        let one = S3Place { bucket: from.bucket.clone(), key: entry.name().to_owned() };
        let rest = &entry.name()[front.len()..];
        let bytes = if let Entry::Object { size, .. } = entry { size } else { 0 };
        let to = match to {
            Place::S3(to) => {
                let to = S3Place { bucket: to.bucket.clone(), key: format!("{}{rest}", with_slash(&to.key)) };
                steps.push_back(Planned { step: Step::Over(one, to), bytes });
                continue;
            }
            Place::File(to) => to,
            Place::Stream => unreachable!("a plan has places"),
        };
        match path_of(rest) {
            // The mark of a directory, which the console of S3 makes.
            _ if entry.name().ends_with('/') && matches!(entry, Entry::Object { size: 0, .. }) => {}
            Some(path) => steps.push_back(Planned { step: Step::Down(one, to.join(path)), bytes }),
            None => {
                let what = format!("{one}: no file below {} can have that name", shown_path(to));
                tally.failed(&usage(what, "copy it by itself, to a name of your own"));
            }
        }
    }
    if !is_there {
        let there = S3Place { bucket: from.bucket.clone(), key: front };
        let error = Error::new(ErrorKind::Failed, format!("there is nothing whose name begins with {there}"));
        let remedy = format!("see what is there: basin ls {from}; one object is copied without --recursive");
        return Err(error.remedy(remedy).into());
    }
    Ok(without_those_below_files(steps, tally))
}

/// A key can have others below it, and a file cannot: it is the file, whatever the order, and those below it are told.
fn without_those_below_files(steps: VecDeque<Planned>, tally: &Tally) -> VecDeque<Planned> {
    let files: HashSet<PathBuf> =
        steps.iter().filter_map(|one| if let Step::Down(_, to) = &one.step { Some(to.clone()) } else { None }).collect();
    let is_right = |one: &Planned| {
        let Step::Down(from, to) = &one.step else { return true };
        let Some(file) = to.ancestors().skip(1).find(|above| files.contains(*above)) else { return true };
        let what = format!("{from}: no file below {}, which is an object's own", shown_path(file));
        tally.failed(&usage(what, "copy it by itself, to a name of your own"));
        false
    };
    steps.into_iter().filter(is_right).collect()
}

fn with_slash(prefix: &str) -> String {
    if prefix.is_empty() || prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") }
}

/// All files of a directory, in order. Links to files are followed, those to directories are not: they may lead in a circle.
fn files(directory: &Path, tally: &Tally) -> Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(next) = left.pop() {
        let explain = |error: io::Error| Error::io(format!("reading the directory {}", shown_path(&next)), &error);
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            Err(error) if next == directory => return Err(explain(error)),
            Err(error) => {
                tally.failed(&explain(error).into());
                continue;
            }
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) {
                Ok((path, kind)) if kind.is_dir() => left.push(path),
                Ok((path, kind)) => {
                    if is_file(&path, kind, tally) {
                        found.push(path);
                    }
                }
                Err(error) => tally.failed(&explain(error).into()),
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether it can be copied. Of what has no bytes to be copied it is said; what is behind a link would be missing.
fn is_file(path: &Path, kind: FileType, tally: &Tally) -> bool {
    let (shown, is_link) = (shown_path(path), kind.is_symlink());
    let kind = if is_link { fs::metadata(path).map(|about| about.file_type()) } else { Ok(kind) };
    match kind {
        Ok(kind) if kind.is_file() => return true,
        Ok(kind) if kind.is_dir() => {
            tally.failed(&usage(format!("{shown}: a link to a directory, which is not followed"), "copy that directory by itself"));
        }
        Ok(kind) => {
            let what = [(kind.is_fifo(), "a FIFO"), (kind.is_socket(), "a socket")].into_iter().find(|(is, _)| *is);
            complain(format!("{shown} is left out: it is {}", what.map_or("a device", |(_, what)| what)));
        }
        Err(error) => tally.failed(&Error::io(format!("following the link {shown}"), &error).into()),
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_all_its_files_and_what_is_no_file_is_told() {
        let place = tempfile::tempdir().unwrap();
        let in_it = |name: &str| place.path().join(name);
        fs::create_dir_all(in_it("a/b")).unwrap();
        for name in ["one", "a/two", "a/b/three"] {
            fs::write(in_it(name), name).unwrap();
        }
        std::os::unix::fs::symlink("..", in_it("a/circle")).unwrap();
        std::os::unix::fs::symlink("nowhere", in_it("broken")).unwrap();
        std::os::unix::fs::symlink("one", in_it("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(in_it("socket")).unwrap();
        let tally = Tally::default();
        let found = files(place.path(), &tally).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(place.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a/b/three", "a/two", "link", "one"]);
        assert_eq!(tally.outcome().unwrap_err().to_string(), "not copied: 2 of 2", "the circle and the broken link, not the socket");
        assert!(files(&in_it("none"), &tally).unwrap_err().to_string().contains("none: ENOENT"));
    }
}
