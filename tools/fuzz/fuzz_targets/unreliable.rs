#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| basin::proto::testing::unreliable::unreliable(bytes));
