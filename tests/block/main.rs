//! Disks: one conformance suite on every backend, what is refused, and what goes wrong.

mod conformance;
mod faults;
mod guard;
mod sim;
mod world;
