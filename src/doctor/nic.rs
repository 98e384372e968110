//! Network interfaces: driver, queues, and which modes of AF_XDP the driver has.
//!
//! What the driver says about XDP comes from the kernel's netdev family. That a bind to a queue succeeds is known only after one. Of a
//! VLAN's interface the packets are taken from the one that carries it, so it is that one's queues and driver that count.

use super::netlink::{self, Link, feature};
use super::{Area, Check, count, link_name, list, names, read, read_number};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::packet::link;
use std::io;
use std::path::Path;

const CLASS: &str = "/sys/class/net";

/// The interface of that name.
pub(super) fn named(name: &str) -> Result<String> {
    let known = names(CLASS);
    if known.iter().any(|other| other == name) {
        return Ok(name.to_owned());
    }
    let what = format!("there is no network interface '{name}'");
    Err(Error::new(ErrorKind::Usage, what).remedy(format!("name one of: {}", list(&known))))
}

/// A check for `only`, or for every interface but loopback.
pub(super) fn checks(only: Option<&str>) -> Vec<Check> {
    if let Some(name) = only {
        return vec![check(name)];
    }
    let (down, chosen): (Vec<String>, Vec<String>) = names(CLASS)
        .into_iter()
        .filter(|name| name != "lo" && Path::new(CLASS).join(name).join("ifindex").exists())
        .partition(|name| read(Path::new(CLASS).join(name).join("operstate")).is_some_and(|state| is_down(&state)));
    if chosen.is_empty() {
        let cause = "no interface but loopback is up in this network namespace";
        return vec![Check::missing(Area::AfXdp, "interfaces", "none", cause, "sudo ip link add veth0 type veth peer name veth1")];
    }
    let mut checks: Vec<Check> = chosen.iter().map(|name| check(name)).collect();
    if !down.is_empty() {
        checks.push(Check::ok(Area::AfXdp, "not looked at", format!("{}: down", down.join(", "))));
    }
    checks
}

/// Whether `operstate` says that nothing can pass.
fn is_down(state: &str) -> bool {
    matches!(state, "down" | "lowerlayerdown" | "notpresent")
}

/// What one interface shows of itself.
struct Interface {
    name: String,
    /// The interface that has the queues, where it is another one.
    carrier: Option<String>,
    /// Why an opening refuses it.
    refusal: Option<Error>,
    driver: String,
    state: String,
    mtu: u64,
    queues: (usize, usize),
    link: Link,
    features: io::Result<Option<u64>>,
}

fn check(name: &str) -> Check {
    let (carrier, refusal) = match link::Link::find(name).and_then(|link| link.with_queues()) {
        Ok(carrier) => (Some(carrier.name).filter(|carrier| carrier != name), None),
        Err(error) => (None, Some(error)),
    };
    let own = Path::new(CLASS).join(name);
    let directory = Path::new(CLASS).join(carrier.as_deref().unwrap_or(name));
    let index = read_number(directory.join("ifindex")).and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
    let link = netlink::link(index).unwrap_or_default();
    let queues = names(directory.join("queues"));
    let of = |kind: &str| queues.iter().filter(|queue| queue.starts_with(kind)).count();
    judge(&Interface {
        name: name.to_owned(),
        driver: link_name(directory.join("device/driver")).or_else(|| link.kind.clone()).unwrap_or_else(|| "no hardware".into()),
        state: read(own.join("operstate")).unwrap_or_else(|| "unknown".into()),
        mtu: read_number(own.join("mtu")).unwrap_or(0),
        carrier,
        refusal,
        queues: (of("rx-"), of("tx-")),
        link,
        features: netlink::xdp_features(index),
    })
}

fn judge(interface: &Interface) -> Check {
    let Interface { name, carrier, refusal, driver, state, mtu, queues, link, features } = interface;
    // Loopback and others without hardware show "unknown" when they are up.
    let shown = match state.as_str() {
        "unknown" => "no carrier state",
        other => other,
    };
    let on = carrier.as_ref().map_or_else(String::new, |carrier| format!("a VLAN on {carrier}: "));
    let facts = format!("{on}{driver}, {shown}, MTU {mtu}, {} in, {} out", count(queues.0, "queue"), queues.1);
    // What an opening refuses comes first: it does so on every kernel, also on one that does not tell the modes.
    if let Some(error) = refusal {
        return Check::refused(Area::AfXdp, name, facts, error, "use soft:udp on it");
    }
    if let Some(program) = link.program {
        let cause = format!("the XDP program {program} of somebody else is attached");
        let device = carrier.as_deref().unwrap_or(name);
        let remedy = format!("stop its owner (sudo bpftool prog show id {program}), or: sudo ip link set dev {device} xdp off");
        return Check::missing(Area::AfXdp, name, facts, cause, remedy);
    }
    if is_down(state) {
        let remedy = format!("sudo ip link set dev {name} up, and look at the cable or the peer");
        return Check::missing(Area::AfXdp, name, facts, "the link is down", remedy);
    }
    let features = match features {
        Ok(Some(features)) => *features,
        Ok(None) => {
            let cause = format!("{facts}; this kernel does not tell what its driver can do with XDP");
            return Check::unknown(Area::AfXdp, name, cause, "use Linux 6.3 or later, or try: unified-rdma-test says what mode it got");
        }
        Err(error) => {
            let cause = format!("{facts}; asking the kernel failed: {error}");
            return Check::unknown(Area::AfXdp, name, cause, "try: unified-rdma-test says what mode it got");
        }
    };
    let has = |bit: u64| features & bit == bit;
    let native = has(feature::BASIC | feature::REDIRECT);
    let modes = match (has(feature::ZEROCOPY), native) {
        (true, _) => "zero-copy, native and SKB mode",
        (false, true) => "native and SKB mode, each with one copy by the kernel",
        (false, false) => "SKB mode",
    };
    let jumbo = if has(feature::RX_SG) { "; large frames in fragments" } else { "" };
    let found = format!("{facts}: {modes}{jumbo}");
    if !native {
        let cause = "its driver has no native XDP: every packet becomes an sk_buff first";
        return Check::warning(
            Area::AfXdp,
            name,
            found,
            cause,
            "SKB mode runs; for speed use a NIC whose driver has XDP (mlx5, ice, i40e, ixgbe, ena, virtio_net)",
        );
    }
    Check::ok(Area::AfXdp, name, found)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn interface(features: Option<u64>) -> Interface {
        Interface {
            name: "eth0".into(),
            carrier: None,
            refusal: None,
            driver: "mlx5_core".into(),
            state: "up".into(),
            mtu: 1500,
            queues: (8, 8),
            link: Link::default(),
            features: Ok(features),
        }
    }

    #[test]
    fn modes_follow_from_the_drivers_features() {
        let all = judge(&interface(Some(0x3f)));
        assert_eq!(all.status, Status::Ok);
        assert!(all.found.contains("mlx5_core, up, MTU 1500, 8 queues in, 8 out: zero-copy"), "{}", all.found);
        assert!(judge(&interface(Some(0x3))).found.contains("one copy by the kernel"));
        assert_eq!(judge(&interface(Some(0x1))).status, Status::Warning, "without redirect no packet reaches a socket");
        assert_eq!(judge(&interface(None)).status, Status::Unknown);
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        // Also where the kernel does not tell what the driver can do.
        for features in [Some(0x3), None] {
            let mut taken = interface(features);
            taken.link.program = Some(12);
            let taken = judge(&taken);
            assert!(
                taken.status == Status::Missing && taken.remedy.as_deref().is_some_and(|remedy| remedy.contains("xdp off")),
                "{taken:?}"
            );
            let down = judge(&Interface { state: "down".into(), ..interface(features) });
            assert!(down.status == Status::Missing && down.cause.as_deref().is_some_and(|cause| cause.contains("down")), "{down:?}");
        }
    }

    #[test]
    fn a_vlan_is_judged_by_the_interface_that_carries_it() {
        let vlan = || Interface { name: "eth0.5".into(), carrier: Some("eth0".into()), ..interface(Some(0x3f)) };
        let carried = judge(&vlan());
        assert!(carried.status == Status::Ok && carried.found.starts_with("a VLAN on eth0: mlx5_core, up"), "{carried:?}");
        let mut taken = vlan();
        taken.link.program = Some(12);
        assert!(judge(&taken).remedy.is_some_and(|remedy| remedy.contains("dev eth0 xdp off")), "the program is the carrier's");
        let error = Error::new(ErrorKind::Unavailable, "eth0 takes the tags out").remedy("ethtool -K eth0 rxvlan off");
        let refused = judge(&Interface { carrier: None, refusal: Some(error), ..vlan() });
        assert_eq!((refused.status, refused.remedy.as_deref()), (Status::Missing, Some("ethtool -K eth0 rxvlan off")));
        assert_eq!(refused.cause.as_deref(), Some("eth0 takes the tags out"));
    }

    #[test]
    fn a_wrong_name_lists_the_right_ones() {
        let error = named("no-such-if").expect_err("it does not exist");
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("lo"), "{error}");
    }
}
