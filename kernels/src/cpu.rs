//! The CPU backend: thread pool, instruction sets, packed products, attention over paged KV, expert routing, passes over logits.

mod affinity;
pub mod attention;
mod backend;
pub mod buffer;
pub mod experts;
pub mod isa;
pub mod kv;
pub(crate) mod math;
pub mod matmul;
pub mod ops;
pub mod pool;
mod share;
pub(crate) mod simd;
pub mod vocabulary;

pub use affinity::CoreError;
pub use backend::{CpuBackend, Tensor};

/// The backend's name in messages and metrics.
const NAME: &str = "cpu";
