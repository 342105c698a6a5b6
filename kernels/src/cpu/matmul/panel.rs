//! Formats that are decoded before they are multiplied: the file's own blocks in memory, a small panel of bytes and f32 scales for
//! the tiles.
//!
//! A packed group is made of **units**: the file blocks of the same columns of the 32 rows, one after another, so that a group
//! is one linear stream of exactly the file's bytes. A **panel** is what [`Codes::DECODED_BYTES`] says, for up to
//! [`PANEL_BLOCKS`] blocks of 32 columns: for each block its tables, then its quads. Plain Rust, compiled once for each
//! instruction set.

use super::layout::{BLOCK_COLS, Codes, GROUP_ROWS};
use crate::blocks::{self, BlockFormat, MAX_BLOCK_LEN, unpack_fields};

/// Blocks of a panel: it stays in the first-level cache (20 KB at most), and is a whole number of units of every format.
pub(super) const PANEL_BLOCKS: usize = 16;
const _: () = assert!((PANEL_BLOCKS * BLOCK_COLS).is_multiple_of(MAX_BLOCK_LEN));

/// Codes of a panel: of offset 128, or of offset 0 with minima.
#[derive(Clone, Copy)]
pub(super) struct PanelCodes<const SPANS: usize, const LARGEST: usize, const MINIMA: bool>;

impl<const SPANS: usize, const LARGEST: usize, const MINIMA: bool> Codes
    for PanelCodes<SPANS, LARGEST, MINIMA>
{
    const OFFSET: i32 = if MINIMA { 0 } else { 128 };
    const HAS_MINIMUM: bool = MINIMA;
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
            B::IQ1_S | B::IQ3_S => with!(PanelCodes<1, 15, false>),
            B::IQ2_XXS | B::IQ3_XXS => with!(PanelCodes<1, 63, false>),
            B::IQ1_M => with!(PanelCodes<2, 15, false>),
            B::IQ2_XS | B::IQ2_S => with!(PanelCodes<2, 63, false>),
            other => unreachable!("{other} is multiplied as it lies in memory"),
        }
    }};
}
pub(super) use with_panel;

/// Bytes of a whole panel.
pub(super) fn panel_bytes(format: BlockFormat) -> usize {
    with_panel!(format, P => PANEL_BLOCKS * P::DECODED_BYTES)
}

/// Decodes units to a panel of as many blocks.
///
/// # Panics
/// When `panel` is too small.
#[inline(always)]
pub(super) fn decode_units(format: BlockFormat, units: &[u8], panel: &mut [u32]) {
    // A constant format in each arm: what it decides is decided by the compiler.
    macro_rules! decode {
        ($($name:ident)*) => {
            match format {
                $(BlockFormat::$name => {
                    with_panel!(BlockFormat::$name, P => decode_units_of::<P>(BlockFormat::$name, units, panel));
                })*
                other => unreachable!("{other} is multiplied as it lies in memory"),
            }
        };
    }
    decode!(IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S);
}

#[inline(always)]
fn decode_units_of<C: Codes>(format: BlockFormat, units: &[u8], panel: &mut [u32]) {
    let (len, bytes) = (format.block_len(), format.block_bytes());
    let block_words = C::DECODED_BYTES / 4;
    let unit_words = len / BLOCK_COLS * block_words;
    let panels = panel.chunks_exact_mut(unit_words);
    assert!(units.len() / (GROUP_ROWS * bytes) <= panels.len(), "a panel for all units");
    for (unit, panel) in units.chunks_exact(GROUP_ROWS * bytes).zip(panels) {
        for (row, block) in unit.chunks_exact(bytes).enumerate() {
            let mut buffer = [0u8; MAX_BLOCK_LEN];
            let fields = &mut buffer[..len];
            unpack_fields(format, block, fields);
            let parts = panel.chunks_exact_mut(block_words).zip(fields.as_chunks::<BLOCK_COLS>().0);
            for (b, (decoded, fields)) in parts.enumerate() {
                let (tables, quads) = decoded.split_at_mut(C::TABLES * GROUP_ROWS);
                for (span, tables) in tables.chunks_exact_mut(C::TABLES / C::SPANS * GROUP_ROWS).enumerate() {
                    let scales = blocks::scales(format, block, b * C::SPANS + span);
                    tables[row] = scales.scale.to_bits();
                    if C::HAS_MINIMUM {
                        tables[GROUP_ROWS + row] = scales.minimum.to_bits();
                    }
                }
                for (quad, four) in
                    quads.as_chunks_mut::<GROUP_ROWS>().0.iter_mut().zip(fields.as_chunks::<4>().0)
                {
                    quad[row] = u32::from_le_bytes(*four);
                }
            }
        }
    }
}

/// Copies whole rows of file blocks to units. Rows that are missing in `rows` stay as they are in `group`.
pub(super) fn pack(format: BlockFormat, cols: usize, rows: &[u8], group: &mut [u8]) {
    let bytes = format.block_bytes();
    let row_bytes = cols / format.block_len() * bytes;
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (unit, block) in group.chunks_exact_mut(GROUP_ROWS * bytes).zip(row.chunks_exact(bytes)) {
            unit[r * bytes..][..bytes].copy_from_slice(block);
        }
    }
}

/// Decodes a row of a packed group to f32.
pub(super) fn decode_lane(format: BlockFormat, group: &[u8], lane: usize, out: &mut [f32]) {
    let bytes = format.block_bytes();
    let units = group.chunks_exact(GROUP_ROWS * bytes);
    for (unit, out) in units.zip(out.chunks_exact_mut(format.block_len())) {
        blocks::decode_row(format, &unit[lane * bytes..][..bytes], out);
    }
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
