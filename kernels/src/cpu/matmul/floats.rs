//! The vector kernels for float weights, once for all instruction sets: activations of f32, columns in the order of [`super`].

use super::{
    GroupJob,
    layout::GROUP_ROWS,
    simd::Simd,
    tile::{finish_output, output_of},
};
use crate::blocks::BlockFormat;

/// Runs a job of float weights.
///
/// # Safety
/// As for [`super::run`]; inlined into a function with the features of `S`.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe {
        match job.format {
            BlockFormat::F32 => walk::<S, F32>(job),
            BlockFormat::F16 => walk::<S, F16>(job),
            _ => walk::<S, BF16>(job),
        }
    }
}

/// All rows of activations by each group of float weights.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
pub(super) unsafe fn walk<S: Simd, T: Tile<S>>(job: &GroupJob) {
    for g in 0..job.count {
        let (output, stride) = output_of(job, g);
        let mut row = 0;
        while row < job.m {
            let count = (job.m - row).min(T::ROWS);
            macro_rules! pick {
                ($($n:literal)*) => {
                    match count {
                        $($n => for first in (0..GROUP_ROWS / S::LANES).step_by(2) {
                            let weights = job.groups.add(g * job.group_bytes + first * S::LANES * T::BYTES);
                            let input = job.input.add(row * job.cols / T::COLS_IN_WORD);
                            let output = output.add(row * stride + first * S::LANES);
                            T::multiply::<$n>(job.cols, weights, input, output, stride);
                        },)*
                        _ => unreachable!("a tile of {count} rows"),
                    }
                };
            }
            // SAFETY: as the caller promises: `count` rows from `row` on, and all vectors of group `g`.
            unsafe {
                match T::ROWS {
                    3 => pick!(1 2 3),
                    6 => pick!(1 2 3 4 5 6),
                    _ => pick!(1 2 3 4 5 6 7 8),
                }
            }
            row += count;
        }
        // SAFETY: as the caller promises; the group is done.
        unsafe { finish_output(job, g) };
    }
}

/// How a tile of float weights is multiplied.
pub(super) trait Tile<S: Simd> {
    /// Bytes of a weight.
    const BYTES: usize;
    /// Columns of activations in a word of them.
    const COLS_IN_WORD: usize;
    /// Most rows of activations.
    const ROWS: usize;

    /// `M` rows of activations by two vectors of rows: the order contract of [`super`].
    ///
    /// # Safety
    /// As for [`super::run`]; `weights` is the first vector of column 0, `output` the first row's place for it, `input` that row.
    unsafe fn multiply<const M: usize>(
        cols: usize,
        weights: *const u8,
        input: *const f32,
        output: *mut f32,
        stride: usize,
    );
}

/// A float format as a type.
trait Float {
    /// Bytes of a weight.
    const BYTES: usize;
    /// The order of two columns.
    const ORDER: [usize; 2] = [0, 1];
    /// Loads a vector of weights.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats;
}

struct F32;
struct F16;
struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats {
        // SAFETY: as the caller promises.
        unsafe { S::load_floats(from.cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats {
        // SAFETY: as the caller promises.
        unsafe { S::load_halves(from) }
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;
    const ORDER: [usize; 2] = [1, 0];
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats {
        // SAFETY: as the caller promises.
        unsafe { S::load_bfloats(from) }
    }
}

impl<S: Simd, W: Float> Tile<S> for W {
    const BYTES: usize = W::BYTES;
    const COLS_IN_WORD: usize = 1;
    const ROWS: usize = S::TILE_ROWS;

    #[allow(clippy::needless_range_loop, reason = "the loops are over registers of several arrays at once")]
    #[inline(always)]
    unsafe fn multiply<const M: usize>(
        cols: usize,
        weights: *const u8,
        input: *const f32,
        output: *mut f32,
        stride: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut acc = [[S::floats(0.0); 2]; M];
            macro_rules! add {
                ($k:expr) => {
                    let column = weights.add($k * GROUP_ROWS * W::BYTES);
                    let pair = [W::load::<S>(column), W::load::<S>(column.add(S::LANES * W::BYTES))];
                    for m in 0..M {
                        let x = S::floats(*input.add(m * cols + $k));
                        for n in 0..2 {
                            acc[m][n] = S::fma(pair[n], x, acc[m][n]);
                        }
                    }
                };
            }
            for k in (0..cols / 2 * 2).step_by(2) {
                add!(k + W::ORDER[0]);
                add!(k + W::ORDER[1]);
            }
            if cols % 2 == 1 {
                add!(cols - 1);
            }
            for m in 0..M {
                for n in 0..2 {
                    S::store_floats(output.add(m * stride + n * S::LANES), acc[m][n]);
                }
            }
        }
    }
}
