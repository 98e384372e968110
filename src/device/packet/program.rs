//! The XDP program in front of the sockets: loaded and attached by a link that dies with this process.
//!
//! Nothing is pinned. The link is a descriptor (close-on-exec, as are all of BPF's): when the last handle is dropped or the
//! process dies, by SIGKILL too, the kernel detaches the program and all traffic passes again. A process that is stopped rather
//! than dead is covered by the heartbeat: see `bpf/steer.bpf.c`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};
use memmap2::{MmapOptions, MmapRaw};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::bpf;
use crate::device::packet::neighbours;

static OBJECT: &bpf::Object<[u8]> = &bpf::Object(*include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o")));

/// A heartbeat older than this lets the queue's traffic pass to the kernel, unless another age is asked for. Two and a half times
/// [`BEAT_ASLEEP`], so that a core that sleeps through one refresh is not taken for dead.
pub const STALE: Nanos = Nanos::from_millis(1000);
/// How often a busy core refreshes its heartbeat.
pub const BEAT_BUSY: Nanos = Nanos::from_millis(100);
/// How often a sleeping core wakes up for it: 2.5 times a second, which is no load.
pub const BEAT_ASLEEP: Nanos = Nanos::from_millis(400);

// A core that waits for a neighbour does not beat meanwhile.
const _: () = assert!(neighbours::PATIENCE.as_nanos() < (STALE.0 - BEAT_ASLEEP.0) as u128);

/// Where in the network stack the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// In the driver, before the kernel makes its own packet of it.
    Native,
    /// Behind it: works with every driver, and costs a packet allocation and a copy.
    Skb,
}

/// The packets that are steered.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a> {
    /// Those to these UDP ports,
    pub udp_ports: &'a [u16],
    /// and of this VLAN, or of any and of none,
    pub vlan: Option<u16>,
    /// unless the heartbeat of their queue's owner is older than this.
    pub stale: Nanos,
}

/// What the program did with packets since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// Sent to a socket.
    pub redirected: u64,
    /// Not for us, or no socket on the queue: left to the kernel.
    pub passed: u64,
    /// For us, but left to the kernel because the owner's heartbeat was stale.
    pub stale: u64,
}

/// A program attached to one interface. May be used from any core.
pub struct Program {
    attached: Attached,
    sockets: MapHandle,
    statistics: MapHandle,
    heartbeats: Heartbeats,
    link: OwnedFd,
}

impl Program {
    /// Loads the program and attaches it to interface `index` for `queues` receive queues, steering UDP to `udp_ports`. `want`
    /// fixes where it runs; `None` tries the driver first. The second value says why the driver was not to be had.
    ///
    /// # Errors
    /// No privilege; another program is on the interface; the driver refuses and `want` asked for it.
    pub fn attach(name: &str, index: u32, queues: u32, packets: Packets<'_>, want: Option<Attached>) -> Result<(Program, Option<String>)> {
        let Packets { udp_ports, vlan, stale } = packets;
        let settings = [stale.0, vlan.map_or(0, u64::from)].map(u64::to_ne_bytes).concat();
        let mut open = bpf::open("basin-steer", OBJECT).map_err(|error| explain(name, "opening", &error))?;
        for mut map in open.maps_mut() {
            let set = match map.name().to_str() {
                Some("sockets" | "heartbeats") => map.set_max_entries(queues),
                Some(section) if section.ends_with(".rodata") => map.set_initial_value(&settings),
                _ => Ok(()),
            };
            set.map_err(|error| explain(name, "preparing", &error))?;
        }
        let object = open.load().map_err(|error| explain(name, "loading", &error))?;
        let map = |wanted: &str| {
            let found = object.maps().find(|map| map.name() == wanted).expect("the object was compiled with this map");
            MapHandle::try_from(&found).map_err(|error| explain(name, "keeping a map of", &error))
        };
        let ports = map("ports")?;
        for (word, bits) in port_bits(udp_ports) {
            ports.update(&word.to_ne_bytes(), &bits.to_ne_bytes(), MapFlags::ANY).map_err(|error| explain(name, "setting up", &error))?;
        }
        let heartbeats = Heartbeats::map(map("heartbeats")?.as_fd(), queues)?;
        let program = object.progs().next().expect("the object was compiled with one program");
        let (attached, link, fallback) = attach(name, program.as_fd(), index, want)?;
        let program = Program { attached, sockets: map("sockets")?, statistics: map("statistics")?, heartbeats, link };
        Ok((program, fallback))
    }

    /// Where it runs.
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// Sends the chosen packets of `queue` to `socket` from now on.
    ///
    /// # Errors
    /// The socket is not bound to this queue.
    pub fn enter(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let value = socket.as_raw_fd().to_ne_bytes();
        self.sockets
            .update(&queue.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|error| Error::new(ErrorKind::Failed, format!("steering queue {queue} to its AF_XDP socket: {error}")))
    }

    /// Lets the packets of `queue` pass to the kernel from now on. An entry that is gone already is as good.
    pub fn leave(&self, queue: u32) {
        let _ = self.sockets.delete(&queue.to_ne_bytes());
    }

    /// Says that the owner of `queue` is alive.
    #[inline]
    pub fn beat(&self, queue: u32) {
        self.heartbeats.beat(queue);
    }

    /// What the program counted, over all processors and queues.
    ///
    /// # Errors
    /// The kernel does not let the map be read.
    pub fn steered(&self) -> Result<Steered> {
        let failed = |error| Error::new(ErrorKind::Failed, format!("reading the XDP program's counters: {error}"));
        let by_cpu = self.statistics.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
        let mut sum = Steered::default();
        for value in by_cpu {
            let word = |index: usize| value.get(index * 8..index * 8 + 8).map_or(0, |w| u64::from_ne_bytes(w.try_into().expect("8 bytes")));
            sum.redirected += word(0);
            sum.passed += word(1);
            sum.stale += word(2);
        }
        Ok(sum)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Closing the descriptor detaches too, but not while a child between fork and exec holds a copy of it.
        // SAFETY: our own link, by its descriptor. It may have been detached with its interface, which is as good.
        unsafe { libbpf_sys::bpf_link_detach(self.link.as_raw_fd()) };
    }
}

/// The ports as words of the map: `(word, bits)`.
fn port_bits(ports: &[u16]) -> Vec<(u32, u64)> {
    let mut words = std::collections::BTreeMap::new();
    for &port in ports {
        *words.entry(u32::from(port) / 64).or_insert(0u64) |= 1 << (port % 64);
    }
    words.into_iter().collect()
}

fn attach(name: &str, program: BorrowedFd<'_>, index: u32, want: Option<Attached>) -> Result<(Attached, OwnedFd, Option<String>)> {
    if want != Some(Attached::Skb) {
        match link(program, index, libbpf_sys::XDP_FLAGS_DRV_MODE) {
            Ok(link) => return Ok((Attached::Native, link, None)),
            // The driver has no XDP, or not with this MTU, these offloads or this many queues: the kernel's own place remains.
            Err(errno) if want.is_none() && !is_taken(errno) && !matches!(errno, libc::EPERM | libc::ENODEV) => {
                let why = format!("native XDP: {}", crate::base::error::describe_errno(errno));
                let link = link(program, index, libbpf_sys::XDP_FLAGS_SKB_MODE).map_err(|errno| refused(name, "SKB", errno))?;
                return Ok((Attached::Skb, link, Some(why)));
            }
            Err(errno) => return Err(refused(name, "native", errno)),
        }
    }
    let link = link(program, index, libbpf_sys::XDP_FLAGS_SKB_MODE).map_err(|errno| refused(name, "SKB", errno))?;
    Ok((Attached::Skb, link, None))
}

fn link(program: BorrowedFd<'_>, index: u32, mode: u32) -> Result<OwnedFd, i32> {
    let options =
        libbpf_sys::bpf_link_create_opts { sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64, flags: mode, ..Default::default() };
    // SAFETY: the options live through the call and say their own size.
    let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), index as i32, libbpf_sys::BPF_XDP, &options) };
    if fd < 0 {
        return Err(-fd);
    }
    // SAFETY: fresh and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `EBUSY`: a link or program is there. `EEXIST`: one is there in the other mode.
fn is_taken(errno: i32) -> bool {
    matches!(errno, libc::EBUSY | libc::EEXIST)
}

fn refused(name: &str, mode: &str, errno: i32) -> Error {
    let error = Error::from_errno(format!("attaching the XDP program to {name} in {mode} mode"), errno);
    match errno {
        _ if is_taken(errno) => error.with_kind(ErrorKind::Busy).remedy(format!(
            "another program is on {name}: stop the other instance ('bpftool net show dev {name}' and 'bpftool link show' name it), \
             or take off a program that was left behind with 'ip link set dev {name} xdp off'"
        )),
        libc::EPERM => error.remedy("run as root or with CAP_NET_ADMIN and CAP_BPF"),
        libc::ERANGE => {
            error.with_kind(ErrorKind::Unavailable).remedy(format!("the driver of {name} has no XDP at this MTU: lower it or use SKB mode"))
        }
        libc::EOPNOTSUPP | libc::EINVAL => {
            error.with_kind(ErrorKind::Unavailable).remedy(format!("the driver of {name} has no native XDP: use SKB mode"))
        }
        _ => error,
    }
}

fn explain(name: &str, step: &str, error: &libbpf_rs::Error) -> Error {
    let what = format!("{step} the XDP program for {name}: {error:#}");
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Error::new(ErrorKind::Unavailable, what)
            .remedy("run as root or with CAP_NET_ADMIN and CAP_BPF, and a locked-memory limit above 1 MiB"),
        _ => Error::new(ErrorKind::Failed, what),
    }
}

/// The map of heartbeats, in our address space: one word per queue, written here and read by the program.
struct Heartbeats {
    words: MmapRaw,
    queues: u32,
}

impl Heartbeats {
    fn map(fd: BorrowedFd<'_>, queues: u32) -> Result<Heartbeats> {
        let words = MmapOptions::new()
            .len(queues as usize * size_of::<u64>())
            .map_raw(fd.as_raw_fd())
            .map_err(|error| Error::io("mapping the heartbeats of the XDP program", &error))?;
        Ok(Heartbeats { words, queues })
    }

    #[inline]
    fn beat(&self, queue: u32) {
        assert!(queue < self.queues, "a heartbeat for queue {queue} of {}", self.queues);
        // SAFETY: the word lies in the mapping (checked above), is aligned, and is only ever used as an atomic; the program reads it.
        let word = unsafe { AtomicU64::from_ptr(self.words.as_mut_ptr().cast::<u64>().add(queue as usize)) };
        word.store(kernel_time_ns(), Ordering::Relaxed);
    }
}

/// The time of `bpf_ktime_get_ns()`. The one clock read here: the word is compared in the kernel with the kernel's own clock, which
/// no simulated time stands for.
fn kernel_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call. CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn ports_become_bits_of_words() {
        assert_eq!(super::port_bits(&[4791, 0, 63, 65535, 64]), [(0, 1 | 1 << 63), (1, 1), (74, 1 << 55), (1023, 1 << 63)]);
    }
}
