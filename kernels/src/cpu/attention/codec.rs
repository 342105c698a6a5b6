//! The KV formats: how vectors are encoded, and the register tiles of both products.
//!
//! The products are told addresses, not slices: [`super::work`] vouches that each points at a whole group.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over register arrays have compile-time bounds and unroll into registers"
)]

use std::ops::Range;

use super::tile::TILE_ROWS;
use crate::cpu::{
    kv::{GROUP_TOKENS, MAX_HEAD_DIM},
    simd::{LANES, Simd},
};

use super::RANGE_KEYS;

/// Magnitudes below count as zero: their squares would leave the normal range of f32.
const TINY: f32 = 1.387_778_8e-17; // 2^-56
/// Magnitudes above poison: the sum of their squares might overflow.
const HUGE: f32 = 72_057_594_037_927_936.0; // 2^56
/// Bound of the 2-norm of K and q codes: any two have a dot product inside i32, roundings included.
const CODE_NORM: f32 = 46_300.0;
/// Bound of V codes, so that 16 bits of weights and 12 bits of value, summed over a range, stay inside i32.
const VALUE_CODE: f32 = 4095.0;
/// Bytes of 16 dimensions of a V group, in both formats.
const VALUE_CHUNK_BYTES: usize = 2 * GROUP_TOKENS * LANES;

/// Size of a vector.
#[derive(Clone, Copy)]
pub(super) struct Measure {
    /// Largest magnitude.
    largest: f32,
    /// Sum of squares: not finite when a component is not.
    norm2: f32,
}

impl Measure {
    pub(super) const ZERO: Self = Self { largest: 0.0, norm2: 0.0 };

    /// Step 1 of the contract. `x` is a multiple of 16 long.
    #[inline(always)]
    pub(super) fn of<S: Simd>(s: S, x: &[f32]) -> Self {
        let (mut largest, mut norm2) = (s.splat(0.0), s.splat(0.0));
        for lanes in x.as_chunks::<LANES>().0 {
            let lanes = s.load(lanes);
            largest = s.max(largest, s.abs(lanes));
            norm2 = s.fma(lanes, lanes, norm2);
        }
        Self { largest: s.reduce_max(largest), norm2: s.reduce_add(norm2) }
    }

    /// Whether all components are numbers of at most `limit`.
    #[inline(always)]
    pub(super) fn within(self, limit: f32) -> bool {
        self.largest <= limit && self.norm2 <= f32::MAX
    }

    /// What makes i16 codes of a K or q.
    #[inline(always)]
    fn code_factor(self) -> f32 {
        if self.largest < TINY { 0.0 } else { (32767.0 / self.largest).min(CODE_NORM / self.norm2.sqrt()) }
    }
}

/// A KV format. Groups are whole and of the dimension that is said.
pub(super) trait Codec {
    /// Weights are i16 codes, values and keys carry a scale a token.
    const CODED: bool;
    /// Largest magnitude that K and V may have.
    const LIMIT: f32;
    /// Dimensions of a unit of a query: the 32 bits that are broadcast.
    const QUERY_UNIT: usize;
    /// What the second product multiplies with.
    type Weight: Copy;

    /// Writes a query row, times `factor`, as every [`TILE_ROWS`]th element of `column`; returns its scale.
    fn put_query<S: Simd>(s: S, x: &[f32], factor: f32, column: &mut [u32]) -> f32;
    /// Writes a key within the limit, or poison, as token `token` of `group`.
    fn put_key<S: Simd>(s: S, x: &[f32], measure: Option<Measure>, token: usize, group: &mut [u8]);
    /// Writes a value within the limit as token `token` of `group`.
    fn put_value<S: Simd>(s: S, x: &[f32], measure: Measure, token: usize, group: &mut [u8]);

    /// Scores of `ROWS` rows with `GROUPS` groups of keys, which are written at `scores[row * 256 + group * 16]`. Asks
    /// for the same places of the groups at `next` to be fetched.
    ///
    /// # Safety
    /// `keys` point at K groups of `dim` dimensions; `queries` at `dim / QUERY_UNIT` x 12 units, of which the first
    /// `ROWS` of each 12 are used; `scales` at `ROWS`, `scores` at what is written.
    unsafe fn scores<S: Simd, const ROWS: usize, const GROUPS: usize>(
        s: S,
        dim: usize,
        queries: *const u32,
        scales: *const f32,
        keys: [*const u8; GROUPS],
        next: [*const u8; GROUPS],
        scores: *mut f32,
    );

    /// The weighted sum of the values of `groups` for `ROWS` rows, `CHUNKS` x 16 dimensions from `chunk` x 16 on, written
    /// at `out[row * 256 + dimension]`. Asks for the same places of the groups at `next` to be fetched.
    ///
    /// # Safety
    /// `values[groups]` point at V groups that have these dimensions; `weights` at `ROWS x 256`, `scales` at `ROWS`, `out`
    /// at what is written.
    #[allow(clippy::too_many_arguments, reason = "the operands of a product")]
    unsafe fn outputs<S: Simd, const ROWS: usize, const CHUNKS: usize>(
        s: S,
        chunk: usize,
        groups: Range<usize>,
        weights: *const Self::Weight,
        scales: *const f32,
        values: &[*const u8; LANES],
        next: &[*const u8; LANES],
        out: *mut f32,
    );
}

/// i16 codes with a scale a token and head.
pub(super) struct I16;

/// Half floats.
pub(super) struct F16;

#[inline(always)]
fn put<const N: usize>(group: &mut [u8], at: usize, bytes: [u8; N]) {
    group[at..at + N].copy_from_slice(&bytes);
}

/// Sixteen codes of `x * factor`.
#[inline(always)]
fn codes<S: Simd>(s: S, x: &[f32; LANES], factor: f32) -> [i16; LANES] {
    let mut codes = [0; LANES];
    s.store_i16(s.round(s.mul(s.load(x), s.splat(factor))), &mut codes);
    codes
}

/// Two codes as a unit.
#[inline(always)]
fn unit(codes: &[i16], pair: usize) -> u32 {
    u32::from(codes[2 * pair] as u16) | u32::from(codes[2 * pair + 1] as u16) << 16
}

impl Codec for I16 {
    const CODED: bool = true;
    const LIMIT: f32 = HUGE;
    const QUERY_UNIT: usize = 2;
    type Weight = i16;

    #[inline(always)]
    fn put_query<S: Simd>(s: S, x: &[f32], factor: f32, column: &mut [u32]) -> f32 {
        let measure = Measure::of(s, x);
        let valid = measure.within(HUGE);
        let inverse = if valid { measure.code_factor() } else { 0.0 };
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let codes = if inverse > 0.0 { codes(s, lanes, inverse) } else { [0; LANES] };
            for pair in 0..LANES / 2 {
                column[(chunk * LANES / 2 + pair) * TILE_ROWS] = unit(&codes, pair);
            }
        }
        match (valid, inverse > 0.0) {
            (false, _) => f32::NAN,
            (_, false) => 0.0,
            _ => factor / inverse,
        }
    }

    #[inline(always)]
    fn put_key<S: Simd>(s: S, x: &[f32], measure: Option<Measure>, token: usize, group: &mut [u8]) {
        let inverse = measure.map_or(0.0, Measure::code_factor);
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let codes = if inverse > 0.0 { codes(s, lanes, inverse) } else { [0; LANES] };
            for pair in 0..LANES / 2 {
                let at = (chunk * LANES / 2 + pair) * 4 * GROUP_TOKENS + token * 4;
                put(group, at, unit(&codes, pair).to_ne_bytes());
            }
        }
        let scale = match measure {
            None => f32::NAN,
            Some(_) if inverse > 0.0 => 1.0 / inverse,
            Some(_) => 0.0,
        };
        put(group, x.len() * 2 * GROUP_TOKENS + token * 4, scale.to_ne_bytes());
    }

    #[inline(always)]
    fn put_value<S: Simd>(s: S, x: &[f32], measure: Measure, token: usize, group: &mut [u8]) {
        let zero = measure.largest < TINY;
        let inverse = if zero { 0.0 } else { VALUE_CODE / measure.largest };
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let codes = codes(s, lanes, inverse);
            let at = chunk * VALUE_CHUNK_BYTES + token / 2 * 4 * LANES + token % 2 * 2;
            for (dim, code) in codes.iter().enumerate() {
                put(group, at + dim * 4, code.to_ne_bytes());
            }
        }
        let scale = if zero { 0.0 } else { measure.largest / VALUE_CODE };
        put(group, x.len() * 2 * GROUP_TOKENS + token * 4, scale.to_ne_bytes());
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const GROUPS: usize>(
        s: S,
        dim: usize,
        queries: *const u32,
        scales: *const f32,
        keys: [*const u8; GROUPS],
        next: [*const u8; GROUPS],
        scores: *mut f32,
    ) {
        let mut sums = [[s.splat_i(0); GROUPS]; ROWS];
        for pair in 0..dim / 2 {
            let mut codes = [s.splat_i(0); GROUPS];
            for g in 0..GROUPS {
                // SAFETY: a K group has dim / 2 vectors of codes.
                codes[g] = s.load_pairs(unsafe { &*keys[g].add(pair * 64).cast() });
                s.prefetch(next[g].wrapping_add(pair * 64));
            }
            for r in 0..ROWS {
                // SAFETY: the caller's promise on `queries`.
                let query = s.splat_i(unsafe { *queries.add(pair * TILE_ROWS + r) }.cast_signed());
                for g in 0..GROUPS {
                    sums[r][g] = s.dot_pairs(sums[r][g], codes[g], query);
                }
            }
        }
        for g in 0..GROUPS {
            // SAFETY: the scales follow the codes.
            let key_scales = s.load(unsafe { &*keys[g].add(dim * 2 * GROUP_TOKENS).cast() });
            for r in 0..ROWS {
                // SAFETY: the caller's promises on `scales` and `scores`.
                let (scale, to) =
                    unsafe { (*scales.add(r), &mut *scores.add(r * RANGE_KEYS + g * GROUP_TOKENS).cast()) };
                s.store(s.mul(s.mul(s.to_float(sums[r][g]), s.splat(scale)), key_scales), to);
            }
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const CHUNKS: usize>(
        s: S,
        chunk: usize,
        groups: Range<usize>,
        weights: *const i16,
        scales: *const f32,
        values: &[*const u8; LANES],
        next: &[*const u8; LANES],
        out: *mut f32,
    ) {
        let mut sums = [[s.splat_i(0); CHUNKS]; ROWS];
        for g in groups {
            let from = values[g].wrapping_add(chunk * VALUE_CHUNK_BYTES);
            let fetch = next[g].wrapping_add(chunk * VALUE_CHUNK_BYTES);
            for pair in 0..GROUP_TOKENS / 2 {
                let mut codes = [s.splat_i(0); CHUNKS];
                for c in 0..CHUNKS {
                    let at = c * VALUE_CHUNK_BYTES + pair * 64;
                    // SAFETY: the caller's promise on `values`.
                    codes[c] = s.load_pairs(unsafe { &*from.add(at).cast() });
                    s.prefetch(fetch.wrapping_add(at));
                }
                for r in 0..ROWS {
                    let at = r * RANGE_KEYS + g * GROUP_TOKENS + pair * 2;
                    // SAFETY: the caller's promise on `weights`; two of them are read as one.
                    let weight = s.splat_i(unsafe { weights.add(at).cast::<i32>().read_unaligned() });
                    for c in 0..CHUNKS {
                        sums[r][c] = s.dot_pairs(sums[r][c], codes[c], weight);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for c in 0..CHUNKS {
                // SAFETY: the caller's promises on `scales` and `out`.
                let (scale, to) =
                    unsafe { (*scales.add(r), &mut *out.add(r * MAX_HEAD_DIM + (chunk + c) * LANES).cast()) };
                s.store(s.mul(s.to_float(sums[r][c]), s.splat(scale)), to);
            }
        }
    }
}

impl Codec for F16 {
    const CODED: bool = false;
    const LIMIT: f32 = 65_504.0;
    const QUERY_UNIT: usize = 1;
    type Weight = f32;

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
    fn put_value<S: Simd>(s: S, x: &[f32], _measure: Measure, token: usize, group: &mut [u8]) {
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let mut halves = [0; LANES];
            s.store_f16(s.load(lanes), &mut halves);
            for (dim, half) in halves.iter().enumerate() {
                put(group, chunk * VALUE_CHUNK_BYTES + (token * LANES + dim) * 2, half.to_ne_bytes());
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
        next: [*const u8; GROUPS],
        scores: *mut f32,
    ) {
        let mut sums = [[s.splat(0.0); GROUPS]; ROWS];
        for d in 0..dim {
            let mut halves = [s.splat(0.0); GROUPS];
            for g in 0..GROUPS {
                // SAFETY: a K group has dim vectors of 16 halves.
                halves[g] = s.load_f16(unsafe { &*keys[g].add(d * 32).cast() });
                s.prefetch(next[g].wrapping_add(d * 32));
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

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const CHUNKS: usize>(
        s: S,
        chunk: usize,
        groups: Range<usize>,
        weights: *const f32,
        _scales: *const f32,
        values: &[*const u8; LANES],
        next: &[*const u8; LANES],
        out: *mut f32,
    ) {
        let mut sums = [[s.splat(0.0); CHUNKS]; ROWS];
        for g in groups {
            let from = values[g].wrapping_add(chunk * VALUE_CHUNK_BYTES);
            let fetch = next[g].wrapping_add(chunk * VALUE_CHUNK_BYTES);
            for token in 0..GROUP_TOKENS {
                let mut halves = [s.splat(0.0); CHUNKS];
                for c in 0..CHUNKS {
                    let at = c * VALUE_CHUNK_BYTES + token * 32;
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
                s.store(sums[r][c], unsafe { &mut *out.add(r * MAX_HEAD_DIM + (chunk + c) * LANES).cast() });
            }
        }
    }
}
