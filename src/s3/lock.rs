//! Object Lock: what holds a version of an object, and what may be done to it all the same.
//!
//! It is kept among the version's labels, and judged there where they are changed: under the store's lock of the name.

use super::fields::{self, Unreadable};
use super::labels::Labels;
use super::xml::lock::{HoldStatus, Mode, ObjectLockConfiguration, Period};
use crate::store::failure::{Failure, Outcome};

/// A day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Days of a year: 36,500 of them are a hundred years (User Guide, "Object Lock considerations").
const YEAR_DAYS: u64 = 365;

/// A time that a version is held for: how firmly, and until when in milliseconds since 1970 (UTC).
pub type Until = (Mode, u64);

/// What holds a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// Its retention, which may be over.
    pub retention: Option<Until>,
    /// Its legal hold, if it was ever spoken of.
    pub legal_hold: Option<HoldStatus>,
}

/// Who wants to remove what is held, or to hold it less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// When, in milliseconds since 1970 (UTC).
    pub now_ms: u64,
    /// What governance holds does not stop them: they have asked for that, and may.
    pub bypasses: bool,
}

/// Why a version stays, and is held as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Held {
    /// Until somebody lets go of it.
    #[error("Access Denied because object protected by object lock: it has a legal hold.")]
    Hold,
    /// For a time.
    #[error("Access Denied because object protected by object lock: its retention is not over.")]
    Retention,
}

impl From<Held> for Failure {
    fn from(held: Held) -> Failure {
        Failure::Refused(held.to_string())
    }
}

impl Lock {
    /// What holds it at that time, of its retention.
    fn standing(&self, now_ms: u64) -> Option<Until> {
        self.retention.filter(|(_, until_ms)| *until_ms > now_ms)
    }

    /// Whether a version that is held so may be removed.
    ///
    /// # Errors
    /// What holds it.
    pub fn check_removal(&self, by: Challenge) -> Result<(), Held> {
        if self.legal_hold == Some(HoldStatus::On) {
            return Err(Held::Hold);
        }
        match self.standing(by.now_ms) {
            None => Ok(()),
            Some((Mode::Governance, _)) if by.bypasses => Ok(()),
            Some(_) => Err(Held::Retention),
        }
    }

    /// Whether a version that is held so may have this retention in the place of its own: the same one or a longer one always.
    ///
    /// # Errors
    /// It may not.
    pub fn check_retention(&self, to: Option<Until>, by: Challenge) -> Result<(), Held> {
        let Some((mode, until_ms)) = self.standing(by.now_ms) else { return Ok(()) };
        let is_as_firm = to.is_some_and(|(to_mode, to_ms)| to_mode == mode && to_ms >= until_ms);
        if is_as_firm || mode == Mode::Governance && by.bypasses { Ok(()) } else { Err(Held::Retention) }
    }

    /// Its retention where none was asked for: the bucket's, from when it was put.
    pub fn or_default(self, bucket: Option<&ObjectLockConfiguration>, put_ms: u64) -> Lock {
        let usual = bucket.and_then(|bucket| bucket.default_retention).map(|(mode, period)| {
            let days = match period {
                Period::Days(days) => u64::from(days),
                Period::Years(years) => u64::from(years) * YEAR_DAYS,
            };
            (mode, put_ms + days * DAY_MS)
        });
        Lock { retention: self.retention.or(usual), ..self }
    }
}

impl Challenge {
    /// Judges for the store whether a version with these labels may be removed.
    ///
    /// # Errors
    /// `Refused`: it is held. `Corrupt`: nobody knows.
    pub fn judge(self, labels: &[u8]) -> Outcome<()> {
        Ok(Labels::kept(labels)?.lock.check_removal(self)?)
    }
}

/// A retention as labels have it: a byte of the mode, and the time.
pub fn retention_to_bytes((mode, until_ms): Until) -> [u8; 9] {
    let mut bytes = [0; 9];
    bytes[0] = match mode {
        Mode::Governance => 1,
        Mode::Compliance => 2,
    };
    bytes[1..].copy_from_slice(&until_ms.to_le_bytes());
    bytes
}

/// Reads it.
///
/// # Errors
/// `Unreadable`: it is none.
pub fn retention_from_bytes(bytes: &[u8]) -> Result<Until, Unreadable> {
    let mode = match bytes.first() {
        Some(1) => Mode::Governance,
        Some(2) => Mode::Compliance,
        _ => return Err(Unreadable),
    };
    Ok((mode, fields::number(&bytes[1..])?))
}

/// A legal hold as labels have it.
pub fn hold_to_bytes(status: HoldStatus) -> [u8; 1] {
    [u8::from(status == HoldStatus::On)]
}

/// Reads it.
///
/// # Errors
/// `Unreadable`: it is none.
pub fn hold_from_bytes(bytes: &[u8]) -> Result<HoldStatus, Unreadable> {
    match bytes {
        [0] => Ok(HoldStatus::Off),
        [1] => Ok(HoldStatus::On),
        _ => Err(Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Compliance, Governance};

    const NOW: u64 = 1_000_000;

    fn lock(retention: Option<Until>, legal_hold: Option<HoldStatus>) -> Lock {
        Lock { retention, legal_hold }
    }

    fn by(bypasses: bool) -> Challenge {
        Challenge { now_ms: NOW, bypasses }
    }

    #[test]
    fn removal() {
        use HoldStatus::{Off, On};
        for (retention, hold, plain, bypassing) in [
            (None, None, Ok(()), Ok(())),
            (None, Some(Off), Ok(()), Ok(())),
            (None, Some(On), Err(Held::Hold), Err(Held::Hold)),
            (Some((Governance, NOW + 1)), None, Err(Held::Retention), Ok(())),
            (Some((Governance, NOW + 1)), Some(On), Err(Held::Hold), Err(Held::Hold)),
            (Some((Compliance, NOW + 1)), Some(Off), Err(Held::Retention), Err(Held::Retention)),
            (Some((Governance, NOW)), None, Ok(()), Ok(())),
            (Some((Compliance, NOW)), None, Ok(()), Ok(())),
            (Some((Compliance, NOW)), Some(On), Err(Held::Hold), Err(Held::Hold)),
        ] {
            let lock = lock(retention, hold);
            assert_eq!((lock.check_removal(by(false)), lock.check_removal(by(true))), (plain, bypassing), "{lock:?}");
            let labels = Labels { lock, ..Labels::default() }.to_bytes();
            assert_eq!(by(false).judge(&labels).is_ok(), plain.is_ok(), "{lock:?}");
        }
        assert!(matches!(by(true).judge(&[9]), Err(Failure::Corrupt(_))), "what nobody can read is held");
    }

    #[test]
    fn change_of_retention() {
        let (sooner, until, later) = (NOW + 10, NOW + 20, NOW + 30);
        for (from, to, plain, bypassing) in [
            (None, Some((Compliance, sooner)), true, true),
            (Some((Governance, until)), Some((Governance, until)), true, true),
            (Some((Governance, until)), Some((Governance, later)), true, true),
            (Some((Governance, until)), Some((Governance, sooner)), false, true),
            (Some((Governance, until)), Some((Compliance, later)), false, true),
            (Some((Governance, until)), None, false, true),
            (Some((Compliance, until)), Some((Compliance, until)), true, true),
            (Some((Compliance, until)), Some((Compliance, later)), true, true),
            (Some((Compliance, until)), Some((Compliance, sooner)), false, false),
            (Some((Compliance, until)), Some((Governance, later)), false, false),
            (Some((Compliance, until)), None, false, false),
            (Some((Compliance, NOW)), None, true, true),
            (Some((Compliance, NOW)), Some((Governance, sooner)), true, true),
        ] {
            // A legal hold is apart from it.
            for hold in [None, Some(HoldStatus::On)] {
                let lock = lock(from, hold);
                let may = |bypasses| lock.check_retention(to, by(bypasses)).is_ok();
                assert_eq!((may(false), may(true)), (plain, bypassing), "{lock:?} to {to:?}");
            }
        }
    }

    #[test]
    fn what_a_bucket_has_where_nothing_is_asked_for() {
        let rule = |mode, period| ObjectLockConfiguration { default_retention: Some((mode, period)) };
        let none = Lock::default();
        assert_eq!(none.or_default(None, NOW), none);
        assert_eq!(none.or_default(Some(&ObjectLockConfiguration::default()), NOW), none);
        let days = rule(Governance, Period::Days(3));
        assert_eq!(none.or_default(Some(&days), NOW).retention, Some((Governance, NOW + 3 * DAY_MS)));
        let years = rule(Compliance, Period::Years(2));
        assert_eq!(none.or_default(Some(&years), NOW).retention, Some((Compliance, NOW + 730 * DAY_MS)));
        let own = lock(Some((Governance, NOW + 1)), Some(HoldStatus::On));
        assert_eq!(own.or_default(Some(&years), NOW), own);
        let held = lock(None, Some(HoldStatus::On)).or_default(Some(&days), NOW);
        assert_eq!(held, lock(Some((Governance, NOW + 3 * DAY_MS)), Some(HoldStatus::On)));
    }
}
