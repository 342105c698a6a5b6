//! From file rows to a packed group: plain Rust, compiled once for each instruction set.
//!
//! For each block of a format that tiles read as it lies in memory: the codes of 32 rows are unpacked to bytes, transposed to quads, and folded to their bits again.

use super::{
    codes::{Folding, Quad},
    layout::{Format, GROUP_ROWS, QUADS, with_format},
    panel,
    scales::Header,
};
use crate::blocks::{BlockFormat, MAX_BLOCK_LEN, unpack_fields};

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
    let (len, block_bytes) = (F::FORMAT.block_len(), F::FORMAT.block_bytes());
    let row_bytes = cols / len * block_bytes;
    let mut quads: [Quad; MAX_BLOCK_LEN / 4] = [[0; GROUP_ROWS]; _];
    let quads = &mut quads[..len / 4];
    for (u, unit) in group.chunks_exact_mut(F::UNIT_BYTES).enumerate() {
        let (header, folded) = unit.split_at_mut(F::HEADER_BYTES);
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let block = &row[u * block_bytes..][..block_bytes];
            F::Header::pack(block, r, header);
            let mut fields = [0u8; MAX_BLOCK_LEN];
            let fields = &mut fields[..len];
            unpack_fields(F::FORMAT, block, fields);
            for (quad, four) in quads.iter_mut().zip(fields.as_chunks::<4>().0) {
                quad[r] = u32::from_le_bytes(*four);
            }
        }
        let quads = quads.chunks_exact(F::Folding::BLOCKS * QUADS);
        for (quads, folded) in quads.zip(folded.chunks_exact_mut(F::Folding::BYTES)) {
            F::Folding::fold(quads, folded);
        }
    }
}
