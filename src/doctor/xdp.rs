//! Whether this process may open an AF_XDP socket.

use super::{Area, Check};
use crate::base::error::describe_errno;
use socket2::{Domain, Socket, Type};

/// Opens one and closes it.
pub(super) fn socket() -> Check {
    let name = "socket";
    let error = match Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None) {
        Ok(_) => return Check::ok(Area::AfXdp, name, "can be opened"),
        Err(error) => error,
    };
    let errno = error.raw_os_error().unwrap_or(0);
    let (cause, remedy) = match errno {
        libc::EPERM | libc::EACCES => (
            "an AF_XDP socket needs CAP_NET_RAW (and its program CAP_BPF and CAP_NET_ADMIN)",
            "run as root, or: sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep BINARY",
        ),
        libc::EAFNOSUPPORT => ("this kernel has no AF_XDP", "use a kernel with CONFIG_XDP_SOCKETS=y"),
        _ => ("the kernel refused", "look at: sudo dmesg | tail"),
    };
    Check::missing(Area::AfXdp, name, describe_errno(errno), cause, remedy)
}
