//! QEMU's command line, and whether KVM can be used.

use super::devices::escaped;
use super::fetch::say;
use super::image::Image;
use crate::child;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU's software emulation: anywhere, slowly.
    Tcg,
}

impl Accelerator {
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "software emulation",
        }
    }
}

/// The machine to start.
pub struct Machine<'a> {
    pub image: &'a Image,
    pub accelerator: Accelerator,
    /// In QEMU's units, as in `4G`.
    pub memory: &'a str,
    pub cpus: u32,
    /// Hugepages of 2 MiB, set aside at boot.
    pub hugepages: u32,
    /// Where the console and the shared files are.
    pub control: &'a Path,
    /// The project, writable at its own path in the guest.
    pub project: &'a Path,
    /// A directory shared with another guest.
    pub pair: Option<&'a Path>,
    /// The plugin that counts instructions, and the file it counts in.
    pub count: Option<(&'a Path, &'a Path)>,
    /// Devices.
    pub devices: Vec<String>,
}

/// The name of the console's file below the control directory.
pub const CONSOLE: &str = "console.log";

/// The kernel's parameters. An oops is the end; a machine that shares its processors with others stalls at times, which is no fault of
/// the kernel's: no watchdogs. NVMe gets a queue for polled I/O. What is allocated is not zeroed, page tables have four levels, and nobody
/// waits long for RCU: by software emulation a third of a boot, most of it to zero the huge pages.
const PARAMETERS: &str = "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off tsc=reliable no_timer_check nokaslr audit=0 \
                          apparmor=0 random.trust_cpu=1 nowatchdog nvme.poll_queues=1 init_on_alloc=0 no5lvl rcupdate.rcu_expedited=1";

/// Without fast `rep movsb` and `rep stosb`, which emulation carries out byte by byte: it took half a second to zero the huge pages of a
/// region of 128 MiB. Kernel and C library move words then.
const EMULATED: &str = "max,-erms,-fsrm";

/// The program, by `BASIN_QEMU` or from the path.
fn program() -> PathBuf {
    std::env::var_os("BASIN_QEMU").map_or_else(|| "qemu-system-x86_64".into(), PathBuf::from)
}

/// Whether QEMU is here.
pub fn present() -> bool {
    Command::new(program()).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The first number of QEMU's version.
pub fn release() -> Result<u32, String> {
    let said = child::output(Command::new(program()).arg("--version"))?;
    // `QEMU emulator version 7.2.22 (Debian …)`
    let number = said.split_once("version ").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    number.ok_or_else(|| format!("QEMU does not tell its version: {}", said.trim()))
}

fn base(accelerator: Accelerator, image: &Image, console: &Path, parameters: &str) -> Command {
    // However we end, QEMU ends with us (util-linux).
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program());
    match accelerator {
        Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host", "-machine", "q35"]),
        Accelerator::Tcg => command.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", EMULATED, "-machine", "q35"]),
    };
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs).args(["-append", parameters]);
    command.args(["-chardev", &format!("file,id=console,path={}", escaped(console)), "-serial", "chardev:console"]);
    command
}

/// The command that runs the machine; the guest's output is its standard output.
pub fn command(machine: &Machine) -> Command {
    let parameters = match machine.hugepages {
        0 => PARAMETERS.to_owned(),
        count => format!("{PARAMETERS} hugepages={count}"),
    };
    let mut command = base(machine.accelerator, machine.image, &machine.control.join(CONSOLE), &parameters);
    command.args(["-m", machine.memory, "-smp", &machine.cpus.to_string()]);
    // Not "stdio": at the end of its input that closes the output too.
    command.args(["-device", "virtio-serial-pci", "-chardev", "file,id=output,path=/dev/stdout"]);
    command.args(["-device", "virtserialport,chardev=output,name=basin.output", "-device", "virtio-rng-pci"]);
    let share = |tag: &str, path: &Path, options: &str| {
        ["-virtfs".to_owned(), format!("local,path={},mount_tag={tag},security_model=none,{options}", escaped(path))]
    };
    command.args(share("root", Path::new("/"), "readonly=on,multidevs=remap"));
    command.args(share("tools", &machine.image.tools, "readonly=on"));
    command.args(share("control", machine.control, "multidevs=remap"));
    command.args(share("project", machine.project, "multidevs=remap"));
    if let Some(pair) = machine.pair {
        command.args(share("pair", pair, "multidevs=remap"));
    }
    if let Some((plugin, file)) = machine.count {
        command.args(["-plugin", &format!("{},counts={}", escaped(plugin), escaped(file))]);
    }
    command.args(&machine.devices);
    command
}

/// KVM where a kernel of ours comes up under it, else software emulation. What was found is remembered until the host boots again.
pub fn accelerator(cache: &Path, image: &Image) -> Accelerator {
    if fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Accelerator::Tcg;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let note = cache.join("kvm.txt");
    let known = fs::read_to_string(&note).unwrap_or_default();
    let works = match known.split_once(' ') {
        Some((when, result)) if when == boot.trim() => result.trim() == "works",
        _ => {
            let works = probe(cache, image);
            if !works {
                say("/dev/kvm is here but does not run the kernel; software emulation it is");
            }
            let result = if works { "works" } else { "fails" };
            // Only a note: without it the next run probes again.
            let _ = fs::write(&note, format!("{} {result}\n", boot.trim()));
            works
        }
    };
    if works { Accelerator::Kvm } else { Accelerator::Tcg }
}

/// Boots up to the first line of the initramfs.
fn probe(cache: &Path, image: &Image) -> bool {
    let console = cache.join(format!("kvm-probe-{}.log", std::process::id()));
    let mut command = base(Accelerator::Kvm, image, &console, "console=ttyS0 panic=-1 quiet lab.probe");
    let ended = child::run_lines(command.args(["-m", "1G"]), Duration::from_secs(20), |_| {});
    let up = fs::read_to_string(&console).unwrap_or_default().contains("lab: the kernel is up");
    let _ = fs::remove_file(&console);
    ended.is_ok_and(|ended| ended.success()) && up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_what_was_asked() {
        let image = Image {
            kernel: "/c/vmlinuz".into(),
            initramfs: "/c/initramfs.cpio".into(),
            modules: "/c".into(),
            release: "1".into(),
            record: String::new(),
            tools: "/c/tools".into(),
        };
        let machine = Machine {
            image: &image,
            accelerator: Accelerator::Tcg,
            memory: "2G",
            cpus: 3,
            hugepages: 64,
            control: Path::new("/run,1"),
            project: Path::new("/project"),
            pair: None,
            count: Some((Path::new("/c/count.so"), Path::new("/run,1/counts"))),
            devices: vec!["-device".into(), "x".into()],
        };
        let text = child::shown(&command(&machine));
        for part in [
            "-m 2G",
            "-smp 3",
            "hugepages=64",
            "path=/run,,1/console.log",
            "path=/,mount_tag=root,security_model=none,readonly=on",
            "-plugin /c/count.so,counts=/run,,1/counts",
            "-device x",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("tcg") && !text.contains("mount_tag=pair"), "{text}");
    }
}
