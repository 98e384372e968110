//! The loops behind `basin bench`: what the runtime gives on this machine, as figures another program can be set beside.

pub mod block;
pub mod s3;
pub mod store;
