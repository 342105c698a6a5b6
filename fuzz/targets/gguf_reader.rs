//! Feeds the fuzzer's bytes to `bodies::gguf_reader`, which says what must hold.
#![no_main]

#[path = "../bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::gguf_reader(data));
