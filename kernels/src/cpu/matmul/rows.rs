//! Activations as the kernels read them: signed bytes with one scale per 32, or bf16, made once for all weights of a call.
//!
//! A block of 32 values `x` becomes `q = round(x * (127 / max |x|))`, half to even, and `scale = max |x| / 127`: symmetric, so
//! that no code is -128 and every product with an unsigned weight code fits the 16-bit sums of AVX2. The order in
//! which the greatest magnitude is found is free; whether all values are finite shows in sums, where NaN and infinity stay. A
//! block with a non-finite value gets the scale NaN and codes 0: its outputs are NaN. A block below `SMALLEST_MAGNITUDE` is 0.
//!
//! For BF16 weights a value becomes the nearest bf16, half to even; below `SMALLEST_BFLOAT` it becomes 0.

use super::{
    input::{Copied, Input, Sink},
    layout::{BLOCK_COLS, GROUP_ROWS},
    line::Line,
    reads_pairs,
};
use crate::{
    blocks::BlockFormat,
    cpu::{
        buffer::{AlignedBuffer, Plain},
        isa::Isa,
        pool::Pool,
        share::Shared,
        simd::{self, Kernel, LANES, Simd},
    },
};
use std::ops::Range;

/// Below it 127 / magnitude could overflow; such activations are noise beside any weight.
const SMALLEST_MAGNITUDE: f32 = 1e-36;
/// A bf16 below it is taken for 0, weight or activation, so that no sum of products is subnormal ([`super`]).
pub(super) const SMALLEST_BFLOAT: f32 = f32::from_bits((127 - 55) << 23);
/// Blocks in a piece of the parallel quantisation: about 1 us of work.
const BLOCKS_IN_PIECE: usize = 128;
/// 1.5 * 2^23: adding it rounds a small float to an integer, half to even, in the low bits of the pattern.
const ROUNDER: f32 = 12_582_912.0;

/// Code offsets that formats subtract, and into how many sums a block's activations fall for them.
const STARTS: [(i32, usize); 9] =
    [(1, 1), (8, 1), (12, 1), (16, 1), (128, 1), (4, 2), (12, 2), (32, 2), (128, 2)];

/// Which of `STARTS` a format needs.
fn start_kind(format: BlockFormat) -> Option<usize> {
    STARTS.iter().position(|&start| start == (format.code_offset(), spans(format)))
}

/// Scales of a block of 32 columns.
fn spans(format: BlockFormat) -> usize {
    BLOCK_COLS / format.scale_span()
}

/// Working memory of [`super::multiply`]: grows to the largest call and is then reused. One per caller.
#[derive(Default)]
pub struct RowsScratch {
    /// The terms of a call; holds none between calls that anybody reads.
    pub(super) line: Line,
    /// Rows that were made, for float formats.
    pub(super) made: Grown<f32>,
    pub(super) kernels: KernelScratch,
}

impl RowsScratch {
    /// Empty; the first call grows it.
    pub fn new() -> Self {
        Self::default()
    }
}

/// What the threads of a call share: the quantised rows, and room for each.
#[derive(Default)]
pub(super) struct KernelScratch {
    codes: Grown<i8>,
    scale: Grown<f32>,
    scaled_sum: Grown<f32>,
    scaled_half_sums: Grown<f32>,
    starts: [Grown<i32>; STARTS.len()],
    /// Activations rounded to bf16: patterns of f32, or pairs.
    bfloats: Grown<u32>,
    /// A decoded group for each thread.
    decoded: Grown<u8>,
    /// Outputs of a partial group for each thread.
    staging: Grown<f32>,
    /// Products that are to be added to outputs, for each thread.
    sums: Grown<f32>,
}

impl KernelScratch {
    /// Quantises `rows` rows of `cols` values, `cols` a multiple of 32, for the formats of `formats`.
    pub(super) fn quantise(
        &mut self,
        pool: &Pool,
        isa: Isa,
        input: Input<'_>,
        (rows, cols): (usize, usize),
        formats: impl Iterator<Item = BlockFormat>,
    ) {
        let mut wanted = [false; STARTS.len()];
        let mut halves = 0;
        for format in formats {
            start_kind(format).into_iter().for_each(|kind| wanted[kind] = true);
            if format.has_minimum() && spans(format) == 2 {
                halves = 2;
            }
        }
        let blocks = rows * (cols / BLOCK_COLS);
        let codes = Shared::new(self.codes.at_least(blocks * BLOCK_COLS));
        let scale = Shared::new(self.scale.at_least(blocks));
        let scaled_sum = Shared::new(self.scaled_sum.at_least(blocks));
        let scaled_half_sums = Shared::new(self.scaled_half_sums.at_least(halves * blocks));
        let mut starts = STARTS.map(|_| Shared::new(&mut []));
        for (kind, (buffer, (_, sums))) in self.starts.iter_mut().zip(STARTS).enumerate() {
            if wanted[kind] {
                starts[kind] = Shared::new(buffer.at_least(blocks * sums));
            }
        }
        let unit = input.unit(cols) / BLOCK_COLS;
        let least = BLOCKS_IN_PIECE / input.cost();
        let grain = least.max(blocks.div_ceil(64 * pool.threads())).div_ceil(unit);
        pool.split(blocks / unit, grain, &|units: Range<usize>, _| {
            let own = units.start * unit..units.end * unit;
            let by = |n: usize| own.start * n..own.end * n;
            // SAFETY: pieces do not overlap, and each block has its own elements in every buffer.
            let out = unsafe {
                Quantised {
                    codes: codes.part(by(BLOCK_COLS)),
                    scale: scale.part(by(1)),
                    scaled_sum: scaled_sum.part(by(1)),
                    scaled_half_sums: scaled_half_sums.part(by(halves)),
                    starts: std::array::from_fn(|kind| match wanted[kind] {
                        true => starts[kind].part(by(STARTS[kind].1)),
                        false => &mut [],
                    }),
                }
            };
            simd::dispatch(isa, Each { input, cols, own: by(BLOCK_COLS), sink: out });
        });
    }

    /// Rounds `rows` rows of `cols` values for BF16 weights.
    pub(super) fn round(&mut self, pool: &Pool, isa: Isa, input: Input<'_>, (rows, cols): (usize, usize)) {
        let in_pairs = reads_pairs(isa, cols);
        let together = if in_pairs { 2 } else { 1 };
        let words = Shared::new(self.bfloats.at_least(rows * cols / together));
        each(pool, isa, input, (rows, cols), |own| {
            // SAFETY: the pool hands out each unit once; one of pairs is whole pairs.
            let words = unsafe { words.part(own.start / together..own.end / together) };
            Rounded { words, in_pairs }
        });
    }

    /// The quantised rows, and each thread's staging of `m * 32` outputs, `decoded_bytes` for a decoded group and `sums`
    /// outputs.
    pub(super) fn for_kernels(
        &mut self,
        threads: usize,
        m: usize,
        decoded_bytes: usize,
        sums: usize,
    ) -> (RowsOfFormats, Buffers<'_>) {
        let rows = RowsOfFormats {
            codes: self.codes.as_ptr(),
            scale: self.scale.as_ptr(),
            scaled_sum: self.scaled_sum.as_ptr(),
            scaled_half_sums: self.scaled_half_sums.as_ptr(),
            starts: std::array::from_fn(|kind| self.starts[kind].as_ptr()),
            bfloats: self.bfloats.as_ptr(),
        };
        let buffers = Buffers {
            staging: Shared::new(self.staging.at_least(threads * m * GROUP_ROWS)),
            decoded: Shared::new(self.decoded.at_least(threads * decoded_bytes)),
            sums: Shared::new(self.sums.at_least(threads * sums)),
        };
        (rows, buffers)
    }
}

/// What the threads of a call write besides their outputs: each its own part.
pub(super) struct Buffers<'a> {
    pub(super) staging: Shared<'a, f32>,
    pub(super) decoded: Shared<'a, u8>,
    pub(super) sums: Shared<'a, f32>,
}

/// The quantised rows of a call, for any of its formats. Valid until the scratch grows or is quantised into again.
#[derive(Clone, Copy)]
pub(super) struct RowsOfFormats {
    codes: *const i8,
    scale: *const f32,
    scaled_sum: *const f32,
    scaled_half_sums: *const f32,
    starts: [*const i32; STARTS.len()],
    bfloats: *const u32,
}

// SAFETY: only read, while the scratch that owns the memory is borrowed by `multiply`.
unsafe impl Sync for RowsOfFormats {}

impl RowsOfFormats {
    /// The rows from `row` on (of `cols` values), as a kernel of `format` reads them.
    pub(super) fn for_format(&self, format: BlockFormat, row: usize, cols: usize) -> Rows {
        let starts = start_kind(format).map_or(std::ptr::null(), |kind| self.starts[kind]);
        let scaled_sum = if spans(format) == 2 { self.scaled_half_sums } else { self.scaled_sum };
        Rows { codes: self.codes, scale: self.scale, scaled_sum, starts }.starting_at(
            row,
            cols,
            spans(format),
        )
    }

    /// The rounded rows from `row` on (of `cols` values), as a kernel for BF16 weights reads them.
    pub(super) fn bfloats(&self, isa: Isa, row: usize, cols: usize) -> *const f32 {
        let words = if reads_pairs(isa, cols) { cols / 2 } else { cols };
        self.bfloats.wrapping_add(row * words).cast()
    }
}

/// Quantised activations of `m` rows.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// `[m][cols]`
    pub(super) codes: *const i8,
    /// `[m][cols / 32]`
    pub(super) scale: *const f32,
    /// `[m][cols / 32]`, with two spans `[m][cols / 16]`: scale times the sum of the codes, for formats with minima
    pub(super) scaled_sum: *const f32,
    /// `[m][cols / 32]`, with two spans `[m][cols / 16]`: minus the weights' offset times the sum of the codes; null without offset
    pub(super) starts: *const i32,
}

impl Rows {
    /// The rows from `row` on, for formats with `spans` scales a block.
    #[inline(always)]
    pub(super) fn starting_at(self, row: usize, cols: usize, spans: usize) -> Self {
        let blocks = row * (cols / BLOCK_COLS);
        Self {
            codes: self.codes.wrapping_add(row * cols),
            scale: self.scale.wrapping_add(blocks),
            scaled_sum: self.scaled_sum.wrapping_add(blocks * spans),
            starts: self.starts.wrapping_add(blocks * spans),
        }
    }
}

/// Parts of the scratch for a run of blocks.
pub(super) struct Quantised<'a> {
    codes: &'a mut [i8],
    scale: &'a mut [f32],
    scaled_sum: &'a mut [f32],
    /// empty where not wanted
    scaled_half_sums: &'a mut [f32],
    /// empty where not wanted
    starts: [&'a mut [i32]; STARTS.len()],
}

/// Makes rows in a buffer of their own: for formats whose kernels read f32.
pub(super) fn make<'b>(
    pool: &Pool,
    isa: Isa,
    input: Input<'_>,
    (rows, cols): (usize, usize),
    buffer: &'b mut Grown<f32>,
) -> &'b [f32] {
    let made = Shared::new(buffer.at_least(rows * cols));
    // SAFETY: the pool hands out each unit once.
    each(pool, isa, input, (rows, cols), |own| Copied(unsafe { made.part(own) }));
    buffer.at_least(rows * cols)
}

/// Gives all rows to sinks, each for a run of whole [units](Input::unit).
fn each<T: Sink>(
    pool: &Pool,
    isa: Isa,
    input: Input<'_>,
    (rows, cols): (usize, usize),
    sink: impl Fn(Range<usize>) -> T + Sync,
) {
    let unit = input.unit(cols);
    let grain = (BLOCKS_IN_PIECE * BLOCK_COLS / input.cost()).div_ceil(unit);
    pool.split(rows * cols / unit, grain, &|units, _| {
        let own = units.start * unit..units.end * unit;
        simd::dispatch(isa, Each { input, cols, own: own.clone(), sink: sink(own) });
    });
}

/// A part of the rows on its way to `sink`.
struct Each<'a, T> {
    input: Input<'a>,
    cols: usize,
    own: Range<usize>,
    sink: T,
}

impl<T: Sink> Kernel for Each<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.input.each(s, self.cols, self.own, &mut self.sink);
    }
}

impl Sink for Quantised<'_> {
    /// Whole blocks.
    #[inline(always)]
    fn take<S: Simd>(&mut self, s: S, values: &[f32]) {
        for x in values.as_chunks::<BLOCK_COLS>().0 {
            self.block(s, x);
        }
    }
}

impl Quantised<'_> {
    /// Rounds the next block.
    #[inline(always)]
    fn block<S: Simd>(&mut self, s: S, x: &[f32; BLOCK_COLS]) {
        // No closures over vectors: what the compiler does not inline has no instructions of its own and calls each of them.
        let [low, high] = halves_of(x);
        let (low, high) = (s.load(low), s.load(high));
        let magnitude = s.reduce_max(s.max(s.abs(low), s.abs(high)));
        let is_usable = magnitude >= SMALLEST_MAGNITUDE;
        let (factor, rounder) = (s.splat(127.0 / magnitude), s.splat(ROUNDER));
        let (low, high) = (s.add(s.mul(low, factor), rounder), s.add(s.mul(high, factor), rounder));
        // Sums of whole numbers below 2^24, exact in any order. An infinity times the factor 0 and a NaN, which `max` may
        // lose, give NaN.
        let sums = [s.reduce_add(s.sub(low, rounder)), s.reduce_add(s.sub(high, rounder))];
        if !is_usable || sums[0].is_nan() || sums[1].is_nan() {
            return self.unusable_block(x);
        }
        let codes = next(&mut self.codes, BLOCK_COLS).as_chunks_mut::<LANES>().0;
        // The low byte of the rounder is 0.
        s.store_low_bytes(s.bits(low), &mut codes[0]);
        s.store_low_bytes(s.bits(high), &mut codes[1]);
        self.put_scale(magnitude / 127.0, sums);
    }

    /// A block that is 0 or not finite.
    #[cold]
    fn unusable_block(&mut self, x: &[f32; BLOCK_COLS]) {
        next(&mut self.codes, BLOCK_COLS).fill(0);
        let is_finite = x.iter().all(|v| v.is_finite());
        self.put_scale(if is_finite { 0.0 } else { f32::NAN }, [0.0; 2]);
    }

    /// `step` is the scale; `sums` are those of the codes of either half.
    #[inline(always)]
    fn put_scale(&mut self, step: f32, sums: [f32; 2]) {
        next(&mut self.scale, 1)[0] = step;
        next(&mut self.scaled_sum, 1)[0] = step * (sums[0] + sums[1]);
        if !self.scaled_half_sums.is_empty() {
            next(&mut self.scaled_half_sums, 2).copy_from_slice(&sums.map(|sum| step * sum));
        }
        let sums = sums.map(|sum| sum as i32);
        for (start, (offset, count)) in self.starts.iter_mut().zip(STARTS) {
            if start.is_empty() {
                continue;
            }
            match count {
                2 => next(start, 2).copy_from_slice(&sums.map(|sum| -offset * sum)),
                _ => next(start, 1)[0] = -offset * (sums[0] + sums[1]),
            }
        }
    }
}

/// Rounds values to bf16.
struct Rounded<'a> {
    words: &'a mut [u32],
    /// whether a word has two of them
    in_pairs: bool,
}

impl Sink for Rounded<'_> {
    /// Whole pairs, where they are wanted.
    #[inline(always)]
    fn take<S: Simd>(&mut self, _s: S, values: &[f32]) {
        if self.in_pairs {
            let pairs = values.as_chunks::<2>().0;
            for (word, [first, second]) in next(&mut self.words, pairs.len()).iter_mut().zip(pairs) {
                *word = bfloat(*first) >> 16 | bfloat(*second);
            }
        } else {
            for (word, value) in next(&mut self.words, values.len()).iter_mut().zip(values) {
                *word = bfloat(*value);
            }
        }
    }
}

/// The pattern, as an f32, of the bf16 nearest to a number.
#[inline(always)]
fn bfloat(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    let number = if x.abs() < SMALLEST_BFLOAT { 0 } else { rounded };
    if x.is_nan() { f32::NAN.to_bits() } else { number }
}

fn halves_of(x: &[f32; BLOCK_COLS]) -> [&[f32; LANES]; 2] {
    let (halves, _) = x.as_chunks();
    [&halves[0], &halves[1]]
}

/// Takes the first `len` elements off `rest`.
#[inline(always)]
fn next<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    rest.split_off_mut(..len).expect("room for every block")
}

/// A buffer that only grows; its contents do not survive that.
pub(super) struct Grown<T: Plain>(AlignedBuffer<T>);

impl<T: Plain> Default for Grown<T> {
    fn default() -> Self {
        Self(AlignedBuffer::zeroed(0))
    }
}

impl<T: Plain> Grown<T> {
    /// The first `len` elements, whatever they hold.
    pub(super) fn at_least(&mut self, len: usize) -> &mut [T] {
        if self.0.len() < len {
            // The old memory goes first, so that the peak is one buffer.
            self.0 = AlignedBuffer::zeroed(0);
            self.0 = AlignedBuffer::zeroed(len);
        }
        &mut self.0[..len]
    }

    fn as_ptr(&self) -> *const T {
        self.0.as_ptr()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What [`Quantised`] points into.
    struct Owned {
        codes: Vec<i8>,
        scale: Vec<f32>,
        scaled_sum: Vec<f32>,
        scaled_half_sums: Vec<f32>,
        starts: [Vec<i32>; STARTS.len()],
    }

    fn quantised(isa: Isa, input: &[f32]) -> Owned {
        let blocks = input.len() / BLOCK_COLS;
        let mut out = Owned {
            codes: vec![0; input.len()],
            scale: vec![0.0; blocks],
            scaled_sum: vec![0.0; blocks],
            scaled_half_sums: vec![0.0; 2 * blocks],
            starts: STARTS.map(|(_, sums)| vec![0; blocks * sums]),
        };
        let sink = Quantised {
            codes: &mut out.codes,
            scale: &mut out.scale,
            scaled_sum: &mut out.scaled_sum,
            scaled_half_sums: &mut out.scaled_half_sums,
            starts: out.starts.each_mut().map(Vec::as_mut_slice),
        };
        let input = Input::Rows(input);
        simd::dispatch(isa, Each { input, cols: BLOCK_COLS, own: 0..blocks * BLOCK_COLS, sink });
        out
    }

    /// The twin: the module's header, word for word.
    fn by_the_book(input: &[f32]) -> Owned {
        let blocks = input.chunks_exact(BLOCK_COLS);
        let block = |x: &[f32]| {
            let magnitude = x.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
            let is_finite = x.iter().all(|v| v.is_finite());
            if !is_finite || magnitude < SMALLEST_MAGNITUDE {
                return (if is_finite { 0.0 } else { f32::NAN }, vec![0; BLOCK_COLS]);
            }
            let code = |v: &f32| (v * (127.0 / magnitude)).round_ties_even() as i8;
            (magnitude / 127.0, x.iter().map(code).collect())
        };
        let (scale, codes): (Vec<f32>, Vec<Vec<i8>>) = blocks.map(block).unzip();
        let codes = codes.concat();
        let sums = |len: usize| -> Vec<i32> {
            codes.chunks_exact(len).map(|codes| codes.iter().map(|&q| i32::from(q)).sum()).collect()
        };
        let (whole, halves) = (sums(BLOCK_COLS), sums(BLOCK_COLS / 2));
        let scaled = |sums: &[i32], count: usize| -> Vec<f32> {
            sums.iter().enumerate().map(|(i, &sum)| scale[i / count] * sum as f32).collect()
        };
        Owned {
            scaled_sum: scaled(&whole, 1),
            scaled_half_sums: scaled(&halves, 2),
            starts: STARTS.map(|(offset, count)| {
                let sums = if count == 2 { &halves } else { &whole };
                sums.iter().map(|sum| -offset * sum).collect()
            }),
            codes,
            scale,
        }
    }

    /// Activations after the rounding.
    pub(in super::super) fn rounded(input: &[f32]) -> Vec<f32> {
        let Owned { codes, scale, .. } = by_the_book(input);
        codes.iter().enumerate().map(|(i, &q)| f32::from(q) * scale[i / BLOCK_COLS]).collect()
    }

    /// The first bytes of the room for decoded groups.
    pub(in super::super) fn decoded(scratch: &mut RowsScratch, len: usize) -> &mut [u8] {
        scratch.kernels.decoded.at_least(len)
    }

    #[test]
    fn codes_are_the_nearest_even_multiples_and_sums_are_theirs() {
        let mut input = vec![0.0f32; 32];
        input[..6].copy_from_slice(&[127.0, -127.0, 0.5, 1.5, -2.5, 63.49]);
        input[20] = 40.0;
        for isa in Isa::available() {
            let Owned { codes, scale, scaled_sum, scaled_half_sums, starts } = quantised(isa, &input);
            assert_eq!(codes[..6], [127, -127, 0, 2, -2, 63]);
            assert_eq!((scale, scaled_sum, scaled_half_sums), (vec![1.0], vec![103.0], vec![63.0, 40.0]));
            let halves = |offset: i32| vec![-offset * 63, -offset * 40];
            let wanted =
                STARTS.map(|(offset, sums)| if sums == 1 { vec![-offset * 103] } else { halves(offset) });
            assert_eq!(starts, wanted);
        }
    }

    #[test]
    fn extremes_stay_in_range() {
        for isa in Isa::available() {
            for magnitude in [f32::MAX, 1e30, 1.0, 1e-30, 1e-36, 1e-37, f32::from_bits(1), 0.0] {
                let input: Vec<f32> = (0..32).map(|i| magnitude * ((i as f32 - 16.0) / 16.0)).collect();
                let Owned { codes, scale, .. } = quantised(isa, &input);
                assert!(codes.iter().all(|&q| q >= -127) && scale[0].is_finite(), "{magnitude}");
                assert_eq!(codes[0], if magnitude >= 1e-36 { -127 } else { 0 }, "{magnitude}");
            }
        }
    }

    #[test]
    fn every_instruction_set_rounds_by_the_book() {
        let mut state = 12345u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let mut input: Vec<f32> = (0..64 * BLOCK_COLS).map(|_| random() * random() * 8.0).collect();
        for (block, x) in input.chunks_exact_mut(BLOCK_COLS).enumerate() {
            let place = block % BLOCK_COLS;
            match block % 8 {
                0 => x[place] = f32::NAN,
                1 => x[place] = f32::INFINITY,
                2 => x[place] = f32::NEG_INFINITY,
                3 => x.iter_mut().for_each(|v| *v *= 1e-37),
                // Halves, which round to even.
                4 => x.iter_mut().for_each(|v| *v = (*v * 8.0).round() + 0.5),
                5 => x.fill(if place == 5 { f32::NAN } else { 0.0 }),
                _ => {}
            }
        }
        let want = by_the_book(&input);
        let bits = |values: &[f32]| -> Vec<u32> {
            values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
        };
        for isa in Isa::available() {
            let got = quantised(isa, &input);
            assert_eq!(got.codes, want.codes, "{}", isa.name());
            assert_eq!(bits(&got.scale), bits(&want.scale), "{}", isa.name());
            assert_eq!(bits(&got.scaled_sum), bits(&want.scaled_sum), "{}", isa.name());
            assert_eq!(bits(&got.scaled_half_sums), bits(&want.scaled_half_sums), "{}", isa.name());
            assert_eq!(got.starts, want.starts, "{}", isa.name());
        }
    }

    #[test]
    fn bfloats_are_the_nearest_even_ones_or_zero() {
        let mut state = 12345u32;
        let mut input: Vec<f32> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f32::from_bits(state.rotate_left(13))
            })
            .collect();
        // Middles, which go to even, and both sides of the smallest.
        let few = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x2400_0000, 0x23ff_ffff, 0x7f7f_ffff, 0x7fff_ffff]
            .map(f32::from_bits);
        input[..7].copy_from_slice(&few);
        input[7..10].copy_from_slice(&[f32::NEG_INFINITY, -0.0, f32::NAN]);
        let want = |&x: &f32| {
            let number = half::bf16::from_f32(x).to_bits();
            if x.is_nan() {
                0x7fc0
            } else if x.abs() < SMALLEST_BFLOAT {
                0
            } else {
                number
            }
        };
        let want: Vec<u16> = input.iter().map(want).collect();
        for isa in Isa::available() {
            for in_pairs in [false, true] {
                let mut words = vec![0u32; input.len()];
                let sink = Rounded { words: &mut words, in_pairs };
                let own = 0..input.len();
                simd::dispatch(isa, Each { input: Input::Rows(&input), cols: 32, own, sink });
                let halves = words.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]);
                let got: Vec<u16> = match in_pairs {
                    true => halves.take(input.len()).collect(),
                    false => halves.skip(1).step_by(2).collect(),
                };
                assert_eq!(got, want, "{} {in_pairs}", isa.name());
            }
        }
    }
}
