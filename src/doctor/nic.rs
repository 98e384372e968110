//! Network interfaces: driver, queues, and which modes of AF_XDP the driver has.
//!
//! What the driver says about XDP comes from the kernel's netdev family. That a bind to a queue succeeds is known only after one.

use super::netlink::{self, Link, feature};
use super::{Area, Check, count, link_name, list, names, read, read_number};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};

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
    driver: String,
    state: String,
    mtu: u64,
    queues: (usize, usize),
    link: Link,
    features: io::Result<Option<u64>>,
}

fn check(name: &str) -> Check {
    let directory = PathBuf::from(CLASS).join(name);
    let index = read_number(directory.join("ifindex")).and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
    let link = netlink::link(index).unwrap_or_default();
    let queues = names(directory.join("queues"));
    let of = |kind: &str| queues.iter().filter(|queue| queue.starts_with(kind)).count();
    judge(&Interface {
        name: name.to_owned(),
        driver: link_name(directory.join("device/driver")).or_else(|| link.kind.clone()).unwrap_or_else(|| "no hardware".into()),
        state: read(directory.join("operstate")).unwrap_or_else(|| "unknown".into()),
        mtu: read_number(directory.join("mtu")).unwrap_or(0),
        queues: (of("rx-"), of("tx-")),
        link,
        features: netlink::xdp_features(index),
    })
}

fn judge(interface: &Interface) -> Check {
    let Interface { name, driver, state, mtu, queues, link, features } = interface;
    // Loopback and others without hardware show "unknown" when they are up.
    let shown = match state.as_str() {
        "unknown" => "no carrier state",
        other => other,
    };
    let facts = format!("{driver}, {shown}, MTU {mtu}, {} in, {} out", count(queues.0, "queue"), queues.1);
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
    if let Some(program) = link.program {
        let cause = format!("the XDP program {program} of somebody else is attached");
        let remedy = format!("stop its owner (sudo bpftool prog show id {program}), or: sudo ip link set dev {name} xdp off");
        return Check::warning(Area::AfXdp, name, found, cause, remedy);
    }
    if is_down(state) {
        let remedy = format!("sudo ip link set dev {name} up, and look at the cable or the peer");
        return Check::warning(Area::AfXdp, name, found, "the link is down", remedy);
    }
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
        let mut taken = interface(Some(0x3));
        taken.link.program = Some(12);
        assert!(judge(&taken).remedy.expect("one").contains("xdp off"));
        let mut down = interface(Some(0x3));
        down.state = "down".into();
        assert!(judge(&down).cause.expect("one").contains("down"));
    }

    #[test]
    fn a_wrong_name_lists_the_right_ones() {
        let error = named("no-such-if").expect_err("it does not exist");
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("lo"), "{error}");
    }
}
