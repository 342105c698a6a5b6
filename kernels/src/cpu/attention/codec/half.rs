//! F16: half floats, products in f32.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over register arrays have compile-time bounds and unroll into registers"
)]

use std::ops::Range;

use super::{Codec, HUGE, KeyCodec, Measure, ValueCodec, fetch_part, put};
use crate::cpu::{
    attention::{
        RANGE_KEYS,
        tile::{Groups, TILE_ROWS, TileScratch, exponents, for_row_blocks},
    },
    kv::GROUP_TOKENS,
    simd::{LANES, Simd},
};

/// Bytes of 16 dimensions of a V group.
const CHUNK_BYTES: usize = 2 * GROUP_TOKENS * LANES;

/// Half floats.
pub(in crate::cpu::attention) struct F16;

impl Codec for F16 {
    const LIMIT: f32 = 65_504.0;
}

impl KeyCodec for F16 {
    const QUERY_UNIT: usize = 1;

    #[inline(always)]
    fn put_query<S: Simd>(s: S, x: &[f32], factor: f32, column: &mut [u32]) -> f32 {
        let valid = Measure::of(s, x).within(HUGE);
        for (dim, &x) in x.iter().enumerate() {
            column[dim * TILE_ROWS] = if valid { x * factor } else { f32::NAN }.to_bits();
        }
        1.0
    }

    #[inline(always)]
    fn put_key<S: Simd>(s: S, x: &[f32], measure: Option<Measure>, token: usize, group: &mut [u8]) {
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let mut halves = [0; LANES];
            let lanes = if measure.is_some() { s.load(lanes) } else { s.splat(f32::NAN) };
            s.store_f16(lanes, &mut halves);
            for (dim, half) in halves.iter().enumerate() {
                put(group, ((chunk * LANES + dim) * GROUP_TOKENS + token) * 2, half.to_ne_bytes());
            }
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const GROUPS: usize>(
        s: S,
        dim: usize,
        queries: *const u32,
        _scales: *const f32,
        keys: [*const u8; GROUPS],
        fetch: [*const u8; GROUPS],
        scores: *mut f32,
    ) {
        let mut sums = [[s.splat(0.0); GROUPS]; ROWS];
        for d in 0..dim {
            let mut halves = [s.splat(0.0); GROUPS];
            for g in 0..GROUPS {
                // SAFETY: a K group has dim vectors of 16 halves.
                halves[g] = s.load_f16(unsafe { &*keys[g].add(d * 32).cast() });
                s.prefetch(fetch[g].wrapping_add(d * 32));
            }
            for r in 0..ROWS {
                // SAFETY: the caller's promise on `queries`.
                let query = s.splat(f32::from_bits(unsafe { *queries.add(d * TILE_ROWS + r) }));
                for g in 0..GROUPS {
                    sums[r][g] = s.fma(query, halves[g], sums[r][g]);
                }
            }
        }
        for r in 0..ROWS {
            for g in 0..GROUPS {
                // SAFETY: the caller's promise on `scores`.
                s.store(sums[r][g], unsafe { &mut *scores.add(r * RANGE_KEYS + g * GROUP_TOKENS).cast() });
            }
        }
    }
}

impl ValueCodec for F16 {
    type Weight = f32;
    const WEIGHT_CHUNKS: usize = usize::MAX;

    #[inline(always)]
    fn put_value<S: Simd>(s: S, x: &[f32], _measure: Measure, token: usize, group: &mut [u8]) {
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let mut halves = [0; LANES];
            s.store_f16(s.load(lanes), &mut halves);
            for (dim, half) in halves.iter().enumerate() {
                put(group, chunk * CHUNK_BYTES + (token * LANES + dim) * 2, half.to_ne_bytes());
            }
        }
    }

    /// The f32 ones are what they have to be.
    #[inline(always)]
    unsafe fn encode_weights<S: Simd>(
        s: S,
        _dim: usize,
        rows: usize,
        groups: Range<usize>,
        _here: &Groups,
        scratch: &mut TileScratch,
    ) {
        let TileScratch { scores, max, sum, .. } = scratch;
        for_row_blocks!(scores[..rows], ROWS, row, block => {
            exponents::<S, ROWS>(s, block, groups.clone(), &max[row..], &mut sum[row..], |_, _| ());
        });
    }

    #[inline(always)]
    fn weights(scratch: &TileScratch) -> *const f32 {
        scratch.scores.as_ptr().cast()
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const CHUNKS: usize>(
        s: S,
        dim: usize,
        chunk: usize,
        groups: Range<usize>,
        weights: *const f32,
        _scales: *const f32,
        values: &[*const u8; LANES],
        fetch: &[*const u8; LANES],
        out: *mut f32,
    ) {
        let mut sums = [[s.splat(0.0); CHUNKS]; ROWS];
        for g in groups {
            let from = values[g].wrapping_add(chunk * CHUNK_BYTES);
            let (fetch, _) = fetch_part(fetch, dim, chunk, CHUNKS, g, CHUNK_BYTES);
            for token in 0..GROUP_TOKENS {
                let mut halves = [s.splat(0.0); CHUNKS];
                for c in 0..CHUNKS {
                    let at = c * CHUNK_BYTES + token * 32;
                    // SAFETY: the caller's promise on `values`.
                    halves[c] = s.load_f16(unsafe { &*from.add(at).cast() });
                    s.prefetch(fetch.wrapping_add(at));
                }
                for r in 0..ROWS {
                    // SAFETY: the caller's promise on `weights`.
                    let weight = s.splat(unsafe { *weights.add(r * RANGE_KEYS + g * GROUP_TOKENS + token) });
                    for c in 0..CHUNKS {
                        sums[r][c] = s.fma(weight, halves[c], sums[r][c]);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for c in 0..CHUNKS {
                // SAFETY: the caller's promise on `out`.
                s.store(sums[r][c], unsafe { &mut *out.add(r * dim + (chunk + c) * LANES).cast() });
            }
        }
    }
}
