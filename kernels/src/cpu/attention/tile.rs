//! One tile: up to 12 rows with one range of keys. Steps 3 to 6 of the contract.
//!
//! Lanes are keys in the first product and dimensions in the second: nothing is summed across lanes but l and S, once a
//! range, so a row's bits do not depend on its neighbours in the tile. Masked keys are exact no-ops.

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

impl Groups {
    pub(super) const NONE: Self =
        Self { keys: [std::ptr::null(); RANGE_GROUPS], values: [std::ptr::null(); RANGE_GROUPS] };
}

/// What a tile computes with, and its results.
#[repr(align(64))]
pub(super) struct TileScratch {
    /// Scores, then weights.
    pub(super) scores: [f32; TILE_ROWS * RANGE_KEYS],
    /// Weights as codes, set after set.
    pub(super) codes: [i16; WEIGHT_SETS * TILE_ROWS * RANGE_KEYS],
    /// 1 / factor of the codes, a set and row.
    pub(super) code_scales: [f32; WEIGHT_SETS * TILE_ROWS],
    /// `m_r` of each row that sees a key.
    pub(super) max: [f32; TILE_ROWS],
    /// `l_r` of each row that sees a key.
    pub(super) sum: [f32; TILE_ROWS],
    /// `O_r` of each row that sees a key, at `row * 256`.
    pub(super) out: [f32; TILE_ROWS * MAX_HEAD_DIM],
}

impl TileScratch {
    pub(super) const ZERO: Self = Self {
        scores: [0.0; TILE_ROWS * RANGE_KEYS],
        codes: [0; WEIGHT_SETS * TILE_ROWS * RANGE_KEYS],
        code_scales: [0.0; WEIGHT_SETS * TILE_ROWS],
        max: [0.0; TILE_ROWS],
        sum: [0.0; TILE_ROWS],
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
    /// What to fetch meanwhile.
    pub(super) next: &'a Groups,
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
    for row in (0..rows).filter(|&row| !tile.visible[row].is_empty()) {
        softmax_row(s, tile, row, first..end, scratch);
    }
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
    let (keys, next) = (&tile.here.keys, &tile.next.keys);
    let mut g = groups.start;
    while g < groups.end {
        let scores = scratch.scores[g * GROUP_TOKENS..].as_mut_ptr();
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
                    [next[g], next[g + 1]],
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
                    [next[g]],
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
    let rows = tile.visible.len();
    for row in (0..rows).filter(|&row| !tile.visible[row].is_empty()) {
        // SAFETY: the caller's promise.
        unsafe {
            C::encode_weights(s, tile.layer.v_dim, row, groups.clone(), tile.here, tile.next, scratch);
        }
    }
    let (weights, scales, out) =
        (C::weights(scratch), scratch.code_scales.as_ptr(), scratch.out.as_mut_ptr());
    let (values, next) = (&tile.here.values, &tile.next.values);
    let mut chunk = 0;
    while chunk < tile.layer.v_dim / LANES {
        let first = chunk / C::WEIGHT_CHUNKS * TILE_ROWS;
        if S::TILE_VECTORS >= 2 && chunk + 2 <= tile.layer.v_dim / LANES {
            for_row_pieces!(
                S,
                rows,
                row,
                2,
                outputs(
                    s,
                    chunk,
                    groups.clone(),
                    weights.add((first + row) * RANGE_KEYS),
                    scales.add(first + row),
                    values,
                    next,
                    out.add(row * MAX_HEAD_DIM)
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
                    chunk,
                    groups.clone(),
                    weights.add((first + row) * RANGE_KEYS),
                    scales.add(first + row),
                    values,
                    next,
                    out.add(row * MAX_HEAD_DIM)
                )
            );
            chunk += 1;
        }
    }
}

/// Softcap, mask, max, weights and their sum for one row, over the groups that the tile sees.
#[inline(always)]
fn softmax_row<S: Simd>(s: S, tile: &Tile<'_>, row: usize, groups: Range<usize>, scratch: &mut TileScratch) {
    let scores = &mut scratch.scores[row * RANGE_KEYS..(row + 1) * RANGE_KEYS].as_chunks_mut::<LANES>().0
        [groups.clone()];
    if let Some(cap) = tile.softcap {
        let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
        for lanes in scores.iter_mut() {
            s.store(s.mul(tanh(s, s.mul(s.load(lanes), inverse)), cap), lanes);
        }
    }
    mask(s, &tile.visible[row], groups.start, scores);
    let mut max = s.splat(f32::NEG_INFINITY);
    for lanes in scores.iter() {
        max = s.max(max, s.load(lanes));
    }
    let max = s.reduce_max(max);
    scratch.max[row] = max;
    // Every score is -inf or NaN only after an overflow; 0 keeps the differences from turning the former into the latter.
    let base = s.splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
    let mut sum = s.splat(0.0);
    for lanes in scores.iter_mut() {
        let p = exp2(s, s.sub(s.load(lanes), base));
        sum = s.add(sum, p);
        s.store(p, lanes);
    }
    scratch.sum[row] = s.reduce_add(sum);
}

/// Scores of keys that the row does not see become -inf. `scores` begin at group `first`.
#[inline(always)]
fn mask<S: Simd>(s: S, visible: &Range<usize>, first: usize, scores: &mut [[f32; LANES]]) {
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
