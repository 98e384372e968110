//! A core with a region, for one test.

use std::future::Future;

use super::{Devices, Ended, Found, check, skip};
use crate::base::{Error, Nanos, Rng};
use crate::device::packet::Link;
use crate::device::rdma::{Hca, HcaEnv, RdmaName, VerbsConfig};
use crate::mem::{PageKind, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig};

/// How long devices have to let go of memory when a test has ended.
const DRAIN: Nanos = Nanos::from_secs(10);

/// What a test works with. Clones are the same.
#[derive(Clone)]
pub struct Stand {
    pub core: Core,
    pub region: Region,
    pub slab: Slab,
    /// Why the region is not registered for storage.
    unregistered: Option<Error>,
}

impl Stand {
    /// Runs `work` on a core of its own with a region of `bytes` on `pages`, registered for storage where that goes. Ends only when
    /// every chunk is back, and fails if one is not.
    pub fn run<W>(bytes: u64, pages: &[PageKind], work: impl FnOnce(Stand) -> W) -> Found
    where
        W: Future<Output = Found> + 'static,
    {
        let core = Core::new(CoreConfig::default())?;
        let region = Region::map(&RegionConfig { pages: pages.to_vec(), ..RegionConfig::new(bytes) })?;
        let slab = Slab::new(&region, region.chunks())?;
        core.adopt_slab(&slab);
        // Who needs it asks; the others do without.
        let unregistered = core.uring().register_region(&region).err();
        let found = core.run(work(Stand { core: core.clone(), region, slab: slab.clone(), unregistered }))?;
        let report = core.shut_down(DRAIN);
        let census = slab.census();
        check(report.stuck == 0 && census.free == census.total, || format!("a device kept memory: {census}"))?;
        found
    }

    /// That the region is registered for storage, or why not.
    pub fn registered(&self) -> Result<(), Ended> {
        self.unregistered.as_ref().map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// The RDMA device, attached to the core.
    pub fn hca(&self, devices: &Devices) -> Result<Hca, Ended> {
        self.hca_as(devices, VerbsConfig::default())
    }

    /// The same, used as `config` says.
    pub fn hca_as(&self, devices: &Devices, config: VerbsConfig) -> Result<Hca, Ended> {
        let Some(name) = &devices.rdma else { return skip("no RDMA device was given: --rdma") };
        let name: RdmaName = name.parse()?;
        let link = devices.interface.as_deref().map(Link::find).transpose()?;
        let address = link.as_ref().and_then(|link| link.addresses.first()).map(|&(address, _)| address);
        let mut env = HcaEnv::new(self.core.ops().clone(), self.region.clone(), Rng::from_kernel());
        (env.address, env.link_mtu, env.verbs) = (address, link.map(|link| link.mtu), config);
        let hca = Hca::open(env, &name)?;
        self.core.attach(hca.queue());
        Ok(hca)
    }
}
