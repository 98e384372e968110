//! The client's end of `unified-rdma-test`: asks for each flow, takes part in it, and reports.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::kernel_copies::Share;
use crate::device::socket::TcpStream;
use crate::flow::control::{self, Channel, Message, Plan};
use crate::flow::node::Node;
use crate::flow::options::Options;
use crate::flow::post::{Meeting, Post};
use crate::flow::report::Row;
use crate::flow::server::Say;
use crate::flow::setup::{self, Role};
use crate::flow::{FlowKind, Transport, network_to_rdma, network_to_storage, rdma_to_rdma, rdma_to_storage, storage_to_rdma};
use crate::reactor::Core;

/// How long a server that is just starting is waited for.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// Shows how far a flow is: told its name at the beginning, its operations now and then, and nothing at the end.
pub trait Progress {
    /// A flow begins; `count` operations are to be done, if that is known.
    fn begin(&self, flow: FlowKind, count: Option<u64>);
    /// So many are done.
    fn advance(&self, operations: u64);
    /// The flow is over.
    fn end(&self);
}

/// Runs every flow that was asked for against the server and returns their rows: one for each flow, none where this core has no
/// part in it. With several cores each has a connection of its own and its share of the operations, and all begin a flow together.
///
/// # Errors
/// Set-up failed, or the server cannot be reached. A flow that fails has a row that says so.
pub async fn run(
    core: Core,
    options: Options,
    server: IpAddr,
    post: Option<Rc<Post>>,
    meeting: &Meeting,
    say: Say,
    progress: Rc<dyn Progress>,
) -> Result<Vec<Option<Row>>> {
    let node = setup::open(&core, &options, Role::Client(server), post.as_ref(), |line| say(line)).await?;
    setup::start(&node, &options, Role::Client(server), &say, |_| ());
    let address = SocketAddr::new(server, options.port);
    let (leads, cores) = (node.place().core() == 0, node.place().cores());
    let mut channel = None;
    let mut rows = Vec::new();
    meeting.turn(&core, node.place().core()).await;
    for (number, &flow) in options.flows.iter().enumerate() {
        let (plan, note) = options.plan(flow, setup::seed(&node));
        let (plan, shared) = share(plan, &node);
        for note in note.into_iter().chain(shared).filter(|_| leads) {
            say(note);
        }
        // The first connection must succeed. Later ones replace one that a failed flow has spoiled.
        let open = match channel.take() {
            Some(open) => Ok(open),
            None => connect(&core, address, &say).await,
        };
        if number == 0
            && let Err(error) = open
        {
            return Err(error);
        }
        if cores > 1 {
            meeting.wait(&core, cores, number + 1).await;
        }
        rows.push(match (plan, open) {
            (None, open) => {
                channel = open.ok();
                None
            }
            (Some(_), Err(error)) => Some(Row::failed(flow, options.transport, error.to_string())),
            (Some(plan), Ok(mut open)) => {
                let ran = watched(&node, &plan, &progress, run_flow(&node, &mut open, &plan, address)).await;
                if ran.as_ref().map_or(true, |row| row.error.is_some()) {
                    // Chunks that were shared come home with a later turn of the core.
                    core.sleep(Nanos::from_millis(1)).await;
                    say(format!("{flow} failed; {}", node.slab().census()));
                }
                Some(match ran {
                    Ok(row) => {
                        channel = Some(open);
                        row
                    }
                    Err(error) if error.kind() == ErrorKind::Unavailable => {
                        // The server waits for an answer this end cannot give: a new conversation for the next flow.
                        Row::skipped(flow, options.transport, error.to_string())
                    }
                    Err(error) => Row::failed(flow, options.transport, error.to_string()),
                })
            }
        });
    }
    if cores > 1 {
        // Packets of a core's queue pairs may come in on another core's queue: none leaves its queue while one is at work.
        meeting.wait(&core, cores, options.flows.len() + 1).await;
    }
    Ok(rows)
}

/// This core's share of a flow, if it has one; and what the user is to know of it.
fn share(plan: Plan, node: &Node) -> (Option<Plan>, Option<String>) {
    let place = node.place();
    let (core, cores) = (place.core(), place.cores());
    let takers = match plan.flow {
        // One ring is one conversation.
        FlowKind::RdmaToRdma => 1,
        // What comes back comes in on the queue the NIC chose, which knows nothing of the client's cores.
        _ if plan.transport == Transport::Raw => 1,
        flow if flow.uses_rdma() => place.rdma_cores,
        _ => cores,
    };
    // Nobody begins what it has no operation for.
    let takers = plan.count.map_or(takers, |count| takers.min(count.try_into().unwrap_or(usize::MAX)));
    let note = (takers < cores).then(|| match takers {
        1 => format!("{}: on core 0 only", plan.flow),
        takers => format!("{}: on {takers} of {cores} cores", plan.flow),
    });
    let of = |count: u64| count / takers as u64 + u64::from((core as u64) < count % takers as u64);
    let count = plan.count.map(of);
    ((core < takers).then_some(Plan { count, ..plan }), note)
}

/// Runs a flow, and shows meanwhile how far it is.
async fn watched(node: &Node, plan: &Plan, progress: &Rc<dyn Progress>, flow: impl Future<Output = Result<Row>>) -> Result<Row> {
    progress.begin(plan.flow, plan.count);
    node.reset_operations();
    let ticker = {
        let (node, progress) = (node.clone(), progress.clone());
        node.core().clone().spawn(async move {
            loop {
                node.core().sleep(Nanos::from_millis(100)).await;
                progress.advance(node.operations());
            }
        })
    };
    let ran = flow.await;
    ticker.abort();
    progress.end();
    ran
}

async fn connect(core: &Core, address: SocketAddr, say: &Say) -> Result<Channel> {
    let begun = core.now();
    let mut told = false;
    let stream = loop {
        match core.timeout(PATIENCE, TcpStream::connect(core.uring(), address)).await {
            Ok(Ok(stream)) => break stream,
            Ok(Err(error)) if error.errno() == Some(libc::ECONNREFUSED) && core.now().since(begun) < PATIENCE => {
                if !told {
                    say(format!("waiting for a server on {address}"));
                    told = true;
                }
                core.sleep(Nanos::from_millis(50)).await;
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let error = Error::new(ErrorKind::Failed, format!("{address} does not answer"));
                return Err(error.remedy("check the address and the route, and start the server first"));
            }
        }
    };
    let mut channel = Channel::to_server(core, stream, address.to_string());
    channel.send(&Message::Hello { version: control::VERSION }).await?;
    match channel.answer().await? {
        Message::Welcome { version: control::VERSION, .. } => Ok(channel),
        Message::Welcome { version, .. } => {
            let what = format!("the server speaks version {version} of the conversation and this client {}", control::VERSION);
            Err(Error::new(ErrorKind::Protocol, what).remedy("run the same version at both ends"))
        }
        other => Err(channel.unexpected(&other, "welcome")),
    }
}

async fn run_flow(node: &Node, channel: &mut Channel, plan: &Plan, server: SocketAddr) -> Result<Row> {
    if plan.transport == Transport::Raw && node.place().cores() > 1 {
        let reason = "what answers frames comes in on any queue, and so on any core (remedy: a client with one of --cores)";
        return Ok(Row::skipped(plan.flow, plan.transport, reason));
    }
    if let Err(error) = plan.carried_by(node) {
        return Ok(Row::skipped(plan.flow, plan.transport, format!("{error:#}")));
    }
    channel.send(&Message::Begin(plan.clone())).await?;
    if let Some(reason) = channel.declined().await? {
        return Ok(Row::skipped(plan.flow, plan.transport, reason));
    }
    let copies = node.kernel_copies();
    let mut row = match plan.flow {
        FlowKind::NetworkToStorage => network_to_storage::request(node, channel, plan, server).await,
        FlowKind::RdmaToStorage => rdma_to_storage::request(node, channel, plan, server).await,
        FlowKind::NetworkToRdma => network_to_rdma::request(node, channel, plan, server).await,
        FlowKind::StorageToRdma => storage_to_rdma::request(node, channel, plan, server).await,
        FlowKind::RdmaToRdma => rdma_to_rdma::request(node, channel, plan, server).await,
    }?;
    // Unknown at one end is unknown.
    row.bytes_copied_kernel = row.bytes_copied_kernel_server.zip(copies.and_then(Share::end)).map(|(theirs, ours)| theirs + ours);
    Ok(row)
}
