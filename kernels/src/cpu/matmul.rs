//! Products of packed weights and activations: `output[m][n] = sum over k of input[m][k] * weight[n][k]`.
//!
//! # The order contract
//!
//! The bits of an output depend on its own row of activations and its own row of weights, and on nothing else: not on how many
//! rows there are, the tile that they fall in, the thread, the other weights of the call, or the instruction set.
//!
//! Quantised weights: the activations are rounded to signed bytes `q` with one scale `a` per 32 columns (`rows`). For each
//! output, over the blocks `b` of 32 columns (16 for Q6_K) in ascending order:
//!
//! ```text
//! acc = fma(f32(sum of (code - offset) * q) * a[b], scale[b], acc)
//! acc = fma(minimum[b], a[b] * f32(sum of q), acc)        // formats with a minimum
//! ```
//!
//! The integer sum is exact and below 2^24, so its inner order is free and its conversion exact; `scale` and `minimum` are
//! exact in f32. Float weights: `acc = fma(weight[k], input[k], acc)` over ascending columns, activations unrounded.
//!
//! Lanes are output rows (`layout`), so no kernel ever sums across lanes, and columns are never split over threads. A block
//! with a NaN or an infinity in its activations gives NaN.
//!
//! # How the work is spread
//!
//! One call is one job for the pool, over the groups of all its weights. Each thread walks one contiguous stretch of memory
//! (measured: 37-40 GB/s from DRAM where small pieces dealt out in turn gave 24), and takes pieces of 100 KB off the others'
//! stretches when it is done.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod floats;
mod layout;
mod pack;
mod rows;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod simd;
#[cfg(target_arch = "x86_64")]
mod source;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;
mod weight;

pub use rows::RowsScratch;
pub use weight::{PackError, PackedWeight};

use super::{isa::Isa, pool::Pool, share::Shared};
use crate::blocks::BlockFormat;
use layout::GROUP_ROWS;
use rows::Rows;
#[cfg(target_arch = "x86_64")]
use simd::Simd;
use std::ops::Range;

/// Pieces of a thread's stretch: as long as it takes to stream them is what a thread may have to wait for another.
const PIECE_BYTES: usize = 100 << 10;
/// From this many rows on a piece shrinks, as its time grows with the rows.
const ROWS_OF_FULL_PIECE: usize = 16;
/// The unit in which work is counted: every group is a multiple of it.
const UNIT_BYTES: usize = 64;

/// One product of a call: all of them share the input.
pub struct Term<'a> {
    /// N outputs by K inputs
    pub weight: &'a PackedWeight,
    /// m rows of N
    pub output: &'a mut [f32],
}

/// A run of groups of one term, as a kernel sees it.
#[derive(Clone, Copy)]
struct GroupJob {
    format: BlockFormat,
    /// the first group
    groups: *const u8,
    group_bytes: usize,
    count: usize,
    /// outputs from the first group on: the last group of the run may be partly padding
    outputs: usize,
    m: usize,
    cols: usize,
    /// `[m][cols]`, for float formats
    input: *const f32,
    /// the quantised input, for all others
    rows: Rows,
    /// where row 0's value for the first row of the first group goes
    output: *mut f32,
    /// from one row's outputs to the next one's
    output_stride: usize,
    /// this thread's own `m * 32` floats
    staging: *mut f32,
    /// this thread's own room for a decoded group, [`decoded_group_bytes`] of it
    decoded: *mut u8,
}

/// Multiplies `input` (m rows of K values) with every weight of `terms` (each with K columns).
///
/// # Panics
/// When shapes do not fit each other or the machine lacks `isa`.
pub fn multiply(
    pool: &Pool,
    isa: Isa,
    input: &[f32],
    m: usize,
    terms: &mut [Term<'_>],
    scratch: &mut RowsScratch,
) {
    let Some(first) = terms.first() else { return };
    let cols = first.weight.cols();
    assert!(isa.is_supported(), "this machine does not have {}", isa.name());
    assert_eq!(m.checked_mul(cols), Some(input.len()), "input of {m} rows of {cols}");
    for term in terms.iter() {
        assert_eq!(term.weight.cols(), cols, "columns of terms that share an input");
        assert_eq!(m.checked_mul(term.weight.rows()), Some(term.output.len()), "output of {m} rows");
    }
    if m == 0 {
        return;
    }
    let formats = || terms.iter().map(|t| t.weight.format());
    if formats().any(BlockFormat::is_quantised) {
        scratch.quantise(pool, isa, input, formats());
    }
    let decoded_bytes = formats().map(|f| decoded_group_bytes(isa, f, m, cols)).max().unwrap_or(0);
    let spread = Spread::new(terms, m);
    let (rows, staging, decoded) = scratch.for_kernels(pool.threads(), m, decoded_bytes);
    let count = terms.len();
    let terms = Shared::new(terms);
    pool.split_in_order(spread.units, spread.grain, &|units, thread| {
        let mut first_unit = 0;
        for i in 0..count {
            // SAFETY: inside the slice. Threads only read the term itself; its output is reached through a raw pointer, and
            // each thread writes the columns of its own groups.
            let (weight, output) = unsafe {
                let term = terms.as_ptr().add(i);
                ((*term).weight, (&raw mut *(*term).output).cast::<f32>())
            };
            let groups = groups_in(&units, first_unit, weight);
            first_unit += weight.bytes() / UNIT_BYTES;
            if groups.is_empty() {
                continue;
            }
            let first_output = groups.start * GROUP_ROWS;
            let job = GroupJob {
                format: weight.format(),
                groups: weight.groups()[groups.start * weight.group_bytes()..].as_ptr(),
                group_bytes: weight.group_bytes(),
                count: groups.len(),
                outputs: weight.rows() - first_output,
                m,
                cols,
                input: input.as_ptr(),
                rows: rows.for_format(weight.format()),
                output: output.wrapping_add(first_output),
                output_stride: weight.rows(),
                staging: staging.as_ptr().wrapping_add(thread * m * GROUP_ROWS),
                decoded: decoded.as_ptr().wrapping_add(thread * decoded_bytes),
            };
            // SAFETY: shapes and the instruction set were checked above; all buffers outlive the job, since `split_in_order`
            // returns only when all pieces are done; pieces do not share groups, hence no outputs, nor threads their scratch.
            unsafe { run(isa, &job) };
        }
    });
}

/// How a call is cut, in units of `UNIT_BYTES` of packed weights.
struct Spread {
    units: usize,
    grain: usize,
}

impl Spread {
    fn new(terms: &[Term<'_>], m: usize) -> Self {
        let bytes: usize = terms.iter().map(|t| t.weight.bytes()).sum();
        let two_groups = 2 * terms.iter().map(|t| t.weight.group_bytes()).max().unwrap_or(0);
        let piece = PIECE_BYTES * ROWS_OF_FULL_PIECE / m.max(ROWS_OF_FULL_PIECE);
        Self { units: bytes / UNIT_BYTES, grain: piece.max(two_groups) / UNIT_BYTES }
    }
}

/// The groups of `weight` that begin inside `units`, when its first unit is `first_unit`.
fn groups_in(units: &Range<usize>, first_unit: usize, weight: &PackedWeight) -> Range<usize> {
    let group_units = weight.group_bytes() / UNIT_BYTES;
    let count = weight.bytes() / weight.group_bytes();
    let bound = |unit: usize| unit.saturating_sub(first_unit).div_ceil(group_units).min(count);
    bound(units.start)..bound(units.end)
}

/// Runs a job with the instructions of `isa`.
///
/// # Safety
/// The machine has the instruction set, and the job's pointers cover what its sizes say, with nobody else at its outputs and
/// scratch.
unsafe fn run(isa: Isa, job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe {
        match isa {
            Isa::Scalar => scalar::run(job),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run(job),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::run(job),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("{} is not supported here", isa.name()),
        }
    }
}

/// Bytes of scratch that a thread needs to decode a group before it is multiplied; 0 when it is read as it is.
fn decoded_group_bytes(isa: Isa, format: BlockFormat, m: usize, cols: usize) -> usize {
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => source::decoded_group_bytes(avx2::Avx2::ROWS_TO_DECODE, format, m, cols),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => source::decoded_group_bytes(avx512::Avx512::ROWS_TO_DECODE, format, m, cols),
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{} is not supported here: {format}, {m}, {cols}", isa.name()),
    }
}
