//! What a user asks of `unified-rdma-test`, once parsed.

use std::path::PathBuf;

use crate::device::rdma::RdmaName;
use crate::flow::control::Plan;
use crate::flow::{FlowKind, Transport};
use crate::reactor::PollMode;

/// The largest content of a datagram: 1500 bytes less the IP and UDP headers and the datagram's own.
pub const DATAGRAM_MAX: u32 = 1500 - 28 - crate::wire::native::datagram::LEN as u32;

/// The usual size of what must fit into one packet: the path MTU of RoCE on links of 1500 bytes.
const ONE_PACKET: u32 = 1024;

/// When an operation counts as lost. A peer on a busy machine is silent for half a second now and then, and a disk may be too.
const LOST_AFTER_MS: u64 = 2000;

/// The bytes of a file that is created where nobody says how many.
pub const DISK_BYTES: u64 = 1 << 30;

/// Everything that was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network interface.
    pub interface: String,
    /// The RDMA device.
    pub rdma: RdmaName,
    /// The address of a verbs device's port by its index.
    pub gid_index: Option<u32>,
    /// The block device or file. A client never opens it.
    pub block: PathBuf,
    /// The TCP port of the conversation and the UDP port of the packet flows.
    pub port: u16,
    /// The size in bytes of a file that is created, or grows to it; without it one is created of [`DISK_BYTES`].
    pub disk_bytes: Option<u64>,
    /// The region's size in bytes.
    pub region_bytes: u64,
    /// Peers of an all-reduce.
    pub peers: u32,
    /// Flows to run, in order.
    pub flows: Vec<FlowKind>,
    /// The RDMA transport.
    pub transport: Transport,
    /// Payload bytes of an operation; each flow has its own default.
    pub size_bytes: Option<u32>,
    /// Operations of each flow; each has its own default.
    pub count: Option<u64>,
    /// Seconds for each flow, instead of a count.
    pub seconds: Option<f64>,
    /// Operations in flight.
    pub depth: u32,
    /// How a core waits.
    pub poll: PollMode,
    /// JSON instead of a table.
    pub json: bool,
    /// Count what the kernel copies.
    pub kernel_copies: bool,
    /// A server ends after its first client.
    pub once: bool,
    /// The block device once more, when what is on it may be destroyed.
    pub force_device: Option<String>,
}

impl Options {
    /// What one flow is to do, and what had to be changed of the wishes for it.
    pub fn plan(&self, flow: FlowKind, seed: u64) -> (Plan, Option<String>) {
        // Enough operations for a stable 99.9th percentile, few enough for a few seconds on a slow machine.
        let (size, count) = match flow {
            FlowKind::NetworkToStorage => (1376, 50_000),
            FlowKind::NetworkToRdma => (1000, 20_000),
            FlowKind::RdmaToStorage | FlowKind::StorageToRdma => (64 << 10, 4_000),
            FlowKind::RdmaToRdma => (256 << 10, 500),
        };
        let one_packet = flow.uses_rdma() && self.transport.message_max(ONE_PACKET).is_some();
        let size = if one_packet { size.min(ONE_PACKET) } else { size };
        let wanted = self.size_bytes.unwrap_or(size);
        let most = if flow.uses_packets() { DATAGRAM_MAX } else { crate::base::limits::IO_MAX_BYTES };
        let size_bytes = wanted.clamp(8, most);
        let note =
            (size_bytes != wanted).then(|| format!("{flow}: --size {wanted} becomes {size_bytes}, the most one message of it carries"));
        let count = self.count.or(if self.seconds.is_some() { None } else { Some(count) });
        let rdma = self.rdma.to_string();
        let Options { transport, seconds, depth, peers, .. } = *self;
        (Plan { flow, transport, size_bytes, count, seconds, depth, seed, peers, rdma, lost_after_ms: LOST_AFTER_MS }, note)
    }
}
