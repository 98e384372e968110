//! The canonical identifier of an account: what owners and grantees are told by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A canonical user identifier: 64 hexadecimal digits (S3 user guide, "Finding the canonical user ID for your AWS account").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CanonicalId([u8; 32]);

/// Not a canonical identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a canonical identifier has 64 hexadecimal digits")]
pub struct NotCanonical;

/// Digits of the identifier of who did not sign; it is half as long as the others.
const ANONYMOUS_DIGITS: usize = 32;

impl CanonicalId {
    /// Who did not sign. S3 tells it as 65a011a29cdf8ec533ec3d1ccaae921c where an object was put without a signature.
    pub const ANONYMOUS: CanonicalId = {
        let mut bytes = [0; 32];
        bytes.split_at_mut(16).0.copy_from_slice(&0x65a011a29cdf8ec533ec3d1ccaae921c_u128.to_be_bytes());
        CanonicalId(bytes)
    };

    /// Of these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> CanonicalId {
        CanonicalId(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for CanonicalId {
    type Err = NotCanonical;

    fn from_str(text: &str) -> Result<CanonicalId, NotCanonical> {
        let digits = text.as_bytes();
        if digits.len() != 64 && digits.len() != ANONYMOUS_DIGITS {
            return Err(NotCanonical);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(NotCanonical);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        let id = CanonicalId(bytes);
        // One identifier has one text.
        if (digits.len() == ANONYMOUS_DIGITS) == (id == CanonicalId::ANONYMOUS) { Ok(id) } else { Err(NotCanonical) }
    }
}

impl TryFrom<String> for CanonicalId {
    type Error = NotCanonical;

    fn try_from(text: String) -> Result<CanonicalId, NotCanonical> {
        text.parse()
    }
}

impl From<CanonicalId> for String {
    fn from(id: CanonicalId) -> String {
        id.to_string()
    }
}

impl fmt::Display for CanonicalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = if *self == CanonicalId::ANONYMOUS { &self.0[..ANONYMOUS_DIGITS / 2] } else { &self.0[..] };
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CanonicalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let text = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be";
        assert_eq!(text.parse::<CanonicalId>().unwrap().to_string(), text);
        assert_eq!(text.to_uppercase().parse::<CanonicalId>().unwrap().to_string(), text);
        let anonymous = "65a011a29cdf8ec533ec3d1ccaae921c";
        assert_eq!(anonymous.parse(), Ok(CanonicalId::ANONYMOUS));
        assert_eq!(CanonicalId::ANONYMOUS.to_string(), anonymous);
        let padded = format!("{anonymous}{}", "0".repeat(32));
        for bad in ["", "_foo", &text[1..], &text[..32], &text.replace('9', "g"), &text.replace("79", "+9"), &padded] {
            assert_eq!(bad.parse::<CanonicalId>(), Err(NotCanonical), "{bad}");
        }
        let json = serde_json::to_string(&text.parse::<CanonicalId>().unwrap()).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<CanonicalId>(&json).unwrap().to_string(), text);
        assert!(serde_json::from_str::<CanonicalId>("\"_foo\"").is_err());
    }
}
