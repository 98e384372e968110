//! Instructions that a guest's processors execute, counted by a plugin of QEMU's (count.c) while everything runs.
//!
//! A counter inside the guest does not exist under emulation, and a program under valgrind is fifty times slower than the kernel it
//! waits for. Here all code is slowed alike.

use super::fetch::say;
use super::qemu;
use crate::child::output;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file with the counts, below the control directory.
pub const FILE: &str = "counts";
/// That file in the guest.
const IN_GUEST: &str = "/run/lab/counts";
/// From one processor's count to the next one's, in bytes.
const STRIDE: usize = 64;
const SOURCE: &str = include_str!("count.c");
/// From this release on QEMU wants version 2 of the interface.
const VERSION_2_SINCE: u32 = 9;

/// Compiles the plugin for this QEMU, unless it is there already.
pub fn plugin(cache: &Path) -> Result<PathBuf, String> {
    let version = if qemu::release()? >= VERSION_2_SINCE { 2 } else { 1 };
    let directory = cache.join("count");
    let (source, plugin) = (directory.join("count.c"), directory.join(format!("count-{version}.so")));
    if plugin.exists() && fs::read_to_string(&source).is_ok_and(|text| text == SOURCE) {
        return Ok(plugin);
    }
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let _ = fs::remove_file(&plugin);
    fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    say("building the plugin that counts instructions");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]).arg(format!("-DVERSION={version}"));
    output(compile.arg("-o").arg(&plugin).arg(&source)).map(|_| plugin)
}

/// What a processor executed so far.
#[derive(Clone, Copy, Debug)]
pub struct Executed {
    pub user: u64,
    pub kernel: u64,
}

/// What `processor` of this guest executed; nothing where nobody counts.
pub fn executed(processor: usize) -> Option<Executed> {
    let counts = fs::read(IN_GUEST).ok()?;
    let of = counts.get(processor * STRIDE..)?;
    let count = |at: usize| of.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    Some(Executed { user: count(0)?, kernel: count(8)? })
}
