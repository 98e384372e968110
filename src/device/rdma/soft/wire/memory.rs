//! Where HCAs of one process meet: a table of links of which one end waits.
//!
//! Control path only; the lock is never taken for a frame.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
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
        if let Some((map, socket)) = waiting.remove(&(self.own, peer)) {
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

impl Drop for Meeting {
    fn drop(&mut self) {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = waiting.as_mut() {
            // What nobody took; and what was left for us closes, so that its maker sees us gone.
            waiting.retain(|&(second, first), _| first != self.own && second != self.own);
        }
    }
}
