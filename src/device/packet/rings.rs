//! The four rings an AF_XDP socket shares with the kernel: fill and TX, where we produce, and RX and completion, where we consume.
//!
//! Each is a power of two of entries behind a producer and a consumer index in shared memory. Whoever produces writes entries
//! first and publishes them by the index (release); whoever consumes reads the index first (acquire). Each side keeps a private
//! copy of the other's index and rereads it only when the copy says full or empty. Nobody but us and the kernel touches a ring,
//! and on our side one core does (`!Send`).

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::{Error, Result};

/// A packet on the RX and TX rings: address in the UMEM, length, options.
pub type Descriptor = libc::xdp_desc;

/// Which ring of the socket to map: `XDP_PGOFF_*` and the offsets the kernel reports for it.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Chunks for the kernel to receive into.
    Fill,
    /// Chunks the kernel has sent.
    Completion,
    /// Packets received.
    Rx,
    /// Packets to send.
    Tx,
}

/// One ring, mapped. `T` is what an entry is.
struct Ring<T> {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries that the socket has been told to make.
    fn map(socket: BorrowedFd<'_>, kind: Kind, size: u32, offsets: &libc::xdp_mmap_offsets) -> Result<Ring<T>> {
        let (name, page_offset, offset) = match kind {
            Kind::Fill => ("fill", libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t, &offsets.fr),
            Kind::Completion => ("completion", libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t, &offsets.cr),
            Kind::Rx => ("RX", libc::XDP_PGOFF_RX_RING, &offsets.rx),
            Kind::Tx => ("TX", libc::XDP_PGOFF_TX_RING, &offsets.tx),
        };
        let bytes = offset.desc as usize + size as usize * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let sharing = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a fresh mapping at an address the kernel chooses; nothing else is affected.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, sharing, socket.as_raw_fd(), page_offset) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os(format!("mapping the {name} ring of an AF_XDP socket")));
        }
        let base = NonNull::new(base.cast::<u8>()).expect("mmap does not return null");
        // SAFETY: the offsets are the kernel's own for this ring, and all four objects lie in the `bytes` just mapped: the
        // indices and flags before the entries, `size` entries at `desc`. The kernel aligns each for its type.
        unsafe {
            Ok(Ring {
                mapping: base,
                mapping_bytes: bytes,
                producer: base.add(offset.producer as usize).cast(),
                consumer: base.add(offset.consumer as usize).cast(),
                flags: base.add(offset.flags as usize).cast(),
                entries: base.add(offset.desc as usize).cast(),
                size,
            })
        }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: mapped as long as `self`; shared with the kernel, so it is only ever used as an atomic.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as `producer`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: masked, the index is below `size`, and `size` entries are mapped.
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; every pointer into it goes with `self`. Unmapping lets go of the socket's file,
        // without which closing the descriptor would not close the socket.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// A ring we fill and the kernel empties.
pub struct Producer<T> {
    ring: Ring<T>,
    /// Entries written, published or not.
    next: u32,
    /// Entries published.
    published: u32,
    /// What the kernel was last seen to have consumed.
    consumed: u32,
    core: PhantomData<*mut ()>,
}

impl<T: Copy> Producer<T> {
    /// Maps the ring of `size` entries; `size` is the power of two the socket was set up with.
    pub fn map(socket: BorrowedFd<'_>, kind: Kind, size: u32, offsets: &libc::xdp_mmap_offsets) -> Result<Producer<T>> {
        Ok(Producer { ring: Ring::map(socket, kind, size, offsets)?, next: 0, published: 0, consumed: 0, core: PhantomData })
    }

    /// Entries in the ring.
    pub fn size(&self) -> u32 {
        self.ring.size
    }

    /// Entries that may be written now. Looks at the kernel's index only when fewer than `wanted` are known to be free.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> u32 {
        let known = self.ring.size - self.next.wrapping_sub(self.consumed);
        if known >= wanted {
            return known;
        }
        self.ring.size - self.pending()
    }

    /// Entries the kernel has not consumed, those not yet published included.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        // Acquire: the kernel has read the entries it says it consumed before we overwrite them.
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        // The kernel never consumes what was not published; were the shared page corrupted, `min` keeps the arithmetic in bounds.
        self.next.wrapping_sub(self.consumed).min(self.ring.size)
    }

    /// Writes the next entry. It is seen by the kernel after [`Producer::publish`].
    ///
    /// # Panics
    /// When the ring is full: callers ask [`Producer::free`] first.
    #[inline]
    pub fn push(&mut self, entry: T) {
        assert!(self.next.wrapping_sub(self.consumed) < self.ring.size, "an entry too many for the ring");
        // SAFETY: the entry is free: the kernel consumed what was there (checked above) and reads it again only once published.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Lets the kernel see every entry written so far; false when there was none.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        // Release: the entries are written before the index that covers them.
        self.ring.producer().store(self.next, Ordering::Release);
        true
    }

    /// Whether the kernel asks to be called before it looks at the ring again.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring the kernel fills and we empty.
pub struct Consumer<T> {
    ring: Ring<T>,
    /// Entries taken.
    next: u32,
    /// What the kernel was last seen to have produced.
    produced: u32,
    core: PhantomData<*mut ()>,
}

impl<T: Copy> Consumer<T> {
    /// Maps the ring of `size` entries; `size` is the power of two the socket was set up with.
    pub fn map(socket: BorrowedFd<'_>, kind: Kind, size: u32, offsets: &libc::xdp_mmap_offsets) -> Result<Consumer<T>> {
        Ok(Consumer { ring: Ring::map(socket, kind, size, offsets)?, next: 0, produced: 0, core: PhantomData })
    }

    /// Entries there to be taken.
    #[inline]
    pub fn available(&mut self) -> u32 {
        // Acquire: we read the entries only after the index that covers them.
        self.produced = self.ring.producer().load(Ordering::Acquire);
        self.produced.wrapping_sub(self.next).min(self.ring.size)
    }

    /// How many entries the kernel has ever produced, modulo 2³²: tells whether something came since the last look.
    #[inline]
    pub fn produced(&self) -> u32 {
        self.ring.producer().load(Ordering::Relaxed)
    }

    /// Whether there are entries not taken of those the kernel had produced when [`Consumer::produced`] gave `produced`.
    #[inline]
    pub fn has_left(&self, produced: u32) -> bool {
        // What came since then may have been taken, too.
        self.next.wrapping_sub(produced).cast_signed() < 0
    }

    /// Takes the next entry, if [`Consumer::available`] has seen one. Its place is the kernel's again after [`Consumer::release`].
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.next == self.produced {
            return None;
        }
        // SAFETY: the entry lies before the producer index read with acquire, so the kernel has written it and leaves it alone
        // until the consumer index passes it. Every bit pattern is a valid entry (integers).
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of all entries taken back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        // Release: we have read the entries before the kernel may overwrite them.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
