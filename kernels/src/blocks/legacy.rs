//! Blocks of 32 with an f16 scale in front: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
//!
//! | format | bytes of a block |
//! |---|---|
//! | Q4_0 | scale 2, nibbles 16 |
//! | Q4_1 | scale 2, minimum 2, nibbles 16 |
//! | Q5_0 | scale 2, fifth bits 4, nibbles 16 |
//! | Q5_1 | scale 2, minimum 2, fifth bits 4, nibbles 16 |
//! | Q8_0 | scale 2, signed bytes 32 |

use super::{
    BlockFormat,
    decode::{Scales, half_at},
};

// Where the fields of a block end, so that a wrong offset below does not compile.
const _: () = assert!(BlockFormat::Q4_0.block_bytes() == 2 + 16);
const _: () = assert!(BlockFormat::Q4_1.block_bytes() == 2 + 2 + 16);
const _: () = assert!(BlockFormat::Q5_0.block_bytes() == 2 + 4 + 16);
const _: () = assert!(BlockFormat::Q5_1.block_bytes() == 2 + 2 + 4 + 16);
const _: () = assert!(BlockFormat::Q8_0.block_bytes() == 2 + 32);

#[inline(always)]
pub(super) fn q4_0(block: &[u8], out: &mut [u8]) {
    nibbles(&block[2..], out);
}

#[inline(always)]
pub(super) fn q4_1(block: &[u8], out: &mut [u8]) {
    nibbles(&block[4..], out);
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8], out: &mut [u8]) {
    nibbles(&block[6..], out);
    fifth_bits([block[2], block[3], block[4], block[5]], out);
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8], out: &mut [u8]) {
    nibbles(&block[8..], out);
    fifth_bits([block[4], block[5], block[6], block[7]], out);
}

#[inline(always)]
pub(super) fn q8_0(block: &[u8], out: &mut [u8]) {
    out.iter_mut().zip(&block[2..]).for_each(|(code, &b)| *code = b ^ 0x80);
}

/// Of Q4_1 and Q5_1.
#[inline(always)]
pub(super) fn scale_and_minimum(block: &[u8]) -> Scales {
    Scales { scale: half_at(block, 0), minimum: half_at(block, 2) }
}

/// The low nibbles of `packed`, then its high ones; four at a time, which packing at load feels.
#[inline(always)]
pub(super) fn nibbles(packed: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(packed.len());
    let out = low.as_chunks_mut::<4>().0.iter_mut().zip(high.as_chunks_mut::<4>().0);
    for ((low, high), four) in out.zip(packed.as_chunks::<4>().0) {
        let word = u32::from_le_bytes(*four);
        *low = (word & 0x0f0f_0f0f).to_le_bytes();
        *high = (word >> 4 & 0x0f0f_0f0f).to_le_bytes();
    }
}

/// Adds bit i of a little-endian word to code i as its bit 4.
#[inline(always)]
fn fifth_bits(word: [u8; 4], out: &mut [u8]) {
    let word = u32::from_le_bytes(word);
    for (i, four) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // Copies of four bits at 0, 7, 14 and 21 put one of each at 0, 8, 16 and 24.
        let spread = ((word >> (4 * i) & 15) * 0x0020_4081) & 0x0101_0101;
        *four = (u32::from_le_bytes(*four) | spread << 4).to_le_bytes();
    }
}
