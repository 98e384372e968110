//! The log of a server: lines on standard error, which a thread of its own writes, so that a reader who is slow does not keep the cores
//! from their work. What does not fit into its queue is left out, and counted.
//!
//! No line has a secret, a signature, a token or a query.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sys::signal::SigmaskHow;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use super::config::{Config, LogFormat};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::reactor::ending_signals;

/// The target of the lines of requests.
pub const ACCESS: &str = "basin::access";
/// Lines that wait to be written: at 300 bytes each, 2.4 MiB.
const LINES: usize = 8192;
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// For how long as many lines of a kind as there may be hold.
const PERIOD: Nanos = Nanos::from_secs(5);

/// Lines of one kind, of which few are written: what is wrong for long, or what clients can bring about, is not to fill the log.
pub struct Few {
    most: u32,
    until: AtomicU64,
    left: AtomicU32,
    left_out: AtomicU64,
}

impl Few {
    /// So many in five seconds.
    pub const fn new(most: u32) -> Few {
        Few { most, until: AtomicU64::new(0), left: AtomicU32::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether one may be written at this time; with it how many were left out since the last one, if any were.
    pub fn take(&self, now: Nanos) -> Option<Option<u64>> {
        let until = self.until.load(Ordering::Relaxed);
        let next = now.saturating_add(PERIOD).0;
        // Of several cores one begins the next period.
        if now.0 >= until && self.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.left.store(self.most, Ordering::Relaxed);
        }
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Some(self.left_out.swap(0, Ordering::Relaxed)).filter(|&count| count > 0))
    }
}

/// What is logged.
///
/// # Errors
/// `Usage`: `log_level` is none.
pub fn filter(config: &Config) -> Result<EnvFilter> {
    let level = config.log_level.0.as_str();
    let wrong = |what: String| {
        let error = Error::new(ErrorKind::Usage, format!("log_level: {what}"));
        error.remedy("error, warn, info, debug or trace; or such a level by target: warn,basin::store=debug")
    };
    // To the filter a bare word that is no level is a target, of which everything is logged.
    let is_one = |part: &str| part.contains('=') || LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
    if let Some(part) = level.split(',').find(|part| !is_one(part.trim())) {
        return Err(wrong(format!("{part:?} is no level")));
    }
    // What is said of the target itself comes later, and holds.
    let requests = if config.log_requests { "info" } else { "off" };
    EnvFilter::builder().parse(format!("{ACCESS}={requests},{level}")).map_err(|error| wrong(error.to_string()))
}

/// The log while it is open. What waits is written when it is dropped, if somebody reads.
pub struct Logging {
    dropped: ErrorCounter,
    _writer: WorkerGuard,
}

/// Opens the log of this process.
///
/// # Errors
/// `Usage`: `log_level` is none.
pub fn open(config: &Config) -> Result<Logging> {
    let filter = filter(config)?;
    // The thread is not to be the one that a signal ends the process by: the server waits for signals elsewhere.
    let signals = ending_signals();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(|errno| Error::from_errno("blocking signals", errno as i32))?;
    let builder = NonBlockingBuilder::default().buffered_lines_limit(LINES).lossy(true).thread_name("log");
    let (writer, guard) = builder.finish(std::io::stderr());
    before.thread_set_mask().map_err(|errno| Error::from_errno("unblocking signals", errno as i32))?;
    let dropped = writer.error_counter();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match config.log_format {
        LogFormat::Text => lines.with_ansi(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(Logging { dropped, _writer: guard })
}

impl Logging {
    /// Counts the lines that were left out.
    pub fn dropped(&self) -> ErrorCounter {
        self.dropped.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::config::LogLevel;

    #[test]
    fn a_few_lines_are_written_and_the_others_counted() {
        let few = Few::new(2);
        let at = |ms: u64| few.take(Nanos::from_millis(ms));
        assert_eq!([at(0), at(1), at(2), at(4999)], [Some(None), Some(None), None, None]);
        assert_eq!([at(5000), at(5001), at(9999)], [Some(Some(2)), Some(None), None]);
        assert_eq!(at(60_000), Some(Some(1)));
    }

    #[test]
    fn a_level_may_be_of_all_or_by_target() {
        let of = |level: &str, log_requests| filter(&Config { log_level: LogLevel(level.into()), log_requests, ..Config::default() });
        assert_eq!(of("info", false).unwrap().to_string(), "basin::access=off,info");
        assert_eq!(of("info", true).unwrap().to_string(), "basin::access=info,info");
        assert_eq!(of("warn,basin::access=info", false).unwrap().to_string(), "basin::access=info,warn");
        for wrong in ["inof", "", "info,,warn", "basin=loud", "info,basin"] {
            assert!(of(wrong, false).unwrap_err().to_string().contains("log_level"), "{wrong}");
        }
    }
}
