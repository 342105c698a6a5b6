//! One tile: up to 12 rows with one range of keys. Steps 3 to 6 of the contract.
//!
//! Lanes are keys in the first product and dimensions in the second: nothing is summed across lanes but l and S, once a
//! range, so a row's bits do not depend on its neighbours in the tile. Masked keys are exact no-ops.

use std::ops::Range;

use super::{RANGE_KEYS, codec::Codec};
use crate::backend::KvLayer;
use crate::cpu::{
    kv::{GROUP_TOKENS, MAX_HEAD_DIM},
    math::{exp2, tanh},
    simd::{LANES, Simd},
};

/// Rows of a tile at most: 12 x 2 accumulators fill the registers of AVX-512.
pub(super) const TILE_ROWS: usize = 12;
/// Groups of a range.
pub(super) const RANGE_GROUPS: usize = RANGE_KEYS / GROUP_TOKENS;

/// Weights times scales of values at or below 2^-100 count as zero: their inverse would leave the range of f32.
const WEIGHT_FLOOR: f32 = 7.888_609e-31;

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
    scores: [f32; TILE_ROWS * RANGE_KEYS],
    /// Weights as codes.
    codes: [i16; TILE_ROWS * RANGE_KEYS],
    /// 1 / factor of the codes, a row.
    code_scales: [f32; TILE_ROWS],
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
        codes: [0; TILE_ROWS * RANGE_KEYS],
        code_scales: [0.0; TILE_ROWS],
        max: [0.0; TILE_ROWS],
        sum: [0.0; TILE_ROWS],
        out: [0.0; TILE_ROWS * MAX_HEAD_DIM],
    };
}

/// The operands of a tile.
pub(super) struct Tile<'a> {
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
pub(super) unsafe fn compute<C: Codec, S: Simd>(s: S, tile: &Tile<'_>, scratch: &mut TileScratch) {
    let rows = tile.visible.len();
    let seen = || tile.visible.iter().filter(|keys| !keys.is_empty());
    let first = seen().map(|keys| keys.start / GROUP_TOKENS).min().unwrap_or(0);
    let end = seen().map(|keys| keys.end.div_ceil(GROUP_TOKENS)).max().unwrap_or(0);
    assert!(rows <= TILE_ROWS && end <= RANGE_GROUPS && tile.scales.len() >= rows);
    assert!(tile.queries.len() >= tile.layer.k_dim / C::QUERY_UNIT * TILE_ROWS);
    // SAFETY: the caller's promise; sizes are checked above.
    unsafe { all_scores::<C, S>(s, tile, first..end, scratch) };
    for row in 0..rows {
        if !tile.visible[row].is_empty() {
            // SAFETY: the groups are visible to some row of the tile.
            unsafe { softmax_row::<C, S>(s, tile, row, first..end, scratch) };
        }
    }
    // SAFETY: as above.
    unsafe { all_outputs::<C, S>(s, tile, first..end, scratch) };
}

/// # Safety
/// As [`compute`]; sizes are checked.
#[inline(always)]
unsafe fn all_scores<C: Codec, S: Simd>(
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
unsafe fn all_outputs<C: Codec, S: Simd>(
    s: S,
    tile: &Tile<'_>,
    groups: Range<usize>,
    scratch: &mut TileScratch,
) {
    let rows = tile.visible.len();
    let weights: *const C::Weight =
        if C::CODED { scratch.codes.as_ptr().cast() } else { scratch.scores.as_ptr().cast() };
    let (scales, out) = (scratch.code_scales.as_ptr(), scratch.out.as_mut_ptr());
    let (values, next) = (&tile.here.values, &tile.next.values);
    let mut chunk = 0;
    while chunk < tile.layer.v_dim / LANES {
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
                    weights.add(row * RANGE_KEYS),
                    scales.add(row),
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
                    weights.add(row * RANGE_KEYS),
                    scales.add(row),
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
///
/// # Safety
/// The values of `groups` are V groups of the layer's dimension.
#[inline(always)]
unsafe fn softmax_row<C: Codec, S: Simd>(
    s: S,
    tile: &Tile<'_>,
    row: usize,
    groups: Range<usize>,
    scratch: &mut TileScratch,
) {
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
    let (mut sum, mut largest, mut total) = (s.splat(0.0), s.splat(0.0), s.splat(0.0));
    let values = &tile.here.values[groups.clone()];
    let next = &tile.next.values[groups.clone()];
    let scales_at = tile.layer.v_dim * 2 * GROUP_TOKENS;
    for ((lanes, &value), &next) in scores.iter_mut().zip(values).zip(next) {
        let mut p = exp2(s, s.sub(s.load(lanes), base));
        sum = s.add(sum, p);
        if C::CODED {
            // SAFETY: the scales follow the codes of a V group.
            p = s.mul(p, s.load(unsafe { &*value.add(scales_at).cast() }));
            if row == 0 {
                s.prefetch(next.wrapping_add(scales_at));
            }
            largest = s.max(largest, p);
            total = s.add(total, p);
        }
        s.store(p, lanes);
    }
    scratch.sum[row] = s.reduce_add(sum);
    if C::CODED {
        let (largest, total) = (s.reduce_max(largest), s.reduce_add(total));
        let counts = largest > WEIGHT_FLOOR;
        let factor = if counts { (32767.0 / largest).min(520_000.0 / total) } else { 0.0 };
        scratch.code_scales[row] = if counts { 1.0 / factor } else { 0.0 };
        let codes =
            &mut scratch.codes[row * RANGE_KEYS..(row + 1) * RANGE_KEYS].as_chunks_mut::<LANES>().0[groups];
        for (lanes, codes) in scores.iter().zip(codes) {
            s.store_i16(s.round(s.mul(s.load(lanes), s.splat(factor))), codes);
        }
    }
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
