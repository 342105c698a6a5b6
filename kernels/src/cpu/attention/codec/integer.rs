//! I16 and Q8G64: integer codes with scales, exact integer products. One algorithm; [`Codes`] says how codes lie in
//! memory, how many dimensions share a scale, and how scales are chosen.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over register arrays have compile-time bounds and unroll into registers"
)]

use std::ops::Range;

use ::half::f16;

use super::{Codec, HUGE, KeyCodec, Measure, TINY, ValueCodec, fetch_part, put};
use crate::cpu::{
    attention::{
        RANGE_KEYS,
        tile::{Groups, TILE_ROWS, TileScratch, exponents, for_row_blocks},
    },
    kv::{GROUP_TOKENS, MAX_HEAD_DIM, Q8_GROUP_DIMS},
    simd::{LANES, Simd},
};

/// Bound of the 2-norm of i16 codes of K and q: any two have a dot product inside i32, roundings included.
const CODE_NORM: f32 = 46_300.0;
/// Bound of i16 codes of V, so that 16 bits of weights and 12 bits of value, summed over a range, stay inside i32.
const VALUE_CODE: f32 = 4095.0;
/// Bound of i8 codes. 64 of them times codes of q, and 256 times any codes of weights, stay inside i32.
const BYTE_CODE: f32 = 127.0;
/// Largest f16.
const F16_MAX: f32 = 65_504.0;
/// Weights times scales of values at or below 2^-100 count as zero: their inverse would leave the range of f32.
const WEIGHT_FLOOR: f32 = 7.888_609e-31;

const _: () = assert!(Q8_GROUP_DIMS as i64 * 127 * 32767 <= i32::MAX as i64);
const _: () = assert!(RANGE_KEYS as i64 * 127 * 32767 <= i32::MAX as i64);

/// What turns numbers to codes, and codes back.
#[derive(Clone, Copy)]
pub(in crate::cpu::attention) struct Scale {
    /// Codes are numbers times this.
    inverse: f32,
    /// What is kept.
    scale: f32,
}

impl Scale {
    /// All codes are 0.
    const ZERO: Self = Self { inverse: 0.0, scale: 0.0 };
    /// Scores become NaN.
    const POISON: Self = Self { inverse: 0.0, scale: f32::NAN };
}

/// How integer codes are kept.
pub(in crate::cpu::attention) trait Codes {
    /// Bytes of a code.
    const CODE_BYTES: usize;
    /// Bytes of a token's scale.
    const SCALE_BYTES: usize;
    /// Dimensions that share a scale.
    const SCALE_DIMS: usize;
    /// Largest magnitude that a scale can be found for.
    const LARGEST: f32;
    /// Bound of the sum of a row's weight codes over a range.
    const WEIGHT_SUM: f32;

    /// The scale of dimensions of a key that share one.
    fn key_scale(measure: Measure) -> Scale;
    /// The scale of dimensions of a value that share one.
    fn value_scale(measure: Measure) -> Scale;
    /// Writes a code.
    fn put_code(group: &mut [u8], at: usize, code: i16);
    /// Writes two codes.
    fn put_pair(group: &mut [u8], at: usize, pair: [i16; 2]);
    /// Writes a scale.
    fn put_scale(group: &mut [u8], at: usize, scale: f32);
    /// Thirty-two codes, as pairs.
    ///
    /// # Safety
    /// They are at `at`.
    unsafe fn load_pairs<S: Simd>(s: S, at: *const u8) -> S::I;
    /// Sixteen scales.
    ///
    /// # Safety
    /// They are at `at`.
    unsafe fn load_scales<S: Simd>(s: S, at: *const u8) -> S::F;
}

/// i16 codes with a scale a token and head.
pub(in crate::cpu::attention) struct I16;

/// i8 codes with a scale a token, head and 64 dimensions.
pub(in crate::cpu::attention) struct Q8G64;

/// What makes i16 codes of a K or q.
#[inline(always)]
fn code_factor(measure: Measure) -> f32 {
    if measure.largest < TINY {
        0.0
    } else {
        (32767.0 / measure.largest).min(CODE_NORM / measure.norm2.sqrt())
    }
}

impl Codes for I16 {
    const CODE_BYTES: usize = 2;
    const SCALE_BYTES: usize = 4;
    const SCALE_DIMS: usize = MAX_HEAD_DIM;
    const LARGEST: f32 = HUGE;
    const WEIGHT_SUM: f32 = 520_000.0;

    #[inline(always)]
    fn key_scale(measure: Measure) -> Scale {
        let inverse = code_factor(measure);
        if inverse > 0.0 { Scale { inverse, scale: 1.0 / inverse } } else { Scale::ZERO }
    }

    #[inline(always)]
    fn value_scale(measure: Measure) -> Scale {
        if measure.largest < TINY {
            return Scale::ZERO;
        }
        Scale { inverse: VALUE_CODE / measure.largest, scale: measure.largest / VALUE_CODE }
    }

    #[inline(always)]
    fn put_code(group: &mut [u8], at: usize, code: i16) {
        put(group, at, code.to_ne_bytes());
    }

    #[inline(always)]
    fn put_pair(group: &mut [u8], at: usize, pair: [i16; 2]) {
        put(group, at, unit(pair).to_ne_bytes());
    }

    #[inline(always)]
    fn put_scale(group: &mut [u8], at: usize, scale: f32) {
        put(group, at, scale.to_ne_bytes());
    }

    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(s: S, at: *const u8) -> S::I {
        // SAFETY: the caller's promise.
        s.load_pairs(unsafe { &*at.cast() })
    }

    #[inline(always)]
    unsafe fn load_scales<S: Simd>(s: S, at: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        s.load(unsafe { &*at.cast() })
    }
}

impl Codes for Q8G64 {
    const CODE_BYTES: usize = 1;
    const SCALE_BYTES: usize = 2;
    const SCALE_DIMS: usize = Q8_GROUP_DIMS;
    const LARGEST: f32 = F16_MAX * BYTE_CODE;
    // The largest codes that there are, 256 times, fit.
    const WEIGHT_SUM: f32 = f32::INFINITY;

    /// Rounded up to f16, so that no code passes 127 however small the scale is.
    #[inline(always)]
    fn key_scale(measure: Measure) -> Scale {
        if measure.largest < TINY {
            return Scale::ZERO;
        }
        let exact = measure.largest / BYTE_CODE;
        let nearest = f16::from_f32(exact);
        let up = if nearest.to_f32() < exact { f16::from_bits(nearest.to_bits() + 1) } else { nearest };
        let scale = up.to_f32();
        Scale { inverse: 1.0 / scale, scale }
    }

    #[inline(always)]
    fn value_scale(measure: Measure) -> Scale {
        Self::key_scale(measure)
    }

    #[inline(always)]
    fn put_code(group: &mut [u8], at: usize, code: i16) {
        put(group, at, (code as i8).to_ne_bytes());
    }

    #[inline(always)]
    fn put_pair(group: &mut [u8], at: usize, pair: [i16; 2]) {
        put(group, at, pair.map(|code| code as u8));
    }

    /// `scale` is an f16 already.
    #[inline(always)]
    fn put_scale(group: &mut [u8], at: usize, scale: f32) {
        put(group, at, f16::from_f32(scale).to_ne_bytes());
    }

    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(s: S, at: *const u8) -> S::I {
        // SAFETY: the caller's promise.
        s.load_byte_pairs(unsafe { &*at.cast() })
    }

    #[inline(always)]
    unsafe fn load_scales<S: Simd>(s: S, at: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        s.load_f16(unsafe { &*at.cast() })
    }
}

/// Sixteen codes of `x * factor`.
#[inline(always)]
fn codes<S: Simd>(s: S, x: &[f32; LANES], factor: f32) -> [i16; LANES] {
    let mut codes = [0; LANES];
    if factor > 0.0 {
        s.store_i16(s.round(s.mul(s.load(x), s.splat(factor))), &mut codes);
    }
    codes
}

/// Two codes as a unit.
#[inline(always)]
fn unit([low, high]: [i16; 2]) -> u32 {
    u32::from(low as u16) | u32::from(high as u16) << 16
}

/// Where the scales of dimensions `[SCALE_DIMS * part, ...)` begin in a group of `dim` dimensions.
#[inline(always)]
fn scales_at<C: Codes>(dim: usize, part: usize) -> usize {
    GROUP_TOKENS * (dim * C::CODE_BYTES + part * C::SCALE_BYTES)
}

/// The measure of `part`, which is all or a piece of what `whole` measures.
#[inline(always)]
fn measure_of_part<S: Simd>(s: S, x: &[f32], part: &[f32], whole: Measure) -> Measure {
    if part.len() == x.len() { whole } else { Measure::of(s, part) }
}

/// The largest and the sum of a few rows' weights times scales, lane by lane.
struct Extent<S: Simd, const ROWS: usize> {
    most: [S::F; ROWS],
    sums: [S::F; ROWS],
}

impl<S: Simd, const ROWS: usize> Extent<S, ROWS> {
    #[inline(always)]
    fn add(&mut self, s: S, weights: [S::F; ROWS], scales: S::F) {
        for r in 0..ROWS {
            let t = s.mul(weights[r], scales);
            self.most[r] = s.max(self.most[r], t);
            self.sums[r] = s.add(self.sums[r], t);
        }
    }
}

/// The factors that make codes of the weights of rows, from the largest and the total of each: step 6; and 1 / factor.
#[inline(always)]
fn weight_factors<C: Codes, S: Simd>(
    s: S,
    largest: &[f32; LANES],
    total: &[f32; LANES],
) -> ([f32; LANES], [f32; LANES]) {
    let (largest, total) = (s.load(largest), s.load(total));
    // A total that is NaN is lost, as is the row: l is NaN too.
    let factor = s.min(s.div(s.splat(C::WEIGHT_SUM), total), s.div(s.splat(32767.0), largest));
    let (floor, zero) = (s.splat(WEIGHT_FLOOR), s.splat(0.0));
    let (mut factors, mut inverses) = ([0.0; LANES], [0.0; LANES]);
    s.store(s.select_less(floor, largest, factor, zero), &mut factors);
    s.store(s.select_less(floor, largest, s.div(s.splat(1.0), factor), zero), &mut inverses);
    (factors, inverses)
}

impl<C: Codes> Codec for C {
    const LIMIT: f32 = C::LARGEST;
}

impl<C: Codes> KeyCodec for C {
    const QUERY_UNIT: usize = 2;

    #[inline(always)]
    fn put_query<S: Simd>(s: S, x: &[f32], factor: f32, column: &mut [u32]) -> f32 {
        let measure = Measure::of(s, x);
        let valid = measure.within(HUGE);
        let inverse = if valid { code_factor(measure) } else { 0.0 };
        for (chunk, lanes) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let codes = codes(s, lanes, inverse);
            for (pair, codes) in codes.as_chunks().0.iter().enumerate() {
                column[(chunk * LANES / 2 + pair) * TILE_ROWS] = unit(*codes);
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
        for (index, part) in x.chunks(C::SCALE_DIMS).enumerate() {
            let scale = match measure {
                Some(whole) => C::key_scale(measure_of_part(s, x, part, whole)),
                None => Scale::POISON,
            };
            for (chunk, lanes) in part.as_chunks::<LANES>().0.iter().enumerate() {
                let first = (index * C::SCALE_DIMS + chunk * LANES) / 2;
                for (pair, codes) in codes(s, lanes, scale.inverse).as_chunks().0.iter().enumerate() {
                    let at = ((first + pair) * GROUP_TOKENS + token) * 2 * C::CODE_BYTES;
                    C::put_pair(group, at, *codes);
                }
            }
            C::put_scale(group, scales_at::<C>(x.len(), index) + token * C::SCALE_BYTES, scale.scale);
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const GROUPS: usize>(
        s: S,
        dim: usize,
        queries: *const u32,
        scales: *const f32,
        keys: [*const u8; GROUPS],
        fetch: [*const u8; GROUPS],
        scores: *mut f32,
    ) {
        let vector_bytes = 2 * GROUP_TOKENS * C::CODE_BYTES;
        for (part, first) in (0..dim).step_by(C::SCALE_DIMS).enumerate() {
            let mut sums = [[s.splat_i(0); GROUPS]; ROWS];
            for pair in first / 2..dim.min(first + C::SCALE_DIMS) / 2 {
                let mut codes = [s.splat_i(0); GROUPS];
                for g in 0..GROUPS {
                    // SAFETY: a K group has dim / 2 vectors of codes.
                    codes[g] = unsafe { C::load_pairs(s, keys[g].add(pair * vector_bytes)) };
                    s.prefetch(fetch[g].wrapping_add(pair * vector_bytes));
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
                let key_scales = unsafe { C::load_scales(s, keys[g].add(scales_at::<C>(dim, part))) };
                s.prefetch(fetch[g].wrapping_add(scales_at::<C>(dim, part)));
                for r in 0..ROWS {
                    // SAFETY: the caller's promises on `scales` and `scores`.
                    let (scale, to) = unsafe {
                        (*scales.add(r), &mut *scores.add(r * RANGE_KEYS + g * GROUP_TOKENS).cast())
                    };
                    let before = if part == 0 { s.splat(0.0) } else { s.load(to) };
                    let dot = s.mul(s.to_float(sums[r][g]), s.splat(scale));
                    s.store(s.fma(dot, key_scales, before), to);
                }
            }
        }
    }
}

impl<C: Codes> ValueCodec for C {
    type Weight = i16;
    const WEIGHT_CHUNKS: usize = C::SCALE_DIMS / LANES;

    #[inline(always)]
    fn put_value<S: Simd>(s: S, x: &[f32], measure: Measure, token: usize, group: &mut [u8]) {
        for (index, part) in x.chunks(C::SCALE_DIMS).enumerate() {
            let scale = C::value_scale(measure_of_part(s, x, part, measure));
            for (chunk, lanes) in part.as_chunks::<LANES>().0.iter().enumerate() {
                let first = (index * C::SCALE_DIMS + chunk * LANES) * GROUP_TOKENS;
                for (lane, code) in codes(s, lanes, scale.inverse).into_iter().enumerate() {
                    let at = first + token / 2 * 2 * LANES + 2 * lane + token % 2;
                    C::put_code(group, at * C::CODE_BYTES, code);
                }
            }
            C::put_scale(group, scales_at::<C>(x.len(), index) + token * C::SCALE_BYTES, scale.scale);
        }
    }

    #[inline(always)]
    unsafe fn encode_weights<S: Simd>(
        s: S,
        dim: usize,
        rows: usize,
        groups: Range<usize>,
        here: &Groups,
        scratch: &mut TileScratch,
    ) {
        let TileScratch { scores, codes, code_scales, max, sum, .. } = scratch;
        for (part, codes) in codes.iter_mut().enumerate().take(dim.div_ceil(C::SCALE_DIMS)) {
            let at = scales_at::<C>(dim, part);
            let (mut largest, mut total) = ([0.0; LANES], [0.0; LANES]);
            for_row_blocks!(scores[..rows], ROWS, row, block => {
                let mut extent = Extent { most: [s.splat(0.0); ROWS], sums: [s.splat(0.0); ROWS] };
                if part == 0 {
                    exponents(s, block, groups.clone(), &max[row..], &mut sum[row..], |g, weights| {
                        // SAFETY: the scales follow the codes of a V group.
                        extent.add(s, weights, unsafe { C::load_scales(s, here.values[g].add(at)) });
                    });
                } else {
                    for g in groups.clone() {
                        let mut weights = [s.splat(0.0); ROWS];
                        for r in 0..ROWS {
                            weights[r] = s.load(&block[r][g]);
                        }
                        // SAFETY: as above.
                        extent.add(s, weights, unsafe { C::load_scales(s, here.values[g].add(at)) });
                    }
                }
                for r in 0..ROWS {
                    largest[row + r] = s.reduce_max(extent.most[r]);
                    total[row + r] = s.reduce_add(extent.sums[r]);
                }
            });
            let (factors, inverses) = weight_factors::<C, S>(s, &largest, &total);
            code_scales[part] = inverses;
            for_row_blocks!(codes[..rows], ROWS, row, block => {
                let mut factor = [s.splat(0.0); ROWS];
                for r in 0..ROWS {
                    factor[r] = s.splat(factors[row + r]);
                }
                let weights = &scores[row..row + ROWS];
                for g in groups.clone() {
                    // SAFETY: as above.
                    let scales = unsafe { C::load_scales(s, here.values[g].add(at)) };
                    for r in 0..ROWS {
                        let t = s.mul(s.load(&weights[r][g]), scales);
                        s.store_i16(s.round(s.mul(t, factor[r])), &mut block[r][g]);
                    }
                }
            });
        }
    }

    #[inline(always)]
    fn weights(scratch: &TileScratch) -> *const i16 {
        scratch.codes.as_ptr().cast()
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const CHUNKS: usize>(
        s: S,
        dim: usize,
        chunk: usize,
        groups: Range<usize>,
        weights: *const i16,
        scales: *const f32,
        values: &[*const u8; LANES],
        fetch: &[*const u8; LANES],
        out: *mut f32,
    ) {
        let (chunk_bytes, vector_bytes) = (GROUP_TOKENS * LANES * C::CODE_BYTES, 2 * LANES * C::CODE_BYTES);
        let mut sums = [[s.splat_i(0); CHUNKS]; ROWS];
        for g in groups {
            let from = values[g].wrapping_add(chunk * chunk_bytes);
            let (fetch, is_last) = fetch_part(fetch, dim, chunk, CHUNKS, g, chunk_bytes);
            if is_last {
                s.prefetch(fetch.wrapping_add(CHUNKS * chunk_bytes));
            }
            for pair in 0..GROUP_TOKENS / 2 {
                let mut codes = [s.splat_i(0); CHUNKS];
                for c in 0..CHUNKS {
                    let at = c * chunk_bytes + pair * vector_bytes;
                    // SAFETY: the caller's promise on `values`.
                    codes[c] = unsafe { C::load_pairs(s, from.add(at)) };
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
                    unsafe { (*scales.add(r), &mut *out.add(r * dim + (chunk + c) * LANES).cast()) };
                s.store(s.mul(s.to_float(sums[r][c]), s.splat(scale)), to);
            }
        }
    }
}
