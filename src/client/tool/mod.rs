//! `basin cp`, `ls`, `cat`, `rm`, `stat`, `mb`, `rb`: the client for people.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`place`] | what a command is about: a file, `-`, or `s3://bucket/key` |
//! | [`copy`] | files and objects, one or a tree of them |
//! | [`show`] | what is there |
//! | [`progress`] | how far it is, and what it came to |

pub mod copy;
pub mod place;
pub mod progress;
pub mod show;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use super::{Client, Credentials, Endpoint, Failure, Options, Scheme};
use crate::base::error::ErrorKind;
use crate::base::units::parse_bytes;
use crate::base::{Error, Result};
use crate::reactor::{Core, CoreConfig};
use place::S3Place;

/// Where `basin serve` listens if it is told nothing.
const USUAL_ENDPOINTS: [&str; 2] = ["rdma://127.0.0.1:9100", "http://127.0.0.1:9000"];
/// Where `basin serve` keeps its key if it is told nothing.
const USUAL_CREDENTIALS: &str = "basin-data/store.img.credentials";

/// Which server, and who asks.
#[derive(Args, Clone, Debug)]
pub struct Reach {
    /// A server: rdma://HOST:9100, http://HOST:9000 or https://HOST; several of them, and RDMA is preferred. Without it this machine's
    #[arg(long = "endpoint", value_name = "URL", env = "BASIN_ENDPOINT", value_delimiter = ',')]
    endpoints: Vec<Endpoint>,
    /// The access key
    #[arg(long, env = "AWS_ACCESS_KEY_ID", requires = "secret_key")]
    access_key: Option<String>,
    /// Its secret
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    secret_key: Option<String>,
    /// The file that basin serve keeps beside its store, in place of both
    #[arg(long, value_name = "FILE", env = "BASIN_CREDENTIALS")]
    credentials: Option<PathBuf>,
    /// The region that is signed for
    #[arg(long, default_value = "us-east-1", env = "AWS_REGION")]
    region: String,
    /// The RDMA device: soft, soft:udp, soft:shm, soft:xdp, one of the kernel's, or off
    #[arg(long, default_value = "soft", value_name = "RDMA_DEV")]
    rdma: String,
    /// The network interface of soft:xdp; without it the one by which the server is reached
    #[arg(long, value_name = "IFNAME", env = "BASIN_RDMA_INTERFACE")]
    rdma_interface: Option<String>,
    /// Certificates to believe, in PEM; without it the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Bytes of registered memory
    #[arg(long, default_value = "96M", value_parser = bytes)]
    memory: u64,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
}

impl Reach {
    fn options(&self) -> Result<Options> {
        let mut endpoints = self.endpoints.clone();
        if endpoints.is_empty() {
            endpoints = USUAL_ENDPOINTS.iter().map(|text| text.parse()).collect::<Result<_>>()?;
        }
        if self.rdma == "off" {
            let is_rdma = |endpoint: &Endpoint| endpoint.scheme == Scheme::Rdma;
            // A port for RDMA speaks HTTP, too.
            let is_only = endpoints.iter().all(is_rdma);
            endpoints.retain(|endpoint| is_only || !is_rdma(endpoint));
            endpoints.iter_mut().filter(|_| is_only).for_each(|endpoint| endpoint.scheme = Scheme::Http);
        }
        let rdma = if self.rdma == "off" { "soft".to_owned() } else { self.rdma.clone() };
        let options = Options::new(endpoints, self.credentials()?);
        // Set for a server, perhaps: it says nothing of other devices.
        let rdma_interface = self.rdma_interface.clone().filter(|_| rdma == "soft:xdp");
        Ok(Options { region: self.region.clone(), rdma, rdma_interface, memory_bytes: self.memory, ca: self.ca.clone(), ..options })
    }

    fn credentials(&self) -> Result<Credentials> {
        // What is said by name goes before what is in the environment.
        if let Some(path) = &self.credentials {
            return Credentials::read(path);
        }
        match (&self.access_key, &self.secret_key) {
            (Some(access_key), Some(secret_key)) => Ok(Credentials { access_key: access_key.clone(), secret_key: secret_key.clone() }),
            _ if Path::new(USUAL_CREDENTIALS).exists() => Credentials::read(Path::new(USUAL_CREDENTIALS)),
            _ => {
                let remedy =
                    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name the file beside the server's store: --credentials FILE";
                Err(Error::new(ErrorKind::Usage, "no access key").remedy(remedy))
            }
        }
    }
}

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
    /// Only where there is no object of that name
    #[arg(long, conflicts_with = "recursive")]
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
    /// s3://BUCKET, or s3://BUCKET/KEY
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
}

/// Does it, on a core that this thread drives. `print` gets what is found.
///
/// # Errors
/// What [`exit_code`] tells apart.
pub fn run(task: Task, print: fn(String)) -> Result<(), Failure> {
    let options = task.reach().options()?;
    let core = Core::new(CoreConfig::default())?;
    core.clone().run(async move {
        let client = Client::connect(&core, options).await?;
        match task {
            Task::Cp(task) => copy::copy(&client, &task, print).await,
            Task::Ls(task) => show::list(&client, &task, print).await,
            Task::Cat(task) => copy::cat(&client, &task.place).await,
            Task::Rm(task) => remove(&client, &task).await,
            Task::Stat(task) => show::stat(&client, &task, print).await,
            Task::Mb(task) => client.create_bucket(task.place.bucket_alone("mb")?).await,
            Task::Rb(task) => client.delete_bucket(task.place.bucket_alone("rb")?).await,
        }
    })?
}

/// 3 for what is not there, 2 for a request that is wrong in itself, 1 for one that failed.
pub fn exit_code(failure: &Failure) -> u8 {
    if failure.is_not_found() || failure.error().errno() == Some(libc::ENOENT) {
        3
    } else if failure.error().kind() == ErrorKind::Usage {
        2
    } else {
        1
    }
}

async fn remove(client: &Client, task: &Rm) -> Result<(), Failure> {
    let S3Place { bucket, key } = &task.place;
    if !task.recursive {
        return client.delete(bucket, task.place.key_of("rm")?).await;
    }
    let (mut listing, mut keys, mut left) = (client.list(bucket, key, ""), Vec::new(), Vec::new());
    loop {
        let next = listing.next().await?;
        let is_last = next.is_none();
        keys.extend(next.map(|entry| entry.name().to_owned()));
        if keys.len() == 1000 || is_last {
            left.extend(client.delete_many(bucket, &std::mem::take(&mut keys)).await?);
        }
        if is_last {
            break;
        }
    }
    match left.first() {
        None => Ok(()),
        Some(first) => {
            let what = format!("{} objects stay, the first s3://{bucket}/{}: {}: {}", left.len(), first.key, first.code, first.message);
            Err(Error::new(ErrorKind::Failed, what).remedy("check what the user may do there").into())
        }
    }
}
