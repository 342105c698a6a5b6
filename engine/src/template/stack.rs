//! Runs foreign recursion where it cannot overflow the stack, which would end the process.
//!
//! minijinja walks the template's syntax and nested values by recursion: also where values are compared and dropped,
//! out of reach of its recursion limit. How deep a template can get is bounded by its bytes when it is compiled and by
//! its fuel when it is rendered, so a stack in proportion is enough. Pages that are not touched take no memory.

use std::io;
use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// Runs `work` on a stack of `bytes`. Fails if the system refuses the thread or the address space.
pub(super) fn run_with<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    scope(|scope| {
        let thread =
            Builder::new().name("chat template".to_string()).stack_size(bytes).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
