//! `basin cp`, `ls`, `cat`, `rm`, `stat`, `mb`, `rb`: the client for people.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`reach`] | which server, and who asks |
//! | [`place`] | what a command is about: a file, `-`, or `s3://bucket/key` |
//! | [`copy`] | files and objects, one or a tree of them |
//! | `tree` | what of a tree is copied, and what came of it |
//! | `file` | files that objects are got into |
//! | [`show`] | what is there |
//! | [`progress`] | how far it is, and what it came to |

pub mod copy;
mod file;
pub mod place;
pub mod progress;
pub mod reach;
pub mod show;
mod tree;

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::pin::pin;
use std::task::Poll;

use clap::{Args, Subcommand, ValueEnum};

use super::failure::remedy;
use super::{CLOSED, Client, Failure};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::reactor::{Core, CoreConfig};
use crate::s3::xml::delete::NotDeleted;
use place::S3Place;
use reach::Reach;

/// Prints, and says whether anybody still reads: one who went away (`| head`) has what he wanted.
pub type Print = fn(String) -> Result<bool>;

/// The code of a command that a signal has ended.
const STOPPED: &str = "Stopped";
/// That of one whose output nobody reads any more.
const UNREAD: &str = "Unread";
/// The code of a client that was not made.
const UNREADY: &str = "Unready";
/// The code of a failure because there is an object or a file of that name already.
const THERE: &str = "There";

/// A command.
#[derive(Subcommand, Debug)]
pub enum Task {
    /// Copy a file to an object, an object to a file, or an object to an object
    Cp(Cp),
    /// List buckets, or what is in one
    Ls(Ls),
    /// Write an object to standard output
    Cat(One),
    /// Remove an object, or all below a prefix
    Rm(Rm),
    /// Say what is known of an object or a bucket
    Stat(Stat),
    /// Make a bucket
    Mb(One),
    /// Remove a bucket, which must be empty
    Rb(One),
}

/// How objects are encrypted, as S3 has the names.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sse {
    /// Under the server's own key
    #[value(name = "AES256")]
    Aes256,
    /// Under a key by name
    #[value(name = "aws:kms")]
    Kms,
}

/// Of `cp`.
#[derive(Args, Debug)]
pub struct Cp {
    /// A file or directory, - for standard input, or s3://BUCKET/KEY
    #[arg(value_name = "SRC")]
    from: String,
    /// A file or directory, - for standard output, or s3://BUCKET/KEY
    #[arg(value_name = "DST")]
    to: String,
    /// All files of a directory, or all objects below a prefix
    #[arg(short, long)]
    recursive: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Only where there is no object or file of that name
    #[arg(long)]
    no_clobber: bool,
    /// What the object's content type is
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How the server encrypts what is put or copied; without it as the bucket has it
    #[arg(long, value_name = "HOW")]
    sse: Option<Sse>,
    /// The name of the key, with --sse aws:kms; without it the server's usual one
    #[arg(long, value_name = "NAME", requires = "sse")]
    sse_kms_key_id: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

/// Of `ls`.
#[derive(Args, Debug)]
pub struct Ls {
    /// s3://BUCKET or s3://BUCKET/PREFIX; without it the buckets
    #[arg(value_name = "PLACE")]
    place: Option<S3Place>,
    /// All below it, not only the next level
    #[arg(short, long)]
    recursive: bool,
    /// Sizes in bytes
    #[arg(long)]
    bytes: bool,
    /// Print a JSON object on each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Of `rm`.
#[derive(Args, Debug)]
pub struct Rm {
    /// s3://BUCKET/KEY, or with --recursive s3://BUCKET/PREFIX
    #[arg(value_name = "PLACE")]
    place: S3Place,
    /// All objects whose keys begin so
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Of `stat`.
#[derive(Args, Debug)]
pub struct Stat {
    /// s3://BUCKET/KEY or s3://BUCKET
    #[arg(value_name = "PLACE")]
    place: S3Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Of commands with a place and nothing else.
#[derive(Args, Debug)]
pub struct One {
    /// s3://BUCKET/KEY of cat, s3://BUCKET of mb and rb
    #[arg(value_name = "PLACE")]
    place: S3Place,
    #[command(flatten)]
    reach: Reach,
}

impl Task {
    fn reach(&self) -> &Reach {
        match self {
            Task::Cp(task) => &task.reach,
            Task::Ls(task) => &task.reach,
            Task::Rm(task) => &task.reach,
            Task::Stat(task) => &task.reach,
            Task::Cat(task) | Task::Mb(task) | Task::Rb(task) => &task.reach,
        }
    }

    /// Whether something of it would stay if it ended half-way.
    fn has_halves(&self) -> bool {
        matches!(self, Task::Cp(task) if task.to != "-")
    }
}

/// Does it, on a core that this thread drives. `print` gets what is found.
///
/// # Errors
/// What [`exit_code`] tells apart.
pub fn run(task: Task, print: Print) -> Result<(), Failure> {
    let options = task.reach().options().map_err(unready)?;
    let core = Core::new(CoreConfig::default())?;
    if task.has_halves() {
        core.catch_signals()?;
    }
    let of_task = core.clone();
    let done = core.run(async move {
        let client = unless_stopped(&of_task, Client::connect(&of_task, options)).await?.map_err(unready)?;
        match task {
            Task::Cp(task) => copy::copy(&client, &task, print).await,
            Task::Ls(task) => show::list(&client, &task, print).await,
            Task::Cat(task) => copy::cat(&client, &task.place).await,
            Task::Rm(task) => remove(&client, &task, print).await,
            Task::Stat(task) => show::stat(&client, &task, print).await,
            Task::Mb(task) => client.create_bucket(task.place.bucket_alone("mb")?).await,
            Task::Rb(task) => remove_bucket(&client, &task.place).await,
        }
    });
    // What it opened is closed now, not with the program: queue pairs, and an interface's AF_XDP program.
    core.shut_down(CLOSED);
    done?
}

/// Says on standard error what a command has failed with, unless whoever reads its output has what he wanted.
pub fn explain(failure: &Failure) {
    if failure.code() != Some(UNREAD) {
        complain(failure);
    }
}

/// Says on standard error what went wrong. What would move a terminal's cursor is written out.
pub fn complain(what: impl Display) {
    let is_text = |letter: char| !letter.is_control() || letter == '\n';
    let plain = |letter: char| if is_text(letter) { letter.to_string() } else { letter.escape_default().to_string() };
    let text: String = what.to_string().chars().map(plain).collect();
    // There is nobody else to be told.
    let _ = writeln!(std::io::stderr(), "basin: {text}");
}

fn usage(what: String, remedy: &str) -> Failure {
    Error::new(ErrorKind::Usage, what).remedy(remedy).into()
}

/// That there is no client: a file that is not there is one of settings, and nothing that was asked for.
fn unready(error: impl Into<Failure>) -> Failure {
    let failure = error.into();
    match failure.error().errno() {
        Some(libc::ENOENT) => Failure::coded(UNREADY, failure.error().clone()),
        _ => failure,
    }
}

/// That `--no-clobber` keeps something as it is.
fn there_already(what: &dyn Display) -> Failure {
    Failure::coded(
        THERE,
        Error::new(ErrorKind::Refused, format!("{what} is there already")).remedy("without --no-clobber it is overwritten"),
    )
}

fn stopped() -> Failure {
    stopped_with("; nothing is left half-way")
}

fn stopped_with(more: &str) -> Failure {
    Failure::coded(STOPPED, Error::new(ErrorKind::Failed, format!("stopped by a signal{more}")))
}

/// What comes of it, unless a signal comes first.
async fn unless_stopped<F: Future>(core: &Core, work: F) -> Result<F::Output, Failure> {
    let (mut work, mut stopping) = (pin!(work), pin!(core.stopping()));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => stopping.as_mut().poll(context).map(|()| Err(stopped())),
    })
    .await
}

/// 3 for what is not there, 2 for a request that is wrong in itself, 1 for one that failed; as shells have it, 130 after a signal, and 141
/// where nobody reads what is written.
pub fn exit_code(failure: &Failure) -> u8 {
    if failure.code() == Some(STOPPED) {
        130
    } else if failure.code() == Some(UNREAD) {
        141
    } else if failure.code() == Some(UNREADY) {
        2
    } else if failure.is_not_found() || failure.error().errno() == Some(libc::ENOENT) {
        3
    } else if failure.error().kind() == ErrorKind::Usage {
        2
    } else {
        1
    }
}

async fn remove(client: &Client, task: &Rm, print: Print) -> Result<(), Failure> {
    let S3Place { bucket, key } = &task.place;
    if !task.recursive {
        return client.delete(bucket, task.place.key_of("rm")?).await;
    }
    let (mut listing, mut keys, mut left) = (client.list(bucket, key, ""), Vec::new(), Vec::new());
    let mut count = 0;
    loop {
        let next = listing.next().await?;
        let is_last = next.is_none();
        count += u64::from(!is_last);
        keys.extend(next.map(|entry| entry.name().to_owned()));
        if keys.len() == 1000 || is_last {
            left.extend(client.delete_many(bucket, &std::mem::take(&mut keys)).await?);
        }
        if is_last {
            break;
        }
    }
    if let Some(error) = stay(bucket, &left) {
        return Err(error.into());
    }
    if count == 0 {
        complain(format!("nothing was there whose name begins with {}", task.place));
    } else {
        print(format!("{count} {} removed\n", if count == 1 { "object" } else { "objects" }))?;
    }
    Ok(())
}

/// What is wrong where objects could not be removed, by the first of them.
fn stay(bucket: &str, left: &[NotDeleted]) -> Option<Error> {
    let first = left.first()?;
    let place = format!("s3://{bucket}/{}", first.key);
    let what = format!("{} objects stay, the first {place}: {}: {}", left.len(), first.code, first.message);
    let error = Error::new(ErrorKind::Failed, what);
    Some(match remedy(&first.code, &place) {
        Some(remedy) => error.remedy(remedy),
        None => error,
    })
}

/// Removes a bucket. Why one is not empty of which nothing is listed has another remedy.
async fn remove_bucket(client: &Client, place: &S3Place) -> Result<(), Failure> {
    let bucket = place.bucket_alone("rb")?;
    let failure = match client.delete_bucket(bucket).await {
        Err(failure) if failure.code() == Some("BucketNotEmpty") => failure,
        done => return done,
    };
    // Who may not look is told what is known.
    if !matches!(client.list(bucket, "", "").next().await, Ok(None)) {
        return Err(failure);
    }
    let what = format!("DELETE {place}: what is still in it are versions and delete markers, which basin rm does not remove");
    let remedy = format!(
        "see them: aws s3api list-object-versions --bucket {bucket}; remove them by delete-objects, or by a lifecycle rule with \
         NoncurrentVersionExpiration and ExpiredObjectDeleteMarker"
    );
    Err(Error::new(ErrorKind::Failed, what).remedy(remedy).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_has_the_remedy_of_its_own_code() {
        for (code, remedy) in [("AccessDenied", Some("may do there")), ("InternalError", Some("log of the server")), ("Odd", None)] {
            let key = "a\u{1b}".to_owned();
            let left = [NotDeleted { key, version_id: None, code: code.into(), message: "It is so.".into() }];
            let error = stay("bucket", &left).expect("one stays");
            assert_eq!(error.remedy_text().is_some(), remedy.is_some(), "{error}");
            assert!(remedy.is_none_or(|remedy| error.to_string().contains(remedy)), "{error}");
        }
        assert!(stay("bucket", &[]).is_none());
    }
}
