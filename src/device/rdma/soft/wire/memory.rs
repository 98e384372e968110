//! Where HCAs of one process meet: a table of links of which one end waits.
//!
//! Control path only; the lock is never taken for a frame.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::Tag;
use super::link::Parts;
use super::ring::MAPPING_BYTES;
use crate::base::{Error, Result};

/// The second ends of links whose first end came already, by the tags of who is to come and who came.
type Waiting = HashMap<(Tag, Tag), (Arc<MmapRaw>, OwnedFd)>;

static WAITING: Mutex<Option<Waiting>> = Mutex::new(None);

/// One HCA's way to meet others.
pub struct Meeting {
    own: Tag,
}

/// Two HCAs can meet if they are in one process: the same process number of the same boot.
pub fn scope() -> String {
    format!("mem:{}:{}", super::shm::boot_id(), std::process::id())
}

impl Meeting {
    pub fn new(own: Tag) -> Meeting {
        Meeting { own }
    }

    /// Makes the link with `peer`, or takes the end that it left.
    pub fn meet(&mut self, peer: Tag) -> Result<Parts> {
        // Every change of the table is one insert or remove: a panic elsewhere cannot have left it half done.
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = waiting.get_or_insert_default();
        // One whose maker has closed it leads nowhere: the peer that is to come finds a new one.
        if let Some((map, socket)) = waiting.remove(&(self.own, peer))
            && !is_left(&socket)
        {
            return Ok(Parts { map, socket, first: false });
        }
        let map = MmapOptions::new().len(MAPPING_BYTES).map_anon().map_err(|error| Error::io("mapping frame rings", &error))?;
        let map = Arc::new(MmapRaw::from(map));
        let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
            .map_err(|errno| Error::from_errno("making a socket pair for a link", errno as i32))?;
        waiting.insert((peer, self.own), (map.clone(), there));
        Ok(Parts { map, socket: here, first: true })
    }
}

impl Meeting {
    /// Closes what peers have left for this end, so that they see that nobody comes.
    pub fn refuse(&self) {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = waiting.as_mut() {
            waiting.retain(|&(second, _), _| second != self.own);
        }
    }
}

/// Whether nobody is at the other end any more.
fn is_left(socket: &OwnedFd) -> bool {
    let mut ends = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    // A hang-up is told unasked, also before what was sent ahead of it is read.
    poll(&mut ends, PollTimeout::ZERO).is_ok() && ends[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = waiting.as_mut() {
            // What nobody took; and what was left for us closes, so that its maker sees us gone.
            waiting.retain(|&(second, first), _| first != self.own && second != self.own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meetings() -> [Meeting; 2] {
        let name = Tag::from(crate::base::Rng::from_kernel().u64());
        [Meeting::new(2 * name), Meeting::new(2 * name + 1)]
    }

    /// Who came first and has left again is not met.
    #[test]
    fn an_end_that_its_maker_has_closed_is_not_taken() {
        let [mut one, mut other] = meetings();
        let left = one.meet(other.own).unwrap();
        // A wake before the end is no sign of life.
        nix::sys::socket::send(std::os::fd::AsRawFd::as_raw_fd(&left.socket), &[1], nix::sys::socket::MsgFlags::empty()).unwrap();
        drop(left);
        let parts = other.meet(one.own).unwrap();
        assert!(parts.first, "a new link");
        let met = one.meet(other.own).unwrap();
        assert!(!met.first && Arc::ptr_eq(&parts.map, &met.map));
    }

    #[test]
    fn who_is_refused_sees_it() {
        let [mut one, other] = meetings();
        let parts = one.meet(other.own).unwrap();
        assert!(!is_left(&parts.socket));
        one.refuse();
        assert!(!is_left(&parts.socket), "it was left for the other");
        other.refuse();
        assert!(is_left(&parts.socket));
    }
}
