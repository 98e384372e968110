//! The server's end of `unified-rdma-test`: takes clients, runs what they ask for, and outlives them.

use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, limits};
use crate::device::socket::TcpListener;
use crate::flow::control::{self, Channel, Message, Plan, Tally};
use crate::flow::crew::{Either, either};
use crate::flow::node::Node;
use crate::flow::options::Options;
use crate::flow::setup::{self, Role};
use crate::flow::{FlowKind, network_to_rdma, network_to_storage, rdma_to_rdma, rdma_to_storage, storage_to_rdma};
use crate::reactor::Core;

/// Where lines for the user go.
pub type Say = Rc<dyn Fn(String)>;

/// Clients served at once.
const SESSIONS_MAX: usize = 256;

/// Serves until a signal comes, or until the first client has gone with `--once`.
///
/// # Errors
/// Set-up failed. What happens to a single client is said and is not an error of the server.
pub async fn serve(core: Core, options: Options, say: Say) -> Result<()> {
    let node = setup::open(&core, &options, Role::Server, |line| say(line)).await?;
    setup::start_hub(&node);
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, options.port));
    let listener = TcpListener::bind(core.uring(), any)?;
    say(format!("ready    on port {} (TCP for the conversation, UDP for packets); end with Ctrl-C", options.port));
    let mut sessions = Vec::new();
    loop {
        let stream = match either(listener.accept(), core.stopping()).await {
            Either::Right(()) => break,
            Either::Left(Ok(stream)) => stream,
            Either::Left(Err(error)) => {
                say(format!("a client could not be accepted: {error:#}"));
                core.sleep(Nanos::from_millis(100)).await;
                continue;
            }
        };
        sessions.retain(|session: &crate::reactor::Task<()>| !session.is_done());
        if sessions.len() >= SESSIONS_MAX {
            say(format!("a client was turned away: {SESSIONS_MAX} are served already"));
            continue;
        }
        let peer = stream.peer_addr();
        let (node, say, once) = (node.clone(), say.clone(), options.once);
        let channel = Channel::new(&core, stream, peer.to_string());
        let udp_port = options.port;
        let session = core.spawn(async move {
            let ended = session(&node, channel, udp_port, &say).await;
            // Chunks that were shared come home with a later turn of the core.
            node.core().sleep(Nanos::from_millis(1)).await;
            match ended {
                Ok(()) => say(format!("{peer} is done; {}", node.slab().census())),
                Err(error) => say(format!("{peer}: {error:#}; {}", node.slab().census())),
            }
        });
        if once {
            let _ = either(session, core.stopping()).await;
            break;
        }
        sessions.push(session);
    }
    say("stopping".into());
    Ok(())
}

async fn session(node: &Node, mut channel: Channel, udp_port: u16, say: &Say) -> Result<()> {
    match channel.answer().await? {
        Message::Hello { version: control::VERSION } => {}
        Message::Hello { version } => {
            let error = format!("version {version} of the conversation; this server speaks {}", control::VERSION);
            channel.send(&Message::Failed { error: error.clone() }).await?;
            return Err(Error::new(ErrorKind::Protocol, error));
        }
        other => return Err(channel.unexpected(&other, "hello")),
    }
    channel.send(&Message::Welcome { version: control::VERSION, udp_port }).await?;
    loop {
        let plan = match channel.receive().await {
            Ok(Message::Begin(plan)) => plan,
            Ok(other) => return Err(channel.unexpected(&other, "begin")),
            // Between flows a closed connection is the end.
            Err(error) if channel.is_closed(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(reason) = check(&plan).err().or_else(|| node.obstacle(plan.flow)).or_else(|| lacks(node, &plan)) {
            channel.send(&Message::Decline { reason }).await?;
            continue;
        }
        say(format!("{}: {} {}, {} bytes, depth {}", channel.peer(), plan.flow, plan.transport, plan.size_bytes, plan.depth));
        channel.send(&Message::Accept).await?;
        match serve_flow(node, &mut channel, &plan).await {
            Ok(tally) => channel.send(&Message::Result(tally)).await?,
            Err(error) => {
                // The client may be gone; then the first error is the better one to tell.
                let _ = channel.send(&Message::Failed { error: error.to_string() }).await;
                return Err(error);
            }
        }
    }
}

async fn serve_flow(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    match plan.flow {
        FlowKind::NetworkToStorage => network_to_storage::serve(node, channel, plan).await,
        FlowKind::RdmaToStorage => rdma_to_storage::serve(node, channel, plan).await,
        FlowKind::NetworkToRdma => network_to_rdma::serve(node, channel, plan).await,
        FlowKind::StorageToRdma => storage_to_rdma::serve(node, channel, plan).await,
        FlowKind::RdmaToRdma => rdma_to_rdma::serve(node, channel, plan).await,
    }
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

/// What the device lacks for the plan's transport.
fn lacks(node: &Node, plan: &Plan) -> Option<String> {
    let caps = plan.flow.uses_rdma().then(|| node.hca().ok().map(|hca| hca.caps())).flatten()?;
    let speaks = caps.transports.contains(&plan.transport.into());
    (!speaks).then(|| format!("{} does not speak {}; it speaks rc", caps.name, plan.transport))
}
