//! AF_XDP in its modes.

use super::{Devices, Found};

#[cfg(not(feature = "xdp"))]
fn opened(_: &Devices, _: crate::device::packet::ModeWish, _: bool) -> Found {
    crate::device::packet::require()?;
    super::skip("this program was built without AF_XDP")
}

#[cfg(feature = "xdp")]
use with::opened;
#[cfg(feature = "xdp")]
pub use with::{open, send};

#[cfg(feature = "xdp")]
mod with {
    use super::super::stand::Stand;
    use super::super::{Devices, Ended, Found, check, skip};
    use crate::base::{Error, Nanos};
    use crate::device::packet::{Interface, InterfaceConfig, ModeWish, PacketMode, Port, PortConfig};
    use crate::mem::{Gather, PageKind};

    /// The discard port: nobody sends there.
    const PORT: u16 = 9;
    /// For local experiments (IEEE 802).
    const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
    const PATIENCE: Nanos = Nanos::from_secs(5);

    /// Queue 0 of the interface, attached to the core.
    pub fn open(stand: &Stand, devices: &Devices, mode: ModeWish, several_chunks: bool) -> Result<Port, Ended> {
        let Some(name) = &devices.interface else { return skip("no network interface was given: --interface") };
        let config = InterfaceConfig { mode, several_chunks, ..InterfaceConfig::new(name, &[PORT]) };
        let interface = Interface::open(&stand.region, &config)?;
        let rings = PortConfig { receive_entries: 256, receive_chunks: 256, transmit_entries: 64, ..PortConfig::new(0) };
        let port = Port::open(stand.core.ops(), &stand.slab, &interface, &rings)?;
        stand.core.attach(port.queue());
        Ok(port)
    }

    /// Sends one frame of `pieces` chunks to the interface's own address, and waits until the kernel has given the chunks back.
    pub async fn send(stand: &Stand, port: &Port, pieces: usize) -> Result<(), Ended> {
        let mac = port.interface().link().mac;
        let mut gather = Gather::new();
        for piece in 0..pieces {
            let mut run = stand.slab.run(stand.region.chunk_bytes()).map_err(Error::from)?;
            run.set_len(512);
            run.as_mut_slice().fill(0);
            if piece == 0 {
                run.as_mut_slice()[..14].copy_from_slice(&[&mac[..], &mac[..], &ETHERTYPE[..]].concat());
            }
            gather.push(run).map_err(|_| Ended::Failed("a gather has no room for a second piece".into()))?;
        }
        let sent = port.send_gather(gather).map_err(|refused| Ended::Failed(format!("a frame was not taken: {}", refused.reason)))?;
        let sent = stand.core.timeout(PATIENCE, sent).await.map_err(|_| Ended::Failed("a frame did not come back".into()))?;
        check(sent.outcome.is_ok(), || format!("sending: {:?}", sent.outcome.status))
    }

    pub fn opened(devices: &Devices, mode: ModeWish, several_chunks: bool) -> Found {
        let devices = devices.clone();
        Stand::run(4 << 20, &[PageKind::Huge2M, PageKind::Plain], move |stand| async move {
            let port = open(&stand, &devices, mode, several_chunks)?;
            let expected = match mode {
                ModeWish::Auto | ModeWish::Copy => None,
                ModeWish::ZeroCopy => Some(PacketMode::ZeroCopy),
                ModeWish::Native => Some(PacketMode::NativeCopy),
                ModeWish::Skb => Some(PacketMode::SkbCopy),
            };
            check(expected.is_none_or(|expected| expected == port.mode()), || format!("the kernel says {}", port.mode()))?;
            let pieces = if several_chunks { 2 } else { 1 };
            check(port.pieces_max() >= pieces, || format!("a frame has {} pieces at most", port.pieces_max()))?;
            send(&stand, &port, pieces as usize).await?;
            Ok(format!("{}: {}", port.interface().link().name, port.mode()))
        })
    }
}

use crate::device::packet::ModeWish;

pub fn skb(devices: &Devices) -> Found {
    opened(devices, ModeWish::Skb, false)
}

pub fn native(devices: &Devices) -> Found {
    opened(devices, ModeWish::Native, false)
}

pub fn zero_copy(devices: &Devices) -> Found {
    opened(devices, ModeWish::ZeroCopy, false)
}

pub fn multi_buffer(devices: &Devices) -> Found {
    opened(devices, ModeWish::Auto, true)
}
