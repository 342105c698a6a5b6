//! What is fuzzed: functions that take any bytes and panic when something does not hold that must. The fuzz targets
//! call them with new bytes; `engine/tests/fuzz_corpus.rs` calls them with every file of the kept corpus.

#![allow(dead_code, reason = "each fuzz target uses one")]

#[path = "../../engine/tests/gguf_writer/mod.rs"]
mod gguf_writer;

mod gguf_reader;
mod json;
mod template_contexts;
mod tokenizer;

pub(crate) use gguf_reader::gguf_reader;
pub(crate) use template_contexts::template_contexts;
pub(crate) use tokenizer::tokenizer;

/// Bytes that are used up one after the other; past their end come zeros.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// At most `len` bytes.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// What is left up to the first zero byte, which is skipped.
    fn until_zero(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        let taken = self.take(end);
        self.next();
        taken
    }
}
