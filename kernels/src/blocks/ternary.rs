//! Formats of one to two bits with nothing but a scale: Q1_0, Q2_0, TQ1_0 and TQ2_0. Codes are the value plus 1.
//!
//! | format | weights | bytes of a block |
//! |---|---|---|
//! | Q1_0 | 128 | scale 2, a bit a weight 16 (clear is -1, set 1) |
//! | Q2_0 | 64 | scale 2, two bits a weight 16, four neighbours in a byte (value + 1) |
//! | TQ1_0 | 256 | five ternary digits a byte 32 + 16, four 4, scale 2 |
//! | TQ2_0 | 256 | two bits a weight 64 (value + 1), as Q2_K has them, scale 2 |

use super::{BlockFormat, k_quants::two_bits};

// Where the fields of a block end, so that a wrong offset below does not compile.
const _: () = assert!(BlockFormat::Q1_0.block_bytes() == 2 + 16);
const _: () = assert!(BlockFormat::Q2_0.block_bytes() == 2 + 16);
const _: () = assert!(BlockFormat::TQ1_0.block_bytes() == 32 + 16 + 4 + 2);
const _: () = assert!(BlockFormat::TQ2_0.block_bytes() == 64 + 2);

#[inline(always)]
pub(super) fn q1_0(block: &[u8], out: &mut [u8]) {
    for (eight, &bits) in out.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
        eight.iter_mut().enumerate().for_each(|(i, code)| *code = (bits >> i & 1) << 1);
    }
}

#[inline(always)]
pub(super) fn q2_0(block: &[u8], out: &mut [u8]) {
    for (four, &b) in out.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
        let b = u32::from(b);
        *four = ((b | b << 6 | b << 12 | b << 18) & 0x0303_0303).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn tq2_0(block: &[u8], out: &mut [u8]) {
    two_bits(&block[..64], out);
}

/// A byte is the fraction of five ternary digits, the first the highest, in 256ths and rounded up: digit n is what three
/// times the fraction part of byte * 3^n carries out.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8], out: &mut [u8]) {
    let (first, rest) = out.split_at_mut(5 * 32);
    let (second, last) = rest.split_at_mut(5 * 16);
    digits(&block[..32], first);
    digits(&block[32..48], second);
    digits(&block[48..52], last);
}

/// The first digits of all bytes, then the second ones, and so on.
#[inline(always)]
fn digits(packed: &[u8], out: &mut [u8]) {
    let mut power = 1u8;
    for out in out.chunks_exact_mut(packed.len()) {
        for (code, b) in out.iter_mut().zip(packed) {
            *code = ((u16::from(b.wrapping_mul(power)) * 3) >> 8) as u8;
        }
        power = power.wrapping_mul(3);
    }
}
