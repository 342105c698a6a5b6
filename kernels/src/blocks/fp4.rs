//! Nibbles that choose one of sixteen values: the 4-bit floats MXFP4 and NVFP4, and the uneven IQ4_NL and IQ4_XS.
//!
//! A **field** is the nibble; a code is the value plus 12 (the 4-bit floats) or plus 128, out of the format's table.
//!
//! | format | weights | bytes of a block |
//! |---|---|---|
//! | MXFP4 | 32 | power of two (E8M0) 1, nibbles 16 |
//! | NVFP4 | 64 | four scales (unsigned E4M3) 4, nibbles of each sixteen weights 8 + 8 + 8 + 8 |
//! | IQ4_NL | 32 | scale 2, nibbles 16 |
//! | IQ4_XS | 256 | scale 2, high pairs of eight 6-bit scales 2, their low nibbles 4, nibbles 128 |
//!
//! Source of the values: the OCP microscaling formats 1.0 (E2M1, E8M0; E2M1 values are doubled here, hence integers, and the
//! scales halved) and `ggml-common.h` of ggml (IQ4_NL).

use super::{
    BlockFormat,
    decode::{Scales, half_at},
    legacy::nibbles,
};

// Where the fields of a block end, so that a wrong offset below does not compile.
const _: () = assert!(BlockFormat::MXFP4.block_bytes() == 1 + 16);
const _: () = assert!(BlockFormat::NVFP4.block_bytes() == 4 + 32);
const _: () = assert!(BlockFormat::IQ4_NL.block_bytes() == 2 + 16);
const _: () = assert!(BlockFormat::IQ4_XS.block_bytes() == 2 + 2 + 4 + 128);

const DOUBLED_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

static DOUBLED_E2M1_CODES: [u8; 16] = codes(DOUBLED_E2M1, BlockFormat::MXFP4);
static UNEVEN_CODES: [u8; 16] = codes(UNEVEN, BlockFormat::IQ4_NL);

const fn codes(values: [i8; 16], format: BlockFormat) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (values[i] as i32 + format.code_offset()) as u8;
        i += 1;
    }
    codes
}

impl BlockFormat {
    /// The codes of the sixteen fields, for formats of this file.
    pub(crate) const fn code_table(self) -> Option<&'static [u8; 16]> {
        match self {
            Self::MXFP4 | Self::NVFP4 => Some(&DOUBLED_E2M1_CODES),
            Self::IQ4_NL | Self::IQ4_XS => Some(&UNEVEN_CODES),
            _ => None,
        }
    }
}

#[inline(always)]
pub(super) fn mxfp4(block: &[u8], out: &mut [u8]) {
    nibbles(&block[1..], out);
}

#[inline(always)]
pub(super) fn mxfp4_scales(block: &[u8]) -> Scales {
    Scales::without_minimum(half_of_power(block[0]))
}

/// 2^(e - 127), halved. The format calls 255 not a number; ggml does not, nor do we: weights stay finite or overflow.
#[inline(always)]
pub(crate) fn half_of_power(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    // 2^-128 and 2^-127 are subnormal.
    f32::from_bits(if exponent < 2 { 0x20_0000 << exponent } else { (exponent - 1) << 23 })
}

#[inline(always)]
pub(super) fn nvfp4(block: &[u8], out: &mut [u8]) {
    let sixteens = out.as_chunks_mut::<16>().0.iter_mut();
    sixteens.zip(block[4..].chunks_exact(8)).for_each(|(out, b)| nibbles(b, out));
}

/// Sixteen weights.
#[inline(always)]
pub(super) fn nvfp4_scales(block: &[u8], sub: usize) -> Scales {
    Scales::without_minimum(half_of_small_float(plain_small_float(block[sub])))
}

/// The highest bit of a scale does not count, and 127 is 0, as ggml has it.
#[inline(always)]
pub(crate) fn plain_small_float(bits: u8) -> u8 {
    if bits == 0x7f { 0 } else { bits & 0x7f }
}

/// An E4M3 without its highest bit, halved.
#[inline(always)]
pub(crate) fn half_of_small_float(bits: u8) -> f32 {
    // Read as an f32 it is 2^120 too small (a bias of 127 instead of 7); its subnormals come out right too.
    const TO_HALF_OF_IT: f32 = f32::from_bits((127 + 120 - 1) << 23);
    f32::from_bits(u32::from(bits) << 20) * TO_HALF_OF_IT
}

#[inline(always)]
pub(super) fn iq4_nl(block: &[u8], out: &mut [u8]) {
    nibbles(&block[2..], out);
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8], out: &mut [u8]) {
    out.chunks_exact_mut(32).zip(block[8..].chunks_exact(16)).for_each(|(out, b)| nibbles(b, out));
}

/// 32 weights.
#[inline(always)]
pub(super) fn iq4_xs_scales(block: &[u8], sub: usize) -> Scales {
    Scales::without_minimum(half_at(block, 0) * (f32::from(iq4_xs_six_bits(block, sub)) - 32.0))
}

#[inline(always)]
pub(super) fn iq4_xs_six_bits(block: &[u8], sub: usize) -> u8 {
    let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
    let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * sub) & 3) as u8;
    low | high << 4
}
