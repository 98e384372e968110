//! Deals the datagrams of a packet port to the streams they belong to.
//!
//! One task owns the receiving side of the port. A datagram of a known stream goes to that stream's inbox; a HELLO of an unknown
//! one opens a recording, so that any program that can send UDP can be stored. A full inbox drops, and counts, what comes:
//! nothing waits for a slow stream.
//!
//! Where packets flow and every stream is one that is stored in batches, they gather in the port's rings for a moment before they are
//! looked at: a wake of the core costs as much as twenty packets.
//!
//! Every core has a hub; only those that own a queue of the interface have a port. A stream's number says which core it is on:
//! what comes in elsewhere goes there by mail, and the answer goes back to leave by the port it came in on.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, limits};
use crate::device::packet::{Inlet, PortFault, neighbours};
use crate::flow::post::{Letter, Post};
use crate::flow::window::Inbox;
use crate::mem::{Buf, Run, Slab};
use crate::reactor::Core;
use crate::wire::ethernet::Mac;
use crate::wire::frame::{Encapsulation, UdpFrame};
use crate::wire::native::datagram;
use crate::wire::udp;

/// Datagrams that may wait in one stream's inbox: as many as the largest rings hold.
const INBOX: usize = 16_384;
/// Frames taken from the port at a time.
const BATCH: usize = 256;
/// Streams at once, recordings of unknown senders included.
const STREAMS_MAX: usize = 1024;
/// Packets gather until there may be so many, and at the least for as long as a million a second take to fill an eighth of the smallest
/// rings.
const GATHER: u64 = 256;
const GATHER_SHORTEST: Nanos = Nanos::from_micros(500);

/// From so many a millisecond on, packets flow. Fewer may be a sender that waits for answers, and cost little each way.
const FLOWING: u64 = 32;
/// And they flow until there are fewer than so many: a sender that was held up for a few milliseconds has not paused.
const FLOWING_STILL: u64 = 8;
const MEASURED: Nanos = Nanos::from_millis(1);

/// How soon a stream's reader wants what has come. In order: what one stream wants at once none of the port waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// At once.
    Prompt,
    /// Many at a time, from a sender that waits for answers.
    Answered,
    /// Many at a time, from a sender that waits for nobody.
    Free,
}

impl Pace {
    /// How long packets gather at most.
    pub const fn longest(self) -> Nanos {
        match self {
            Pace::Prompt => Nanos::ZERO,
            Pace::Answered => Nanos::from_millis(1),
            Pace::Free => Nanos::from_millis(3),
        }
    }
}

/// Whether packets flow, looked at about once in [`MEASURED`].
#[derive(Clone, Copy, Default)]
struct Flow {
    since: Nanos,
    packets: u64,
    /// Packets a millisecond, when last looked at.
    rate: u64,
    is_flowing: bool,
}

impl Flow {
    fn count(&mut self, now: Nanos, packets: usize) {
        self.packets += packets as u64;
        let span = now.since(self.since);
        if span >= MEASURED {
            let least = if self.is_flowing { FLOWING_STILL } else { FLOWING };
            let rate = self.packets / (span.0 / MEASURED.0);
            *self = Flow { since: now, packets: 0, rate, is_flowing: rate >= least };
        }
    }

    /// How long it takes until there are many, or `None` for those that are not to wait. The pace is asked for only where packets flow.
    fn gather(&self, pace: impl FnOnce() -> Pace) -> Option<Nanos> {
        if !self.is_flowing {
            return None;
        }
        let span = Nanos(GATHER * MEASURED.0 / self.rate.max(1)).max(GATHER_SHORTEST).min(pace().longest());
        (span > Nanos::ZERO).then_some(span)
    }
}

struct Stream {
    inbox: Rc<Inbox<Datagram>>,
    pace: Pace,
}

/// Is told of a stream that begins by itself.
pub type Unknown = dyn Fn(u32, Rc<Inbox<Datagram>>);

/// A received datagram of a stream.
#[derive(Debug)]
pub struct Datagram {
    /// The chunk, viewed on the UDP payload, the datagram header included.
    pub buf: Buf,
    /// When it was taken from the port, in nanoseconds since 1970: as long after its arrival as packets gather.
    pub received_ns: u64,
    /// What the datagram header says.
    pub header: datagram::Repr,
    /// How to answer.
    pub reply: Reply,
}

/// The way back to a sender.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    encapsulation: Encapsulation,
    /// The core whose port it came in on.
    core: usize,
}

impl Reply {
    /// Who sent it.
    pub fn peer(&self) -> SocketAddr {
        self.encapsulation.dst
    }

    /// The headers of what goes back.
    pub fn encapsulation(&self) -> &Encapsulation {
        &self.encapsulation
    }

    /// The port it came to.
    pub fn port(&self) -> u16 {
        self.encapsulation.src.port()
    }
}

/// A stream that is open, until this is dropped.
pub struct OpenStream {
    hub: Rc<Hub>,
    stream: u32,
    inbox: Rc<Inbox<Datagram>>,
}

impl OpenStream {
    /// Where its datagrams go.
    pub fn inbox(&self) -> Rc<Inbox<Datagram>> {
        self.inbox.clone()
    }

    /// Closes it: as [`Hub::close`].
    pub fn close(&self) {
        self.hub.close(self.stream);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        // Closed and drawn again, the number may be another flow's.
        let is_open = self.hub.streams.borrow().get(&self.stream).is_some_and(|stream| Rc::ptr_eq(&stream.inbox, &self.inbox));
        if is_open {
            self.close();
        }
    }
}

/// The streams of one core.
pub struct Hub {
    /// The core's port, if it owns one.
    inlet: Option<Inlet>,
    mode: String,
    post: Option<Rc<Post>>,
    slab: Slab,
    core: Core,
    streams: RefCell<HashMap<u32, Stream>>,
    /// The stream of the last datagram, which is likely to be the next one's.
    last: RefCell<Option<(u32, Rc<Inbox<Datagram>>)>>,
    flow: Cell<Flow>,
    /// A datagram went to another core since the last look: its stream may be in a hurry.
    has_mailed: Cell<bool>,
    dropped: Cell<u64>,
    ident: Cell<u16>,
    /// On loopback answers go through a socket: the kernel takes a packet from 127.0.0.1 for a forgery unless it sent it itself.
    socket: Option<std::net::UdpSocket>,
}

impl Hub {
    /// Over the datagrams of `inlet`, received as `mode` says, and those that come by mail; answers are built in chunks of `slab`.
    ///
    /// # Errors
    /// On a loopback interface `udp_port` is taken by another program.
    pub fn new(core: &Core, slab: &Slab, inlet: Option<Inlet>, mode: &str, udp_port: u16, post: Option<Rc<Post>>) -> Result<Rc<Hub>> {
        let on_loopback = inlet.as_ref().is_some_and(|inlet| inlet.link().is_loopback());
        let socket = on_loopback.then(|| answering_socket(udp_port)).transpose()?;
        let (core, slab, mode) = (core.clone(), slab.clone(), mode.to_owned());
        let (streams, last, flow, has_mailed) = (RefCell::default(), RefCell::default(), Cell::default(), Cell::default());
        let (dropped, ident) = (Cell::new(0), Cell::new(0));
        Ok(Rc::new(Hub { inlet, mode, post, slab, core, streams, last, flow, has_mailed, dropped, ident, socket }))
    }

    /// Opens a stream for one flow. Its datagrams go to the inbox until it is closed or dropped.
    pub fn open(self: &Rc<Hub>, stream: u32, pace: Pace) -> OpenStream {
        OpenStream { inbox: self.enter(stream, pace), hub: self.clone(), stream }
    }

    /// Opens a stream that somebody is to close by its number.
    fn enter(&self, stream: u32, pace: Pace) -> Rc<Inbox<Datagram>> {
        self.last.take();
        let inbox = Rc::new(Inbox::new(self.core.ops(), INBOX));
        self.streams.borrow_mut().insert(stream, Stream { inbox: inbox.clone(), pace });
        inbox
    }

    /// Closes a stream: whoever waits on its inbox is woken, what is in it can still be taken.
    pub fn close(&self, stream: u32) {
        self.last.take();
        if let Some(stream) = self.streams.borrow_mut().remove(&stream) {
            stream.inbox.close();
        }
    }

    /// The pace of the stream that is most in a hurry.
    fn pace(&self) -> Pace {
        self.streams.borrow().values().map(|stream| stream.pace).min().unwrap_or(Pace::Prompt)
    }

    /// Whether so many packets come that they are better taken together.
    pub fn is_flowing(&self) -> bool {
        self.flow.get().is_flowing
    }

    /// Datagrams dropped because they belonged to no stream, made no sense, or their stream's inbox was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// How the port receives: `zero-copy`, `native copy`, `skb copy`.
    pub fn mode(&self) -> String {
        self.mode.clone()
    }

    /// Deals until the port is gone. `unknown` is told of each stream that begins by itself, after its inbox was opened.
    pub async fn run(&self, unknown: &Unknown) {
        let Some(inlet) = &self.inlet else { return };
        let mut frames: Vec<Buf> = Vec::with_capacity(BATCH);
        loop {
            match inlet.receive(&mut frames, BATCH) {
                Ok(0) => inlet.readable().await,
                Ok(count) => {
                    let mut flow = self.flow.get();
                    flow.count(self.core.now(), count);
                    self.flow.set(flow);
                    let received_ns = unix_now_ns();
                    for frame in frames.drain(..) {
                        match self.read(frame, received_ns) {
                            Some(datagram) => self.deal(datagram, unknown),
                            None => self.drop_one(),
                        }
                    }
                    // Streams of other cores may be in any hurry.
                    let is_hurried = self.has_mailed.take();
                    match flow.gather(|| if is_hurried { Pace::Prompt } else { self.pace() }).filter(|_| count < BATCH) {
                        Some(span) if inlet.hold(self.core.now().saturating_add(span)) => self.core.rest(span).await,
                        // Other tasks store and forward what was dealt.
                        _ => self.core.yield_now().await,
                    }
                }
                // Service resumes by itself when the link is back.
                Err(PortFault::LinkDown) => tracing::warn!("the link is down: no packets until it is up again"),
                Err(fault) => {
                    tracing::error!(%fault, "no more packets");
                    self.last.take();
                    self.streams.borrow_mut().drain().for_each(|(_, stream)| stream.inbox.close());
                    return;
                }
            }
        }
    }

    /// What a frame is, viewed on its payload.
    fn read(&self, mut frame: Buf, received_ns: u64) -> Option<Datagram> {
        let parsed = UdpFrame::parse(frame.as_slice()).ok()?;
        let payload = parsed.payload();
        let header = datagram::Repr::parse(payload).ok()?;
        let encapsulation = Encapsulation {
            src_mac: parsed.ethernet.dst,
            dst_mac: parsed.ethernet.src,
            vlan: parsed.ethernet.vlan,
            src: parsed.dst,
            dst: parsed.src,
            traffic_class: 0,
            hop_limit: 64,
        };
        // The payload's place in the chunk, from its place in the frame.
        let within = payload.as_ptr() as usize - frame.as_slice().as_ptr() as usize;
        let (start, len) = (frame.start() + within as u32, payload.len() as u32);
        frame.set_view(start, len);
        Some(Datagram { buf: frame, received_ns, header, reply: Reply { encapsulation, core: self.number() } })
    }

    /// Puts a datagram, from this core's port or from another core, where it belongs.
    pub fn deal(&self, datagram: Datagram, unknown: &Unknown) {
        let (stream, begins) = (datagram.header.stream(), matches!(datagram.header, datagram::Repr::Hello { .. }));
        if let Some((last, inbox)) = &*self.last.borrow()
            && *last == stream
        {
            return if inbox.push(datagram).is_err() {
                self.drop_one()
            };
        }
        let known = self.streams.borrow().get(&stream).map(|known| known.inbox.clone());
        let inbox = match (known, &self.post) {
            (Some(inbox), _) => inbox,
            // Also one that is nobody's yet: it begins there.
            (None, Some(post)) if let Some(core) = post.elsewhere(stream) => {
                self.has_mailed.set(true);
                let Datagram { buf, received_ns, header, reply } = datagram;
                return post.offer(core, Letter::Datagram { parcel: Run::from(buf).detach(), received_ns, header, reply });
            }
            (None, _) if begins && self.streams.borrow().len() < STREAMS_MAX => {
                let inbox = self.enter(stream, Pace::Free);
                unknown(stream, inbox.clone());
                inbox
            }
            (None, _) => return self.drop_one(),
        };
        match inbox.push(datagram) {
            Ok(()) => drop(self.last.replace(Some((stream, inbox)))),
            // Not kept at hand: it may have been refused a task, and closed.
            Err(_) => self.drop_one(),
        }
    }

    fn number(&self) -> usize {
        self.post.as_ref().map_or(0, |post| post.number())
    }

    fn drop_one(&self) {
        self.dropped.set(self.dropped.get() + 1);
    }

    /// Sends a datagram header back to a sender, from a chunk of the region. Lost like any datagram when there is no room: the
    /// next one says more.
    pub fn answer(&self, reply: &Reply, header: datagram::Repr) {
        if let Some(post) = &self.post
            && reply.core != post.number()
        {
            return post.offer(reply.core, Letter::Answer { reply: *reply, header });
        }
        let bytes = header.encode();
        if let Some(socket) = &self.socket {
            // 24 bytes of acknowledgement, no payload.
            let _ = socket.send_to(&bytes, reply.peer());
            return;
        }
        let Ok(mut buf) = self.slab.buf() else { return };
        buf.set_view(limits::XDP_PACKET_HEADROOM + reply.encapsulation.header_len() as u32, bytes.len() as u32);
        buf.as_mut_slice().copy_from_slice(&bytes);
        drop(self.send(&reply.encapsulation, buf));
    }

    /// Whether this core's hub has a port, to send from and to be reached by.
    pub fn has_port(&self) -> bool {
        self.inlet.is_some()
    }

    /// How to reach the packet port of another machine with frames of this one's. Waits a moment for its hardware address.
    ///
    /// # Errors
    /// This core has no port; there is no route out of its interface, or nobody answers at the address.
    pub fn path_to(&self, to: SocketAddr) -> Result<Encapsulation> {
        let inlet = self.inlet.as_ref().ok_or_else(|| {
            let what = format!("core {} owns none of the interface's receive queues", self.number());
            Error::new(ErrorKind::Unavailable, what).remedy("give the interface more queues, or this program fewer --cores")
        })?;
        let path = neighbours::resolve(inlet.link(), to.ip(), neighbours::PATIENCE)?;
        // What comes back must come to the port that is steered here, and both ends have the same one.
        let (src, src_mac, dst_mac) = (SocketAddr::new(path.source, to.port()), Mac(path.source_mac), Mac(path.destination_mac));
        let vlan = inlet.link().vlan.map(|vlan| vlan.id);
        Ok(Encapsulation { src_mac, dst_mac, vlan, src, dst: to, traffic_class: 0, hop_limit: 64 })
    }

    /// Sends a chunk's view as the payload of a frame to `to`. The headers are written into the chunk in front of the view, where there
    /// must be room; nothing is copied. Nobody waits for it: the chunk returns when the NIC is done, or now if the port is closed.
    ///
    /// # Errors
    /// The chunk as it was, when the ring is full: there is room after a poll.
    pub fn send(&self, to: &Encapsulation, mut buf: Buf) -> Result<(), Buf> {
        let Some(inlet) = &self.inlet else { return Ok(()) };
        let (start, len, headers) = (buf.start(), buf.len(), to.header_len());
        buf.set_view(start - headers as u32, len + headers as u32);
        let ident = self.ident.get().wrapping_add(1);
        self.ident.set(ident);
        let frame = buf.as_mut_slice();
        to.emit(len as u16, ident, frame);
        udp::fill_checksum(&mut frame[headers - udp::HEADER_LEN..], to.src.ip(), to.dst.ip());
        inlet.try_post(buf).map_err(|mut refused| {
            refused.set_view(start, len);
            refused
        })
    }
}

fn answering_socket(udp_port: u16) -> Result<std::net::UdpSocket> {
    let open = || {
        let socket = std::net::UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, udp_port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    open().map_err(|error| {
        Error::io(format!("opening UDP port {udp_port}"), &error).remedy("end the other program, or choose another --port")
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::flow::node::tests::node_of;
    use crate::reactor::CoreConfig;

    fn hub() -> Option<Rc<Hub>> {
        let node = node_of(128, CoreConfig::default())?;
        Some(Hub::new(node.core(), node.slab(), None, "by hand", 0, None).unwrap())
    }

    #[test]
    fn a_stream_ends_with_whoever_opened_it() {
        let Some(hub) = hub() else { return };
        let opened = hub.open(7, Pace::Prompt);
        let inbox = opened.inbox();
        let other = hub.open(8, Pace::Answered);
        assert_eq!(hub.pace(), Pace::Prompt);
        drop(opened);
        assert!(inbox.is_closed() && !other.inbox().is_closed());
        assert_eq!((hub.streams.borrow().len(), hub.pace()), (1, Pace::Answered));
        // A number that was closed and drawn again is the second one's.
        other.close();
        let again = hub.open(8, Pace::Free);
        drop(other);
        assert!(!again.inbox().is_closed() && hub.streams.borrow().len() == 1);
    }

    /// As it comes from `10.77.0.1`, in this chunk.
    pub fn datagram(buf: Buf, header: datagram::Repr) -> Datagram {
        let any: SocketAddr = "10.77.0.1:7700".parse().unwrap();
        let mac = crate::wire::ethernet::Mac([2; 6]);
        let encapsulation = Encapsulation { src_mac: mac, dst_mac: mac, vlan: None, src: any, dst: any, traffic_class: 0, hop_limit: 64 };
        Datagram { buf, received_ns: 0, header, reply: Reply { encapsulation, core: 0 } }
    }

    fn hello(hub: &Hub, stream: u32) -> Datagram {
        datagram(hub.slab.buf().unwrap(), datagram::Repr::Hello { stream, total: 0 })
    }

    #[test]
    fn a_stream_that_was_refused_may_begin_again() {
        let Some(hub) = hub() else { return };
        let told = Rc::new(Cell::new(0));
        let (counted, closing) = (told.clone(), hub.clone());
        let refuse_first = move |stream, _| {
            counted.set(counted.get() + 1);
            if counted.get() == 1 {
                closing.close(stream);
            }
        };
        for (dropped, times) in [(1, 1), (1, 2), (1, 2)] {
            hub.deal(hello(&hub, 9), &refuse_first);
            assert_eq!((hub.dropped(), told.get()), (dropped, times));
        }
    }

    #[test]
    fn a_stream_flows_until_it_pauses() {
        let mut flow = Flow::default();
        let mut at = 100_000_000;
        let mut come = |span_us: u64, packets| {
            at += span_us * 1000;
            flow.count(Nanos(at), packets);
            flow.is_flowing
        };
        assert!(!come(0, 16), "the first after a pause");
        assert!(!come(400, 16));
        assert!(come(600, 16), "48 in a millisecond");
        assert!(come(500, 5), "not looked at yet");
        assert!(come(600, 40), "45 in 1.1 ms");
        assert!(come(4_000, 100), "held up, then 25 in a millisecond");
        assert!(!come(50_000, 100), "a pause came before");
        assert!(!come(1_100, 16), "a sender that waits for answers");
    }
}
