//! Two 256-bit registers a vector: lanes 0-7 and 8-15.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};
use crate::cpu::isa::Isa;

/// Proof that this machine has AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Lanes 0-7 and 8-15.
#[derive(Clone, Copy)]
pub(crate) struct Halves<T>(T, T);

type F = Halves<__m256>;
type I = Halves<__m256i>;

impl Avx2 {
    /// The safe door.
    pub(crate) fn new() -> Option<Self> {
        Isa::Avx2.is_supported().then_some(Self(()))
    }

    /// Runs `kernel` compiled for these instructions.
    pub(crate) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: the token proves that this machine has these features.
        unsafe { compiled(self, kernel) }
    }
}

/// Methods that are an expression of intrinsics.
macro_rules! methods {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $result {
            // SAFETY: the token proves that this machine has the instructions; references cover what they read.
            unsafe { $body }
        }
    )* };
}

/// All ones in the lanes whose bit is set in `keep`.
#[inline(always)]
fn lane_mask(_proof: Avx2, keep: i32) -> __m256 {
    // SAFETY: the token proves that this machine has the instructions.
    unsafe {
        let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(keep), bit);
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit))
    }
}

/// Lane i of the result is element `index[i] mod 16` of `low` and `high` together.
#[inline(always)]
fn pick_of_16(_proof: Avx2, low: __m256i, high: __m256i, index: __m256i) -> __m256i {
    // SAFETY: the token proves that this machine has the instructions.
    unsafe {
        let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
        let from_low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, index));
        let from_high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, index));
        _mm256_castps_si256(_mm256_blendv_ps(from_low, from_high, is_high))
    }
}

impl Simd for Avx2 {
    type F = F;
    type I = I;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;

    methods! {
        splat(x: f32) -> F = Halves(_mm256_set1_ps(x), _mm256_set1_ps(x));
        load(from: &[f32; LANES]) -> F =
            Halves(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8)));
        store(x: F, to: &mut [f32; LANES]) -> () = {
            _mm256_storeu_ps(to.as_mut_ptr(), x.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x.1);
        };
        load_f16(from: &[u16; LANES]) -> F = Halves(
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        );
        store_f16(x: F, to: &mut [u16; LANES]) -> () = {
            let (low, high) = (
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x.0),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x.1),
            );
            _mm_storeu_si128(to.as_mut_ptr().cast(), low);
            _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), high);
        };
        add(a: F, b: F) -> F = Halves(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
        sub(a: F, b: F) -> F = Halves(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
        mul(a: F, b: F) -> F = Halves(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
        div(a: F, b: F) -> F = Halves(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1));
        fma(a: F, b: F, c: F) -> F = Halves(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
        max(a: F, b: F) -> F = Halves(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
        min(a: F, b: F) -> F = Halves(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1));
        abs(a: F) -> F = {
            let sign = _mm256_set1_ps(-0.0);
            Halves(_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        };
        copy_sign(magnitude: F, sign: F) -> F = {
            let mask = _mm256_set1_ps(-0.0);
            Halves(
                _mm256_or_ps(_mm256_andnot_ps(mask, magnitude.0), _mm256_and_ps(mask, sign.0)),
                _mm256_or_ps(_mm256_andnot_ps(mask, magnitude.1), _mm256_and_ps(mask, sign.1)),
            )
        };
        select_less(a: F, b: F, x: F, y: F) -> F = Halves(
            _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
            _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
        );
        less_bits(a: F, b: F) -> u16 = {
            let bits = |a, b| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) as u16;
            bits(a.0, b.0) | bits(a.1, b.1) << 8
        };
        even_twice(a: F) -> F = Halves(_mm256_moveldup_ps(a.0), _mm256_moveldup_ps(a.1));
        odd_twice(a: F) -> F = Halves(_mm256_movehdup_ps(a.0), _mm256_movehdup_ps(a.1));
        reduce_add(a: F) -> f32 = {
            let a = _mm256_add_ps(a.0, a.1);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        };
        reduce_max(a: F) -> f32 = {
            let a = _mm256_max_ps(a.0, a.1);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        };
        splat_i(x: i32) -> I = Halves(_mm256_set1_epi32(x), _mm256_set1_epi32(x));
        load_pairs(from: &[i16; 2 * LANES]) -> I = Halves(
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(16).cast()),
        );
        load_byte_pairs(from: &[i8; 2 * LANES]) -> I = Halves(
            _mm256_cvtepi8_epi16(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(from.as_ptr().add(16).cast())),
        );
        store_i16(x: I, to: &mut [i16; LANES]) -> () = {
            // The pack interleaves 128-bit lanes; the permutation puts them back in order.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x.0, x.1));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), packed)
        };
        store_low_bytes(x: I, to: &mut [i8; LANES]) -> () = {
            let low = _mm256_set1_epi32(0xff);
            // Words of both halves, then bytes; the packs interleave 128-bit lanes, which the permutation undoes.
            let words = _mm256_packus_epi32(_mm256_and_si256(x.0, low), _mm256_and_si256(x.1, low));
            let bytes = _mm256_packus_epi16(words, words);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let bytes = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes)
        };
        add_i(a: I, b: I) -> I = Halves(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1));
        dot_pairs(acc: I, a: I, b: I) -> I = Halves(
            _mm256_add_epi32(acc.0, _mm256_madd_epi16(a.0, b.0)),
            _mm256_add_epi32(acc.1, _mm256_madd_epi16(a.1, b.1)),
        );
        bits(a: F) -> I = Halves(_mm256_castps_si256(a.0), _mm256_castps_si256(a.1));
        float_of_bits(a: I) -> F = Halves(_mm256_castsi256_ps(a.0), _mm256_castsi256_ps(a.1));
        to_float(a: I) -> F = Halves(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1));
        round(a: F) -> I = Halves(_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(a.1));
        prefetch(at: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }

    #[inline(always)]
    fn select_bits(self, keep: u16, x: F, y: F) -> F {
        let (low, high) = (lane_mask(self, i32::from(keep)), lane_mask(self, i32::from(keep >> 8)));
        // SAFETY: the token proves that this machine has the instructions.
        unsafe { Halves(_mm256_blendv_ps(y.0, x.0, low), _mm256_blendv_ps(y.1, x.1, high)) }
    }

    #[inline(always)]
    fn table(self, table: &[i32; LANES], index: I) -> I {
        // SAFETY: the token proves that this machine has the instructions; the array covers both loads.
        unsafe {
            let low = _mm256_loadu_si256(table.as_ptr().cast());
            let high = _mm256_loadu_si256(table.as_ptr().add(8).cast());
            Halves(pick_of_16(self, low, high, index.0), pick_of_16(self, low, high, index.1))
        }
    }

    #[inline(always)]
    fn shift_left<const BITS: i32>(self, a: I) -> I {
        // SAFETY: the token proves that this machine has the instruction.
        unsafe { Halves(_mm256_slli_epi32::<BITS>(a.0), _mm256_slli_epi32::<BITS>(a.1)) }
    }
}
