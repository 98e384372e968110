//! What a driver says it can do with XDP: the `netdev` family of generic netlink (Linux 6.3). Needs no privilege and disturbs
//! nothing.

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

use crate::base::{Error, Result};

/// What the driver of one interface says (`enum netdev_xdp_act`, `linux/netdev.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Programs run in the driver.
    pub native: bool,
    /// They may redirect, which steering to a socket needs.
    pub redirect: bool,
    /// AF_XDP sockets without copies.
    pub zero_copy: bool,
    /// Packets of several buffers may be received.
    pub several_buffers: bool,
    /// Buffers of one packet that zero-copy sends, where the kernel says.
    pub zero_copy_pieces: Option<u32>,
    /// Programs may ask when the NIC received a packet (`bpf_xdp_metadata_rx_timestamp`). Ours does not yet.
    pub receive_times: bool,
}

const XDP_ACT_BASIC: u64 = 1;
const XDP_ACT_REDIRECT: u64 = 2;
const XDP_ACT_XSK_ZEROCOPY: u64 = 8;
const XDP_ACT_RX_SG: u64 = 32;
/// `enum netdev_xdp_rx_metadata`.
const XDP_RX_METADATA_TIMESTAMP: u64 = 1;

/// `GENL_ID_CTRL` and its request for a family by name.
const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
const DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const DEV_XDP_RX_METADATA_FEATURES: u16 = 5;

/// Bytes of `struct nlmsghdr`, and of `struct genlmsghdr` behind it.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// What the driver of interface `index` can do; `None` when the kernel is too old to say.
///
/// # Errors
/// The kernel refuses the question, or there is no such interface.
pub fn xdp_features(index: u32) -> Result<Option<XdpFeatures>> {
    let failed = |error: std::io::Error| Error::io("asking the kernel for XDP features", &error);
    let mut socket = Socket::new(NETLINK_GENERIC).map_err(failed)?;
    socket.bind_auto().map_err(failed)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;

    let answer = match ask(&socket, CONTROL, CONTROL_GET_FAMILY, CONTROL_FAMILY_NAME, b"netdev\0") {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        answer => answer.map_err(failed)?,
    };
    let Some(family) = attribute(&answer, CONTROL_FAMILY_ID).and_then(|value| Some(u16::from_ne_bytes(value.get(..2)?.try_into().ok()?)))
    else {
        return Ok(None);
    };
    let answer = ask(&socket, family, DEV_GET, DEV_IFINDEX, &index.to_ne_bytes()).map_err(failed)?;
    let word = |kind| attribute(&answer, kind).and_then(|value| Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)));
    let Some(bits) = word(DEV_XDP_FEATURES) else { return Ok(None) };
    let pieces = attribute(&answer, DEV_XDP_ZC_MAX_SEGS).and_then(|value| Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?)));
    Ok(Some(XdpFeatures {
        native: bits & XDP_ACT_BASIC != 0,
        redirect: bits & XDP_ACT_REDIRECT != 0,
        zero_copy: bits & XDP_ACT_XSK_ZEROCOPY != 0,
        several_buffers: bits & XDP_ACT_RX_SG != 0,
        zero_copy_pieces: pieces,
        receive_times: word(DEV_XDP_RX_METADATA_FEATURES).is_some_and(|bits| bits & XDP_RX_METADATA_TIMESTAMP != 0),
    }))
}

/// Sends one request with one attribute; the attributes of the answer.
fn ask(socket: &Socket, family: u16, command: u8, kind: u16, value: &[u8]) -> std::io::Result<Vec<u8>> {
    const REQUEST: u16 = 1;
    const ERROR: u16 = 2;
    let attribute_bytes = 4 + value.len();
    let length = HEADER + GENERIC_HEADER + attribute_bytes.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend((attribute_bytes as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(length, 0);
    socket.send(&message, 0)?;

    let (answer, _) = socket.recv_from_full()?;
    let short = || std::io::Error::from_raw_os_error(libc::EPROTO);
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])).ok_or_else(short)?;
    if kind == ERROR {
        let code = answer.get(HEADER..HEADER + 4).ok_or_else(short)?;
        return Err(std::io::Error::from_raw_os_error(-i32::from_ne_bytes([code[0], code[1], code[2], code[3]])));
    }
    answer.get(HEADER + GENERIC_HEADER..).map(<[u8]>::to_vec).ok_or_else(short)
}

/// The value of the first attribute of this kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` are flags in the kind.
    const KIND: u16 = 0x3fff;
    loop {
        let header = attributes.get(..4)?;
        let (length, kind) = (u16::from_ne_bytes([header[0], header[1]]) as usize, u16::from_ne_bytes([header[2], header[3]]) & KIND);
        if length < 4 {
            return None;
        }
        if kind == wanted {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_never_past_the_end() {
        let bytes =
            [&5u16.to_ne_bytes()[..], &9u16.to_ne_bytes(), &[7, 0, 0, 0], &8u16.to_ne_bytes(), &3u16.to_ne_bytes(), &[1, 2, 3, 4]].concat();
        assert_eq!(attribute(&bytes, 9), Some(&[7][..]));
        assert_eq!(attribute(&bytes, 3), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&bytes, 4), None);
        assert_eq!(attribute(&bytes[..14], 3), None);
        assert_eq!(attribute(&[0; 16], 3), None);
    }

    #[test]
    fn the_kernel_answers_for_loopback_or_is_too_old() {
        // Loopback has no driver features; what is under test is that question and answer are understood.
        let index = crate::device::packet::Link::find("lo").unwrap().index;
        if let Some(features) = xdp_features(index).unwrap() {
            assert!(!features.zero_copy);
        }
        assert!(xdp_features(u32::MAX >> 1).is_err() || xdp_features(index).unwrap().is_none());
    }
}
