//! A signed request that makes a queue pair is taken once.
//!
//! Who has listened can send a request again, within the quarter of an hour that a signature is good for. Over HTTP that does what was
//! done already. Here it would make another queue pair, and another window, in the name of who signed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv6Addr;
use std::sync::{Mutex, PoisonError};

use super::connect::{CONNECT, PSN, TOKEN};
use super::hipobj::PREPARE;
use crate::base::{Psn, Qpn};
use crate::s3::auth::Verified;
use crate::s3::error::{Code, S3Error};
use crate::s3::request::Request;
use crate::wire::s3::token::{Endpoint, parse_psn};

/// Requests that are remembered, the latest: 48 bytes twice each. A signature is good for half an hour at most, and 36 queue pairs a
/// second is more than clients connect, which keep theirs. Where there are more, those go of the access key that has most: nobody makes
/// another one's be forgotten.
const TAKEN_MAX: usize = 1 << 16;

/// A request as its signature has fixed it: the client's end, and when that was signed.
type Told = (Qpn, Ipv6Addr, Psn, u64);

/// Requests that were taken, of all cores.
#[derive(Default)]
pub struct Taken {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    known: HashSet<Told>,
    /// By access key, the oldest first.
    in_order: HashMap<Box<str>, VecDeque<Told>>,
}

impl Taken {
    /// Takes a request that an access key has signed, unless it was before.
    fn take(&self, access_key: &str, told: Told) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.known.insert(told) {
            return false;
        }
        match inner.in_order.get_mut(access_key) {
            Some(of_key) => of_key.push_back(told),
            None => drop(inner.in_order.insert(access_key.into(), [told].into())),
        }
        if inner.known.len() > TAKEN_MAX
            && let Some(oldest) = inner.in_order.values_mut().max_by_key(|of_key| of_key.len()).and_then(VecDeque::pop_front)
        {
            inner.known.remove(&oldest);
        }
        true
    }
}

/// Takes a request, if it is one that makes a queue pair and its sender has signed it.
///
/// # Errors
/// `AccessDenied`: a queue pair was made by this very request.
pub fn check(taken: &Taken, request: &Request, verified: &Verified) -> Result<(), S3Error> {
    let Some(access_key) = &verified.access_key else { return Ok(()) };
    let token = request.text(TOKEN).and_then(|text| Endpoint::parse(text).ok());
    let psn = request.text(PSN).and_then(|text| parse_psn(text).ok());
    // What cannot be read is refused by who reads it.
    let (CONNECT | PREPARE, Some(token), Some(psn)) = (request.head.path(), token, psn) else { return Ok(()) };
    if taken.take(access_key, (token.qpn, token.gid, psn, verified.signed_ms)) {
        return Ok(());
    }
    Err(S3Error::with(Code::AccessDenied, "This request was made before. Connect a new queue pair, or sign anew."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_and_the_oldest_of_who_has_most_are_forgotten() {
        let taken = Taken::default();
        let told = |at: usize| (Qpn(at as u32), Ipv6Addr::LOCALHOST, Psn::new(1), 7);
        let other = (Qpn(7), Ipv6Addr::LOCALHOST, Psn::new(9), 7);
        assert!(taken.take("other", other));
        for at in 1..TAKEN_MAX {
            assert!(taken.take("key", told(at)));
        }
        assert!(!taken.take("key", told(1)) && !taken.take("key", told(TAKEN_MAX - 1)));
        let (qpn, gid, psn, signed) = told(1);
        assert!(taken.take("key", (qpn, gid, psn, signed + 1)), "signed again it is another");
        assert!(taken.take("key", told(1)), "one more came, and the oldest went");
        assert!(!taken.take("other", other), "another one's is remembered");
        let inner = taken.inner.lock().unwrap();
        assert_eq!((inner.known.len(), inner.in_order.values().map(VecDeque::len).sum::<usize>()), (TAKEN_MAX, TAKEN_MAX));
    }
}
