//! `basin`: argument parsing only; the work is in the library.
fn main() {}
