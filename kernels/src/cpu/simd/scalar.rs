//! Plain Rust over arrays: the twin that the other instruction sets are tested against.

use super::{LANES, Simd};

/// Needs nothing.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn zip(a: F, b: F, op: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|i| op(a[i], b[i]))
}

#[inline(always)]
fn tree(a: F, op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut a = a;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] = op(a[i], a[i + half]);
        }
    }
    a[0]
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn lesser(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

impl Simd for Scalar {
    type F = F;
    type I = I;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> F {
        *from
    }
    #[inline(always)]
    fn store(self, x: F, to: &mut [f32; LANES]) {
        *to = x;
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> F {
        from.map(|h| half::f16::from_bits(h).to_f32())
    }
    #[inline(always)]
    fn store_f16(self, x: F, to: &mut [u16; LANES]) {
        *to = x.map(|v| half::f16::from_f32(v).to_bits());
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        zip(a, b, greater)
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        zip(a, b, lesser)
    }
    #[inline(always)]
    fn abs(self, a: F) -> F {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn copy_sign(self, magnitude: F, sign: F) -> F {
        zip(magnitude, sign, f32::copysign)
    }
    #[inline(always)]
    fn select_less(self, a: F, b: F, x: F, y: F) -> F {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn less_bits(self, a: F, b: F) -> u16 {
        (0..LANES).fold(0, |bits, i| bits | u16::from(a[i] < b[i]) << i)
    }
    #[inline(always)]
    fn select_bits(self, keep: u16, x: F, y: F) -> F {
        std::array::from_fn(|i| if keep >> i & 1 == 1 { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn even_twice(self, a: F) -> F {
        std::array::from_fn(|i| a[i & !1])
    }
    #[inline(always)]
    fn odd_twice(self, a: F) -> F {
        std::array::from_fn(|i| a[i | 1])
    }
    #[inline(always)]
    fn reduce_add(self, a: F) -> f32 {
        tree(a, |a, b| a + b)
    }
    #[inline(always)]
    fn reduce_max(self, a: F) -> f32 {
        tree(a, greater)
    }
    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    fn load_pairs(self, from: &[i16; 2 * LANES]) -> I {
        std::array::from_fn(|i| i32::from(from[2 * i] as u16) | i32::from(from[2 * i + 1]) << 16)
    }
    #[inline(always)]
    fn load_byte_pairs(self, from: &[i8; 2 * LANES]) -> I {
        std::array::from_fn(|i| i32::from(i16::from(from[2 * i]) as u16) | i32::from(from[2 * i + 1]) << 16)
    }
    #[inline(always)]
    fn store_i16(self, x: I, to: &mut [i16; LANES]) {
        *to = x.map(|v| v as i16);
    }
    #[inline(always)]
    fn store_low_bytes(self, x: I, to: &mut [i8; LANES]) {
        *to = x.map(|v| v as i8);
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn shift_left<const BITS: i32>(self, a: I) -> I {
        a.map(|v| v << BITS)
    }
    #[inline(always)]
    fn dot_pairs(self, acc: I, a: I, b: I) -> I {
        std::array::from_fn(|i| {
            let low = i32::from(a[i] as i16) * i32::from(b[i] as i16);
            let high = (a[i] >> 16) * (b[i] >> 16);
            acc[i].wrapping_add(low).wrapping_add(high)
        })
    }
    #[inline(always)]
    fn table(self, table: &[i32; LANES], index: I) -> I {
        index.map(|i| table[(i & 15) as usize])
    }
    #[inline(always)]
    fn bits(self, a: F) -> I {
        a.map(|v| v.to_bits().cast_signed())
    }
    #[inline(always)]
    fn float_of_bits(self, a: I) -> F {
        a.map(|v| f32::from_bits(v.cast_unsigned()))
    }
    #[inline(always)]
    fn to_float(self, a: I) -> F {
        a.map(|v| v as f32)
    }
    #[inline(always)]
    fn round(self, a: F) -> I {
        a.map(|v| v.round_ties_even() as i32)
    }
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
}
