//! The codes of grids ([`super::grid`]) in AVX2: points are loaded one row after the other, signs are turned eight rows at once.

use super::{
    codes::Quad,
    grid::{Plane, index_plane, sign_plane, signs_are_even},
    grid_panel::{self, Lanes, Quads, lanes, words},
};
use crate::blocks::{BlockFormat, grids};
use std::arch::x86_64::*;

/// Decodes units to a panel of as many blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode_units(format: BlockFormat, units: &[u8], panel: &mut [u32]) {
    // A constant format in each arm: what it decides is decided by the compiler.
    macro_rules! decode {
        ($($name:ident)*) => {
            match format {
                $(BlockFormat::$name => grid_panel::decode_units(BlockFormat::$name, units, panel, |planes, b, quads| {
                    decode_block(BlockFormat::$name, planes, b, quads);
                }),)*
                other => unreachable!("{other} has no grid"),
            }
        };
    }
    decode!(IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S);
}

/// Decodes the codes of block `b` of a unit.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn decode_block(format: BlockFormat, planes: &[Plane], b: usize, quads: &mut Quads) {
    use BlockFormat as B;
    for (eight, pair) in quads.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let indices = |i: usize| indices(format, planes, b, i);
        match format {
            B::IQ1_S | B::IQ1_M => eights(&grids::IQ1, &indices(eight), pair),
            B::IQ2_XXS => eights(&grids::IQ2_XXS, &indices(eight), pair),
            B::IQ2_XS => eights(&grids::IQ2_XS, &indices(eight), pair),
            B::IQ2_S => eights(&grids::IQ2_S, &indices(eight), pair),
            B::IQ3_XXS => {
                fours(&grids::IQ3_XXS, &indices(2 * eight), &mut pair[0]);
                fours(&grids::IQ3_XXS, &indices(2 * eight + 1), &mut pair[1]);
            }
            _ => {
                fours(&grids::IQ3_S, &indices(2 * eight), &mut pair[0]);
                fours(&grids::IQ3_S, &indices(2 * eight + 1), &mut pair[1]);
            }
        }
        if matches!(format, B::IQ1_S | B::IQ1_M) {
            let nibbles = iq1_nibbles(format, planes, b, eight);
            for quad in pair {
                // The grid has the shift of minus one.
                for (q, nibble) in quad.iter_mut().zip(&nibbles) {
                    *q += u32::from(!nibble >> 3 & 1) * 0x0202_0202;
                }
            }
        } else {
            let bytes = &planes[sign_plane(format, b, eight)];
            let signs = match signs_are_even(format) {
                true => lanes(|r| bytes[r] >> 1 | parity(bytes[r] & !1) << 7),
                false => *bytes,
            };
            for (half, quad) in pair.iter_mut().enumerate() {
                turn(quad, &signs, half);
            }
        }
    }
}

/// The codes that indices choose, eight columns each, to two quads.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn eights<const N: usize>(grid: &[u64; N], indices: &Lanes<u16>, [even, odd]: &mut [Quad; 2]) {
    let quads = even.as_chunks_mut::<8>().0.iter_mut().zip(odd.as_chunks_mut::<8>().0);
    for (i, (even, odd)) in indices.as_chunks::<8>().0.iter().zip(quads) {
        // SAFETY: eight words each.
        unsafe {
            let point = |r: usize| grid[usize::from(i[r])].cast_signed();
            // So that columns come out in the order of rows.
            let a = _mm256_castsi256_ps(_mm256_setr_epi64x(point(0), point(1), point(4), point(5)));
            let b = _mm256_castsi256_ps(_mm256_setr_epi64x(point(2), point(3), point(6), point(7)));
            _mm256_storeu_ps(even.as_mut_ptr().cast(), _mm256_shuffle_ps::<0x88>(a, b));
            _mm256_storeu_ps(odd.as_mut_ptr().cast(), _mm256_shuffle_ps::<0xdd>(a, b));
        }
    }
}

/// The codes that indices choose, four columns each, to a quad.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fours<const N: usize>(grid: &[u32; N], indices: &Lanes<u16>, quad: &mut Quad) {
    // Loaded from memory where the compiler would take them out of a vector, which is dearer.
    let indices = if N > 256 { std::hint::black_box(indices) } else { indices };
    for (q, index) in quad.iter_mut().zip(indices) {
        *q = grid[usize::from(*index)];
    }
}

/// Turns the codes of four columns whose bits are set: bit `4 * half + i` of a row's byte is that of column `i`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn turn(quad: &mut Quad, signs: &Plane, half: usize) {
    for (quad, signs) in quad.as_chunks_mut::<8>().0.iter_mut().zip(signs.as_chunks::<8>().0) {
        // SAFETY: eight words and eight bytes.
        unsafe {
            let at = quad.as_mut_ptr().cast::<__m256i>();
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(signs.as_ptr().cast()));
            // Each byte of a word keeps its own bit of the row's.
            let bits = _mm256_set1_epi32(if half == 0 { 0x0804_0201 } else { 0x8040_2010u32.cast_signed() });
            let own = _mm256_and_si256(_mm256_mullo_epi32(bytes, _mm256_set1_epi32(0x0101_0101)), bits);
            let minuses = _mm256_cmpeq_epi8(own, bits);
            // 128 + g becomes 128 - g.
            let turned = _mm256_xor_si256(_mm256_loadu_si256(at), minuses);
            _mm256_storeu_si256(at, _mm256_sub_epi8(turned, minuses));
        }
    }
}

/// The rows' indices of an eight or four.
#[inline(always)]
fn indices(format: BlockFormat, planes: &[Plane], b: usize, i: usize) -> Lanes<u16> {
    let low = &planes[index_plane(format, b, i)];
    let high = match format {
        BlockFormat::IQ1_S | BlockFormat::IQ1_M => {
            let nibbles = iq1_nibbles(format, planes, b, i);
            lanes(|r| nibbles[r] & 7)
        }
        BlockFormat::IQ2_XS => {
            let signs = &planes[sign_plane(format, b, i)];
            lanes(|r| u16::from(signs[r] & 1))
        }
        BlockFormat::IQ2_S => lanes(|r| u16::from(planes[66 + b][r] >> (2 * i) & 3)),
        BlockFormat::IQ3_S => lanes(|r| u16::from(planes[66 + b][r] >> i & 1)),
        _ => [0; 32],
    };
    lanes(|r| u16::from(low[r]) | high[r] << 8)
}

/// Three high bits of an index of IQ1, and above them the sign of the shift.
#[inline(always)]
fn iq1_nibbles(format: BlockFormat, planes: &[Plane], b: usize, eight: usize) -> Lanes<u16> {
    if format == BlockFormat::IQ1_S {
        let words = words(planes, 34 + 2 * b);
        lanes(|r| words[r] >> (3 * eight) & 7 | words[r] >> 12 & 8)
    } else {
        let bytes = &planes[32 + 2 * b + eight / 2];
        lanes(|r| u16::from(bytes[r] >> (4 * (eight % 2)) & 15))
    }
}

/// Whether the number of ones is odd.
#[inline(always)]
fn parity(bits: u8) -> u8 {
    let pairs = bits ^ bits >> 4;
    let pair = pairs ^ pairs >> 2;
    (pair ^ pair >> 1) & 1
}
