//! What the tiles of [`super::tile`] read: a group as it lies in memory, or one decoded to bytes.

use super::{
    codes::Folding,
    layout::{BLOCK_COLS, Codes, Format, GROUP_ROWS, QUAD_BYTES, QUADS, is_decoded_first},
    panel,
    scales::Header,
    simd::Simd,
};
use crate::blocks::BlockFormat;
use std::{
    arch::x86_64::{_MM_HINT_T0, _mm_prefetch},
    marker::PhantomData,
    ops::Range,
};

/// Decoded groups that do not fit half of a usual second-level cache are not worth having.
const LARGEST_DECODED_GROUP: usize = 512 << 10;
/// A group that tiles can read.
///
/// # Safety
/// All methods: block, span, pair and vector lie inside the group.
pub(super) trait Source: Copy {
    /// Whether each block has its own header, so that it is one run of bytes.
    const IS_LINEAR: bool;
    /// A block's codes.
    unsafe fn codes(self, block: usize) -> *const u8;
    /// Quads `2 * pair` and `2 * pair + 1` of a block, for the lanes of vector `vector`.
    unsafe fn pair<S: Simd>(self, block: usize, pair: usize, vector: usize) -> [S::Codes; 2];
    /// Scale and minimum of a span of a block.
    unsafe fn scales<S: Simd>(self, block: usize, span: usize, vector: usize) -> (S::Floats, S::Floats);
    /// Fetches what lies `ahead` bytes after some pairs of a block's quads, which may be anywhere; nothing when it is 0.
    unsafe fn prefetch(self, block: usize, pairs: Range<usize>, ahead: usize);
}

/// A group as it lies in memory.
#[derive(Clone, Copy)]
pub(super) struct Packed<F> {
    pub(super) group: *const u8,
    pub(super) format: PhantomData<F>,
}

impl<F: Format> Source for Packed<F> {
    const IS_LINEAR: bool = F::UNIT_BLOCKS == 1;

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> *const u8 {
        self.group.wrapping_add(F::codes_at(block).0)
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(self, block: usize, pair: usize, vector: usize) -> [S::Codes; 2] {
        let (at, first) = F::codes_at(block);
        // SAFETY: the block's folded codes.
        unsafe {
            let [a, b] = F::Folding::pair::<S>(self.group.add(at), first + 2 * pair, vector);
            match F::TABLE {
                Some(table) => [S::look_up(table, a), S::look_up(table, b)],
                None => [a, b],
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, span: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: the header of the block's unit.
        unsafe { F::Header::load::<S>(self.group.add(F::header_at(block)), F::part(block, span), vector) }
    }

    #[inline(always)]
    unsafe fn prefetch(self, block: usize, pairs: Range<usize>, ahead: usize) {
        if ahead == 0 {
            return;
        }
        let bytes = F::Folding::BYTES / F::Folding::BLOCKS;
        let (folded, quad) = F::codes_at(block);
        let codes = folded + quad / QUADS * bytes;
        let at = |pair: usize| codes + (bytes * pair / (QUADS / 2)).next_multiple_of(64);
        // The first block of a unit fetches the header too.
        let has_header = pairs.start == 0 && block.is_multiple_of(F::UNIT_BLOCKS);
        let from = if has_header { F::header_at(block) } else { at(pairs.start) };
        for line in (from..at(pairs.end)).step_by(64) {
            let at = self.group.wrapping_add(line + ahead);
            // SAFETY: a hint that cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
    }
}

/// Blocks whose codes have a byte each and whose scales are f32: for each block the tables of [`Codes::TABLES`], span by span,
/// then its quads.
#[derive(Clone, Copy)]
pub(super) struct Decoded<C> {
    /// where block 0 is, or would be
    blocks: *const u8,
    codes: PhantomData<C>,
}

impl<C: Codes> Decoded<C> {
    const SCALE_BYTES: usize = C::TABLES * GROUP_ROWS * 4;
    /// Blocks of which the one at `at` is the first.
    #[inline(always)]
    pub(super) fn starting_with(first: usize, at: *const u8) -> Self {
        Self { blocks: at.wrapping_sub(first * C::DECODED_BYTES), codes: PhantomData }
    }

    /// Where the table of a span's scales is, or of its minima.
    #[inline(always)]
    fn table(self, block: usize, span: usize, minima: bool) -> *const f32 {
        let table = span * (C::TABLES / C::SPANS) + usize::from(minima);
        self.blocks.wrapping_add(block * C::DECODED_BYTES + table * GROUP_ROWS * 4).cast()
    }
}

impl<C: Codes> Source for Decoded<C> {
    const IS_LINEAR: bool = false;

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> *const u8 {
        self.blocks.wrapping_add(block * C::DECODED_BYTES + Self::SCALE_BYTES)
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(self, block: usize, pair: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: inside the block's codes.
        unsafe {
            let at = self.codes(block).add(2 * pair * QUAD_BYTES + vector * S::LANES * 4);
            [S::load_codes(at), S::load_codes(at.add(QUAD_BYTES))]
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, span: usize, vector: usize) -> (S::Floats, S::Floats) {
        // SAFETY: inside the block's tables.
        unsafe {
            let load = |minima| S::load_floats(self.table(block, span, minima).add(vector * S::LANES));
            (load(false), if C::HAS_MINIMUM { load(true) } else { S::floats(0.0) })
        }
    }

    #[inline(always)]
    unsafe fn prefetch(self, _block: usize, _pairs: Range<usize>, _ahead: usize) {}
}

/// Decodes a packed group for [`Decoded`].
///
/// # Safety
/// `decoded` has room for `decoded_group_bytes`.
#[inline(always)]
pub(super) unsafe fn decode_group<S: Simd, F: Format>(group: *const u8, blocks: usize, decoded: *mut u8) {
    let source = Packed::<F> { group, format: PhantomData };
    let out = Decoded::<F>::starting_with(0, decoded);
    for b in 0..blocks {
        for vector in 0..GROUP_ROWS / S::LANES {
            // SAFETY: blocks and vectors of the group; the block's place in `decoded`.
            unsafe {
                for span in 0..F::SPANS {
                    let (scale, minimum) = source.scales::<S>(b, span, vector);
                    let store = |minima, value| {
                        S::store_floats(out.table(b, span, minima).cast_mut().add(vector * S::LANES), value);
                    };
                    store(false, scale);
                    if F::HAS_MINIMUM {
                        store(true, minimum);
                    }
                }
                for pair in 0..QUADS / 2 {
                    let at = out.codes(b).cast_mut().add(2 * pair * QUAD_BYTES + vector * S::LANES * 4);
                    let [even, odd] = source.pair::<S>(b, pair, vector);
                    S::store_codes(at, even);
                    S::store_codes(at.add(QUAD_BYTES), odd);
                }
            }
        }
    }
}

/// Whether many rows of activations pay for decoding a group of a format once to bytes and f32 scales.
pub(super) const fn pays_to_decode(format: BlockFormat) -> bool {
    use BlockFormat as B;
    matches!(
        format,
        B::Q5_0 | B::Q5_1 | B::Q2_K | B::Q3_K | B::Q4_K | B::Q5_K | B::Q6_K | B::IQ4_XS | B::TQ1_0
    )
}

/// Bytes of a thread's decoded group or panel; 0 when groups are read as they are.
pub(super) fn decoded_group_bytes(
    rows_to_decode: usize,
    format: BlockFormat,
    m: usize,
    cols: usize,
) -> usize {
    if is_decoded_first(format) {
        return panel::panel_bytes(format);
    }
    if !pays_to_decode(format) || m < rows_to_decode {
        return 0;
    }
    let tables = BLOCK_COLS / format.scale_span() * (1 + usize::from(format.has_minimum()));
    let bytes = cols / BLOCK_COLS * (tables * GROUP_ROWS * 4 + QUADS * QUAD_BYTES);
    if bytes <= LARGEST_DECODED_GROUP { bytes } else { 0 }
}
