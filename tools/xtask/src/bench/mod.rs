//! `cargo xtask bench`: Basin beside named peers, in one run, on the same machine and the same file.
//!
//! Absolute times on a shared machine move by a factor of two from run to run, so nothing here is compared across runs: both sides take
//! turns (ours, theirs, ours, theirs …), and what counts is the median of the ratios of the pairs. A new comparison is a file beside
//! this one and a line in [`COMPARISONS`].

mod block;
mod machine;
mod measure;
mod pairs;

use std::path::{Path, PathBuf};

/// What the user may choose.
#[derive(clap::Args)]
pub struct Options {
    /// The comparison to run; all without one.
    name: Option<String>,
    /// Pairs of runs in each comparison.
    #[arg(long, default_value_t = 20)]
    pairs: u32,
    /// Seconds of one run.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// The file or block device to read and write; one of 1 GiB is made below target/ without it. Its content is lost.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Count user-space instructions too, by perf or else by valgrind.
    #[arg(long)]
    instructions: bool,
}

/// A comparison: its name, what it compares, and how.
type Comparison = (&'static str, &'static str, fn(&Path, &Options) -> Result<(), String>);

const COMPARISONS: &[Comparison] =
    &[("block", "4 KiB O_DIRECT random read and write, depth 32, one core: Basin beside fio (io_uring)", block::run)];

/// Runs the comparisons chosen.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let chosen: Vec<&Comparison> =
        COMPARISONS.iter().filter(|(name, ..)| options.name.as_ref().is_none_or(|wanted| wanted == name)).collect();
    if chosen.is_empty() {
        let known: Vec<String> = COMPARISONS.iter().map(|(name, about, _)| format!("  {name:<10} {about}")).collect();
        return Err(format!("there is no comparison '{}'; there are:\n{}", options.name.as_deref().unwrap_or(""), known.join("\n")));
    }
    if options.pairs == 0 || options.seconds == 0 {
        return Err("--pairs and --seconds must be at least 1".into());
    }
    crate::child::on_interrupt(crate::undo::all)?;
    for (name, about, body) in chosen {
        println!("## {name}\n\n{about}.\n\n{}\n", machine::line(root));
        body(root, options)?;
    }
    Ok(true)
}
