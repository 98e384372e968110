//! What a client has opened to the server for one request: one window, or several that are one memory in their order.
//!
//! It is used up from the front on, in pieces none of which goes across the end of a window: nothing else of the client's memory is asked
//! for, whatever its list says.

use crate::device::rdma::Remote;
use crate::wire::s3::Memory;
use crate::wire::s3::frame::Request;

/// Windows that are not used up yet.
pub struct Windows {
    /// What is left of the first of them.
    front: Memory,
    /// The others, from the last to the second; most requests have none.
    behind: Vec<Memory>,
    /// Bytes in all of them.
    bytes: u64,
}

impl From<Memory> for Windows {
    fn from(memory: Memory) -> Windows {
        Windows { front: memory, behind: Vec::new(), bytes: memory.bytes }
    }
}

impl From<&Request<'_>> for Windows {
    /// Of a request: its list, or its one window.
    fn from(request: &Request<'_>) -> Windows {
        let [first, others @ ..] = request.list else { return request.window.into() };
        let behind = others.iter().rev().map(|listed| listed.memory()).collect();
        Windows { front: first.memory(), behind, bytes: request.window.bytes }
    }
}

impl Windows {
    /// Bytes that are left in all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next piece, of `most` bytes at most; nothing where nothing is left.
    pub fn front(&self, most: u32) -> Option<Remote> {
        let Memory { address, bytes, rkey } = self.front;
        let len = bytes.min(most.into()) as u32;
        (len > 0).then_some(Remote { address, rkey, len })
    }

    /// So many bytes of the front are used: those of a piece.
    ///
    /// # Panics
    /// With more than the window at the front has.
    pub fn advance(&mut self, bytes: u32) {
        let bytes = u64::from(bytes);
        assert!(bytes <= self.front.bytes, "a piece goes across the end of a window");
        self.front.address = self.front.address.wrapping_add(bytes);
        self.front.bytes -= bytes;
        self.bytes -= bytes;
        if self.front.bytes == 0
            && let Some(next) = self.behind.pop()
        {
            self.front = next;
        }
    }

    /// Nothing more is wanted of them.
    pub fn give_up(&mut self) {
        self.behind.clear();
        (self.front.bytes, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::s3::frame::WINDOWS_MAX;

    #[test]
    fn an_empty_window_has_no_piece() {
        let mut windows = Windows::from(Memory { address: 5, bytes: 0, rkey: 1 });
        assert!(windows.front(10).is_none() && windows.bytes() == 0);
        windows.give_up();
        assert!(windows.front(10).is_none());
    }

    proptest! {
        /// Whatever the pieces are: each is in one window, they follow one another, and in the end all bytes were asked for once.
        #[test]
        fn pieces_do_not_straddle(
            sizes in proptest::collection::vec(1u64..5000, 1..=WINDOWS_MAX),
            pieces in proptest::collection::vec(1u32..3000, 1..8),
        ) {
            let memory = |at: usize| Memory { address: (at as u64 + 1) << 20, bytes: sizes[at], rkey: at as u32 };
            let behind = (1..sizes.len()).rev().map(memory).collect();
            let mut windows = Windows { front: memory(0), behind, bytes: sizes.iter().sum() };
            let (mut at, mut within) = (0, 0);
            for most in pieces.iter().cycle() {
                let Some(Remote { address, rkey, len }) = windows.front(*most) else { break };
                prop_assert!(len > 0 && len <= *most);
                prop_assert_eq!((rkey as usize, address), (at, ((at as u64 + 1) << 20) + within));
                within += u64::from(len);
                prop_assert!(within <= sizes[at]);
                windows.advance(len);
                if within == sizes[at] {
                    (at, within) = (at + 1, 0);
                }
            }
            prop_assert_eq!((at, windows.bytes()), (sizes.len(), 0));
        }
    }
}
