//! Where the bits of a packed weight lie: 32 output rows interleaved, one linear stream a group, the file's own bytes.
//!
//! A **group** is 32 rows (the last one of a matrix is filled up with rows that nobody reads). Along the columns it is a sequence of
//! **units** (one file block of each row): a header with the rows' scales ([`super::scales`]), then the codes of its 32-column
//! **blocks** ([`super::codes`]). Bytes stand in the order in which the kernels read them. Which format has which header and
//! which codes is the table of `formats!` below.
//!
//! Float formats have no header: the 32 rows' values of column 0, of column 1, and so on (the smallest BF16 made 0). All other formats are decoded before
//! they are multiplied ([`super::panel`]): a unit is the 32 rows' file blocks, transposed ([`super::grid`]).

use super::{
    codes::{self, Bytes, Digits, FiveBits, Folding, Nibbles, OneBit, ThreeBits, TwoBits},
    scales::{
        Halves, HalvesAndMinima, Header, NibblePairs, PowersOfTwo, SignedBytes, SixBitPairs, SixBits,
        SmallFloats,
    },
};
use crate::blocks::{BlockFormat, Scales};

/// Rows of a group.
pub(super) const GROUP_ROWS: usize = 32;
/// Columns that share an activation scale.
pub(super) const BLOCK_COLS: usize = 32;
/// Quads of a block.
pub(super) const QUADS: usize = BLOCK_COLS / 4;
/// Bytes of one quad's codes when each has a byte.
pub(super) const QUAD_BYTES: usize = GROUP_ROWS * 4;

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

/// A quantised format that tiles read as it lies in memory, as a type, so that each has its own compiled kernel.
pub(super) trait Format: Codes {
    const FORMAT: BlockFormat;
    /// Where the scales of a unit are.
    type Header: Header;
    /// Where its codes are, or the fields that choose them in [`Self::TABLE`].
    type Folding: Folding;
    const TABLE: Option<&'static [u8; 16]> = Self::FORMAT.code_table();
    /// Blocks of a unit.
    const UNIT_BLOCKS: usize = Self::FORMAT.block_len() / BLOCK_COLS;
    /// Bytes before the codes of a unit.
    const HEADER_BYTES: usize = GROUP_ROWS * Self::Header::BYTES;
    /// Bytes of a unit.
    const UNIT_BYTES: usize =
        Self::HEADER_BYTES + Self::UNIT_BLOCKS / Self::Folding::BLOCKS * Self::Folding::BYTES;

    /// Bytes from the start of a group to the header that holds block `block`'s scales.
    #[inline(always)]
    fn header_at(block: usize) -> usize {
        block / Self::UNIT_BLOCKS * Self::UNIT_BYTES
    }

    /// Bytes from the start of a group to the folded codes that block `block` is in, and its first quad there.
    #[inline(always)]
    fn codes_at(block: usize) -> (usize, usize) {
        let (unit_block, together) = (block % Self::UNIT_BLOCKS, Self::Folding::BLOCKS);
        let folded = unit_block / together * Self::Folding::BYTES;
        (Self::header_at(block) + Self::HEADER_BYTES + folded, unit_block % together * QUADS)
    }

    /// The code at byte `p` (`4 * row + column % 4`) of a quad of a block of a group.
    #[inline(always)]
    fn code(group: &[u8], block: usize, quad: usize, p: usize) -> u8 {
        let (at, first) = Self::codes_at(block);
        let code = Self::Folding::code(&group[at..], first + quad, p);
        Self::TABLE.map_or(code, |table| table[usize::from(code)])
    }

    /// The scales of a row in a span of a block of a group.
    #[inline(always)]
    fn scales(group: &[u8], block: usize, span: usize, row: usize) -> Scales {
        Self::Header::scales(&group[Self::header_at(block)..], Self::part(block, span), row)
    }

    /// A span of a block, counted from the start of its unit.
    #[inline(always)]
    fn part(block: usize, span: usize) -> usize {
        block % Self::UNIT_BLOCKS * Self::SPANS + span
    }
}

macro_rules! formats {
    ($($name:ident: $header:ty, $folding:ty;)*) => {$(
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the format's own name")]
        pub(super) struct $name;
        impl Codes for $name {
            const OFFSET: i32 = BlockFormat::$name.code_offset();
            const HAS_MINIMUM: bool = BlockFormat::$name.has_minimum();
            const SPANS: usize = BLOCK_COLS / BlockFormat::$name.scale_span();
            const LARGEST: usize = largest(BlockFormat::$name, <$folding>::LARGEST);
        }
        impl Format for $name {
            const FORMAT: BlockFormat = BlockFormat::$name;
            type Header = $header;
            type Folding = $folding;
        }
        // A group takes exactly the file's bytes, and every vector in it is aligned (in MXFP4, those of 256 bits).
        const _: () = assert!($name::UNIT_BYTES == GROUP_ROWS * $name::FORMAT.block_bytes());
        const _: () = assert!($name::HEADER_BYTES % 32 == 0 && <$folding>::BYTES % 64 == 0);
    )*};
}
formats! {
    Q1_0: Halves<0>, OneBit;
    Q2_0: Halves<0>, TwoBits;
    Q4_0: Halves<0>, Nibbles;
    Q4_1: HalvesAndMinima, Nibbles;
    Q5_0: Halves<0>, FiveBits;
    Q5_1: HalvesAndMinima, FiveBits;
    Q8_0: Halves<0>, Bytes;
    Q2_K: NibblePairs, TwoBits;
    Q3_K: SixBits<16, 108>, ThreeBits;
    Q4_K: SixBitPairs, Nibbles;
    Q5_K: SixBitPairs, FiveBits;
    Q6_K: SignedBytes, codes::SixBits;
    IQ4_NL: Halves<0>, Nibbles;
    IQ4_XS: SixBits<8, 0>, Nibbles;
    TQ1_0: Halves<52>, Digits;
    TQ2_0: Halves<64>, TwoBits;
    MXFP4: PowersOfTwo, Nibbles;
    NVFP4: SmallFloats, Nibbles;
}

/// Greatest code of a format whose fields go up to `field`; greatest magnitude where codes are signed bytes.
const fn largest(format: BlockFormat, field: usize) -> usize {
    if format.code_offset() == 128 {
        return 128;
    }
    let Some(table) = format.code_table() else { return field };
    let (mut largest, mut i) = (0, 0);
    while i <= field {
        if table[i] > largest {
            largest = table[i];
        }
        i += 1;
    }
    largest as usize
}

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
            B::Q1_0 => with!(Q1_0),
            B::Q2_0 => with!(Q2_0),
            B::Q4_0 => with!(Q4_0),
            B::Q4_1 => with!(Q4_1),
            B::Q5_0 => with!(Q5_0),
            B::Q5_1 => with!(Q5_1),
            B::Q8_0 => with!(Q8_0),
            B::Q2_K => with!(Q2_K),
            B::Q3_K => with!(Q3_K),
            B::Q4_K => with!(Q4_K),
            B::Q5_K => with!(Q5_K),
            B::Q6_K => with!(Q6_K),
            B::IQ4_NL => with!(IQ4_NL),
            B::IQ4_XS => with!(IQ4_XS),
            B::TQ1_0 => with!(TQ1_0),
            B::TQ2_0 => with!(TQ2_0),
            B::MXFP4 => with!(MXFP4),
            B::NVFP4 => with!(NVFP4),
            B::F32 | B::F16 | B::BF16 => $other,
            _ => $panel,
        }
    }};
}
pub(super) use with_format;

/// Whether a format is decoded to a panel before it is multiplied.
pub(super) fn is_decoded_first(format: BlockFormat) -> bool {
    use BlockFormat as B;
    matches!(format, B::IQ1_S | B::IQ1_M | B::IQ2_XXS | B::IQ2_XS | B::IQ2_S | B::IQ3_XXS | B::IQ3_S)
}

/// Bytes of a group of `cols` columns; `None` as for [`BlockFormat::row_bytes`].
pub(super) const fn group_bytes(format: BlockFormat, cols: usize) -> Option<usize> {
    match format.row_bytes(cols) {
        Some(bytes) => bytes.checked_mul(GROUP_ROWS),
        None => None,
    }
}
