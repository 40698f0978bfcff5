//! See `fuzzed::names`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::names(data));
