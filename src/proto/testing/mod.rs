//! A world for engines: memory, frames and a faulty network, all from one seed.
//!
//! Hidden from the documentation but public, because tests, benches and fuzz targets of other crates use it. A device layer
//! does with real memory and wires what [`Arena`] and [`Host`] do here.

mod arena;
pub mod fuzz;
mod host;
mod network;
pub mod unreliable;

pub use arena::Arena;
pub use host::{Engine, Host, connect};
pub use network::{Faults, Network, mark};
