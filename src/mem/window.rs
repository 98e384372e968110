//! A run that a peer may read or write by rkey.
//!
//! While a peer can write to it nobody here has a slice of it: what lies there is hostile. It becomes a run again only
//! against a [`Revoked`], which the RDMA layer makes after the invalidate succeeded or the queue pair was reset or destroyed.

use std::mem::ManuallyDrop;

use crate::mem::Run;

/// Proof that no peer can reach a window any more. Made by `device::rdma` only.
#[derive(Debug)]
pub struct Revoked {
    rkey: u32,
    device: usize,
}

impl Revoked {
    /// To be made only where the grant `rkey` of `device` is known to be gone.
    pub(crate) fn new(rkey: u32, device: usize) -> Revoked {
        Revoked { rkey, device }
    }
}

/// A run open to a peer. Dropped while open, its chunks are quarantined: the peer may still write to them.
#[must_use = "a window that is dropped open quarantines its chunks"]
#[derive(Debug)]
pub struct Window {
    run: ManuallyDrop<Run>,
    rkey: u32,
    /// Which device it is open on: keys of several may be the same.
    device: usize,
    is_only_read: bool,
}

impl Window {
    /// Opens a run under `rkey` of `device`. The caller, `device::rdma`, has just granted it; `device::zcrx` gives it to the kernel.
    pub(crate) fn open(run: Run, rkey: u32, device: usize) -> Window {
        run.count_published();
        Window { run: ManuallyDrop::new(run), rkey, device, is_only_read: false }
    }

    /// The same of one that the peer can only read.
    pub(crate) fn open_to_readers(run: Run, rkey: u32, device: usize) -> Window {
        let mut window = Window::open(run, rkey, device);
        window.is_only_read = true;
        window
    }

    /// The bytes, if the peer can only read them.
    pub fn read_only_slice(&self) -> Option<&[u8]> {
        self.is_only_read.then(|| self.run.as_slice())
    }

    /// Which device it is open on.
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// The key the peer uses.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address the peer uses.
    pub fn address(&self) -> u64 {
        self.run.address()
    }

    /// Bytes open to the peer.
    pub fn len(&self) -> u32 {
        self.run.len()
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        self.run.is_empty()
    }

    /// Ends the grant and gives the run back.
    ///
    /// # Panics
    /// When the proof is for another key: a bug of ours.
    pub fn close(self, proof: Revoked) -> Run {
        assert_eq!((proof.rkey, proof.device), (self.rkey, self.device), "a window closed with another window's proof");
        let mut window = ManuallyDrop::new(self);
        // SAFETY: `window` is never used or dropped again, so the run is taken exactly once.
        let run = unsafe { ManuallyDrop::take(&mut window.run) };
        run.count_revoked();
        run
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once and nothing reads the run after it.
        let run = unsafe { ManuallyDrop::take(&mut self.run) };
        run.count_revoked();
        run.quarantine();
    }
}
