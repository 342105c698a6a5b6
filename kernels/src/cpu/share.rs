//! A mutable slice whose disjoint parts are written by several threads of one pool job.

use std::{marker::PhantomData, ops::Range};

/// Lends parts of a slice; who takes them answers for their being disjoint.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` in parts; the parts may move to other threads as `T` may.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The first element, for kernels that know their own places.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// The elements in `range`.
    ///
    /// # Safety
    /// No other part that is alive overlaps `range`.
    ///
    /// # Panics
    /// When `range` is not inside the slice.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: inside the slice (asserted), borrowed for 'a, and the caller vouches that it is disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
