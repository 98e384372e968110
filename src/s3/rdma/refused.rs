//! The log of what clients do wrong over RDMA: who guesses keys makes a million packets and sessions, and must not make as many lines.

use std::cell::Cell;

use super::session::Rdma;
use crate::base::Nanos;
use crate::device::rdma::Refusals;

/// How often what was refused is told.
const PERIOD: Nanos = Nanos::from_secs(5);
/// Lines about single sessions in that time. The rest are counted.
const LINES_MAX: u32 = 20;
/// Packets for queue pairs that are none, in that time, that nobody need know of: clients that end leave some behind.
const LATE: u64 = 100;

/// How many lines there may still be.
pub struct Lines {
    left: Cell<u32>,
    left_out: Cell<u64>,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { left: Cell::new(LINES_MAX), left_out: Cell::new(0) }
    }
}

impl Lines {
    /// Whether there may be one more; if not, it is counted.
    pub fn take(&self) -> bool {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => self.left_out.update(|count| count + 1),
        }
        self.left_out.get() == 0
    }

    /// The next period: how many were left out in the last one.
    fn renew(&self) -> u64 {
        self.left.set(LINES_MAX);
        self.left_out.take()
    }
}

/// What a device has refused by some time: of memory, from strangers, for unknown queue pairs, and damaged.
fn counts(refusals: &Refusals) -> [u64; 4] {
    [refusals.memory(), refusals.strangers(), refusals.unknown(), refusals.damaged()]
}

/// What was refused between two times, where that is worth a line.
fn worth_telling(before: [u64; 4], now: [u64; 4]) -> Option<[u64; 4]> {
    let more: [u64; 4] = std::array::from_fn(|at| now[at] - before[at]);
    let [memory, strangers, unknown, damaged] = more;
    (memory + strangers > 0 || unknown + damaged > LATE).then_some(more)
}

impl Rdma {
    /// Tells what was refused, a line or two in a period.
    pub async fn tell_refused(self) {
        let refusals = self.hca().refusals();
        let mut told = counts(&refusals);
        loop {
            self.core().sleep(PERIOD).await;
            let now = counts(&refusals);
            if let Some([memory, strangers, unknown, damaged]) = worth_telling(told, now) {
                tracing::warn!(
                    memory,
                    strangers,
                    unknown,
                    damaged,
                    "packets over RDMA were refused: somebody may be guessing queue pairs or keys of memory"
                );
            }
            // What was few in a period is not added up over days.
            told = now;
            let left_out = self.lines().renew();
            if left_out > 0 {
                tracing::warn!(left_out, "more sessions of RDMA ended or failed to begin than there are lines for");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_are_written_and_the_rest_counted() {
        let lines = Lines::default();
        for _ in 0..2 {
            assert_eq!((0..1000).filter(|_| lines.take()).count(), LINES_MAX as usize);
            assert_eq!(lines.renew(), 1000 - u64::from(LINES_MAX));
        }
        assert!(lines.take());
        assert_eq!(lines.renew(), 0);
    }

    #[test]
    fn late_packets_are_not_worth_a_line_and_guesses_are() {
        let before = [1, 2, 3, 4];
        assert_eq!(worth_telling(before, before), None);
        assert_eq!(worth_telling(before, [1, 2, 53, 54]), None);
        assert_eq!(worth_telling(before, [1, 2, 54, 54]), Some([0, 0, 51, 50]));
        assert_eq!(worth_telling(before, [2, 2, 3, 4]), Some([1, 0, 0, 0]));
        assert_eq!(worth_telling(before, [1, 3, 3, 4]), Some([0, 1, 0, 0]));
    }
}
