//! AVX2 with FMA: 8 rows a vector, `vpmaddubsw` adds two products to an i16, `vpmaddwd` two of those to an i32.
//!
//! A 16-bit sum of two products of a code and an activation (at most 127) never overflows: codes of 4 bits leave room for 8
//! of them, of 5 bits for 4, of 6 bits for 2. Codes of offset 128 are multiplied as signed numbers, the sign moved to the
//! activation (128 * 127 * 2 fits).

use super::{
    GroupJob,
    codes::Quad,
    floats, grid_avx2,
    layout::{Codes, Format, GROUP_ROWS, QUADS, with_format},
    pack,
    panel::with_panel,
    simd::Simd,
    tile,
    transpose::Transpose,
};
use crate::blocks::BlockFormat;
use std::arch::x86_64::*;

/// How many 16-bit sums of two products may be added for codes of at most `largest`: a power of two, at most a block's quads.
const fn sums_that_fit(largest: usize) -> usize {
    let mut sums = QUADS;
    while sums * 2 * largest * 127 > i16::MAX as usize {
        sums /= 2;
    }
    sums
}
const _: () = assert!(sums_that_fit(15) == 8 && sums_that_fit(31) == 4 && sums_that_fit(63) == 2);
const _: () = assert!(sums_that_fit(128) == 1);

/// Runs a job.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe {
        with_format!(job.format, F => quantised::<F>(job),
            panel => with_panel!(job.format, P => decoded::<P>(job)), _ => float_weights(job))
    }
}

/// # Safety
/// As for [`super::run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantised<F: Format>(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { tile::run::<Avx2, F>(job) }
}

/// # Safety
/// As for [`super::run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decoded<P: Codes>(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { tile::run_panels::<Avx2, P>(job) }
}

/// # Safety
/// As for [`super::run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_weights(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { floats::run::<Avx2>(job) }
}

/// See [`super::pack`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pack_groups(format: BlockFormat, cols: usize, rows: &[u8], out: &mut [u8]) {
    // SAFETY: this function has the instruction set.
    unsafe { pack::pack_groups::<Avx2>(format, cols, rows, out) }
}

/// The vectors of this file.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// How far a vector is shifted.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn count(bits: usize) -> __m128i {
    // SAFETY: every x86-64 has it.
    unsafe { _mm_cvtsi64_si128(bits as i64) }
}

/// Moves bit `from` of each byte to bit `to`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn moved(codes: __m256i, from: usize, to: usize) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        if from >= to {
            _mm256_srl_epi16(codes, count(from - to))
        } else {
            _mm256_sll_epi16(codes, count(to - from))
        }
    }
}

/// Defines trait methods of single expressions.
macro_rules! methods {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: the caller has the instruction set, and its pointers cover what is loaded or stored.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 3;
    const ROWS_TO_DECODE: usize = 7;
    const SIGNED_BYTES: bool = true;
    type Codes = __m256i;
    type Ints = __m256i;
    type Partial = __m256i;
    type Floats = __m256;
    type LaneBytes = __m128i;

    #[inline(always)]
    fn quads_between_settles(largest: usize) -> usize {
        sums_that_fit(largest)
    }

    methods! {
        fn load_codes(from: *const u8) -> __m256i = _mm256_loadu_si256(from.cast());
        fn store_codes(to: *mut u8, codes: __m256i) = _mm256_storeu_si256(to.cast(), codes);
        fn bits(codes: __m256i, from: usize, to: usize, mask: u8) -> __m256i =
            _mm256_and_si256(moved(codes, from, to), _mm256_set1_epi8(mask.cast_signed()));
        fn or_bits(codes: __m256i, high: __m256i, from: usize, to: usize, mask: u8) -> __m256i = _mm256_or_si256(codes, Self::bits(high, from, to, mask));
        fn add_fifth_bits(nibbles: __m256i, bits: *const u8) -> __m256i = {
            // Byte i of the word to bytes 8i.., then each byte keeps its own bit.
            let spread = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0
            );
            let own = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
            let word = _mm256_set1_epi32(bits.cast::<i32>().read_unaligned());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(word, spread), own), own);
            _mm256_or_si256(nibbles, _mm256_and_si256(set, _mm256_set1_epi8(16)))
        };
        fn digit(codes: __m256i, power: i16) -> __m256i = {
            // The fraction of an even byte in its word's upper byte, where three times it leaves the digit in the lower one; that
            // of an odd byte stays and leaves it in the upper one.
            let high = _mm256_set1_epi16(0xff00u16.cast_signed());
            let even = _mm256_mullo_epi16(codes, _mm256_set1_epi16(power << 8));
            let even = _mm256_mulhi_epu16(even, _mm256_set1_epi16(3));
            let odd = _mm256_mullo_epi16(_mm256_and_si256(codes, high), _mm256_set1_epi16(power));
            let odd = _mm256_mulhi_epu16(odd, _mm256_set1_epi16(3 << 8));
            _mm256_or_si256(even, _mm256_and_si256(odd, high))
        };
        fn look_up(table: &[u8; 16], codes: __m256i) -> __m256i = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())),
            codes
        );
        fn decode_units(format: BlockFormat, units: &[u8], panel: &mut [u32]) =
            grid_avx2::decode_units(format, units, panel);
        fn four_activations(from: *const i8) -> __m256i = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
        fn ints(value: i32) -> __m256i = _mm256_set1_epi32(value);
        fn no_partial() -> __m256i = _mm256_setzero_si256();
        fn dot(ints: &mut __m256i, partial: &mut __m256i, signed: bool, codes: __m256i, activations: __m256i) = {
            let _ = &ints;
            let pairs = if signed {
                let weights = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
                _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights))
            } else {
                _mm256_maddubs_epi16(codes, activations)
            };
            *partial = _mm256_add_epi16(*partial, pairs);
        };
        fn settle(ints: &mut __m256i, partial: &mut __m256i) = {
            *ints = _mm256_add_epi32(*ints, _mm256_madd_epi16(*partial, _mm256_set1_epi16(1)));
            *partial = _mm256_setzero_si256();
        };
        fn floats(value: f32) -> __m256 = _mm256_set1_ps(value);
        fn load_floats(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
        fn store_floats(to: *mut f32, value: __m256) = _mm256_storeu_ps(to, value);
        fn load_halves(from: *const u8) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        fn load_bfloats(from: *const u8) -> __m256 = _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())),
            16
        ));
        fn to_floats(ints: __m256i) -> __m256 = _mm256_cvtepi32_ps(ints);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn load_lane_bytes(from: *const u8) -> __m128i = _mm_loadl_epi64(from.cast());
        fn lane_bits(bytes: __m128i, from: usize, to: usize, mask: u8) -> __m128i = {
            let moved = _mm_sll_epi16(_mm_srl_epi16(bytes, count(from)), count(to));
            _mm_and_si128(moved, _mm_set1_epi8(mask.cast_signed()))
        };
        fn lane_or(a: __m128i, b: __m128i) -> __m128i = _mm_or_si128(a, b);
        fn lane_subtract(bytes: __m128i, number: i8) -> __m128i = _mm_sub_epi8(bytes, _mm_set1_epi8(number));
        fn unsigned_bytes(bytes: __m128i) -> __m256 = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        fn signed_bytes(bytes: __m128i) -> __m256 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        fn halves_of_powers(exponents: __m128i) -> __m256 = {
            let one = _mm256_set1_epi32(1);
            let exponents = _mm256_cvtepu8_epi32(exponents);
            let normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, one), 23);
            let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x20_0000), _mm256_min_epi32(exponents, one));
            _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal))
        };
        // Read as an f16 it is 2^8 too small (a bias of 15 instead of 7), subnormals included, and half of it is wanted.
        fn halves_of_small_floats(bits: __m128i) -> __m256 = _mm256_mul_ps(
            _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bits), 7)),
            _mm256_set1_ps(128.0)
        );
    }
}

impl Transpose for Avx2 {
    #[inline(always)]
    unsafe fn four_words(from: *const u8, starts: &[usize; GROUP_ROWS]) -> [Quad; 4] {
        let mut out = [[0; GROUP_ROWS]; 4];
        for first in (0..GROUP_ROWS).step_by(8) {
            // SAFETY: the caller has the instruction set, each row its sixteen bytes, and `out` room for eight rows from each
            // first one on.
            unsafe {
                // Row `first + i` in the lower half, the one four further on in the upper: a 4 x 4 transposition in each.
                let mut rows = [_mm256_setzero_si256(); 4];
                for (i, row) in rows.iter_mut().enumerate() {
                    let lower = _mm_loadu_si128(from.add(starts[first + i]).cast());
                    let upper = _mm_loadu_si128(from.add(starts[first + i + 4]).cast());
                    *row = _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1);
                }
                let low01 = _mm256_unpacklo_epi32(rows[0], rows[1]);
                let low23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
                let high01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
                let high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
                let words = [
                    _mm256_unpacklo_epi64(low01, low23),
                    _mm256_unpackhi_epi64(low01, low23),
                    _mm256_unpacklo_epi64(high01, high23),
                    _mm256_unpackhi_epi64(high01, high23),
                ];
                for (out, words) in out.iter_mut().zip(words) {
                    _mm256_storeu_si256(out[first..].as_mut_ptr().cast(), words);
                }
            }
        }
        out
    }

    #[inline(always)]
    fn prefetch(line: *const u8) {
        // SAFETY: a hint, for which any address is good.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
}
