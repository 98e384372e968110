//! What every layer shares: units, errors, limits, time, randomness, the machine's topology, what the process may do, and MD5.
//!
//! Nothing here touches a device or owns memory. Layers above import this one; it imports none.

pub mod clock;
pub mod error;
pub mod limits;
pub mod md5;
pub mod privileges;
pub mod rng;
pub mod sync;
pub mod topology;
pub mod units;

pub use clock::{Clock, Nanos};
pub use error::{Error, Result};
pub use rng::Rng;
pub use units::{Lba, Psn, Qpn, RegionOffset, Rkey};
