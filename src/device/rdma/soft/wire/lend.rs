//! Memory that one end of a link lends to the other: a READ of it is one copy, made by the HCA that asks.
//!
//! Over a link a payload is copied into a ring and out of it, by two processors. An end that lends passes its region's memfd on, and a
//! *board* on which its HCA writes what it grants. The other end's HCA then does what a NIC does, which reaches the memory of both: it
//! finds the grant on the board, copies, and looks whether the grant still stands. If not, what came is void.
//!
//! ```text
//! message:  "basinle1" | the region's first address 8 | its bytes 8      with two descriptors, both to be read only: region, board
//! board:    entry 0 | entry 1 | ...      a grant is in one of the few entries from its key's own on, or not on the board
//! entry:    key << 32 | queue pair, 0 while there is none | first address | turn << 32 | bytes | 0
//! ```
//!
//! Only processes of one user lend to each other. Who borrows can read all of the region, so it is lent to none but the peers that this
//! end has connected to, and only where [`HcaEnv::lends`](crate::device::rdma::HcaEnv::lends) says so. The descriptors are for reading: a
//! mistake writes nothing, but a process of the same user could open the files anew. Who lends could take huge pages out of its file,
//! whose touch would be a SIGBUS: a process may do that to others of its user anyway, by a signal.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt::PeerCredentials};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC};

use super::shm;
use crate::base::{Error, Qpn, Result, Rkey};
use crate::mem::Region;

/// Magic and version, the region's first address, its bytes.
pub const MESSAGE_LEN: usize = 24;
const MAGIC: &[u8; 8] = b"basinle1";
/// Grants on a board at once.
const ENTRIES: usize = 2048;
/// Entries that a key may be in.
const TRIED: usize = 4;
const BOARD_BYTES: usize = ENTRIES * size_of::<Entry>();
/// What the kernel shows of a user who has no name where one asks.
const NOBODY: u32 = 65534;

#[repr(C)]
struct Entry {
    /// Key and queue pair; written last, and taken back first.
    who: AtomicU64,
    va: AtomicU64,
    /// Bytes, and a number that no two grants in this entry share one after the other.
    extent: AtomicU64,
    _reserved: AtomicU64,
}

fn who(rkey: Rkey, qpn: Qpn) -> u64 {
    u64::from(rkey.0) << 32 | u64::from(qpn.0)
}

/// The entries that a key may be in.
fn places(rkey: Rkey) -> impl Iterator<Item = usize> {
    (0..TRIED).map(move |step| (rkey.0 as usize + step) % ENTRIES)
}

fn entry(map: &MmapRaw, at: usize) -> &Entry {
    assert!(map.len() == BOARD_BYTES && at < ENTRIES, "a board has one size");
    // SAFETY: the entry lies in the mapping, page-aligned as that is. It has atomics alone, by which both ends touch it; one that does not
    // can only give us wrong numbers.
    unsafe { &*map.as_mut_ptr().cast::<Entry>().add(at) }
}

/// What an HCA grants, for those who borrow its memory to see.
pub struct Board {
    map: MmapRaw,
    turn: u32,
}

/// What is lent, and to be told each peer.
pub struct Lender {
    region: Region,
    region_file: File,
    board_file: File,
}

/// A board for this region, and what to tell peers.
///
/// # Errors
/// No memfd, or no procfs to have it read-only by.
pub fn open(region: &Region) -> Result<(Board, Lender)> {
    let memfd = shm::make_sealed(c"basin-grants", BOARD_BYTES)?;
    let map = MmapOptions::new().len(BOARD_BYTES).map_raw(&memfd).map_err(|error| Error::io("soft:shm: mapping a board", &error))?;
    keep_from_children(&map);
    let (region_file, board_file) = (read_only(region.memfd())?, read_only(memfd.as_fd())?);
    Ok((Board { map, turn: 0 }, Lender { region: region.clone(), region_file, board_file }))
}

/// The same file, by a descriptor that writes nothing.
fn read_only(file: BorrowedFd<'_>) -> Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::open(&path).map_err(|error| Error::io(format!("soft:shm: opening {path} to be lent"), &error))
}

fn keep_from_children(map: &MmapRaw) {
    // SAFETY: the range is our own fresh mapping. A child must not keep it alive.
    unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), libc::MADV_DONTFORK) };
}

impl Board {
    /// Shows a grant, if there is room for it. Its key is on the board once at most.
    pub fn show(&mut self, rkey: Rkey, qpn: Qpn, va: u64, len: u32) {
        let free = places(rkey).map(|at| entry(&self.map, at)).find(|entry| entry.who.load(Ordering::Relaxed) == 0);
        let Some(free) = free else { return };
        self.turn = self.turn.wrapping_add(1);
        free.va.store(va, Ordering::Relaxed);
        free.extent.store(u64::from(self.turn) << 32 | u64::from(len), Ordering::Relaxed);
        free.who.store(who(rkey, qpn), Ordering::Release);
    }

    /// Takes a grant off. What a peer reads from here on is void to it, so that the memory may be used for something else.
    pub fn hide(&mut self, rkey: Rkey) {
        for at in places(rkey) {
            let entry = entry(&self.map, at);
            if entry.who.load(Ordering::Relaxed) >> 32 == u64::from(rkey.0) {
                entry.who.store(0, Ordering::Relaxed);
                // Before all that is written to the memory now, as the other end has one between what it reads and its look at the entry.
                fence(Ordering::SeqCst);
                return;
            }
        }
    }
}

impl Lender {
    /// Lends to the peer at the other end of a link's socket, if that is of the same user. It does without if this fails.
    pub fn lend(&self, socket: BorrowedFd<'_>) {
        if !is_of_this_user(socket) {
            return;
        }
        let descriptors = [self.region_file.as_raw_fd(), self.board_file.as_raw_fd()];
        let message = message(self.region.base() as u64, self.region.bytes());
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&message)], &[ControlMessage::ScmRights(&descriptors)], flags, None);
        tracing::debug!(?sent, "memory lent over shared memory");
    }
}

fn message(base: u64, bytes: u64) -> [u8; MESSAGE_LEN] {
    let mut message = [0; MESSAGE_LEN];
    message[..8].copy_from_slice(MAGIC);
    message[8..16].copy_from_slice(&base.to_le_bytes());
    message[16..].copy_from_slice(&bytes.to_le_bytes());
    message
}

fn is_of_this_user(socket: BorrowedFd<'_>) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    // Whoever has no name here is not the same as another one who has none.
    own != NOBODY && getsockopt(&socket, PeerCredentials).is_ok_and(|peer| peer.uid() == own)
}

/// A peer's memory, and what it grants of it.
pub struct Borrowed {
    region: MmapRaw,
    base: u64,
    board: MmapRaw,
}

/// A grant that was on the board.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    at: usize,
    who: u64,
    extent: u64,
    /// Where in the region it is that was asked for.
    offset: usize,
    len: u32,
}

impl Borrowed {
    /// What this message lends, if it is one and all is as it should be.
    pub fn take(message: &[u8], descriptors: Vec<OwnedFd>, socket: BorrowedFd<'_>) -> Option<Borrowed> {
        let number = |at: usize| message.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        if message.len() != MESSAGE_LEN || message[..8] != *MAGIC || !is_of_this_user(socket) {
            return None;
        }
        let (base, bytes) = (number(8)?, number(16)?);
        let [region, board]: [OwnedFd; 2] = descriptors.try_into().ok()?;
        let (region, board) = (File::from(region), File::from(board));
        let is_safe =
            shm::is_safe(&region, bytes, &[TMPFS_MAGIC, HUGETLBFS_MAGIC]) && shm::is_safe(&board, BOARD_BYTES as u64, &[TMPFS_MAGIC]);
        let is_somewhere = bytes > 0 && base.checked_add(bytes).is_some();
        if !is_safe || !is_somewhere {
            return None;
        }
        let map = |file: &File, bytes: usize| MmapOptions::new().len(bytes).map_raw_read_only(file).inspect(keep_from_children).ok();
        Some(Borrowed { region: map(&region, usize::try_from(bytes).ok()?)?, base, board: map(&board, BOARD_BYTES)? })
    }

    /// The grant `rkey` to the peer of its queue pair `qpn`, if that is on the board, has these bytes and lies in what is lent.
    pub fn find(&self, rkey: Rkey, qpn: Qpn, va: u64, len: u32) -> Option<Found> {
        let who = who(rkey, qpn);
        let at = places(rkey).find(|at| entry(&self.board, *at).who.load(Ordering::Acquire) == who)?;
        let entry = entry(&self.board, at);
        let (from, extent) = (entry.va.load(Ordering::Relaxed), entry.extent.load(Ordering::Relaxed));
        let is_granted = va.checked_sub(from)?.checked_add(len.into())? <= extent & u64::from(u32::MAX);
        let offset = va.checked_sub(self.base)?;
        let is_lent = offset.checked_add(len.into())? <= self.region.len() as u64;
        (is_granted && is_lent).then_some(Found { at, who, extent, offset: offset as usize, len })
    }

    /// Where the bytes of a grant that was found lie, from this one on. They may change at any time.
    pub fn bytes(&self, found: &Found, from: u32) -> *const u8 {
        assert!(from <= found.len, "what is behind a grant is nobody's");
        self.region.as_ptr().wrapping_add(found.offset + from as usize)
    }

    /// Whether the grant still stands, so that what was read of it until now is what was granted.
    pub fn stands(&self, found: &Found) -> bool {
        fence(Ordering::SeqCst);
        let entry = entry(&self.board, found.at);
        entry.who.load(Ordering::Relaxed) == found.who && entry.extent.load(Ordering::Relaxed) == found.extent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{PageKind, RegionConfig};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    fn region() -> Region {
        Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap()
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_NONBLOCK).unwrap()
    }

    /// What comes out at the other end.
    fn borrowed(region: &Region) -> (Board, Borrowed) {
        let (board, lender) = open(region).unwrap();
        let (near, far) = sockets();
        lender.lend(near.as_fd());
        let mut bytes = [0; 64];
        let (len, descriptors) = shm::take_message(far.as_fd(), &mut bytes).unwrap();
        (board, Borrowed::take(&bytes[..len], descriptors, far.as_fd()).unwrap())
    }

    #[test]
    fn what_is_shown_is_found_until_it_is_hidden() {
        let region = region();
        let (mut board, borrowed) = borrowed(&region);
        let base = region.base() as u64;
        let (key, qpn) = (Rkey(0x1234_5678), Qpn(7));
        assert!(borrowed.find(key, qpn, base + 100, 10).is_none());
        board.show(key, qpn, base + 100, 50);
        let found = borrowed.find(key, qpn, base + 110, 40).unwrap();
        // SAFETY: the region's own memory, of which nobody has a slice.
        unsafe { region.base().add(110).write(42) };
        // SAFETY: the same byte, in the other mapping.
        assert_eq!(unsafe { borrowed.bytes(&found, 0).read() }, 42);
        for (key, qpn, va, len) in [
            (key, Qpn(8), base + 100, 1),
            (Rkey(key.0 + 1), qpn, base + 100, 1),
            (Rkey(key.0 ^ ENTRIES as u32), qpn, base + 100, 1),
            (key, qpn, base + 99, 1),
            (key, qpn, base + 100, 51),
            (key, qpn, base + 150, 1),
            (key, qpn, u64::MAX, 2),
            (key, qpn, base + 101, u32::MAX),
            (key, qpn, 0, 1),
        ] {
            assert!(borrowed.find(key, qpn, va, len).is_none(), "{key} {qpn} {va:#x} {len}");
        }
        assert!(borrowed.stands(&found));
        board.hide(key);
        assert!(!borrowed.stands(&found) && borrowed.find(key, qpn, base + 110, 40).is_none());
        // The same key once more, as it never comes: what was found then is not this one.
        board.show(key, qpn, base + 100, 50);
        assert!(!borrowed.stands(&found) && borrowed.find(key, qpn, base + 110, 40).is_some());
    }

    #[test]
    fn a_grant_without_room_is_not_shown_and_one_beyond_the_region_is_not_found() {
        let region = region();
        let (mut board, borrowed) = borrowed(&region);
        let base = region.base() as u64;
        let keys: Vec<Rkey> = (0..=TRIED as u32).map(|at| Rkey(5 + at * ENTRIES as u32)).collect();
        keys.iter().for_each(|key| board.show(*key, Qpn(7), base, 1));
        let found = |borrowed: &Borrowed| keys.iter().filter(|key| borrowed.find(**key, Qpn(7), base, 1).is_some()).count();
        assert_eq!(found(&borrowed), TRIED);
        keys.iter().for_each(|key| board.hide(*key));
        assert_eq!(found(&borrowed), 0);
        // What a hostile peer may write on its board.
        for (va, len) in [(base - 1, 1), (base + (1 << 20) - 1, 2), (base + (1 << 20), 1), (0, u32::MAX), (u64::MAX - 1, 1), (u64::MAX, 1)]
        {
            board.show(Rkey(9), Qpn(7), va, len);
            assert!(borrowed.find(Rkey(9), Qpn(7), va, len).is_none(), "{va:#x} {len}");
            board.hide(Rkey(9));
        }
    }

    #[test]
    fn what_is_lent_is_judged() {
        let region = region();
        let (_near, far) = sockets();
        let (_board, lender) = open(&region).unwrap();
        let take = |message: &[u8], files: &[&File]| {
            let descriptors = files.iter().map(|file| OwnedFd::from(file.try_clone().unwrap())).collect();
            Borrowed::take(message, descriptors, far.as_fd()).is_some()
        };
        let (base, bytes) = (region.base() as u64, region.bytes());
        let right = message(base, bytes);
        let (memory, board) = (&lender.region_file, &lender.board_file);
        assert!(take(&right, &[memory, board]));
        let mut other = right;
        other[0] ^= 1;
        assert!(!take(&other, &[memory, board]), "another version");
        assert!(!take(&right[..23], &[memory, board]) && !take(&[&right[..], &[0]].concat(), &[memory, board]) && !take(&[1], &[]));
        assert!(
            !take(&right, &[memory]) && !take(&right, &[memory, board, board]) && !take(&right, &[]) && !take(&right, &[board, memory])
        );
        for (base, bytes) in [(base, bytes - 4096), (base, bytes + 4096), (base, 0), (base, u64::MAX), (u64::MAX - bytes + 1, bytes)] {
            assert!(!take(&message(base, bytes), &[memory, board]), "{base:#x} {bytes}");
        }
        let loose = File::from(nix::sys::memfd::memfd_create(c"loose", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).unwrap());
        loose.set_len(bytes).unwrap();
        assert!(!take(&right, &[&loose, board]), "it can be cut");
        let short = shm::make_sealed(c"short", BOARD_BYTES - 4096).unwrap();
        assert!(!take(&right, &[memory, &short]), "a board of another size");
        assert!(!take(&right, &[&File::open("/proc/self/exe").unwrap(), board]), "a file of a disk");
    }

    #[test]
    fn what_is_passed_on_writes_nothing() {
        let (_board, lender) = open(&region()).unwrap();
        for file in [&lender.region_file, &lender.board_file] {
            // SAFETY: a fresh mapping that nobody uses.
            let map = unsafe { MmapOptions::new().map_mut(file) };
            assert_eq!(map.unwrap_err().raw_os_error(), Some(libc::EACCES));
        }
    }
}
