//! What carries a flow's messages, what each transport cannot, and why a plan cannot run over its one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::rdma::{self, Caps};
use crate::flow::FlowKind;
use crate::flow::control::Plan;
use crate::flow::node::Node;

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
    /// No RDMA at all: Ethernet frames built and parsed here and moved by AF_XDP, which may be lost.
    Raw,
}

impl Transport {
    /// Whether messages may be lost and nobody is told.
    pub const fn loses(self) -> bool {
        !matches!(self, Transport::Rc)
    }

    /// What a queue pair for it is made of, if there are any.
    pub const fn service(self) -> Option<rdma::Transport> {
        match self {
            Transport::Rc => Some(rdma::Transport::Rc),
            Transport::Uc => Some(rdma::Transport::Uc),
            Transport::Ud => Some(rdma::Transport::Ud),
            Transport::Raw => None,
        }
    }

    /// Whether it has one-sided WRITEs, and so windows to write to.
    pub const fn writes(self) -> bool {
        matches!(self, Transport::Rc | Transport::Uc)
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
            Transport::Raw => "raw",
        })
    }
}

impl Plan {
    /// Whether it takes an RDMA device.
    pub const fn uses_rdma(&self) -> bool {
        self.flow.uses_rdma() && self.transport.service().is_some()
    }

    /// Whether `node` can carry it over its transport.
    ///
    /// # Errors
    /// The flow, the device or the size is not for the transport.
    pub fn carried_by(&self, node: &Node) -> Result<()> {
        self.carried()?;
        if self.uses_rdma() {
            return self.carried_on(&node.hca()?.caps());
        }
        if self.transport == Transport::Raw && !node.hub()?.has_port() {
            let what = format!("core {} owns none of the interface's receive queues", node.place().core());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("give the interface more queues, or fewer --cores"));
        }
        Ok(())
    }

    /// Whether its transport carries its flow at all.
    fn carried(&self) -> Result<()> {
        let Plan { flow, transport, .. } = *self;
        let (why, remedy) = match (flow, transport) {
            (FlowKind::RdmaToRdma, Transport::Uc | Transport::Ud) => ("a segment that is lost would stop the ring", "use --transport rc"),
            (FlowKind::RdmaToStorage, Transport::Raw) => {
                ("frames know no queue pairs; what stores them is network-to-storage", "use --transport rc, uc or ud")
            }
            (FlowKind::StorageToRdma | FlowKind::RdmaToRdma, Transport::Raw) => {
                ("frames know no queue pairs and no windows", "use --transport rc")
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Unavailable, format!("the flow {flow} does not run over {transport}: {why}")).remedy(remedy))
    }

    /// Whether an RDMA device with `caps` can carry it.
    fn carried_on(&self, caps: &Caps) -> Result<()> {
        let transport = self.transport;
        if !transport.service().is_some_and(|service| caps.transports.contains(&service)) {
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
        let carried = plan.carried().and_then(|()| if plan.uses_rdma() { plan.carried_on(caps) } else { Ok(()) });
        carried.err().map_or(String::new(), |error| format!("{error:#}"))
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
            assert_eq!(refusal(flow, Transport::Raw, 1000, &rc).is_empty(), flow.uses_packets());
        }
        let too_large = refusal(FlowKind::StorageToRdma, Transport::Ud, 4096, &all);
        assert!(too_large.contains("--size 1024"), "{too_large}");
        let unknown = refusal(FlowKind::StorageToRdma, Transport::Uc, 4096, &rc);
        assert!(unknown.contains("test does not speak uc"), "{unknown}");
    }
}
