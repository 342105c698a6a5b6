//! The KV codecs: how keys, values and queries are encoded, and the register tiles of both products.
//!
//! Keys and values have a codec each. That of the keys decides how queries are encoded and scores computed, that of the
//! values what becomes of the weights and how values are summed; scores and weights between the two are f32 for all, so
//! that every pair works and none needs code of its own.
//!
//! The products are told addresses, not slices: [`super::work`] vouches that each points at a whole group.

use std::ops::Range;

use super::tile::{Groups, TileScratch};
use crate::backend::KvCodec;
use crate::cpu::simd::{LANES, Simd};

mod half;
mod integer;

pub(super) use half::F16;
pub(super) use integer::{I16, Q8G64};

/// Magnitudes below count as zero: their squares would leave the normal range of f32.
const TINY: f32 = 1.387_778_8e-17; // 2^-56
/// Magnitudes above poison: the sum of their squares might overflow.
const HUGE: f32 = 72_057_594_037_927_936.0; // 2^56

/// Evaluates the expression with `$C` as the type that implements `$codec`.
macro_rules! with_codec {
    ($codec:expr, $C:ident => $body:expr) => {
        match $codec {
            KvCodec::I16 => {
                type $C = $crate::cpu::attention::codec::I16;
                $body
            }
            KvCodec::F16 => {
                type $C = $crate::cpu::attention::codec::F16;
                $body
            }
            KvCodec::Q8G64 => {
                type $C = $crate::cpu::attention::codec::Q8G64;
                $body
            }
        }
    };
}
pub(super) use with_codec;

/// Size of a vector.
#[derive(Clone, Copy)]
pub(super) struct Measure {
    /// Largest magnitude.
    largest: f32,
    /// Sum of squares: not finite when a component is not.
    norm2: f32,
}

impl Measure {
    pub(super) const ZERO: Self = Self { largest: 0.0, norm2: 0.0 };

    /// Step 1 of the contract. `x` is a multiple of 16 long.
    #[inline(always)]
    pub(super) fn of<S: Simd>(s: S, x: &[f32]) -> Self {
        let (mut largest, mut norm2) = (s.splat(0.0), s.splat(0.0));
        for lanes in x.as_chunks::<LANES>().0 {
            let lanes = s.load(lanes);
            largest = s.max(largest, s.abs(lanes));
            norm2 = s.fma(lanes, lanes, norm2);
        }
        Self { largest: s.reduce_max(largest), norm2: s.reduce_add(norm2) }
    }

    /// Whether all components are numbers of at most `limit`.
    #[inline(always)]
    pub(super) fn within(self, limit: f32) -> bool {
        self.largest <= limit && self.norm2 <= f32::MAX
    }
}

/// Largest magnitude that a key or value may have in `codec`.
pub(super) fn limit(codec: KvCodec) -> f32 {
    with_codec!(codec, C => C::LIMIT)
}

/// Units of 32 bits that a query of `dim` dimensions takes with keys in `codec`.
pub(super) fn query_units(codec: KvCodec, dim: usize) -> usize {
    with_codec!(codec, C => dim / <C as KeyCodec>::QUERY_UNIT)
}

/// What keys and values of a codec have in common.
pub(super) trait Codec {
    /// Largest magnitude that a component may have.
    const LIMIT: f32;
}

/// How keys are kept. Groups are whole and of the dimension that is said.
pub(super) trait KeyCodec: Codec {
    /// Dimensions of a unit of a query: the 32 bits that are broadcast.
    const QUERY_UNIT: usize;

    /// Writes a query row, times `factor`, as every [`TILE_ROWS`](super::tile::TILE_ROWS)th element of `column`; returns
    /// its scale.
    fn put_query<S: Simd>(s: S, x: &[f32], factor: f32, column: &mut [u32]) -> f32;

    /// Writes a key within the limit, or poison, as token `token` of `group`.
    fn put_key<S: Simd>(s: S, x: &[f32], measure: Option<Measure>, token: usize, group: &mut [u8]);

    /// Scores of `ROWS` rows with `GROUPS` groups of keys, which are written at `scores[row * 256 + group * 16]`. Asks
    /// for the same places of the groups at `fetch` to be fetched.
    ///
    /// # Safety
    /// `keys` point at K groups of `dim` dimensions; `queries` at `dim / QUERY_UNIT` x 12 units, of which the first
    /// `ROWS` of each 12 are used; `scales` at `ROWS`, `scores` at what is written.
    unsafe fn scores<S: Simd, const ROWS: usize, const GROUPS: usize>(
        s: S,
        dim: usize,
        queries: *const u32,
        scales: *const f32,
        keys: [*const u8; GROUPS],
        fetch: [*const u8; GROUPS],
        scores: *mut f32,
    );
}

/// How values are kept. Groups are whole and of the dimension that is said.
pub(super) trait ValueCodec: Codec {
    /// What the second product multiplies with.
    type Weight: Copy;
    /// Chunks of 16 dimensions that share a row's weights.
    const WEIGHT_CHUNKS: usize;

    /// Writes a value within the limit as token `token` of `group`.
    fn put_value<S: Simd>(s: S, x: &[f32], measure: Measure, token: usize, group: &mut [u8]);

    /// Makes f32 weights, their sums and then the weights of the second product of the scores and maxima of the first
    /// `rows` rows of a tile.
    ///
    /// # Safety
    /// The values of `groups` are V groups of `dim` dimensions.
    unsafe fn encode_weights<S: Simd>(
        s: S,
        dim: usize,
        rows: usize,
        groups: Range<usize>,
        here: &Groups,
        scratch: &mut TileScratch,
    );

    /// The weights of a tile: `[set][12 rows][256 keys]`, a set for each `WEIGHT_CHUNKS` chunks.
    fn weights(scratch: &TileScratch) -> *const Self::Weight;

    /// The weighted sum of the values of `groups` for `ROWS` rows, `CHUNKS` x 16 dimensions from `chunk` x 16 on, written
    /// at `out[row * dim + dimension]`. Asks for as many bytes of the groups at `fetch` to be fetched, one whole group after
    /// the other, with its scales: over all chunks all of them.
    ///
    /// # Safety
    /// `values[groups]` point at V groups that have these dimensions; `weights` at `ROWS x 256`, `scales` at `ROWS`, `out`
    /// at what is written.
    #[allow(clippy::too_many_arguments, reason = "the operands of a product")]
    unsafe fn outputs<S: Simd, const ROWS: usize, const CHUNKS: usize>(
        s: S,
        dim: usize,
        chunk: usize,
        groups: Range<usize>,
        weights: *const Self::Weight,
        scales: *const f32,
        values: &[*const u8; LANES],
        fetch: &[*const u8; LANES],
        out: *mut f32,
    );
}

#[inline(always)]
fn put<const N: usize>(group: &mut [u8], at: usize, bytes: [u8; N]) {
    group[at..at + N].copy_from_slice(&bytes);
}

/// What [`ValueCodec::outputs`] fetches while it reads `chunks` chunks, from `chunk` on, of group `g`: a part, as large as
/// these, of one of the groups at `fetch`, and whether it is that group's last. All passes over the 16 groups together walk
/// each in order.
#[inline(always)]
fn fetch_part(
    fetch: &[*const u8; LANES],
    dim: usize,
    chunk: usize,
    chunks: usize,
    g: usize,
    chunk_bytes: usize,
) -> (*const u8, bool) {
    let parts = dim / LANES / chunks;
    let index = chunk / chunks * LANES + g;
    let part = index % parts;
    (fetch[index / parts].wrapping_add(part * chunks * chunk_bytes), part + 1 == parts)
}
