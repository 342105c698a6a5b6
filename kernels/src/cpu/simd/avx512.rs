//! One 512-bit register a vector.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};
use crate::cpu::isa::Isa;

/// Proof that this machine has AVX-512 F, BW, DQ, VL, VNNI and AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

type F = __m512;
type I = __m512i;

impl Avx512 {
    /// The safe door.
    pub(crate) fn new() -> Option<Self> {
        Isa::Avx512.is_supported().then_some(Self(()))
    }

    /// Runs `kernel` compiled for these instructions.
    pub(crate) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
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

impl Simd for Avx512 {
    type F = F;
    type I = I;
    const TILE_ROWS: usize = 12;
    const TILE_VECTORS: usize = 2;

    methods! {
        splat(x: f32) -> F = _mm512_set1_ps(x);
        load(from: &[f32; LANES]) -> F = _mm512_loadu_ps(from.as_ptr());
        store(x: F, to: &mut [f32; LANES]) -> () = _mm512_storeu_ps(to.as_mut_ptr(), x);
        load_f16(from: &[u16; LANES]) -> F = _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()));
        store_f16(x: F, to: &mut [u16; LANES]) -> () =
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        add(a: F, b: F) -> F = _mm512_add_ps(a, b);
        sub(a: F, b: F) -> F = _mm512_sub_ps(a, b);
        mul(a: F, b: F) -> F = _mm512_mul_ps(a, b);
        div(a: F, b: F) -> F = _mm512_div_ps(a, b);
        fma(a: F, b: F, c: F) -> F = _mm512_fmadd_ps(a, b, c);
        max(a: F, b: F) -> F = _mm512_max_ps(a, b);
        min(a: F, b: F) -> F = _mm512_min_ps(a, b);
        abs(a: F) -> F = _mm512_abs_ps(a);
        copy_sign(magnitude: F, sign: F) -> F = {
            let mask = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(mask, magnitude), _mm512_and_ps(mask, sign))
        };
        select_less(a: F, b: F, x: F, y: F) -> F =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), x, y);
        less_bits(a: F, b: F) -> u16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        select_bits(keep: u16, x: F, y: F) -> F = _mm512_mask_blend_ps(keep, y, x);
        even_twice(a: F) -> F = _mm512_moveldup_ps(a);
        odd_twice(a: F) -> F = _mm512_movehdup_ps(a);
        reduce_add(a: F) -> f32 = {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        };
        reduce_max(a: F) -> f32 = {
            let a = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        };
        splat_i(x: i32) -> I = _mm512_set1_epi32(x);
        load_pairs(from: &[i16; 2 * LANES]) -> I = _mm512_loadu_si512(from.as_ptr().cast());
        load_byte_pairs(from: &[i8; 2 * LANES]) -> I =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.as_ptr().cast()));
        store_i16(x: I, to: &mut [i16; LANES]) -> () =
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(x));
        store_low_bytes(x: I, to: &mut [i8; LANES]) -> () =
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x));
        add_i(a: I, b: I) -> I = _mm512_add_epi32(a, b);
        dot_pairs(acc: I, a: I, b: I) -> I = _mm512_dpwssd_epi32(acc, a, b);
        table(table: &[i32; LANES], index: I) -> I =
            _mm512_permutexvar_epi32(index, _mm512_loadu_si512(table.as_ptr().cast()));
        bits(a: F) -> I = _mm512_castps_si512(a);
        float_of_bits(a: I) -> F = _mm512_castsi512_ps(a);
        to_float(a: I) -> F = _mm512_cvtepi32_ps(a);
        round(a: F) -> I = _mm512_cvtps_epi32(a);
        prefetch(at: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }

    #[inline(always)]
    fn shift_left<const BITS: i32>(self, a: I) -> I {
        // SAFETY: the token proves that this machine has the instruction. The count form takes any `BITS`.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(BITS)) }
    }
}
