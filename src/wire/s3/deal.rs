//! The shard map: which core of a server has which names. `1;0*128,1*128`: shards 0 to 127 are core 0's, the rest core 1's.
//!
//! The version is that of the text and of the rule by which a name has a shard. Whoever has an old map asks the wrong core, which answers
//! all the same.

use std::fmt;

use crate::wire::Malformed;
use crate::wire::store::shard;

/// Shards of a store.
pub const SHARDS: usize = 256;
/// The most bytes of the text: each shard with a core of its own, of three digits.
pub const TEXT_MAX: usize = 2 + SHARDS * "255*1,".len();

/// Which core has each shard.
#[derive(Clone, PartialEq, Eq)]
pub struct Deal {
    cores: [u8; SHARDS],
}

impl Deal {
    /// A deal as `core_of` says.
    pub fn new(core_of: impl Fn(u8) -> u8) -> Deal {
        Deal { cores: std::array::from_fn(|shard| core_of(shard as u8)) }
    }

    /// Reads `1;CORE*SHARDS,…`: all 256 shards, in order.
    ///
    /// # Errors
    /// Another version, or no such map.
    pub fn parse(text: &str) -> Result<Deal, Malformed> {
        let bad = Malformed::Field;
        let runs = text.strip_prefix("1;").filter(|_| text.len() <= TEXT_MAX).ok_or(bad)?;
        let (mut cores, mut next) = ([0; SHARDS], 0);
        for run in runs.split(',') {
            let (core, count) = run.split_once('*').ok_or(bad)?;
            let (core, count) = (number(core).ok_or(bad)?, number(count).filter(|&count| count > 0).ok_or(bad)?);
            let core = u8::try_from(core).map_err(|_| bad)?;
            cores.get_mut(next..next + count).ok_or(bad)?.fill(core);
            next += count;
        }
        if next == SHARDS { Ok(Deal { cores }) } else { Err(bad) }
    }

    /// The cores that it names: those up to the highest.
    pub fn cores(&self) -> usize {
        usize::from(self.cores.iter().copied().fold(0, u8::max)) + 1
    }

    /// The core that has a name in the bucket of this number.
    pub fn core(&self, bucket: u32, key: &[u8]) -> u8 {
        self.cores[usize::from(shard(bucket, key))]
    }
}

/// A number of up to three digits.
fn number(text: &str) -> Option<usize> {
    (matches!(text.len(), 1..=3) && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

impl fmt::Display for Deal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("1;")?;
        for (place, run) in self.cores.chunk_by(|one, next| one == next).enumerate() {
            write!(f, "{}{}*{}", if place == 0 { "" } else { "," }, run[0], run.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Deal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deal({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_told_and_read() {
        for (text, core_of) in [
            ("1;0*256", (|_| 0) as fn(u8) -> u8),
            ("1;0*128,1*128", |shard| shard / 128),
            ("1;0*86,1*85,2*85", |shard| (u16::from(shard) * 3 / 256) as u8),
        ] {
            let deal = Deal::new(core_of);
            assert_eq!(deal.to_string(), text);
            assert_eq!(Deal::parse(text), Ok(deal));
        }
        let longest = Deal::new(|shard| 255 - shard % 2);
        assert!(longest.to_string().len() <= TEXT_MAX && Deal::parse(&longest.to_string()) == Ok(longest));
        for text in [
            "",
            "1",
            "1;",
            "2;0*256",
            "1;0*255",
            "1;0*257",
            "1;0*256,",
            "1;0*256,1*1",
            "1;0*0,1*256",
            "1;256*256",
            "1;-1*256",
            "1;+0*256",
            "1; 0*256",
            "1;0*128;1*128",
            "1;0256",
            "1;0*1000",
            "1;0000*256",
        ] {
            assert!(Deal::parse(text).is_err(), "{text}");
        }
    }

    /// The vectors of docs/S3-RDMA.md.
    #[test]
    fn the_document_says_which_shard_a_name_has() {
        let document = include_str!("../../../docs/S3-RDMA.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| vector | ")).map(|line| line.split(" | ").collect::<Vec<_>>());
        let mut count = 0;
        for row in rows {
            let [bucket, key, crc, told] = row[..] else { panic!("{row:?}") };
            let (bucket, key) = (bucket.parse().unwrap(), key.trim_matches('`').as_bytes());
            let digits = |text: &str| text.trim_end_matches(" |").trim_matches('`').to_owned();
            assert_eq!(digits(crc), format!("{:016x}", crate::wire::store::name_crc(bucket, key)), "{row:?}");
            assert_eq!(digits(told), shard(bucket, key).to_string(), "{row:?}");
            count += 1;
        }
        assert!(count >= 4, "{count} vectors");
    }
}
