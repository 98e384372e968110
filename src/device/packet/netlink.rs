//! One question to the kernel by rtnetlink, answered in full. For set-up: it blocks, and it allocates.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// Whether one object is asked for, or all of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The object the message names.
    One,
    /// Every object.
    All,
}

/// Sends `question` and returns every answer. `what` names it in errors.
///
/// # Errors
/// The kernel's own, by number; an answer that cannot be read.
pub fn ask(what: &str, question: RouteNetlinkMessage, scope: Scope) -> Result<Vec<RouteNetlinkMessage>> {
    let failed = |error: std::io::Error| Error::io(format!("asking the kernel for {what}"), &error);
    let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
    socket.bind_auto().map_err(failed)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;

    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | if scope == Scope::All { NLM_F_DUMP } else { 0 };
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map_err(failed)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full().map_err(failed)?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let unreadable = |error| Error::new(ErrorKind::Failed, format!("the kernel's answer about {what}: {error}"));
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(unreadable)?;
            // Messages are padded to four bytes, the last one maybe not.
            let length = (message.header.length as usize).next_multiple_of(4).clamp(4, rest.len().max(4));
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(failed(error.to_io())),
                NetlinkPayload::Error(_) => return Ok(answers),
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                _ => {}
            }
        }
        if scope == Scope::One {
            return Ok(answers);
        }
    }
}
