//! The TCP conversation beside the flows: what is asked for, how to reach each other, and what each end found.
//!
//! One message is one JSON object behind its length (a 32-bit count). It carries no payload; it is bounded, versioned, and a
//! message that makes no sense ends the session with an error that says what it was.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::rdma::QpEndpoint;
use crate::device::socket::TcpStream;
use crate::flow::crew::{Either, either};
use crate::flow::{FlowKind, Transport};
use crate::reactor::{Core, Task};

/// The version of the conversation. Both ends must speak the same.
pub const VERSION: u32 = 2;

/// The longest message in bytes: a ring of 64 peers' endpoints is under 32 KiB.
pub const MESSAGE_MAX: u32 = 64 << 10;

/// How long an end may take to answer what needs no payload moved.
const ANSWER_WITHIN: Nanos = Nanos::from_secs(20);

/// How often the server says that it is there, whatever else it does. A client does not: what is not read when a connection is closed
/// would have the kernel reset it, and the server's last word with it.
const PULSE: Nanos = Nanos::from_secs(5);
/// A server that has said nothing for so long is stopped, or its core is stuck: its kernel answers for it, and its connection stays.
const SILENCE: Nanos = Nanos::from_secs(30);

/// What is asked of one flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Which flow.
    pub flow: FlowKind,
    /// Over which transport, where it uses RDMA.
    pub transport: Transport,
    /// Payload bytes of a message, datagram or block; for all-reduce, of the vector.
    pub size_bytes: u32,
    /// Operations to do at most.
    pub count: Option<u64>,
    /// Seconds to go on for at most.
    pub seconds: Option<f64>,
    /// Operations in flight.
    pub depth: u32,
    /// What the content follows from.
    pub seed: u64,
    /// Peers of an all-reduce, the server among them.
    pub peers: u32,
    /// How the client names its own RDMA device: both ends of a pair must agree on the wire.
    pub rdma: String,
    /// How long the client waits for an answer, in milliseconds, before it counts the operation as lost; on transports that may lose.
    pub lost_after_ms: u64,
}

/// An open window, as the peer is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Where it begins.
    pub address: u64,
    /// The key.
    pub rkey: u32,
    /// How long it is.
    pub len: u32,
}

/// What the server counted in a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// What the server checked is right: what is on its disk, for flows that store.
    pub verified: bool,
    /// Why not, if not.
    pub error: Option<String>,
    /// Operations it completed.
    pub operations: u64,
    /// What it copied by CPU.
    pub bytes_copied_user: u64,
    /// What the kernel copied for it, where that can be counted.
    pub bytes_copied_kernel: Option<u64>,
    /// What it wrote to the device.
    pub bytes_written: u64,
    /// Requests it answered from memory.
    pub cache_hits: u64,
    /// Datagrams that never came.
    pub lost: u64,
    /// How its packets were received.
    pub packet_mode: Option<String>,
    /// How its disk was driven.
    pub block_mode: Option<String>,
    /// Its RDMA backend and wire.
    pub rdma_backend: Option<String>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// Tagged from outside: the endpoints carry 128-bit numbers, which inner tags cannot pass through.
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// Client: who speaks.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Server: the answer to Hello.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// The UDP port the packet flows listen on.
        udp_port: u16,
    },
    /// Client: run this flow.
    Begin(Plan),
    /// Server: this flow begins.
    Accept,
    /// Server: this flow cannot run here.
    Decline {
        /// Why, for the SKIPPED row.
        reason: String,
    },
    /// Either: the queue pairs this end has made for the flow.
    Endpoints {
        /// In the order the flow says.
        endpoints: Vec<QpEndpoint>,
    },
    /// Server: everything is set up; start.
    Ready {
        /// The stream to write into datagrams; for an all-reduce, the seed of the ring's content.
        stream: u32,
        /// Windows to write to.
        grants: Vec<Grant>,
        /// The server's rank is 0; this is the client's.
        rank: u32,
    },
    /// Client: connected, start answering. Server: heard.
    Go,
    /// Client: everything it waits for has come, or it gave up.
    Finished {
        /// Operations it saw completed.
        operations: u64,
        /// Why it gave up, if it did.
        error: Option<String>,
    },
    /// Server: what it found. The flow is over.
    Result(Tally),
    /// Server, at any time: it is there.
    Alive,
    /// Either: the session ends because of this.
    Failed {
        /// What happened.
        error: String,
    },
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "hello",
            Message::Welcome { .. } => "welcome",
            Message::Begin(_) => "begin",
            Message::Accept => "accept",
            Message::Decline { .. } => "decline",
            Message::Endpoints { .. } => "endpoints",
            Message::Ready { .. } => "ready",
            Message::Go => "go",
            Message::Finished { .. } => "finished",
            Message::Result(_) => "result",
            Message::Alive => "alive",
            Message::Failed { .. } => "failed",
        }
    }
}

/// The conversation with one peer.
pub struct Channel {
    core: Core,
    stream: TcpStream,
    peer: String,
    /// A message is on its way out.
    is_speaking: Rc<Cell<bool>>,
    pulse: Option<Pulse>,
    /// How long the peer may be silent, if that is bounded.
    silence: Option<Nanos>,
}

/// The task that says, until this is dropped, that this end is there.
struct Pulse(Task<()>);

impl Drop for Pulse {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Channel {
    /// With a server, over a connected stream; `peer` is for messages.
    pub fn to_server(core: &Core, stream: TcpStream, peer: String) -> Channel {
        Channel { core: core.clone(), stream, peer, is_speaking: Rc::default(), pulse: None, silence: Some(SILENCE) }
    }

    /// With a client.
    ///
    /// # Errors
    /// The core has no room for another task.
    pub fn to_client(core: &Core, stream: TcpStream, peer: String) -> Result<Channel> {
        Channel::with_pulse(core, stream, peer, PULSE)
    }

    fn with_pulse(core: &Core, stream: TcpStream, peer: String, every: Nanos) -> Result<Channel> {
        let is_speaking = Rc::new(Cell::new(false));
        let beat = {
            let (core, sent, is_speaking) = (core.clone(), stream.sent(), is_speaking.clone());
            async move {
                let alive = bytes_of(&Message::Alive);
                loop {
                    core.sleep(every).await;
                    if !is_speaking.get() {
                        sent.write_frame_at_once(&alive);
                    }
                }
            }
        };
        let pulse = core.try_spawn(beat).map_err(|_| Error::new(ErrorKind::Unavailable, "this core has no room for a further task"))?;
        Ok(Channel { core: core.clone(), stream, peer, is_speaking, pulse: Some(Pulse(pulse)), silence: None })
    }

    /// The connection alone, to go on on another core.
    ///
    /// # Errors
    /// The peer has said more than it was asked.
    pub fn detach(self) -> Result<std::net::TcpStream> {
        drop(self.pulse);
        self.stream.detach()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send(&mut self, message: &Message) -> Result<()> {
        // Dropped in the middle, it stays in the middle of that message.
        self.is_speaking.set(true);
        let sent = self.stream.write_frame(&bytes_of(message)).await;
        self.is_speaking.set(false);
        sent
    }

    /// Receives a message, however long it takes the peer to have one: a server as long as it says that it is there.
    ///
    /// # Errors
    /// The connection is gone, the message too long or without sense; the peer's own error; or a server has been silent for 30 seconds.
    pub async fn receive(&mut self) -> Result<Message> {
        loop {
            let frame = self.stream.read_frame(MESSAGE_MAX);
            let frame = match self.silence {
                None => frame.await,
                Some(silence) => match self.core.timeout(silence, frame).await {
                    Ok(frame) => frame,
                    Err(_) => {
                        let what = format!("{} has not answered for {} seconds", self.peer, silence.as_secs_f64());
                        let error = Error::new(ErrorKind::Failed, what);
                        return Err(error.remedy("is the process there stopped? Its kernel still holds the connection"));
                    }
                },
            };
            match serde_json::from_slice(&frame?) {
                Ok(Message::Alive) => {}
                Ok(Message::Failed { error }) => return Err(Error::new(ErrorKind::Failed, format!("{} says: {error}", self.peer))),
                Ok(message) => return Ok(message),
                Err(error) => {
                    let what = format!("{} sent a message that makes no sense: {error}", self.peer);
                    return Err(Error::new(ErrorKind::Protocol, what).remedy("run the same version of unified-rdma-test at both ends"));
                }
            }
        }
    }

    /// Receives a message that the peer must send without moving payload first.
    ///
    /// # Errors
    /// As [`Channel::receive`]; or nothing came in 20 seconds.
    pub async fn answer(&mut self) -> Result<Message> {
        let peer = self.peer.clone();
        let core = self.core.clone();
        match core.timeout(ANSWER_WITHIN, self.receive()).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Failed, format!("{peer} has not answered for {} seconds", ANSWER_WITHIN.as_secs_f64()))),
        }
    }

    /// Does a client's `work`, listening to the server, which speaks before the end only when it cannot go on. Then the work may
    /// wait for something that never comes, and is dropped where it is.
    ///
    /// # Errors
    /// The server's own error, or its connection is gone.
    pub async fn heed<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        match either(work, self.receive()).await {
            Either::Left(done) => Ok(done),
            Either::Right(Ok(other)) => Err(self.unexpected(&other, "failed")),
            Either::Right(Err(error)) => Err(error),
        }
    }

    /// The server's answer to Begin: why it declines, if it does.
    ///
    /// # Errors
    /// As [`Channel::answer`].
    pub async fn declined(&mut self) -> Result<Option<String>> {
        match self.answer().await? {
            Message::Accept => Ok(None),
            Message::Decline { reason } => Ok(Some(reason)),
            other => Err(self.unexpected(&other, "accept")),
        }
    }

    /// Whether an error says only that the peer has closed the connection.
    pub fn is_closed(&self, error: &Error) -> bool {
        self.stream.has_ended() && error.kind() != ErrorKind::Protocol
    }

    /// The peer's queue pairs.
    ///
    /// # Errors
    /// As [`Channel::answer`].
    pub async fn endpoints(&mut self) -> Result<Vec<QpEndpoint>> {
        match self.answer().await? {
            Message::Endpoints { endpoints } => Ok(endpoints),
            other => Err(self.unexpected(&other, "endpoints")),
        }
    }

    /// The error for a message that does not belong here.
    pub fn unexpected(&self, got: &Message, wanted: &str) -> Error {
        Error::new(ErrorKind::Protocol, format!("{} sent '{}' where '{wanted}' belongs", self.peer, got.name()))
    }
}

fn bytes_of(message: &Message) -> Vec<u8> {
    // Strings and numbers only.
    serde_json::to_vec(message).expect("a message is always representable")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::Ops;
    use crate::device::rdma::{Hca, HcaEnv, QpConfig, RdmaName};
    use crate::mem::{PageKind, Region, RegionConfig};
    use crate::reactor::CoreConfig;

    #[test]
    fn every_offer_of_the_soft_hca_survives_the_conversation() {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        for name in [RdmaName::Soft, RdmaName::SoftShm, RdmaName::SoftUdp, RdmaName::SoftMemory] {
            let hca = Hca::open(HcaEnv::new(Ops::new(4), region.clone(), Rng::seeded(1)), &name).unwrap();
            let endpoint = hca.create_qp(&QpConfig::default()).unwrap().local();
            let message = Message::Endpoints { endpoints: vec![endpoint] };
            let bytes = serde_json::to_vec(&message).unwrap();
            assert_eq!(serde_json::from_slice::<Message>(&bytes).unwrap(), message, "{name}");
        }
    }

    /// On one core both ends stand still together, and the client's patience ends before the server is heard: such a try shows nothing.
    #[test]
    fn a_server_that_is_there_is_waited_for_and_one_that_is_silent_is_not() {
        assert!((0..5).any(|_| is_waited_for()), "the machine stands still all the time");
    }

    /// Whether the core ran all the time.
    fn is_waited_for() -> bool {
        let core = Core::new(CoreConfig::default()).unwrap();
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [near, far] = [near, listener.accept().unwrap().0].map(|socket| TcpStream::attach(core.uring(), socket).unwrap());
        let mut client = Channel { silence: Some(Nanos::from_secs(1)), ..Channel::to_server(&core, near, "the server".into()) };
        let mut server = Channel::with_pulse(&core, far, "the client".into(), Nanos::from_millis(10)).unwrap();
        let handle = core.clone();
        let main = async move {
            // The server does something else, for longer than a silent one is waited for.
            let (came, latest) = futures::join!(client.receive(), async {
                let (begun, mut before, mut latest) = (handle.now(), handle.now(), Nanos::ZERO);
                while before.since(begun) < Nanos::from_millis(1500) {
                    handle.sleep(Nanos::from_millis(10)).await;
                    latest = latest.max(handle.now().since(before));
                    before = handle.now();
                }
                server.send(&Message::Go).await.unwrap();
                latest
            });
            if came.is_err() && latest > Nanos::from_millis(500) {
                return false;
            }
            assert_eq!(came.unwrap(), Message::Go);
            // As if its process was stopped: its connection stays.
            server.pulse = None;
            let error = client.receive().await.unwrap_err().to_string();
            assert!(error.contains("the server has not answered for 1 seconds"), "{error}");
            // A client says nothing by itself, so that nothing is unread when the connection is closed.
            assert!(handle.timeout(Nanos::from_millis(100), server.receive()).await.is_err() && server.stream.pending().is_empty());
            true
        };
        core.run(main).unwrap()
    }
}
