//! Memory that one end of a link lends to the other: a READ of it, or a WRITE to it, is one copy, made by the HCA that asks.
//!
//! Over a link a payload is copied into a ring and out of it, by two processors. An end that lends passes its region's memfd on, and a
//! *board* on which its HCA writes what it grants. The other end's HCA then does what a NIC does, which reaches the memory of both: it
//! finds the grant on the board, copies, and looks whether the grant still stands. If not, what came is void.
//!
//! What is written cannot be void afterwards. So who writes says first to which grant, in a word that both ends have for their link, the
//! *claim*; then it looks whether that grant stands, and takes the claim back when the bytes are there. Who ends a grant takes it off the
//! board first and looks at the claim then: of the two one sees the other, and memory that is being written to is given back when it is
//! not any more.
//!
//! ```text
//! message:  "basinle2" | the region's first address 8 | its bytes 8      with three descriptors: region, board, claim
//! board:    entry 0 | entry 1 | ...      a grant is in one of the few entries from its key's own on, or not on the board
//! entry:    key << 32 | queue pair, 0 while there is none | first address | turn << 32 | bytes | what it allows: 1 READ, 2 WRITE
//! claim:    key << 32 | queue pair of the grant that is being written to, 0 while none is; and, at byte 4096, for each entry of the board
//!           turn << 32 | bytes that were written from the grant's first one on, in order and each once; 2^32 - 1 where they were not
//! ```
//!
//! Only processes of one user lend to each other. Who borrows can reach all of the region, so it is lent to none but the peers that this
//! end has connected to, and only where [`HcaEnv::lends`](crate::device::rdma::HcaEnv::lends) says so. Who lends could take huge pages out
//! of its file, whose touch would be a SIGBUS: a process may do that to others of its user anyway, by a signal.

use std::fs::File;
use std::io::IoSlice;
use std::ops::BitOr;
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
const MAGIC: &[u8; 8] = b"basinle2";
/// Grants on a board at once.
const ENTRIES: usize = 2048;
/// Entries that a key may be in.
const TRIED: usize = 4;
const BOARD_BYTES: usize = ENTRIES * size_of::<Entry>();
/// Where in a claim it is said how much was written.
const WRITTEN_AT: usize = 4096;
const CLAIM_BYTES: usize = WRITTEN_AT + ENTRIES * size_of::<u64>();
/// Not one byte after the other.
const ASTRAY: u32 = u32::MAX;
/// What the kernel shows of a user who has no name where one asks.
const NOBODY: u32 = 65534;

#[repr(C)]
struct Entry {
    /// Key and queue pair; written last, and taken back first.
    who: AtomicU64,
    va: AtomicU64,
    /// Bytes, and a number that no two grants in this entry share one after the other.
    extent: AtomicU64,
    allows: AtomicU64,
}

/// What a peer may do with a grant by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allows(u64);

impl Allows {
    /// READ it.
    pub const READS: Allows = Allows(1);
    /// WRITE to it.
    pub const WRITES: Allows = Allows(2);

    fn contain(self, other: Allows) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Allows {
    type Output = Allows;

    fn bitor(self, other: Allows) -> Allows {
        Allows(self.0 | other.0)
    }
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

fn claim_word(map: &MmapRaw) -> &AtomicU64 {
    assert!(map.len() == CLAIM_BYTES, "a claim has one size");
    // SAFETY: the first word of the mapping, which both ends touch as atomics alone.
    unsafe { &*map.as_mut_ptr().cast::<AtomicU64>() }
}

/// How much was written to the grant in an entry of the board.
fn written_word(map: &MmapRaw, at: usize) -> &AtomicU64 {
    assert!(map.len() == CLAIM_BYTES && at < ENTRIES, "a claim has one size");
    // SAFETY: the word lies in the mapping, aligned as that is, and both ends touch it as an atomic alone.
    unsafe { &*map.as_mut_ptr().add(WRITTEN_AT).cast::<AtomicU64>().add(at) }
}

/// What an HCA grants, for those who borrow its memory to see.
pub struct Board {
    map: MmapRaw,
    turn: u32,
}

/// What is lent, and to be told each peer.
pub struct Lender {
    region: Region,
    board_file: File,
}

/// Where the other end of a link says which grant it writes to.
pub struct Claim(MmapRaw);

/// A board for this region, and what to tell peers.
///
/// # Errors
/// No memfd, or no procfs to have it read-only by.
pub fn open(region: &Region) -> Result<(Board, Lender)> {
    let memfd = shm::make_sealed(c"basin-grants", BOARD_BYTES)?;
    let map = MmapOptions::new().len(BOARD_BYTES).map_raw(&memfd).map_err(|error| Error::io("soft:shm: mapping a board", &error))?;
    keep_from_children(&map);
    Ok((Board { map, turn: 0 }, Lender { region: region.clone(), board_file: read_only(memfd.as_fd())? }))
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
    /// Shows a grant, if there is room for it, or what else one allows that is shown.
    pub fn show(&mut self, rkey: Rkey, qpn: Qpn, va: u64, len: u32, allows: Allows) {
        let has = |who: u64| places(rkey).map(|at| entry(&self.map, at)).find(|entry| entry.who.load(Ordering::Relaxed) == who);
        if let Some(shown) = has(who(rkey, qpn)) {
            shown.allows.fetch_or(allows.0, Ordering::Release);
            return;
        }
        let Some(free) = has(0) else { return };
        self.turn = self.turn.wrapping_add(1);
        free.va.store(va, Ordering::Relaxed);
        free.extent.store(u64::from(self.turn) << 32 | u64::from(len), Ordering::Relaxed);
        free.allows.store(allows.0, Ordering::Relaxed);
        free.who.store(who(rkey, qpn), Ordering::Release);
    }

    /// Takes a grant off. What a peer reads from here on is void to it, and it writes no more, unless its [`Claim`] says that it does.
    pub fn hide(&mut self, rkey: Rkey) {
        for at in places(rkey) {
            let entry = entry(&self.map, at);
            if entry.who.load(Ordering::Relaxed) >> 32 == u64::from(rkey.0) {
                entry.who.store(0, Ordering::Relaxed);
                // Before all that is written to the memory now, and before the look at a claim, as the other end has one between what it
                // reads, or its claim, and its look at the entry.
                fence(Ordering::SeqCst);
                return;
            }
        }
    }
}

/// A grant's place on the board.
#[derive(Clone, Copy)]
pub struct Place {
    at: usize,
    turn: u32,
}

impl Board {
    /// Where a grant is shown.
    pub fn place(&self, rkey: Rkey, qpn: Qpn) -> Option<Place> {
        let who = who(rkey, qpn);
        let at = places(rkey).find(|at| entry(&self.map, *at).who.load(Ordering::Relaxed) == who)?;
        Some(Place { at, turn: (entry(&self.map, at).extent.load(Ordering::Relaxed) >> 32) as u32 })
    }
}

impl Lender {
    /// Lends to the peer at the other end of a link's socket, if that is of the same user. It does without if this fails.
    pub fn lend(&self, socket: BorrowedFd<'_>) -> Option<Claim> {
        if !is_of_this_user(socket) {
            return None;
        }
        let memfd = shm::make_sealed(c"basin-claim", CLAIM_BYTES).ok()?;
        let map = MmapOptions::new().len(CLAIM_BYTES).map_raw(&memfd).inspect(keep_from_children).ok()?;
        let descriptors = [self.region.memfd().as_raw_fd(), self.board_file.as_raw_fd(), memfd.as_raw_fd()];
        let message = message(self.region.base() as u64, self.region.bytes());
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&message)], &[ControlMessage::ScmRights(&descriptors)], flags, None);
        tracing::debug!(?sent, "memory lent over shared memory");
        sent.is_ok().then_some(Claim(map))
    }
}

impl Claim {
    /// Whether the peer writes to anything.
    pub fn is_held(&self) -> bool {
        claim_word(&self.0).load(Ordering::Acquire) != 0
    }

    /// How many bytes the peer has written to a grant, from its first one on: they are there. `None`: not in order, or some twice.
    pub fn written(&self, place: Place) -> Option<u32> {
        let word = written_word(&self.0, place.at).load(Ordering::Acquire);
        let bytes = if word >> 32 == u64::from(place.turn) { word as u32 } else { 0 };
        (bytes != ASTRAY).then_some(bytes)
    }

    /// Whether the peer writes to this grant. Once it does not, and the grant is off the board, all that it wrote is there.
    pub fn is_of(&self, rkey: Rkey) -> bool {
        claim_word(&self.0).load(Ordering::Acquire) >> 32 == u64::from(rkey.0)
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
    claim: MmapRaw,
}

/// A grant that was on the board.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    at: usize,
    who: u64,
    extent: u64,
    /// Where in the region it is that was asked for, and where in the grant.
    offset: usize,
    from: u32,
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
        let [region, board, claim]: [OwnedFd; 3] = descriptors.try_into().ok()?;
        let [region, board, claim] = [region, board, claim].map(File::from);
        let is_safe = shm::is_safe(&region, bytes, &[TMPFS_MAGIC, HUGETLBFS_MAGIC])
            && shm::is_safe(&board, BOARD_BYTES as u64, &[TMPFS_MAGIC])
            && shm::is_safe(&claim, CLAIM_BYTES as u64, &[TMPFS_MAGIC]);
        let is_somewhere = bytes > 0 && base.checked_add(bytes).is_some();
        if !is_safe || !is_somewhere {
            return None;
        }
        let map = |file: &File, bytes: usize| MmapOptions::new().len(bytes).map_raw(file).inspect(keep_from_children).ok();
        let board = MmapOptions::new().len(BOARD_BYTES).map_raw_read_only(&board).inspect(keep_from_children).ok()?;
        Some(Borrowed { region: map(&region, usize::try_from(bytes).ok()?)?, base, board, claim: map(&claim, CLAIM_BYTES)? })
    }

    /// The grant `rkey` to the peer of its queue pair `qpn`, if that is on the board and allows this, and its bytes lie in what is lent.
    pub fn find(&self, rkey: Rkey, qpn: Qpn, va: u64, len: u32, allows: Allows) -> Option<Found> {
        let who = who(rkey, qpn);
        let at = places(rkey).find(|at| entry(&self.board, *at).who.load(Ordering::Acquire) == who)?;
        let entry = entry(&self.board, at);
        let (from, extent) = (entry.va.load(Ordering::Relaxed), entry.extent.load(Ordering::Relaxed));
        let is_allowed = Allows(entry.allows.load(Ordering::Relaxed)).contain(allows);
        let from = va.checked_sub(from)?;
        let is_granted = from.checked_add(len.into())? <= extent & u64::from(u32::MAX);
        let offset = va.checked_sub(self.base)?;
        let is_lent = offset.checked_add(len.into())? <= self.region.len() as u64;
        (is_allowed && is_granted && is_lent).then_some(Found { at, who, extent, offset: offset as usize, from: from as u32, len })
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

    /// Claims a grant that was found, to write to it; nothing if it does not stand any more. Until what this gives is dropped, which is to
    /// be soon, its owner cannot have the memory back. There is one at a time.
    pub fn claim<'a>(&'a self, found: &'a Found) -> Option<Claimed<'a>> {
        let claimed = Claimed { borrowed: self, found };
        claim_word(&self.claim).store(found.who, Ordering::Release);
        self.stands(found).then_some(claimed)
    }
}

/// A grant that is being written to.
pub struct Claimed<'a> {
    borrowed: &'a Borrowed,
    found: &'a Found,
}

impl Claimed<'_> {
    /// Where its bytes lie, from this one on.
    pub fn bytes(&self, from: u32) -> *mut u8 {
        self.borrowed.bytes(self.found, from).cast_mut()
    }

    /// So many bytes from this one on are there.
    pub fn tell(&self, from: u32, len: u32) {
        let word = written_word(&self.borrowed.claim, self.found.at);
        let (turn, from) = (self.found.extent >> 32, self.found.from + from);
        let before = word.load(Ordering::Relaxed);
        let before = if before >> 32 == turn { before as u32 } else { 0 };
        let bytes = if before == from { from + len } else { ASTRAY };
        word.store(turn << 32 | u64::from(bytes), Ordering::Release);
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        claim_word(&self.borrowed.claim).store(0, Ordering::Release);
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
    fn borrowed(region: &Region) -> (Board, Claim, Borrowed) {
        let (board, lender) = open(region).unwrap();
        let (near, far) = sockets();
        let claim = lender.lend(near.as_fd()).unwrap();
        let mut bytes = [0; 64];
        let (len, descriptors) = shm::take_message(far.as_fd(), &mut bytes).unwrap();
        (board, claim, Borrowed::take(&bytes[..len], descriptors, far.as_fd()).unwrap())
    }

    #[test]
    fn what_is_shown_is_found_until_it_is_hidden() {
        let region = region();
        let (mut board, _claim, borrowed) = borrowed(&region);
        let find = |key, qpn, va, len| borrowed.find(key, qpn, va, len, Allows::READS);
        let base = region.base() as u64;
        let (key, qpn) = (Rkey(0x1234_5678), Qpn(7));
        assert!(find(key, qpn, base + 100, 10).is_none());
        board.show(key, qpn, base + 100, 50, Allows::READS);
        let found = find(key, qpn, base + 110, 40).unwrap();
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
            assert!(find(key, qpn, va, len).is_none(), "{key} {qpn} {va:#x} {len}");
        }
        assert!(borrowed.stands(&found));
        board.hide(key);
        assert!(!borrowed.stands(&found) && find(key, qpn, base + 110, 40).is_none());
        // The same key once more, as it never comes: what was found then is not this one.
        board.show(key, qpn, base + 100, 50, Allows::READS);
        assert!(!borrowed.stands(&found) && find(key, qpn, base + 110, 40).is_some());
    }

    #[test]
    fn a_grant_is_written_to_where_it_allows_that_and_its_end_sees_it() {
        let region = region();
        let (mut board, claim, borrowed) = borrowed(&region);
        let (key, qpn, base) = (Rkey(9), Qpn(7), region.base() as u64);
        let find = |allows| borrowed.find(key, qpn, base + 100, 50, allows);
        board.show(key, qpn, base + 100, 50, Allows::READS);
        assert!(find(Allows::WRITES).is_none() && find(Allows::READS | Allows::WRITES).is_none());
        let before = find(Allows::READS).unwrap();
        board.show(key, qpn, base + 100, 50, Allows::WRITES);
        assert!(borrowed.stands(&before) && find(Allows::READS | Allows::WRITES).is_some(), "it allows more, and is the same");
        let found = find(Allows::WRITES).unwrap();
        assert!(!claim.is_held() && !claim.is_of(key));
        let claimed = borrowed.claim(&found).unwrap();
        assert!(claim.is_held() && claim.is_of(key) && !claim.is_of(Rkey(key.0 + 1)));
        let place = board.place(key, qpn).unwrap();
        assert_eq!(claim.written(place), Some(0));
        claimed.tell(0, 10);
        claimed.tell(10, 5);
        assert_eq!(claim.written(place), Some(15));
        // SAFETY: the region's own memory, of which nobody has a slice.
        unsafe { claimed.bytes(10).write(42) };
        // SAFETY: the same byte, in the other mapping.
        assert_eq!(unsafe { region.base().add(110).read() }, 42);
        // A grant that ends meanwhile is claimed until the last byte is there, and not once more.
        board.hide(key);
        assert!(claim.is_of(key) && board.place(key, qpn).is_none());
        drop(claimed);
        assert!(!claim.is_held() && borrowed.claim(&found).is_none() && !claim.is_held());
        // The next one in its place allows what it allows.
        board.show(key, qpn, base + 100, 50, Allows::WRITES);
        assert!(find(Allows::READS).is_none() && find(Allows::WRITES).is_some());
        let place = board.place(key, qpn).unwrap();
        assert_eq!(claim.written(place), Some(0), "of the one before nothing is left");
        let found = borrowed.find(key, qpn, base + 110, 40, Allows::WRITES).unwrap();
        let claimed = borrowed.claim(&found).unwrap();
        claimed.tell(0, 10);
        assert_eq!(claim.written(place), None, "not from its first byte on");
        claimed.tell(10, 10);
        assert_eq!(claim.written(place), None);
    }

    #[test]
    fn a_grant_without_room_is_not_shown_and_one_beyond_the_region_is_not_found() {
        let region = region();
        let (mut board, _claim, borrowed) = borrowed(&region);
        let base = region.base() as u64;
        let keys: Vec<Rkey> = (0..=TRIED as u32).map(|at| Rkey(5 + at * ENTRIES as u32)).collect();
        keys.iter().for_each(|key| board.show(*key, Qpn(7), base, 1, Allows::READS));
        let found = |borrowed: &Borrowed| keys.iter().filter(|key| borrowed.find(**key, Qpn(7), base, 1, Allows::READS).is_some()).count();
        assert_eq!(found(&borrowed), TRIED);
        keys.iter().for_each(|key| board.hide(*key));
        assert_eq!(found(&borrowed), 0);
        // What a hostile peer may write on its board.
        for (va, len) in [(base - 1, 1), (base + (1 << 20) - 1, 2), (base + (1 << 20), 1), (0, u32::MAX), (u64::MAX - 1, 1), (u64::MAX, 1)]
        {
            board.show(Rkey(9), Qpn(7), va, len, Allows::WRITES);
            assert!(borrowed.find(Rkey(9), Qpn(7), va, len, Allows::WRITES).is_none(), "{va:#x} {len}");
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
        let (memory, board) = (&File::from(region.memfd().try_clone_to_owned().unwrap()), &lender.board_file);
        let claim = &shm::make_sealed(c"claim", CLAIM_BYTES).unwrap();
        let all = [memory, board, claim];
        assert!(take(&right, &all));
        let mut other = right;
        other[0] ^= 1;
        assert!(!take(&other, &all), "another version");
        assert!(!take(&right[..23], &all) && !take(&[&right[..], &[0]].concat(), &all) && !take(&[1], &[]));
        for some in [&[][..], &[memory], &[memory, board], &[memory, board, claim, claim], &[board, memory, claim], &[memory, claim, board]]
        {
            assert!(!take(&right, some), "{some:?}");
        }
        for (base, bytes) in [(base, bytes - 4096), (base, bytes + 4096), (base, 0), (base, u64::MAX), (u64::MAX - bytes + 1, bytes)] {
            assert!(!take(&message(base, bytes), &all), "{base:#x} {bytes}");
        }
        let loose = File::from(nix::sys::memfd::memfd_create(c"loose", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).unwrap());
        loose.set_len(bytes).unwrap();
        assert!(!take(&right, &[&loose, board, claim]), "it can be cut");
        let short = shm::make_sealed(c"short", BOARD_BYTES - 4096).unwrap();
        assert!(!take(&right, &[memory, &short, claim]), "a board of another size");
        assert!(!take(&right, &[memory, board, &short]), "a claim of another size");
        let disk = File::open("/proc/self/exe").unwrap();
        assert!(!take(&right, &[&disk, board, claim]), "a file of a disk");
        let memory = &read_only(region.memfd()).unwrap();
        assert!(!take(&right, &[memory, board, claim]), "a region for reading alone");
    }

    #[test]
    fn the_board_that_is_passed_on_is_only_read() {
        let (_board, lender) = open(&region()).unwrap();
        // SAFETY: a fresh mapping that nobody uses.
        let map = unsafe { MmapOptions::new().map_mut(&lender.board_file) };
        assert_eq!(map.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
