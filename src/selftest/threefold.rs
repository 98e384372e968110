//! One region, three kinds of device: what a peer wrote by RDMA goes to a disk and out as a packet from where it landed.

use super::{Devices, Found};

pub fn of_64_mib(devices: &Devices) -> Found {
    threefold(devices, 64 << 20)
}

pub fn of_1_gib(devices: &Devices) -> Found {
    threefold(devices, 1 << 30)
}

#[cfg(not(feature = "xdp"))]
fn threefold(_: &Devices, _: u64) -> Found {
    super::skip("this program was built without AF_XDP")
}

#[cfg(feature = "xdp")]
fn threefold(devices: &Devices, bytes: u64) -> Found {
    use super::stand::Stand;
    use super::{Ended, disk, packet, rdma};
    use crate::base::units::human_bytes;
    use crate::base::{Error, Lba};
    use crate::device::block::Durability;
    use crate::device::packet::ModeWish;
    use crate::device::rdma::{Access, Remote};
    use crate::flow::pattern::Pattern;
    use crate::mem::PageKind;

    const BYTES: u32 = 64 << 10;
    let (devices, config) = (devices.clone(), disk::config(devices, 0)?);
    Stand::run(bytes, &[PageKind::Huge2M], move |stand| async move {
        // All three at once, each over the whole region.
        stand.registered()?;
        let disk = disk::open(&stand, &config)?;
        disk::claim(&stand, &disk, &config).await?;
        let port = packet::open(&stand, &devices, ModeWish::Auto, false)?;
        let hca = stand.hca(&devices)?;
        let (one, two) = rdma::pair(&hca)?;
        let (mut run, pattern) = (stand.slab.run(BYTES).map_err(Error::from)?, Pattern::new(7, 3));
        pattern.fill(run.as_mut_slice());
        let window = two.grant(stand.slab.run(BYTES).map_err(Error::from)?, Access::WRITE).await;
        let window = window.map_err(|_| Ended::Failed("the device has no room for a window".into()))?;
        let written = one.write(run, Remote::of(&window), None).await.map_err(|failed| failed.into_error("writing by RDMA"))?;
        let landed = hca.revoke(window).await;
        let lba = Lba(u64::from(BYTES / disk.info().block_bytes));
        let landed = disk.write(lba, landed, Durability::Now).await.map_err(|failed| disk.explain("writing", lba, failed))?;
        drop((written, landed));
        let into = stand.slab.run(BYTES).map_err(Error::from)?;
        let read = disk.read(lba, into).await.map_err(|failed| disk.explain("reading", lba, failed))?;
        pattern.check(read.as_slice()).map_err(|wrong| Ended::Failed(format!("the disk holds something else: {wrong}")))?;
        drop(read);
        packet::send(&stand, &port, 1).await?;
        let info = disk.info();
        let fixed = if info.fixed_buffers { "fixed buffers" } else { "plain buffers" };
        let name = info.backend.name();
        Ok(format!("{}: {} + {} + {name} with {fixed}", human_bytes(bytes), hca.caps().name, port.mode()))
    })
}
