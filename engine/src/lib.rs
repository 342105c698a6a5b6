//! What is computed: models read from GGUF files, text in and out, and the runtime that turns tokens into logits.
//! No async, no clock, no socket, no device handle, no `unsafe`.
#![forbid(unsafe_code)]

pub mod detokenizer;
pub mod gguf;
pub mod message;
pub mod sampling;
pub mod stop;
pub mod template;
pub mod tokenizer;
