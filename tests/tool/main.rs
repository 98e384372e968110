//! The program itself, both ends of it, in network namespaces made for each test: what it shows, what it stores, and what
//! becomes of it when something dies, stops, fills up or is named wrongly. Needs root; says SKIPPED without. Two at a time.
#![cfg(feature = "xdp")]

#[path = "../loop_device/mod.rs"]
mod loop_device;
#[path = "../packet_net/mod.rs"]
mod packet_net;

mod cores;
mod doctor;
mod eio;
mod faults;
mod huge_pages;
mod links;
mod refusals;
mod runs;
mod stored;
mod transports;
mod world;
