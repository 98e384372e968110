//! What lists tell of an object beside its name, time, size and ETag: the algorithm of its checksum and its storage class. The store's
//! index has two bytes for it, so that a list need not read the objects.
//!
//! Bits: 0 to 2 the algorithm, 3 whether the checksum is of all bytes, 4 to 7 the storage class, 15 that it is told at all: objects of
//! older stores do not say it.

use super::checksum::{Algorithm, Kind};
use super::meta::Meta;

/// Those that an object can be put with; all are kept in the same way. Stores have their places here: another one goes to the end.
pub const STORAGE_CLASSES: [&str; 7] =
    ["STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "EXPRESS_ONEZONE"];

const IS_TOLD: u16 = 1 << 15;
const FULL_OBJECT: u16 = 1 << 3;
const CLASS_SHIFT: u32 = 4;

const _: () = assert!(Algorithm::ALL.len() <= 8 && STORAGE_CLASSES.len() <= 16);

/// What lists tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Of its checksum.
    pub checksum: Option<(Algorithm, Kind)>,
    /// Where it is not the usual one of its bucket.
    pub storage_class: Option<&'static str>,
}

impl Listed {
    /// Of an object that has all this, as the index keeps it.
    pub fn of(meta: &Meta) -> u16 {
        let (algorithm, kind) = match &meta.checksum {
            Some(checksum) => (checksum.algorithm, checksum.kind),
            // The store's own: Meta::or_crc.
            None => (Algorithm::Crc64Nvme, Kind::FullObject),
        };
        let algorithm = Algorithm::ALL.iter().position(|one| *one == algorithm).expect("it is one of all");
        let class = meta.storage_class.as_deref().and_then(|class| STORAGE_CLASSES.iter().position(|one| *one == class));
        let kind = if kind == Kind::FullObject { FULL_OBJECT } else { 0 };
        IS_TOLD | (class.unwrap_or(0) as u16) << CLASS_SHIFT | kind | algorithm as u16
    }

    /// Reads it; nothing is told of what a newer version would have written.
    pub fn read(kept: u16) -> Listed {
        if kept & IS_TOLD == 0 {
            return Listed::default();
        }
        let kind = if kept & FULL_OBJECT != 0 { Kind::FullObject } else { Kind::Composite };
        let class = usize::from(kept >> CLASS_SHIFT & 15);
        Listed {
            checksum: Algorithm::ALL.get(usize::from(kept & 7)).map(|&algorithm| (algorithm, kind)),
            storage_class: STORAGE_CLASSES.get(class).copied().filter(|_| class > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::meta::Checksum;

    #[test]
    fn it_is_read_as_it_was_written() {
        for algorithm in Algorithm::ALL {
            for kind in [Kind::Composite, Kind::FullObject] {
                for class in STORAGE_CLASSES {
                    let checksum = Some(Checksum { algorithm, kind, value: [1].into() });
                    let meta = Meta { checksum, storage_class: Some(class.into()), ..Meta::default() };
                    let storage_class = Some(class).filter(|class| *class != "STANDARD");
                    assert_eq!(Listed::read(Listed::of(&meta)), Listed { checksum: Some((algorithm, kind)), storage_class });
                }
            }
        }
    }

    #[test]
    fn who_says_nothing_has_the_checksum_of_the_store_and_older_stores_tell_nothing() {
        let checksum = Some((Algorithm::Crc64Nvme, Kind::FullObject));
        assert_eq!(Listed::read(Listed::of(&Meta::default())), Listed { checksum, storage_class: None });
        assert_eq!(Listed::read(0), Listed::default());
    }

    /// These bytes lie in stores.
    #[test]
    fn its_bits_stay_as_they_are() {
        let checksum = |algorithm, kind| Some(Checksum { algorithm, kind, value: [1].into() });
        assert_eq!(Listed::of(&Meta::default()), 0x800a);
        let sha256 = Meta { checksum: checksum(Algorithm::Sha256, Kind::Composite), ..Meta::default() };
        assert_eq!(Listed::of(&Meta { storage_class: Some("GLACIER_IR".into()), ..sha256 }), 0x8054);
    }

    #[test]
    fn no_bits_make_it_panic() {
        for kept in 0..=u16::MAX {
            let _ = Listed::read(kept);
        }
    }
}
