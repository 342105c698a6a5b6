//! Scalar decoding of one row of blocks to f32: the definition of each format, written for reading.

use super::BlockFormat;

/// Decodes `row` (whole blocks of `format`) into `out`.
///
/// # Panics
/// When `row` and `out` do not hold the same number of blocks.
pub fn decode_row(format: BlockFormat, row: &[u8], out: &mut [f32]) {
    assert_eq!(format.row_bytes(out.len()), Some(row.len()), "{format} row");
    match format {
        BlockFormat::F32 => {
            for (o, b) in out.iter_mut().zip(row.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        _ => unreachable!("replaced by the real codecs"),
    }
}
