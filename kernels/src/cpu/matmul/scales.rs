//! How the scales of a unit lie in memory, before its codes: each way is one small thing that takes them from a row's file block
//! at load, finds one again for the scalar kernel, and makes a vector of them in a tile's registers.
//!
//! | scales | of a group's 32 rows |
//! |---|---|
//! | [`Halves`] | 32 f16 scales |
//! | [`HalvesAndMinima`] | 32 f16 scales, 32 f16 minima |
//! | [`SixBitPairs`] | 32 f16 scales, 32 f16 minima, the file's 12 bytes of eight 6-bit pairs as `[12][32]` |
//! | [`SignedBytes`] | 32 f16 scales, sixteen i8 scales as `[16][32]` |
//! | [`SixBits`] | 32 f16 scales; low nibbles of two 6-bit scales a byte, `[n / 2][32]`; high pairs of four, `[n / 4][32]` |
//! | [`NibblePairs`] | 32 f16 scales, 32 f16 minima, nibbles of a scale and a minimum as `[16][32]` |
//! | [`PowersOfTwo`] | 32 exponents |
//! | [`SmallFloats`] | four E4M3 as `[4][32]` |

use super::{layout::GROUP_ROWS, simd::Simd};
use crate::blocks::{
    BlockFormat, Scales, half_of_power, half_of_small_float, plain_small_float, six_bit_pair, six_bit_scale,
};
use half::f16;

/// A way to keep the scales of a unit.
pub(super) trait Header {
    /// Bytes of a row's scales.
    const BYTES: usize;

    /// Takes the scales of row `row` from its file block.
    fn pack(format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]);

    /// The scales of row `row` for part `part` of the unit (parts have a scale each).
    fn scales(header: &[u8], part: usize, row: usize) -> Scales;

    /// Scales and minima of a part for the lanes of vector `vector`.
    ///
    /// # Safety
    /// As for [`Simd`]; `header` has [`Self::BYTES`] for 32 rows, and part and vector lie inside.
    unsafe fn load<S: Simd>(header: *const u8, part: usize, vector: usize) -> (S::Floats, S::Floats);
}

/// Copies the f16 at byte `from` of a block to table `table` of the header's f16.
#[inline(always)]
fn pack_half(block: &[u8], from: usize, row: usize, table: usize, header: &mut [u8]) {
    header[(table * GROUP_ROWS + row) * 2..][..2].copy_from_slice(&block[from..from + 2]);
}

/// Copies bytes of a block to the header's bytes `[..][32]` from `table` on.
#[inline(always)]
fn pack_bytes(bytes: &[u8], row: usize, table: usize, header: &mut [u8]) {
    let tables = header[table * GROUP_ROWS..].chunks_exact_mut(GROUP_ROWS);
    bytes.iter().zip(tables).for_each(|(&b, table)| table[row] = b);
}

#[inline(always)]
fn half(header: &[u8], table: usize, row: usize) -> f32 {
    let at = (table * GROUP_ROWS + row) * 2;
    f16::from_le_bytes([header[at], header[at + 1]]).to_f32()
}

/// # Safety
/// As for [`Simd`]; the header has such a table of f16.
#[inline(always)]
unsafe fn halves<S: Simd>(header: *const u8, table: usize, vector: usize) -> S::Floats {
    // SAFETY: as the caller promises.
    unsafe { S::load_halves(header.add((table * GROUP_ROWS + vector * S::LANES) * 2)) }
}

/// # Safety
/// As for [`Simd`]; the header has such a table of bytes.
#[inline(always)]
unsafe fn bytes<S: Simd>(header: *const u8, table: usize, vector: usize) -> S::LaneBytes {
    // SAFETY: as the caller promises.
    unsafe { S::load_lane_bytes(header.add(table * GROUP_ROWS + vector * S::LANES)) }
}

/// An f16, at byte `AT` of the file block.
pub(super) struct Halves<const AT: usize>;

impl<const AT: usize> Header for Halves<AT> {
    const BYTES: usize = 2;

    #[inline(always)]
    fn pack(_format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        pack_half(block, AT, row, 0, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], _part: usize, row: usize) -> Scales {
        Scales { scale: half(header, 0, row), minimum: 0.0 }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, _part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe { (halves::<S>(header, 0, vector), S::floats(0.0)) }
    }
}

/// Two f16.
pub(super) struct HalvesAndMinima;

impl Header for HalvesAndMinima {
    const BYTES: usize = 4;

    #[inline(always)]
    fn pack(_format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        pack_half(block, 0, row, 0, header);
        pack_half(block, 2, row, 1, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], _part: usize, row: usize) -> Scales {
        Scales { scale: half(header, 0, row), minimum: half(header, 1, row) }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, _part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe { (halves::<S>(header, 0, vector), halves::<S>(header, 1, vector)) }
    }
}

/// Two f16, and eight pairs of 6 bits that multiply them, the second one subtracted.
pub(super) struct SixBitPairs;

impl Header for SixBitPairs {
    const BYTES: usize = 4 + 12;

    #[inline(always)]
    fn pack(format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        HalvesAndMinima::pack(format, block, row, header);
        pack_bytes(&block[4..16], row, 4, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], part: usize, row: usize) -> Scales {
        let (scale, minimum) = six_bit_pair(part, |i| header[(4 + i) * GROUP_ROWS + row]);
        Scales {
            scale: half(header, 0, row) * f32::from(scale),
            minimum: -(half(header, 1, row) * f32::from(minimum)),
        }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe {
            let byte = |i: usize| bytes::<S>(header, 4 + i, vector);
            let (scale, minimum) = if part < 4 {
                (S::lane_bits(byte(part), 0, 0, 63), S::lane_bits(byte(part + 4), 0, 0, 63))
            } else {
                let both = byte(part + 4);
                let high = |i: usize| S::lane_bits(byte(i), 6, 4, 0x30);
                (
                    S::lane_or(S::lane_bits(both, 0, 0, 15), high(part - 4)),
                    S::lane_or(S::lane_bits(both, 4, 0, 15), high(part)),
                )
            };
            let minimum = S::mul(halves::<S>(header, 1, vector), S::unsigned_bytes(minimum));
            (
                S::mul(halves::<S>(header, 0, vector), S::unsigned_bytes(scale)),
                S::mul(minimum, S::floats(-1.0)),
            )
        }
    }
}

/// An f16, and sixteen signed bytes that multiply it: Q6_K.
pub(super) struct SignedBytes;

impl Header for SignedBytes {
    const BYTES: usize = 2 + 16;

    #[inline(always)]
    fn pack(_format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        pack_half(block, 208, row, 0, header);
        pack_bytes(&block[192..208], row, 2, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], part: usize, row: usize) -> Scales {
        let scale = header[(2 + part) * GROUP_ROWS + row].cast_signed();
        Scales { scale: half(header, 0, row) * f32::from(scale), minimum: 0.0 }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe {
            let scale = S::signed_bytes(bytes::<S>(header, 2 + part, vector));
            (S::mul(halves::<S>(header, 0, vector), scale), S::floats(0.0))
        }
    }
}

/// An f16 at byte `AT` of the file block, and `PARTS` 6-bit numbers that, less 32, multiply it: Q3_K and IQ4_XS.
pub(super) struct SixBits<const PARTS: usize, const AT: usize>;

impl<const PARTS: usize, const AT: usize> SixBits<PARTS, AT> {
    const NIBBLES: usize = 2;
    const PAIRS: usize = Self::NIBBLES + PARTS / 2;
}

impl<const PARTS: usize, const AT: usize> Header for SixBits<PARTS, AT> {
    const BYTES: usize = Self::PAIRS + PARTS / 4;

    #[inline(always)]
    fn pack(format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        pack_half(block, AT, row, 0, header);
        let mut folded = [0u8; 16];
        for part in 0..PARTS {
            let scale = six_bit_scale(format, block, part);
            folded[part / 2] |= (scale & 15) << (4 * (part % 2));
            folded[PARTS / 2 + part / 4] |= (scale >> 4) << (2 * (part % 4));
        }
        pack_bytes(&folded[..Self::BYTES - Self::NIBBLES], row, Self::NIBBLES, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], part: usize, row: usize) -> Scales {
        let byte = |table: usize| header[table * GROUP_ROWS + row];
        let low = byte(Self::NIBBLES + part / 2) >> (4 * (part % 2)) & 15;
        let high = byte(Self::PAIRS + part / 4) >> (2 * (part % 4)) & 3;
        Scales { scale: half(header, 0, row) * (f32::from(low | high << 4) - 32.0), minimum: 0.0 }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe {
            let low = bytes::<S>(header, Self::NIBBLES + part / 2, vector);
            let high = bytes::<S>(header, Self::PAIRS + part / 4, vector);
            let scale = S::lane_or(
                S::lane_bits(low, 4 * (part % 2), 0, 15),
                S::lane_bits(high, 2 * (part % 4), 4, 0x30),
            );
            let scale = S::signed_bytes(S::lane_subtract(scale, 32));
            (S::mul(halves::<S>(header, 0, vector), scale), S::floats(0.0))
        }
    }
}

/// Two f16, and sixteen pairs of nibbles that multiply them, the second one subtracted: Q2_K.
pub(super) struct NibblePairs;

impl Header for NibblePairs {
    const BYTES: usize = 4 + 16;

    #[inline(always)]
    fn pack(_format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        pack_half(block, 80, row, 0, header);
        pack_half(block, 82, row, 1, header);
        pack_bytes(&block[..16], row, 4, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], part: usize, row: usize) -> Scales {
        let both = header[(4 + part) * GROUP_ROWS + row];
        Scales {
            scale: half(header, 0, row) * f32::from(both & 15),
            minimum: -(half(header, 1, row) * f32::from(both >> 4)),
        }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe {
            let both = bytes::<S>(header, 4 + part, vector);
            let nibble = |from: usize| S::unsigned_bytes(S::lane_bits(both, from, 0, 15));
            let minimum = S::mul(halves::<S>(header, 1, vector), nibble(4));
            (S::mul(halves::<S>(header, 0, vector), nibble(0)), S::mul(minimum, S::floats(-1.0)))
        }
    }
}

/// The exponent of a power of two, of which half is the scale: MXFP4.
pub(super) struct PowersOfTwo;

impl Header for PowersOfTwo {
    const BYTES: usize = 1;

    #[inline(always)]
    fn pack(_format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        pack_bytes(&block[..1], row, 0, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], _part: usize, row: usize) -> Scales {
        Scales { scale: half_of_power(header[row]), minimum: 0.0 }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, _part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe { (S::halves_of_powers(bytes::<S>(header, 0, vector)), S::floats(0.0)) }
    }
}

/// Four floats of eight bits, of which half is the scale: NVFP4.
pub(super) struct SmallFloats;

impl Header for SmallFloats {
    const BYTES: usize = 4;

    #[inline(always)]
    fn pack(_format: BlockFormat, block: &[u8], row: usize, header: &mut [u8]) {
        let plain: [u8; 4] = std::array::from_fn(|part| plain_small_float(block[part]));
        pack_bytes(&plain, row, 0, header);
    }

    #[inline(always)]
    fn scales(header: &[u8], part: usize, row: usize) -> Scales {
        Scales { scale: half_of_small_float(header[part * GROUP_ROWS + row]), minimum: 0.0 }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(header: *const u8, part: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: as the caller promises.
        unsafe { (S::halves_of_small_floats(bytes::<S>(header, part, vector)), S::floats(0.0)) }
    }
}
