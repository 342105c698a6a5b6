//! One tile: up to 12 rows with one range of keys. Steps 3 to 6 of the contract.
//!
//! Lanes are keys in the first product and dimensions in the second: nothing is summed across lanes but l and S, once a
//! range, so a row's bits do not depend on its neighbours in the tile. Masked keys are exact no-ops.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over register arrays have compile-time bounds and unroll into registers"
)]

use std::ops::Range;

use super::{
    RANGE_KEYS,
    codec::{KeyCodec, ValueCodec, query_units, with_codec},
};
use crate::backend::{KvCodec, KvFormat, KvLayer};
use crate::cpu::{
    kv::{GROUP_TOKENS, MAX_HEAD_DIM, Q8_GROUP_DIMS},
    math::{exp2, tanh},
    simd::{LANES, Simd},
};

/// Rows of a tile at most: 12 x 2 accumulators fill the registers of AVX-512.
pub(super) const TILE_ROWS: usize = 12;
/// Groups of a range.
pub(super) const RANGE_GROUPS: usize = RANGE_KEYS / GROUP_TOKENS;

/// Sets of weight codes that a row can have: one for each 64 dimensions.
const WEIGHT_SETS: usize = MAX_HEAD_DIM / Q8_GROUP_DIMS;

/// Addresses of the groups of one KV head in one range. Those outside the visible ones may be anything.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub(super) keys: [*const u8; RANGE_GROUPS],
    pub(super) values: [*const u8; RANGE_GROUPS],
}

/// The scores or weights of a row, by group.
pub(super) type RowScores = [[f32; LANES]; RANGE_GROUPS];
/// The weights of a row as codes, by group.
pub(super) type RowCodes = [[i16; LANES]; RANGE_GROUPS];

/// What a tile computes with, and its results.
#[repr(align(64))]
pub(super) struct TileScratch {
    /// Scores, then weights.
    pub(super) scores: [RowScores; TILE_ROWS],
    /// Weights as codes, set after set.
    pub(super) codes: [[RowCodes; TILE_ROWS]; WEIGHT_SETS],
    /// 1 / factor of the codes, a set and row.
    pub(super) code_scales: [[f32; LANES]; WEIGHT_SETS],
    /// `m_r` of each row that sees a key.
    pub(super) max: [f32; LANES],
    /// `l_r` of each row that sees a key.
    pub(super) sum: [f32; LANES],
    /// `O_r` of each row that sees a key, at `row * v_dim`.
    pub(super) out: [f32; TILE_ROWS * MAX_HEAD_DIM],
}

impl TileScratch {
    pub(super) const ZERO: Self = Self {
        scores: [[[0.0; LANES]; RANGE_GROUPS]; TILE_ROWS],
        codes: [[[[0; LANES]; RANGE_GROUPS]; TILE_ROWS]; WEIGHT_SETS],
        code_scales: [[0.0; LANES]; WEIGHT_SETS],
        max: [0.0; LANES],
        sum: [0.0; LANES],
        out: [0.0; TILE_ROWS * MAX_HEAD_DIM],
    };
}

/// The operands of a tile.
pub(super) struct Tile<'a> {
    pub(super) format: KvFormat,
    pub(super) layer: KvLayer,
    /// Encoded queries: `k_dim / unit` x 12.
    pub(super) queries: &'a [u32],
    /// A scale a row.
    pub(super) scales: &'a [f32],
    /// The visible keys of each row, counted from the range's start; empty when it sees none.
    pub(super) visible: &'a [Range<usize>],
    /// The softcap in log2 units.
    pub(super) softcap: Option<f32>,
    pub(super) here: &'a Groups,
    /// Keys or values to fetch during the first product.
    pub(super) fetch_first: &'a [*const u8; RANGE_GROUPS],
    /// Likewise during the second one.
    pub(super) fetch_second: &'a [*const u8; RANGE_GROUPS],
}

/// Calls `$kernel::<S, ROWS, $vectors>` for pieces of `$rows` rows from `$row` on.
macro_rules! for_row_pieces {
    ($simd:ident, $rows:expr, $row:ident, $vectors:literal, $kernel:ident $args:tt) => {
        let mut $row = 0;
        while $row < $rows {
            let left = $rows - $row;
            for_row_pieces!(@try $simd, $row, left, $vectors, $kernel, $args, [12 8 7 6 4 3 2 1]);
        }
    };
    (@try $simd:ident, $row:ident, $left:ident, $vectors:literal, $kernel:ident, $args:tt, [$n:literal $($rest:literal)*]) => {
        if $simd::TILE_ROWS >= $n && $left >= $n {
            for_row_pieces!(@call $kernel, $simd, $n, $vectors, $args);
            $row += $n;
        } else {
            for_row_pieces!(@try $simd, $row, $left, $vectors, $kernel, $args, [$($rest)*]);
        }
    };
    (@try $simd:ident, $row:ident, $left:ident, $vectors:literal, $kernel:ident, $args:tt, []) => {
        unreachable!("a piece of one row always fits")
    };
    (@call $kernel:ident, $simd:ident, $n:literal, $vectors:literal, ($($arg:expr),*)) => {
        // SAFETY: `compute`'s caller vouches for the groups; the scratch covers a whole tile of 256 keys and 256
        // dimensions, the queries and scales were checked to cover the tile's rows.
        unsafe { C::$kernel::<$simd, $n, $vectors>($($arg),*) }
    };
}

/// Evaluates `$body` for the rows of the slice `$rows`, block after block, with `$block: &mut [T; $N]` and `$row`, its first
/// row: `$N` is 3 and, for what is left, 1. Rows of a block fill what one alone would wait for: its chain of sums.
macro_rules! for_row_blocks {
    ($rows:expr, $N:ident, $row:ident, $block:ident => $body:expr) => {
        let (blocks, rest) = $rows.as_chunks_mut::<3>();
        let full = blocks.len() * 3;
        for ($row, $block) in (0..).step_by(3).zip(blocks) {
            const $N: usize = 3;
            $body
        }
        for ($row, $block) in (full..).zip(rest) {
            const $N: usize = 1;
            let $block = std::array::from_mut($block);
            $body
        }
    };
}
pub(super) use for_row_blocks;

/// Fills `max`, `sum` and `out` for the rows that see a key of this range.
///
/// # Safety
/// `tile.here` points, for each group that a row sees, at a K and a V group of the layer's dimensions.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd>(s: S, tile: &Tile<'_>, scratch: &mut TileScratch) {
    let rows = tile.visible.len();
    let seen = || tile.visible.iter().filter(|keys| !keys.is_empty());
    let first = seen().map(|keys| keys.start / GROUP_TOKENS).min().unwrap_or(0);
    let end = seen().map(|keys| keys.end.div_ceil(GROUP_TOKENS)).max().unwrap_or(0);
    assert!(rows <= TILE_ROWS && end <= RANGE_GROUPS && tile.scales.len() >= rows);
    let KvFormat { keys, values } = tile.format;
    assert!(tile.queries.len() >= query_units(keys, tile.layer.k_dim) * TILE_ROWS);
    // SAFETY: the caller's promise; sizes are checked above.
    with_codec!(keys, C => unsafe { all_scores::<C, S>(s, tile, first..end, scratch) });
    maxima(s, tile, first..end, scratch);
    // SAFETY: as above; the groups are visible to some row of the tile.
    with_codec!(values, C => unsafe { all_outputs::<C, S>(s, tile, first..end, scratch) });
}

/// # Safety
/// As [`compute`]; sizes are checked.
#[inline(always)]
unsafe fn all_scores<C: KeyCodec, S: Simd>(
    s: S,
    tile: &Tile<'_>,
    groups: Range<usize>,
    scratch: &mut TileScratch,
) {
    let (dim, rows) = (tile.layer.k_dim, tile.visible.len());
    let (queries, scales) = (tile.queries.as_ptr(), tile.scales.as_ptr());
    let (keys, fetch) = (&tile.here.keys, tile.fetch_first);
    let mut g = groups.start;
    while g < groups.end {
        let scores = scratch.scores.as_flattened_mut()[g..].as_mut_ptr().cast::<f32>();
        if S::TILE_VECTORS >= 2 && g + 2 <= groups.end {
            for_row_pieces!(
                S,
                rows,
                row,
                2,
                scores(
                    s,
                    dim,
                    queries.add(row),
                    scales.add(row),
                    [keys[g], keys[g + 1]],
                    [fetch[g], fetch[g + 1]],
                    scores.add(row * RANGE_KEYS)
                )
            );
            g += 2;
        } else {
            for_row_pieces!(
                S,
                rows,
                row,
                1,
                scores(
                    s,
                    dim,
                    queries.add(row),
                    scales.add(row),
                    [keys[g]],
                    [fetch[g]],
                    scores.add(row * RANGE_KEYS)
                )
            );
            g += 1;
        }
    }
}

/// # Safety
/// As [`compute`]; sizes are checked.
#[inline(always)]
unsafe fn all_outputs<C: ValueCodec, S: Simd>(
    s: S,
    tile: &Tile<'_>,
    groups: Range<usize>,
    scratch: &mut TileScratch,
) {
    let (rows, dim) = (tile.visible.len(), tile.layer.v_dim);
    // SAFETY: the caller's promise.
    unsafe { C::encode_weights(s, dim, rows, groups.clone(), tile.here, scratch) };
    let (weights, scales, out) =
        (C::weights(scratch), scratch.code_scales.as_ptr(), scratch.out.as_mut_ptr());
    let (values, fetch) = (&tile.here.values, tile.fetch_second);
    let mut chunk = 0;
    while chunk < dim / LANES {
        let set = chunk / C::WEIGHT_CHUNKS;
        let weights = weights.wrapping_add(set * TILE_ROWS * RANGE_KEYS);
        let scales = scales.wrapping_add(set).cast::<f32>();
        if S::TILE_VECTORS >= 2 && chunk + 2 <= dim / LANES {
            for_row_pieces!(
                S,
                rows,
                row,
                2,
                outputs(
                    s,
                    dim,
                    chunk,
                    groups.clone(),
                    weights.add(row * RANGE_KEYS),
                    scales.add(row),
                    values,
                    fetch,
                    out.add(row * dim)
                )
            );
            chunk += 2;
        } else {
            for_row_pieces!(
                S,
                rows,
                row,
                1,
                outputs(
                    s,
                    dim,
                    chunk,
                    groups.clone(),
                    weights.add(row * RANGE_KEYS),
                    scales.add(row),
                    values,
                    fetch,
                    out.add(row * dim)
                )
            );
            chunk += 1;
        }
    }
}

/// Softcap, mask and max, over the groups that the tile sees.
#[inline(always)]
fn maxima<S: Simd>(s: S, tile: &Tile<'_>, groups: Range<usize>, scratch: &mut TileScratch) {
    let rows = &mut scratch.scores[..tile.visible.len()];
    if let Some(cap) = tile.softcap {
        let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
        for lanes in rows.iter_mut().flat_map(|scores| &mut scores[groups.clone()]) {
            s.store(s.mul(tanh(s, s.mul(s.load(lanes), inverse)), cap), lanes);
        }
    }
    for (scores, visible) in rows.iter_mut().zip(tile.visible) {
        mask(s, visible, groups.start, &mut scores[groups.clone()]);
    }
    for_row_blocks!(rows, ROWS, row, block => {
        let mut max = [s.splat(f32::NEG_INFINITY); ROWS];
        for g in groups.clone() {
            for r in 0..ROWS {
                max[r] = s.max(max[r], s.load(&block[r][g]));
            }
        }
        for r in 0..ROWS {
            scratch.max[row + r] = s.reduce_max(max[r]);
        }
    });
}

/// The weights of some rows in place of their scores, and the sum of each row. Hands the weights of each group on as they
/// are made.
#[inline(always)]
pub(super) fn exponents<S: Simd, const ROWS: usize>(
    s: S,
    scores: &mut [RowScores; ROWS],
    groups: Range<usize>,
    max: &[f32],
    sums: &mut [f32],
    mut made: impl FnMut(usize, [S::F; ROWS]),
) {
    // Every score is -inf where the row sees no key, -inf or NaN after an overflow; 0 keeps the differences from turning
    // the former into the latter.
    let mut base = [s.splat(0.0); ROWS];
    for row in 0..ROWS {
        base[row] = s.splat(if max[row] == f32::NEG_INFINITY { 0.0 } else { max[row] });
    }
    let mut sum = [s.splat(0.0); ROWS];
    for g in groups {
        let mut p = [s.splat(0.0); ROWS];
        for row in 0..ROWS {
            p[row] = exp2(s, s.sub(s.load(&scores[row][g]), base[row]));
            sum[row] = s.add(sum[row], p[row]);
            s.store(p[row], &mut scores[row][g]);
        }
        made(g, p);
    }
    for row in 0..ROWS {
        sums[row] = s.reduce_add(sum[row]);
    }
}

/// Scores of keys that the row does not see become -inf. `scores` begin at group `first`.
#[inline(always)]
fn mask<S: Simd>(s: S, visible: &Range<usize>, first: usize, scores: &mut [[f32; LANES]]) {
    if visible.start <= first * GROUP_TOKENS && (first + scores.len()) * GROUP_TOKENS <= visible.end {
        return;
    }
    for (g, lanes) in scores.iter_mut().enumerate() {
        let start = (first + g) * GROUP_TOKENS;
        if visible.start <= start && start + GROUP_TOKENS <= visible.end {
            continue;
        }
        let below = visible.start.saturating_sub(start).min(GROUP_TOKENS);
        let up_to = visible.end.saturating_sub(start).min(GROUP_TOKENS);
        let keep = ((1u32 << up_to) - 1) & !((1u32 << below) - 1);
        s.store(s.select_bits(keep as u16, s.load(lanes), s.splat(f32::NEG_INFINITY)), lanes);
    }
}
