//! Questions to the kernel over netlink: what the XDP driver of an interface can do, what kind of link it is, what is attached.
//!
//! Plain attribute walking: two requests do not pay for a codec each.

use netlink_sys::{Socket, SocketAddr, protocols};
use std::io;

/// `enum netdev_xdp_act` (include/uapi/linux/netdev.h).
pub(super) mod feature {
    /// Native XDP.
    pub const BASIC: u64 = 1;
    /// `XDP_REDIRECT`, by which packets reach a socket.
    pub const REDIRECT: u64 = 2;
    /// AF_XDP without a copy.
    pub const ZEROCOPY: u64 = 8;
    /// Packets of several fragments on receive.
    pub const RX_SG: u64 = 32;
}

/// What a link is and carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    /// `veth`, `bridge` … of virtual links.
    pub kind: Option<String>,
    /// The XDP program that is attached.
    pub program: Option<u32>,
}

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_HEADER: usize = 16;
const GENL_HEADER: usize = 4;
const IFINFO_HEADER: usize = 16;
/// Attribute types without the nesting and byte-order flags.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// The link with index `index`.
pub(super) fn link(index: u32) -> io::Result<Link> {
    const RTM_GETLINK: u16 = 18;
    // struct ifinfomsg: family, pad, type, index, flags, change.
    let mut request = vec![0u8; IFINFO_HEADER];
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    let reply = ask(protocols::NETLINK_ROUTE, RTM_GETLINK, &request)?;
    Ok(parse_link(reply.get(IFINFO_HEADER..).unwrap_or(&[])))
}

fn parse_link(attributes: &[u8]) -> Link {
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_PROG_ID: u16 = 4;
    let nested = |outer, inner| find(find(attributes, outer)?, inner);
    Link { kind: nested(IFLA_LINKINFO, IFLA_INFO_KIND).map(text), program: nested(IFLA_XDP, IFLA_XDP_PROG_ID).and_then(number32) }
}

/// The XDP features of the interface with index `index`. `None` where the kernel cannot be asked (before Linux 6.3).
pub(super) fn xdp_features(index: u32) -> io::Result<Option<u64>> {
    const GENL_ID_CTRL: u16 = 16;
    const CTRL_CMD_GETFAMILY: u8 = 3;
    const CTRL_ATTR_FAMILY_ID: u16 = 1;
    const CTRL_ATTR_FAMILY_NAME: u16 = 2;
    const NETDEV_CMD_DEV_GET: u8 = 1;
    const NETDEV_A_DEV_IFINDEX: u16 = 1;
    const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

    let generic = |family: u16, command: u8, attribute: Vec<u8>| {
        let mut request = vec![command, 1, 0, 0];
        request.extend(attribute);
        ask(protocols::NETLINK_GENERIC, family, &request)
    };
    let family = match generic(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0")) {
        Ok(reply) => find(reply.get(GENL_HEADER..).unwrap_or(&[]), CTRL_ATTR_FAMILY_ID)
            .and_then(|id| Some(u16::from_ne_bytes(id.get(..2)?.try_into().ok()?))),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        Err(error) => return Err(error),
    };
    let Some(family) = family else { return Ok(None) };
    let reply = generic(family, NETDEV_CMD_DEV_GET, attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()))?;
    let features = find(reply.get(GENL_HEADER..).unwrap_or(&[]), NETDEV_A_DEV_XDP_FEATURES);
    Ok(features.and_then(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))))
}

/// Sends one request and gives the payload of its answer.
fn ask(protocol: isize, kind: u16, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    let length = (NLMSG_HEADER + payload.len()) as u32;
    let mut message = Vec::with_capacity(length as usize);
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend(1u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(payload);
    socket.send_to(&message, &SocketAddr::new(0, 0), 0)?;
    let (reply, _) = socket.recv_from_full()?;
    answer(&reply)
}

/// Takes the header off a reply, or turns it into the error it carries.
fn answer(reply: &[u8]) -> io::Result<Vec<u8>> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let length = number32(reply).ok_or_else(short)? as usize;
    let payload = reply.get(NLMSG_HEADER..length.min(reply.len())).ok_or_else(short)?;
    if reply[4..6] == NLMSG_ERROR.to_ne_bytes() {
        let code = number32(payload).ok_or_else(short)? as i32;
        return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
    }
    Ok(payload.to_vec())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of type `wanted`.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(header) = attributes.get(..4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn number32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_are_found() {
        let mut attributes = attribute(3, b"veth0\0");
        attributes.extend(attribute(18 | 0x8000, &attribute(1, b"veth\0")));
        attributes.extend(attribute(43, &[attribute(2, &[1]), attribute(4, &77u32.to_ne_bytes())].concat()));
        assert_eq!(parse_link(&attributes), Link { kind: Some("veth".into()), program: Some(77) });
    }

    #[test]
    fn broken_replies_do_no_harm() {
        for length in 0..40 {
            let _ = find(&vec![0xff; length], 1);
            let _ = find(&vec![0; length], 1);
            assert!(answer(&vec![0; length]).is_err());
        }
    }

    #[test]
    fn the_kernel_answers() {
        // Loopback has index 1 in every network namespace.
        assert_eq!(link(1).expect("RTM_GETLINK needs no privilege").program, None);
        let _ = xdp_features(1).expect("the answer or none");
        let absent = link(i32::MAX as u32).expect_err("no such link");
        assert_eq!(absent.raw_os_error(), Some(libc::ENODEV));
    }
}
