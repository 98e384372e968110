//! A client's datagrams: through the kernel's socket, or, over `raw`, as whole Ethernet frames built and parsed here and moved by AF_XDP.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::{Nanos, Result, limits};
use crate::device::socket::UdpSocket;
use crate::flow::Transport;
use crate::flow::control::Plan;
use crate::flow::crew::Either;
use crate::flow::hub::{Datagram, Hub, OpenStream, Pace};
use crate::flow::node::Node;
use crate::mem::{Buf, Exhausted};
use crate::wire::frame::Encapsulation;
use crate::wire::native::datagram;

/// The way to the server and back, for one stream.
pub struct Datagrams {
    node: Node,
    peer: SocketAddr,
    stream: u32,
    way: Way,
}

enum Way {
    Socket(UdpSocket),
    Frames(Rc<Frames>),
}

struct Frames {
    node: Node,
    hub: Rc<Hub>,
    to: Encapsulation,
    opened: OpenStream,
}

impl Datagrams {
    /// To the packet port of `server`.
    ///
    /// # Errors
    /// No way there; or over `raw`, no AF_XDP here, or nobody answers for the server's address on the link.
    pub fn open(node: &Node, plan: &Plan, server: SocketAddr, stream: u32) -> Result<Datagrams> {
        let way = match plan.transport {
            Transport::Raw => {
                let hub = node.hub()?;
                let to = hub.path_to(server)?;
                let opened = hub.open(stream, Pace::Prompt);
                Way::Frames(Rc::new(Frames { node: node.clone(), hub, to, opened }))
            }
            _ => Way::Socket(UdpSocket::connect(node.core().uring(), server)?),
        };
        Ok(Datagrams { node: node.clone(), peer: server, stream, way })
    }

    /// The server.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A chunk for a datagram of `len` bytes, with room for the headers in front where they are built here.
    pub async fn buf(&self, len: u32) -> Result<Buf, Exhausted> {
        let mut buf = self.node.buf().await?;
        let front = match &self.way {
            Way::Socket(_) => 0,
            Way::Frames(frames) => limits::XDP_PACKET_HEADROOM + frames.to.header_len() as u32,
        };
        buf.set_view(front, len);
        Ok(buf)
    }

    /// Sends a chunk of [`Datagrams::buf`]. Queued at once; await it to know that the chunk is back, or the frame in the ring.
    pub fn send(&self, buf: Buf) -> impl Future<Output = Result<()>> + use<> {
        let queued = match &self.way {
            Way::Socket(socket) => Either::Left(socket.send(buf)),
            Way::Frames(frames) => Either::Right((frames.clone(), frames.hub.send(&frames.to, buf))),
        };
        let peer = self.peer;
        async move {
            match queued {
                Either::Left(sent) => sent.await.map(drop).map_err(|failed| failed.into_error(format!("sending a datagram to {peer}"))),
                Either::Right((frames, mut posted)) => {
                    // The ring is full: there is room after a poll.
                    while let Err(buf) = posted {
                        frames.node.core().yield_now().await;
                        posted = frames.hub.send(&frames.to, buf);
                    }
                    Ok(())
                }
            }
        }
    }

    /// The next datagram of the stream that comes back: what it is, and the chunk viewed on it, the datagram header included.
    pub async fn receive(&self) -> (datagram::Repr, Buf) {
        loop {
            let (header, buf) = match &self.way {
                Way::Socket(socket) => {
                    let Ok(buf) = self.node.buf().await else { continue };
                    let Ok(buf) = socket.receive(buf).await else {
                        // A port unreachable, say. The sender finds out whether the server is there at all.
                        self.node.core().sleep(Nanos::from_millis(1)).await;
                        continue;
                    };
                    let Ok(header) = datagram::Repr::parse(buf.as_slice()) else { continue };
                    (header, buf)
                }
                Way::Frames(frames) => match frames.opened.inbox().pop().await {
                    Some(Datagram { header, buf, .. }) => (header, buf),
                    // The port is gone. The sender finds out that nothing comes.
                    None => pending().await,
                },
            };
            if header.stream() == self.stream {
                return (header, buf);
            }
        }
    }
}
