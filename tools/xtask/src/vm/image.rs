//! Makes what a guest boots from, once for each kernel: the kernel, a decompressed subset of its modules with their own `depmod`, an
//! initramfs; and once for all, the directory of tools.
//!
//! Nothing is decompressed inside the guest: under emulation that would cost seconds of every boot.

use super::fetch::{Package, Store, say};
use super::newc::Archive;
use super::pins::{Kernel, TOOLS};
use crate::child;
use nix::fcntl::{Flock, FlockArg};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first program of the guest.
const STAGE1: &str = include_str!("guest/stage1.sh");
/// Modules the initramfs loads, in this order after what they need: enough to reach the host's root.
const BOOT: &[&str] = &["9p", "9pnet_virtio", "overlay", "virtio_rng"];
/// Modules the guest can load later, each with what it needs.
const MODULES: &[&str] = &[
    // The machine.
    "virtio_console",
    "virtio_net",
    "virtio_blk",
    "e1000e",
    "igb",
    "msr",
    "loop",
    "fuse",
    "ext4",
    "vfat",
    "xfs",
    "brd",
    "zram",
    // RDMA. crc32: rxe needs one and does not name it.
    "rdma_rxe",
    "siw",
    "rdma_ucm",
    "ib_umad",
    "crc32_generic",
    "crc32-pclmul",
    "crc32c_generic",
    "crc32c-intel",
    // NVMe and what stands in for it.
    "nvme",
    "nvmet",
    "nvmet-rdma",
    "nvmet-tcp",
    "nvme-loop",
    "nvme-rdma",
    "nvme-tcp",
    "null_blk",
    "ublk_drv",
    "scsi_debug",
    "dm_flakey",
    "dm_log_writes",
    "dm-delay",
    "dm-error",
    // Networks.
    "veth",
    "tun",
    "bridge",
    "8021q",
    "dummy",
    "macvlan",
    "ipvlan",
    "sch_netem",
    "sch_ingress",
    "sch_tbf",
    "cls_bpf",
    "act_bpf",
    "cls_u32",
    "nf_tables",
    "nft_compat",
    "xsk_diag",
    "af_packet_diag",
    "netdevsim",
    // Memory of devices.
    "vfio_pci",
    "vfio_iommu_type1",
    "uio_pci_generic",
    "iommufd",
    "udmabuf",
];

/// What a guest boots from.
pub struct Image {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// `lib/modules/VERSION` is below it.
    pub modules: PathBuf,
    /// What `uname -r` says in the guest.
    pub release: String,
    /// One line for each package, with the words `pinned` or `NOT-PINNED`.
    pub record: String,
    /// The second lower directory of the guest's root.
    pub tools: PathBuf,
}

/// Where packages and images are kept: `$XDG_CACHE_HOME/basin`, `~/.cache/basin`, or below target/ where there is no home.
pub fn cache(root: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    base.map_or_else(|| root.join("target/vm/cache"), |base| base.join("basin"))
}

/// The image of `kernel`, fetched and made if it is not in the cache.
pub fn image(root: &Path, kernel: &Kernel) -> Result<Image, String> {
    let cache = cache(root);
    fs::create_dir_all(&cache).map_err(|error| format!("cannot make {}: {error}", cache.display()))?;
    // One process at a time fetches and builds; the others then find it done.
    let path = cache.join("lock");
    let file = fs::File::create(&path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| format!("cannot lock {}: {errno}", path.display()))?;

    let mut store = Store::new(&cache);
    let tools = cache.join("tools");
    made(&tools, &recipe(&format!("{TOOLS:?}")), |to| make_tools(&mut store, to))?;
    let directory = cache.join(format!("linux-{}", kernel.name));
    let recipe = recipe(&format!("{:?}\n{MODULES:?}\n{BOOT:?}\n{STAGE1}", kernel.pins));
    made(&directory, &recipe, |to| make_kernel(&mut store, kernel, &tools, to))?;
    Ok(Image {
        kernel: directory.join("vmlinuz"),
        initramfs: directory.join("initramfs.cpio"),
        modules: directory.clone(),
        release: read(&directory.join("release"))?.trim().to_owned(),
        record: read(&tools.join(PACKAGES))? + &read(&directory.join(PACKAGES))?,
        tools,
    })
}

const PACKAGES: &str = "packages.txt";

fn recipe(text: &str) -> String {
    // What this file does besides: count it up when that changes.
    format!("1\n{text}")
}

/// Makes `directory` anew unless it was made by this very recipe. A run that is stopped leaves no half of it.
fn made(directory: &Path, recipe: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let note = directory.join("recipe.txt");
    if fs::read_to_string(&note).is_ok_and(|text| text == recipe) {
        return Ok(());
    }
    let fresh = beside(directory);
    remove(&fresh)?;
    fs::create_dir_all(&fresh).map_err(|error| format!("cannot make {}: {error}", fresh.display()))?;
    make(&fresh)?;
    write(&fresh.join("recipe.txt"), recipe)?;
    remove(directory)?;
    fs::rename(&fresh, directory).map_err(|error| format!("cannot rename {} to {}: {error}", fresh.display(), directory.display()))
}

/// Where a directory grows before it gets its name.
fn beside(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn make_tools(store: &mut Store, to: &Path) -> Result<(), String> {
    let packages = store.tools(TOOLS)?;
    unpack(&packages, to)?;
    // The host has /bin, /lib and /sbin as links into /usr; directories of those names would hide them.
    for name in ["bin", "sbin", "lib"] {
        let from = to.join(name);
        if from.is_dir() {
            let into = to.join("usr").join(name);
            fs::create_dir_all(&into).map_err(|error| format!("cannot make {}: {error}", into.display()))?;
            child::output(Command::new("cp").args(["-a", "--"]).arg(from.join(".")).arg(&into))?;
            remove(&from)?;
        }
    }
    for name in ["var", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/lib/systemd", "usr/lib/udev"] {
        remove(&to.join(name))?;
    }
    write(&to.join(PACKAGES), record(&packages))
}

fn make_kernel(store: &mut Store, kernel: &Kernel, tools: &Path, to: &Path) -> Result<(), String> {
    let packages = store.kernel(kernel)?;
    say(&format!("making the guest of kernel {} (once)", kernel.name));
    let unpacked = to.join("unpacked");
    unpack(&packages, &unpacked)?;
    if !unpacked.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", unpacked.join("lib")).map_err(|error| format!("cannot link lib: {error}"))?;
    }
    let from = unpacked.join("lib/modules");
    let release = fs::read_dir(&from).into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).next();
    let release = release.ok_or_else(|| format!("the packages of kernel {} hold no modules", kernel.name))?;
    let from = from.join(&release);
    depmod(tools, &unpacked, &release)?;
    let text = read(&from.join("modules.dep"))?;
    let table = Modules::parse(&text);

    let modules = to.join("lib/modules").join(&release);
    let busybox = tools.join("usr/bin/busybox");
    let mut packed = Vec::new();
    let wanted: BTreeSet<&str> = BOOT.iter().chain(MODULES).flat_map(|name| table.with_needs(name)).collect();
    for path in wanted {
        let into = modules.join(path);
        fs::create_dir_all(into.parent().unwrap_or(&modules)).map_err(|error| format!("cannot make {}: {error}", modules.display()))?;
        fs::copy(from.join(path), &into).map_err(|error| format!("cannot copy module {path}: {error}"))?;
        if path.ends_with(".xz") {
            packed.push(into);
        }
    }
    if !packed.is_empty() {
        child::output(Command::new(&busybox).arg("unxz").args(&packed))?;
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(from.join(name), modules.join(name)).map_err(|error| format!("cannot copy {name}: {error}"))?;
    }
    depmod(tools, to, &release)?;

    let text = read(&modules.join("modules.dep"))?;
    let table = Modules::parse(&text);
    let initramfs = initramfs(&busybox, &modules, &table)?;
    write(&to.join("initramfs.cpio"), initramfs)?;
    // In one package of the older kernels, beside the modules of the newer ones.
    for name in ["vmlinuz", "config"] {
        let places = [unpacked.join("boot").join(format!("{name}-{release}")), from.join(name)];
        let path =
            places.iter().find(|path| path.exists()).ok_or_else(|| format!("the packages of kernel {} hold no {name}", kernel.name))?;
        fs::copy(path, to.join(name)).map_err(|error| format!("cannot copy {}: {error}", path.display()))?;
    }
    write(&to.join("release"), &release)?;
    write(&to.join(PACKAGES), record(&packages))?;
    remove(&unpacked)
}

fn initramfs(busybox: &Path, modules: &Path, table: &Modules) -> Result<Vec<u8>, String> {
    let bytes = |path: &Path| fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let mut archive = Archive::new();
    for name in ["bin", "m", "proc", "sys", "dev", "control", "lower", "tools", "upper", "new"] {
        archive.directory(name);
    }
    archive.file("bin/busybox", 0o755, &bytes(busybox)?);
    archive.file("init", 0o755, STAGE1.as_bytes());
    let mut order = Vec::new();
    for path in BOOT.iter().flat_map(|name| table.with_needs(name)) {
        let name = path.rsplit('/').next().unwrap_or(path);
        if !order.contains(&name) {
            archive.file(&format!("m/{name}"), 0o644, &bytes(&modules.join(path))?);
            order.push(name);
        }
    }
    archive.file("m/order", 0o644, order.join("\n").as_bytes());
    Ok(archive.finish())
}

/// Writes modules.dep and its kin below `base`, with the lab's own kmod.
fn depmod(tools: &Path, base: &Path, release: &str) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    child::output(Command::new(tools.join("usr/bin/kmod")).arg0("depmod").arg("-b").arg(base).arg(release)).map(drop)
}

fn unpack(packages: &[Package], to: &Path) -> Result<(), String> {
    for package in packages {
        child::output(Command::new("dpkg-deb").arg("-x").arg(&package.path).arg(to))?;
    }
    Ok(())
}

fn record(packages: &[Package]) -> String {
    packages.iter().map(|package| package.record() + "\n").collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Removes a file or a directory with all it holds; nothing there is well.
fn remove(path: &Path) -> Result<(), String> {
    let gone = if path.is_symlink() || path.is_file() { fs::remove_file(path) } else { fs::remove_dir_all(path) };
    match gone {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("cannot remove {}: {error}", path.display())),
        _ => Ok(()),
    }
}

/// modules.dep(5): each module's path and what it needs, the outermost need first.
struct Modules<'a> {
    /// By name, with '_' for '-'.
    paths: HashMap<String, (&'a str, Vec<&'a str>)>,
}

impl<'a> Modules<'a> {
    fn parse(text: &'a str) -> Modules<'a> {
        let line = |line: &'a str| {
            let (path, needs) = line.split_once(':')?;
            let name = path.rsplit('/').next()?.split('.').next()?.replace('-', "_");
            Some((name, (path, needs.split_whitespace().collect())))
        };
        Modules { paths: text.lines().filter_map(line).collect() }
    }

    /// The paths to load for `name`, in order; nothing for what this kernel has built in or does not have.
    fn with_needs(&self, name: &str) -> Vec<&'a str> {
        let Some((path, needs)) = self.paths.get(&name.replace('-', "_")) else { return Vec::new() };
        needs.iter().rev().copied().chain([*path]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_its_needs() {
        let modules = Modules::parse(
            "kernel/fs/9p/9p.ko.xz: kernel/net/9pnet.ko.xz kernel/fs/netfs.ko.xz\nkernel/net/9pnet.ko.xz:\nkernel/a/nvme-tcp.ko: ",
        );
        assert_eq!(modules.with_needs("9p"), ["kernel/fs/netfs.ko.xz", "kernel/net/9pnet.ko.xz", "kernel/fs/9p/9p.ko.xz"]);
        assert_eq!(modules.with_needs("nvme_tcp"), ["kernel/a/nvme-tcp.ko"]);
        assert!(modules.with_needs("built_in").is_empty());
    }

    #[test]
    fn a_recipe_that_changed_makes_anew() {
        let directory = std::env::temp_dir().join(format!("basin-made-{}", std::process::id()));
        let mut count = 0;
        for recipe in ["a", "a", "b"] {
            made(&directory, recipe, |to| {
                count += 1;
                write(&to.join("content"), recipe)
            })
            .expect("the temporary directory can be written");
        }
        assert_eq!(count, 2);
        assert_eq!(read(&directory.join("content")).expect("it was made"), "b");
        let failed = made(&directory, "c", |_| Err("no".into()));
        assert!(failed.is_err() && directory.join("content").exists(), "a failure leaves what was");
        for path in [directory.clone(), beside(&directory)] {
            remove(&path).expect("it is ours");
        }
    }
}
