//! UDP datagrams of one port of an interface, in the chunks they arrived in.

#![allow(dead_code, reason = "each example uses its part")]

use std::net::{SocketAddr, UdpSocket};

use basin::base::clock::unix_now_ns;
use basin::base::error::ErrorKind;
use basin::base::{Error, Nanos, Result};
use basin::device::packet::{Interface, InterfaceConfig, Port, PortConfig};
use basin::flow::log;
use basin::flow::pattern::Pattern;
use basin::mem::{Buf, Gather, Region, Slab};
use basin::reactor::Core;
use basin::wire::frame::UdpFrame;

/// The UDP port that is received.
pub const PORT: u16 = 9998;
/// Datagrams received at a time: fewer than a gather has pieces, so that a batch, what packs it and what pads it fit one.
pub const BATCH: usize = 255;

/// An interface opened for packets.
pub struct Packets {
    core: Core,
    port: Port,
}

/// A datagram in the chunk it arrived in.
pub struct Datagram {
    /// The chunk, viewed on the payload.
    pub buf: Buf,
    /// Who sent it.
    pub source: SocketAddr,
    /// Where it was sent to.
    pub destination: SocketAddr,
    /// When it was taken out of the ring: one time for all that were taken together, never before their arrival.
    pub received_ns: u64,
}

/// Opens `ifname` for these UDP ports. They are the kernel's until a queue is open: what takes long comes before that.
pub fn interface(region: &Region, ifname: &str, udp_ports: &[u16]) -> Result<Interface> {
    Interface::open(region, &InterfaceConfig { headroom: log::HEADROOM, ..InterfaceConfig::new(ifname, udp_ports) })
}

impl Packets {
    /// Opens queue 0. The packets have a slab of their own, which keeps them in address order.
    pub fn open(core: &Core, interface: &Interface) -> Result<Packets> {
        let slab = Slab::new(interface.region(), 8192)?;
        core.adopt_slab(&slab);
        let port = Port::open(core.ops(), &slab, interface, &PortConfig::new(0))?;
        core.attach(port.queue());
        println!("{}: {}", interface.link().name, port.mode());
        Ok(Packets { core: core.clone(), port })
    }

    /// The port they come from.
    pub fn port(&self) -> &Port {
        &self.port
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

    /// The datagrams that are there, `most` or a batch at most.
    pub fn take(&self, most: usize) -> Result<Vec<Datagram>> {
        let mut frames = Vec::with_capacity(BATCH);
        let received = self.port.receive(&mut frames, most.min(BATCH));
        let received_ns = unix_now_ns();
        received.map_err(|fault| Error::new(ErrorKind::Failed, fault.to_string()))?;
        let datagrams = frames.into_iter().filter_map(|mut buf| {
            let parsed = UdpFrame::parse(buf.as_slice()).ok()?;
            let (payload, source, destination) = (parsed.payload(), parsed.src, parsed.dst);
            let (within, len) = (payload.as_ptr() as usize - buf.as_slice().as_ptr() as usize, payload.len() as u32);
            let start = buf.start() + within as u32;
            buf.set_view(start, len);
            Some(Datagram { buf, source, destination, received_ns })
        });
        Ok(datagrams.collect())
    }

    /// Waits until there may be some, for so long at most; whether there may.
    pub async fn wait(&self, span: Nanos) -> bool {
        self.core.timeout(span, self.port.readable()).await.is_ok()
    }

    /// The next datagrams.
    pub async fn next(&self, most: usize) -> Result<Vec<Datagram>> {
        loop {
            let datagrams = self.take(most)?;
            if !datagrams.is_empty() {
                return Ok(datagrams);
            }
            if !self.wait(Nanos::from_secs(60)).await {
                return Err(Error::new(ErrorKind::Failed, "nothing has come for 60 seconds"));
            }
        }
    }
}

/// Fills a gather with zeros up to whole blocks.
pub fn pad(gather: &mut Gather, slab: &Slab, block: u32) -> Result<()> {
    let missing = gather.len_bytes().next_multiple_of(block) - gather.len_bytes();
    if missing > 0 {
        let mut zeros = slab.run(missing)?;
        zeros.as_mut_slice().fill(0);
        gather.push(zeros).map_err(|_| Error::new(ErrorKind::Failed, "no room for the padding"))?;
    }
    Ok(())
}
