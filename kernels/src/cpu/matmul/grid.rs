//! Formats whose codes come in fours and eights out of a grid (IQ1, IQ2 and IQ3): where their bits lie.
//!
//! A unit is the file blocks of 256 columns of the 32 rows, transposed: byte 0 of all rows, then byte 1, and so on
//! (`blocks/iq.rs` says what the bytes are). So the 32 bytes of a **plane** are the same field of all rows, and a vector loads
//! the indices or the signs of 32 rows at once. Where a file has words of four sign sevens and a 4-bit scale (IQ2_XXS,
//! IQ3_XXS), a word's four bytes hold a seven each in the high bits and a bit of the scale in the lowest; IQ2_XS has its sevens
//! and the ninth bits of its indices like that in the file.
//!
//! They are decoded to panels by `grid_panel`; the scalar kernel takes file blocks out of units ([`file_block`]).

use super::layout::GROUP_ROWS;
use crate::blocks::{self, BlockFormat};

/// A byte of each row.
pub(super) type Plane = [u8; GROUP_ROWS];

/// The plane of the low bytes of indices: of eight columns in IQ1 and IQ2, of four in IQ3.
#[inline(always)]
pub(super) const fn index_plane(format: BlockFormat, block: usize, i: usize) -> usize {
    match format {
        BlockFormat::IQ1_M => 4 * block + i,
        BlockFormat::IQ1_S | BlockFormat::IQ2_S => 2 + 4 * block + i,
        BlockFormat::IQ2_XS => 2 + 8 * block + 2 * i,
        _ => 2 + 8 * block + i,
    }
}

/// The plane of the signs of eight columns: see [`signs_are_even`].
#[inline(always)]
pub(super) const fn sign_plane(format: BlockFormat, block: usize, eight: usize) -> usize {
    match format {
        BlockFormat::IQ2_XXS => 2 + 8 * block + 4 + eight,
        BlockFormat::IQ2_XS => 2 + 8 * block + 2 * eight + 1,
        BlockFormat::IQ3_XXS => 66 + 4 * block + eight,
        BlockFormat::IQ2_S => 34 + 4 * block + eight,
        _ => 74 + 4 * block + eight,
    }
}

/// Whether bits 1-7 of a sign byte are the signs of seven columns and the eighth makes their number even. Otherwise bit `i` is
/// that of column `i`.
#[inline(always)]
pub(super) const fn signs_are_even(format: BlockFormat) -> bool {
    matches!(format, BlockFormat::IQ2_XXS | BlockFormat::IQ2_XS | BlockFormat::IQ3_XXS)
}

/// Bytes and rows that are transposed at once.
const TILE: usize = 16;
/// Bytes of the largest file block.
pub(super) const MOST_BLOCK_BYTES: usize = BlockFormat::IQ3_S.block_bytes();
/// Stands for a row that is not there.
const MISSING: [u8; MOST_BLOCK_BYTES] = [0; MOST_BLOCK_BYTES];

/// Packs whole rows of file blocks into `group`, which holds zeros.
#[inline(always)]
pub(super) fn pack(format: BlockFormat, cols: usize, rows: &[u8], group: &mut [u8]) {
    let bytes = format.block_bytes();
    let row_bytes = cols / format.block_len() * bytes;
    for (u, unit) in group.chunks_exact_mut(GROUP_ROWS * bytes).enumerate() {
        let mut blocks = [&MISSING[..bytes]; GROUP_ROWS];
        for (block, row) in blocks.iter_mut().zip(rows.chunks_exact(row_bytes)) {
            *block = &row[u * bytes..][..bytes];
        }
        let planes = unit.as_chunks_mut::<GROUP_ROWS>().0;
        for at in (0..bytes).step_by(TILE) {
            // The last tile overlaps the one before it.
            let at = at.min(bytes - TILE);
            for (half, blocks) in blocks.as_chunks::<TILE>().0.iter().enumerate() {
                let mut tile = [[0; TILE]; TILE];
                for (row, block) in tile.iter_mut().zip(blocks) {
                    *row = *block[at..].first_chunk().expect("inside the block");
                }
                for (plane, column) in planes[at..].iter_mut().zip(transposed(&tile)) {
                    plane.as_chunks_mut::<TILE>().0[half] = column;
                }
            }
        }
        for first in sign_words(format) {
            spread_sevens(planes[first..].first_chunk_mut().expect("four planes"));
        }
    }
}

/// Rows to columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed(rows: &[[u8; TILE]; TILE]) -> [[u8; TILE]; TILE] {
    use std::arch::x86_64::*;
    // SAFETY: every x86-64 machine has SSE2; rows and columns are vectors of 16 bytes.
    unsafe {
        let mut vectors = [_mm_setzero_si128(); TILE];
        for (vector, row) in vectors.iter_mut().zip(rows) {
            *vector = _mm_loadu_si128(row.as_ptr().cast());
        }
        // Each time a row's number gives its highest bit to the column's number.
        for _ in 0..TILE.ilog2() {
            let from = vectors;
            for i in 0..TILE / 2 {
                vectors[2 * i] = _mm_unpacklo_epi8(from[i], from[i + TILE / 2]);
                vectors[2 * i + 1] = _mm_unpackhi_epi8(from[i], from[i + TILE / 2]);
            }
        }
        let mut columns = [[0; TILE]; TILE];
        for (column, vector) in columns.iter_mut().zip(vectors) {
            _mm_storeu_si128(column.as_mut_ptr().cast(), vector);
        }
        columns
    }
}

/// Rows to columns.
#[cfg(not(target_arch = "x86_64"))]
fn transposed(rows: &[[u8; TILE]; TILE]) -> [[u8; TILE]; TILE] {
    let mut columns = [[0; TILE]; TILE];
    for (r, row) in rows.iter().enumerate() {
        for (column, byte) in columns.iter_mut().zip(row) {
            column[r] = *byte;
        }
    }
    columns
}

/// The first bytes of a block's words of four sign sevens and a scale.
#[inline(always)]
fn sign_words(format: BlockFormat) -> std::iter::StepBy<std::ops::Range<usize>> {
    match format {
        BlockFormat::IQ2_XXS => (6..66).step_by(8),
        BlockFormat::IQ3_XXS => (66..98).step_by(4),
        _ => (0..0).step_by(1),
    }
}

/// From the file's words, four sevens and four bits of scale, to a byte for each seven with a bit of scale below.
#[inline(always)]
fn spread_sevens(planes: &mut [Plane; 4]) {
    let [a, b, c, d] = *planes;
    for r in 0..GROUP_ROWS {
        planes[0][r] = a[r] << 1 | d[r] >> 4 & 1;
        planes[1][r] = b[r] << 2 | a[r] >> 6 & 2 | d[r] >> 5 & 1;
        planes[2][r] = c[r] << 3 | b[r] >> 5 & 6 | d[r] >> 6 & 1;
        planes[3][r] = d[r] << 4 | c[r] >> 4 & 14 | d[r] >> 7;
    }
}

/// The reverse of [`spread_sevens`].
#[inline(always)]
fn joined_sevens(word: u32) -> u32 {
    let bits = |i: u32| (word >> (8 * i + 1) & 127) << (7 * i) | (word >> (8 * i) & 1) << (28 + i);
    bits(0) | bits(1) | bits(2) | bits(3)
}

/// A row's file block out of a unit.
#[inline(always)]
pub(super) fn file_block(format: BlockFormat, unit: &[u8], row: usize, block: &mut [u8]) {
    for (byte, plane) in block.iter_mut().zip(unit.as_chunks::<GROUP_ROWS>().0) {
        *byte = plane[row];
    }
    for at in sign_words(format) {
        let word = block[at..].first_chunk_mut().expect("inside the block");
        *word = joined_sevens(u32::from_le_bytes(*word)).to_le_bytes();
    }
}

/// Decodes a row of a packed group to f32.
pub(super) fn decode_lane(format: BlockFormat, group: &[u8], lane: usize, out: &mut [f32]) {
    let bytes = format.block_bytes();
    let mut block = [0; MOST_BLOCK_BYTES];
    let units = group.chunks_exact(GROUP_ROWS * bytes);
    for (unit, out) in units.zip(out.chunks_exact_mut(format.block_len())) {
        file_block(format, unit, lane, &mut block[..bytes]);
        blocks::decode_row(format, &block[..bytes], out);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::layout::is_decoded_first, *};

    pub(in super::super) const UNITS: usize = 64;

    pub(in super::super) fn random_bytes(count: usize) -> Vec<u8> {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let next = |_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        };
        (0..count).map(next).collect()
    }

    /// Rows of file blocks as a group of units.
    pub(in super::super) fn packed(format: BlockFormat, rows: &[u8]) -> Vec<u8> {
        let mut group = vec![0; rows.len()];
        pack(format, UNITS * format.block_len(), rows, &mut group);
        group
    }

    #[test]
    fn a_unit_holds_its_file_blocks() {
        for format in BlockFormat::ALL.into_iter().filter(|&f| is_decoded_first(f)) {
            let bytes = format.block_bytes();
            let rows = random_bytes(GROUP_ROWS * UNITS * bytes);
            let group = packed(format, &rows);
            for (i, want) in rows.chunks_exact(bytes).enumerate() {
                let mut got = vec![0; bytes];
                file_block(format, &group[i % UNITS * GROUP_ROWS * bytes..], i / UNITS, &mut got);
                assert_eq!(got, want, "{format}");
            }
        }
    }
}
