//! Formats that are decoded before they are multiplied, those of grids: a small panel of bytes and f32 scales for the tiles.
//!
//! A packed group is made of units ([`super::grid`]), and is one linear stream of exactly the file's bytes. A **panel** is what
//! [`Codes::DECODED_BYTES`] says, for up to [`PANEL_BLOCKS`] blocks of 32 columns: for each block its tables, then its quads.
//! Each instruction set decodes by its own means ([`super::simd::Simd::decode_units`]).

use super::layout::{BLOCK_COLS, Codes};
use crate::blocks::{BlockFormat, MAX_BLOCK_LEN};

/// Blocks of a panel: it stays in the first-level cache (20 KB at most), and is a whole number of units of every format.
pub(super) const PANEL_BLOCKS: usize = 16;
const _: () = assert!((PANEL_BLOCKS * BLOCK_COLS).is_multiple_of(MAX_BLOCK_LEN));

/// Codes of a panel, signed bytes with the highest bit turned.
#[derive(Clone, Copy)]
pub(super) struct PanelCodes<const SPANS: usize, const LARGEST: usize>;

impl<const SPANS: usize, const LARGEST: usize> Codes for PanelCodes<SPANS, LARGEST> {
    const OFFSET: i32 = 128;
    const HAS_MINIMUM: bool = false;
    const SPANS: usize = SPANS;
    const LARGEST: usize = LARGEST;
}

/// Evaluates an expression with `$P` bound to the [`PanelCodes`] of a format that is decoded first. Formats share a kernel as far
/// as their codes have the same spans and are small enough for the same sums.
macro_rules! with_panel {
    ($format:expr, $P:ident => $body:expr) => {{
        use $crate::blocks::BlockFormat as B;
        macro_rules! with {
            ($codes:ty) => {{
                type $P = $codes;
                $body
            }};
        }
        use $crate::cpu::matmul::panel::PanelCodes;
        match $format {
            B::IQ1_S | B::IQ3_S => with!(PanelCodes<1, 15>),
            B::IQ2_XXS | B::IQ3_XXS => with!(PanelCodes<1, 63>),
            B::IQ1_M => with!(PanelCodes<2, 15>),
            B::IQ2_XS | B::IQ2_S => with!(PanelCodes<2, 63>),
            other => unreachable!("{other} is multiplied as it lies in memory"),
        }
    }};
}
pub(super) use with_panel;

/// Bytes of a whole panel.
pub(super) fn panel_bytes(format: BlockFormat) -> usize {
    with_panel!(format, P => PANEL_BLOCKS * P::DECODED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::unpack_codes;

    /// Codes beyond what a kernel's sums have room for would overflow them in silence.
    #[test]
    fn no_bytes_make_a_code_beyond_the_bound_of_its_kernel() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for format in BlockFormat::ALL.into_iter().filter(|&f| super::super::layout::is_decoded_first(f)) {
            let (largest, offset) = with_panel!(format, P => (P::LARGEST as i32, P::OFFSET));
            assert_eq!(offset, format.code_offset(), "{format}");
            let mut seen = 0;
            for _ in 0..2000 {
                let block: Vec<u8> = (0..format.block_bytes())
                    .map(|_| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (random >> 56) as u8
                    })
                    .collect();
                let mut codes = vec![0; format.block_len()];
                unpack_codes(format, &block, &mut codes);
                seen = codes.iter().map(|&c| (i32::from(c) - offset).abs()).fold(seen, i32::max);
            }
            assert!(0 < seen && seen <= largest, "{format}: {seen} of {largest}");
        }
    }
}
