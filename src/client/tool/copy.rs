//! Files and objects, one or a tree of them.
//!
//! Files are read and written by this thread between the turns of its core: what they say is in the page cache as a rule, and a disk that
//! is slow holds up nobody but this program. For the other end of a pipe the core waits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;

use super::super::object::{CopyOptions, Encryption, PutOptions};
use super::super::put::Upload;
use super::super::{Client, Failure};
use super::file::{self, Target, ready};
use super::place::{Place, S3Place, path_of, shown_path};
use super::progress::Progress;
use super::tree::{Planned, Step, Tally, plan};
use super::{Cp, Print, STOPPED, Sse, THERE, UNREAD, stopped, stopped_with, there_already, unless_stopped, usage};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// Objects of a tree under way at a time, and the memory that is for each.
const AT_ONCE: u64 = 4;
const MEMORY_OF_EACH: u64 = 16 << 20;

/// Copies.
pub(super) async fn copy(client: &Client, task: &Cp, print: Print) -> Result<(), Failure> {
    let (from, to) = (Place::parse(&task.from)?, Place::parse(&task.to)?);
    let encryption = match (task.sse, &task.sse_kms_key_id) {
        (None, _) => None,
        (Some(Sse::Aes256), Some(key)) => {
            return Err(usage(format!("--sse-kms-key-id {key} with --sse AES256, which has no keys by name"), "--sse aws:kms"));
        }
        (Some(Sse::Aes256), None) => Some(Encryption::Server),
        (Some(Sse::Kms), key) => Some(Encryption::Named(key.clone())),
    };
    has_its_options(task, &from, &to)?;
    let options =
        PutOptions { content_type: task.content_type.clone(), encryption, if_none_match: task.no_clobber, ..PutOptions::default() };
    let progress = Progress::begin(client, Some(0), task.quiet);
    let (is_to_stream, tally) = (to == Place::Stream, Rc::new(Tally::default()));
    if task.recursive {
        let steps = unless_stopped(client.core(), plan(client, from, to, &tally)).await??;
        let count = steps.len();
        all(client, steps, &options, &progress, &tally).await.map_err(|failure| match failure.code() {
            Some(STOPPED) if task.no_clobber => {
                let there = tally.there() + tally.count();
                stopped_with(&format!("; {there} of {count} objects are there, none half: the same command copies the others"))
            }
            Some(STOPPED) => stopped_with(&format!("; {} of {count} objects were copied, none half", tally.count())),
            _ => failure,
        })?;
    } else {
        match (from, to) {
            (Place::Stream, Place::S3(to)) => {
                to.key_of("cp -")?;
                if is_closed(io::stdin()) {
                    let what = "standard input is closed, or /dev/null for reading and writing".to_owned();
                    return Err(usage(what, "give it something to read; < /dev/null makes an object of no bytes"));
                }
                // Not by way of a buffer, which could have bytes while there is nothing to be read.
                let input = io::stdin().as_fd().try_clone_to_owned().map_err(|error| Error::io("reading standard input", &error))?;
                let done = put(client, &mut File::from(input), "standard input", None, &to, options.clone(), &progress).await;
                done.map_err(|failure| explained(failure, &options, &to))?;
            }
            (Place::File(from), Place::S3(to)) => {
                let to = below(to, &from)?;
                let up = Step::Up(from, to.clone());
                if is_there(client, &up, &options).await? {
                    return Err(there_already(&to));
                }
                step(client, up, &options, &progress).await?;
            }
            (Place::S3(from), Place::File(to)) => {
                let to = if to.is_dir() || task.to.ends_with('/') { to.join(last_name(&from)?) } else { to };
                step(client, Step::Down(from, to), &options, &progress).await?;
            }
            (Place::S3(from), Place::Stream) => to_stream(client, &from, Some(&progress)).await?,
            (Place::S3(from), Place::S3(to)) => {
                let to = if to.key.is_empty() || to.key.ends_with('/') { S3Place { key: to.key + &last_name(&from)?, ..to } } else { to };
                step(client, Step::Over(from, to), &options, &progress).await?;
            }
            _ => return Err(usage(format!("basin cp {} {}: neither is an object", task.from, task.to), "one of them is s3://bucket/key")),
        }
        tally.copied();
    }
    let line = progress.end(client, tally.count(), tally.there());
    if !task.quiet {
        if is_to_stream {
            // Where nobody reads it the bytes were written all the same.
            let _ = write!(io::stderr(), "{line}");
        } else {
            print(line)?;
        }
    }
    tally.outcome()
}

/// Whether standard input or output was closed when the program began: Rust's start then opens `/dev/null` in its place, for reading and
/// writing, which cannot be told from who gives it that himself.
fn is_closed(stream: impl AsFd) -> bool {
    let null = std::fs::metadata("/dev/null").map(|about| about.rdev()).ok();
    let is_null =
        stream.as_fd().try_clone_to_owned().is_ok_and(|fd| File::from(fd).metadata().is_ok_and(|about| Some(about.rdev()) == null));
    let flags = fcntl(stream.as_fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_truncate);
    is_null && flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDWR)
}

/// An option that would change nothing is refused.
fn has_its_options(task: &Cp, from: &Place, to: &Place) -> Result<(), Failure> {
    let (is_of_s3, is_to_s3) = (matches!(from, Place::S3(_)), matches!(to, Place::S3(_)));
    let wrong = |option: &str, why: &str| Err(usage(format!("basin cp {} {}: {option}: {why}", task.from, task.to), "leave it out"));
    match (is_of_s3, is_to_s3) {
        (true, true) if task.content_type.is_some() => wrong("--content-type", "a copy by the server keeps the object's"),
        (true, false) if task.content_type.is_some() => wrong("--content-type", "a file has none"),
        (true, false) if task.sse.is_some() => wrong("--sse", "it is for what is put or copied"),
        (true, false) if task.no_clobber && *to == Place::Stream => wrong("--no-clobber", "standard output is always there"),
        _ => Ok(()),
    }
}

/// Writes an object to standard output.
pub(super) async fn cat(client: &Client, place: &S3Place) -> Result<(), Failure> {
    place.key_of("cat")?;
    to_stream(client, place, None).await
}

async fn to_stream(client: &Client, place: &S3Place, progress: Option<&Progress>) -> Result<(), Failure> {
    place.key_of("cp")?;
    if is_closed(io::stdout()) {
        let what = "standard output is closed, or /dev/null for reading and writing".to_owned();
        return Err(usage(what, "give it something to write to"));
    }
    let mut download = client.get(&place.bucket, &place.key).await?;
    let mut out = io::stdout().lock();
    while let Some(piece) = download.next().await? {
        match out.write_all(piece.as_slice()).and_then(|()| out.flush()) {
            Ok(()) => {}
            // A reader that went away (`| head`) has what it wanted. What it has not read was not looked at, which the exit code says.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(Failure::coded(UNREAD, Error::io("writing to standard output", &error)));
            }
            Err(error) => return Err(Error::io("writing to standard output", &error).into()),
        }
        if let Some(progress) = progress {
            progress.expect(piece.as_slice().len() as u64);
            progress.add(piece.as_slice().len() as u64);
        }
    }
    Ok(())
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
    let name = name.ok_or_else(|| usage(format!("{}: it has no name that a key can have", shown_path(file)), "name the key"))?;
    Ok(S3Place { key: format!("{}{name}", place.key), bucket: place.bucket })
}

/// Copies all of a tree, some at a time. Those that fail do not keep the others from being copied.
async fn all(
    client: &Client,
    steps: VecDeque<Planned>,
    options: &PutOptions,
    progress: &Progress,
    tally: &Rc<Tally>,
) -> Result<(), Failure> {
    progress.expect(steps.iter().map(|one| one.bytes).sum());
    let (left, end) = (Rc::new(RefCell::new(steps)), Rc::new(RefCell::new(None)));
    let workers = (client.memory_bytes() / MEMORY_OF_EACH).clamp(1, AT_ONCE);
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (client, left, options) = (client.clone(), left.clone(), options.clone());
            let (progress, tally, end) = (progress.clone(), tally.clone(), end.clone());
            client.core().clone().spawn(async move {
                while !client.core().is_stopping() {
                    let next = left.borrow_mut().pop_front();
                    let Some(Planned { step: next, bytes }) = next else { return };
                    let progress = progress.of_one();
                    let done = match is_there(&client, &next, &options).await {
                        Ok(false) => step(&client, next, &options, &progress).await,
                        Ok(true) => Err(Failure::coded(THERE, Error::new(ErrorKind::Refused, "there already"))),
                        Err(failure) => Err(failure),
                    };
                    if done.is_err() {
                        progress.take_back(bytes);
                    }
                    match done {
                        Ok(()) => tally.copied(),
                        Err(failure) if failure.code() == Some(THERE) => tally.was_there(),
                        Err(failure) if failure.code() == Some(STOPPED) => return,
                        // It is the same with all that is left.
                        Err(failure) if failure.code() == Some("NoSuchBucket") => {
                            left.borrow_mut().clear();
                            end.replace(Some(failure));
                            return;
                        }
                        Err(failure) => progress.aside(|| tally.failed(&failure)),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))?;
    }
    if client.core().is_stopping() {
        return Err(stopped());
    }
    end.take().map_or(Ok(()), Err)
}

/// Whether what is only put where nothing is would be put in vain: asked before its bytes are sent. The server judges what is put then.
async fn is_there(client: &Client, step: &Step, options: &PutOptions) -> Result<bool, Failure> {
    let Step::Up(_, to) = step else { return Ok(false) };
    if !options.if_none_match {
        return Ok(false);
    }
    match unless_stopped(client.core(), client.head(&to.bucket, &to.key)).await? {
        Ok(_) => Ok(true),
        // Who may put need not be allowed to look, not even whether there is something.
        Err(failure) if matches!(failure.status(), Some(403 | 404)) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// What a condition that did not hold means here.
fn explained(failure: Failure, options: &PutOptions, to: &S3Place) -> Failure {
    if options.if_none_match && failure.is_precondition() { there_already(to) } else { failure }
}

async fn step(client: &Client, step: Step, options: &PutOptions, progress: &Progress) -> Result<(), Failure> {
    match step {
        Step::Up(from, to) => {
            let shown = shown_path(&from);
            let explain = |error: io::Error| Error::io(format!("reading {shown}"), &error);
            // A FIFO that nobody writes to yet is waited for where signals are heeded.
            let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&from).map_err(explain)?;
            let about = file.metadata().map_err(explain)?;
            if about.is_dir() {
                return Err(usage(format!("{shown} is a directory"), "copy what is in it: --recursive"));
            }
            let about = about.is_file().then_some(about);
            let done = put(client, &mut file, &shown, about.as_ref(), &to, options.clone(), progress).await;
            done.map_err(|failure| explained(failure, options, &to))
        }
        Step::Down(from, to) => unless_stopped(client.core(), save(client, &from, &to, options.if_none_match, progress)).await?,
        Step::Over(from, to) => {
            from.key_of("cp")?;
            let copy = CopyOptions { encryption: options.encryption.clone(), if_none_match: options.if_none_match };
            let copied = async {
                let size = client.head(&from.bucket, &from.key).await?.size;
                progress.expect(size);
                client.copy((&from.bucket, &from.key), (&to.bucket, &to.key), &copy).await?;
                progress.add(size);
                Ok(())
            };
            unless_stopped(client.core(), copied).await?.map_err(|failure| explained(failure, options, &to))
        }
    }
}

/// Puts what is read. Between two pieces a signal is heeded: what was put in parts is removed then.
async fn put(
    client: &Client,
    from: &mut File,
    shown: &str,
    about: Option<&Metadata>,
    to: &S3Place,
    options: PutOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    let size = about.map(Metadata::len);
    progress.expect(size.unwrap_or(0));
    let mut upload = client.upload(&to.bucket, &to.key, size, options)?;
    loop {
        let read = match unless_stopped(client.core(), ready(client.core(), from, PollFlags::POLLIN)).await {
            Ok(Ok(())) if client.core().is_stopping() => Err(stopped()),
            Ok(Ok(())) => match unless_stopped(client.core(), upload.room()).await {
                Ok(room) => room.map(|room| from.read(room)),
                Err(stopped) => Err(stopped),
            },
            Ok(Err(error)) => Err(error.into()),
            Err(stopped) => Err(stopped),
        };
        match read {
            Ok(Ok(0)) => break,
            Ok(Ok(count)) => {
                upload.advance(count);
                if size.is_none() {
                    progress.expect(count as u64);
                }
                progress.add(count as u64);
            }
            Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Ok(Err(error)) => return Err(given_up(&mut upload, to, Error::io(format!("reading {shown}"), &error).into()).await),
            Err(failure) => return Err(given_up(&mut upload, to, failure).await),
        }
    }
    if let Some(about) = about
        && let Err(error) = is_as_it_was(from, shown, about)
    {
        return Err(given_up(&mut upload, to, error.into()).await);
    }
    match unless_stopped(client.core(), upload.finish_or_stay()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(failure)) | Err(failure) => Err(given_up(&mut upload, to, failure).await),
    }
}

/// What was read of a file is one state of it, as far as it tells when it was written to.
fn is_as_it_was(file: &File, shown: &str, before: &Metadata) -> Result<()> {
    let now = file.metadata().map_err(|error| Error::io(format!("reading {shown}"), &error))?;
    let of = |about: &Metadata| (about.len(), about.mtime(), about.mtime_nsec());
    if of(&now) == of(before) {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Failed, format!("{shown}: it was changed while it was read, and is not put"));
    Err(error.remedy("copy it when nobody writes to it, or a copy or snapshot of it"))
}

/// Removes what was put, and says so where that failed.
async fn given_up(upload: &mut Upload, to: &S3Place, failure: Failure) -> Failure {
    match upload.abort().await {
        true => failure,
        false => {
            let note = format!("parts of s3://{}/{} may stay", to.bucket, to.key);
            let failure = if failure.code() == Some(STOPPED) { stopped_with("") } else { failure };
            failure.noting(&note, "a lifecycle rule with AbortIncompleteMultipartUpload removes them")
        }
    }
}

/// Writes an object to where it goes on this machine.
async fn save(client: &Client, from: &S3Place, to: &Path, is_new: bool, progress: &Progress) -> Result<(), Failure> {
    from.key_of("cp")?;
    file::look(to, is_new)?;
    let mut download = client.get(&from.bucket, &from.key).await?;
    progress.expect(download.head().size);
    let mut target = Target::open(client.core(), to, is_new).await?;
    while let Some(piece) = download.next().await? {
        target.write(piece.as_slice()).await?;
        progress.add(piece.as_slice().len() as u64);
    }
    target.finish()
}
