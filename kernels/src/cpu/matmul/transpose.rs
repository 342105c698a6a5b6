//! Words of 32 file rows side by side: what a packed layout is made of, whatever the format.
//!
//! A kernel's lane is an output row, so what lies at one place of 32 rows must come to lie together. [`FileRows`] reads it so:
//! sixteen bytes of each row become four rows of 32 words ([`FileRows::four_words`]), which each instruction set transposes with
//! its own shuffles; single words and halves are too few to be worth it. What a format makes of the words is plain arithmetic
//! on arrays of 32, which compiles to vectors.
//!
//! No closure holds an intrinsic, and no `map` of an array a hot loop: what is not inlined into a function that has the
//! instruction set is slow, or wrong.

use super::{codes::Quad, layout::GROUP_ROWS};

/// How an instruction set transposes.
pub(super) trait Transpose: Copy {
    /// Word `t` of the sixteen bytes at `from + starts[r]`, at `[t][r]`.
    ///
    /// # Safety
    /// The machine has the instruction set, and the sixteen bytes may be read for each start.
    unsafe fn four_words(from: *const u8, starts: &[usize; GROUP_ROWS]) -> [Quad; 4];

    /// Brings a cache line near, of any address.
    fn prefetch(line: *const u8);
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Transpose for Plain {
    #[inline(always)]
    unsafe fn four_words(from: *const u8, starts: &[usize; GROUP_ROWS]) -> [Quad; 4] {
        let mut out = [[0; GROUP_ROWS]; 4];
        for (r, start) in starts.iter().enumerate() {
            for (t, words) in out.iter_mut().enumerate() {
                // SAFETY: as the caller promises.
                words[r] = u32::from_le_bytes(unsafe { from.add(start + 4 * t).cast::<[u8; 4]>().read() });
            }
        }
        out
    }

    #[inline(always)]
    fn prefetch(_line: *const u8) {}
}

/// The file rows of a group. Where there are fewer than 32, the last one stands for the missing: nobody reads their products.
pub(super) struct FileRows<'a, T> {
    bytes: &'a [u8],
    starts: [usize; GROUP_ROWS],
    row_bytes: usize,
    transpose: std::marker::PhantomData<T>,
}

impl<'a, T: Transpose> FileRows<'a, T> {
    /// Up to 32 rows of `row_bytes`, one after another.
    ///
    /// # Safety
    /// The machine has the instruction set of `T`.
    ///
    /// # Panics
    /// When `bytes` are not such rows.
    #[inline(always)]
    pub(super) unsafe fn new(bytes: &'a [u8], row_bytes: usize) -> Self {
        let rows = bytes.len() / row_bytes;
        assert!(rows > 0 && rows * row_bytes == bytes.len(), "{} bytes in rows of {row_bytes}", bytes.len());
        let mut starts = [0; GROUP_ROWS];
        starts.iter_mut().enumerate().for_each(|(r, start)| *start = r.min(rows - 1) * row_bytes);
        Self { bytes, starts, row_bytes, transpose: std::marker::PhantomData }
    }

    /// `len` bytes at byte `at` of each row, row after row.
    #[inline(always)]
    pub(super) fn slices(&self, at: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        self.starts.iter().map(move |start| &self.bytes[start + at..][..len])
    }

    /// Brings the part of the next group near that the bytes `done` are of each row of this one: rows are read side by side,
    /// and the machine does not foresee that the file as a whole is read in order. A few lines at a time: many at once have to
    /// wait for each other.
    #[inline(always)]
    pub(super) fn prefetch(&self, done: std::ops::Range<usize>) {
        for line in (done.start * GROUP_ROWS..done.end * GROUP_ROWS).step_by(64) {
            T::prefetch(self.bytes.as_ptr().wrapping_add(self.bytes.len() + line));
        }
    }

    /// The four words at byte `at` of each row.
    #[inline(always)]
    pub(super) fn four_words(&self, at: usize) -> [Quad; 4] {
        assert!(at + 16 <= self.row_bytes, "sixteen bytes at {at} of rows of {}", self.row_bytes);
        // SAFETY: `new`'s caller has the instruction set; each start is that of a whole row, and the bytes are inside it.
        unsafe { T::four_words(self.bytes.as_ptr().add(at), &self.starts) }
    }

    /// The eight words at byte `at` of each row; brings those of the next group near.
    #[inline(always)]
    pub(super) fn eight_words(&self, at: usize) -> [Quad; 8] {
        self.prefetch(at..at + 32);
        let ([a, b, c, d], [e, f, g, h]) = (self.four_words(at), self.four_words(at + 16));
        [a, b, c, d, e, f, g, h]
    }

    /// The word at byte `at` of each row.
    #[inline(always)]
    pub(super) fn words(&self, at: usize) -> Quad {
        let mut out = [0; GROUP_ROWS];
        out.iter_mut().zip(self.each(at)).for_each(|(out, bytes)| *out = u32::from_le_bytes(bytes));
        out
    }

    /// The `N` bytes at byte `at` of each row.
    #[inline(always)]
    pub(super) fn each<const N: usize>(&self, at: usize) -> [[u8; N]; GROUP_ROWS] {
        assert!(at + N <= self.row_bytes, "{N} bytes at {at} of rows of {}", self.row_bytes);
        let mut out = [[0; N]; GROUP_ROWS];
        for (out, start) in out.iter_mut().zip(&self.starts) {
            // SAFETY: each start is that of a whole row, and the bytes are inside it.
            *out = unsafe { self.bytes.as_ptr().add(start + at).cast::<[u8; N]>().read() };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::cpu::{isa::Isa, matmul::avx2::Avx2};

    /// # Safety
    /// The machine has the instruction set.
    unsafe fn check<T: Transpose>(rows: usize, row_bytes: usize) {
        let byte = |r: usize, at: usize| ((r * row_bytes + at) * 167 % 251) as u8;
        let bytes: Vec<u8> = (0..rows * row_bytes).map(|i| byte(0, i)).collect();
        // SAFETY: as the caller promises.
        let file = unsafe { FileRows::<T>::new(&bytes, row_bytes) };
        let word = |r: usize, at: usize| u32::from_le_bytes(std::array::from_fn(|i| byte(r, at + i)));
        for at in 0..=row_bytes - 16 {
            let four = file.four_words(at);
            for r in 0..GROUP_ROWS {
                let own = r.min(rows - 1);
                let expected: [u32; 4] = std::array::from_fn(|t| word(own, at + 4 * t));
                assert_eq!(four.map(|words| words[r]), expected, "row {r} of {rows}, byte {at}");
                assert_eq!(file.words(at)[r], expected[0]);
                assert_eq!(file.each(at)[r], [byte(own, at), byte(own, at + 1)]);
                assert_eq!(file.slices(at, 3).nth(r), Some(&bytes[own * row_bytes + at..][..3]));
            }
        }
    }

    #[test]
    fn words_of_all_rows_lie_side_by_side() {
        for (rows, row_bytes) in [(32, 18), (32, 64), (5, 34), (1, 16)] {
            // SAFETY: each machine has the first, and says whether it has the second.
            unsafe {
                check::<Plain>(rows, row_bytes);
                #[cfg(target_arch = "x86_64")]
                if Isa::Avx2.is_supported() {
                    check::<Avx2>(rows, row_bytes);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "sixteen bytes at 3 of rows of 18")]
    fn no_byte_of_the_next_row_is_read() {
        // SAFETY: plain Rust.
        unsafe { FileRows::<Plain>::new(&[0; 36], 18) }.four_words(3);
    }
}
