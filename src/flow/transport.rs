//! What carries a flow's messages, what each transport cannot, and why a plan cannot run over its one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::rdma::{self, Caps};
use crate::flow::FlowKind;
use crate::flow::control::Plan;

/// An RDMA transport service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: no READ, may lose.
    Uc,
    /// Unreliable datagram: SEND only, up to the path MTU, may lose.
    Ud,
}

impl Transport {
    /// Whether messages may be lost and nobody is told.
    pub const fn loses(self) -> bool {
        !matches!(self, Transport::Rc)
    }

    /// Whether it has one-sided WRITEs, and so windows to write to.
    pub const fn writes(self) -> bool {
        !matches!(self, Transport::Ud)
    }

    /// The largest message where a packet carries `path_mtu` bytes, if that is a limit.
    pub fn message_max(self, path_mtu: u32) -> Option<u32> {
        matches!(self, Transport::Ud).then_some(path_mtu)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        })
    }
}

impl From<Transport> for rdma::Transport {
    fn from(transport: Transport) -> rdma::Transport {
        match transport {
            Transport::Rc => rdma::Transport::Rc,
            Transport::Uc => rdma::Transport::Uc,
            Transport::Ud => rdma::Transport::Ud,
        }
    }
}

impl Plan {
    /// Whether this end's RDMA device, with `caps`, can carry it.
    ///
    /// # Errors
    /// The flow, the device or the size is not for the transport.
    pub fn carried(&self, caps: &Caps) -> Result<()> {
        let Plan { flow, transport, .. } = *self;
        if !flow.uses_rdma() {
            return Ok(());
        }
        if flow == FlowKind::RdmaToRdma && transport.loses() {
            let what = format!("the flow {flow} does not run over {transport}: a segment that is lost would stop the ring");
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("use --transport rc"));
        }
        if !caps.transports.contains(&transport.into()) {
            let error = Error::new(ErrorKind::Unavailable, format!("{} does not speak {transport}", caps.name));
            return Err(error.remedy("use --transport rc, or soft:udp or soft:xdp at both ends"));
        }
        self.fits(caps.path_mtu_max)
    }

    /// Whether its messages fit where a packet carries `path_mtu` bytes.
    ///
    /// # Errors
    /// They do not: the error says what would.
    pub fn fits(&self, path_mtu: u32) -> Result<()> {
        match self.transport.message_max(path_mtu) {
            Some(most) if self.size_bytes > most => {
                let Plan { flow, transport, size_bytes, .. } = self;
                let what =
                    format!("{flow}: a message over {transport} is one packet, and {size_bytes} bytes do not fit into one of {most}");
                Err(Error::new(ErrorKind::Unavailable, what).remedy(format!("use --size {most} or less, or another --transport")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::node::tests::plan_of;

    fn caps(transports: &[rdma::Transport]) -> Caps {
        Caps {
            name: "test".into(),
            wire: String::new(),
            path_mtu_max: 1024,
            max_sge: 1,
            max_qps: 1,
            max_depth: 1,
            max_message_bytes: 1 << 20,
            transports: transports.to_vec(),
            features: rdma::Features::empty(),
            gid: None,
            note: None,
        }
    }

    fn refusal(flow: FlowKind, transport: Transport, size_bytes: u32, caps: &Caps) -> String {
        let plan = Plan { transport, size_bytes, ..plan_of(flow) };
        plan.carried(caps).err().map_or(String::new(), |error| format!("{error:#}"))
    }

    #[test]
    fn each_transport_carries_what_it_can() {
        let all = caps(&[rdma::Transport::Rc, rdma::Transport::Uc, rdma::Transport::Ud]);
        let rc = caps(&[rdma::Transport::Rc]);
        for flow in FlowKind::ALL {
            assert_eq!(refusal(flow, Transport::Rc, 64 << 10, &all), "");
            assert_eq!(refusal(flow, Transport::Ud, 1024, &all).is_empty(), flow != FlowKind::RdmaToRdma);
            assert_eq!(refusal(flow, Transport::Ud, 1025, &all).is_empty(), flow == FlowKind::NetworkToStorage);
            assert_eq!(refusal(flow, Transport::Uc, 64 << 10, &all).is_empty(), flow != FlowKind::RdmaToRdma);
            assert_eq!(refusal(flow, Transport::Uc, 64 << 10, &rc).is_empty(), flow == FlowKind::NetworkToStorage);
        }
        let too_large = refusal(FlowKind::StorageToRdma, Transport::Ud, 4096, &all);
        assert!(too_large.contains("--size 1024"), "{too_large}");
        let unknown = refusal(FlowKind::StorageToRdma, Transport::Uc, 4096, &rc);
        assert!(unknown.contains("test does not speak uc"), "{unknown}");
    }
}
