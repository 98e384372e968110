//! An RDMA device: registration, two queue pairs, windows.

use super::stand::Stand;
use super::{Devices, Ended, Found, check, skip};
use crate::base::Error;
use crate::device::rdma::{Access, Hca, Qp, QpConfig, Remote, VerbsConfig};
use crate::device::{Status, WcStatus};
use crate::flow::pattern::Pattern;
use crate::mem::PageKind;

pub const BYTES: u32 = 64 << 10;

pub fn registration(devices: &Devices) -> Found {
    registered(devices, PageKind::Plain)
}

pub fn registration_of_huge_pages(devices: &Devices) -> Found {
    registered(devices, PageKind::Huge2M)
}

fn registered(devices: &Devices, pages: PageKind) -> Found {
    if let Some(name) = devices.rdma.as_deref().filter(|name| name.starts_with("soft")) {
        return skip(format!("{name} registers nothing with the kernel"));
    }
    let devices = devices.clone();
    Stand::run(64 << 20, &[pages], move |stand| async move {
        let hca = stand.hca(&devices)?;
        Ok(format!("{}: 64 MiB on {}", hca.caps().name, pages.name()))
    })
}

/// The region as DMA buffers, and what was read and written there.
pub fn registration_of_dma_buffers(devices: &Devices) -> Found {
    if let Some(name) = devices.rdma.as_deref().filter(|name| name.starts_with("soft")) {
        return skip(format!("{name} registers nothing with the kernel"));
    }
    let devices = devices.clone();
    Stand::run(64 << 20, &[PageKind::Huge2M, PageKind::Plain], move |stand| async move {
        let hca = stand.hca_as(&devices, VerbsConfig { dma_buf: true, ..VerbsConfig::default() })?;
        let (one, two) = pair(&hca)?;
        exchange(&stand, &hca, &one, &two).await?;
        Ok(format!("{}: 64 MiB on {}, SEND, WRITE and READ", one.route(), stand.region.pages().name()))
    })
}

/// Two queue pairs of one device, connected to each other.
pub fn pair(hca: &Hca) -> Result<(Qp, Qp), Ended> {
    pair_of(hca, &QpConfig::default())
}

/// The same, made as `config` says.
pub fn pair_of(hca: &Hca, config: &QpConfig) -> Result<(Qp, Qp), Ended> {
    let (one, two) = (hca.create_qp(config)?, hca.create_qp(config)?);
    one.connect(&two.local())?;
    two.connect(&one.local())?;
    Ok((one, two))
}

pub fn reliable_connection(devices: &Devices) -> Found {
    let devices = devices.clone();
    Stand::run(8 << 20, &[PageKind::Huge2M, PageKind::Plain], move |stand| async move {
        let hca = stand.hca(&devices)?;
        let (one, two) = pair(&hca)?;
        exchange(&stand, &hca, &one, &two).await?;
        Ok(format!("{}: SEND with immediate, WRITE, READ", one.route()))
    })
}

/// SEND, WRITE and READ between the two, looked at byte by byte.
async fn exchange(stand: &Stand, hca: &Hca, one: &Qp, two: &Qp) -> Result<(), Ended> {
    // SEND.
    let (mut run, pattern) = (stand.slab.run(BYTES).map_err(Error::from)?, Pattern::new(7, 2));
    pattern.fill(run.as_mut_slice());
    let receive = two.recv(stand.slab.run(BYTES).map_err(Error::from)?);
    let run = one.send(run, Some(9)).await.map_err(|failed| failed.into_error("sending"))?;
    let received = receive.await.map_err(|failed| failed.into_error("receiving"))?;
    check(received.immediate == Some(9), || format!("the immediate is {:?}", received.immediate))?;
    same(pattern, received.run.as_slice(), "SEND")?;
    drop(received);
    // WRITE, and READ of the same.
    let window = grant(stand, two, Access::READ | Access::WRITE).await?;
    let run = one.write(run, Remote::of(&window), None).await.map_err(|failed| failed.into_error("writing"))?;
    let into = stand.slab.run(BYTES).map_err(Error::from)?;
    let read = one.read(into, Remote::of(&window)).await.map_err(|failed| failed.into_error("reading"))?;
    same(pattern, read.as_slice(), "READ")?;
    let landed = hca.revoke(window).await;
    same(pattern, landed.as_slice(), "WRITE")?;
    drop((run, read, landed));
    Ok(())
}

pub fn windows(devices: &Devices) -> Found {
    let devices = devices.clone();
    Stand::run(8 << 20, &[PageKind::Huge2M, PageKind::Plain], move |stand| async move {
        let hca = stand.hca(&devices)?;
        let (one, two) = pair(&hca)?;
        let window = grant(&stand, &two, Access::WRITE).await?;
        let remote = Remote::of(&window);
        let run = stand.slab.run(BYTES).map_err(Error::from)?;
        let run = one.write(run, remote, None).await.map_err(|failed| failed.into_error("writing into a window"))?;
        drop(hca.revoke(window).await);
        let after = one.write(run, remote, None).await.map(drop).map_err(|failed| failed.outcome.status);
        check(after == Err(Status::Rdma(WcStatus::RemoteAccess)), || format!("a WRITE into a closed window ends with {after:?}"))?;
        Ok(format!("{}: open, closed, and shut", one.route()))
    })
}

pub async fn grant(stand: &Stand, qp: &Qp, access: Access) -> Result<crate::mem::Window, Ended> {
    let run = stand.slab.run(BYTES).map_err(Error::from)?;
    qp.grant(run, access).await.map_err(|_| Ended::Failed("the device has no room for a window".into()))
}

pub fn same(pattern: Pattern, bytes: &[u8], what: &str) -> Result<(), Ended> {
    pattern.check(bytes).map_err(|wrong| Ended::Failed(format!("{what} brought something else: {wrong}")))
}
