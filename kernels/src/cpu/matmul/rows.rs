//! Activations as the kernels read them: signed bytes with one scale per 32, made once for all weights of a call.
//!
//! A block of 32 values `x` becomes `q = round(x * (127 / max |x|))`, half to even, and `scale = max |x| / 127`: symmetric, so
//! that no code is -128 and every product with an unsigned weight code fits the 16-bit sums of AVX2. The greatest magnitude is
//! taken on the bit patterns (their order is that of the numbers, with infinities and NaN on top), so its order is free. A
//! block with a non-finite value gets the scale NaN and codes 0: its outputs are NaN. A block below `SMALLEST_MAGNITUDE` is 0.
//! Plain Rust, compiled for each instruction set: nothing here can round differently.

use super::{
    layout::{BLOCK_COLS, GROUP_ROWS},
    line::Line,
};
use crate::{
    blocks::BlockFormat,
    cpu::{
        buffer::{AlignedBuffer, Plain},
        isa::Isa,
        pool::Pool,
        share::Shared,
    },
};
use std::ops::Range;

/// Below it 127 / magnitude could overflow; such activations are noise beside any weight.
const SMALLEST_MAGNITUDE: f32 = 1e-36;
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
    codes: Grown<i8>,
    scale: Grown<f32>,
    scaled_sum: Grown<f32>,
    scaled_half_sums: Grown<f32>,
    starts: [Grown<i32>; STARTS.len()],
    /// A decoded group for each thread.
    decoded: Grown<u8>,
    /// Outputs of a partial group for each thread.
    staging: Grown<f32>,
    /// The terms of a call; holds none between calls that anybody reads.
    pub(super) line: Line,
}

impl RowsScratch {
    /// Empty; the first call grows it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Quantises `input` (rows of `cols` values, `cols` a multiple of 32) for the formats of `formats`.
    pub(super) fn quantise(
        &mut self,
        pool: &Pool,
        isa: Isa,
        input: &[f32],
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
        let blocks = input.len() / BLOCK_COLS;
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
        pool.split(
            blocks,
            BLOCKS_IN_PIECE.max(blocks.div_ceil(64 * pool.threads())),
            &|piece: Range<usize>, _| {
                let by = |n: usize| piece.start * n..piece.end * n;
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
                quantise_blocks(isa, &input[by(BLOCK_COLS)], out);
            },
        );
    }

    /// The quantised rows, and each thread's staging of `m * 32` outputs and `decoded_bytes` for a decoded group.
    pub(super) fn for_kernels(
        &mut self,
        threads: usize,
        m: usize,
        decoded_bytes: usize,
    ) -> (RowsOfFormats, Shared<'_, f32>, Shared<'_, u8>) {
        let rows = RowsOfFormats {
            codes: self.codes.as_ptr(),
            scale: self.scale.as_ptr(),
            scaled_sum: self.scaled_sum.as_ptr(),
            scaled_half_sums: self.scaled_half_sums.as_ptr(),
            starts: std::array::from_fn(|kind| self.starts[kind].as_ptr()),
        };
        let staging = Shared::new(self.staging.at_least(threads * m * GROUP_ROWS));
        (rows, staging, Shared::new(self.decoded.at_least(threads * decoded_bytes)))
    }
}

/// The quantised rows of a call, for any of its formats. Valid until the scratch grows or is quantised into again.
#[derive(Clone, Copy)]
pub(super) struct RowsOfFormats {
    codes: *const i8,
    scale: *const f32,
    scaled_sum: *const f32,
    scaled_half_sums: *const f32,
    starts: [*const i32; STARTS.len()],
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

fn quantise_blocks(isa: Isa, input: &[f32], out: Quantised<'_>) {
    match isa {
        Isa::Scalar => quantise_plain(input, out),
        // SAFETY: `multiply` has checked that the machine has the instruction set.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::avx2::quantise(input, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { super::avx512::quantise(input, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{} is not supported here", isa.name()),
    }
}

/// The body that every instruction set compiles for itself.
#[inline(always)]
pub(super) fn quantise_plain(input: &[f32], out: Quantised<'_>) {
    let Quantised { codes, scale, scaled_sum, scaled_half_sums, mut starts } = out;
    let (input, codes) = (input.as_chunks::<BLOCK_COLS>().0, codes.as_chunks_mut::<BLOCK_COLS>().0);
    for (b, (x, q)) in input.iter().zip(codes).enumerate() {
        let top = x.iter().fold(0, |top: i32, v| top.max((v.to_bits() & 0x7fff_ffff).cast_signed()));
        let magnitude = f32::from_bits(top.cast_unsigned());
        let usable = magnitude.is_finite() && magnitude >= SMALLEST_MAGNITUDE;
        let factor = if usable { 127.0 / magnitude } else { 0.0 };
        // An array at a time: one loop over codes and sums together is not turned into vector instructions.
        let x = if usable { x } else { &[0.0; BLOCK_COLS] };
        let mut rounded = [0i32; BLOCK_COLS];
        for (r, v) in rounded.iter_mut().zip(x) {
            *r = (v * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
        }
        for (code, r) in q.iter_mut().zip(&rounded) {
            *code = *r as i8;
        }
        let mut sums = [0i32; 2];
        for (sum, half) in sums.iter_mut().zip(rounded.chunks_exact(BLOCK_COLS / 2)) {
            *sum = half.iter().sum();
        }
        let step = match (magnitude.is_finite(), usable) {
            (true, true) => magnitude / 127.0,
            (true, false) => 0.0,
            (false, _) => f32::NAN,
        };
        scale[b] = step;
        scaled_sum[b] = step * (sums[0] + sums[1]) as f32;
        if !scaled_half_sums.is_empty() {
            scaled_half_sums[2 * b] = step * sums[0] as f32;
            scaled_half_sums[2 * b + 1] = step * sums[1] as f32;
        }
        for (start, (offset, count)) in starts.iter_mut().zip(STARTS) {
            if start.is_empty() {
                continue;
            }
            if count == 2 {
                start[2 * b] = -offset * sums[0];
                start[2 * b + 1] = -offset * sums[1];
            } else {
                start[b] = -offset * (sums[0] + sums[1]);
            }
        }
    }
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

    fn quantised(input: &[f32]) -> Owned {
        let blocks = input.len() / BLOCK_COLS;
        let mut out = Owned {
            codes: vec![0; input.len()],
            scale: vec![0.0; blocks],
            scaled_sum: vec![0.0; blocks],
            scaled_half_sums: vec![0.0; 2 * blocks],
            starts: STARTS.map(|(_, sums)| vec![0; blocks * sums]),
        };
        quantise_plain(
            input,
            Quantised {
                codes: &mut out.codes,
                scale: &mut out.scale,
                scaled_sum: &mut out.scaled_sum,
                scaled_half_sums: &mut out.scaled_half_sums,
                starts: out.starts.each_mut().map(Vec::as_mut_slice),
            },
        );
        out
    }

    /// Activations after the rounding.
    pub(in super::super) fn rounded(input: &[f32]) -> Vec<f32> {
        let Owned { codes, scale, .. } = quantised(input);
        codes.iter().enumerate().map(|(i, &q)| f32::from(q) * scale[i / BLOCK_COLS]).collect()
    }

    /// The first bytes of the room for decoded groups.
    pub(in super::super) fn decoded(scratch: &mut RowsScratch, len: usize) -> &mut [u8] {
        scratch.decoded.at_least(len)
    }

    #[test]
    fn codes_are_the_nearest_even_multiples_and_sums_are_theirs() {
        let mut input = vec![0.0f32; 32];
        input[..6].copy_from_slice(&[127.0, -127.0, 0.5, 1.5, -2.5, 63.49]);
        input[20] = 40.0;
        let Owned { codes, scale, scaled_sum, scaled_half_sums, starts } = quantised(&input);
        assert_eq!(codes[..6], [127, -127, 0, 2, -2, 63]);
        assert_eq!((scale, scaled_sum, scaled_half_sums), (vec![1.0], vec![103.0], vec![63.0, 40.0]));
        let halves = |offset: i32| vec![-offset * 63, -offset * 40];
        let wanted =
            STARTS.map(|(offset, sums)| if sums == 1 { vec![-offset * 103] } else { halves(offset) });
        assert_eq!(starts, wanted);
    }

    #[test]
    fn extremes_stay_in_range() {
        for magnitude in [f32::MAX, 1e30, 1.0, 1e-30, 1e-36, 1e-37, f32::from_bits(1), 0.0] {
            let input: Vec<f32> = (0..32).map(|i| magnitude * ((i as f32 - 16.0) / 16.0)).collect();
            let Owned { codes, scale, .. } = quantised(&input);
            assert!(codes.iter().all(|&q| q >= -127) && scale[0].is_finite(), "{magnitude}");
            assert_eq!(codes[0], if magnitude >= 1e-36 { -127 } else { 0 }, "{magnitude}");
        }
        let Owned { codes, scale, .. } = quantised(&[f32::NAN; 32]);
        assert!(codes.iter().all(|&q| q == 0) && scale[0].is_nan());
    }
}
