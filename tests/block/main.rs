//! Disks: one conformance suite on every backend, what is refused, and what goes wrong.

mod clauses;
mod conformance;
mod faults;
mod guard;
#[path = "../loop_device/mod.rs"]
mod loop_device;
mod sim;
mod world;
