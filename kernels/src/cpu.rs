//! The CPU backend: thread pool, instruction sets, packed products, attention over paged KV.

pub mod buffer;
pub mod isa;
pub mod pool;
