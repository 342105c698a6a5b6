//! Feeds the fuzzer's bytes to `bodies::template_contexts`, which says what must hold.
#![no_main]

#[path = "../bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::template_contexts(data));
