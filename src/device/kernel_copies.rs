//! Counts the payload bytes the kernel copies for this process, by BPF programs on its copy paths.
//!
//! `bpf/copies.bpf.c` names the functions and says what each stands for. On a kernel that lacks one of them, or does not let us
//! look, there is no sum: [`KernelCopies::open`] says why, and nobody reports 0 instead.
//!
//! The sum is the process's. Flows that run one after the other have each their own; flows at the same time share out what was
//! copied since the last one of them ended.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::btf::types::Func;
use libbpf_rs::{Btf, Link, MapCore, MapFlags, MapHandle, OpenObject};
use nix::sys::statfs::{EXT4_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::bpf;

static OBJECT: &bpf::Object<[u8]> = &bpf::Object(*include_bytes!(concat!(env!("OUT_DIR"), "/copies.bpf.o")));

/// What the kernel copied, in bytes. The order is that of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Between the kernel's packets and chunks, in AF_XDP's copy mode.
    pub packets: u64,
    /// In and out of UDP sockets.
    pub sockets: u64,
    /// Through bounce buffers, where the memory of a passthrough command did not suit the controller. Counted once, whichever way.
    pub bounces: u64,
    /// Through the page cache, where a storage file was not read or written directly.
    pub page_cache: u64,
}

impl Copied {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.packets + self.sockets + self.bounces + self.page_cache
    }
}

/// The programs, attached as long as this lives, by links that die with the process. May be used from any core.
pub struct KernelCopies {
    copied: MapHandle,
    sockets: MapHandle,
    files: MapHandle,
    flows: Mutex<Flows>,
    _links: Vec<Link>,
}

/// Flows under way, and how far the sum has been given out.
#[derive(Default)]
struct Flows {
    active: u32,
    given: u64,
}

impl KernelCopies {
    /// Attaches the programs.
    ///
    /// # Errors
    /// No privilege, no BTF, or a kernel without one of the functions.
    pub fn open() -> Result<KernelCopies> {
        let mut open = bpf::open("basin-copies", OBJECT).map_err(|error| explain("opening", &error))?;
        prepare(&mut open)?;
        let object = open.load().map_err(|error| explain("loading", &error))?;
        let map = |wanted: &str| {
            let found = object.maps().find(|map| map.name() == wanted).expect("the object was compiled with this map");
            MapHandle::try_from(&found).map_err(|error| explain("keeping a map of", &error))
        };
        let (copied, sockets, files) = (map("copied")?, map("sockets")?, map("files")?);
        let loaded = object.progs_mut().filter(|program| program.autoload());
        let links = loaded.map(|program| program.attach().map_err(|error| explain("attaching", &error))).collect::<Result<_>>()?;
        Ok(KernelCopies { copied, sockets, files, flows: Mutex::default(), _links: links })
    }

    /// Counts what is copied for an AF_XDP socket, by its cookie.
    ///
    /// # Errors
    /// More sockets than the map has room for, 256.
    pub fn watch_socket(&self, cookie: u64) -> Result<()> {
        self.sockets.update(&cookie.to_ne_bytes(), &[1], MapFlags::ANY).map_err(|error| explain("adding a socket to", &error))
    }

    /// Counts what goes through the page cache for a storage device or file.
    ///
    /// # Errors
    /// The file is not there, or on a file system whose buffered I/O is not one of those that are counted.
    pub fn watch_storage(&self, path: &Path) -> Result<()> {
        let name = path.display();
        let failed = |error: &std::io::Error| Error::io(format!("counting copies for {name}"), error);
        let found = std::fs::metadata(path).map_err(|error| failed(&error))?;
        let kind = found.file_type();
        if kind.is_block_device() || kind.is_char_device() {
            // Direct I/O to a device goes directly or fails.
            return Ok(());
        }
        let system = statfs(path).map_err(|errno| failed(&errno.into()))?.filesystem_type();
        if !COUNTED.contains(&system) {
            let what = format!("{name} is on a file system (type {:#x}) whose copies are not counted", system.0);
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("ext4, XFS and tmpfs are known"));
        }
        let key: Vec<u8> = [found.ino(), device_number(&found)].iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.files.update(&key, &[1], MapFlags::ANY).map_err(|error| explain("adding a file to", &error))
    }

    /// What was copied since the programs were attached.
    ///
    /// # Errors
    /// The kernel does not let the map be read.
    pub fn read(&self) -> Result<Copied> {
        let sum = |kind: u32| -> Result<u64> {
            let by_cpu = self.copied.lookup_percpu(&kind.to_ne_bytes(), MapFlags::ANY).map_err(|error| explain("reading", &error))?;
            let word = |value: &Vec<u8>| value.first_chunk().map_or(0, |&word| u64::from_ne_bytes(word));
            Ok(by_cpu.unwrap_or_default().iter().map(word).sum())
        };
        Ok(Copied { packets: sum(0)?, sockets: sum(1)?, bounces: sum(2)?, page_cache: sum(3)? })
    }

    /// A flow begins. What was copied while there was none is nobody's.
    pub fn begin(self: &Arc<Self>) -> Share {
        let mut flows = self.flows();
        if flows.active == 0
            && let Ok(copied) = self.read()
        {
            flows.given = copied.total();
        }
        flows.active += 1;
        Share { copies: self.clone() }
    }

    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flow's share of the sum. Dropped with a flow that broke.
pub struct Share {
    copies: Arc<KernelCopies>,
}

impl Share {
    /// What was copied since the flow began or another one ended, in bytes. `None` if that cannot be read.
    pub fn end(self) -> Option<u64> {
        let total = self.copies.read().ok()?.total();
        let mut flows = self.copies.flows();
        // Another core's flow may have ended between the two lines above.
        let given = flows.given.max(total);
        Some(given - std::mem::replace(&mut flows.given, given))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.copies.flows().active -= 1;
    }
}

/// File systems whose buffered reads and writes go through functions that are counted.
const COUNTED: [FsType; 3] = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, TMPFS_MAGIC];

/// Functions that only one of [`COUNTED`] needs, and that a kernel without it lacks.
const OPTIONAL: [&str; 1] = ["iomap_file_buffered_write"];

/// Tells the programs who we are, and leaves out those whose function may be lacking.
fn prepare(open: &mut OpenObject) -> Result<()> {
    let kernel = Btf::from_vmlinux().map_err(|error| {
        let what = format!("reading the kernel's BTF: {error:#}");
        Error::new(ErrorKind::Unavailable, what).remedy("a kernel with CONFIG_DEBUG_INFO_BTF is needed")
    })?;
    for mut program in open.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let function = section.split_once('/').map_or("", |(_, function)| function);
        if kernel.type_by_name::<Func>(function).is_none() {
            if !OPTIONAL.contains(&function) {
                let what = format!("this kernel has no {function} to count copies at");
                return Err(Error::new(ErrorKind::Unavailable, what).remedy("Linux 6.1 to 7.2 on x86-64 is known to have it"));
            }
            program.set_autoload(false);
        }
    }
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_err(|error| Error::io("finding our PID namespace", &error))?;
    let who = [device_number(&namespace), namespace.ino(), std::process::id().into()];
    let who: Vec<u8> = who.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for mut map in open.maps_mut() {
        if map.name().to_str().is_some_and(|section| section.ends_with(".rodata")) {
            map.set_initial_value(&who).map_err(|error| explain("preparing", &error))?;
        }
    }
    Ok(())
}

/// The device a file is on, as the kernel numbers it within itself.
fn device_number(found: &Metadata) -> u64 {
    u64::from(libc::major(found.dev())) << 20 | u64::from(libc::minor(found.dev()))
}

fn explain(step: &str, error: &libbpf_rs::Error) -> Error {
    let what = format!("{step} the BPF programs that count the kernel's copies: {error:#}");
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if nix::unistd::geteuid().is_root() => {
            Error::new(ErrorKind::Unavailable, what).remedy("a security module of this kernel, or a container, refuses tracing programs")
        }
        libbpf_rs::ErrorKind::PermissionDenied => {
            Error::new(ErrorKind::Unavailable, what).remedy("run as root or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")
        }
        _ => Error::new(ErrorKind::Unavailable, what).remedy("a kernel with BTF, BPF trampolines and ftrace is needed"),
    }
}
