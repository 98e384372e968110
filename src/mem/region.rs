//! One mapping of shared memory that every device works on.
//!
//! The memory comes from a memfd (hugetlb where the machine has pages to give), mapped shared, bound to a NUMA node and
//! populated before the first device sees it, so that registration never faults. It is not inherited by children
//! (`MADV_DONTFORK`, `MFD_CLOEXEC`): a child must not keep memory alive that a device writes to. Slices of it are handed out by
//! leases only; here are raw pointers.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, RegionOffset, Result, limits};

/// The pages under a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// The kernel's base pages, 4 KiB: works everywhere, costs TLB misses and longer registration.
    Plain,
    /// 2 MiB huge pages.
    Huge2M,
    /// 1 GiB huge pages.
    Huge1G,
}

impl PageKind {
    /// The size of one page in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            PageKind::Plain => 4096,
            PageKind::Huge2M => 2 << 20,
            PageKind::Huge1G => 1 << 30,
        }
    }

    /// For a person: `4 KiB pages`, `2 MiB huge pages`, `1 GiB huge pages`.
    pub const fn name(self) -> &'static str {
        match self {
            PageKind::Plain => "4 KiB pages",
            PageKind::Huge2M => "2 MiB huge pages",
            PageKind::Huge1G => "1 GiB huge pages",
        }
    }
}

/// What region to make.
#[derive(Clone, Debug)]
pub struct RegionConfig {
    /// Size in bytes; rounded up to whole pages.
    pub bytes: u64,
    /// Chunk size in bytes: 2048 or 4096.
    pub chunk_bytes: u32,
    /// The pages wanted, in order of preference; the first kind the machine can give is taken.
    pub pages: Vec<PageKind>,
    /// The NUMA node to bind the memory to; `None` leaves it to the kernel.
    pub node: Option<u32>,
}

impl RegionConfig {
    /// `bytes` in 2 KiB chunks on 2 MiB pages, else plain ones.
    pub fn new(bytes: u64) -> RegionConfig {
        RegionConfig { bytes, chunk_bytes: limits::CHUNK_SIZES[0], pages: vec![PageKind::Huge2M, PageKind::Plain], node: None }
    }
}

/// A handle on one region. Clones name the same memory; it is unmapped when the last handle, slab and lease are gone.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    map: MmapRaw,
    memfd: File,
    pages: PageKind,
    fallback: Option<String>,
    chunk_bytes: u32,
    chunks: u32,
    /// First chunk not yet dealt to a slab.
    dealt: AtomicU32,
}

impl Region {
    /// Maps a region. Tries the kinds of pages in the order given.
    ///
    /// # Errors
    /// A chunk size UMEM does not take, a size of zero or past the limit; no kind of page to be had (names each and why).
    pub fn map(config: &RegionConfig) -> Result<Region> {
        if !limits::CHUNK_SIZES.contains(&config.chunk_bytes) {
            return Err(Error::new(ErrorKind::Usage, format!("a chunk size of {} bytes: AF_XDP takes 2048 and 4096", config.chunk_bytes)));
        }
        let most = limits::REGION_MAX_CHUNKS * u64::from(config.chunk_bytes);
        if config.bytes == 0 || config.bytes > most {
            let what = format!("a region of {}: the size must be between one page and {}", human_bytes(config.bytes), human_bytes(most));
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let mut refusals: Vec<String> = Vec::new();
        for &pages in &config.pages {
            match map_pages(config, pages) {
                Ok((memfd, map)) => {
                    let chunks = (map.len() as u64 / u64::from(config.chunk_bytes)) as u32;
                    let fallback = (!refusals.is_empty()).then(|| refusals.join("; "));
                    let inner = Inner { map, memfd, pages, fallback, chunk_bytes: config.chunk_bytes, chunks, dealt: AtomicU32::new(0) };
                    return Ok(Region { inner: Arc::new(inner) });
                }
                Err(error) => refusals.push(error.to_string()),
            }
        }
        let what = format!("no memory for a region of {}: {}", human_bytes(config.bytes), refusals.join("; "));
        Err(Error::new(ErrorKind::Unavailable, what)
            .remedy("ask for less memory (--region, --memory), or reserve huge pages: sysctl vm.nr_hugepages=N"))
    }

    /// The first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.inner.map.as_mut_ptr()
    }

    /// The size in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.inner.map.len() as u64
    }

    /// The size of a chunk in bytes.
    #[inline]
    pub fn chunk_bytes(&self) -> u32 {
        self.inner.chunk_bytes
    }

    /// The number of chunks.
    pub fn chunks(&self) -> u32 {
        self.inner.chunks
    }

    /// The pages the region got.
    pub fn pages(&self) -> PageKind {
        self.inner.pages
    }

    /// Why a preferred kind of page was not to be had, if that was so.
    pub fn fallback(&self) -> Option<&str> {
        self.inner.fallback.as_deref()
    }

    /// The memfd behind the mapping.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.inner.memfd.as_fd()
    }

    /// The address of a byte of the region.
    ///
    /// # Panics
    /// When the offset is past the end: offsets come from leases, so that is a bug of ours.
    #[inline]
    pub fn pointer(&self, offset: RegionOffset) -> *mut u8 {
        assert!(offset.0 <= self.bytes(), "{offset:?} is outside the region");
        // SAFETY: the offset is within the mapping or one past its end (checked above), which Inner keeps mapped while `self` lives.
        unsafe { self.base().add(offset.0 as usize) }
    }

    /// Whether two handles name the same region.
    pub fn same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The pieces, each at most 1 GiB, in which the region is registered as io_uring fixed buffers: piece `i` is buffer `i`.
    pub fn fixed_pieces(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        let piece = limits::FIXED_BUFFER_MAX_BYTES;
        (0..self.bytes().div_ceil(piece)).map(move |i| {
            let start = i * piece;
            (self.pointer(RegionOffset(start)), (self.bytes() - start).min(piece) as usize)
        })
    }

    /// The fixed buffer that holds the byte at `offset`. No run crosses a piece: runs are aligned blocks of at most
    /// [`limits::RUN_MAX_CHUNKS`].
    #[inline]
    pub fn fixed_index(&self, offset: RegionOffset) -> u16 {
        (offset.0 / limits::FIXED_BUFFER_MAX_BYTES) as u16
    }

    /// Takes the next `count` chunks for a slab, right behind those dealt before; `None` when fewer are left. Runs are aligned by chunk
    /// number, so a share that begins or ends within the largest run has smaller ones there.
    pub(super) fn deal(&self, count: u32) -> Option<u32> {
        let mut first = self.inner.dealt.load(Ordering::Relaxed);
        loop {
            let end = first.checked_add(count).filter(|&end| end <= self.inner.chunks)?;
            match self.inner.dealt.compare_exchange_weak(first, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(first),
                Err(seen) => first = seen,
            }
        }
    }

    /// Chunks no slab has taken yet.
    pub fn undealt(&self) -> u32 {
        self.inner.chunks - self.inner.dealt.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} in {}-byte chunks on {})", human_bytes(self.bytes()), self.chunk_bytes(), self.pages().name())
    }
}

fn map_pages(config: &RegionConfig, pages: PageKind) -> Result<(File, MmapRaw)> {
    let bytes = config.bytes.next_multiple_of(pages.bytes());
    let what = |step: &str| format!("{step} {} of {}", human_bytes(bytes), pages.name());
    let errno = |step: &str, error: nix::errno::Errno| Error::from_errno(what(step), error as i32);
    let huge = match pages {
        PageKind::Plain => MFdFlags::empty(),
        PageKind::Huge2M => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
        PageKind::Huge1G => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
    };
    if pages == PageKind::Plain
        && let Some(room) = super::room::available().filter(|room| *room < bytes)
    {
        return Err(Error::new(ErrorKind::Unavailable, format!("{}: there are {}", what("populating"), human_bytes(room))));
    }
    let memfd = memfd_create(c"basin-region", huge | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
        .map_err(|error| errno("creating a memfd for", error))?;
    let memfd = File::from(memfd);
    memfd.set_len(bytes).map_err(|error| Error::io(what("sizing a memfd for"), &error))?;
    // No one, ourselves included, may cut the file under the mapping: a touch of a cut page is a SIGBUS.
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).map_err(|error| errno("sealing", error))?;
    // For huge pages the kernel reserves them all here, and says ENOMEM if it has fewer.
    let map = MmapOptions::new().len(bytes as usize).map_raw(&memfd).map_err(|error| Error::io(what("mapping"), &error))?;
    if let Some(node) = config.node {
        bind(&map, node).map_err(|error| error.with_kind(ErrorKind::Unavailable))?;
    }
    let advise = |advice: i32, step: &str| {
        // SAFETY: the range is exactly our own fresh mapping, and neither advice changes what other code may assume of it.
        let rc = unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), advice) };
        if rc == 0 { Ok(()) } else { Err(Error::last_os(what(step))) }
    };
    advise(libc::MADV_DONTFORK, "setting MADV_DONTFORK on")?;
    advise(libc::MADV_POPULATE_WRITE, "populating").map_err(|error| match error.errno() {
        // What would be a SIGBUS to whoever touches the page: reserved for us, and refused when it is to be had.
        Some(errno @ libc::EFAULT) => {
            let why = "the kernel takes back what it promised, as under the limit of a hugetlb control group";
            Error::from_errno(format!("{} ({why})", what("populating")), errno).with_kind(ErrorKind::Unavailable)
        }
        _ => error,
    })?;
    Ok((memfd, map))
}

/// Binds the mapping to one node; pages are not there yet, so none needs to move.
fn bind(map: &MmapRaw, node: u32) -> Result<()> {
    const WORD: u32 = u64::BITS;
    let mut mask = vec![0u64; (node / WORD + 1) as usize];
    mask[(node / WORD) as usize] |= 1 << (node % WORD);
    // The kernel reads one bit fewer than it is told (mm/mempolicy.c, get_nodes).
    let bits = mask.len() as u64 * u64::from(WORD) + 1;
    // SAFETY: the range is our own mapping, the mask outlives the call and has the length passed.
    let rc = unsafe { libc::syscall(libc::SYS_mbind, map.as_mut_ptr(), map.len(), libc::MPOL_BIND, mask.as_ptr(), bits, 0) };
    if rc == 0 { Ok(()) } else { Err(Error::last_os(format!("binding the region to NUMA node {node}"))) }
}

/// A descriptor number, for messages.
impl AsRawFd for Region {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.inner.memfd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_whole_pages_zeroed_and_cut_into_chunks() {
        let config = RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(100_000) };
        let region = Region::map(&config).unwrap();
        assert_eq!(region.bytes(), 102_400);
        assert_eq!(region.chunks(), 50);
        assert_eq!(region.pages(), PageKind::Plain);
        assert!(region.fallback().is_none());
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let error = Region::map(&RegionConfig { chunk_bytes: 1024, ..RegionConfig::new(4096) }).unwrap_err();
        assert!(error.to_string().contains("1024"), "{error}");
        assert_eq!(Region::map(&RegionConfig::new(0)).unwrap_err().kind(), ErrorKind::Usage);
        // A pebibyte of huge pages is not there; plain pages alone were not asked for.
        let config = RegionConfig { pages: vec![PageKind::Huge1G], ..RegionConfig::new(1 << 41) };
        let error = Region::map(&config).unwrap_err();
        assert!(error.to_string().contains("1 GiB huge pages"), "{error}");
        assert!(error.remedy_text().is_some());
    }

    #[test]
    fn huge_pages_fall_back_and_say_why() {
        let config = RegionConfig { pages: vec![PageKind::Huge1G, PageKind::Plain], ..RegionConfig::new(2 << 20) };
        let region = Region::map(&config).unwrap();
        if region.pages() == PageKind::Plain {
            assert!(region.fallback().unwrap().contains("1 GiB huge pages"));
        }
    }

    #[test]
    fn a_large_region_is_several_fixed_buffers() {
        // Not populated for real: only the arithmetic is under test, on a small region.
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        let pieces: Vec<_> = region.fixed_pieces().collect();
        assert_eq!(pieces, [(region.base(), 1 << 20)]);
        assert_eq!(region.fixed_index(RegionOffset((1 << 30) - 1)), 0);
        assert_eq!(region.fixed_index(RegionOffset(1 << 30)), 1);
    }
}
