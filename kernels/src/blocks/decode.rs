//! Scalar decoding of blocks to f32: the definition of each format, written for reading.
//!
//! A quantised format is codes and scales: weight `i` of a block is `scale * (code[i] - offset)`, plus a minimum where the
//! format has one. Codes are unsigned bytes here, so that a format differs only in where they come from. The products are
//! exact in f32 (an f16 times at most 13 bits), so each weight is rounded at most once and the order of the factors cannot
//! matter. Any bytes decode to something: no content panics.
//!
//! Source of the layouts: `ggml-common.h` and `ggml-quants.c` of ggml (facts only).

use super::{BlockFormat, fp4, iq, k_quants, legacy, ternary};
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

    /// What is subtracted from a code: 128 where codes are signed bytes with the highest bit turned.
    pub(crate) const fn code_offset(self) -> i32 {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Q2_K | Self::Q4_K | Self::Q5_K => 0,
            Self::Q1_0 | Self::Q2_0 | Self::TQ1_0 | Self::TQ2_0 => 1,
            Self::Q3_K => 4,
            Self::Q4_0 => 8,
            Self::MXFP4 | Self::NVFP4 => 12,
            Self::Q5_0 => 16,
            Self::Q6_K => 32,
            _ => 128,
        }
    }

    /// Whether each scale has a minimum beside it.
    pub(crate) const fn has_minimum(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q2_K | Self::Q4_K | Self::Q5_K)
    }

    /// Weights that share a scale: 16, or 32 where no fewer do.
    pub(crate) const fn scale_span(self) -> usize {
        match self {
            Self::Q2_K | Self::Q3_K | Self::Q6_K | Self::IQ1_M | Self::IQ2_XS | Self::IQ2_S | Self::NVFP4 => {
                16
            }
            _ => 32,
        }
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
    #[inline(always)]
    pub(super) fn without_minimum(scale: f32) -> Self {
        Self { scale, minimum: 0.0 }
    }

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
#[inline(always)]
pub(crate) fn scales(format: BlockFormat, block: &[u8], sub: usize) -> Scales {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 => legacy::scale_and_minimum(block),
        BlockFormat::Q2_K => k_quants::q2_k_scales(block, sub),
        BlockFormat::Q3_K => k_quants::q3_k_scales(block, sub),
        BlockFormat::Q4_K | BlockFormat::Q5_K => k_quants::q4_k_scales(block, sub),
        BlockFormat::Q6_K => k_quants::q6_k_scales(block, sub),
        BlockFormat::IQ1_S => iq::iq1_s_scales(block, sub),
        BlockFormat::IQ1_M => iq::iq1_m_scales(block, sub),
        BlockFormat::IQ2_XXS => iq::iq2_xxs_scales(block, sub),
        BlockFormat::IQ2_XS => iq::iq2_xs_scales(block, sub),
        BlockFormat::IQ2_S => iq::iq2_s_scales(block, sub),
        BlockFormat::IQ3_XXS => iq::iq3_xxs_scales(block, sub),
        BlockFormat::IQ3_S => iq::iq3_s_scales(block, sub),
        BlockFormat::IQ4_XS => fp4::iq4_xs_scales(block, sub),
        BlockFormat::MXFP4 => fp4::mxfp4_scales(block),
        BlockFormat::NVFP4 => fp4::nvfp4_scales(block, sub),
        BlockFormat::TQ1_0 => Scales::without_minimum(half_at(block, 52)),
        BlockFormat::TQ2_0 => Scales::without_minimum(half_at(block, 64)),
        BlockFormat::Q1_0
        | BlockFormat::Q2_0
        | BlockFormat::Q4_0
        | BlockFormat::Q5_0
        | BlockFormat::Q8_0
        | BlockFormat::IQ4_NL => Scales::without_minimum(half_at(block, 0)),
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => panic!("{format} has no scales"),
    }
}

/// The number under 64 that, less 32, multiplies the f16 of part `sub` of a block.
///
/// # Panics
/// When the format has no such scales.
#[inline(always)]
pub(crate) fn six_bit_scale(format: BlockFormat, block: &[u8], sub: usize) -> u8 {
    match format {
        BlockFormat::Q3_K => k_quants::q3_k_six_bits(block, sub),
        BlockFormat::IQ4_XS => fp4::iq4_xs_six_bits(block, sub),
        _ => panic!("{format} has no 6-bit scales"),
    }
}

/// The f16 at byte `at`.
#[inline(always)]
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    half(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// An f16 widened without a call or a branch: scales are decoded in the kernels' loops. A signalling NaN stays one.
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Read as an f32 the number is 2^112 too small (a bias of 127 instead of 15), subnormals included.
    const SCALE_UP: f32 = f32::from_bits((127 + 112) << 23);
    let finite = (f32::from_bits(magnitude) * SCALE_UP).to_bits();
    let infinite_or_nan = magnitude | 0x7f80_0000;
    f32::from_bits(sign | if bits & 0x7c00 == 0x7c00 { infinite_or_nan } else { finite })
}

/// The unsigned codes of a block, in weight order.
///
/// # Panics
/// When `block` or `out` is not one block long, or `format` is not quantised.
#[inline(always)]
pub(crate) fn unpack_codes(format: BlockFormat, block: &[u8], out: &mut [u8]) {
    unpack_fields(format, block, out);
    if let Some(table) = format.code_table() {
        out.iter_mut().for_each(|field| *field = table[usize::from(*field & 15)]);
    }
}

/// As [`unpack_codes`], but nibbles that stand for one of sixteen codes ([`BlockFormat::code_table`]) stay nibbles.
///
/// # Panics
/// As [`unpack_codes`].
#[inline(always)]
fn unpack_fields(format: BlockFormat, block: &[u8], out: &mut [u8]) {
    assert_eq!((block.len(), out.len()), (format.block_bytes(), format.block_len()), "one {format} block");
    match format {
        BlockFormat::Q1_0 => ternary::q1_0(block, out),
        BlockFormat::Q2_0 => ternary::q2_0(block, out),
        BlockFormat::Q4_0 => legacy::q4_0(block, out),
        BlockFormat::Q4_1 => legacy::q4_1(block, out),
        BlockFormat::Q5_0 => legacy::q5_0(block, out),
        BlockFormat::Q5_1 => legacy::q5_1(block, out),
        BlockFormat::Q8_0 => legacy::q8_0(block, out),
        BlockFormat::Q2_K => k_quants::q2_k(block, out),
        BlockFormat::Q3_K => k_quants::q3_k(block, out),
        BlockFormat::Q4_K => k_quants::q4_k(block, out),
        BlockFormat::Q5_K => k_quants::q5_k(block, out),
        BlockFormat::Q6_K => k_quants::q6_k(block, out),
        BlockFormat::IQ1_S => iq::iq1_s(block, out),
        BlockFormat::IQ1_M => iq::iq1_m(block, out),
        BlockFormat::IQ2_XXS => iq::iq2_xxs(block, out),
        BlockFormat::IQ2_XS => iq::iq2_xs(block, out),
        BlockFormat::IQ2_S => iq::iq2_s(block, out),
        BlockFormat::IQ3_XXS => iq::iq3_xxs(block, out),
        BlockFormat::IQ3_S => iq::iq3_s(block, out),
        BlockFormat::IQ4_NL => fp4::iq4_nl(block, out),
        BlockFormat::IQ4_XS => fp4::iq4_xs(block, out),
        BlockFormat::TQ1_0 => ternary::tq1_0(block, out),
        BlockFormat::TQ2_0 => ternary::tq2_0(block, out),
        BlockFormat::MXFP4 => fp4::mxfp4(block, out),
        BlockFormat::NVFP4 => fp4::nvfp4(block, out),
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => panic!("{format} has no codes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn reference(file: &str) -> Vec<u8> {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "testdata", "blocks", file].iter().collect();
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The value of `"key":value` in a line of the index.
    fn field<'a>(line: &'a str, key: &str) -> &'a str {
        let (_, rest) = line.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} in {line}"));
        rest.split([',', '}']).next().unwrap().trim_matches('"')
    }

    #[test]
    fn reference_blocks_decode_to_the_last_bit() {
        let index = String::from_utf8(reference("index.jsonl")).unwrap();
        let mut seen = vec![BlockFormat::F32];
        for line in index.lines() {
            let name = field(line, "type");
            let number = |key: &str| field(line, key).parse::<usize>().unwrap();
            let format = BlockFormat::from_ggml_type(number("ggml_type") as u32)
                .unwrap_or_else(|| panic!("{name} is not decoded"));
            assert!(format.name().eq_ignore_ascii_case(name), "{format} is {name}");
            assert_eq!((number("block"), number("block_bytes")), (format.block_len(), format.block_bytes()));
            let (rows, cols) = (number("rows"), number("cols"));
            let (packed, want) = (reference(&format!("{name}.bin")), reference(&format!("{name}.f32")));
            let row_bytes = format.row_bytes(cols).unwrap();
            assert_eq!((packed.len(), want.len()), (rows * row_bytes, rows * cols * 4), "{name}");
            let mut out = vec![0f32; cols];
            for (row, want) in packed.chunks_exact(row_bytes).zip(want.chunks_exact(cols * 4)) {
                decode_row(format, row, &mut out);
                for (i, (got, want)) in out.iter().zip(want.chunks_exact(4)).enumerate() {
                    let want = f32::from_le_bytes(want.try_into().unwrap());
                    assert_eq!(got.to_bits(), want.to_bits(), "{name} weight {i}: {got} instead of {want}");
                }
            }
            seen.push(format);
        }
        assert!(BlockFormat::ALL.iter().all(|f| seen.contains(f)), "the index has {seen:?}");
    }

    #[test]
    fn every_f16_widens_to_itself() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half(bits), f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#06x}: {got}");
        }
    }

    #[test]
    fn small_float_scales_are_the_numbers_of_their_definitions() {
        for bits in 0..=u8::MAX {
            // E8M0 halved, in f64, which has no subnormal numbers here.
            let want = 2f64.powi(i32::from(bits) - 128);
            let got = scales(BlockFormat::MXFP4, &[bits; 17], 0).scale;
            assert_eq!(f64::from(got), want, "E8M0 {bits}");
            let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
            let want = match bits {
                0x7f => 0.0,
                _ if exponent == 0 => mantissa * 2f64.powi(-10),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 8),
            };
            let got = scales(BlockFormat::NVFP4, &[bits; 36], 3).scale;
            assert_eq!(f64::from(got), want, "UE4M3 {bits}");
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
