//! An allocator that counts, for tests that hold a step to allocating nothing. It is here because an allocator is `unsafe`.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// The system's allocator, with a count of all threads' allocations.
#[derive(Debug, Default)]
pub struct CountingAllocator(AtomicUsize);

impl CountingAllocator {
    /// An allocator for `#[global_allocator]`.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Allocations so far; one that changes its size counts again.
    pub fn allocations(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: all is the system's allocator's; a count is beside it. What is not here is made of these two.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}
