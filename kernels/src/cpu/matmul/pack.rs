//! From file rows to packed groups, written once and compiled for each instruction set.
//!
//! A unit of a group is packed in three steps: the scales of each row go where the format's [`Header`] has them; the codes of
//! all rows become quads, a byte a code; the quads are folded to the format's bits ([`Folding`]). The middle step is where the
//! time goes: words of all rows lie side by side ([`super::transpose`]), and codes are picked out of 32 words at a time.

use super::{
    codes::{Folding, Quad},
    grid,
    layout::{self, BLOCK_COLS, Format, GROUP_ROWS, QUAD_BYTES, QUADS, with_format},
    rows::SMALLEST_BFLOAT,
    scales::Header,
    transpose::{FileRows, Transpose},
};
use crate::blocks::{BlockFormat, MAX_BLOCK_LEN};

/// Packs whole rows of `cols` columns into `out`, which holds zeros: groups of 32 rows, of which the last may have fewer.
///
/// # Safety
/// The machine has the instruction set of `T`, for which the caller is compiled.
///
/// # Panics
/// When `bytes` are not as many groups of rows as `out` has room for.
#[inline(always)]
pub(super) unsafe fn pack_groups<T: Transpose>(
    format: BlockFormat,
    cols: usize,
    bytes: &[u8],
    out: &mut [u8],
) {
    let (Some(row_bytes), Some(group_bytes)) = (format.row_bytes(cols), layout::group_bytes(format, cols))
    else {
        panic!("{cols} columns of {format}");
    };
    let groups = bytes.chunks(GROUP_ROWS * row_bytes);
    assert_eq!(groups.len() * group_bytes, out.len(), "room for each group");
    for (bytes, group) in groups.zip(out.chunks_exact_mut(group_bytes)) {
        // SAFETY: as the caller promises.
        let rows = unsafe { FileRows::<T>::new(bytes, row_bytes) };
        with_format!(format, F => pack_quantised::<F, T>(&rows, group),
        panel => grid::pack(format, cols, bytes, group),
        _ => match format.block_bytes() {
            2 => pack_halves(&rows, cols, group),
            _ => pack_floats(&rows, cols, group),
        });
        if format == BlockFormat::BF16 {
            flush(group);
        }
    }
}

/// Sixteen bytes of a row are four columns.
#[inline(always)]
fn pack_floats<T: Transpose>(rows: &FileRows<'_, T>, cols: usize, group: &mut [u8]) {
    let (fours, rest) = group.as_chunks_mut::<{ 4 * QUAD_BYTES }>();
    for (i, four) in fours.iter_mut().enumerate() {
        rows.prefetch(i * 16..(i + 1) * 16);
        for (column, words) in four.as_chunks_mut::<QUAD_BYTES>().0.iter_mut().zip(&rows.four_words(i * 16)) {
            column.as_chunks_mut().0.iter_mut().zip(words).for_each(|(out, word)| *out = word.to_le_bytes());
        }
    }
    for (column, out) in (cols / 4 * 4..cols).zip(rest.chunks_exact_mut(QUAD_BYTES)) {
        out.copy_from_slice(rows.each::<4>(column * 4).as_flattened());
    }
}

/// Sixteen bytes of a row are eight columns, two in a word.
#[inline(always)]
fn pack_halves<T: Transpose>(rows: &FileRows<'_, T>, cols: usize, group: &mut [u8]) {
    const COLUMN_BYTES: usize = GROUP_ROWS * 2;
    let (eights, rest) = group.as_chunks_mut::<{ 8 * COLUMN_BYTES }>();
    for (i, eight) in eights.iter_mut().enumerate() {
        rows.prefetch(i * 16..(i + 1) * 16);
        let pairs = eight.as_chunks_mut::<{ 2 * COLUMN_BYTES }>().0.iter_mut();
        for (pair, words) in pairs.zip(&rows.four_words(i * 16)) {
            let (low, high) = pair.split_at_mut(COLUMN_BYTES);
            let halves = low.as_chunks_mut::<2>().0.iter_mut().zip(high.as_chunks_mut::<2>().0);
            for ((low, high), word) in halves.zip(words) {
                *low = (*word as u16).to_le_bytes();
                *high = ((word >> 16) as u16).to_le_bytes();
            }
        }
    }
    for (column, out) in (cols / 8 * 8..cols).zip(rest.chunks_exact_mut(COLUMN_BYTES)) {
        out.copy_from_slice(rows.each::<2>(column * 2).as_flattened());
    }
}

/// Makes 0 of bf16 below the least that is multiplied.
#[inline(always)]
fn flush(group: &mut [u8]) {
    const SMALLEST: u16 = (SMALLEST_BFLOAT.to_bits() >> 16) as u16;
    for weight in group.as_chunks_mut::<2>().0 {
        let bits = u16::from_le_bytes(*weight);
        let kept = if bits & 0x7fff < SMALLEST { bits & 0x8000 } else { bits };
        *weight = kept.to_le_bytes();
    }
}

#[inline(always)]
fn pack_quantised<F: Format, T: Transpose>(rows: &FileRows<'_, T>, group: &mut [u8]) {
    let block_bytes = F::FORMAT.block_bytes();
    let mut quads: [Quad; MAX_BLOCK_LEN / 4] = [[0; GROUP_ROWS]; _];
    let quads = &mut quads[..F::FORMAT.block_len() / 4];
    for (u, unit) in group.chunks_exact_mut(F::UNIT_BYTES).enumerate() {
        let block = u * block_bytes;
        if F::UNIT_BLOCKS == 1 {
            rows.prefetch(block..block + block_bytes);
        }
        let (header, folded) = unit.split_at_mut(F::HEADER_BYTES);
        rows.slices(block, block_bytes)
            .enumerate()
            .for_each(|(r, block)| F::Header::pack(F::FORMAT, block, r, header));
        unpack_quads::<F, T>(rows, block, quads);
        let quads = quads.chunks_exact(F::Folding::BLOCKS * QUADS);
        for (quads, folded) in quads.zip(folded.chunks_exact_mut(F::Folding::BYTES)) {
            F::Folding::fold(quads, folded);
        }
    }
}

/// The codes of the blocks at byte `block` of all rows, or the fields that choose them: what
/// `unpack_fields` of `blocks/decode.rs` gives for each, four to a word.
#[inline(always)]
fn unpack_quads<F: Format, T: Transpose>(rows: &FileRows<'_, T>, block: usize, quads: &mut [Quad]) {
    use BlockFormat as B;
    match F::FORMAT {
        B::Q4_0 => nibbles(&rows.four_words(block + 2), quads),
        B::Q4_1 => nibbles(&rows.four_words(block + 4), quads),
        B::Q5_0 | B::Q5_1 => {
            let bits = block + if F::HAS_MINIMUM { 4 } else { 2 };
            nibbles(&rows.four_words(bits + 4), quads);
            fifth_bits(&rows.words(bits), quads);
        }
        B::Q8_0 => {
            for (half, quads) in quads.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let words = rows.four_words(block + 2 + 16 * half);
                quads.iter_mut().zip(&words).for_each(|(quad, words)| set(quad, words, |w| w ^ 0x8080_8080));
            }
        }
        B::Q4_K => {
            for (i, quads) in quads.as_chunks_mut::<{ 2 * QUADS }>().0.iter_mut().enumerate() {
                nibbles(&rows.eight_words(block + 16 + BLOCK_COLS * i), quads);
            }
        }
        B::Q5_K => q5_k(rows, block, quads),
        B::Q6_K => q6_k(rows, block, quads),
        B::Q1_0 => bits(&rows.four_words(block + 2), quads),
        B::Q2_0 => neighbours(&rows.four_words(block + 2), quads),
        B::Q2_K => two_bits(rows, block + 16, quads),
        B::TQ2_0 => two_bits(rows, block, quads),
        B::Q3_K => {
            two_bits(rows, block + 32, quads);
            let third = rows.eight_words(block);
            for (bit, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
                high_bits(&third, bit, 0x0101_0101, 2, quads);
            }
        }
        B::TQ1_0 => {
            digits(&rows.eight_words(block), &mut quads[..40]);
            digits(&rows.four_words(block + 32), &mut quads[40..60]);
            digits(&[rows.words(block + 48)], &mut quads[60..]);
        }
        B::IQ4_NL => nibbles(&rows.four_words(block + 2), quads),
        B::MXFP4 => nibbles(&rows.four_words(block + 1), quads),
        B::IQ4_XS => {
            for (i, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
                nibbles(&rows.four_words(block + 8 + 16 * i), quads);
            }
        }
        B::NVFP4 => {
            for (i, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
                let words = rows.four_words(block + 4 + 16 * i);
                for (words, quads) in words.chunks_exact(2).zip(quads.chunks_exact_mut(4)) {
                    nibbles(words, quads);
                }
            }
        }
        other => unreachable!("{other} is not packed by its codes"),
    }
}

#[inline(always)]
fn q5_k<T: Transpose>(rows: &FileRows<'_, T>, block: usize, quads: &mut [Quad]) {
    let high = rows.eight_words(block + 16);
    for (i, quads) in quads.as_chunks_mut::<{ 2 * QUADS }>().0.iter_mut().enumerate() {
        nibbles(&rows.eight_words(block + 48 + BLOCK_COLS * i), quads);
        for (field, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
            high_bits(&high, 2 * i + field, 0x0101_0101, 4, quads);
        }
    }
}

#[inline(always)]
fn q6_k<T: Transpose>(rows: &FileRows<'_, T>, block: usize, quads: &mut [Quad]) {
    for (half, quads) in quads.as_chunks_mut::<{ 4 * QUADS }>().0.iter_mut().enumerate() {
        // The nibbles of a block are followed by those of the next, the high ones by the high ones.
        let (low, high) = quads.split_at_mut(2 * QUADS);
        for i in 0..2 {
            let words = rows.eight_words(block + 64 * half + BLOCK_COLS * i);
            low_nibbles(&words, &mut low[i * QUADS..]);
            high_nibbles(&words, &mut high[i * QUADS..]);
        }
        let words = rows.eight_words(block + 128 + BLOCK_COLS * half);
        for (field, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
            high_bits(&words, 2 * field, 0x0303_0303, 4, quads);
        }
    }
}

/// A bit a code, which is 0 or 2.
#[inline(always)]
fn bits(words: &[Quad; 4], quads: &mut [Quad]) {
    for (words, quads) in words.iter().zip(quads.as_chunks_mut::<8>().0) {
        for (i, quad) in quads.iter_mut().enumerate() {
            set(quad, words, |w| four_bits(w, i) << 1);
        }
    }
}

/// Four neighbours a byte.
#[inline(always)]
fn neighbours(words: &[Quad; 4], quads: &mut [Quad]) {
    for (words, quads) in words.iter().zip(quads.as_chunks_mut::<4>().0) {
        for (i, quad) in quads.iter_mut().enumerate() {
            let byte = |w: u32| w >> (8 * i) & 255;
            set(quad, words, |w| (byte(w) | byte(w) << 6 | byte(w) << 12 | byte(w) << 18) & 0x0303_0303);
        }
    }
}

#[inline(always)]
fn set(quad: &mut Quad, words: &Quad, codes: impl Fn(u32) -> u32) {
    quad.iter_mut().zip(words).for_each(|(quad, word)| *quad = codes(*word));
}

/// The low nibbles of words, then the high ones.
#[inline(always)]
fn nibbles(words: &[Quad], quads: &mut [Quad]) {
    let (low, high) = quads.split_at_mut(words.len());
    low_nibbles(words, low);
    high_nibbles(words, high);
}

#[inline(always)]
fn low_nibbles(words: &[Quad], quads: &mut [Quad]) {
    quads.iter_mut().zip(words).for_each(|(quad, words)| set(quad, words, |w| w & 0x0f0f_0f0f));
}

#[inline(always)]
fn high_nibbles(words: &[Quad], quads: &mut [Quad]) {
    quads.iter_mut().zip(words).for_each(|(quad, words)| set(quad, words, |w| w >> 4 & 0x0f0f_0f0f));
}

/// Puts the bits `mask << shift` of words at bit `to` of quads, which have none there.
#[inline(always)]
fn high_bits(words: &[Quad; QUADS], shift: usize, mask: u32, to: usize, quads: &mut [Quad; QUADS]) {
    for (quad, words) in quads.iter_mut().zip(words) {
        quad.iter_mut().zip(words).for_each(|(quad, word)| *quad |= (word >> shift & mask) << to);
    }
}

/// Puts the bits of a word, four for each quad, on top of the nibbles of quads.
#[inline(always)]
fn fifth_bits(words: &Quad, quads: &mut [Quad]) {
    for (i, quad) in quads.iter_mut().enumerate() {
        quad.iter_mut().zip(words).for_each(|(quad, word)| *quad |= four_bits(*word, i) << 4);
    }
}

/// Bits `4 * i ..` of a word, one in each byte.
#[inline(always)]
fn four_bits(word: u32, i: usize) -> u32 {
    // Bit i to bit 8i.
    (word >> (4 * i) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101
}

/// Bits 0-1 of 32 bytes, bits 2-3, and so on, for each 128 codes.
#[inline(always)]
fn two_bits<T: Transpose>(rows: &FileRows<'_, T>, at: usize, quads: &mut [Quad]) {
    for (i, quads) in quads.as_chunks_mut::<{ 4 * QUADS }>().0.iter_mut().enumerate() {
        let words = rows.eight_words(at + BLOCK_COLS * i);
        for (field, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
            quads
                .iter_mut()
                .zip(&words)
                .for_each(|(quad, words)| set(quad, words, |w| w >> (2 * field) & 0x0303_0303));
        }
    }
}

/// The first ternary digits of all bytes, then the second ones, and so on ([`super::codes::Digits`]).
#[inline(always)]
fn digits(words: &[Quad], quads: &mut [Quad]) {
    const EVEN: u32 = 0x00ff_00ff;
    let mut power = 1;
    for quads in quads.chunks_exact_mut(words.len()) {
        // Two bytes at a time, each in the lower half of sixteen bits.
        let two = |bytes: u32| (((bytes * power) & EVEN) * 3) >> 8 & EVEN;
        for (quad, words) in quads.iter_mut().zip(words) {
            set(quad, words, |w| two(w & EVEN) | two(w >> 8 & EVEN) << 8);
        }
        power *= 3;
    }
}
