//! Products of packed weights and activations: `output[m][n] = sum over k of input[m][k] * weight[n][k]`.
//!
//! # The order contract
//!
//! The bits of an output depend on its own row of activations and its own row of weights, and on nothing else: not on how many
//! rows there are, the tile that they fall in, the thread, the other weights of the call, or the instruction set.
//!
//! Quantised weights: the activations are rounded to signed bytes `q` with one scale `a` per 32 columns (`rows`). For each
//! output, over the blocks `b` of 32 columns (16 where a scale spans 16) in ascending order:
//!
//! ```text
//! acc = fma(f32(sum of (code - offset) * q) * a[b], scale[b], acc)
//! acc = fma(minimum[b], a[b] * f32(sum of q), acc)        // formats with a minimum
//! ```
//!
//! The integer sum is exact and below 2^24, so its inner order is free and its conversion exact; `scale` and `minimum` are
//! exact in f32. F32 and F16 weights: `acc = fma(weight[k], input[k], acc)` over ascending columns, activations unrounded.
//!
//! BF16 weights: activations are rounded to bf16 `x` (`rows`), and over ascending pairs of columns (a lone last one by itself)
//!
//! ```text
//! acc = fma(weight[k + 1], x[k + 1], acc)
//! acc = fma(weight[k], x[k], acc)
//! ```
//!
//! which is what `vdpbf16ps` computes, except that it takes subnormal numbers for 0. There are none: weights and `x` below
//! 2^-55 have been made 0, the others are multiples of 2^-62 (8 bits of mantissa), their products of
//! 2^-124, and so is every sum of those, rounded or not: it is 0 or at least 2^-124, where the smallest normal f32 is 2^-126.
//!
//! Lanes are output rows (`layout`), so no kernel ever sums across lanes, and columns are never split over threads. A block
//! with a NaN or an infinity in its activations gives NaN.
//!
//! # How weights meet a kernel
//!
//! Float formats and those of plain bits are read as they lie in memory (`layout`, `source`). The others are decoded first, a
//! small panel at a time, which the same tiles multiply (`panel`). Memory holds the file's bytes either way.
//! With many rows some formats of plain bits are decoded too, a group at a time (`decoded_group_bytes`).
//!
//! # How the work is spread
//!
//! One call is one job for the pool, over the groups of all its weights. Each thread walks one contiguous stretch of memory
//! (measured: 37-40 GB/s from DRAM where small pieces dealt out in turn gave 24), and takes pieces of 100 KB off the others'
//! stretches when it is done.

#[cfg(test)]
mod accuracy;
mod arena;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "half of it is for vectors"))]
mod codes;
mod finish;
#[cfg(target_arch = "x86_64")]
mod floats;
mod grid;
#[cfg(target_arch = "x86_64")]
mod grid_avx2;
#[cfg(target_arch = "x86_64")]
mod grid_avx512;
#[cfg(target_arch = "x86_64")]
mod grid_panel;
mod input;
mod layout;
mod line;
mod pack;
mod panel;
mod rows;
mod scalar;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "half of it is for vectors"))]
mod scales;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "nothing implements it"))]
mod simd;
#[cfg(target_arch = "x86_64")]
mod source;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;
mod transpose;
mod weight;

pub use arena::WeightArena;
pub use finish::Finish;
pub use input::Input;
pub use line::Term;
pub use rows::RowsScratch;
pub use weight::{PackError, PackedWeight};

use super::{isa::Isa, pool::Pool};
use crate::blocks::BlockFormat;
use layout::GROUP_ROWS;
use line::Line;
use rows::{Buffers, KernelScratch, Rows};
#[cfg(target_arch = "x86_64")]
use simd::Simd;

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
    /// `[m][cols]`, for float formats; nothing for others. In [pairs](reads_pairs) `[m][cols / 2]`, each a word
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

/// Multiplies `input` (rows of `cols` values) with every term's weight (of `cols` columns), each term its own rows. The
/// input is made and quantised once; all terms are one job of the pool.
///
/// # Panics
/// When shapes do not fit each other or the machine lacks `isa`.
pub fn multiply<'a>(
    pool: &Pool,
    isa: Isa,
    input: Input<'_>,
    cols: usize,
    terms: impl IntoIterator<Item = Term<'a>>,
    scratch: &mut RowsScratch,
) {
    assert!(isa.is_supported(), "this machine does not have {}", isa.name());
    let rows = input.rows(cols);
    let RowsScratch { line, made, kernels } = scratch;
    line.clear();
    terms.into_iter().for_each(|term| line.push(term, rows, cols));
    let has = |wanted: fn(BlockFormat) -> bool| line.shapes().any(|(format, _)| wanted(format));
    let floats = match (has(|f| matches!(f, BlockFormat::F32 | BlockFormat::F16)), input.as_rows()) {
        (false, _) => &[],
        (true, Some(rows)) => rows,
        (true, None) => rows::make(pool, isa, input, (rows, cols), made),
    };
    let input = if floats.is_empty() { input } else { Input::Rows(floats) };
    if has(|f| f == BlockFormat::BF16) {
        kernels.round(pool, isa, input, (rows, cols));
    }
    if has(BlockFormat::is_quantised) {
        kernels.quantise(pool, isa, input, (rows, cols), line.shapes().map(|(format, _)| format));
    }
    // SAFETY: the terms' borrows live for 'a, which is longer than this call.
    unsafe { multiply_line(pool, isa, floats, cols, line, kernels) };
}

/// Multiplies the rows that `scratch` has quantised or rounded, and for F32 and F16 `floats`.
///
/// # Safety
/// The borrows of the line's terms are alive.
unsafe fn multiply_line(
    pool: &Pool,
    isa: Isa,
    floats: &[f32],
    cols: usize,
    line: &Line,
    scratch: &mut KernelScratch,
) {
    let most_rows = line.shapes().map(|(_, m)| m).max().unwrap_or(0);
    let decoded_bytes = line.shapes().map(|(f, m)| decoded_group_bytes(isa, f, m, cols)).max().unwrap_or(0);
    let most_sums = line.added_rows().map(finish::sums).max().unwrap_or(0);
    let (rows, buffers) = scratch.for_kernels(pool.threads(), most_rows, decoded_bytes, most_sums);
    let Buffers { staging, decoded, sums } = buffers;
    let spread = line.spread();
    pool.split_in_order(spread.items, spread.grain, &|items, thread| {
        // SAFETY: as the caller promises.
        for part in unsafe { line.parts(&spread, items) } {
            let format = part.weight.format();
            let input = match format {
                BlockFormat::BF16 => rows.bfloats(isa, part.rows.start, cols),
                _ => floats.as_ptr().wrapping_add(part.rows.start * cols),
            };
            let job = GroupJob {
                format,
                groups: part.weight.groups()[part.groups.start * part.weight.group_bytes()..].as_ptr(),
                group_bytes: part.weight.group_bytes(),
                count: part.groups.len(),
                outputs: part.weight.rows() - part.groups.start * GROUP_ROWS,
                m: part.rows.len(),
                cols,
                input,
                rows: rows.for_format(format, part.rows.start, cols),
                output: part.output,
                output_stride: part.weight.rows(),
                staging: staging.as_ptr().wrapping_add(thread * most_rows * GROUP_ROWS),
                decoded: decoded.as_ptr().wrapping_add(thread * decoded_bytes),
            };
            let sums = sums.as_ptr().wrapping_add(thread * most_sums);
            // SAFETY: shapes were checked when the term was placed, the instruction set by `multiply`; all buffers outlive the
            // job, since `split_in_order` returns only when all pieces are done; pieces do not share groups, hence no
            // outputs, nor threads their scratch.
            unsafe { finish::run(isa, &job, part.finish, sums) };
        }
    });
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
            Isa::Avx512Bf16 if job.format == BlockFormat::BF16 && reads_pairs(isa, job.cols) => {
                avx512::run_pairs(job);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => avx512::run(job),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("{} is not supported here", isa.name()),
        }
    }
}

/// Whether the kernel for BF16 weights reads activations as pairs of bf16, the first one in the lower half of a word; else as
/// the f32 that they are.
fn reads_pairs(isa: Isa, cols: usize) -> bool {
    isa == Isa::Avx512Bf16 && cols.is_multiple_of(2)
}

/// Bytes of scratch that a thread needs to decode a group before it is multiplied; 0 when it is read as it is.
fn decoded_group_bytes(isa: Isa, format: BlockFormat, m: usize, cols: usize) -> usize {
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => source::decoded_group_bytes(avx2::Avx2::ROWS_TO_DECODE, format, m, cols),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => {
            source::decoded_group_bytes(avx512::Avx512::ROWS_TO_DECODE, format, m, cols)
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{} is not supported here: {format}, {m}, {cols}", isa.name()),
    }
}
