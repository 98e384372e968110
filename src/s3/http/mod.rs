//! The HTTP front: connections on the core's ring, requests one behind the other on each, bodies received into chunks and sent from them.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`server`] | who accepts |
//! | [`connection`] | the requests of one connection |
//! | [`account`] | what is counted and logged of a request |
//! | [`stream`] | the bytes of one |
//! | [`tls`] | those of one behind TLS |

pub mod account;
pub mod connection;
pub mod server;
pub mod stream;
pub mod tls;
