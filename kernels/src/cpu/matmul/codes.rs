//! How codes lie in memory: each way is one small thing that folds codes at load, finds one again for the scalar kernel, and
//! unfolds two vectors of them in a tile's registers.
//!
//! Codes come in **quads**: the 4 consecutive columns `4j..4j + 4` of a group's 32 rows, row after row, so that a 512-bit vector
//! holds 16 rows and a 256-bit vector 8 of them, and a lane of 4 bytes is what one `vpdpbusd` lane sums. A row of 128 bytes ([`QUAD_BYTES`])
//! has the codes of several quads on top of each other, byte under byte, and rows stand in the order in which tiles read them.
//!
//! | codes | of 8 quads, a block |
//! |---|---|
//! | [`Bytes`] | 8 rows, one a quad |
//! | [`Nibbles`] | 4 rows: quad `2v` in the low nibbles, quad `2v + 1` in the high ones |
//! | [`FiveBits`] | bit 4 of quads 0-7, 16 bytes each (bit p belongs to byte p of the quad); then as nibbles |
//! | [`SixBits`] | two halves of 3 rows: bits 4-5 of four quads (quad t at bits 2t), then two rows as nibbles |
//! | [`OneBit`] | 1 row: quad t at bit t |
//! | [`TwoBits`] | 2 rows: quads 4r to 4r + 3, the first at bits 0-1 |
//! | [`ThreeBits`] | 3 rows: quad 2r at bits 0-2, quad 2r + 1 at bits 3-5; quads 6 and 7 share the rows' bits 6-7 |
//! | [`Digits`] | 13 rows for 64 quads, eight blocks: quads 5r to 5r + 4, a byte the fraction of five ternary digits |

use super::{
    layout::{GROUP_ROWS, QUAD_BYTES, QUADS},
    simd::Simd,
};

/// Bytes of one quad's fifth bits.
const BIT_ROW_BYTES: usize = QUAD_BYTES / 8;

/// A quad of 32 rows: four columns in the bytes of a word, the first lowest.
pub(super) type Quad = [u32; GROUP_ROWS];

/// A way to keep codes.
pub(super) trait Folding {
    /// Blocks that are folded together.
    const BLOCKS: usize = 1;
    /// Bytes of as many blocks, 32 rows.
    const BYTES: usize;
    /// Greatest code.
    const LARGEST: usize;

    /// Puts the quads of [`Self::BLOCKS`] blocks into as many [`Self::BYTES`].
    fn fold(quads: &[Quad], folded: &mut [u8]);

    /// The code at byte `p` (`4 * row + column % 4`) of a quad.
    fn code(folded: &[u8], quad: usize, p: usize) -> u8;

    /// Quads `quad` (an even one) and `quad + 1`, for the lanes of vector `vector`.
    ///
    /// # Safety
    /// As for [`Simd`]; `folded` has [`Self::BYTES`], and quad and vector lie inside.
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2];
}

/// Row `row` of folded codes, for the lanes of vector `vector`.
///
/// # Safety
/// As for [`Simd`]; there is such a row.
#[inline(always)]
unsafe fn load_row<S: Simd>(folded: *const u8, row: usize, vector: usize) -> S::Codes {
    // SAFETY: as the caller promises.
    unsafe { S::load_codes(folded.add(row * QUAD_BYTES + vector * S::LANES * 4)) }
}

/// Fills a row of folded codes with a word for each of the group's rows.
#[inline(always)]
fn fill_row(folded: &mut [u8], word: impl Fn(usize) -> u32) {
    let words = folded.as_chunks_mut::<4>().0.iter_mut().enumerate();
    words.for_each(|(r, folded)| *folded = word(r).to_le_bytes());
}

/// A byte a code.
pub(super) struct Bytes;

impl Folding for Bytes {
    const BYTES: usize = QUADS * QUAD_BYTES;
    const LARGEST: usize = 255;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        for (quad, row) in quads.iter().zip(folded.chunks_exact_mut(QUAD_BYTES)) {
            fill_row(row, |r| quad[r]);
        }
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        folded[quad * QUAD_BYTES + p]
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe { [load_row::<S>(folded, quad, vector), load_row::<S>(folded, quad + 1, vector)] }
    }
}

/// Two codes a byte.
pub(super) struct Nibbles;

impl Folding for Nibbles {
    const BYTES: usize = QUADS / 2 * QUAD_BYTES;
    const LARGEST: usize = 15;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        for (pair, row) in quads.chunks_exact(2).zip(folded.chunks_exact_mut(QUAD_BYTES)) {
            fill_row(row, |r| pair[0][r] & 0x0f0f_0f0f | (pair[1][r] & 0x0f0f_0f0f) << 4);
        }
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        folded[quad / 2 * QUAD_BYTES + p] >> (4 * (quad % 2)) & 15
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let both = load_row::<S>(folded, quad / 2, vector);
            [S::bits(both, 0, 0, 15), S::bits(both, 4, 0, 15)]
        }
    }
}

/// Nibbles, and the fifth bits as masks.
pub(super) struct FiveBits;

impl FiveBits {
    /// The eight bit rows take the place of one row of nibbles.
    const NIBBLES_AT: usize = QUADS * BIT_ROW_BYTES;
}

impl Folding for FiveBits {
    const BYTES: usize = Self::NIBBLES_AT + Nibbles::BYTES;
    const LARGEST: usize = 31;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        let (bits, nibbles) = folded.split_at_mut(Self::NIBBLES_AT);
        for (quad, bits) in quads.iter().zip(bits.chunks_exact_mut(BIT_ROW_BYTES)) {
            for (byte, rows) in bits.iter_mut().zip(quad.as_chunks::<2>().0) {
                let ones = (u64::from(rows[0]) | u64::from(rows[1]) << 32) >> 4 & 0x0101_0101_0101_0101;
                // Moves bit 8i to bit 56 + i.
                *byte = (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
            }
        }
        Nibbles::fold(quads, nibbles);
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        let high = folded[quad * BIT_ROW_BYTES + p / 8] >> (p % 8) & 1;
        Nibbles::code(&folded[Self::NIBBLES_AT..], quad, p) | high << 4
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let [even, odd] = Nibbles::pair::<S>(folded.add(Self::NIBBLES_AT), quad, vector);
            let bits = |quad: usize| folded.add(quad * BIT_ROW_BYTES + vector * S::LANES / 2);
            [S::add_fifth_bits(even, bits(quad)), S::add_fifth_bits(odd, bits(quad + 1))]
        }
    }
}

/// Nibbles, and pairs of high bits, each before the nibbles that they belong to.
pub(super) struct SixBits;

impl SixBits {
    const HALF_BYTES: usize = 3 * QUAD_BYTES;
}

impl Folding for SixBits {
    const BYTES: usize = 2 * Self::HALF_BYTES;
    const LARGEST: usize = 63;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        for (quads, half) in quads.chunks_exact(4).zip(folded.chunks_exact_mut(Self::HALF_BYTES)) {
            let (high, nibbles) = half.split_at_mut(QUAD_BYTES);
            fill_row(high, |r| {
                let two = |t: usize| (quads[t][r] >> 4 & 0x0303_0303) << (2 * t);
                two(0) | two(1) | two(2) | two(3)
            });
            Nibbles::fold(quads, nibbles);
        }
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        let half = &folded[quad / 4 * Self::HALF_BYTES..];
        let high = half[p] >> (2 * (quad % 4)) & 3;
        Nibbles::code(&half[QUAD_BYTES..], quad % 4, p) | high << 4
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let half = folded.add(quad / 4 * Self::HALF_BYTES);
            let [even, odd] = Nibbles::pair::<S>(half.add(QUAD_BYTES), quad % 4, vector);
            let high = load_row::<S>(half, 0, vector);
            let from = 2 * (quad % 4);
            [S::or_bits(even, high, from, 4, 0x30), S::or_bits(odd, high, from + 2, 4, 0x30)]
        }
    }
}

/// A bit a code, which is 0 or 2.
pub(super) struct OneBit;

impl Folding for OneBit {
    const BYTES: usize = QUAD_BYTES;
    const LARGEST: usize = 2;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        let bit = |t: usize, r: usize| (quads[t][r] >> 1 & 0x0101_0101) << t;
        fill_row(folded, |r| (0..QUADS).fold(0, |word, t| word | bit(t, r)));
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        (folded[p] >> quad & 1) << 1
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let row = load_row::<S>(folded, 0, vector);
            [S::bits(row, quad, 1, 2), S::bits(row, quad + 1, 1, 2)]
        }
    }
}

/// Four codes a byte.
pub(super) struct TwoBits;

impl Folding for TwoBits {
    const BYTES: usize = QUADS / 4 * QUAD_BYTES;
    const LARGEST: usize = 3;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        for (four, row) in quads.chunks_exact(4).zip(folded.chunks_exact_mut(QUAD_BYTES)) {
            fill_row(row, |r| four[0][r] | four[1][r] << 2 | four[2][r] << 4 | four[3][r] << 6);
        }
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        folded[quad / 4 * QUAD_BYTES + p] >> (2 * (quad % 4)) & 3
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let row = load_row::<S>(folded, quad / 4, vector);
            let from = 2 * (quad % 4);
            [S::bits(row, from, 0, 3), S::bits(row, from + 2, 0, 3)]
        }
    }
}

/// Eight codes in three bytes: six of them whole, for which one shift and one mask are enough.
pub(super) struct ThreeBits;

impl Folding for ThreeBits {
    const BYTES: usize = 3 * QUAD_BYTES;
    const LARGEST: usize = 7;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        for (i, row) in folded.chunks_exact_mut(QUAD_BYTES).enumerate() {
            fill_row(row, |r| {
                // Low pairs of quads 6 and 7, then their third bits.
                let shared = match i {
                    0 | 1 => (quads[6 + i][r] & 0x0303_0303) << 6,
                    _ => (quads[6][r] & 0x0404_0404) << 4 | (quads[7][r] & 0x0404_0404) << 5,
                };
                quads[2 * i][r] | quads[2 * i + 1][r] << 3 | shared
            });
        }
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        let row = |i: usize| folded[i * QUAD_BYTES + p];
        match quad {
            6 | 7 => row(quad - 6) >> 6 | (row(2) >> quad & 1) << 2,
            _ => row(quad / 2) >> (3 * (quad % 2)) & 7,
        }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let row = |i: usize| load_row::<S>(folded, i, vector);
            if quad == 6 {
                let (even, odd) = (S::bits(row(0), 6, 0, 3), S::bits(row(1), 6, 0, 3));
                [S::or_bits(even, row(2), 6, 2, 4), S::or_bits(odd, row(2), 7, 2, 4)]
            } else {
                let row = row(quad / 2);
                [S::bits(row, 0, 0, 7), S::bits(row, 3, 0, 7)]
            }
        }
    }
}

/// Ternary digits, five a byte. A byte is the fraction whose digits they are, the first the highest, in 256ths and rounded up:
/// digit n is what three times the fraction part of byte * 3^n carries out.
pub(super) struct Digits;

impl Digits {
    const OF_BYTE: usize = 5;
    const VALUES: u16 = 3u16.pow(Self::OF_BYTE as u32);
}

impl Folding for Digits {
    const BLOCKS: usize = 8;
    const BYTES: usize = (Self::BLOCKS * QUADS).div_ceil(Self::OF_BYTE) * QUAD_BYTES;
    const LARGEST: usize = 2;

    #[inline(always)]
    fn fold(quads: &[Quad], folded: &mut [u8]) {
        for (five, row) in quads.chunks(Self::OF_BYTE).zip(folded.chunks_exact_mut(QUAD_BYTES)) {
            // Four bytes at a time: no byte of the sum reaches 256.
            fill_row(row, |r| {
                let digit = |i: usize| five.get(i).map_or(0, |quad| quad[r]);
                (0..Self::OF_BYTE).fold(0, |value, i| 3 * value + digit(i))
            });
            row.iter_mut().for_each(|b| *b = (u16::from(*b) * 256).div_ceil(Self::VALUES) as u8);
        }
    }

    #[inline(always)]
    fn code(folded: &[u8], quad: usize, p: usize) -> u8 {
        let byte = folded[quad / Self::OF_BYTE * QUAD_BYTES + p];
        let fraction = byte.wrapping_mul(3u8.pow((quad % Self::OF_BYTE) as u32));
        ((u16::from(fraction) * 3) >> 8) as u8
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(folded: *const u8, quad: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let digit = |quad: usize| {
                let row = load_row::<S>(folded, quad / Self::OF_BYTE, vector);
                S::digit(row, POWERS_OF_3[quad % Self::OF_BYTE])
            };
            [digit(quad), digit(quad + 1)]
        }
    }
}

static POWERS_OF_3: [i16; Digits::OF_BYTE] = [1, 3, 9, 27, 81];
