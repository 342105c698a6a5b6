//! From file rows to packed groups, written once and compiled for each instruction set.
//!
//! A unit of a group is packed in three steps: the scales of each row go where the format's [`Header`] has them; the codes of
//! all rows become quads, a byte a code; the quads are folded to the format's bits ([`Folding`]). The middle step is where the
//! time goes. Formats of plain bits take words of all rows side by side ([`super::transpose`]) and pick the codes out of 32 words
//! at a time; the others unpack one row's block after the other.

use super::{
    codes::{Folding, Quad},
    layout::{self, BLOCK_COLS, Format, GROUP_ROWS, QUAD_BYTES, QUADS, with_format},
    panel,
    scales::Header,
    transpose::{FileRows, Transpose},
};
use crate::blocks::{BlockFormat, MAX_BLOCK_LEN, unpack_fields};

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
        panel => panel::pack(format, cols, bytes, group),
        _ => match format.block_bytes() {
            2 => pack_halves(&rows, cols, group),
            _ => pack_floats(&rows, cols, group),
        });
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
        rows.slices(block, block_bytes).enumerate().for_each(|(r, block)| F::Header::pack(block, r, header));
        unpack_quads::<F, T>(rows, block, quads);
        let quads = quads.chunks_exact(F::Folding::BLOCKS * QUADS);
        for (quads, folded) in quads.zip(folded.chunks_exact_mut(F::Folding::BYTES)) {
            F::Folding::fold(quads, folded);
        }
    }
}

/// The codes of the blocks at byte `block` of all rows, or the fields that choose them: what
/// [`unpack_fields`] gives for each, four to a word.
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
        B::Q5_K => {
            let high = rows.eight_words(block + 16);
            for (i, quads) in quads.as_chunks_mut::<{ 2 * QUADS }>().0.iter_mut().enumerate() {
                nibbles(&rows.eight_words(block + 48 + BLOCK_COLS * i), quads);
                for (field, quads) in quads.as_chunks_mut::<QUADS>().0.iter_mut().enumerate() {
                    high_bits(&high, 2 * i + field, 0x0101_0101, quads);
                }
            }
        }
        B::Q6_K => {
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
                    high_bits(&words, 2 * field, 0x0303_0303, quads);
                }
            }
        }
        _ => {
            for (r, block) in rows.slices(block, F::FORMAT.block_bytes()).enumerate() {
                let mut fields = [0u8; MAX_BLOCK_LEN];
                let fields = &mut fields[..F::FORMAT.block_len()];
                unpack_fields(F::FORMAT, block, fields);
                for (quad, four) in quads.iter_mut().zip(fields.as_chunks::<4>().0) {
                    quad[r] = u32::from_le_bytes(*four);
                }
            }
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

/// Puts the bits `mask << shift` of words on top of the nibbles of quads.
#[inline(always)]
fn high_bits(words: &[Quad; QUADS], shift: usize, mask: u32, quads: &mut [Quad; QUADS]) {
    for (quad, words) in quads.iter_mut().zip(words) {
        quad.iter_mut().zip(words).for_each(|(quad, word)| *quad |= (word >> shift & mask) << 4);
    }
}

/// Puts the bits of a word, four for each quad, on top of the nibbles of quads.
#[inline(always)]
fn fifth_bits(words: &Quad, quads: &mut [Quad]) {
    for (q, quad) in quads.iter_mut().enumerate() {
        for (quad, word) in quad.iter_mut().zip(words) {
            // Bit i to bit 8i.
            let spread = (word >> (4 * q) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101;
            *quad |= spread << 4;
        }
    }
}
