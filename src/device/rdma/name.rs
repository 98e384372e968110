//! How a user names an RDMA device: the second argument of `unified-rdma-test`.

use std::fmt;
use std::str::FromStr;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// An RDMA device by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RdmaName {
    /// `soft`: the soft HCA over the best wire both ends have (see [`endpoint`](super::endpoint)).
    Soft,
    /// `soft:mem`: between HCAs of one process.
    SoftMemory,
    /// `soft:shm`: between processes of one host.
    SoftShm,
    /// `soft:udp`: RoCEv2 through an unprivileged UDP socket.
    SoftUdp,
    /// `soft:xdp`: RoCEv2 through AF_XDP.
    SoftXdp,
    /// Anything else: a verbs device, `mlx5_0`.
    Verbs(String),
}

impl FromStr for RdmaName {
    type Err = Error;

    fn from_str(text: &str) -> Result<RdmaName> {
        Ok(match text {
            "soft" => RdmaName::Soft,
            "soft:mem" => RdmaName::SoftMemory,
            "soft:shm" => RdmaName::SoftShm,
            "soft:udp" => RdmaName::SoftUdp,
            "soft:xdp" => RdmaName::SoftXdp,
            "" => return Err(Error::new(ErrorKind::Usage, "an empty RDMA device name").remedy("use soft, or a verbs device name")),
            _ if text.starts_with("soft:") => {
                return Err(Error::new(ErrorKind::Usage, format!("'{text}' names no wire of the soft HCA"))
                    .remedy("the wires are soft:xdp, soft:udp, soft:shm and soft:mem; soft alone picks one"));
            }
            _ => RdmaName::Verbs(text.to_owned()),
        })
    }
}

impl fmt::Display for RdmaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RdmaName::Soft => "soft",
            RdmaName::SoftMemory => "soft:mem",
            RdmaName::SoftShm => "soft:shm",
            RdmaName::SoftUdp => "soft:udp",
            RdmaName::SoftXdp => "soft:xdp",
            RdmaName::Verbs(name) => name,
        })
    }
}

/// Verbs devices the kernel shows, whether or not a library could open them.
pub fn verbs_devices() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What to tell someone who asks for a verbs device.
pub(super) fn verbs_unavailable(name: &str) -> Error {
    let devices = verbs_devices();
    let found = if devices.is_empty() { "this machine has no RDMA devices".to_owned() } else { format!("found: {}", devices.join(", ")) };
    Error::new(ErrorKind::Unavailable, format!("the RDMA device '{name}': the verbs backend is not in this build yet; {found}"))
        .remedy("use soft, the RoCEv2 HCA in user space: it needs no RDMA hardware")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for name in ["soft", "soft:mem", "soft:shm", "soft:udp", "soft:xdp", "mlx5_0"] {
            assert_eq!(name.parse::<RdmaName>().unwrap().to_string(), name);
        }
        assert_eq!("soft:tcp".parse::<RdmaName>().unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!("".parse::<RdmaName>().unwrap_err().kind(), ErrorKind::Usage);
        let error = verbs_unavailable("mlx5_9");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("mlx5_9") && error.to_string().contains("soft"), "{error}");
    }
}
