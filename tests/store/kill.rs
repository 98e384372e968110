//! A process with a store is killed under load, and everything it was told to be stable is there for the next one.
//!
//! `BASIN_KILLS` sets how often (40).

use super::{Machine, Scratch};
use basin::base::{Result, Rng};
use basin::device::block::DiskConfig;
use basin::reactor::CoreConfig;
use basin::store::engine::{Attributes, Expect, Which};
use basin::store::failure::{Failure, Outcome};
use basin::store::format::{FormatConfig, format};
use basin::store::launch::{Launch, run};
use basin::store::open::Store;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Names the disk for the process that is killed: this program again.
const CHILD: &str = "BASIN_STORE_CHILD";
/// Changes that child begins with.
const FIRST: &str = "BASIN_STORE_FIRST";
const CLIENTS: u64 = 16;
/// Cores of the process that is killed. The next one has one.
const CORES: usize = 2;
/// Names of each client.
const NAMES: u64 = 4;

/// What change `number` of a client is: a delete, or a put of so many bytes.
fn size(number: u64) -> Option<u32> {
    let sizes = [Some(100), Some(4096), None, Some(20_000), Some(300_000), Some(0), Some(1_500_000)];
    sizes[(number % sizes.len() as u64) as usize]
}

fn name(client: u64, number: u64) -> Vec<u8> {
    format!("client {client}/{}", number % NAMES).into_bytes()
}

fn byte(client: u64, number: u64, at: usize) -> u8 {
    (client * 31 + number * 7 + at as u64 / 64) as u8
}

async fn change(store: &Store, bucket: u32, client: u64, number: u64) -> Outcome<()> {
    let name = name(client, number);
    let Some(size) = size(number) else {
        return store.delete(bucket, &name, Which::Newest, Expect::Anything, 1).await.map(drop);
    };
    let mut put = store.put(bucket, &name)?;
    let mut at = 0;
    while at < size {
        let mut run = store.slab().run((size - at).min(200_000))?;
        run.as_mut_slice().iter_mut().enumerate().for_each(|(index, to)| *to = byte(client, number, at as usize + index));
        at += run.len();
        put.write(run).await?;
    }
    let properties = number.to_le_bytes().into();
    put.finish(Attributes { properties, ..Attributes::default() }).await.map(drop)
}

#[test]
#[ignore = "the process that another test kills"]
fn child_that_is_killed() {
    // By itself, as with --ignored, it has nothing to do.
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let disk = DiskConfig { as_store: true, ..DiskConfig::new(path) };
    let cores = vec![CoreConfig::default(); CORES];
    // Clients are dealt to the cores, and their names are of any.
    let launched =
        run(&Launch { cores, region_bytes: 32 << 20, cache_bytes: 0, disk, is_read_only: false }, move |core, store| async move {
            let bucket = store.bucket(b"bucket").unwrap().0;
            for client in (store.core() as u64..CLIENTS).step_by(CORES) {
                let store = store.clone();
                drop(core.spawn(async move {
                    for number in first.. {
                        change(&store, bucket, client, number).await.unwrap();
                        // Written at once: what is in our memory dies with us.
                        let mut out = std::io::stdout().lock();
                        writeln!(out, "\nstable {client} {number}").and_then(|()| out.flush()).unwrap();
                    }
                }));
            }
            std::future::pending::<Result<()>>().await
        });
    launched.unwrap();
}

/// What a client was told last, by client.
type Stable = BTreeMap<u64, u64>;

/// Starts the child, lets it work, kills it; what it was told.
fn run_and_kill(path: &Path, first: u64, after: Duration) -> Stable {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child_that_is_killed", "--ignored", "--nocapture"])
        .env(CHILD, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stable = Stable::new();
    let mut note = |line: String| {
        let mut words = line.strip_prefix("stable ")?.split(' ').map(|word| word.parse::<u64>());
        let (client, number) = (words.next()?.ok()?, words.next()?.ok()?);
        stable.insert(client, number);
        Some(())
    };
    // From the first line on, or a slow start would leave nothing to look at.
    lines.by_ref().map_while(Result::ok).find_map(&mut note);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    for line in lines.map_while(Result::ok) {
        note(line);
    }
    killer.join().unwrap();
    stable
}

/// Every name has the change that was told last, or one that was begun after it.
async fn look(store: &Store, bucket: u32, stable: &Stable, first: u64) {
    for (&client, &last) in stable {
        for name_number in 0..NAMES {
            // Changes of this name: the last that was told, and the one that may have been on its way.
            let told = (first..=last).rev().find(|number| number % NAMES == name_number);
            let open = Some(last + 1).filter(|number| number % NAMES == name_number);
            let name = name(client, name_number);
            let shown = String::from_utf8_lossy(&name).into_owned();
            let found = match store.get(bucket, &name, Which::Newest, 0..u64::MAX).await {
                Ok(mut get) => {
                    let number = u64::from_le_bytes((*get.properties).try_into().unwrap());
                    assert_eq!(Some(get.version.size as u32), size(number), "{shown}");
                    let mut at = 0;
                    while let Some(part) = get.next().await.unwrap() {
                        assert!(part.as_slice().iter().enumerate().all(|(index, &is)| is == byte(client, number, at + index)), "{shown}");
                        at += part.len() as usize;
                    }
                    Some(number)
                }
                Err(Failure::NoSuchObject(_)) => None,
                Err(other) => panic!("{shown}: {other}"),
            };
            let value = |number: u64| size(number).map(|_| number);
            let Some(told) = told else { continue };
            assert!(
                found == value(told) || open.is_some_and(|open| found == value(open)),
                "{shown} is {found:?}; change {told} was told to be stable, {open:?} may have been on its way"
            );
        }
    }
}

#[test]
fn what_was_stable_survives_a_kill() {
    let kills = std::env::var("BASIN_KILLS").map_or(40, |kills| kills.parse().expect("BASIN_KILLS is a number"));
    let scratch = Scratch::new("kill");
    let path = scratch.0.join("disk");
    {
        let machine = Machine::new(&path);
        let core = machine.core.clone();
        core.run(async move {
            format(&machine.disk, &machine.slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap();
            let store = machine.open(0).await;
            store.create_bucket(b"bucket", b"", 1).await.unwrap();
            store.close().await.unwrap();
        })
        .unwrap();
    }
    let (mut rng, mut told) = (Rng::seeded(7), 0);
    for kill in 0..kills {
        // A life's changes have numbers of their own; a multiple of the names and of the kinds.
        let first = (kill + 1) * 28 * 100_000;
        let stable = run_and_kill(&path, first, Duration::from_millis(rng.below(60)));
        told += stable.values().map(|last| last + 1 - first).sum::<u64>();
        let machine = Machine::new(&path);
        let core = machine.core.clone();
        core.run(async move {
            let store = machine.open(kill).await;
            assert_eq!(*store.missing, [0; 0]);
            let bucket = store.bucket(b"bucket").unwrap().0;
            look(&store, bucket, &stable, first).await;
            assert_eq!(store.check().await.unwrap().damaged, [""; 0]);
            store.halt().await;
        })
        .unwrap();
    }
    println!("{kills} kills, {told} changes were told to be stable");
    assert!(told > kills * 10, "{told} changes in {kills} lives");
}
