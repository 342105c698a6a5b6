//! From file rows to a packed group: plain Rust, compiled once for each instruction set.
//!
//! For each block of a format that tiles read as it lies in memory: the codes of 32 rows are unpacked to bytes, transposed to quads, and folded to their bits again.

use super::{
    layout::{BIT_ROW_BYTES, BLOCK_COLS, Format, GROUP_ROWS, QUAD_BYTES, QUADS, with_format},
    panel,
};
use crate::blocks::{BlockFormat, MAX_BLOCK_LEN, unpack_codes};

/// The codes of a block: `[quad][row]`, four columns in the bytes of a word, the first lowest.
type Quads = [[u32; GROUP_ROWS]; QUADS];

/// Packs up to 32 file rows (`rows`, whole rows of `cols` columns) into `group`, which holds zeros.
#[inline(always)]
pub(super) fn pack_group(format: BlockFormat, cols: usize, rows: &[u8], group: &mut [u8]) {
    with_format!(format, F => pack_quantised::<F>(cols, rows, group), panel => panel::pack(format, cols, rows, group), _ => match format.block_bytes() {
        2 => pack_floats::<2>(cols, rows, group),
        _ => pack_floats::<4>(cols, rows, group),
    });
}

/// Transposes values of `WIDTH` bytes, by strips so narrow that a strip stays in the first-level cache.
#[inline(always)]
fn pack_floats<const WIDTH: usize>(cols: usize, rows: &[u8], group: &mut [u8]) {
    const STRIP_COLS: usize = 16;
    let mut strip = [[[0u8; WIDTH]; GROUP_ROWS]; STRIP_COLS];
    let columns = group.as_chunks_mut::<WIDTH>().0;
    for (s, columns) in columns.chunks_mut(STRIP_COLS * GROUP_ROWS).enumerate() {
        for (r, row) in rows.chunks_exact(cols * WIDTH).enumerate() {
            let values = &row.as_chunks::<WIDTH>().0[s * STRIP_COLS..];
            strip.iter_mut().zip(values).for_each(|(column, value)| column[r] = *value);
        }
        columns.copy_from_slice(&strip.as_flattened()[..columns.len()]);
    }
}

#[inline(always)]
fn pack_quantised<F: Format>(cols: usize, rows: &[u8], group: &mut [u8]) {
    let block_bytes = F::FORMAT.block_bytes();
    let row_bytes = cols / F::FORMAT.block_len() * block_bytes;
    let mut quads: [Quads; MAX_BLOCK_LEN / BLOCK_COLS] = [[[0; GROUP_ROWS]; QUADS]; _];
    for (u, unit) in group.chunks_exact_mut(F::UNIT_BYTES).enumerate() {
        let (header, packed) = unit.split_at_mut(F::HEADER_BYTES);
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let block = &row[u * block_bytes..][..block_bytes];
            pack_header::<F>(block, r, header);
            let mut codes = [0u8; MAX_BLOCK_LEN];
            let codes = &mut codes[..F::FORMAT.block_len()];
            unpack_codes(F::FORMAT, block, codes);
            for (quads, codes) in quads.iter_mut().zip(codes.chunks_exact(BLOCK_COLS)) {
                for (quad, four) in quads.iter_mut().zip(codes.as_chunks::<4>().0) {
                    quad[r] = u32::from_le_bytes(*four);
                }
            }
        }
        for (quads, packed) in quads.iter().zip(packed.chunks_exact_mut(F::CODE_BYTES)) {
            fold::<F>(quads, packed);
        }
    }
}

/// Puts the scales of one row's block where [`super::layout`] says.
#[inline(always)]
fn pack_header<F: Format>(block: &[u8], row: usize, header: &mut [u8]) {
    let mut half = |table: usize, from: usize| {
        header[(table * GROUP_ROWS + row) * 2..][..2].copy_from_slice(&block[from..from + 2]);
    };
    match F::FORMAT {
        BlockFormat::Q6_K => half(0, 208),
        _ => half(0, 0),
    }
    if F::HAS_MINIMUM {
        half(1, 2);
    }
    match F::FORMAT {
        BlockFormat::Q4_K | BlockFormat::Q5_K => {
            (0..12).for_each(|i| header[(4 + i) * GROUP_ROWS + row] = block[4 + i]);
        }
        BlockFormat::Q6_K => (0..16).for_each(|i| header[(2 + i) * GROUP_ROWS + row] = block[192 + i]),
        _ => {}
    }
}

/// Codes of a byte each to the format's bits.
#[inline(always)]
fn fold<F: Format>(quads: &Quads, packed: &mut [u8]) {
    match F::BITS {
        4 => fold_nibbles(quads, packed),
        5 => {
            let (bits, nibbles) = packed.split_at_mut(QUAD_BYTES);
            for (quad, bits) in quads.iter().zip(bits.chunks_exact_mut(BIT_ROW_BYTES)) {
                for (byte, rows) in bits.iter_mut().zip(quad.as_chunks::<2>().0) {
                    let ones = (u64::from(rows[0]) | u64::from(rows[1]) << 32) >> 4 & 0x0101_0101_0101_0101;
                    // Moves bit 8i to bit 56 + i.
                    *byte = (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
                }
            }
            fold_nibbles(quads, nibbles);
        }
        6 => {
            for (quads, half) in quads.chunks_exact(4).zip(packed.chunks_exact_mut(3 * QUAD_BYTES)) {
                let (high, nibbles) = half.split_at_mut(QUAD_BYTES);
                for (r, word) in high.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let two = |t: usize| (quads[t][r] >> 4 & 0x0303_0303) << (2 * t);
                    *word = (two(0) | two(1) | two(2) | two(3)).to_le_bytes();
                }
                fold_nibbles(quads, nibbles);
            }
        }
        _ => {
            for (quad, row) in quads.iter().zip(packed.chunks_exact_mut(QUAD_BYTES)) {
                row.as_chunks_mut::<4>().0.iter_mut().zip(quad).for_each(|(b, w)| *b = w.to_le_bytes());
            }
        }
    }
}

#[inline(always)]
fn fold_nibbles(quads: &[[u32; GROUP_ROWS]], packed: &mut [u8]) {
    for (pair, row) in quads.chunks_exact(2).zip(packed.chunks_exact_mut(QUAD_BYTES)) {
        for (r, word) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = (pair[0][r] & 0x0f0f_0f0f | (pair[1][r] & 0x0f0f_0f0f) << 4).to_le_bytes();
        }
    }
}
