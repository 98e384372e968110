//! The client's end of `unified-rdma-test`: asks for each flow, takes part in it, and reports.

use std::net::{IpAddr, SocketAddr};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::socket::TcpStream;
use crate::flow::control::{self, Channel, Message, Plan};
use crate::flow::node::Node;
use crate::flow::options::Options;
use crate::flow::report::Row;
use crate::flow::server::Say;
use crate::flow::setup::{self, Role};
use crate::flow::{FlowKind, network_to_rdma, network_to_storage, rdma_to_rdma, rdma_to_storage, storage_to_rdma};
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

/// Runs every flow that was asked for against the server and returns their rows.
///
/// # Errors
/// Set-up failed, or the server cannot be reached. A flow that fails has a row that says so.
pub async fn run(core: Core, options: Options, server: IpAddr, say: Say, progress: std::rc::Rc<dyn Progress>) -> Result<Vec<Row>> {
    let node = setup::open(&core, &options, Role::Client(server), |line| say(line)).await?;
    let address = SocketAddr::new(server, options.port);
    let mut channel = None;
    let mut rows = Vec::new();
    for &flow in &options.flows {
        let (plan, note) = options.plan(flow, setup::seed(&node));
        if let Some(note) = note {
            say(note);
        }
        // The first connection must succeed. Later ones replace one that a failed flow has spoiled.
        let mut open = match channel.take() {
            Some(open) => open,
            None => match connect(&core, address, &say).await {
                Ok(open) => open,
                Err(error) if rows.is_empty() => return Err(error),
                Err(error) => {
                    rows.push(Row::failed(flow, options.transport, error.to_string()));
                    continue;
                }
            },
        };
        progress.begin(flow, plan.count);
        let ticker = {
            let (node, core, progress) = (node.clone(), core.clone(), progress.clone());
            core.clone().spawn(async move {
                loop {
                    core.sleep(Nanos::from_millis(100)).await;
                    progress.advance(node.operations());
                }
            })
        };
        node.reset_operations();
        let ran = run_flow(&node, &mut open, &plan, address).await;
        ticker.abort();
        progress.end();
        rows.push(match ran {
            Ok(row) => {
                channel = Some(open);
                row
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                // The server waits for an answer this end cannot give: a new conversation for the next flow.
                Row::skipped(flow, options.transport, error.to_string())
            }
            Err(error) => Row::failed(flow, options.transport, error.to_string()),
        });
    }
    Ok(rows)
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
    let mut channel = Channel::new(core, stream, address.to_string());
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
    if plan.flow.uses_rdma() {
        node.hca()?;
    }
    channel.send(&Message::Begin(plan.clone())).await?;
    if let Some(reason) = channel.declined().await? {
        return Ok(Row::skipped(plan.flow, plan.transport, reason));
    }
    match plan.flow {
        FlowKind::NetworkToStorage => network_to_storage::request(node, channel, plan, server).await,
        FlowKind::RdmaToStorage => rdma_to_storage::request(node, channel, plan, server).await,
        FlowKind::NetworkToRdma => network_to_rdma::request(node, channel, plan, server).await,
        FlowKind::StorageToRdma => storage_to_rdma::request(node, channel, plan, server).await,
        FlowKind::RdmaToRdma => rdma_to_rdma::request(node, channel, plan, server).await,
    }
}
