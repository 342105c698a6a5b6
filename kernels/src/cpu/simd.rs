//! Sixteen virtual lanes: the one vector shape that attention and the vector operations are written in.
//!
//! An algorithm is a [`Kernel`], generic over [`Simd`]; [`dispatch`] runs it compiled for one instruction set. A value
//! of a `Simd` type is a token: it exists only where the machine has the instructions, so its methods are safe. Every
//! implementation gives the same bits for every method (NaN payloads excepted), therefore for every kernel:
//! * each float operation is one IEEE operation, rounded to nearest even; only [`Simd::fma`] fuses;
//! * `max(a, b)` is `a > b ? a : b` and `min(a, b)` is `a < b ? a : b`, so a NaN in `a` is lost and one in `b` stays;
//! * reductions over lanes are the tree 8+8, 4+4, 2+2, 1+1 (lane i with lane i + half);
//! * integer sums wrap.

use super::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

/// Lanes of every vector.
pub(crate) const LANES: usize = 16;

/// Something to compute on any instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The computation. Implementations are `#[inline(always)]`, as is all generic code below them: only so is it
    /// compiled for the instruction set of the token.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`.
///
/// # Panics
/// When this machine does not have `isa`.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        Isa::Scalar => kernel.run(scalar::Scalar),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::Avx2::new().expect("this machine has AVX2, FMA and F16C").enter(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => {
            avx512::Avx512::new().expect("this machine has AVX-512 with VNNI").enter(kernel)
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => panic!("instruction set {} belongs to another architecture", isa.name()),
    }
}

/// A token for an instruction set; see the module's header.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;

    /// Most rows and vectors of the register tile of a product: accumulators are rows x vectors.
    const TILE_ROWS: usize;
    /// See [`Simd::TILE_ROWS`].
    const TILE_VECTORS: usize;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    /// IEEE half floats, widened.
    fn load_f16(self, from: &[u16; LANES]) -> Self::F;
    /// Rounded to nearest even IEEE half floats, subnormal ones included.
    fn store_f16(self, x: Self::F, to: &mut [u16; LANES]);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// `sign` of one, magnitude of the other.
    fn copy_sign(self, magnitude: Self::F, sign: Self::F) -> Self::F;
    /// Where `a < b` (not for NaN) `x`, elsewhere `y`.
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// A bit for each lane in which `a < b` (not for NaN).
    fn less_bits(self, a: Self::F, b: Self::F) -> u16;
    /// Lanes whose bit is set in `keep` from `x`, the others from `y`.
    fn select_bits(self, keep: u16, x: Self::F, y: Self::F) -> Self::F;
    /// Each even lane in its place and in the odd one after it.
    fn even_twice(self, a: Self::F) -> Self::F;
    /// Each odd lane in its place and in the even one before it.
    fn odd_twice(self, a: Self::F) -> Self::F;
    fn reduce_add(self, a: Self::F) -> f32;
    fn reduce_max(self, a: Self::F) -> f32;

    fn splat_i(self, x: i32) -> Self::I;
    /// Thirty-two i16 as sixteen pairs.
    fn load_pairs(self, from: &[i16; 2 * LANES]) -> Self::I;
    /// Thirty-two i8, widened to sixteen pairs of i16.
    fn load_byte_pairs(self, from: &[i8; 2 * LANES]) -> Self::I;
    /// The low halves. Only for values that fit.
    fn store_i16(self, x: Self::I, to: &mut [i16; LANES]);
    /// The lowest byte of each lane.
    fn store_low_bytes(self, x: Self::I, to: &mut [i8; LANES]);
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shift_left<const BITS: i32>(self, a: Self::I) -> Self::I;
    /// `acc + a.low * b.low + a.high * b.high` of i16 pairs, exact. No code is -32768.
    fn dot_pairs(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `table[index mod 16]`.
    fn table(self, table: &[i32; LANES], index: Self::I) -> Self::I;

    fn bits(self, a: Self::F) -> Self::I;
    fn float_of_bits(self, a: Self::I) -> Self::F;
    fn to_float(self, a: Self::I) -> Self::F;
    /// Rounded to nearest even. Only for values that fit an i32; others, and NaN, give any integer.
    fn round(self, a: Self::F) -> Self::I;

    /// Asks for the cache line at `at`, into every level. Never faults, whatever the address.
    fn prefetch(self, at: *const u8);
}
