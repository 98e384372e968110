//! Who accepts connections.

use std::rc::Rc;
use std::sync::Arc;

use super::connection::{Shared, serve};
use super::stream::Stream;
use super::tls::Tls;
use crate::base::{Nanos, Result};
use crate::device::socket::TcpListener;
use crate::mem::Ledger;
use crate::s3::log::Few;
use crate::s3::metrics::counters::Counters;

/// How long to wait when a connection cannot be accepted: descriptors or tasks are used up.
const PAUSE: Nanos = Nanos::from_millis(50);

/// The connections of a core.
#[derive(Clone)]
pub struct Connections(Arc<Counters>);

impl Connections {
    /// None yet.
    pub fn new(counters: Arc<Counters>) -> Connections {
        Connections(counters)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.connections.get() as usize
    }

    fn begin(&self) -> Open {
        self.0.connections.add(1);
        self.0.accepted.add(1);
        Open(self.clone())
    }
}

struct Open(Connections);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.connections.sub(1);
    }
}

/// Where connections come from.
pub struct Door {
    /// Who accepts them.
    pub listener: TcpListener,
    /// What they are behind, if they are behind anything.
    pub tls: Option<Rc<Tls>>,
}

/// Accepts connections and answers them, at most `most` at a time, until the core is asked to stop.
///
/// # Errors
/// The listener cannot be used any more.
pub async fn listen(shared: Rc<Shared>, door: &Door, ledger: &Ledger, connections: &Connections, most: usize) -> Result<()> {
    let core = shared.service.core().clone();
    let Door { listener, tls } = door;
    let slab = shared.service.store().slab();
    // It is tried again many times a second.
    let lines = Few::new(1);
    let tell = |why: std::fmt::Arguments<'_>| {
        if let Some(left_out) = lines.take(core.now()) {
            tracing::warn!(left_out, "{why}");
        }
    };
    loop {
        if connections.count() >= most {
            connections.0.held.add(1);
            core.sleep(PAUSE).await;
            continue;
        }
        let tcp = match listener.accept().await {
            Ok(tcp) => tcp,
            Err(error) => {
                connections.0.turned_away.add(1);
                tell(format_args!("{error:#}"));
                core.sleep(PAUSE).await;
                continue;
            }
        };
        let open = connections.begin();
        let stream = match tls {
            None => Stream::plain(&core, ledger, slab, tcp),
            Some(tls) => match Stream::tls(&core, ledger, slab, tls, tcp) {
                Ok(stream) => stream,
                Err(error) => {
                    connections.0.turned_away.add(1);
                    tell(format_args!("a connection was closed: {error:#}"));
                    continue;
                }
            },
        };
        let served = serve(shared.clone(), stream);
        let task = async move {
            served.await;
            drop(open);
        };
        if core.try_spawn(task).is_err() {
            connections.0.turned_away.add(1);
            tell(format_args!("a connection was closed: the core has no task for it"));
            core.sleep(PAUSE).await;
        }
    }
}
