//! Elementary functions on sixteen lanes, the same bits in every instruction set. NaN gives NaN.
//!
//! Polynomials interpolate at Chebyshev nodes; the measured errors are in the tests of `ops`.

use super::simd::{LANES, Simd};

/// Bits of 2^(i/16) less i << 19, so that adding `16 n + i` shifted left by 19 gives the bits of 2^(n + i/16).
const EXP2_SIXTEENTHS: [i32; LANES] = [
    0x3f80_0000,
    0x3f7d_aac3,
    0x3f7b_95c2,
    0x3f79_c3d3,
    0x3f78_37f0,
    0x3f76_f532,
    0x3f75_fed7,
    0x3f75_583f,
    0x3f75_04f3,
    0x3f75_08a4,
    0x3f75_672a,
    0x3f76_248c,
    0x3f77_44fd,
    0x3f78_ccdf,
    0x3f7a_c0c7,
    0x3f7d_257d,
];
/// Below this [`exp2`] is exactly 0: far below what f32 sums notice, far above where products become subnormal.
pub(crate) const EXP2_CUT: f32 = -90.0;

/// 2^x for x in (-inf, 127]: exactly 1 at 0, exactly 0 below [`EXP2_CUT`]. Relative error below 2e-7.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    // 1.5 * 2^19 has an ulp of 1/16: the sum's low bits are round(16 x).
    let magic = s.splat(786_432.0);
    let shifted = s.add(x, magic);
    let rest = s.sub(x, s.sub(shifted, magic)); // exact, |rest| <= 1/32
    let steps = s.bits(shifted);
    let power = s.float_of_bits(s.add_i(s.table(&EXP2_SIXTEENTHS, steps), s.shift_left::<19>(steps)));
    let mut p = s.splat(5.550_411e-2);
    p = s.fma(p, rest, s.splat(2.402_265e-1));
    p = s.fma(p, rest, s.splat(std::f32::consts::LN_2));
    p = s.fma(p, rest, s.splat(1.0));
    s.select_less(x, s.splat(EXP2_CUT), s.splat(0.0), s.mul(p, power))
}

/// e^x; arguments are first clamped to [-87, 88], where results are normal numbers. Relative error below 1.2e-7.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The bound comes first: max and min keep a NaN of their second operand.
    let x = s.min(s.splat(88.0), s.max(s.splat(-87.0), x));
    let magic = s.splat(12_582_912.0); // 1.5 * 2^23: an ulp of 1
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    // ln 2 in two parts, the first short enough for n times it to be exact.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.392_637_6e-3);
    p = s.fma(p, r, s.splat(8.363_333e-3));
    p = s.fma(p, r, s.splat(4.166_655e-2));
    p = s.fma(p, r, s.splat(1.666_657_6e-1));
    p = s.fma(p, r, s.splat(0.5));
    let p = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    // 2^n in the exponent bits; the magic number's own bits vanish in the shift.
    let power = s.float_of_bits(s.add_i(s.splat_i(0x3f80_0000), s.shift_left::<23>(s.bits(shifted))));
    s.mul(p, power)
}

/// tanh x. Relative error below 3e-7.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let z = s.abs(x);
    // Near 0 an odd polynomial, for (e^2z - 1) cancels there.
    let t = s.mul(z, z);
    let mut p = s.splat(2.292_745e-3);
    p = s.fma(p, t, s.splat(-8.343_946e-3));
    p = s.fma(p, t, s.splat(2.176_891_9e-2));
    p = s.fma(p, t, s.splat(-5.395_926e-2));
    p = s.fma(p, t, s.splat(1.333_330_3e-1));
    p = s.fma(p, t, s.splat(-3.333_333_3e-1));
    let small = s.fma(s.mul(z, t), p, z);
    let one = s.splat(1.0);
    let large = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(z, z)), one)));
    s.copy_sign(s.select_less(z, s.splat(0.625), small, large), x)
}
