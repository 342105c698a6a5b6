//! Aligned, zeroed, huge-page-friendly memory for weights, activations and the KV arena.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

/// Cache lines and 512-bit vectors.
const SMALL_ALIGN: usize = 64;
/// A huge page: buffers of this size and more ask for them (10-20 % in decode, measured; see docs/PERFORMANCE.md).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Plain numbers that may be zeroed and viewed as bytes.
///
/// # Safety
/// The type has no padding, no invalid bit pattern and no `Drop`.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: a primitive number.
unsafe impl Plain for u8 {}
// SAFETY: a primitive number.
unsafe impl Plain for i8 {}
// SAFETY: a primitive number.
unsafe impl Plain for i32 {}
// SAFETY: a primitive number.
unsafe impl Plain for f32 {}

/// A fixed-size, 64-byte aligned, zero-initialised array. Frees itself.
#[derive(Debug)]
pub struct AlignedBuffer<T: Plain> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its memory and `T` is plain data.
unsafe impl<T: Plain> Send for AlignedBuffer<T> {}
// SAFETY: shared access only hands out `&[T]`.
unsafe impl<T: Plain> Sync for AlignedBuffer<T> {}

impl<T: Plain> AlignedBuffer<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: `layout` has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw.cast::<T>()) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if layout.size() >= HUGE_PAGE_BYTES {
            use nix::sys::mman::{MmapAdvise, madvise};
            // SAFETY: the range was just allocated and is owned here; the advice does not change its contents. It is
            // only advice: a refusal costs speed.
            let _ = unsafe { madvise(start.cast(), layout.size(), MmapAdvise::MADV_HUGEPAGE) };
        }
        Self { start, len }
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).expect("buffer size overflows").max(SMALL_ALIGN);
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { SMALL_ALIGN };
        Layout::from_size_align(bytes.next_multiple_of(SMALL_ALIGN), align).expect("buffer size overflows")
    }
}

impl<T: Plain> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout.
        unsafe { dealloc(self.start.as_ptr().cast(), Self::layout(self.len)) }
    }
}

impl<T: Plain> Deref for AlignedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned by self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised elements, uniquely borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
