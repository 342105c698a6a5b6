//! AVX-512 with VNNI: 16 rows a vector, `vpdpbusd` adds four products a lane to an i32.

use super::{
    GroupJob,
    avx2::{Avx2, count},
    floats::{self, Tile},
    grid_avx512,
    layout::{Codes, Format, QUADS, with_format},
    panel::with_panel,
    simd::Simd,
    tile,
};
use crate::blocks::BlockFormat;
use std::{arch::x86_64::*, mem::transmute};

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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn quantised<F: Format>(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { tile::run::<Avx512, F>(job) }
}

/// # Safety
/// As for [`super::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn decoded<P: Codes>(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { tile::run_panels::<Avx512, P>(job) }
}

/// # Safety
/// As for [`super::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn float_weights(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { floats::run::<Avx512>(job) }
}

/// Runs a job of BF16 weights by `vdpbf16ps`.
///
/// # Safety
/// As for [`super::run`]; the activations are pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run_pairs(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe { floats::walk::<Avx512, Pairs>(job) }
}

/// BF16 weights and pairs of activations.
struct Pairs;

impl Tile<Avx512> for Pairs {
    const BYTES: usize = 2;
    const COLS_IN_WORD: usize = 2;
    // Measured: 8 rows 242 GMAC/s, 6 rows 222, 10 to 13 rows 237.
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn multiply<const M: usize>(
        cols: usize,
        weights: *const u8,
        input: *const f32,
        output: *mut f32,
        stride: usize,
    ) {
        let words = cols / 2;
        // SAFETY: as the caller promises. A vector is a column of the whole group, or 32 bf16 in pairs.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); 2]; M];
            for k in 0..words {
                let first = _mm512_loadu_si512(weights.add(k * 128).cast());
                let second = _mm512_loadu_si512(weights.add(k * 128 + 64).cast());
                // Four rows of every eight, and the other four.
                let pairs: [__m512bh; 2] =
                    transmute([_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)]);
                for (m, acc) in acc.iter_mut().enumerate() {
                    let x: __m512bh = transmute(_mm512_set1_epi32(*input.cast::<i32>().add(m * words + k)));
                    for (acc, pairs) in acc.iter_mut().zip(pairs) {
                        *acc = _mm512_dpbf16_ps(*acc, pairs, x);
                    }
                }
            }
            let lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
            let upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
            for (m, [even, odd]) in acc.into_iter().enumerate() {
                let output = output.add(m * stride);
                _mm512_storeu_ps(output, _mm512_permutex2var_ps(even, lower, odd));
                _mm512_storeu_ps(output.add(16), _mm512_permutex2var_ps(even, upper, odd));
            }
        }
    }
}

/// The vectors of this file.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// Moves bit `from` of each byte to bit `to`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn moved(codes: __m512i, from: usize, to: usize) -> __m512i {
    // SAFETY: as the caller promises.
    unsafe {
        if from >= to {
            _mm512_srl_epi16(codes, count(from - to))
        } else {
            _mm512_sll_epi16(codes, count(to - from))
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

impl Simd for Avx512 {
    const LANES: usize = 16;
    const TILE_ROWS: usize = 6;
    const ROWS_TO_DECODE: usize = 25;
    const SIGNED_BYTES: bool = false;
    type Codes = __m512i;
    type Ints = __m512i;
    type Partial = ();
    type Floats = __m512;
    type LaneBytes = __m128i;

    // The ints take every product at once.
    #[inline(always)]
    unsafe fn no_partial() {}
    #[inline(always)]
    unsafe fn settle(_ints: &mut __m512i, _partial: &mut ()) {}
    #[inline(always)]
    fn quads_between_settles(_largest: usize) -> usize {
        QUADS
    }

    methods! {
        fn load_codes(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        fn store_codes(to: *mut u8, codes: __m512i) = _mm512_storeu_si512(to.cast(), codes);
        fn bits(codes: __m512i, from: usize, to: usize, mask: u8) -> __m512i =
            _mm512_and_si512(moved(codes, from, to), _mm512_set1_epi8(mask.cast_signed()));
        fn or_bits(codes: __m512i, high: __m512i, from: usize, to: usize, mask: u8) -> __m512i = {
            // (moved & mask) | codes
            let moved = moved(high, from, to);
            _mm512_ternarylogic_epi32(moved, _mm512_set1_epi8(mask.cast_signed()), codes, 0xea)
        };
        fn add_fifth_bits(nibbles: __m512i, bits: *const u8) -> __m512i = _mm512_mask_add_epi8(
            nibbles,
            bits.cast::<u64>().read_unaligned(),
            nibbles,
            _mm512_set1_epi8(16)
        );
        fn digit(codes: __m512i, power: i16) -> __m512i = {
            // The fraction of an even byte in its word's upper byte, where three times it leaves the digit in the lower one; that
            // of an odd byte stays and leaves it in the upper one.
            let high = _mm512_set1_epi16(0xff00u16.cast_signed());
            let even = _mm512_mullo_epi16(codes, _mm512_set1_epi16(power << 8));
            let even = _mm512_mulhi_epu16(even, _mm512_set1_epi16(3));
            let odd = _mm512_mullo_epi16(_mm512_and_si512(codes, high), _mm512_set1_epi16(power));
            let odd = _mm512_mulhi_epu16(odd, _mm512_set1_epi16(3 << 8));
            // (odd & high) | even
            _mm512_ternarylogic_epi32(odd, high, even, 0xea)
        };
        fn look_up(table: &[u8; 16], codes: __m512i) -> __m512i = _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())),
            codes
        );
        fn decode_units(format: BlockFormat, units: &[u8], panel: &mut [u32]) =
            grid_avx512::decode_units(format, units, panel);
        fn four_activations(from: *const i8) -> __m512i = _mm512_set1_epi32(from.cast::<i32>().read_unaligned());
        fn ints(value: i32) -> __m512i = _mm512_set1_epi32(value);
        fn dot(ints: &mut __m512i, _partial: &mut (), _signed: bool, codes: __m512i, activations: __m512i) =
            *ints = _mm512_dpbusd_epi32(*ints, codes, activations);
        fn floats(value: f32) -> __m512 = _mm512_set1_ps(value);
        fn load_floats(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        fn store_floats(to: *mut f32, value: __m512) = _mm512_storeu_ps(to, value);
        fn load_halves(from: *const u8) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        fn load_bfloats(from: *const u8) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())),
            16
        ));
        fn to_floats(ints: __m512i) -> __m512 = _mm512_cvtepi32_ps(ints);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn load_lane_bytes(from: *const u8) -> __m128i = _mm_loadu_si128(from.cast());
        // Sixteen bytes are half a register of AVX2: the same instructions.
        fn lane_bits(bytes: __m128i, from: usize, to: usize, mask: u8) -> __m128i =
            Avx2::lane_bits(bytes, from, to, mask);
        fn lane_or(a: __m128i, b: __m128i) -> __m128i = Avx2::lane_or(a, b);
        fn lane_subtract(bytes: __m128i, number: i8) -> __m128i = Avx2::lane_subtract(bytes, number);
        fn unsigned_bytes(bytes: __m128i) -> __m512 = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        fn signed_bytes(bytes: __m128i) -> __m512 = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        fn halves_of_powers(exponents: __m128i) -> __m512 = {
            let one = _mm512_set1_epi32(1);
            let exponents = _mm512_cvtepu8_epi32(exponents);
            let normal = _mm512_slli_epi32(_mm512_sub_epi32(exponents, one), 23);
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x20_0000), _mm512_min_epi32(exponents, one));
            _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal))
        };
        // Read as an f16 it is 2^8 too small (a bias of 15 instead of 7), subnormals included, and half of it is wanted.
        fn halves_of_small_floats(bits: __m128i) -> __m512 = _mm512_mul_ps(
            _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bits), 7)),
            _mm512_set1_ps(128.0)
        );
    }
}
