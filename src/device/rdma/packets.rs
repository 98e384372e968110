//! What `soft:xdp` stands on where RoCE is all that an interface is opened for: the interface, shared by the cores of a process, and
//! its queues. Core `i` has queue `i`, which it sends by, and every further one whose number leaves the same rest: a NIC deals packets
//! to all queues that are in use, and what comes in on one that nobody reads is lost.
//!
//! The memory is whoever's opens it: a region of its own, or a part of one. Received packets and frames to be sent have a slab each, so
//! that neither waits for memory that payload has: a READ whose answer finds no chunk would keep its memory for ever.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use super::{HcaEnv, Strays};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result, limits};
use crate::device::packet::{Interface, Link};
#[cfg(feature = "xdp")]
use crate::device::packet::{InterfaceConfig, ModeWish, Port, PortConfig, Splitter};
use crate::device::{Ops, Queue};
use crate::mem::{Region, Slab};
use crate::wire::roce;

/// Entries of the fill and RX rings of all of a core's queues, and chunks given to the kernel to receive into.
const RECEIVED: u32 = 4096;
/// The least of one queue: half a millisecond of half a million packets a second.
const RECEIVED_MIN: u32 = 256;
/// Received and in the HCA's hands: a batch of 64 packets of 5 chunks at most.
const IN_HAND: u32 = 512;
/// Entries of the TX and completion rings: frames on their way, and the two that are being built.
const SENT: u32 = 2048;
/// The same of queues that nothing is sent by.
#[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has queues"))]
const SENT_MIN: u32 = 64;
/// Slabs are so many chunks long, or a multiple: whole runs of the largest size, so that those of the slab behind begin where runs do.
const WHOLE: u32 = limits::IO_MAX_BYTES / limits::CHUNK_SIZES[0];

/// An interface that is opened for RoCE's packets. Clones are the same, for any core.
#[derive(Clone)]
pub struct Packets {
    interface: Interface,
    udp_port: u16,
    address: IpAddr,
    cores: usize,
}

/// What to open.
pub struct PacketsConfig<'a> {
    /// The interface.
    pub link: &'a Link,
    /// The HCAs' address, one of the interface's.
    pub address: IpAddr,
    /// The UDP port to steer here; 0 is RoCE's own.
    pub udp_port: u16,
    /// Cores that share it.
    pub cores: usize,
    /// The kernel copies packets even where the driver need not.
    pub copies: bool,
}

/// One core's queues: to be attached before the HCA, and the slabs to be adopted.
pub struct CorePackets {
    /// For the reactor.
    pub queues: Vec<Rc<RefCell<dyn Queue>>>,
    /// Of what is received, and of what is sent.
    pub slabs: [Slab; 2],
    /// How packets are really moved.
    pub mode: String,
}

impl Packets {
    /// Chunks that this takes of a region, of an interface with so many receive queues.
    pub fn chunks(cores: usize, queues: u32) -> u32 {
        cores as u32 * (Share::of(cores, queues).received + SENT)
    }

    /// Opens the interface.
    ///
    /// # Errors
    /// It has fewer queues than there are cores; no privilege; another program is on it; it is down.
    pub fn open(region: &Region, config: &PacketsConfig<'_>) -> Result<Packets> {
        let &PacketsConfig { link, address, udp_port, cores, copies } = config;
        let queues = link.rx_queues as usize;
        if queues < cores {
            let what = format!("soft:xdp on {cores} cores: {} has {queues} receive queues, and each core reads one of its own", link.name);
            let remedy = format!("use {queues} cores, give it more queues (ethtool -L {} combined {cores}), or use soft:udp", link.name);
            return Err(Error::new(ErrorKind::Usage, what).remedy(remedy));
        }
        let udp_port = if udp_port == 0 { roce::UDP_PORT } else { udp_port };
        let interface = open_interface(region, link, udp_port, copies)?;
        Ok(Packets { interface, udp_port, address, cores })
    }

    /// Opens the queues of core `number`, and tells the HCA's environment of them. With several cores `strays` are the packets of others
    /// that come here.
    ///
    /// # Errors
    /// A queue is taken, or the region has not [`Packets::chunks`] left.
    pub fn equip(&self, ops: &Ops, number: usize, strays: Option<Rc<Strays>>, env: &mut HcaEnv) -> Result<CorePackets> {
        assert!(number < self.cores, "core {number}");
        let link = link_of(&self.interface);
        (env.address, env.interface, env.link_mtu) = (Some(self.address), link.index, Some(link.mtu));
        (env.udp_port, env.strays) = (self.udp_port, strays);
        open_queues(self, ops, number, env)
    }
}

/// What each core has.
struct Share {
    /// Entries of the rings of each of its queues to receive into.
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has rings"))]
    ring: u32,
    /// Chunks: those in its rings, those in its hands, and with other cores as many again, on their way to the one that has the queue pair.
    received: u32,
}

impl Share {
    fn of(cores: usize, queues: u32) -> Share {
        let each = queues.max(1).div_ceil(cores as u32);
        let ring = (RECEIVED / each.next_power_of_two()).max(RECEIVED_MIN);
        let strays = if cores > 1 { RECEIVED } else { 0 };
        Share { ring, received: (each * ring + IN_HAND + strays).next_multiple_of(WHOLE) }
    }
}

#[cfg(feature = "xdp")]
fn open_interface(region: &Region, link: &Link, udp_port: u16, copies: bool) -> Result<Interface> {
    let mode = if copies { ModeWish::Copy } else { ModeWish::Auto };
    let config = InterfaceConfig { mode, ..InterfaceConfig::new(&link.name, &[udp_port]) };
    Interface::open(region, &config.for_whole_mtu(region)?)
}

#[cfg(feature = "xdp")]
fn link_of(interface: &Interface) -> &Link {
    interface.link()
}

#[cfg(feature = "xdp")]
fn open_queues(packets: &Packets, ops: &Ops, number: usize, env: &mut HcaEnv) -> Result<CorePackets> {
    let (region, all) = (packets.interface.region(), packets.interface.link().rx_queues);
    let Share { ring, received } = Share::of(packets.cores, all);
    let slabs = [Slab::new(region, received)?, Slab::new(region, SENT)?];
    let (mut queues, mut mode) = (Vec::new(), String::new());
    for queue in (number as u32..all).step_by(packets.cores) {
        let transmit_entries = if queues.is_empty() { SENT } else { SENT_MIN };
        let config = PortConfig { queue, receive_entries: ring, receive_chunks: ring, transmit_entries };
        let port = Port::open(ops, &slabs[0], &packets.interface, &config)?;
        mode = port.mode().to_string();
        queues.push(port.queue());
        env.inlets.push(Splitter::new(ops, port).inlet(&[packets.udp_port]));
    }
    env.slab = Some(slabs[1].clone());
    Ok(CorePackets { queues, slabs, mode })
}

#[cfg(not(feature = "xdp"))]
fn open_interface(_: &Region, _: &Link, _: u16, _: bool) -> Result<Interface> {
    crate::device::packet::require()?;
    Err(Error::new(ErrorKind::Unavailable, "soft:xdp: built without AF_XDP"))
}

#[cfg(not(feature = "xdp"))]
fn link_of(interface: &Interface) -> &Link {
    match *interface {}
}

#[cfg(not(feature = "xdp"))]
fn open_queues(packets: &Packets, _: &Ops, _: usize, _: &mut HcaEnv) -> Result<CorePackets> {
    match packets.interface {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is dealt behind them begins where a run of the largest size may: with both sizes of a chunk.
    #[test]
    fn the_slabs_are_whole_runs_and_hold_what_is_in_the_rings() {
        for (cores, queues) in [(1, 1), (1, 2), (1, 3), (1, 64), (2, 2), (3, 8), (64, 64)] {
            let Share { ring, received } = Share::of(cores, queues);
            assert!(received.is_multiple_of(WHOLE) && Packets::chunks(cores, queues).is_multiple_of(WHOLE), "{cores} {queues}");
            let each = queues.div_ceil(cores as u32);
            assert!(ring.is_power_of_two() && each * ring + IN_HAND <= received, "{cores} {queues}");
        }
        assert_eq!(Packets::chunks(1, 1), 4096 + 512 + 2048);
        assert_eq!(Packets::chunks(2, 2), 2 * (4096 + 512 + 4096 + 2048));
        assert_eq!(Share::of(1, 64).ring, 256);
    }
}
