//! Who accepts connections.

use std::cell::Cell;
use std::rc::Rc;

use super::connection::{Shared, serve};
use super::stream::Stream;
use crate::base::{Nanos, Result};
use crate::device::socket::TcpListener;
use crate::mem::Ledger;

/// How long to wait when a connection cannot be accepted: descriptors or tasks are used up.
const PAUSE: Nanos = Nanos::from_millis(50);

/// Counts the connections of a core.
#[derive(Clone, Default)]
pub struct Connections(Rc<Cell<usize>>);

impl Connections {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.get()
    }

    fn begin(&self) -> Open {
        self.0.update(|count| count + 1);
        Open(self.clone())
    }
}

struct Open(Connections);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.update(|count| count - 1);
    }
}

/// Accepts connections and answers them, at most `most` at a time, until the core is asked to stop.
///
/// # Errors
/// The listener cannot be used any more.
pub async fn listen(shared: Rc<Shared>, listener: &TcpListener, ledger: &Ledger, connections: &Connections, most: usize) -> Result<()> {
    let core = shared.service.core().clone();
    loop {
        if connections.count() >= most {
            core.sleep(PAUSE).await;
            continue;
        }
        let tcp = match listener.accept().await {
            Ok(tcp) => tcp,
            Err(error) => {
                tracing::warn!("{error:#}");
                core.sleep(PAUSE).await;
                continue;
            }
        };
        let (open, stream) = (connections.begin(), Stream::plain(&core, ledger, tcp));
        let served = serve(shared.clone(), stream);
        let task = async move {
            served.await;
            drop(open);
        };
        if core.try_spawn(task).is_err() {
            tracing::warn!("a connection was closed: the core has no task for it");
        }
    }
}
