//! The vector kernels for quantised weights, once for all instruction sets: tiles of a group's 32 rows by a few rows of activations.
//!
//! A tile keeps its sums in registers for all columns, unpacks codes in registers, and multiplies them with broadcast
//! activations. Which tile is used when was measured (`Plan`); none of it changes a bit of the result.

use super::{
    GroupJob,
    codes::Folding,
    layout::{BLOCK_COLS, Codes, Format, GROUP_ROWS, QUADS},
    panel::PANEL_BLOCKS,
    rows::Rows,
    simd::Simd,
    source::{Decoded, Packed, Source, decode_group, decoded_group_bytes, pays_to_decode},
};
use std::{
    marker::PhantomData,
    ops::Range,
    sync::atomic::{Ordering, compiler_fence},
};

/// Blocks of columns that several tiles walk before the next 256 columns are fetched.
const BLOCKED_COLS: usize = 256;
/// How far one tile alone fetches ahead.
const BYTES_AHEAD: usize = 8 << 10;
/// Tiles of so few rows wait for memory more than they compute.
const FEW_ROWS: usize = 4;

/// How a group is walked.
#[derive(Clone, Copy)]
struct Plan {
    /// most rows of activations in a tile
    tile_rows: usize,
    /// blocks of columns that all tiles finish before any goes on
    blocks: usize,
    /// bytes ahead that the last tile fetches; 0 fetches nothing
    ahead: usize,
}

impl Plan {
    /// Measured on a Zen 5 server core, weights from memory, in turns with plain reads of the same bytes (38 GB/s then) and the
    /// other plan. Fetching ahead wins wherever a group goes to one tile: in the order of memory Q5_0 has 34 GB/s with it
    /// and 28 without, Q4_1 34 and 29, K-quants twice as much, whose long units defeat the hardware's own fetching. Q8_0 with one
    /// row has 37 without it and 35 with it, with two 33 and 34, with eight 23 and 29. 6 to 8 KB ahead are best for
    /// all, 4 and 12 cost 3 to 6 %. With more tiles than one, columns are blocked so that the last tile can fetch. 16 rows are two
    /// tiles of 8: with three of 5 and 6 Q4_1 had 13 GB/s instead of 19, Q8_0 22 instead of 29. Two scales a block leave no
    /// registers for a tile of eight rows.
    #[inline(always)]
    fn new<S: Simd, F: Format>(m: usize, blocks: usize) -> Self {
        let whole = Self { tile_rows: S::TILE_ROWS, blocks, ahead: 0 };
        let fetching = Self { ahead: BYTES_AHEAD, ..whole };
        let long_units = F::UNIT_BLOCKS > 1;
        let bits = F::Folding::LARGEST.ilog2() + 1;
        match m {
            ..=1 if bits == 8 => whole,
            ..=8 if bits == 8 => Self { tile_rows: widest::<S>(), ..fetching },
            13..=16 if F::SPANS == 1 => Self::blocked::<F>(widest::<S>()),
            _ if bits == 8 => whole,
            ..=6 => fetching,
            7..=8 if F::SPANS == 2 => Self::blocked::<F>(S::TILE_ROWS.min(4)),
            7..=8 => Self { tile_rows: widest::<S>(), ..fetching },
            9..=24 if long_units || !F::HAS_MINIMUM => Self::blocked::<F>(S::TILE_ROWS),
            _ => whole,
        }
    }

    #[inline(always)]
    fn blocked<F: Format>(tile_rows: usize) -> Self {
        let blocks = BLOCKED_COLS / BLOCK_COLS;
        Self { tile_rows, blocks, ahead: blocks * F::UNIT_BYTES / F::UNIT_BLOCKS }
    }
}

/// Rows of a tile that still wins although some of its sums live on the stack.
#[inline(always)]
const fn widest<S: Simd>() -> usize {
    if S::TILE_ROWS == 6 { 8 } else { S::TILE_ROWS }
}

/// Runs a job of quantised weights.
///
/// # Safety
/// As for [`super::run`]; inlined into a function with the features of `S`.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, F: Format>(job: &GroupJob) {
    let blocks = job.cols / BLOCK_COLS;
    let plan = Plan::new::<S, F>(job.m, blocks);
    // A constant first, so that the other formats have no kernel for decoded groups.
    let decode = const { pays_to_decode(F::FORMAT) }
        && decoded_group_bytes(S::ROWS_TO_DECODE, F::FORMAT, job.m, job.cols) > 0;
    for g in 0..job.count {
        // SAFETY: as the caller promises; `g` is one of the job's groups.
        unsafe {
            let group = job.groups.add(g * job.group_bytes);
            let (output, stride) = output_of(job, g);
            if decode {
                decode_group::<S, F>(group, blocks, job.decoded);
                let source = Decoded::<F>::starting_with(0, job.decoded);
                let plan = Plan { blocks, ahead: 0, ..plan };
                walk::<S, F, _>(source, job, plan, 0..blocks, output, stride);
            } else {
                let source = Packed::<F> { group, format: PhantomData };
                walk::<S, F, _>(source, job, plan, 0..blocks, output, stride);
            }
            finish_output(job, g);
        }
    }
}

/// Runs a job of weights that are decoded before they are multiplied: [`PANEL_BLOCKS`] blocks of a group at a time, which stay in
/// the first-level cache while all rows of activations meet them.
///
/// # Safety
/// As for [`super::run`]; `C` describes the codes of the job's format.
#[inline(always)]
pub(super) unsafe fn run_panels<S: Simd, C: Codes>(job: &GroupJob) {
    let blocks = job.cols / BLOCK_COLS;
    let plan = Plan { tile_rows: S::TILE_ROWS, blocks: PANEL_BLOCKS, ahead: 0 };
    let block_bytes = job.group_bytes / blocks;
    for g in 0..job.count {
        // SAFETY: as the caller promises; `g` is one of the job's groups. A panel begins where a unit does, and the thread's
        // room for it is its own.
        unsafe {
            let group = job.groups.add(g * job.group_bytes);
            let (output, stride) = output_of(job, g);
            for first in (0..blocks).step_by(PANEL_BLOCKS) {
                let part = first..blocks.min(first + PANEL_BLOCKS);
                let units =
                    std::slice::from_raw_parts(group.add(first * block_bytes), part.len() * block_bytes);
                let words = part.len() * C::DECODED_BYTES / 4;
                S::decode_units(job.format, units, std::slice::from_raw_parts_mut(job.decoded.cast(), words));
                let source = Decoded::<C>::starting_with(first, job.decoded);
                walk::<S, C, _>(source, job, plan, part, output, stride);
            }
            finish_output(job, g);
        }
    }
}

/// Where group `g` writes its 32 columns: the job's own output when all of them are real, else the staging area.
#[inline(always)]
pub(super) fn output_of(job: &GroupJob, g: usize) -> (*mut f32, usize) {
    let first = g * GROUP_ROWS;
    if job.outputs - first >= GROUP_ROWS {
        (job.output.wrapping_add(first), job.output_stride)
    } else {
        (job.staging, GROUP_ROWS)
    }
}

/// Copies the real columns of a partly padded group from the staging area.
///
/// # Safety
/// As for [`super::run`]; group `g` has been computed where [`output_of`] says.
#[inline(always)]
pub(super) unsafe fn finish_output(job: &GroupJob, g: usize) {
    let first = g * GROUP_ROWS;
    let columns = job.outputs - first;
    if columns >= GROUP_ROWS {
        return;
    }
    for i in 0..job.m {
        // SAFETY: `columns` outputs of row i from `first` on, and the staging area's row i.
        unsafe {
            let to = job.output.add(i * job.output_stride + first);
            std::ptr::copy_nonoverlapping(job.staging.add(i * GROUP_ROWS), to, columns);
        }
    }
}

/// All rows of activations by some blocks of one group, in balanced tiles.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn walk<S: Simd, C: Codes, G: Source>(
    source: G,
    job: &GroupJob,
    plan: Plan,
    blocks: Range<usize>,
    output: *mut f32,
    stride: usize,
) {
    let tiles = job.m.div_ceil(plan.tile_rows);
    let (rows, longer) = (job.m / tiles, job.m % tiles);
    let mut from = blocks.start;
    while from < blocks.end {
        let part = from..blocks.end.min(from + plan.blocks);
        let mut row = 0;
        for t in 0..tiles {
            let count = rows + usize::from(t < longer);
            let tile = Tile {
                row,
                blocks: part.clone(),
                ahead: if t + 1 == tiles { plan.ahead } else { 0 },
                output: output.wrapping_add(row * stride),
                stride,
            };
            // SAFETY: as the caller promises.
            unsafe { tile_of::<S, C, G>(count, source, job, &tile) };
            row += count;
        }
        from = part.end;
    }
}

/// One tile's place.
struct Tile {
    /// first row of activations
    row: usize,
    blocks: Range<usize>,
    ahead: usize,
    /// where the tile's first row has the group's first column
    output: *mut f32,
    stride: usize,
}

/// Picks the compiled tile for `count` rows.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn tile_of<S: Simd, C: Codes, G: Source>(count: usize, source: G, job: &GroupJob, tile: &Tile) {
    macro_rules! pick {
        ($($n:literal)*) => {
            match count {
                $($n => for first in (0..GROUP_ROWS / S::LANES).step_by(2) {
                    multiply_tile::<S, C, G, $n, 2>(source, job, tile, first);
                },)*
                _ => unreachable!("a tile of {count} rows"),
            }
        };
    }
    // SAFETY: as the caller promises; every vector of the group is in one of the tiles.
    unsafe {
        match (S::TILE_ROWS, count) {
            // A single row leaves 16 registers enough for all 32 lanes: one linear walk.
            (3, 1) => multiply_tile::<S, C, G, 1, 4>(source, job, tile, 0),
            (3, _) => pick!(2 3),
            _ => pick!(1 2 3 4 5 6 7 8),
        }
    }
}

/// `M` rows of activations by `N` vectors of rows from `first` on: the order contract of [`super`].
///
/// # Safety
/// As for [`super::run`].
#[allow(clippy::needless_range_loop, reason = "the loops are over registers of several arrays at once")]
#[inline(always)]
unsafe fn multiply_tile<S: Simd, C: Codes, G: Source, const M: usize, const N: usize>(
    source: G,
    job: &GroupJob,
    tile: &Tile,
    first: usize,
) {
    let blocks = job.cols / BLOCK_COLS;
    let rows = job.rows.starting_at(tile.row, job.cols, C::SPANS);
    let corrected = C::OFFSET != 0 && !(C::SIGNED && S::SIGNED_BYTES);
    // Sums end with their span.
    let quads_between_settles = S::quads_between_settles(C::LARGEST).min(QUADS / C::SPANS);
    // Else the compiler loads even vectors first, then odd ones: 88 % of what plain reads get from memory, in order 97 % (Q8_0).
    let in_order = G::IS_LINEAR && M <= FEW_ROWS && N * S::LANES == GROUP_ROWS;
    // SAFETY: as the caller promises: rows tile.row..tile.row + M of the activations, blocks and vectors of the group, and
    // 32 outputs of each of the M rows.
    unsafe {
        let output = |m: usize, n: usize| tile.output.add(m * tile.stride + (first + n) * S::LANES);
        let mut acc = [[S::floats(0.0); N]; M];
        if tile.blocks.start != 0 {
            for m in 0..M {
                for n in 0..N {
                    acc[m][n] = S::load_floats(output(m, n));
                }
            }
        }
        for b in tile.blocks.clone() {
            if !in_order {
                source.prefetch(b, 0..QUADS / 2, tile.ahead);
            }
            let mut partial = [[S::no_partial(); N]; M];
            let mut ints = [[S::ints(0); N]; M];
            for span in 0..C::SPANS {
                for m in 0..M {
                    let start =
                        if corrected { *rows.starts.add((m * blocks + b) * C::SPANS + span) } else { 0 };
                    ints[m] = [S::ints(start); N];
                }
                for pair in span * QUADS / 2 / C::SPANS..(span + 1) * QUADS / 2 / C::SPANS {
                    if in_order {
                        compiler_fence(Ordering::SeqCst);
                        source.prefetch(b, pair..pair + 1, tile.ahead);
                    }
                    let mut weights = [[S::load_codes(source.codes(b)); 2]; N];
                    for n in 0..N {
                        weights[n] = source.pair::<S>(b, pair, first + n);
                    }
                    for side in 0..2 {
                        let quad = 2 * pair + side;
                        for m in 0..M {
                            let x =
                                S::four_activations(rows.codes.add(m * job.cols + b * BLOCK_COLS + 4 * quad));
                            for n in 0..N {
                                S::dot(&mut ints[m][n], &mut partial[m][n], C::SIGNED, weights[n][side], x);
                            }
                        }
                        if (quad + 1) % quads_between_settles == 0 {
                            settle::<S, M, N>(&mut ints, &mut partial);
                        }
                    }
                }
                add_span::<S, C, G, M, N>(source, &rows, [blocks, b, span, first], &ints, &mut acc);
            }
        }
        for m in 0..M {
            for n in 0..N {
                S::store_floats(output(m, n), acc[m][n]);
            }
        }
    }
}

/// Adds a span's exact sums to the outputs: the two `fma` of the order contract. The place is the blocks of a row, the block,
/// its span and the first vector.
///
/// # Safety
/// As for [`multiply_tile`].
#[allow(clippy::needless_range_loop, reason = "the loops are over registers of several arrays at once")]
#[inline(always)]
unsafe fn add_span<S: Simd, C: Codes, G: Source, const M: usize, const N: usize>(
    source: G,
    rows: &Rows,
    [blocks, b, span, first]: [usize; 4],
    ints: &[[S::Ints; N]; M],
    acc: &mut [[S::Floats; N]; M],
) {
    // SAFETY: as the caller promises.
    unsafe {
        for n in 0..N {
            let (weight_scale, minimum) = source.scales::<S>(b, span, first + n);
            for m in 0..M {
                let x = S::floats(*rows.scale.add(m * blocks + b));
                acc[m][n] = S::fma(S::mul(S::to_floats(ints[m][n]), x), weight_scale, acc[m][n]);
                if C::HAS_MINIMUM {
                    let sum = *rows.scaled_sum.add((m * blocks + b) * C::SPANS + span);
                    acc[m][n] = S::fma(minimum, S::floats(sum), acc[m][n]);
                }
            }
        }
    }
}

/// Moves all partial sums of a tile.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn settle<S: Simd, const M: usize, const N: usize>(
    ints: &mut [[S::Ints; N]; M],
    partial: &mut [[S::Partial; N]; M],
) {
    for m in 0..M {
        for n in 0..N {
            // SAFETY: as the caller promises.
            unsafe { S::settle(&mut ints[m][n], &mut partial[m][n]) };
        }
    }
}
