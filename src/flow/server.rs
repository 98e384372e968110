//! The server's end of `unified-rdma-test`: takes clients, runs what they ask for, and outlives them.

use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, limits};
use crate::device::Signal;
use crate::device::kernel_copies::Share;
use crate::device::socket::{TcpListener, TcpStream};
use crate::flow::control::{self, Channel, Message, Plan, Tally};
use crate::flow::crew::{Either, either};
use crate::flow::node::Node;
use crate::flow::options::Options;
use crate::flow::post::{Client, Letter, Post, Seat};
use crate::flow::setup::{self, Role};
use crate::flow::{FlowKind, network_to_rdma, network_to_storage, rdma_to_rdma, rdma_to_storage, storage_to_rdma};
use crate::reactor::Core;

/// Where lines for the user go.
pub type Say = Rc<dyn Fn(String)>;

/// Clients served at once.
const SESSIONS_MAX: usize = 256;

/// Serves until a signal comes, or with `--once` until no client is left after the first. With several cores, core 0 accepts the
/// clients and deals them; the others serve what is dealt to them until the process is to end.
///
/// # Errors
/// Set-up failed. What happens to a single client is said and is not an error of the server.
pub async fn serve(core: Core, options: Options, post: Option<Rc<Post>>, say: Say) -> Result<()> {
    let node = setup::open(&core, &options, Role::Server, post.as_ref(), |line| say(line)).await?;
    let sessions = Rc::new(Sessions {
        node: node.clone(),
        udp_port: options.port,
        say: say.clone(),
        taken: Arc::default(),
        gone: Signal::new(core.ops()),
    });
    let dealt = sessions.clone();
    setup::start(&node, &options, Role::Server, &say, move |client| match client {
        Some(client) => dealt.take_over(client),
        None => dealt.gone.raise(),
    });
    if node.place().core() > 0 {
        core.stopping().await;
        return Ok(());
    }
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, options.port));
    let listener = TcpListener::bind(core.uring(), any)?;
    say(format!("ready    on port {} (TCP for the conversation, UDP for packets); end with Ctrl-C", options.port));
    sessions.deal(&listener, options.once).await;
    say("stopping".into());
    Ok(())
}

/// The clients of one core.
struct Sessions {
    node: Node,
    udp_port: u16,
    say: Say,
    /// On core 0: how many are served, on all cores.
    taken: Arc<AtomicUsize>,
    /// On core 0: raised when one has gone.
    gone: Signal,
}

/// How a session ended.
enum Ended {
    /// The client has closed the connection.
    Gone,
    /// The client wants something that core 0 alone can do.
    Moves(Plan),
}

impl Sessions {
    /// Accepts clients and deals them to the cores in turn.
    async fn deal(self: &Rc<Sessions>, listener: &TcpListener, once: bool) {
        let core = self.node.core();
        let takers = self.node.place().rdma_cores;
        let mut next = 0;
        loop {
            let idle = async {
                while !(once && next > 0 && self.taken.load(Ordering::Relaxed) == 0) {
                    self.gone.wait().await;
                }
            };
            let stream = match either(listener.accept(), either(idle, core.stopping())).await {
                Either::Right(_) => return,
                Either::Left(Ok(stream)) => stream,
                Either::Left(Err(error)) => {
                    (self.say)(format!("a client could not be accepted: {error:#}"));
                    core.sleep(Nanos::from_millis(100)).await;
                    continue;
                }
            };
            if self.taken.load(Ordering::Relaxed) >= SESSIONS_MAX {
                (self.say)(format!("a client was turned away: {SESSIONS_MAX} are served already"));
                continue;
            }
            let seat = Seat::take(&self.taken);
            match (&self.node.place().post, next % takers) {
                (Some(post), to) if to > 0 => match stream.detach() {
                    Ok(socket) => post.send(to, Letter::Client(Box::new(Client { socket, plan: None, seat }))),
                    Err(error) => (self.say)(error.to_string()),
                },
                _ => self.begin(stream, None, seat),
            }
            next += 1;
        }
    }

    /// A client from another core.
    fn take_over(self: &Rc<Sessions>, client: Client) {
        let Client { socket, plan, seat } = client;
        match TcpStream::attach(self.node.core().uring(), socket) {
            Ok(stream) => self.begin(stream, plan, seat),
            Err(error) => {
                (self.say)(format!("a client has gone before it was served: {error:#}"));
                self.leave(seat);
            }
        }
    }

    /// Begins to serve a client; `plan` is what it has asked for already.
    fn begin(self: &Rc<Sessions>, stream: TcpStream, plan: Option<Plan>, seat: Seat) {
        let sessions = self.clone();
        let session = async move { sessions.serve(stream, plan, seat).await };
        // At a peer's wish: a full task table turns the client away.
        if let Err(refused) = self.node.core().try_spawn(session) {
            // With its seat.
            drop(refused);
            (self.say)("a client was turned away: this core has no room for a further task".into());
            self.tell_gone();
        }
    }

    async fn serve(&self, stream: TcpStream, plan: Option<Plan>, seat: Seat) {
        let (node, place) = (&self.node, self.node.place());
        let peer = stream.peer_addr();
        let mut channel = match Channel::to_client(node.core(), stream, peer.to_string()) {
            Ok(channel) => channel,
            Err(error) => {
                (self.say)(format!("a client was turned away: {error}"));
                return self.leave(seat);
            }
        };
        let ended = session(node, &mut channel, self.udp_port, plan, &self.say).await;
        // Chunks that were shared come home with a later turn of the core.
        node.core().sleep(Nanos::from_millis(1)).await;
        let on = if place.cores() > 1 { format!(" on core {}", place.core()) } else { String::new() };
        let line = match (ended, &place.post) {
            (Ok(Ended::Moves(plan)), Some(post)) => {
                let flow = plan.flow;
                match channel.detach() {
                    Ok(socket) => {
                        (self.say)(format!("{peer} moves from core {} to core 0 for {flow}; {}", place.core(), node.slab().census()));
                        return post.send(0, Letter::Client(Box::new(Client { socket, plan: Some(plan), seat })));
                    }
                    Err(error) => format!("{peer}{on}: {error:#}"),
                }
            }
            (Ok(_), _) => format!("{peer} is done{on}"),
            (Err(error), _) => format!("{peer}{on}: {error:#}"),
        };
        (self.say)(format!("{line}; {}", node.slab().census()));
        self.leave(seat);
    }

    /// A client has gone.
    fn leave(&self, seat: Seat) {
        drop(seat);
        self.tell_gone();
    }

    /// Core 0 is told that a seat is free, and looks whether it was the last.
    fn tell_gone(&self) {
        match &self.node.place().post {
            Some(post) if post.number() > 0 => post.send(0, Letter::Gone),
            _ => self.gone.raise(),
        }
    }
}

async fn session(node: &Node, channel: &mut Channel, udp_port: u16, mut asked: Option<Plan>, say: &Say) -> Result<Ended> {
    if asked.is_none() {
        greet(channel, udp_port).await?;
    }
    loop {
        let plan = match asked.take() {
            Some(plan) => plan,
            None => match channel.receive().await {
                Ok(Message::Begin(plan)) => plan,
                Ok(other) => return Err(channel.unexpected(&other, "begin")),
                // Between flows a closed connection is the end.
                Err(error) if channel.is_closed(&error) => return Ok(Ended::Gone),
                Err(error) => return Err(error),
            },
        };
        if let Some(reason) = check(&plan).err().or_else(|| node.obstacle(&plan)) {
            channel.send(&Message::Decline { reason }).await?;
            continue;
        }
        if plan.flow == FlowKind::RdmaToRdma && node.place().core() > 0 {
            // The ring that gathers is on core 0.
            return Ok(Ended::Moves(plan));
        }
        say(format!("{}: {} {}, {} bytes, depth {}", channel.peer(), plan.flow, plan.transport, plan.size_bytes, plan.depth));
        channel.send(&Message::Accept).await?;
        match serve_flow(node, channel, &plan).await {
            Ok(tally) => channel.send(&Message::Result(tally)).await?,
            Err(error) => {
                // The client may be gone; then the first error is the better one to tell.
                let _ = channel.send(&Message::Failed { error: error.to_string() }).await;
                return Err(error);
            }
        }
    }
}

/// Who speaks, and in which version.
async fn greet(channel: &mut Channel, udp_port: u16) -> Result<()> {
    match channel.answer().await? {
        Message::Hello { version: control::VERSION } => {}
        Message::Hello { version } => {
            let error = format!("version {version} of the conversation; this server speaks {}", control::VERSION);
            channel.send(&Message::Failed { error: error.clone() }).await?;
            return Err(Error::new(ErrorKind::Protocol, error));
        }
        other => return Err(channel.unexpected(&other, "hello")),
    }
    channel.send(&Message::Welcome { version: control::VERSION, udp_port }).await
}

async fn serve_flow(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    let copies = node.kernel_copies();
    let tally = match plan.flow {
        FlowKind::NetworkToStorage => network_to_storage::serve(node, channel, plan).await,
        FlowKind::RdmaToStorage => rdma_to_storage::serve(node, channel, plan).await,
        FlowKind::NetworkToRdma => network_to_rdma::serve(node, channel, plan).await,
        FlowKind::StorageToRdma => storage_to_rdma::serve(node, channel, plan).await,
        FlowKind::RdmaToRdma => rdma_to_rdma::serve(node, channel, plan).await,
    };
    Ok(Tally { bytes_copied_kernel: copies.and_then(Share::end), ..tally? })
}

/// What a client may ask for at all.
fn check(plan: &Plan) -> Result<(), String> {
    if !(8..=limits::IO_MAX_BYTES).contains(&plan.size_bytes) {
        return Err(format!("messages of {} bytes: 8 to {} are possible", plan.size_bytes, limits::IO_MAX_BYTES));
    }
    if !(1..=256).contains(&plan.depth) {
        return Err(format!("a depth of {}: 1 to 256 are possible", plan.depth));
    }
    if plan.count.is_none() && plan.seconds.is_none() {
        return Err("neither a count nor a time".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::node::tests::node_of;
    use crate::reactor::CoreConfig;

    /// With `--once` the server waits for this word.
    #[test]
    fn a_client_that_finds_no_room_is_gone() {
        let Some(node) = node_of(128, CoreConfig { tasks: 1, ..CoreConfig::default() }) else { return };
        let core = node.core().clone();
        let (taken, gone) = (Arc::<AtomicUsize>::default(), Signal::new(core.ops()));
        let sessions = Rc::new(Sessions { node, udp_port: 0, say: Rc::new(|_| ()), taken: taken.clone(), gone });
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let handle = core.clone();
        let main = async move {
            let seat = Seat::take(&sessions.taken);
            // The only task is this one.
            sessions.take_over(Client { socket, plan: None, seat });
            handle.timeout(Nanos::from_secs(30), sessions.gone.wait()).await
        };
        assert!(core.run(main).unwrap().is_ok(), "nobody was told");
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }
}
