//! `cargo xtask bench`: Basin beside named peers, in one run, on the same machine and the same file.
//!
//! Absolute times on a shared machine move by a factor of two from run to run, so nothing here is compared across runs: both sides take
//! turns (ours, theirs, ours, theirs …; of the store ours, theirs, theirs, ours …), and what counts is the median of the ratios of the
//! pairs. A new comparison is a file beside this one and a line in [`COMPARISONS`].

mod block;
mod fio;
mod guests;
mod lab;
mod machine;
mod measure;
mod network;
mod pairs;
mod profile;
mod rdma;
mod s3;
mod s3_rdma;
mod store;
mod veth;

use crate::child::output;
use crate::test::cargo;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What the user may choose.
#[derive(clap::Args)]
pub struct Options {
    /// The comparison to run; all without one.
    name: Option<String>,
    /// Pairs of runs in each comparison.
    #[arg(long, default_value_t = 20)]
    pairs: u32,
    /// Seconds of one run: 3 for block, store, s3 and s3-rdma, and 2 for net without it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Block: the file or block device to read and write, made 1 GiB large if it does not exist; one below target/ without it. Its
    /// content is lost. Store: a file of 3 GiB at least, made if it does not exist; fio's is beside it, with `.fio` at the end of its name.
    /// What is in both is lost.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Rdma: the device, as in IFNAME:RDMA_DEV, whose port reaches itself.
    #[arg(long)]
    device: Option<String>,
    /// Store, s3, s3-rdma: only the case of this name; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Block, passthrough, store, s3, rdma: count user-space instructions too, by perf or else by valgrind.
    #[arg(long)]
    instructions: bool,
    /// Net: thousands of packets offered a second.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 350, 700], value_parser = clap::value_parser!(u32).range(1..))]
    rates: Vec<u32>,
    /// Net: bytes of a packet's UDP payload.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 300, 1400])]
    sizes: Vec<u32>,
}

/// A comparison: its name, what it compares, and how; it gives whether all its bounds were met.
type Comparison = (&'static str, &'static str, fn(&Path, &Options) -> Result<bool, String>);

const COMPARISONS: &[Comparison] = &[
    ("block", "4 KiB O_DIRECT random read and write, depth 32, one core: Basin beside fio (io_uring)", block::run),
    ("store", "Puts and gets of 4 KiB and 1 MiB on one core, durable: the store beside fio (io_uring, O_DSYNC)", store::run),
    (
        "s3",
        "GET and PUT over HTTP of 4 KiB and 1 MiB, a processor for the server and one for the client: basin serve beside s3s-fs",
        s3::run,
    ),
    ("s3-rdma", "GET and PUT one at a time: basin serve by RDMA, requests and all, beside the same over HTTP", s3_rdma::run),
    ("passthrough", "As block on an NVMe namespace, in the VM lab without --file: beside fio by io_uring_cmd", block::passthrough),
    ("rdma", "WRITE, READ and SEND of 64 KiB and 4 KiB by verbs: Basin beside perftest, in the VM lab without --device", rdma::run),
    ("veth", "RC of the soft HCA over AF_XDP, both ends busy: beside raw frames, and blocking TCP for information", veth::run),
    (
        "soft-rc",
        "64 KiB WRITE by RC of the soft HCA over AF_XDP on a veth, by path MTU, and what of it are ICRC and copies",
        veth::by_path_mtu,
    ),
    (
        "soft-rxe",
        "WRITE, READ and SEND of 64 KiB between two guests of the VM lab: the soft HCA over AF_XDP at both ends beside the kernel's rxe",
        guests::run,
    ),
    ("net", "Datagrams to a durable log over a veth: flow 1 beside recvmmsg and io_uring writes", network::run),
];

/// Runs the comparisons chosen; whether all their bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let chosen: Vec<&Comparison> =
        COMPARISONS.iter().filter(|(name, ..)| options.name.as_ref().is_none_or(|wanted| wanted == name)).collect();
    if chosen.is_empty() {
        let known: Vec<String> = COMPARISONS.iter().map(|(name, about, _)| format!("  {name:<10} {about}")).collect();
        return Err(format!("there is no comparison '{}'; there are:\n{}", options.name.as_deref().unwrap_or(""), known.join("\n")));
    }
    if options.pairs == 0 {
        return Err("--pairs must be at least 1".into());
    }
    crate::child::on_interrupt(crate::undo::all)?;
    let mut missed = Vec::new();
    for (name, about, body) in chosen {
        println!("## {name}\n\n{about}.\n\n{}\n", machine::line(root));
        if !body(root, options)? {
            missed.push(*name);
        }
    }
    if !missed.is_empty() {
        println!("Bounds were missed in: {}.", missed.join(", "));
    }
    Ok(missed.is_empty())
}

/// Builds a program of benches/ and gives its path.
fn bench_program(root: &Path, name: &str) -> Result<PathBuf, String> {
    let arguments = ["build", "--release", "--bench", name, "--message-format=json-render-diagnostics"];
    let said = output(cargo().args(arguments).current_dir(root))?;
    let path = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.ok_or_else(|| format!("cargo does not say where it put the bench '{name}'"))
}
