//! The grids of [`super::grid`] in AVX-512: permutations of registers look up the indices of 32 rows at once.
//!
//! A grid is kept as 16-bit words, two bits for each of eight magnitudes or four for each of four: the low bits of a word's two
//! bytes are columns 0 and 1, the next bits columns 2 and 3, and so on. Byte shuffles make codes of these bits, words of two
//! columns for 32 rows, and the words of two neighbouring pairs of columns interleave to the quads of 16 rows each. So that
//! rows come out in order, words stand as [`in_word_order`] puts them. Measured (Zen 5, ns for a vector of 64 codes, look-up and
//! shuffles): 0.4, 0.6 and 1.2 for grids of 256, 512 and 1024, where a gather takes 2.1 and 32 loads 1.5. All of IQ1, whose grid
//! has 2048 points, takes 2.5, and with loads 3.6.

use super::{
    grid::{Plane, index_plane, sign_plane},
    grid_panel::{self, Quads},
};
use crate::blocks::{BlockFormat, BlockFormat as B, grids};
use std::arch::x86_64::*;

/// The words of a grid, 32 a vector.
type Words<const VECTORS: usize> = [[u16; 32]; VECTORS];

static IQ1: Words<64> = words(&grids::IQ1_POINTS, 2);
static IQ2_XXS: Words<8> = words(&grids::IQ2_XXS_POINTS, 2);
static IQ2_XS: Words<16> = words(&grids::IQ2_XS_POINTS, 2);
static IQ2_S: Words<32> = words(&grids::IQ2_S_POINTS, 2);
static IQ3_XXS: Words<8> = words(&grids::IQ3_XXS_POINTS, 3);
static IQ3_S: Words<16> = words(&grids::IQ3_S_POINTS, 3);

/// Points of `bits` a column, the first column lowest, as the words described above.
const fn words<const POINTS: usize, const VECTORS: usize>(
    points: &[u16; POINTS],
    bits: usize,
) -> Words<VECTORS> {
    assert!(POINTS == 32 * VECTORS);
    let (columns, room) = if bits == 2 { (8, 2) } else { (4, 4) };
    let mut words = [[0; 32]; VECTORS];
    let mut i = 0;
    while i < POINTS {
        let mut column = 0;
        while column < columns {
            let value = points[i] >> (bits * column) & ((1 << bits) - 1);
            words[i / 32][i % 32] |= value << (8 * (column % 2) + room * (column / 2));
            column += 1;
        }
        i += 1;
    }
    words
}

/// The codes that bits `shift..` of a nibble choose.
const fn codes_of_nibbles<const CODES: usize>(codes: [u8; CODES], shift: usize) -> [u8; 16] {
    let mut table = [0; 16];
    let mut nibble = 0;
    while nibble < 16 {
        let value = (nibble >> shift) % CODES.next_power_of_two();
        // Three values have two bits; no grid has a fourth.
        table[nibble] = if value < CODES { codes[value] } else { 0 };
        nibble += 1;
    }
    table
}

/// Decodes units to a panel of as many blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn decode_units(format: BlockFormat, units: &[u8], panel: &mut [u32]) {
    macro_rules! decode {
        ($($name:ident by $decode_block:expr),*) => {
            match format {
                $(B::$name => grid_panel::decode_units(B::$name, units, panel, |planes, b, quads| {
                    $decode_block(planes, b, quads);
                }),)*
                other => unreachable!("{other} has no grid"),
            }
        };
    }
    decode!(
        IQ1_S by iq1_s,
        IQ1_M by iq1_m,
        IQ2_XXS by iq2_xxs,
        IQ2_XS by iq2_xs,
        IQ2_S by iq2_s,
        IQ3_XXS by iq3_xxs,
        IQ3_S by iq3_s
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq2_xxs(planes: &[Plane], b: usize, quads: &mut Quads) {
    for eight in 0..4 {
        let words = look_up(&IQ2_XXS, in_word_order(&planes[index_plane(B::IQ2_XXS, b, eight)]), []);
        let signs = twice_in_word_order(&planes[sign_plane(B::IQ2_XXS, b, eight)]);
        store(signed::<true>(codes_of_eight(words, &[IQ2_FIRST, IQ2_SECOND]), signs), eight, quads);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq2_xs(planes: &[Plane], b: usize, quads: &mut Quads) {
    for eight in 0..4 {
        let signs = twice_in_word_order(&planes[sign_plane(B::IQ2_XS, b, eight)]);
        let low = in_word_order(&planes[index_plane(B::IQ2_XS, b, eight)]);
        let words = look_up(&IQ2_XS, low, [has_bit(signs, 0)]);
        store(signed::<true>(codes_of_eight(words, &[IQ2_FIRST, IQ2_SECOND]), signs), eight, quads);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq2_s(planes: &[Plane], b: usize, quads: &mut Quads) {
    let high = in_word_order(&planes[66 + b]);
    for eight in 0..4 {
        let low = in_word_order(&planes[index_plane(B::IQ2_S, b, eight)]);
        let words = look_up(&IQ2_S, low, [has_bit(high, 2 * eight), has_bit(high, 2 * eight + 1)]);
        let signs = twice_in_word_order(&planes[sign_plane(B::IQ2_S, b, eight)]);
        store(signed::<false>(codes_of_eight(words, &[IQ2_FIRST, IQ2_SECOND]), signs), eight, quads);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq3_xxs(planes: &[Plane], b: usize, quads: &mut Quads) {
    for eight in 0..4 {
        let four = |i| look_up(&IQ3_XXS, in_word_order(&planes[index_plane(B::IQ3_XXS, b, i)]), []);
        let pairs = codes_of_fours([four(2 * eight), four(2 * eight + 1)], &IQ3_XXS_CODES);
        let signs = twice_in_word_order(&planes[sign_plane(B::IQ3_XXS, b, eight)]);
        store(signed::<true>(pairs, signs), eight, quads);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq3_s(planes: &[Plane], b: usize, quads: &mut Quads) {
    let high = in_word_order(&planes[66 + b]);
    for eight in 0..4 {
        let four =
            |i| look_up(&IQ3_S, in_word_order(&planes[index_plane(B::IQ3_S, b, i)]), [has_bit(high, i)]);
        let pairs = codes_of_fours([four(2 * eight), four(2 * eight + 1)], &IQ3_S_CODES);
        let signs = twice_in_word_order(&planes[sign_plane(B::IQ3_S, b, eight)]);
        store(signed::<false>(pairs, signs), eight, quads);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq1_s(planes: &[Plane], b: usize, quads: &mut Quads) {
    let fields = _mm512_unpacklo_epi8(in_byte_order(&planes[34 + 2 * b]), in_byte_order(&planes[35 + 2 * b]));
    for eight in 0..4 {
        let low = in_word_order(&planes[index_plane(B::IQ1_S, b, eight)]);
        store(iq1(low, fields, 3 * eight, 15), eight, quads);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq1_m(planes: &[Plane], b: usize, quads: &mut Quads) {
    for eight in 0..4 {
        let nibbles = in_word_order(&planes[32 + 2 * b + eight / 2]);
        let low = in_word_order(&planes[index_plane(B::IQ1_M, b, eight)]);
        store(iq1(low, nibbles, eight % 2 * 4, eight % 2 * 4 + 3), eight, quads);
    }
}

/// Codes of eight columns, from indices whose three high bits are at `high` in `fields`, and the sign of the shift at `minus`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn iq1(low: __m512i, fields: __m512i, high: usize, minus: usize) -> [__m512i; 4] {
    let high = [has_bit(fields, high), has_bit(fields, high + 1), has_bit(fields, high + 2)];
    let mut pairs = codes_of_eight(look_up(&IQ1, low, high), &[IQ1_FIRST, IQ1_SECOND]);
    let plus = !has_bit(fields, minus);
    for pair in &mut pairs {
        // The grid has the shift of minus one.
        *pair = _mm512_mask_add_epi16(*pair, plus, *pair, _mm512_set1_epi16(0x0202));
    }
    pairs
}

/// Which words have a bit set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn has_bit(words: __m512i, bit: usize) -> __mmask32 {
    _mm512_test_epi16_mask(words, _mm512_set1_epi16(((1u32 << bit) as u16).cast_signed()))
}

static IQ1_FIRST: [u8; 16] = codes_of_nibbles(grids::IQ1_CODES, 0);
static IQ1_SECOND: [u8; 16] = codes_of_nibbles(grids::IQ1_CODES, 2);
static IQ2_FIRST: [u8; 16] = codes_of_nibbles(grids::IQ2_CODES, 0);
static IQ2_SECOND: [u8; 16] = codes_of_nibbles(grids::IQ2_CODES, 2);
static IQ3_XXS_CODES: [u8; 16] = codes_of_nibbles(grids::IQ3_XXS_CODES, 0);
static IQ3_S_CODES: [u8; 16] = codes_of_nibbles(grids::IQ3_S_CODES, 0);

/// A plane's bytes as words of rows 0-3, 16-19, 4-7, 20-23 and so on: the low and the high words of the 128-bit lanes are in
/// the order of rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn in_word_order(plane: &Plane) -> __m512i {
    _mm512_unpacklo_epi8(in_byte_order(plane), _mm512_setzero_si512())
}

/// As [`in_word_order`], the byte in both halves of the word.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn twice_in_word_order(plane: &Plane) -> __m512i {
    let bytes = in_byte_order(plane);
    _mm512_unpacklo_epi8(bytes, bytes)
}

/// Rows 4i to 4i + 3 and 16 + 4i to 16 + 4i + 3 in the low half of lane i.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn in_byte_order(plane: &Plane) -> __m512i {
    let order = _mm512_setr_epi32(0, 4, 0, 0, 1, 5, 0, 0, 2, 6, 0, 0, 3, 7, 0, 0);
    // SAFETY: a plane is 32 bytes.
    let bytes = unsafe { _mm256_loadu_si256(plane.as_ptr().cast()) };
    _mm512_permutexvar_epi32(order, _mm512_castsi256_si512(bytes))
}

/// The words of a grid that indices choose: their low bytes, and the bits above.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn look_up<const VECTORS: usize, const BITS: usize>(
    grid: &Words<VECTORS>,
    low: __m512i,
    high: [__mmask32; BITS],
) -> __m512i {
    const { assert!(VECTORS == 8 << BITS) };
    // SAFETY: 32 words.
    let load = |words: &[u16; 32]| unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
    // A permutation chooses by the six lowest bits.
    let low_bits = [has_bit(low, 6), has_bit(low, 7)];
    let mut found = [_mm512_setzero_si512(); 8];
    for (found, words) in found.iter_mut().zip(grid.as_chunks::<8>().0) {
        let of_64 = |i: usize| _mm512_permutex2var_epi16(load(&words[2 * i]), low, load(&words[2 * i + 1]));
        let of_128 = |i: usize| _mm512_mask_blend_epi16(low_bits[0], of_64(i), of_64(i + 1));
        *found = _mm512_mask_blend_epi16(low_bits[1], of_128(0), of_128(2));
    }
    for (bit, chosen) in high.into_iter().enumerate() {
        for i in 0..1 << (BITS - 1 - bit) {
            found[i] = _mm512_mask_blend_epi16(chosen, found[2 * i], found[2 * i + 1]);
        }
    }
    found[0]
}

/// The low nibbles of words of a grid, and the high ones.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn nibbles(words: __m512i) -> [__m512i; 2] {
    let nibble = _mm512_set1_epi8(15);
    [_mm512_and_si512(words, nibble), _mm512_and_si512(_mm512_srli_epi16(words, 4), nibble)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn shuffle(table: &[u8; 16], nibbles: __m512i) -> __m512i {
    // SAFETY: 16 bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles)
}

/// Codes of eight columns, two in each vector.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn codes_of_eight(words: __m512i, [first, second]: &[[u8; 16]; 2]) -> [__m512i; 4] {
    let [low, high] = nibbles(words);
    [shuffle(first, low), shuffle(second, low), shuffle(first, high), shuffle(second, high)]
}

/// As [`codes_of_eight`], of two fours.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn codes_of_fours(words: [__m512i; 2], codes: &[u8; 16]) -> [__m512i; 4] {
    let ([a, b], [c, d]) = (nibbles(words[0]), nibbles(words[1]));
    [shuffle(codes, a), shuffle(codes, b), shuffle(codes, c), shuffle(codes, d)]
}

/// Turns the signs of eight columns; `signs` is a sign byte in both halves of each word.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn signed<const EVEN: bool>(mut pairs: [__m512i; 4], mut signs: __m512i) -> [__m512i; 4] {
    if EVEN {
        // Makes bit 0 the parity of the others.
        static PARITY: [u8; 16] = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0];
        // The parity of a nibble that is the two nibbles' sum.
        const XOR_THEN_AND: i32 = 0x28;
        let nibble = _mm512_set1_epi8(15);
        let sum = _mm512_ternarylogic_epi32::<XOR_THEN_AND>(signs, _mm512_srli_epi16(signs, 4), nibble);
        signs = _mm512_xor_si512(signs, shuffle(&PARITY, sum));
    }
    for (i, pair) in pairs.iter_mut().enumerate() {
        let bit = |column: usize| (1u8 << column).rotate_left(u32::from(EVEN));
        let bits = i16::from_le_bytes([bit(2 * i), bit(2 * i + 1)]);
        let minuses = _mm512_test_epi8_mask(signs, _mm512_set1_epi16(bits));
        // 128 + g becomes 128 - g.
        *pair = _mm512_mask_sub_epi8(*pair, minuses, _mm512_setzero_si512(), *pair);
    }
    pairs
}

/// Interleaves pairs of columns to two quads, in their places.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn store([a, b, c, d]: [__m512i; 4], eight: usize, quads: &mut Quads) {
    for (quad, (a, b)) in quads[2 * eight..][..2].iter_mut().zip([(a, b), (c, d)]) {
        store_quad([_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)], quad);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn store_quad(rows: [__m512i; 2], quad: &mut [u32; 32]) {
    for (to, rows) in quad.as_chunks_mut::<16>().0.iter_mut().zip(rows) {
        // SAFETY: 16 words.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), rows) };
    }
}
