//! Two RDMA devices on one core, and a connected pair of queue pairs.

use basin::base::{Result, Rng};
use basin::device::rdma::{Hca, HcaEnv, Qp, QpConfig, RdmaName};
use basin::mem::Region;
use basin::reactor::Core;

/// One end.
pub struct End {
    /// The device, which revokes what its queue pair granted.
    #[allow(dead_code, reason = "an example without windows has none to revoke")]
    pub hca: Hca,
    /// Its queue pair.
    pub qp: Qp,
}

/// A soft RDMA device over frame rings in this process.
pub fn open(core: &Core, region: &Region) -> Result<Hca> {
    let hca = Hca::open(HcaEnv::new(core.ops().clone(), region.clone(), Rng::from_kernel()), &RdmaName::SoftMemory)?;
    core.attach(hca.queue());
    Ok(hca)
}

/// Both ends. Between machines each end would be told the other's endpoint over TCP.
pub fn connect(a: &Hca, b: &Hca) -> Result<(End, End)> {
    let (left, right) = (a.create_qp(&QpConfig::default())?, b.create_qp(&QpConfig::default())?);
    left.connect(&right.local())?;
    right.connect(&left.local())?;
    Ok((End { hca: a.clone(), qp: left }, End { hca: b.clone(), qp: right }))
}
