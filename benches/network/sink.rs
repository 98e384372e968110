//! A sink: an XDP program of two instructions that drops every frame, attached in the driver until the program is ended.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::failed;

#[derive(clap::Args)]
pub struct Options {
    /// The interface whose frames are dropped.
    #[arg(long)]
    interface: String,
}

/// `r0 = XDP_DROP; exit`, as `struct bpf_insn`.
static DROP: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
static LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 4;

/// The front of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    /// Verifier's log, kernel version, flags, name: none.
    rest: [u64; 6],
}

/// The front of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct Link {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_long, attr: &T, what: &str) -> Result<OwnedFd, String> {
    // SAFETY: the attributes live through the call, and their size goes with them.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if fd < 0 {
        return Err(failed(what));
    }
    // SAFETY: fresh and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn run(options: &Options) -> Result<(), String> {
    let index = nix::net::if_::if_nametoindex(options.interface.as_str()).map_err(|error| format!("{}: {error}", options.interface))?;
    let load = Load {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: DROP.len() as u32,
        insns: DROP.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        rest: [0; 6],
    };
    let program = bpf(BPF_PROG_LOAD, &load, "loading the XDP program")?;
    let link = Link { prog_fd: program.as_raw_fd() as u32, target_ifindex: index, attach_type: BPF_XDP, flags: XDP_FLAGS_DRV_MODE };
    let _link = bpf(BPF_LINK_CREATE, &link, &format!("attaching the XDP program to {}", options.interface))?;
    println!("ready");
    loop {
        std::thread::park();
    }
}
