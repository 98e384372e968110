//! Fuzz entry functions: `tools/fuzz` runs them on what the fuzzer invents, `cargo test` on the committed corpus.
