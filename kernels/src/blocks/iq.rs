//! Formats whose codes come in fours and eights out of a grid: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S.
//!
//! A block is 256 weights. Codes are the value plus 128; in IQ1 the value is eight times the grid's, plus or minus one, and
//! the scale an eighth: the shift of the format. IQ2 and IQ3 have magnitudes in the grid and signs beside; where a sign byte
//! has seven bits, the number of minuses is even.
//!
//! | format | bytes of a block |
//! |---|---|
//! | IQ1_S | scale 2, low bytes of 32 indices, a word each 32 weights (3 high bits of four indices, 3 bits scale, shift) 16 |
//! | IQ1_M | low bytes of 32 indices, a nibble each (3 high bits, shift) 16, sixteen 3-bit scales in 4 words, whose highest nibbles are the block's scale 8 |
//! | IQ2_XXS | scale 2, each 32 weights: 4 indices, a word of four sign sevens and a 4-bit scale: 8 * 8 |
//! | IQ2_XS | scale 2, a 16-bit word each eight weights (9-bit index, sign seven) 64, 4-bit scales 8 |
//! | IQ2_S | scale 2, low bytes of 32 indices, 32 sign bytes, high pairs of the indices 8, 4-bit scales 8 |
//! | IQ3_XXS | scale 2, 64 indices, each 32 weights a word of four sign sevens and a 4-bit scale: 8 * 4 |
//! | IQ3_S | scale 2, low bytes of 64 indices, their ninth bits 8, 32 sign bytes, 4-bit scales 4 |

use super::{
    BlockFormat,
    decode::{Scales, half, half_at},
    grids,
};

// Where the fields of a block end, so that a wrong offset below does not compile.
const _: () = assert!(BlockFormat::IQ1_S.block_bytes() == 2 + 32 + 16);
const _: () = assert!(BlockFormat::IQ1_M.block_bytes() == 32 + 16 + 8);
const _: () = assert!(BlockFormat::IQ2_XXS.block_bytes() == 2 + 64);
const _: () = assert!(BlockFormat::IQ2_XS.block_bytes() == 2 + 64 + 8);
const _: () = assert!(BlockFormat::IQ2_S.block_bytes() == 2 + 32 + 32 + 8 + 8);
const _: () = assert!(BlockFormat::IQ3_XXS.block_bytes() == 2 + 64 + 32);
const _: () = assert!(BlockFormat::IQ3_S.block_bytes() == 2 + 64 + 8 + 32 + 4);

/// Ones in all bytes.
const ONES: u64 = 0x0101_0101_0101_0101;

#[inline(always)]
fn word16(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
fn word32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Codes of magnitudes (in the grid as codes themselves) under a mask of minuses: 128 + g becomes 128 - g.
#[inline(always)]
fn signed(codes: u64, minuses: u64) -> u64 {
    (codes ^ minuses) + (minuses & ONES)
}

/// Seven signs, `index` 0-3, out of a word.
#[inline(always)]
fn even_signs(word: u32, index: usize) -> u64 {
    grids::EVEN_SIGNS[(word >> (7 * index) & 127) as usize]
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = word16(block, 34 + i / 4 * 2);
        let nibble = word >> (3 * (i % 4)) & 7 | word >> 12 & 8;
        *eight = shifted(block[2 + i], nibble);
    }
}

/// 32 weights.
#[inline(always)]
pub(super) fn iq1_s_scales(block: &[u8], sub: usize) -> Scales {
    shifted_scale(half_at(block, 0), word16(block, 34 + 2 * sub) >> 12)
}

#[inline(always)]
pub(super) fn iq1_m(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *eight = shifted(block[i], u16::from(block[32 + i / 2]) >> (4 * (i % 2)));
    }
}

/// Sixteen weights.
#[inline(always)]
pub(super) fn iq1_m_scales(block: &[u8], sub: usize) -> Scales {
    let words = [word16(block, 48), word16(block, 50), word16(block, 52), word16(block, 54)];
    let scale = half(words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12);
    shifted_scale(scale, words[sub / 4] >> (3 * (sub % 4)))
}

/// Eight codes of IQ1 from an index's low byte and a nibble of its three high bits and the shift (set is minus).
#[inline(always)]
fn shifted(low: u8, nibble: u16) -> [u8; 8] {
    let codes = grids::IQ1[usize::from(u16::from(low) | (nibble & 7) << 8)];
    // The grid has the shift of minus one.
    let up = u64::from(!nibble >> 3 & 1) * 2 * ONES;
    (codes + up).to_le_bytes()
}

/// An eighth of the odd multiple that three bits choose.
#[inline(always)]
fn shifted_scale(scale: f32, bits: u16) -> Scales {
    Scales::without_minimum(scale * (f32::from(2 * (bits & 7) + 1) * 0.125))
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let at = 2 + i / 4 * 8;
        let codes = grids::IQ2_XXS[usize::from(block[at + i % 4])];
        *eight = signed(codes, even_signs(word32(block, at + 4), i % 4)).to_le_bytes();
    }
}

/// 32 weights.
#[inline(always)]
pub(super) fn iq2_xxs_scales(block: &[u8], sub: usize) -> Scales {
    half_step_scale(half_at(block, 0) * 0.25, block[2 + 8 * sub + 7] >> 4)
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = word16(block, 2 + 2 * i);
        let codes = grids::IQ2_XS[usize::from(word & 511)];
        *eight = signed(codes, even_signs(u32::from(word >> 9), 0)).to_le_bytes();
    }
}

/// Sixteen weights.
#[inline(always)]
pub(super) fn iq2_xs_scales(block: &[u8], sub: usize) -> Scales {
    half_step_scale(half_at(block, 0) * 0.25, block[66 + sub / 2] >> (4 * (sub % 2)))
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = u16::from(block[66 + i / 4]) >> (2 * (i % 4)) & 3;
        let codes = grids::IQ2_S[usize::from(u16::from(block[2 + i]) | high << 8)];
        *eight = signed(codes, grids::SIGNS[usize::from(block[34 + i])]).to_le_bytes();
    }
}

/// Sixteen weights.
#[inline(always)]
pub(super) fn iq2_s_scales(block: &[u8], sub: usize) -> Scales {
    half_step_scale(half_at(block, 0) * 0.25, block[74 + sub / 2] >> (4 * (sub % 2)))
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let four = |k: usize| u64::from(grids::IQ3_XXS[usize::from(block[2 + 2 * i + k])]);
        let minuses = even_signs(word32(block, 66 + i / 4 * 4), i % 4);
        *eight = signed(four(0) | four(1) << 32, minuses).to_le_bytes();
    }
}

/// 32 weights.
#[inline(always)]
pub(super) fn iq3_xxs_scales(block: &[u8], sub: usize) -> Scales {
    half_step_scale(half_at(block, 0) * 0.5, block[66 + 4 * sub + 3] >> 4)
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8], out: &mut [u8]) {
    for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let four = |k: usize| {
            let ninth = u16::from(block[66 + i / 4]) >> (2 * (i % 4) + k) & 1;
            u64::from(grids::IQ3_S[usize::from(u16::from(block[2 + 2 * i + k]) | ninth << 8)])
        };
        let minuses = grids::SIGNS[usize::from(block[74 + i])];
        *eight = signed(four(0) | four(1) << 32, minuses).to_le_bytes();
    }
}

/// 32 weights: an odd multiple of the block's scale.
#[inline(always)]
pub(super) fn iq3_s_scales(block: &[u8], sub: usize) -> Scales {
    let bits = block[106 + sub / 2] >> (4 * (sub % 2)) & 15;
    Scales::without_minimum(half_at(block, 0) * f32::from(2 * bits + 1))
}

/// The scale of `bits + 1/2` steps; only the low nibble of `bits` counts.
#[inline(always)]
fn half_step_scale(step: f32, bits: u8) -> Scales {
    Scales::without_minimum(step * (f32::from(bits & 15) + 0.5))
}
