//! Flow steering rules: which frames that come in go to a raw packet queue pair (ibv_create_flow(3)).

use std::ptr::NonNull;

use rdma_mummy_sys as ibv;
use rdma_mummy_sys::ibv_flow_spec_type as spec;

use super::{QueuePair, errno, tell_leak};

/// A rule. Dropped, the frames go where they went; that is before its queue pair ends.
pub struct Steering {
    raw: NonNull<ibv::ibv_flow>,
}

/// The frames that a rule is for: UDP datagrams to one port, in frames to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpTo {
    pub mac: [u8; 6],
    pub port: u16,
    pub is_ipv6: bool,
}

/// A rule as the library takes it: its attributes, and the headers it looks at right behind them.
#[repr(C)]
struct Rule<Ip> {
    attr: ibv::ibv_flow_attr,
    ethernet: ibv::ibv_flow_spec_eth,
    /// Any address: there to say which protocol.
    ip: Ip,
    udp: ibv::ibv_flow_spec_tcp_udp,
}

impl<Ip> Rule<Ip> {
    fn new(frames: UdpTo, port: u8, ip: Ip) -> Rule<Ip> {
        let attr = ibv::ibv_flow_attr {
            comp_mask: 0,
            type_: ibv::ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL,
            size: size_of::<Rule<Ip>>() as u16,
            priority: 0,
            num_of_specs: 3,
            port,
            flags: 0,
        };
        let mac = |dst_mac| ibv::ibv_flow_eth_filter { dst_mac, src_mac: [0; 6], ether_type: 0, vlan_tag: 0 };
        let ethernet = ibv::ibv_flow_spec_eth {
            type_: spec::IBV_FLOW_SPEC_ETH,
            size: size_of::<ibv::ibv_flow_spec_eth>() as u16,
            val: mac(frames.mac),
            mask: mac([0xff; 6]),
        };
        let to = |dst_port: u16| ibv::ibv_flow_tcp_udp_filter { dst_port: dst_port.to_be(), src_port: 0 };
        let udp = ibv::ibv_flow_spec_tcp_udp {
            type_: spec::IBV_FLOW_SPEC_UDP,
            size: size_of::<ibv::ibv_flow_spec_tcp_udp>() as u16,
            val: to(frames.port),
            mask: to(u16::MAX),
        };
        Rule { attr, ethernet, ip, udp }
    }
}

impl Steering {
    /// Steers those frames of a port (they count from 1) to the queue pair.
    ///
    /// # Errors
    /// The device has no such rules, or no more of them; the error number.
    pub fn new(qp: &QueuePair, port: u8, frames: UdpTo) -> Result<Steering, i32> {
        let any4 = || ibv::ibv_flow_ipv4_filter { src_ip: 0, dst_ip: 0 };
        let any6 =
            || ibv::ibv_flow_ipv6_filter { src_ip: [0; 16], dst_ip: [0; 16], flow_label: 0, next_hdr: 0, traffic_class: 0, hop_limit: 0 };
        let raw = if frames.is_ipv6 {
            let size = size_of::<ibv::ibv_flow_spec_ipv6>() as u16;
            let ip = ibv::ibv_flow_spec_ipv6 { type_: spec::IBV_FLOW_SPEC_IPV6, size, val: any6(), mask: any6() };
            let mut rule = Rule::new(frames, port, ip);
            // SAFETY: the queue pair lives; the rule is as long as it says, and the library only reads it.
            unsafe { ibv::ibv_create_flow(qp.raw.as_ptr(), (&raw mut rule).cast()) }
        } else {
            let size = size_of::<ibv::ibv_flow_spec_ipv4>() as u16;
            let ip = ibv::ibv_flow_spec_ipv4 { type_: spec::IBV_FLOW_SPEC_IPV4, size, val: any4(), mask: any4() };
            let mut rule = Rule::new(frames, port, ip);
            // SAFETY: as above.
            unsafe { ibv::ibv_create_flow(qp.raw.as_ptr(), (&raw mut rule).cast()) }
        };
        NonNull::new(raw).map(|raw| Steering { raw }).ok_or_else(errno)
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_flow and not used after this.
        let rc = unsafe { ibv::ibv_destroy_flow(self.raw.as_ptr()) };
        tell_leak("a steering rule", rc);
    }
}

// The parts follow one another without gaps, as the library walks through them by their sizes.
const _: () = {
    assert!(size_of::<Rule<ibv::ibv_flow_spec_ipv4>>() == 20 + 40 + 24 + 16);
    assert!(size_of::<Rule<ibv::ibv_flow_spec_ipv6>>() == 20 + 40 + 88 + 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_looks_at_address_protocol_and_port() {
        let frames = UdpTo { mac: [2, 0, 0, 0, 0, 7], port: 7174, is_ipv6: false };
        let rule = Rule::new(frames, 1, [0u8; 24]);
        assert_eq!((rule.attr.size, rule.attr.num_of_specs, rule.attr.port), (100, 3, 1));
        assert_eq!((rule.ethernet.val.dst_mac, rule.ethernet.mask.dst_mac), ([2, 0, 0, 0, 0, 7], [0xff; 6]));
        assert_eq!((rule.udp.type_, rule.udp.val.dst_port, rule.udp.mask.dst_port), (0x41, 7174u16.to_be(), 0xffff));
        assert_eq!((rule.ethernet.mask.ether_type, rule.udp.mask.src_port), (0, 0), "nothing else is looked at");
    }
}
