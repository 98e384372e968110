//! Formats of our own making, and what stock tools exchange out of band.
//!
//! | module | bytes |
//! | --- | --- |
//! | [`pingpong`] | the TCP line of `ibv_rc_pingpong` |
//! | [`perftest`] | the TCP messages of `ib_write_bw` and its kin |
//! | [`record`] | 64 bytes in front of every payload that flow 1 stores |
//! | [`datagram`] | 24 bytes in front of every test datagram, and its acknowledgements |

pub mod datagram;
pub mod perftest;
pub mod pingpong;
pub mod record;

use crate::wire::Malformed;

/// A number in hexadecimal digits: no sign, no space, no shortened form.
fn hex(digits: &[u8]) -> Result<u128, Malformed> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = (*digit as char).to_digit(16).ok_or(Malformed::Field)?;
        Ok(value << 4 | u128::from(digit))
    })
}
