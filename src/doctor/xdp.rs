//! Whether this process may open an AF_XDP socket.

use super::{Area, Check, SETCAP};
use crate::base::error::describe_errno;
use socket2::{Domain, Socket, Type};

const NAME: &str = "socket";

/// Opens one and closes it.
pub(super) fn socket() -> Check {
    match Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None) {
        Ok(_) => Check::ok(Area::AfXdp, NAME, "can be opened"),
        Err(error) => refused(error.raw_os_error().unwrap_or(0)),
    }
}

/// What the error number of an opening means.
pub(super) fn refused(errno: i32) -> Check {
    let (cause, remedy) = match errno {
        libc::EPERM | libc::EACCES => {
            ("an AF_XDP socket needs CAP_NET_RAW (and its program CAP_BPF and CAP_NET_ADMIN)", format!("run as root, or: {SETCAP}"))
        }
        libc::EAFNOSUPPORT => ("this kernel has no AF_XDP", "use a kernel with CONFIG_XDP_SOCKETS=y".into()),
        _ => ("the kernel refused", "look at: sudo dmesg | tail".into()),
    };
    Check::missing(Area::AfXdp, NAME, describe_errno(errno), cause, remedy)
}
