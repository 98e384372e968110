#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| basin::s3::fuzz::message(bytes));
