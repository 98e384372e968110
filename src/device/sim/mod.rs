//! Simulated devices: seeded, driven by `now`, so that one number replays a whole run.

pub mod disk;
pub mod network;
