//! The five flows, one short file each: a server side that owns the disk and a client side that checks every byte.
//!
//! | file | what moves | what never happens |
//! | --- | --- | --- |
//! | [`network_to_storage`] | UDP payload, from the UMEM chunk it arrived in to the device | a copy above 256 bytes |
//! | [`rdma_to_storage`] | a peer's SENDs and WRITEs, from the chunks they landed in | an acknowledgement before it is durable |
//! | [`network_to_rdma`] | UDP payload, from the UMEM chunk to a peer's memory | |
//! | [`storage_to_rdma`] | blocks, from the chunks they were read into to a peer's memory | a device read for what is in memory |
//! | [`rdma_to_rdma`] | a vector of floats around a ring of peers, summed in the chunks | |
//!
//! [`node`] is what a process has (core, region, disk, HCA, packet port); [`control`] is the TCP conversation that sets a flow up
//! and compares its results; [`server`] and [`client`] are the two ends of `unified-rdma-test`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub mod answers;
pub mod client;
pub mod commit;
pub mod control;
pub mod crew;
pub mod datagrams;
pub mod extent;
pub mod hub;
pub mod log;
pub mod network_to_rdma;
pub mod network_to_storage;
pub mod node;
pub mod options;
pub mod pattern;
pub mod post;
pub mod rdma_to_rdma;
pub mod rdma_to_storage;
pub mod readback;
pub mod report;
pub mod server;
pub mod setup;
pub mod storage_to_rdma;
pub mod transport;
pub mod window;

pub use transport::Transport;

/// One of the five flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowKind {
    /// UDP datagrams to the block device.
    NetworkToStorage,
    /// SENDs and WRITEs to the block device.
    RdmaToStorage,
    /// UDP datagrams to a peer's memory.
    NetworkToRdma,
    /// Blocks to a peer's memory.
    StorageToRdma,
    /// Ring all-reduce between peers.
    RdmaToRdma,
}

impl FlowKind {
    /// All of them, in the order they are run.
    pub const ALL: [FlowKind; 5] =
        [FlowKind::NetworkToStorage, FlowKind::RdmaToStorage, FlowKind::NetworkToRdma, FlowKind::StorageToRdma, FlowKind::RdmaToRdma];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            FlowKind::NetworkToStorage => "network-to-storage",
            FlowKind::RdmaToStorage => "rdma-to-storage",
            FlowKind::NetworkToRdma => "network-to-rdma",
            FlowKind::StorageToRdma => "storage-to-rdma",
            FlowKind::RdmaToRdma => "rdma-to-rdma",
        }
    }

    /// Whether it needs AF_XDP on the server.
    pub const fn uses_packets(self) -> bool {
        matches!(self, FlowKind::NetworkToStorage | FlowKind::NetworkToRdma)
    }

    /// Whether it needs an HCA.
    pub const fn uses_rdma(self) -> bool {
        !matches!(self, FlowKind::NetworkToStorage)
    }

    /// Whether it needs the server's disk.
    pub const fn uses_storage(self) -> bool {
        matches!(self, FlowKind::NetworkToStorage | FlowKind::RdmaToStorage | FlowKind::StorageToRdma)
    }
}

impl fmt::Display for FlowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FlowKind {
    type Err = String;
    fn from_str(text: &str) -> Result<FlowKind, String> {
        FlowKind::ALL.into_iter().find(|flow| flow.name() == text).ok_or_else(|| {
            let names: Vec<_> = FlowKind::ALL.iter().map(|flow| flow.name()).collect();
            format!("'{text}' is not a flow: {} or all", names.join(", "))
        })
    }
}
