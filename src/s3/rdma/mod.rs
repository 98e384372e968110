//! S3 over RDMA: objects between the store and a client's memory. docs/S3-RDMA.md is the protocol.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`device`] | the RDMA devices of the cores |
//! | [`strays`] | packets that come in on another core's queue |
//! | [`session`] | queue pairs that clients have connected |
//! | [`bounce`] | memory of its own for what is moved, where the store's is not to be the device's |
//! | [`connect`] | how they do, by a request of HTTP |
//! | [`once`] | that such a request is taken once |
//! | [`hipobj`] | one object by a queue pair of its own |
//! | [`errand`] | what one core does for another of all this |
//! | [`token`] | requests of HTTP whose bodies are in a client's memory |
//! | [`native`] | requests that are SENDs |
//! | [`open`] | those that have no answer yet |
//! | [`fields`] | fields of their answers, as lines |
//! | [`answers`] | answers of a session on their way |
//! | [`outbox`] | frames on their way into messages |
//! | [`refused`] | what is told of clients that do what they may not |
//! | [`known`] | answers to them that need not be found again |
//! | [`alike`] | puts like one before, on which nothing need be decided again |
//! | [`places`] | what both are kept in |
//! | [`windows`] | what a client has opened for one request: one window, or a list of them |
//! | [`transfer`] | what both move: READs of a client's memory into runs that are stored, WRITEs into it from where an object was read to |
//!
//! The server does all one-sided I/O, and grants nothing: there is no memory of its own that a client could reach. `hipobj` alone is
//! otherwise, since its clients WRITE what they put: a window for one object and one queue pair.

pub mod alike;
pub mod answers;
mod bounce;
pub mod connect;
pub mod device;
pub mod errand;
pub mod farewell;
mod fields;
pub mod hipobj;
pub mod known;
pub mod native;
pub mod once;
pub mod open;
pub mod outbox;
mod places;
pub mod refused;
mod reply;
pub mod session;
mod strays;
pub mod token;
pub mod transfer;
pub mod windows;

pub use session::{Rdma, Session};
