//! How each version of a list stands to the others of its name: the list has each name's versions together, the newest first.

use super::rules::Standing;
use crate::store::index::Version;

/// What is known of the name that a list is at. It goes on from page to page.
#[derive(Debug, Default)]
pub struct Walk {
    name: Box<[u8]>,
    /// The sequence number of the name's newest version; `None` before the first name.
    newest: Option<u64>,
    /// When the version told last was put: the one told next is noncurrent since then.
    successor_ms: u64,
    /// Noncurrent versions that stay.
    kept: u32,
}

impl Walk {
    /// Takes the next version of the list; `is_last` is whether another name follows, or none. How it stands, and the sequence number of
    /// the newest version of its name.
    pub fn step(&mut self, name: &[u8], version: &Version, is_last: bool) -> (Standing, u64) {
        let (standing, newest) = match self.newest {
            Some(newest) if *self.name == *name => (Standing::Noncurrent { since_ms: self.successor_ms, newer: self.kept }, newest),
            _ => {
                (self.name, self.kept) = (name.into(), 0);
                (Standing::Current { is_alone: is_last }, version.sequence)
            }
        };
        (self.newest, self.successor_ms) = (Some(newest), version.time_ms);
        (standing, newest)
    }

    /// The noncurrent version that was told last stays. Those that end do not count for the ones behind them: so many are to be left.
    pub fn keep(&mut self) {
        self.kept += 1;
    }
}
