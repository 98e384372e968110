//! What every program here needs: a region and an HCA at RoCE's own port.

use std::cell::Cell;
use std::net::SocketAddr;

use super::{Options, silent};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, Rng, limits};
use crate::device::packet::Link;
use crate::device::rdma::{Hca, HcaEnv, Packets, PacketsConfig, QpConfig, RdmaName, VerbsConfig};
use crate::flow::crew::{Either, either};
use crate::mem::{Region, RegionConfig, Run, Slab};
use crate::reactor::Core;
use crate::wire::roce;

/// Receives, sends and windows of the largest message, and packets: 64 of each at 1 MiB would be the whole of it.
const REGION_BYTES: u64 = 128 << 20;

/// A core's memory and its HCA.
pub struct Station {
    pub core: Core,
    pub slab: Slab,
    pub hca: Hca,
    address: SocketAddr,
}

impl Station {
    /// Opens the interface and the device the options name.
    pub fn open(core: &Core, options: &Options) -> Result<Station> {
        if !matches!(options.rdma, RdmaName::SoftUdp | RdmaName::SoftXdp | RdmaName::Verbs(_)) {
            let what = format!("{} does not speak RoCEv2 with other programs", options.rdma);
            return Err(Error::new(ErrorKind::Usage, what).remedy("use soft:udp, soft:xdp as root, or an RDMA device of the kernel"));
        }
        let link = Link::find(&options.interface)?;
        let address = link.choose_address(options.address, options.host)?;
        let region = Region::map(&RegionConfig { chunk_bytes: limits::CHUNK_SIZES[1], ..RegionConfig::new(REGION_BYTES) })?;
        let mut env = HcaEnv {
            address: Some(address),
            interface: link.index,
            link_mtu: Some(link.mtu),
            udp_port: roce::UDP_PORT,
            // The stock programs tell their memory before they connect, when no window can be bound yet.
            verbs: VerbsConfig { without_windows: true, ..VerbsConfig::default() },
            ..HcaEnv::new(core.ops().clone(), region.clone(), Rng::from_kernel())
        };
        if options.rdma == RdmaName::SoftXdp {
            let config = PacketsConfig { link: &link, address, udp_port: roce::UDP_PORT, cores: 1, copies: false };
            let packets = Packets::open(&region, &config)?.equip(core.ops(), 0, None, &mut env)?;
            packets.slabs.iter().for_each(|slab| core.adopt_slab(slab));
            for queue in packets.queues {
                core.attach(queue);
            }
        }
        let slab = Slab::new(&region, region.undealt())?;
        core.adopt_slab(&slab);
        let hca = Hca::open(env, &options.rdma)?;
        core.attach(hca.queue());
        Ok(Station { core: core.clone(), slab, hca, address: SocketAddr::new(address, roce::UDP_PORT) })
    }

    /// Where RoCE packets reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path MTU both ends can use at most, in bytes.
    pub fn path_mtu(&self, options: &Options) -> u32 {
        let most = self.hca.caps().path_mtu_max;
        options.path_mtu.map_or(most, |asked| asked.min(most))
    }

    /// What a queue pair is made for: timing for a peer under emulation, who may take half a second for a turn.
    pub fn qp_config(&self, options: &Options) -> QpConfig {
        QpConfig { path_mtu: options.path_mtu, ack_timeout: Nanos::from_millis(250), ..QpConfig::default() }
    }

    /// A run of `len` bytes, each of them `byte`.
    pub fn filled(&self, len: u32, byte: u8) -> Result<Run> {
        let mut run = self.slab.run(len)?;
        run.as_mut_slice().fill(byte);
        Ok(run)
    }

    /// Waits for the other program's next step.
    pub async fn patiently<T>(&self, what: &str, step: impl Future<Output = Result<T>>) -> Result<T> {
        self.core.timeout(super::PATIENCE, step).await.map_err(|_| silent(&what))?
    }

    /// The same for work of many steps, which counts them: each may take as long.
    pub async fn patiently_by_step<T>(&self, what: &str, steps: &Cell<u32>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let silence = async {
            let mut before = None;
            while before != Some(steps.get()) {
                before = Some(steps.get());
                self.core.sleep(super::PATIENCE).await;
            }
        };
        match either(work, silence).await {
            Either::Left(done) => done,
            Either::Right(()) => Err(silent(&what)),
        }
    }
}
