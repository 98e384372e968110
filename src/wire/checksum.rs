//! The Internet checksum (RFC 1071): the ones' complement of the ones' complement sum of 16-bit words.

/// A running sum. Pieces must start at even offsets of the checksummed data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum over `bytes` added to this one; an odd last byte is padded with zero.
    #[must_use]
    pub fn add(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<4>();
        // 32-bit words keep the ones' complement sum (2^32 ≡ 2^16 ≡ 1 mod 2^16 − 1) and cannot overflow 64 bits below 16 GiB.
        let mut sum = words.iter().fold(self.0, |sum, word| sum + u64::from(u32::from_be_bytes(*word)));
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_be_bytes(last));
        Sum(sum)
    }

    /// A 16-bit value added.
    #[must_use]
    pub fn add_u16(self, value: u16) -> Sum {
        Sum(self.0 + u64::from(value))
    }

    /// The checksum field's value. A header that carries a right checksum sums to 0.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&bytes).finish(), !0xddf2);
        assert_eq!(Sum::default().add(&bytes[..4]).add(&bytes[4..7]).finish(), Sum::default().add(&[&bytes[..7], &[0]].concat()).finish());
    }
}
