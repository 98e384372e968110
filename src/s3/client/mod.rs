//! The client's side of S3, on a core of the caller's.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`device`] | the RDMA device that a server is reached by |
//! | [`http`] | a connection over which signed requests go one behind the other |
//! | [`native`] | a session of the native mode: requests over RDMA |

pub mod device;
pub mod http;
pub mod native;
