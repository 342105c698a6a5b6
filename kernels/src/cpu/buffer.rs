//! Aligned, zeroed, huge-page-friendly memory for weights, activations and the KV arena.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut, Range},
    ptr::NonNull,
};

use nix::sys::mman::{mlock, munlock};

/// Cache lines and 512-bit vectors.
const SMALL_ALIGN: usize = 64;
/// A huge page: buffers of this size and more ask for them (10-20 % in decode, measured; see docs/PERFORMANCE.md).
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

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
unsafe impl Plain for u32 {}
// SAFETY: a primitive number.
unsafe impl Plain for f32 {}

/// A fixed-size, 64-byte aligned, zero-initialised array. Frees itself. Pages of a large one come to be, as zeros, when they
/// are first touched.
#[derive(Debug)]
pub struct AlignedBuffer<T: Plain> {
    start: NonNull<T>,
    len: usize,
    /// What the allocator gave: a large buffer starts at the first huge page inside.
    allocation: NonNull<u8>,
    locked: bool,
}

// SAFETY: the buffer owns its memory and `T` is plain data.
unsafe impl<T: Plain> Send for AlignedBuffer<T> {}
// SAFETY: shared access only hands out `&[T]`.
unsafe impl<T: Plain> Sync for AlignedBuffer<T> {}

impl<T: Plain> AlignedBuffer<T> {
    /// `len` zeros. Ends the process where there is no memory for them, as collections do.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len).expect("buffer size overflows");
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// `len` zeros, if the system has memory for them: for sizes that a user chose.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        Self::with_pages(len, Pages::Huge)
    }

    /// The same with pages as they come first, small or huge, until [`Self::settle`] makes them huge.
    pub(crate) fn with_pages(len: usize, pages: Pages) -> Option<Self> {
        let layout = Self::layout(len)?;
        // SAFETY: `layout` has a non-zero size.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let mut start = allocation;
        if layout.size() >= 2 * HUGE_PAGE_BYTES {
            // SAFETY: a large layout has a huge page to spare, so the offset stays inside.
            start = unsafe { allocation.add(allocation.align_offset(HUGE_PAGE_BYTES)) };
            // SAFETY: the range was just allocated and is owned here. The advice comes before the first touch.
            unsafe { advise(start, layout.size() - HUGE_PAGE_BYTES, pages) };
        }
        Some(Self { start: start.cast(), len, allocation, locked: false })
    }

    /// Moves the `index`th two megabytes into a huge page, if the system does; says whether there are that many. Readers wait
    /// meanwhile, and no byte that they see changes. It begins with index 0.
    pub(crate) fn settle(&self, index: usize) -> bool {
        let pages = self.len * size_of::<T>() / HUGE_PAGE_BYTES;
        if index >= pages {
            return false;
        }
        let start = self.start.cast::<u8>();
        // SAFETY: mapped, and owned here; a buffer with a huge page's worth of memory begins where a huge page may.
        unsafe {
            if index == 0 {
                // What cannot be moved now, the system may move later.
                advise(start, pages * HUGE_PAGE_BYTES, Pages::Huge);
            }
            collapse(start.add(index * HUGE_PAGE_BYTES));
        }
        true
    }

    /// Brings all of it into memory and keeps it there: the system will not swap it out.
    ///
    /// # Errors
    /// The system refuses.
    pub fn lock(&mut self) -> nix::Result<()> {
        // SAFETY: the range is owned here, and its content stays as it is.
        unsafe { mlock(self.start.cast(), self.len * size_of::<T>()) }?;
        self.locked = true;
        Ok(())
    }

    /// The elements in `range`, for owners that share the buffer.
    ///
    /// # Safety
    /// No [`Self::part_mut`] that is alive overlaps `range`.
    ///
    /// # Panics
    /// When `range` is not inside the buffer.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: initialised elements inside the buffer (asserted); nobody writes to them, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// The same to write into.
    ///
    /// # Safety
    /// No other part that is alive overlaps `range`.
    ///
    /// # Panics
    /// When `range` is not inside the buffer.
    #[allow(clippy::mut_from_ref, reason = "who shares the buffer answers for its parts being disjoint")]
    pub(crate) unsafe fn part_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: initialised elements inside the buffer (asserted), with nobody else at them, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Large buffers are aligned by hand, with a huge page to spare: for an alignment above its own the allocator would
    /// write the zeros itself, which takes seconds and touches every page. `None` is more than any machine has.
    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<T>())?.checked_next_multiple_of(SMALL_ALIGN)?.max(SMALL_ALIGN);
        let (bytes, align) = if bytes >= HUGE_PAGE_BYTES {
            (bytes.checked_add(HUGE_PAGE_BYTES)?, align_of::<u64>())
        } else {
            (bytes, SMALL_ALIGN)
        };
        Layout::from_size_align(bytes, align).ok()
    }
}

/// Which pages a large buffer gets as it is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Small,
    Huge,
}

/// Asks for pages for `bytes` bytes: what is refused costs speed alone.
///
/// # Safety
/// The range is mapped and the caller's own.
#[cfg(target_os = "linux")]
unsafe fn advise(start: NonNull<u8>, bytes: usize, pages: Pages) {
    use nix::sys::mman::{MmapAdvise, madvise};
    let advice = match pages {
        Pages::Small => MmapAdvise::MADV_NOHUGEPAGE,
        Pages::Huge => MmapAdvise::MADV_HUGEPAGE,
    };
    // SAFETY: as the caller promises; the advice does not change what the range holds.
    let _ = unsafe { madvise(start.cast(), bytes, advice) };
}

#[cfg(not(target_os = "linux"))]
unsafe fn advise(_: NonNull<u8>, _: usize, _: Pages) {}

/// Puts the huge page's worth of memory at `start` into one. Linux does since 6.1; a refusal costs speed alone.
///
/// # Safety
/// That memory is mapped.
#[cfg(target_os = "linux")]
unsafe fn collapse(start: NonNull<u8>) {
    /// `MADV_COLLAPSE` of `linux/mman.h`.
    const COLLAPSE: nix::libc::c_int = 25;
    // SAFETY: as the caller promises; what the range holds stays.
    let _ = unsafe { nix::libc::madvise(start.as_ptr().cast(), HUGE_PAGE_BYTES, COLLAPSE) };
}

#[cfg(not(target_os = "linux"))]
unsafe fn collapse(_: NonNull<u8>) {}

impl<T: Plain> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        if self.locked {
            // SAFETY: the range that `lock` locked. A refusal leaves pages in memory that the allocator may use again.
            let _ = unsafe { munlock(self.start.cast(), self.len * size_of::<T>()) };
        }
        let layout = Self::layout(self.len).expect("it was allocated");
        // SAFETY: allocated in `try_zeroed` with the same layout.
        unsafe { dealloc(self.allocation.as_ptr(), layout) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_every_size_are_aligned_and_zero() {
        for len in [0, 1, 16, 1000, HUGE_PAGE_BYTES / 4 - 1, HUGE_PAGE_BYTES / 4, HUGE_PAGE_BYTES] {
            let mut buffer = AlignedBuffer::<f32>::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(SMALL_ALIGN));
            assert!(len * 4 < HUGE_PAGE_BYTES || buffer.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            assert!(buffer.iter().all(|&x| x == 0.0));
            buffer.fill(1.0);
        }
        for too_much in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4] {
            assert!(AlignedBuffer::<f32>::try_zeroed(too_much).is_none(), "{too_much}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_large_buffer_takes_no_memory_before_it_is_touched() {
        let resident = || -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
            statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a count of pages")
        };
        let before = resident();
        let buffer = AlignedBuffer::<u8>::zeroed(4 << 30);
        // Other tests allocate meanwhile, but not a quarter of this.
        assert!(resident() < before + (1 << 30) / 4096);
        assert_eq!(buffer[3 << 30], 0);
    }
}
