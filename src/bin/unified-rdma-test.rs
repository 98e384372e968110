//! The five flows between two machines: argument parsing only.
fn main() {}
