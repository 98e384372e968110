//! S3 on a store: requests over HTTP become operations on objects, whose bytes go between sockets and the disk by way of chunks.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`http`] | the HTTP front: connections on the core's ring |
//! | [`rdma`] | the RDMA front: requests whose bytes are in a client's memory, or that are SENDs |
//! | [`service`] | the operations |
//! | [`request`], [`route`] | what a request asks for |
//! | [`body`] | the body of one, received and verified |
//! | [`answer`], [`error`] | what it is answered with |
//! | [`auth`] | who sent it |
//! | [`encryption`] | of objects, under keys of the server or of clients |
//! | [`session`] | credentials for a directory bucket |
//! | [`access`] | who may do what |
//! | [`xml`] | documents |
//! | [`meta`], [`labels`], [`bucket`], [`upload`] | what the store keeps beside bytes |
//! | [`client`] | the other end |
//! | [`checksum`], [`hasher`] | checksums, and MD5 of all bodies at one time |
//! | [`lifecycle`] | what ends by itself |
//! | [`lock`] | what is held against that |
//! | [`serve`], [`config`] | a server of it all |
//! | [`fuzz`] | what fuzzers are given |
//! | [`serve`] | a server of it all |
//! | [`config`], [`settings`], [`values`] | what it is configured with |
//! | [`metrics`], [`log`] | what it tells those who watch it |
//!
//! A request goes: head ([`http::connection`]), [`request`], who sent it ([`auth`]), which operation ([`route`]), whether that may be done
//! ([`access`]), and then the operation ([`service`]), which takes the body if it wants it and gives an [`answer`].

pub mod access;
pub mod answer;
pub mod auth;
pub mod body;
pub mod bucket;
pub mod checksum;
pub mod client;
pub mod config;
pub mod encryption;
pub mod error;
mod fields;
pub mod fuzz;
mod gather;
pub mod hasher;
pub mod http;
pub mod labels;
pub mod lifecycle;
mod listed;
pub mod lock;
pub mod log;
pub mod meta;
pub mod metrics;
mod octets;
pub mod patience;
pub mod rdma;
pub mod request;
pub mod route;
pub mod serve;
pub mod service;
pub mod session;
pub mod settings;
mod time;
pub mod upload;
pub mod values;
pub mod xml;
