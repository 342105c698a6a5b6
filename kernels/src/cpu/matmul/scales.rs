//! How the scales of a unit lie in memory, before its codes: each way is one small thing that takes them from a row's file block
//! at load, finds one again for the scalar kernel, and makes a vector of them in a tile's registers.
//!
//! | scales | of a group's 32 rows |
//! |---|---|
//! | [`Halves`] | 32 f16 scales |
//! | [`HalvesAndMinima`] | 32 f16 scales, 32 f16 minima |
//! | [`SixBitPairs`] | 32 f16 scales, 32 f16 minima, the file's 12 bytes of eight 6-bit pairs as `[12][32]` |
//! | [`SignedBytes`] | 32 f16 scales, sixteen i8 scales as `[16][32]` |

use super::{layout::GROUP_ROWS, simd::Simd};
use crate::blocks::{Scales, six_bit_pair};
use half::f16;

/// A way to keep the scales of a unit.
pub(super) trait Header {
    /// Bytes of a row's scales.
    const BYTES: usize;

    /// Takes the scales of row `row` from its file block.
    fn pack(block: &[u8], row: usize, header: &mut [u8]);

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
    fn pack(block: &[u8], row: usize, header: &mut [u8]) {
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
    fn pack(block: &[u8], row: usize, header: &mut [u8]) {
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
    fn pack(block: &[u8], row: usize, header: &mut [u8]) {
        HalvesAndMinima::pack(block, row, header);
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
    fn pack(block: &[u8], row: usize, header: &mut [u8]) {
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
