//! Times that the wire carries as 5-bit codes.

use crate::base::Nanos;

/// The ACK timeout: code n stands for 4.096 µs · 2ⁿ, 0 for none (InfiniBand specification 9.9.2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// 67 ms, what `ibv_rc_pingpong` and most programs use.
    pub const USUAL: AckTimeout = AckTimeout(14);

    /// The code's low five bits.
    pub const fn new(code: u8) -> AckTimeout {
        AckTimeout(code & 0x1f)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The shortest code that lasts at least `span`.
    pub fn at_least(span: Nanos) -> AckTimeout {
        (1..=31).map(AckTimeout).find(|timeout| timeout.span() >= span).unwrap_or(AckTimeout(31))
    }

    /// How long it lasts; [`Nanos::MAX`] for none.
    pub const fn span(self) -> Nanos {
        if self.0 == 0 { Nanos::MAX } else { Nanos(4096 << self.0) }
    }
}

/// The RNR NAK timer: how long a requester waits before it tries a responder again that had no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// InfiniBand specification table 45, in units of 10 µs.
const RNR_TENS_OF_MICROS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
    16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// 640 µs, what `ibv_rc_pingpong` and most programs use.
    pub const USUAL: RnrTimer = RnrTimer(12);

    /// The code's low five bits.
    pub const fn new(code: u8) -> RnrTimer {
        RnrTimer(code & 0x1f)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long it lasts: 10 µs to 655.36 ms.
    pub const fn span(self) -> Nanos {
        Nanos::from_micros(RNR_TENS_OF_MICROS[self.0 as usize] as u64 * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_specification() {
        assert_eq!(AckTimeout::new(14).span(), Nanos(67_108_864));
        assert_eq!(AckTimeout::new(0).span(), Nanos::MAX);
        assert_eq!(AckTimeout::at_least(Nanos::from_millis(500)).code(), 17);
        assert_eq!(AckTimeout::at_least(Nanos::MAX).code(), 31);
        assert_eq!(RnrTimer::new(1).span(), Nanos::from_micros(10));
        assert_eq!(RnrTimer::new(12).span(), Nanos::from_micros(640));
        assert_eq!(RnrTimer::new(31).span(), Nanos::from_micros(491_520));
        assert_eq!(RnrTimer::new(0).span(), Nanos::from_micros(655_360));
        assert!((2..32).all(|code| RnrTimer::new(code).span() > RnrTimer::new(code - 1).span()));
    }
}
