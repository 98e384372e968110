//! Numbers that must not be swapped for one another.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

unit!(
    /// A logical block address, counted in the block size of the device it belongs to.
    Lba(u64), "{}"
);
unit!(
    /// A byte offset from the start of a region; also the UMEM address of that byte.
    RegionOffset(u64), "{:#x}"
);
unit!(
    /// The key by which a peer names a granted range of memory.
    Rkey(u32), "{:#010x}"
);
unit!(
    /// A queue pair number: 24 bits on the wire.
    Qpn(u32), "{:#08x}"
);

/// A packet sequence number: 24-bit serial arithmetic (InfiniBand specification 9.7.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Psn(u32);

impl Psn {
    /// The bits a PSN has on the wire.
    pub const MASK: u32 = 0x00ff_ffff;

    /// The PSN with the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Psn {
        Psn(value & Psn::MASK)
    }

    /// The 24-bit number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `count` packets later. Named as what it does on the wire; PSNs wrap, so `Add` would mislead.
    #[inline]
    pub const fn advance(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// Signed distance from `from` to `self`: positive when `self` is later, in −2²³ … 2²³−1.
    #[inline]
    pub const fn since(self, from: Psn) -> i32 {
        // Shift the 24-bit difference to the top of the word so that the arithmetic shift extends its sign.
        (self.0.wrapping_sub(from.0) << 8) as i32 >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Bytes as a person reads them: `1.5 GiB`, `512 B`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 { format!("{value:.0} {}", UNITS[unit]) } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Reads a size as people write it: `4096`, `64K`, `64KiB`, `1G`. Suffixes are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let number: u64 =
        number.parse().map_err(|_| format!("'{text}' is not a size: write a number of bytes or one with K, M, G or T, such as 64K"))?;
    let shift = match suffix.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("'{text}' has an unknown unit '{}': use K, M, G or T", suffix.trim())),
    };
    number.checked_mul(1u64 << shift).ok_or_else(|| format!("'{text}' is larger than 2^64 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps_at_24_bits() {
        assert_eq!(Psn::new(0).since(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0xff_fffe).advance(3), Psn::new(1));
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64K"), Ok(65536));
        assert_eq!(parse_bytes("1GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes("2 mb"), Ok(2 << 20));
        assert!(parse_bytes("ten").unwrap_err().contains("'ten'"));
        assert!(parse_bytes("5X").unwrap_err().contains("unknown unit"));
        assert!(parse_bytes("99999999999T").unwrap_err().contains("larger"));
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(1 << 30), "1 GiB");
        assert_eq!(human_bytes(17), "17 B");
    }
}
