//! The real `zllmd` binary with a real small model, over its real sockets. One test binary, so that it links once.

mod admin;
mod anthropic;
mod batch_crash;
mod batches;
mod burst;
mod common;
mod devices;
mod embeddings;
mod generate;
mod inspect;
mod job_crash;
mod kv_crash;
mod kv_faults;
mod kv_tiers;
mod leaks;
mod local;
mod ollama;
mod openai;
mod operate;
mod prefixes;
mod requests;
mod responses;
mod safety;
mod sampling;
mod templates;
