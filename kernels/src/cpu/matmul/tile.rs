//! The vector kernels, once for all instruction sets: tiles of a group's 32 rows by a few rows of activations.
//!
//! A tile keeps its sums in registers for all columns, unpacks codes in registers, and multiplies them with broadcast
//! activations. Which tile is used when was measured (`Plan`); none of it changes a bit of the result.

use super::{
    GroupJob,
    layout::{BIT_ROW_BYTES, BLOCK_COLS, Format, GROUP_ROWS, QUAD_BYTES, QUADS},
    simd::Simd,
};
use crate::blocks::BlockFormat;
use std::{
    arch::x86_64::{_MM_HINT_T0, _mm_and_si128, _mm_or_si128, _mm_prefetch, _mm_set1_epi8, _mm_srli_epi16},
    marker::PhantomData,
    ops::Range,
};

/// Decoded groups that do not fit half of a usual second-level cache are not worth having.
const LARGEST_DECODED_GROUP: usize = 512 << 10;
/// Blocks of columns that several tiles walk before the next 256 columns are fetched.
const BLOCKED_COLS: usize = 256;
/// How far one tile alone fetches ahead: 10-17 KB.
const BLOCKS_AHEAD: usize = 16;

/// Bytes of a thread's decoded group; 0 when groups are read as they are. From `rows_to_decode` rows of activations on,
/// decoding a group once to bytes pays for 5- and 6-bit codes and for 6-bit scales.
pub(super) fn decoded_group_bytes(
    rows_to_decode: usize,
    format: BlockFormat,
    m: usize,
    cols: usize,
) -> usize {
    let tables = match format {
        BlockFormat::Q5_0 => 1,
        BlockFormat::Q5_1 | BlockFormat::Q4_K | BlockFormat::Q5_K | BlockFormat::Q6_K => 2,
        _ => return 0,
    };
    let bytes = cols / BLOCK_COLS * (tables * GROUP_ROWS * 4 + QUADS * QUAD_BYTES);
    if m >= rows_to_decode && bytes <= LARGEST_DECODED_GROUP { bytes } else { 0 }
}

/// How a group is walked.
#[derive(Clone, Copy)]
struct Plan {
    /// most rows of activations in a tile
    tile_rows: usize,
    /// blocks of columns that all tiles finish before any goes on
    blocks: usize,
    /// bytes ahead that the last tile fetches; 0 fetches nothing
    ahead: usize,
}

impl Plan {
    /// Measured on a Zen 5 server core, weights from memory, GB/s of one thread of about 30 that it can read: fetching ahead
    /// lifts K-quants (Q4_K one row 19 to 29, four rows 10 to 21; Q6_K 14 to 22 and 8 to 26), whose long units defeat the
    /// hardware's own fetching. It costs the others up to four rows (Q4_0 30 to 25), lifts them from five on (Q5_0 six rows
    /// 15 to 26), and never helps Q8_0. With more tiles than one, columns are blocked so that the last tile can fetch.
    #[inline(always)]
    fn new<S: Simd, F: Format>(m: usize, blocks: usize) -> Self {
        let whole = Self { tile_rows: S::TILE_ROWS, blocks, ahead: 0 };
        let fetching = Self { ahead: BLOCKS_AHEAD * F::UNIT_BYTES / F::UNIT_BLOCKS, ..whole };
        let k_quant = F::UNIT_BLOCKS > 1;
        match m {
            ..=8 if F::BITS == 8 => Self { tile_rows: widest::<S>(), ..whole },
            _ if F::BITS == 8 => whole,
            ..=4 if !k_quant => whole,
            ..=6 => fetching,
            7..=8 if F::BITS == 6 => Self::blocked::<F>(S::TILE_ROWS.min(4)),
            7..=8 => Self { tile_rows: widest::<S>(), ..fetching },
            9..=24 if k_quant || !F::HAS_MINIMUM => Self::blocked::<F>(S::TILE_ROWS),
            _ => whole,
        }
    }

    #[inline(always)]
    fn blocked<F: Format>(tile_rows: usize) -> Self {
        let blocks = BLOCKED_COLS / BLOCK_COLS;
        Self { tile_rows, blocks, ahead: blocks * F::UNIT_BYTES / F::UNIT_BLOCKS }
    }
}

/// Rows of a tile that still wins although some of its sums live on the stack.
#[inline(always)]
const fn widest<S: Simd>() -> usize {
    if S::TILE_ROWS == 6 { 8 } else { S::TILE_ROWS }
}

/// Runs a job of quantised weights.
///
/// # Safety
/// As for [`super::run`]; inlined into a function with the features of `S`.
#[inline(always)]
pub(super) unsafe fn run_quantised<S: Simd, F: Format>(job: &GroupJob) {
    let blocks = job.cols / BLOCK_COLS;
    let plan = Plan::new::<S, F>(job.m, blocks);
    let decode = decoded_group_bytes(S::ROWS_TO_DECODE, F::FORMAT, job.m, job.cols) > 0;
    for g in 0..job.count {
        // SAFETY: as the caller promises; `g` is one of the job's groups.
        unsafe {
            let group = job.groups.add(g * job.group_bytes);
            let (output, stride) = output_of(job, g);
            if decode {
                decode_group::<S, F>(group, blocks, job.decoded);
                let source = Decoded::<F> { group: job.decoded, format: PhantomData };
                walk::<S, F, _>(source, job, Plan { blocks, ahead: 0, ..plan }, output, stride);
            } else {
                walk::<S, F, _>(Packed::<F> { group, format: PhantomData }, job, plan, output, stride);
            }
            finish_output(job, g);
        }
    }
}

/// Where group `g` writes its 32 columns: the job's own output when all of them are real, else the staging area.
#[inline(always)]
fn output_of(job: &GroupJob, g: usize) -> (*mut f32, usize) {
    let first = g * GROUP_ROWS;
    if job.outputs - first >= GROUP_ROWS {
        (job.output.wrapping_add(first), job.output_stride)
    } else {
        (job.staging, GROUP_ROWS)
    }
}

/// Copies the real columns of a partly padded group from the staging area.
///
/// # Safety
/// As for [`super::run`]; group `g` has been computed where [`output_of`] says.
#[inline(always)]
unsafe fn finish_output(job: &GroupJob, g: usize) {
    let first = g * GROUP_ROWS;
    let columns = job.outputs - first;
    if columns >= GROUP_ROWS {
        return;
    }
    for i in 0..job.m {
        // SAFETY: `columns` outputs of row i from `first` on, and the staging area's row i.
        unsafe {
            let to = job.output.add(i * job.output_stride + first);
            std::ptr::copy_nonoverlapping(job.staging.add(i * GROUP_ROWS), to, columns);
        }
    }
}

/// All rows of activations by one group, in balanced tiles.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn walk<S: Simd, F: Format, G: Source<F>>(
    source: G,
    job: &GroupJob,
    plan: Plan,
    output: *mut f32,
    stride: usize,
) {
    let blocks = job.cols / BLOCK_COLS;
    let tiles = job.m.div_ceil(plan.tile_rows);
    let (rows, longer) = (job.m / tiles, job.m % tiles);
    let mut from = 0;
    while from < blocks {
        let part = from..blocks.min(from + plan.blocks);
        let mut row = 0;
        for t in 0..tiles {
            let count = rows + usize::from(t < longer);
            let tile = Tile {
                row,
                blocks: part.clone(),
                ahead: if t + 1 == tiles { plan.ahead } else { 0 },
                output: output.wrapping_add(row * stride),
                stride,
            };
            // SAFETY: as the caller promises.
            unsafe { tile_of::<S, F, G>(count, source, job, &tile) };
            row += count;
        }
        from = part.end;
    }
}

/// One tile's place.
struct Tile {
    /// first row of activations
    row: usize,
    blocks: Range<usize>,
    ahead: usize,
    /// where the tile's first row has the group's first column
    output: *mut f32,
    stride: usize,
}

/// Picks the compiled tile for `count` rows.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn tile_of<S: Simd, F: Format, G: Source<F>>(count: usize, source: G, job: &GroupJob, tile: &Tile) {
    macro_rules! pick {
        ($($n:literal)*) => {
            match count {
                $($n => for first in (0..GROUP_ROWS / S::LANES).step_by(2) {
                    multiply_tile::<S, F, G, $n, 2>(source, job, tile, first);
                },)*
                _ => unreachable!("a tile of {count} rows"),
            }
        };
    }
    // SAFETY: as the caller promises; every vector of the group is in one of the tiles.
    unsafe {
        match (S::TILE_ROWS, count) {
            // A single row leaves 16 registers enough for all 32 lanes: one linear walk.
            (3, 1) => multiply_tile::<S, F, G, 1, 4>(source, job, tile, 0),
            (3, _) => pick!(2 3),
            _ => pick!(1 2 3 4 5 6 7 8),
        }
    }
}

/// `M` rows of activations by `N` vectors of rows from `first` on: the order contract of [`super`].
///
/// # Safety
/// As for [`super::run`].
#[allow(clippy::needless_range_loop, reason = "the loops are over registers of several arrays at once")]
#[inline(always)]
unsafe fn multiply_tile<S: Simd, F: Format, G: Source<F>, const M: usize, const N: usize>(
    source: G,
    job: &GroupJob,
    tile: &Tile,
    first: usize,
) {
    let blocks = job.cols / BLOCK_COLS;
    let codes = job.rows.codes.wrapping_add(tile.row * job.cols);
    let scale = job.rows.scale.wrapping_add(tile.row * blocks);
    let scaled_sum = job.rows.scaled_sum.wrapping_add(tile.row * blocks);
    let starts = job.rows.starts.wrapping_add(tile.row * blocks * F::SPANS);
    let corrected = F::OFFSET != 0 && !(F::BITS == 8 && S::SIGNED_BYTES);
    let settle_every = S::quads_between_settles(F::BITS);
    // SAFETY: as the caller promises: rows tile.row..tile.row + M of the activations, blocks and vectors of the group, and
    // 32 outputs of each of the M rows.
    unsafe {
        let output = |m: usize, n: usize| tile.output.add(m * tile.stride + (first + n) * S::LANES);
        let mut acc = [[S::floats(0.0); N]; M];
        if tile.blocks.start != 0 {
            for m in 0..M {
                for n in 0..N {
                    acc[m][n] = S::load_floats(output(m, n));
                }
            }
        }
        for b in tile.blocks.clone() {
            if tile.ahead != 0 {
                source.prefetch(b, tile.ahead);
            }
            let mut partial = [[S::no_partial(); N]; M];
            let mut ints = [[S::ints(0); N]; M];
            for span in 0..F::SPANS {
                for m in 0..M {
                    let start = if corrected { *starts.add((m * blocks + b) * F::SPANS + span) } else { 0 };
                    ints[m] = [S::ints(start); N];
                }
                for pair in span * QUADS / 2 / F::SPANS..(span + 1) * QUADS / 2 / F::SPANS {
                    let mut weights = [[S::load_codes(source.codes(b)); 2]; N];
                    for n in 0..N {
                        weights[n] = source.pair::<S>(b, pair, first + n);
                    }
                    for side in 0..2 {
                        let quad = 2 * pair + side;
                        for m in 0..M {
                            let x = S::four_activations(codes.add(m * job.cols + b * BLOCK_COLS + 4 * quad));
                            for n in 0..N {
                                S::dot(&mut ints[m][n], &mut partial[m][n], F::BITS, weights[n][side], x);
                            }
                        }
                        if (quad + 1) % settle_every == 0 {
                            for m in 0..M {
                                for n in 0..N {
                                    S::settle(&mut ints[m][n], &mut partial[m][n]);
                                }
                            }
                        }
                    }
                }
                for n in 0..N {
                    let (weight_scale, minimum) = source.scales::<S>(b, span, first + n);
                    for m in 0..M {
                        let x = S::floats(*scale.add(m * blocks + b));
                        acc[m][n] = S::fma(S::mul(S::to_floats(ints[m][n]), x), weight_scale, acc[m][n]);
                        if F::HAS_MINIMUM {
                            let sum = S::floats(*scaled_sum.add(m * blocks + b));
                            acc[m][n] = S::fma(minimum, sum, acc[m][n]);
                        }
                    }
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                S::store_floats(output(m, n), acc[m][n]);
            }
        }
    }
}

/// A group that tiles can read.
///
/// # Safety
/// All methods: block, span, pair and vector lie inside the group.
trait Source<F: Format>: Copy {
    /// A block's codes.
    unsafe fn codes(self, block: usize) -> *const u8;
    /// Quads `2 * pair` and `2 * pair + 1` of a block, for the lanes of vector `vector`.
    unsafe fn pair<S: Simd>(self, block: usize, pair: usize, vector: usize) -> [S::Codes; 2];
    /// Scale and minimum of a span of a block.
    unsafe fn scales<S: Simd>(self, block: usize, span: usize, vector: usize) -> (S::Floats, S::Floats);
    /// Fetches what lies `ahead` bytes after a block. May point anywhere.
    unsafe fn prefetch(self, block: usize, ahead: usize);
}

/// A group as it lies in memory.
#[derive(Clone, Copy)]
struct Packed<F> {
    group: *const u8,
    format: PhantomData<F>,
}

impl<F: Format> Source<F> for Packed<F> {
    #[inline(always)]
    unsafe fn codes(self, block: usize) -> *const u8 {
        self.group.wrapping_add(F::codes_at(block))
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(self, block: usize, pair: usize, vector: usize) -> [S::Codes; 2] {
        // SAFETY: inside the block's codes; see `layout` for the places.
        unsafe {
            let codes = self.codes(block);
            let load = |row: usize| S::load_codes(codes.add(row * QUAD_BYTES + vector * S::LANES * 4));
            match F::BITS {
                4 => {
                    let both = load(pair);
                    [S::low_nibbles(both), S::high_nibbles(both)]
                }
                5 => {
                    let both = load(1 + pair);
                    let bits = |quad: usize| codes.add(quad * BIT_ROW_BYTES + vector * S::LANES / 2);
                    [
                        S::add_fifth_bits(S::low_nibbles(both), bits(2 * pair)),
                        S::add_fifth_bits(S::high_nibbles(both), bits(2 * pair + 1)),
                    ]
                }
                6 => {
                    let half = pair / 2 * 3;
                    let both = load(half + 1 + pair % 2);
                    let high = load(half);
                    [
                        S::add_high_bits(S::low_nibbles(both), high, 2 * (pair % 2)),
                        S::add_high_bits(S::high_nibbles(both), high, 2 * (pair % 2) + 1),
                    ]
                }
                _ => [load(2 * pair), load(2 * pair + 1)],
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, span: usize, vector: usize) -> (S::Floats, S::Floats) {
        let sub = block % F::UNIT_BLOCKS * F::SPANS + span;
        // SAFETY: inside the header of the block's unit; see `layout` for the places.
        unsafe {
            let header = self.group.add(F::header_at(block));
            let halves =
                |table: usize| S::load_halves(header.add((table * GROUP_ROWS + vector * S::LANES) * 2));
            let bytes = |i: usize| S::load_lane_bytes(header.add(i * GROUP_ROWS + vector * S::LANES));
            match F::FORMAT {
                BlockFormat::Q4_1 | BlockFormat::Q5_1 => (halves(0), halves(1)),
                BlockFormat::Q4_K | BlockFormat::Q5_K => {
                    let pair = |i: usize| bytes(4 + i);
                    let (scale, minimum) = if sub < 4 {
                        let low_six = _mm_set1_epi8(63);
                        (_mm_and_si128(pair(sub), low_six), _mm_and_si128(pair(sub + 4), low_six))
                    } else {
                        let (low, high) = (_mm_set1_epi8(15), _mm_set1_epi8(0x30));
                        let both = pair(sub + 4);
                        let high = |i: usize| _mm_and_si128(_mm_srli_epi16(pair(i), 2), high);
                        (
                            _mm_or_si128(_mm_and_si128(both, low), high(sub - 4)),
                            _mm_or_si128(_mm_and_si128(_mm_srli_epi16(both, 4), low), high(sub)),
                        )
                    };
                    let minimum = S::mul(halves(1), S::unsigned_bytes(minimum));
                    (S::mul(halves(0), S::unsigned_bytes(scale)), S::mul(minimum, S::floats(-1.0)))
                }
                BlockFormat::Q6_K => (S::mul(halves(0), S::signed_bytes(bytes(2 + sub))), S::floats(0.0)),
                _ => (halves(0), S::floats(0.0)),
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(self, block: usize, ahead: usize) {
        // The first block of a unit fetches the header too.
        let from =
            if block.is_multiple_of(F::UNIT_BLOCKS) { F::header_at(block) } else { F::codes_at(block) };
        for line in (from..F::codes_at(block) + F::CODE_BYTES).step_by(64) {
            let at = self.group.wrapping_add(line + ahead);
            // SAFETY: a hint that cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
    }
}

/// A group whose codes have a byte each and whose scales are f32: for each block the scales (32 f32, then 32 minima or second
/// scales where the format has them), then its quads.
#[derive(Clone, Copy)]
struct Decoded<F> {
    group: *const u8,
    format: PhantomData<F>,
}

impl<F: Format> Decoded<F> {
    const TABLES: usize = if F::HAS_MINIMUM { 2 } else { F::SPANS };
    const SCALE_BYTES: usize = Self::TABLES * GROUP_ROWS * 4;
    const BLOCK_BYTES: usize = Self::SCALE_BYTES + QUADS * QUAD_BYTES;
}

impl<F: Format> Source<F> for Decoded<F> {
    #[inline(always)]
    unsafe fn codes(self, block: usize) -> *const u8 {
        self.group.wrapping_add(block * Self::BLOCK_BYTES + Self::SCALE_BYTES)
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
        // SAFETY: inside the block's scales.
        unsafe {
            let table = self.group.add(block * Self::BLOCK_BYTES).cast::<f32>().add(vector * S::LANES);
            let second = || S::load_floats(table.add(GROUP_ROWS));
            match (F::HAS_MINIMUM, span) {
                (true, _) => (S::load_floats(table), second()),
                (false, 0) => (S::load_floats(table), S::floats(0.0)),
                (false, _) => (second(), S::floats(0.0)),
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(self, _block: usize, _ahead: usize) {}
}

/// Decodes a packed group for [`Decoded`].
///
/// # Safety
/// `decoded` has room for `decoded_group_bytes`.
#[inline(always)]
unsafe fn decode_group<S: Simd, F: Format>(group: *const u8, blocks: usize, decoded: *mut u8) {
    let source = Packed::<F> { group, format: PhantomData };
    for b in 0..blocks {
        for vector in 0..GROUP_ROWS / S::LANES {
            // SAFETY: blocks and vectors of the group; the block's place in `decoded`.
            unsafe {
                let block = decoded.add(b * Decoded::<F>::BLOCK_BYTES);
                let table = block.cast::<f32>().add(vector * S::LANES);
                let (scale, minimum) = source.scales::<S>(b, 0, vector);
                S::store_floats(table, scale);
                if F::HAS_MINIMUM {
                    S::store_floats(table.add(GROUP_ROWS), minimum);
                } else if F::SPANS == 2 {
                    S::store_floats(table.add(GROUP_ROWS), source.scales::<S>(b, 1, vector).0);
                }
                for pair in 0..QUADS / 2 {
                    let quads = block.add(Decoded::<F>::SCALE_BYTES + 2 * pair * QUAD_BYTES);
                    let at = quads.add(vector * S::LANES * 4);
                    let [even, odd] = source.pair::<S>(b, pair, vector);
                    S::store_codes(at, even);
                    S::store_codes(at.add(QUAD_BYTES), odd);
                }
            }
        }
    }
}

/// Runs a job of float weights.
///
/// # Safety
/// As for [`super::run`]; inlined into a function with the features of `S`.
#[inline(always)]
pub(super) unsafe fn run_floats<S: Simd>(job: &GroupJob) {
    // SAFETY: as the caller promises.
    unsafe {
        match job.format {
            BlockFormat::F32 => walk_floats::<S, F32>(job),
            BlockFormat::F16 => walk_floats::<S, F16>(job),
            _ => walk_floats::<S, BF16>(job),
        }
    }
}

/// All rows of activations by each group of float weights.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn walk_floats<S: Simd, W: Float>(job: &GroupJob) {
    for g in 0..job.count {
        let (output, stride) = output_of(job, g);
        let mut row = 0;
        while row < job.m {
            let count = (job.m - row).min(S::TILE_ROWS);
            macro_rules! pick {
                ($($n:literal)*) => {
                    match count {
                        $($n => for first in (0..GROUP_ROWS / S::LANES).step_by(2) {
                            let weights = job.groups.add(g * job.group_bytes + first * S::LANES * W::BYTES);
                            let input = job.input.add(row * job.cols);
                            let output = output.add(row * stride + first * S::LANES);
                            float_tile::<S, W, $n>(job.cols, weights, input, output, stride);
                        },)*
                        _ => unreachable!("a tile of {count} rows"),
                    }
                };
            }
            // SAFETY: as the caller promises: `count` rows from `row` on, and all vectors of group `g`.
            unsafe { if S::TILE_ROWS == 3 { pick!(1 2 3) } else { pick!(1 2 3 4 5 6) } }
            row += count;
        }
        // SAFETY: as the caller promises; the group is done.
        unsafe { finish_output(job, g) };
    }
}

/// A float format as a type.
trait Float {
    /// Bytes of a weight.
    const BYTES: usize;
    /// Loads a vector of weights.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats;
}

struct F32;
struct F16;
struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats {
        // SAFETY: as the caller promises.
        unsafe { S::load_floats(from.cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats {
        // SAFETY: as the caller promises.
        unsafe { S::load_halves(from) }
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Floats {
        // SAFETY: as the caller promises.
        unsafe { S::load_bfloats(from) }
    }
}

/// `M` rows of activations by two vectors of rows: the order contract of [`super`].
///
/// # Safety
/// As for [`super::run`]; `weights` is the first vector of column 0, `output` the first row's place for it.
#[allow(clippy::needless_range_loop, reason = "the loops are over registers of several arrays at once")]
#[inline(always)]
unsafe fn float_tile<S: Simd, W: Float, const M: usize>(
    cols: usize,
    weights: *const u8,
    input: *const f32,
    output: *mut f32,
    stride: usize,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut acc = [[S::floats(0.0); 2]; M];
        for k in 0..cols {
            let column = weights.add(k * GROUP_ROWS * W::BYTES);
            let pair = [W::load::<S>(column), W::load::<S>(column.add(S::LANES * W::BYTES))];
            for m in 0..M {
                let x = S::floats(*input.add(m * cols + k));
                for n in 0..2 {
                    acc[m][n] = S::fma(pair[n], x, acc[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..2 {
                S::store_floats(output.add(m * stride + n * S::LANES), acc[m][n]);
            }
        }
    }
}
