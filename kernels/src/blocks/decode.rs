//! Scalar decoding of blocks to f32: the definition of each format, written for reading.
//!
//! A quantised format is codes and scales: weight `i` of a block is `scale * (code[i] - offset)`, plus a minimum where the
//! format has one. Codes are unsigned here, so that a format differs only in how many bits it has and where they lie. The
//! products are exact in f32 (an f16 times at most 8 + 5 bits), so each weight is rounded at most once and the order of the
//! factors cannot matter. Any bytes decode to something: no content panics.
//!
//! Source of the layouts: `ggml-common.h` and `ggml-quants.c` of ggml (facts only).

use super::BlockFormat;
use half::{bf16, f16};

/// Weights of the largest block.
pub(crate) const MAX_BLOCK_LEN: usize = 256;

/// Decodes `row` (whole blocks of `format`, as in a file) into `out`.
///
/// # Panics
/// When `row` and `out` do not hold the same number of whole blocks.
pub fn decode_row(format: BlockFormat, row: &[u8], out: &mut [f32]) {
    assert_eq!(
        format.row_bytes(out.len()),
        Some(row.len()),
        "bytes of a {format} row of {} weights",
        out.len()
    );
    match format {
        BlockFormat::F32 => {
            for (value, b) in out.iter_mut().zip(row.chunks_exact(4)) {
                *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        BlockFormat::F16 => {
            for (value, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                *value = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        BlockFormat::BF16 => {
            for (value, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                *value = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        _ => {
            let blocks = row.chunks_exact(format.block_bytes());
            for (out, block) in out.chunks_exact_mut(format.block_len()).zip(blocks) {
                decode_block(format, block, out);
            }
        }
    }
}

fn decode_block(format: BlockFormat, block: &[u8], out: &mut [f32]) {
    let mut buffer = [0u8; MAX_BLOCK_LEN];
    let codes = &mut buffer[..format.block_len()];
    unpack_codes(format, block, codes);
    let span = format.scale_span();
    for (sub, (out, codes)) in out.chunks_exact_mut(span).zip(codes.chunks_exact(span)).enumerate() {
        scales(format, block, sub).apply(format, codes, out);
    }
}

impl BlockFormat {
    /// Whether weights are codes with scales, rather than floats of their own.
    pub const fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// What is subtracted from a code.
    pub(crate) const fn code_offset(self) -> i32 {
        match self {
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6_K => 32,
            Self::Q8_0 => 128,
            _ => 0,
        }
    }

    /// Whether each scale has a minimum beside it.
    pub(crate) const fn has_minimum(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K)
    }

    /// Weights that share a scale.
    pub(crate) const fn scale_span(self) -> usize {
        if matches!(self, Self::Q6_K) { 16 } else { 32 }
    }
}

/// The scale of `scale_span` weights, and what is added to each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scales {
    pub(crate) scale: f32,
    /// Already negated where the format subtracts it; unused in formats without.
    pub(crate) minimum: f32,
}

impl Scales {
    /// Weights from codes.
    #[inline(always)]
    pub(crate) fn apply(self, format: BlockFormat, codes: &[u8], out: &mut [f32]) {
        for (value, &code) in out.iter_mut().zip(codes) {
            let product = self.scale * (i32::from(code) - format.code_offset()) as f32;
            // Adding 0 would turn -0 into 0.
            *value = if format.has_minimum() { product + self.minimum } else { product };
        }
    }
}

/// The scales of part `sub` of a block (parts hold `scale_span` weights each).
pub(crate) fn scales(format: BlockFormat, block: &[u8], sub: usize) -> Scales {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 => Scales { scale: half(0), minimum: half(2) },
        BlockFormat::Q4_K | BlockFormat::Q5_K => {
            let (scale, minimum) = six_bit_pair(sub, |i| block[4 + i]);
            Scales { scale: half(0) * f32::from(scale), minimum: -(half(2) * f32::from(minimum)) }
        }
        BlockFormat::Q6_K => {
            Scales { scale: half(208) * f32::from(block[192 + sub].cast_signed()), minimum: 0.0 }
        }
        _ => Scales { scale: half(0), minimum: 0.0 },
    }
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

// Where the fields of a block end, so that a wrong offset below does not compile.
const _: () = assert!(BlockFormat::Q4_0.block_bytes() == 2 + 16);
const _: () = assert!(BlockFormat::Q4_1.block_bytes() == 2 + 2 + 16);
const _: () = assert!(BlockFormat::Q5_0.block_bytes() == 2 + 4 + 16);
const _: () = assert!(BlockFormat::Q5_1.block_bytes() == 2 + 2 + 4 + 16);
const _: () = assert!(BlockFormat::Q8_0.block_bytes() == 2 + 32);
const _: () = assert!(BlockFormat::Q4_K.block_bytes() == 2 + 2 + 12 + 128);
const _: () = assert!(BlockFormat::Q5_K.block_bytes() == 2 + 2 + 12 + 32 + 128);
const _: () = assert!(BlockFormat::Q6_K.block_bytes() == 128 + 64 + 16 + 2);

/// The unsigned codes of a block, in weight order.
///
/// # Panics
/// When `block` or `out` is not one block long, or `format` is not quantised.
#[inline(always)]
pub(crate) fn unpack_codes(format: BlockFormat, block: &[u8], out: &mut [u8]) {
    assert_eq!((block.len(), out.len()), (format.block_bytes(), format.block_len()), "one {format} block");
    match format {
        BlockFormat::Q4_0 => nibbles(&block[2..], out),
        BlockFormat::Q4_1 => nibbles(&block[4..], out),
        BlockFormat::Q5_0 => {
            nibbles(&block[6..], out);
            fifth_bits([block[2], block[3], block[4], block[5]], out);
        }
        BlockFormat::Q5_1 => {
            nibbles(&block[8..], out);
            fifth_bits([block[4], block[5], block[6], block[7]], out);
        }
        BlockFormat::Q8_0 => out.iter_mut().zip(&block[2..]).for_each(|(code, &b)| *code = b ^ 0x80),
        BlockFormat::Q4_K => {
            out.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)).for_each(|(out, b)| nibbles(b, out));
        }
        BlockFormat::Q5_K => {
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
        BlockFormat::Q6_K => {
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
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => panic!("{format} has no codes"),
    }
}

/// The low nibbles of `packed`, then its high ones; four at a time, which packing at load feels.
#[inline(always)]
fn nibbles(packed: &[u8], out: &mut [u8]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const ROWS: usize = 4;
    const COLS: usize = 512;

    fn reference(file: String) -> Vec<u8> {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "testdata", "blocks", &file].iter().collect();
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    #[test]
    fn reference_blocks_decode_to_the_last_bit() {
        let names = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q5_K", "q6_K"];
        for name in names {
            let format = BlockFormat::ALL.into_iter().find(|f| f.name().eq_ignore_ascii_case(name)).unwrap();
            let (packed, want) = (reference(format!("{name}.bin")), reference(format!("{name}.f32")));
            let row_bytes = format.row_bytes(COLS).unwrap();
            assert_eq!((packed.len(), want.len()), (ROWS * row_bytes, ROWS * COLS * 4), "{name}");
            let mut out = [0f32; COLS];
            for (row, want) in packed.chunks_exact(row_bytes).zip(want.chunks_exact(COLS * 4)) {
                decode_row(format, row, &mut out);
                for (i, (got, want)) in out.iter().zip(want.chunks_exact(4)).enumerate() {
                    let want = f32::from_le_bytes(want.try_into().unwrap());
                    assert_eq!(got.to_bits(), want.to_bits(), "{name} weight {i}: {got} instead of {want}");
                }
            }
        }
    }

    #[test]
    fn floats_decode_to_themselves_whatever_their_bits() {
        let values =
            [0.0, -0.0, 1.5, f32::INFINITY, f32::NAN, f32::from_bits(1), f32::from_bits(0xffc0_1234)];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = [0f32; 7];
        decode_row(BlockFormat::F32, &bytes, &mut out);
        assert_eq!(out.map(f32::to_bits), values.map(f32::to_bits));
    }

    #[test]
    fn any_bytes_decode() {
        for format in BlockFormat::ALL {
            for fill in [0x00, 0x7f, 0x80, 0xff] {
                let mut out = [0f32; 256];
                decode_row(format, &vec![fill; format.row_bytes(256).unwrap()], &mut out);
            }
        }
    }
}
