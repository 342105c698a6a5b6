//! Where the bits of a packed weight lie: 32 output rows interleaved, one linear stream a group, the file's own bytes.
//!
//! A **group** is 32 rows (the last one of a matrix is padded with zero rows). Along the columns it is a sequence of
//! **units** (one file block of each row): a header with the rows' scales, then the codes of one or eight 32-column
//! **blocks**. Codes come in **quads**: the 4 consecutive columns `4j..4j + 4` of all 32 rows, row after row, so that a
//! 512-bit vector holds 16 rows and a 256-bit vector 8 of them, and a lane of 4 bytes is what one `vpdpbusd` lane sums.
//! Bytes stand in the order in which the kernels read them.
//!
//! | bits | codes of a block |
//! |---|---|
//! | 4 | 4 x 128 bytes: quad `2v` in the low nibbles, quad `2v + 1` in the high ones |
//! | 5 | bit 4 of quads 0-7, 16 bytes each (bit p belongs to byte p of the quad); then as 4 |
//! | 6 | two halves of 3 x 128 bytes: bits 4-5 of four quads (quad t at bits 2t), then two nibble rows as 4 |
//! | 8 | 8 x 128 bytes, one a quad, value + 128 |
//!
//! | format | header |
//! |---|---|
//! | Q4_0, Q5_0, Q8_0 | 32 f16 scales |
//! | Q4_1, Q5_1 | 32 f16 scales, 32 f16 minima |
//! | Q4_K, Q5_K | 32 f16 scales, 32 f16 minima, the 12 bytes of 6-bit pairs as `[12][32]` |
//! | Q6_K | 32 f16 scales, the sixteen i8 scales as `[16][32]` |
//!
//! Float formats have no header: the 32 rows' values of column 0, of column 1, and so on. All other formats are decoded before
//! they are multiplied ([`super::panel`]): a unit is the 32 rows' file blocks, one after another.

use crate::blocks::{BlockFormat, Scales, six_bit_pair};
use half::f16;

/// Rows of a group.
pub(super) const GROUP_ROWS: usize = 32;
/// Columns that share an activation scale.
pub(super) const BLOCK_COLS: usize = 32;
/// Quads of a block.
pub(super) const QUADS: usize = BLOCK_COLS / 4;
/// Bytes of one quad's codes when each has a byte.
pub(super) const QUAD_BYTES: usize = GROUP_ROWS * 4;
/// Bytes of one quad's fifth bits.
pub(super) const BIT_ROW_BYTES: usize = QUAD_BYTES / 8;

/// What a tile must know of the codes that it multiplies.
pub(super) trait Codes: Copy {
    /// What is subtracted from a code; of signed bytes with the highest bit turned it is 128.
    const OFFSET: i32;
    const HAS_MINIMUM: bool;
    /// Scales of a row in a block: 1 or 2.
    const SPANS: usize;
    /// Greatest code, or greatest magnitude of signed bytes.
    const LARGEST: usize;
    const SIGNED: bool = Self::OFFSET == 128;
    /// Tables of 32 f32 in front of a decoded block: for each span the scales, and the minima where there are some.
    const TABLES: usize = Self::SPANS * (1 + Self::HAS_MINIMUM as usize);
    /// Bytes of a decoded block: its tables, then its quads with a byte a code.
    const DECODED_BYTES: usize = Self::TABLES * GROUP_ROWS * 4 + QUADS * QUAD_BYTES;
}

/// A quantised format as a type, so that each has its own compiled kernel. All else follows from the constant.
pub(super) trait Format: Codes {
    const FORMAT: BlockFormat;
    /// Bits of a code.
    const BITS: usize = code_bits(Self::FORMAT);
    /// Bytes before the codes of a unit.
    const HEADER_BYTES: usize = header_bytes(Self::FORMAT);
    /// Bytes of a block's codes, 32 rows.
    const CODE_BYTES: usize = code_bytes(Self::FORMAT);
    /// Blocks of a unit.
    const UNIT_BLOCKS: usize = Self::FORMAT.block_len() / BLOCK_COLS;
    /// Bytes of a unit.
    const UNIT_BYTES: usize = Self::HEADER_BYTES + Self::UNIT_BLOCKS * Self::CODE_BYTES;

    /// Bytes from the start of a group to the header that holds block `block`'s scales.
    #[inline(always)]
    fn header_at(block: usize) -> usize {
        block / Self::UNIT_BLOCKS * Self::UNIT_BYTES
    }

    /// Bytes from the start of a group to the codes of block `block`.
    #[inline(always)]
    fn codes_at(block: usize) -> usize {
        Self::header_at(block) + Self::HEADER_BYTES + block % Self::UNIT_BLOCKS * Self::CODE_BYTES
    }
}

macro_rules! formats {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the format's own name")]
        pub(super) struct $name;
        impl Codes for $name {
            const OFFSET: i32 = BlockFormat::$name.code_offset();
            const HAS_MINIMUM: bool = BlockFormat::$name.has_minimum();
            const SPANS: usize = BLOCK_COLS / BlockFormat::$name.scale_span();
            const LARGEST: usize = if Self::SIGNED { 128 } else { (1 << code_bits(BlockFormat::$name)) - 1 };
        }
        impl Format for $name {
            const FORMAT: BlockFormat = BlockFormat::$name;
        }
        // A group takes exactly the file's bytes, and every vector in it is aligned.
        const _: () = assert!($name::UNIT_BYTES == GROUP_ROWS * $name::FORMAT.block_bytes());
        const _: () = assert!($name::HEADER_BYTES % 64 == 0 && $name::CODE_BYTES % 64 == 0);
    )*};
}
formats!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K);

/// Evaluates an expression with `$F` bound to the type of a quantised format that tiles read as it lies in memory; `$panel` for
/// the formats that are decoded first, `$other` for the float formats.
macro_rules! with_format {
    ($format:expr, $F:ident => $quantised:expr, panel => $panel:expr, _ => $other:expr) => {{
        use $crate::blocks::BlockFormat as B;
        use $crate::cpu::matmul::layout as l;
        macro_rules! with {
            ($name:ident) => {{
                type $F = l::$name;
                $quantised
            }};
        }
        match $format {
            B::Q4_0 => with!(Q4_0),
            B::Q4_1 => with!(Q4_1),
            B::Q5_0 => with!(Q5_0),
            B::Q5_1 => with!(Q5_1),
            B::Q8_0 => with!(Q8_0),
            B::Q4_K => with!(Q4_K),
            B::Q5_K => with!(Q5_K),
            B::Q6_K => with!(Q6_K),
            B::F32 | B::F16 | B::BF16 => $other,
            _ => $panel,
        }
    }};
}
pub(super) use with_format;

/// Whether a format is decoded to a panel before it is multiplied.
pub(super) fn is_decoded_first(format: BlockFormat) -> bool {
    use BlockFormat as B;
    let as_it_lies =
        matches!(format, B::Q4_0 | B::Q4_1 | B::Q5_0 | B::Q5_1 | B::Q8_0 | B::Q4_K | B::Q5_K | B::Q6_K);
    format.is_quantised() && !as_it_lies
}

const fn code_bits(format: BlockFormat) -> usize {
    match format {
        BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q5_K => 5,
        BlockFormat::Q6_K => 6,
        BlockFormat::Q8_0 => 8,
        _ => 4,
    }
}

const fn header_bytes(format: BlockFormat) -> usize {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 => GROUP_ROWS * 4,
        BlockFormat::Q4_K | BlockFormat::Q5_K => GROUP_ROWS * (4 + 12),
        BlockFormat::Q6_K => GROUP_ROWS * (2 + 16),
        _ => GROUP_ROWS * 2,
    }
}

const fn code_bytes(format: BlockFormat) -> usize {
    GROUP_ROWS * BLOCK_COLS * code_bits(format) / 8
}

/// Bytes of a group of `cols` columns; `None` as for [`BlockFormat::row_bytes`].
pub(super) const fn group_bytes(format: BlockFormat, cols: usize) -> Option<usize> {
    match format.row_bytes(cols) {
        Some(bytes) => bytes.checked_mul(GROUP_ROWS),
        None => None,
    }
}

/// The code at byte `p` (`4 * row + column % 4`) of quad `quad`, out of a block's codes.
#[inline(always)]
pub(super) fn code_at<F: Format>(codes: &[u8], quad: usize, p: usize) -> u8 {
    let nibble = |row: usize| codes[row * QUAD_BYTES + p] >> (4 * (quad % 2)) & 15;
    match F::BITS {
        4 => nibble(quad / 2),
        5 => {
            let high = codes[quad * BIT_ROW_BYTES + p / 8] >> (p % 8) & 1;
            // The eight bit rows take the place of one nibble row.
            nibble(1 + quad / 2) | high << 4
        }
        6 => {
            let half = quad / 4 * 3;
            let high = codes[half * QUAD_BYTES + p] >> (2 * (quad % 4)) & 3;
            nibble(half + 1 + quad % 4 / 2) | high << 4
        }
        _ => codes[quad * QUAD_BYTES + p],
    }
}
const _: () = assert!(QUADS * BIT_ROW_BYTES == QUAD_BYTES);

/// The scales of row `row` for columns `sub * scale_span ..` of a unit, out of the unit's header.
#[inline(always)]
pub(super) fn scales_at<F: Format>(header: &[u8], sub: usize, row: usize) -> Scales {
    let half = |table: usize| {
        let at = (table * GROUP_ROWS + row) * 2;
        f16::from_le_bytes([header[at], header[at + 1]]).to_f32()
    };
    match F::FORMAT {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 => Scales { scale: half(0), minimum: half(1) },
        BlockFormat::Q4_K | BlockFormat::Q5_K => {
            let (scale, minimum) = six_bit_pair(sub, |i| header[(4 + i) * GROUP_ROWS + row]);
            Scales { scale: half(0) * f32::from(scale), minimum: -(half(1) * f32::from(minimum)) }
        }
        BlockFormat::Q6_K => {
            let scale = header[(2 + sub) * GROUP_ROWS + row].cast_signed();
            Scales { scale: half(0) * f32::from(scale), minimum: 0.0 }
        }
        _ => Scales { scale: half(0), minimum: 0.0 },
    }
}
