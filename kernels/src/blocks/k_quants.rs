//! K-quants: blocks of 256 whose scales are small integers under one f16 (and another for the minima).
//!
//! | format | bytes of a block |
//! |---|---|
//! | Q2_K | sixteen 4-bit scales and minima 16, two bits a weight 64, scale 2, scale of the minima 2 |
//! | Q3_K | third bits 32, two bits a weight 64, sixteen 6-bit scales 12, scale 2 |
//! | Q4_K | scale 2, scale of the minima 2, eight 6-bit pairs 12, nibbles 128 |
//! | Q5_K | as Q4_K with fifth bits 32 before the nibbles |
//! | Q6_K | low nibbles 128, high pairs 64, sixteen i8 scales 16, scale 2 |

use super::{
    BlockFormat,
    decode::{Scales, half_at},
    legacy::nibbles,
};

// Where the fields of a block end, so that a wrong offset below does not compile.
const _: () = assert!(BlockFormat::Q2_K.block_bytes() == 16 + 64 + 2 + 2);
const _: () = assert!(BlockFormat::Q3_K.block_bytes() == 32 + 64 + 12 + 2);
const _: () = assert!(BlockFormat::Q4_K.block_bytes() == 2 + 2 + 12 + 128);
const _: () = assert!(BlockFormat::Q5_K.block_bytes() == 2 + 2 + 12 + 32 + 128);
const _: () = assert!(BlockFormat::Q6_K.block_bytes() == 128 + 64 + 16 + 2);

#[inline(always)]
pub(super) fn q2_k(block: &[u8], out: &mut [u8]) {
    two_bits(&block[16..80], out);
}

/// Scale and minimum of sixteen weights.
#[inline(always)]
pub(super) fn q2_k_scales(block: &[u8], sub: usize) -> Scales {
    let (scale, minimum) = (block[sub] & 15, block[sub] >> 4);
    Scales {
        scale: half_at(block, 80) * f32::from(scale),
        minimum: -(half_at(block, 82) * f32::from(minimum)),
    }
}

/// The third bit counts 4, and the value is 4 less.
#[inline(always)]
pub(super) fn q3_k(block: &[u8], out: &mut [u8]) {
    two_bits(&block[32..96], out);
    let third: &[u8; 32] = block[..32].as_array().expect("32 bytes");
    for (bit, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        out.iter_mut().zip(third).for_each(|(code, t)| *code += (t >> bit & 1) << 2);
    }
}

/// Sixteen weights.
#[inline(always)]
pub(super) fn q3_k_scales(block: &[u8], sub: usize) -> Scales {
    Scales::without_minimum(half_at(block, 108) * (f32::from(q3_k_six_bits(block, sub)) - 32.0))
}

/// The low nibbles of the scales 0-7, then 8-15 lie in eight bytes, the high pairs of scales i, i + 4, i + 8 and i + 12 in
/// byte 8 + i.
#[inline(always)]
pub(super) fn q3_k_six_bits(block: &[u8], sub: usize) -> u8 {
    let packed = &block[96..108];
    let low = packed[sub % 8] >> (4 * (sub / 8)) & 15;
    let high = packed[8 + sub % 4] >> (2 * (sub / 4)) & 3;
    low | high << 4
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8], out: &mut [u8]) {
    out.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)).for_each(|(out, b)| nibbles(b, out));
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8], out: &mut [u8]) {
    out.chunks_exact_mut(64).zip(block[48..].chunks_exact(32)).for_each(|(out, b)| nibbles(b, out));
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        // Bit `sub` of byte i belongs to weight i of this part.
        let high = block[16..48].as_chunks::<4>().0;
        for (four, high) in out.as_chunks_mut::<4>().0.iter_mut().zip(high) {
            let spread = (u32::from_le_bytes(*high) >> sub & 0x0101_0101) << 4;
            *four = (u32::from_le_bytes(*four) | spread).to_le_bytes();
        }
    }
}

/// Of Q4_K and Q5_K, 32 weights.
#[inline(always)]
pub(super) fn q4_k_scales(block: &[u8], sub: usize) -> Scales {
    let (scale, minimum) = six_bit_pair(sub, |i| block[4 + i]);
    Scales { scale: half_at(block, 0) * f32::from(scale), minimum: -(half_at(block, 2) * f32::from(minimum)) }
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8], out: &mut [u8]) {
    for half in 0..2 {
        let out = &mut out[half * 128..][..128];
        out[..64].copy_from_slice(&block[half * 64..][..64]);
        // Quarters 0 and 1 are the low nibbles of the 64 bytes, 2 and 3 the high ones.
        for i in 0..64 {
            out[64 + i] = out[i] >> 4;
            out[i] &= 15;
        }
        for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
            let high = &block[128 + half * 32..][..32];
            out.iter_mut().zip(high).for_each(|(code, &h)| *code |= (h >> (2 * quarter) & 3) << 4);
        }
    }
}

/// Sixteen weights.
#[inline(always)]
pub(super) fn q6_k_scales(block: &[u8], sub: usize) -> Scales {
    Scales::without_minimum(half_at(block, 208) * f32::from(block[192 + sub].cast_signed()))
}

/// Scale and minimum `sub` (0..8) of the 12 bytes in which K-quants keep eight 6-bit pairs: the first four pairs in the low
/// bits of bytes 0-3 and 4-7, the others' low nibbles in bytes 8-11 and their high bits on top of bytes 0-7.
#[inline(always)]
pub(crate) fn six_bit_pair(sub: usize, byte: impl Fn(usize) -> u8) -> (u8, u8) {
    if sub < 4 {
        (byte(sub) & 63, byte(sub + 4) & 63)
    } else {
        let low = byte(sub + 4);
        (low & 15 | byte(sub - 4) >> 6 << 4, low >> 4 | byte(sub) >> 6 << 4)
    }
}

/// Fields of two bits: 32 bytes hold bits 0-1 of 32 weights, bits 2-3 of the next 32, and so on.
#[inline(always)]
pub(super) fn two_bits(packed: &[u8], out: &mut [u8]) {
    for (packed, out) in packed.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<128>().0) {
        for (field, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            out.iter_mut().zip(packed).for_each(|(code, b)| *code = b >> (2 * field) & 3);
        }
    }
}
