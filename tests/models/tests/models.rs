//! What crosses cores, with loom's atomics in place of the processor's: the files of the library that hold it, each with its models, in a
//! package of their own, so that nothing else is built for them. `.cargo/config.toml` bounds the search.

#![expect(dead_code, reason = "a model does not use all of its file")]

#[path = "../../../src/reactor/bell.rs"]
mod bell;
#[path = "../../../src/mem/returns.rs"]
mod returns;
#[path = "../../../src/mem/spsc.rs"]
mod spsc;
#[path = "../../../src/base/sync.rs"]
mod sync;
#[path = "../../../src/reactor/wakes.rs"]
mod wakes;

/// Where the files look for it.
mod base {
    pub(crate) use crate::sync;
}
