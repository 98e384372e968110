//! The atomics that cross cores, exchanged for loom's in `tests/models`, where `loom` is set, so that their orderings are model-checked.

#[cfg(loom)]
pub use loom::sync::{Arc, atomic};
#[cfg(not(loom))]
pub use std::sync::{Arc, atomic};
