//! How far a copy is, and what it came to.

use std::cell::Cell;
use std::io::IsTerminal;
use std::rc::Rc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::Client;
use crate::base::Nanos;
use crate::base::units::human_bytes;

/// A bar on a terminal, and the numbers of the last line.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    begun: Nanos,
    /// Bytes of this object, or of all.
    done: Rc<Cell<u64>>,
    /// It is one of many, whose bytes are known.
    is_expected: bool,
}

impl Progress {
    /// Begins; `bytes` are all of them, where that is known.
    pub fn begin(client: &Client, bytes: Option<u64>, is_quiet: bool) -> Progress {
        let bar = match bytes {
            Some(bytes) => ProgressBar::new(bytes),
            None => ProgressBar::no_length(),
        };
        let form =
            if bytes.is_some() { "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}" } else { "{spinner} {bytes} {bytes_per_sec}" };
        bar.set_style(ProgressStyle::with_template(form).expect("the template is ours"));
        if is_quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar, begun: client.core().now(), done: Rc::default(), is_expected: false }
    }

    /// That of one object of those whose bytes are expected.
    pub fn of_one(&self) -> Progress {
        Progress { done: Rc::default(), is_expected: true, ..self.clone() }
    }

    /// The object, of so many bytes, was not copied.
    pub fn take_back(&self, bytes: u64) {
        self.bar.dec(self.done.take());
        self.bar.dec_length(bytes);
    }

    /// Does what writes to the terminal, beside the bar.
    pub fn aside(&self, write: impl FnOnce()) {
        self.bar.suspend(write);
    }

    /// So many bytes more.
    pub fn add(&self, bytes: u64) {
        self.done.update(|done| done + bytes);
        self.bar.inc(bytes);
    }

    /// So many more are to come.
    pub fn expect(&self, bytes: u64) {
        if !self.is_expected {
            self.bar.inc_length(bytes);
        }
    }

    /// The last line: `3 objects, 1.0 GiB in 0.50 s, 2.0 GiB/s, by rdma soft:shm`.
    pub fn end(&self, client: &Client, objects: u64, there: u64) -> String {
        let bytes = self.bar.position();
        self.bar.finish_and_clear();
        let seconds = client.core().now().since(self.begun).as_secs_f64();
        let rate = human_bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        let noun = if objects == 1 { "object" } else { "objects" };
        let others = if there > 0 { format!("; {there} more there already") } else { String::new() };
        format!("{objects} {noun}, {} in {seconds:.2} s, {rate}/s, by {}{others}\n", human_bytes(bytes), ways(client))
    }
}

/// By which ways requests went: with both, how many by each; and why not by RDMA, where it was asked for.
fn ways(client: &Client) -> String {
    let troubles = client.rdma_troubles().join("; ");
    let why = if troubles.is_empty() { troubles } else { format!(" ({troubles})") };
    let stats = client.stats();
    let rdma = format!("rdma {}", stats.wire.unwrap_or_default());
    let http = if client.speaks_tls() { "https" } else { "http" };
    match (stats.by_rdma, stats.by_http) {
        (1.., 0) => rdma,
        (0, _) => format!("{http}{why}"),
        (some, others) => format!("{rdma} ({some} requests) and {http} ({others}){why}"),
    }
}
