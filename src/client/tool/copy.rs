//! Files and objects, one or a tree of them.
//!
//! A file is written under another name in its directory and gets its own when all bytes are there and verified. Files are read and
//! written by this thread between the turns of its core: what they say is in the page cache as a rule, and a disk that is slow holds up
//! nobody but this program.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::super::get::Download;
use super::super::object::{Encryption, PutOptions};
use super::super::{Client, Failure};
use super::place::{Place, S3Place, path_of};
use super::progress::Progress;
use super::{Cp, Sse};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// Objects of a tree under way at a time, and the memory that is for each.
const AT_ONCE: u64 = 4;
const MEMORY_OF_EACH: u64 = 16 << 20;

/// What one of a tree is copied from and to.
enum Step {
    Up(PathBuf, S3Place),
    Down(S3Place, PathBuf),
    Over(S3Place, S3Place),
}

fn usage(what: String, remedy: &str) -> Failure {
    Error::new(ErrorKind::Usage, what).remedy(remedy).into()
}

/// Copies.
pub(super) async fn copy(client: &Client, task: &Cp, print: fn(String)) -> Result<(), Failure> {
    let (from, to) = (Place::parse(&task.from)?, Place::parse(&task.to)?);
    let encryption = match (task.sse, &task.sse_kms_key_id) {
        (None, _) => None,
        (Some(Sse::Aes256), Some(key)) => {
            return Err(usage(format!("--sse-kms-key-id {key} with --sse AES256, which has no keys by name"), "--sse aws:kms"));
        }
        (Some(Sse::Aes256), None) => Some(Encryption::Server),
        (Some(Sse::Kms), key) => Some(Encryption::Named(key.clone())),
    };
    let options =
        PutOptions { content_type: task.content_type.clone(), encryption, if_none_match: task.no_clobber, ..PutOptions::default() };
    let progress = Progress::begin(client, Some(0), task.quiet);
    let is_to_stream = to == Place::Stream;
    let objects = if task.recursive {
        let steps = plan(client, from, to).await?;
        let count = steps.len() as u64;
        all(client, steps, options, progress.clone()).await?;
        count
    } else {
        match (from, to) {
            (Place::Stream, Place::S3(to)) => {
                to.key_of("cp -")?;
                put(client, &mut io::stdin().lock(), "standard input", None, &to, options, &progress).await?;
            }
            (Place::File(from), Place::S3(to)) => step(client, Step::Up(from.clone(), below(to, &from)?), options, &progress).await?,
            (Place::S3(from), Place::File(to)) => {
                let to = if to.is_dir() || task.to.ends_with('/') { to.join(last_name(&from)?) } else { to };
                step(client, Step::Down(from, to), options, &progress).await?;
            }
            (Place::S3(from), Place::Stream) => to_stream(client, &from, Some(&progress)).await?,
            (Place::S3(from), Place::S3(to)) => {
                let to = if to.key.is_empty() || to.key.ends_with('/') { S3Place { key: to.key + &last_name(&from)?, ..to } } else { to };
                step(client, Step::Over(from, to), options, &progress).await?;
            }
            _ => return Err(usage(format!("basin cp {} {}: neither is an object", task.from, task.to), "one of them is s3://bucket/key")),
        }
        1
    };
    let line = progress.end(client, objects);
    if !task.quiet {
        if is_to_stream { eprint!("{line}") } else { print(line) }
    }
    Ok(())
}

/// Writes an object to standard output.
pub(super) async fn cat(client: &Client, place: &S3Place) -> Result<(), Failure> {
    place.key_of("cat")?;
    to_stream(client, place, None).await
}

async fn to_stream(client: &Client, place: &S3Place, progress: Option<&Progress>) -> Result<(), Failure> {
    place.key_of("cp")?;
    let mut download = client.get(&place.bucket, &place.key).await?;
    let mut out = io::stdout().lock();
    while let Some(piece) = download.next().await? {
        match out.write_all(piece.as_slice()) {
            Ok(()) => {}
            // A reader that went away (`| head`) has what it wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Error::io("writing to standard output", &error).into()),
        }
        if let Some(progress) = progress {
            progress.expect(piece.as_slice().len() as u64);
            progress.add(piece.as_slice().len() as u64);
        }
    }
    out.flush().map_err(|error| Error::io("writing to standard output", &error).into())
}

/// The last part of a key, as the name of a file.
fn last_name(place: &S3Place) -> Result<String, Failure> {
    let name = place.key.rsplit('/').next().unwrap_or_default();
    match path_of(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(usage(format!("{place}: its key ends in no name for a file"), "name the file, or use --recursive")),
    }
}

/// Where a file goes: below a prefix under its own name.
fn below(place: S3Place, file: &Path) -> Result<S3Place, Failure> {
    if !place.key.is_empty() && !place.key.ends_with('/') {
        return Ok(place);
    }
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| usage(format!("{}: it has no name that a key can have", file.display()), "name the key"))?;
    Ok(S3Place { key: format!("{}{name}", place.key), bucket: place.bucket })
}

/// What has to be copied of a tree.
async fn plan(client: &Client, from: Place, to: Place) -> Result<VecDeque<Step>, Failure> {
    let mut steps = VecDeque::new();
    match (from, to) {
        (Place::File(from), Place::S3(to)) => {
            let front = with_slash(&to.key);
            for path in files(&from)? {
                let rest = path.strip_prefix(&from).unwrap_or(&path).to_str();
                let rest = rest.ok_or_else(|| usage(format!("{}: it has no name that a key can have", path.display()), "rename it"))?;
                steps.push_back(Step::Up(path.clone(), S3Place { bucket: to.bucket.clone(), key: format!("{front}{rest}") }));
            }
        }
        (Place::S3(from), to) => {
            let front = with_slash(&from.key);
            let mut listing = client.list(&from.bucket, &front, "");
            while let Some(entry) = listing.next().await? {
                let one = S3Place { bucket: from.bucket.clone(), key: entry.name().to_owned() };
                let rest = &entry.name()[front.len()..];
                steps.push_back(match &to {
                    // The mark of a directory, which the console of S3 makes.
                    Place::File(_) if rest.is_empty() || rest.ends_with('/') => continue,
                    Place::File(to) => {
                        let path = path_of(rest).ok_or_else(|| {
                            usage(
                                format!("{one}: no file below {} can have that name", to.display()),
                                "copy it by itself, to a name of your own",
                            )
                        })?;
                        Step::Down(one, to.join(path))
                    }
                    Place::S3(to) => Step::Over(one, S3Place { bucket: to.bucket.clone(), key: format!("{}{rest}", with_slash(&to.key)) }),
                    Place::Stream => return Err(usage("several objects to standard output".into(), "basin cat, one by one")),
                });
            }
        }
        _ => return Err(usage("basin cp --recursive: neither is s3://bucket".into(), "copy a directory to s3://bucket/prefix, or back")),
    }
    Ok(steps)
}

fn with_slash(prefix: &str) -> String {
    if prefix.is_empty() || prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") }
}

/// All files of a directory, in order. Links to files are followed, those to directories are not: they may lead in a circle.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(next) = left.pop() {
        let explain = |error: io::Error| Error::io(format!("reading the directory {}", next.display()), &error);
        for entry in fs::read_dir(&next).map_err(explain)? {
            let entry = entry.map_err(explain)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(explain)?);
            if kind.is_dir() {
                left.push(path);
            } else if path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Copies all of a tree, some at a time. Those that fail do not keep the others from being copied.
async fn all(client: &Client, steps: VecDeque<Step>, options: PutOptions, progress: Progress) -> Result<(), Failure> {
    let (left, progress, failed) = (Rc::new(RefCell::new(steps)), Rc::new(progress), Rc::new(Cell::new(0u64)));
    let first = Rc::new(RefCell::new(None::<Failure>));
    let workers = (client.memory_bytes() / MEMORY_OF_EACH).clamp(1, AT_ONCE);
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (client, left, progress, failed) = (client.clone(), left.clone(), progress.clone(), failed.clone());
            let (first, options) = (first.clone(), options.clone());
            client.core().clone().spawn(async move {
                loop {
                    let next = left.borrow_mut().pop_front();
                    let Some(next) = next else { return };
                    if let Err(failure) = step(&client, next, options.clone(), &progress).await {
                        eprintln!("basin: {failure}");
                        failed.set(failed.get() + 1);
                        first.borrow_mut().get_or_insert(failure);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))?;
    }
    match (failed.get(), first.take()) {
        (1, Some(failure)) => Err(failure),
        (2.., Some(failure)) => {
            let what = format!("{} objects were not copied, the first: {:#}", failed.get(), failure);
            Err(Error::new(failure.error().kind(), what).into())
        }
        _ => Ok(()),
    }
}

async fn step(client: &Client, step: Step, options: PutOptions, progress: &Progress) -> Result<(), Failure> {
    match step {
        Step::Up(from, to) => {
            let shown = from.display().to_string();
            let explain = |error: io::Error| Error::io(format!("reading {shown}"), &error);
            let mut file = File::open(&from).map_err(explain)?;
            let about = file.metadata().map_err(explain)?;
            if about.is_dir() {
                return Err(usage(format!("{shown} is a directory"), "copy what is in it: --recursive"));
            }
            let size = about.is_file().then_some(about.len());
            put(client, &mut file, &shown, size, &to, options, progress).await
        }
        Step::Down(from, to) => {
            from.key_of("cp")?;
            let download = client.get(&from.bucket, &from.key).await?;
            save(download, &to, progress).await
        }
        Step::Over(from, to) => {
            from.key_of("cp")?;
            let size = client.head(&from.bucket, &from.key).await?.size;
            progress.expect(size);
            client.copy((&from.bucket, &from.key), (&to.bucket, &to.key), options.encryption.as_ref()).await?;
            progress.add(size);
            Ok(())
        }
    }
}

async fn put(
    client: &Client,
    from: &mut dyn Read,
    shown: &str,
    size: Option<u64>,
    to: &S3Place,
    options: PutOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    progress.expect(size.unwrap_or(0));
    let mut upload = client.upload(&to.bucket, &to.key, size, options)?;
    loop {
        let room = match upload.room().await {
            Ok(room) => room,
            Err(failure) => {
                upload.abort().await;
                return Err(failure);
            }
        };
        match from.read(room) {
            Ok(0) => break,
            Ok(count) => {
                upload.advance(count);
                if size.is_none() {
                    progress.expect(count as u64);
                }
                progress.add(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                upload.abort().await;
                return Err(Error::io(format!("reading {shown}"), &error).into());
            }
        }
    }
    upload.finish().await.map(drop)
}

/// Writes an object to a file that has its name only when it is whole.
async fn save(mut download: Download, to: &Path, progress: &Progress) -> Result<(), Failure> {
    let explain = |error: io::Error| Error::io(format!("writing {}", to.display()), &error);
    progress.expect(download.head().size);
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(explain)?;
    let name = to.file_name().ok_or_else(|| usage(format!("{}: it is no name of a file", to.display()), "name the file"))?;
    let (mut file, half) = Half::make(directory, &name.to_string_lossy()).map_err(explain)?;
    while let Some(piece) = download.next().await? {
        file.write_all(piece.as_slice()).map_err(explain)?;
        progress.add(piece.as_slice().len() as u64);
    }
    file.flush().map_err(explain)?;
    drop(file);
    half.become_file(to).map_err(explain)?;
    Ok(())
}

/// A file that is not whole yet, and goes away unless it becomes so.
struct Half {
    path: PathBuf,
}

impl Half {
    fn make(directory: &Path, name: &str) -> io::Result<(File, Half)> {
        for number in 0.. {
            // So short that the name has room for it.
            let short: String = name.chars().take(40).collect();
            let path = directory.join(format!(".{short}.{}-{number}.part", std::process::id()));
            match File::create_new(&path) {
                Ok(file) => return Ok((file, Half { path })),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop ends by an error")
    }

    fn become_file(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)
    }
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
        fs::write(&to, "old").unwrap();
        let (mut file, half) = Half::make(place.path(), "name").unwrap();
        file.write_all(b"ha").unwrap();
        drop(half);
        assert_eq!((fs::read(&to).unwrap(), fs::read_dir(place.path()).unwrap().count()), (b"old".to_vec(), 1));
        let (mut file, half) = Half::make(place.path(), "name").unwrap();
        file.write_all(b"new").unwrap();
        half.become_file(&to).unwrap();
        assert_eq!((fs::read(&to).unwrap(), fs::read_dir(place.path()).unwrap().count()), (b"new".to_vec(), 1));
    }

    #[test]
    fn a_tree_has_all_its_files() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        for name in ["one", "a/two", "a/b/three"] {
            fs::write(place.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("..", place.path().join("a/circle")).unwrap();
        let found = files(place.path()).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(place.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a/b/three", "a/two", "one"]);
        assert!(files(&place.path().join("none")).unwrap_err().to_string().contains("none: ENOENT"));
    }
}
