//! UDP datagrams of one port of an interface, in the chunks they arrived in.

use std::net::{SocketAddr, UdpSocket};

use basin::base::error::ErrorKind;
use basin::base::{Error, Nanos, Result};
use basin::device::packet::{Interface, InterfaceConfig, Port, PortConfig};
use basin::flow::log;
use basin::flow::pattern::Pattern;
use basin::mem::{Buf, Region, Slab};
use basin::reactor::Core;
use basin::wire::frame::UdpFrame;

/// The UDP port that is received.
pub const PORT: u16 = 9998;
/// Datagrams received at a time: what one gather takes, and one piece to spare.
const BATCH: usize = 255;

/// An interface opened for packets.
pub struct Packets {
    core: Core,
    port: Port,
}

impl Packets {
    /// Opens queue 0 of `ifname`. The packets have a slab of their own, which keeps them in address order.
    pub fn open(core: &Core, region: &Region, ifname: &str) -> Result<Packets> {
        let config = InterfaceConfig { headroom: log::HEADROOM, ..InterfaceConfig::new(ifname, &[PORT]) };
        let interface = Interface::open(region, &config)?;
        let slab = Slab::new(region, 8192)?;
        core.adopt_slab(&slab);
        let port = Port::open(core.ops(), &slab, &interface, &PortConfig::new(0))?;
        core.attach(port.queue());
        println!("{ifname}: {}", port.mode());
        Ok(Packets { core: core.clone(), port })
    }

    /// On loopback sends the datagrams itself and gives true; elsewhere says where to send them.
    pub fn begin(&self, count: u64, bytes: usize) -> Result<bool> {
        let Some(&(address, _)) = self.port.interface().link().addresses.first() else {
            return Err(Error::new(ErrorKind::Unavailable, "the interface has no address"));
        };
        let to = SocketAddr::new(address, PORT);
        if !address.is_loopback() {
            println!("waiting for {count} datagrams of {bytes} bytes at {to}");
            return Ok(false);
        }
        let socket = UdpSocket::bind((address, 0)).map_err(|error| Error::io("opening a socket", &error))?;
        std::thread::spawn(move || {
            let mut content = vec![0; bytes];
            for sequence in 0..count {
                Pattern::new(7, sequence).fill(&mut content);
                // A datagram that is not sent is one that never arrives, and that is told.
                let _ = socket.send_to(&content, to);
            }
        });
        Ok(true)
    }

    /// The next datagrams, each viewed on its payload, and who sent it.
    pub async fn next(&self, most: usize) -> Result<Vec<(Buf, SocketAddr)>> {
        let failed = |what: &str| Error::new(ErrorKind::Failed, what);
        let mut frames = Vec::with_capacity(BATCH);
        while self.port.receive(&mut frames, most.min(BATCH)).map_err(|fault| failed(&fault.to_string()))? == 0 {
            let come = self.core.timeout(Nanos::from_secs(60), self.port.readable()).await;
            come.map_err(|_| failed("nothing has come for 60 seconds"))?;
        }
        let datagrams = frames.into_iter().filter_map(|mut frame| {
            let parsed = UdpFrame::parse(frame.as_slice()).ok()?;
            let (payload, source) = (parsed.payload(), parsed.src);
            let (within, len) = (payload.as_ptr() as usize - frame.as_slice().as_ptr() as usize, payload.len() as u32);
            let start = frame.start() + within as u32;
            frame.set_view(start, len);
            Some((frame, source))
        });
        Ok(datagrams.collect())
    }
}
