//! A storage appliance in a hundred lines: named objects on a disk, put from and got to files by way of the region's chunks.
//!
//! ```text
//! cargo run --release --example appliance -- DISK put NAME < FILE
//! cargo run --release --example appliance -- DISK get NAME > FILE
//! cargo run --release --example appliance -- DISK list [PREFIX]
//! cargo run --release --example appliance -- DISK rm NAME
//! ```
//!
//! DISK is a file, which is made with 256 MiB where there is none, or a device with a store (`basin store format`). What a put has
//! answered is there after any power cut or kill. Needs no privileges.

use std::io::{ErrorKind as Io, IsTerminal, Read, Write};
use std::path::Path;

use basin::base::error::ErrorKind;
use basin::base::{Error, Result, Rng, clock};
use basin::device::block::{Disk, DiskConfig};
use basin::mem::{Ledger, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, launch};
use basin::store::engine::{Attributes, Expect, Which};
use basin::store::format::{FormatConfig, format};
use basin::store::index::{After, Line, Query};
use basin::store::open::Store;

/// A disk that is made.
const DISK_BYTES: u64 = 256 << 20;
/// What a put takes from its input at once.
const PIECE_BYTES: u32 = 1 << 20;
/// Lines of a list that are asked for at once.
const PAGE: usize = 1000;
const BUCKET: &[u8] = b"appliance";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ran = launch::<(), _, _, _>(vec![CoreConfig::default()], move |_, core, _| run(core, arguments.clone()));
    ran?.into_iter().collect()
}

fn usage() -> Error {
    Error::new(ErrorKind::Usage, "appliance DISK put NAME < FILE | get NAME > FILE | list [PREFIX] | rm NAME")
}

async fn run(core: Core, arguments: Vec<String>) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [disk, rest @ ..] = &words[..] else { return Err(usage()) };
    let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(64 << 20) })?;
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    if let Err(error) = core.uring().register_region(&region) {
        eprintln!("not registered for storage: {error}");
    }
    let is_new = !Path::new(disk).exists();
    let config = DiskConfig { as_store: true, size_bytes: is_new.then_some(DISK_BYTES), ..DiskConfig::new(*disk) };
    let disk = Disk::open(core.uring(), core.ops(), &config)?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    let mut rng = Rng::from_kernel();
    if is_new {
        format(&disk, &slab, &FormatConfig { now_ms: now_ms(), ..FormatConfig::default() }, &mut rng).await?;
    }
    let store = Store::open(&core, &disk, &slab, &Ledger::new(), false, rng).await?;
    let done = serve(&store, rest).await;
    store.close().await?;
    done
}

async fn serve(store: &Store, words: &[&str]) -> Result<()> {
    let bucket = match store.bucket(BUCKET) {
        Some((id, _)) => id,
        None => store.create_bucket(BUCKET, b"", now_ms()).await?,
    };
    match words {
        ["put", name] => put(store, bucket, name).await,
        ["get", name] => get(store, bucket, name).await,
        ["list"] => list(store, bucket, "").await,
        ["list", prefix] => list(store, bucket, prefix).await,
        ["rm", name] => match store.delete(bucket, name.as_bytes(), Which::Newest, Expect::Anything, now_ms()).await? {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::Usage, format!("there is no object '{name}'"))),
        },
        _ => Err(usage()),
    }
}

/// Reads straight into chunks, which are written from where they are.
async fn put(store: &Store, bucket: u32, name: &str) -> Result<()> {
    let (mut put, mut input) = (store.put(bucket, name.as_bytes())?, std::io::stdin().lock());
    loop {
        let mut run = store.slab().run(PIECE_BYTES)?;
        let mut filled = 0;
        while filled < PIECE_BYTES as usize {
            match input.read(&mut run.as_mut_slice()[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(Error::io("reading what is to be put", &error)),
            }
        }
        if filled == 0 {
            break;
        }
        run.set_len(filled as u32);
        put.write(run).await?;
    }
    let version = put.finish(Attributes { time_ms: now_ms(), ..Attributes::default() }).await?;
    if std::io::stderr().is_terminal() {
        eprintln!("{name}: {} bytes", version.size);
    }
    Ok(())
}

async fn get(store: &Store, bucket: u32, name: &str) -> Result<()> {
    let mut get = store.get(bucket, name.as_bytes(), Which::Newest, 0..u64::MAX).await?;
    let mut output = std::io::stdout().lock();
    while let Some(part) = get.next().await? {
        output.write_all(part.as_slice()).map_err(|error| Error::io("writing what was got", &error))?;
    }
    Ok(())
}

async fn list(store: &Store, bucket: u32, prefix: &str) -> Result<()> {
    let mut last: Option<Box<[u8]>> = None;
    loop {
        let after = last.as_deref().map_or(After::Nothing, After::Name);
        let page = store.list(&Query { bucket, prefix: prefix.as_bytes(), delimiter: b"", after, limit: PAGE }).await?;
        for line in &page {
            if let Line::Object(name, version) = line {
                let printed = writeln!(std::io::stdout(), "{:>12} {}", version.size, String::from_utf8_lossy(name));
                printed.map_err(|error| Error::io("writing the list", &error))?;
            }
        }
        match page.into_iter().last() {
            Some(Line::Object(name, _)) => last = Some(name),
            _ => return Ok(()),
        }
    }
}

fn now_ms() -> u64 {
    clock::unix_now_ns() / 1_000_000
}
