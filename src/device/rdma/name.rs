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
    /// Anything else: a verbs device, `mlx5_0`, or one of its ports, `mlx5_0:2`.
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

/// What to tell someone who asks for a verbs device where there can be none.
#[cfg(not(feature = "verbs"))]
pub(super) fn verbs_not_built(name: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the RDMA device '{name}': this program was built without verbs"))
        .remedy("build it with the feature verbs, or use soft, the RoCEv2 HCA in user space")
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
    }
}
