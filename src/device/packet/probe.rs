//! What an interface can do, found out for `doctor` without opening it for good.

use std::fmt;

use crate::base::{Error, Result};
use crate::device::packet::features::{XdpFeatures, xdp_features};
use crate::device::packet::link::Link;
use crate::device::packet::{ModeWish, PacketMode};

/// An answer that may be missing, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It can.
    Yes,
    /// It cannot, and why.
    No(String),
    /// Nobody could tell, and why.
    Unknown(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Yes => f.write_str("yes"),
            Answer::No(why) => write!(f, "no: {why}"),
            Answer::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Ask the kernel only. Harmless, and needs no privilege.
    Ask,
    /// Attach the program, with no port to steer, and bind a socket in every mode. Some drivers reset the link for it.
    Try,
}

/// What was found out about one interface.
#[derive(Clone, Debug)]
pub struct Probed {
    /// The interface: queues, MTU, driver, addresses.
    pub link: Link,
    /// What the driver says, if the kernel passes it on.
    pub features: Option<XdpFeatures>,
    /// No copies between the NIC and the region.
    pub zero_copy: Answer,
    /// The program in the driver, one copy by the kernel.
    pub native: Answer,
    /// The program behind the driver, one copy by the kernel.
    pub skb: Answer,
    /// Packets of several chunks in the best mode that works.
    pub several_chunks: Answer,
}

impl Probed {
    /// The best mode that is known to work.
    pub fn best(&self) -> Option<PacketMode> {
        let modes = [(&self.zero_copy, PacketMode::ZeroCopy), (&self.native, PacketMode::NativeCopy), (&self.skb, PacketMode::SkbCopy)];
        modes.into_iter().find(|(answer, _)| **answer == Answer::Yes).map(|(_, mode)| mode)
    }
}

/// Finds out what `name` can do.
///
/// # Errors
/// There is no such interface, or the kernel does not answer at all.
pub fn probe(name: &str, depth: Depth) -> Result<Probed> {
    let link = Link::find(name)?;
    let features = xdp_features(link.index)?;
    let attempt = |wish: ModeWish, several: bool| match (depth, wish) {
        (Depth::Try, _) => attempt(&link, wish, several),
        (Depth::Ask, ModeWish::Skb) => Answer::Unknown("works with every driver, but was not tried".into()),
        (Depth::Ask, _) => said(features, wish, several),
    };
    let (zero_copy, native, skb) = (attempt(ModeWish::ZeroCopy, false), attempt(ModeWish::Native, false), attempt(ModeWish::Skb, false));
    let best = if zero_copy == Answer::Yes {
        ModeWish::ZeroCopy
    } else if native == Answer::Yes {
        ModeWish::Native
    } else {
        ModeWish::Skb
    };
    let several_chunks = attempt(best, true);
    Ok(Probed { link, features, zero_copy, native, skb, several_chunks })
}

/// What the driver says of itself.
fn said(features: Option<XdpFeatures>, wish: ModeWish, several: bool) -> Answer {
    let Some(features) = features else { return Answer::Unknown("this kernel does not say (Linux 6.3 does)".into()) };
    let has_mode = features.native && features.redirect && (wish != ModeWish::ZeroCopy || features.zero_copy);
    if has_mode && (!several || features.several_buffers) { Answer::Yes } else { Answer::No("the driver says so".into()) }
}

#[cfg(feature = "xdp")]
fn attempt(link: &Link, wish: ModeWish, several: bool) -> Answer {
    use crate::base::error::{ErrorKind, describe_errno};
    use crate::device::packet::program::{Attached, Packets, Program, STALE};
    use crate::device::packet::xsk::{Binding, Probe};

    let unless = |error: Error| match error.kind() {
        // What another program or a missing privilege hides is not known.
        ErrorKind::Busy => Answer::Unknown(error.to_string()),
        ErrorKind::Unavailable if error.errno() == Some(libc::EPERM) || error.errno().is_none() => Answer::Unknown(error.to_string()),
        _ => Answer::No(error.to_string()),
    };
    let place = if wish == ModeWish::Skb { Attached::Skb } else { Attached::Native };
    let none = Packets { udp_ports: &[], vlan: None, stale: STALE };
    let _program = match Program::attach(&link.name, link.index, link.rx_queues, none, Some(place)) {
        Ok((program, _)) => program,
        Err(error) => return unless(error),
    };
    let probe = match Probe::new() {
        Ok(probe) => probe,
        Err(error) => return Answer::Unknown(error.to_string()),
    };
    let binding = if wish == ModeWish::ZeroCopy { Binding::ZeroCopy } else { Binding::Copy };
    match probe.xsk.bind(link.index, 0, binding, several) {
        Ok(()) => Answer::Yes,
        Err(libc::EBUSY) => Answer::Unknown("another AF_XDP socket has queue 0".into()),
        Err(errno) => Answer::No(format!("binding a socket: {}", describe_errno(errno))),
    }
}

#[cfg(not(feature = "xdp"))]
fn attempt(_: &Link, _: ModeWish, _: bool) -> Answer {
    let error: Option<Error> = super::require().err();
    Answer::Unknown(error.map_or_else(String::new, |error| error.to_string()))
}
