//! How models are computed: block codecs, SIMD, device memory, and the capability traits that the engine is written
//! against. This is the only crate that says `unsafe`; it knows no model, no JSON and no async.
//!
//! Entry points: [`cpu::CpuBackend`].

pub mod backend;
pub mod blocks;
pub mod counting;
pub mod cpu;
pub mod mapped_file;
