//! Messages between the cores of one launch: one bounded ring from each core to each other.
//!
//! A message may carry a [`Parcel`](crate::mem::Parcel), so that payload changes cores without being moved. Sending rings the
//! other core's bell, which wakes it only if it sleeps.

use std::cell::Cell;
use std::rc::Rc;

use crate::device::Signal;
use crate::mem::spsc::{self, Receiver, Sender};
use crate::reactor::Core;
use crate::reactor::remote::Remote;

/// Messages from one core to another that wait to be received. A batch of a few hundred hides a sleep of the receiver; a sender
/// that is further ahead is told so.
pub const MAILBOX_DEPTH: u32 = 256;

/// One core's mailboxes: to and from every core of the launch.
pub struct Mailboxes<M> {
    index: usize,
    to: Vec<(Sender<M>, &'static Remote)>,
    from: Vec<Receiver<M>>,
    /// The core that is looked at first next, so that none waits behind a busy one.
    turn: Cell<usize>,
    signal: Rc<Signal>,
}

/// A core's ends of the rings, before the core itself exists.
pub(super) struct Ends<M> {
    to: Vec<Sender<M>>,
    from: Vec<Receiver<M>>,
}

/// The rings between `cores` cores.
pub(super) fn rings<M: Send>(cores: usize) -> Vec<Ends<M>> {
    let mut ends: Vec<Ends<M>> = (0..cores).map(|_| Ends { to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..cores {
        for to in 0..cores {
            let (sender, receiver) = spsc::ring(MAILBOX_DEPTH);
            ends[from].to.push(sender);
            ends[to].from.push(receiver);
        }
    }
    ends
}

impl<M: Send> Mailboxes<M> {
    pub(super) fn new(index: usize, core: &Core, ends: Ends<M>, remotes: &[&'static Remote]) -> Mailboxes<M> {
        let signal = Rc::new(Signal::new(core.ops()));
        core.on_mail(signal.clone());
        let to = ends.to.into_iter().zip(remotes.iter().copied()).collect();
        Mailboxes { index, to, from: ends.from, turn: Cell::new(0), signal }
    }

    /// This core's number in the launch.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Cores of the launch, this one included.
    pub fn cores(&self) -> usize {
        self.to.len()
    }

    /// Sends a message to core `to`; to this core too, if that is asked.
    ///
    /// # Errors
    /// The message, when that mailbox is full: backpressure.
    ///
    /// # Panics
    /// When the launch has no core `to`.
    #[inline]
    pub fn try_send(&self, to: usize, message: M) -> Result<(), M> {
        let (sender, remote) = &self.to[to];
        sender.push(message)?;
        remote.ring();
        Ok(())
    }

    /// Whether core `to` has ended, or dropped its mailboxes: what is sent there will never be received.
    ///
    /// # Panics
    /// When the launch has no core `to`.
    pub fn has_ended(&self, to: usize) -> bool {
        self.to[to].0.is_abandoned()
    }

    /// The next message that is here, and who sent it.
    #[inline]
    pub fn try_recv(&self) -> Option<(usize, M)> {
        let cores = self.from.len();
        let first = self.turn.get();
        (0..cores).map(|step| (first + step) % cores).find_map(|from| {
            let message = self.from[from].pop()?;
            self.turn.set((from + 1) % cores);
            Some((from, message))
        })
    }

    /// The next message, and who sent it. For one task at a time.
    pub async fn recv(&self) -> (usize, M) {
        loop {
            if let Some(mail) = self.try_recv() {
                return mail;
            }
            self.signal.wait().await;
        }
    }
}
