//! The client's side of S3, on a core of the caller's.
//!
//! | file | what it is |
//! | --- | --- |
//! | `answered` | an answer of the native mode, compared with its checksum |
//! | [`device`] | the RDMA device that a server is reached by |
//! | [`http`] | a connection over which signed requests go one behind the other |
//! | [`map`] | which core of a server has which names |
//! | [`native`] | a session of the native mode: requests over RDMA |

mod answered;
pub mod device;
pub mod http;
pub mod map;
pub mod native;
