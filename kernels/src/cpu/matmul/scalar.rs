//! The scalar twin: plain Rust over the packed layout, the order contract of [`super`] written out. What machines without an
//! instruction set of their own run, and what the others are tested against.

use super::{
    GroupJob, grid,
    layout::{BLOCK_COLS, Codes, Format, GROUP_ROWS, QUAD_BYTES, QUADS, with_format},
    panel::with_panel,
};
use crate::blocks::{self, BlockFormat, MAX_BLOCK_LEN, Scales, unpack_codes};

/// Runs a job.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(job: &GroupJob) {
    for g in 0..job.count {
        // SAFETY: the job covers `count` groups.
        let group =
            unsafe { std::slice::from_raw_parts(job.groups.add(g * job.group_bytes), job.group_bytes) };
        for lane in 0..GROUP_ROWS.min(job.outputs - g * GROUP_ROWS) {
            for i in 0..job.m {
                // SAFETY: row i < m of an output column that the job owns.
                unsafe { *job.output.add(i * job.output_stride + g * GROUP_ROWS + lane) = 0.0 };
            }
        }
        // SAFETY: as the caller promises.
        unsafe {
            with_format!(job.format, F => multiply_quantised::<F>(job, g, group),
                panel => with_panel!(job.format, P => multiply_decoded_first::<P>(job, g, group)),
                _ => multiply_floats(job, g, group));
        }
    }
}

/// The codes of a block: `[quad][4 * row + column % 4]`.
type BlockCodes = [[u8; QUAD_BYTES]; QUADS];

/// # Safety
/// As for [`super::run`]; `g` is one of the job's groups and `group` its bytes.
unsafe fn multiply_quantised<F: Format>(job: &GroupJob, g: usize, group: &[u8]) {
    let mut codes: BlockCodes = [[0; QUAD_BYTES]; QUADS];
    for b in 0..job.cols / BLOCK_COLS {
        for (quad, codes) in codes.iter_mut().enumerate() {
            codes.iter_mut().enumerate().for_each(|(p, code)| *code = F::code(group, b, quad, p));
        }
        let scales = |span, lane| F::scales(group, b, span, lane);
        // SAFETY: as the caller promises.
        unsafe { multiply_block::<F>(job, g, b, &codes, scales) };
    }
}

/// As [`multiply_quantised`], a row's file block at a time.
///
/// # Safety
/// As for [`super::run`]; `g` is one of the job's groups and `group` its bytes.
unsafe fn multiply_decoded_first<C: Codes>(job: &GroupJob, g: usize, group: &[u8]) {
    let (len, bytes) = (job.format.block_len(), job.format.block_bytes());
    let unit_blocks = len / BLOCK_COLS;
    let mut unit_codes: [BlockCodes; MAX_BLOCK_LEN / BLOCK_COLS] = [[[0; QUAD_BYTES]; QUADS]; _];
    for (u, unit) in group.chunks_exact(GROUP_ROWS * bytes).enumerate() {
        let mut file_blocks = [[0u8; grid::MOST_BLOCK_BYTES]; GROUP_ROWS];
        for lane in 0..GROUP_ROWS {
            let mut codes = [0u8; MAX_BLOCK_LEN];
            let block = &mut file_blocks[lane][..bytes];
            grid::file_block(job.format, unit, lane, block);
            unpack_codes(job.format, block, &mut codes[..len]);
            for (i, four) in codes[..len].as_chunks::<4>().0.iter().enumerate() {
                unit_codes[i / QUADS][i % QUADS][4 * lane..][..4].copy_from_slice(four);
            }
        }
        for (b, codes) in unit_codes[..unit_blocks].iter().enumerate() {
            let scales = |span, lane: usize| {
                blocks::scales(job.format, &file_blocks[lane][..bytes], b * C::SPANS + span)
            };
            // SAFETY: as the caller promises.
            unsafe { multiply_block::<C>(job, g, u * unit_blocks + b, codes, scales) };
        }
    }
}

/// Adds the products of block `b` of group `g`, whose codes and scales (of a span and a row) are given.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn multiply_block<C: Codes>(
    job: &GroupJob,
    g: usize,
    b: usize,
    codes: &BlockCodes,
    scales: impl Fn(usize, usize) -> Scales,
) {
    let blocks = job.cols / BLOCK_COLS;
    let lanes = GROUP_ROWS.min(job.outputs - g * GROUP_ROWS);
    let span_quads = QUADS / C::SPANS;
    for span in 0..C::SPANS {
        for lane in 0..lanes {
            let Scales { scale, minimum } = scales(span, lane);
            for i in 0..job.m {
                let at = i * blocks + b;
                // SAFETY: row i < m, block b < blocks.
                let (q, step, scaled_sum) = unsafe {
                    let q = job.rows.codes.add(at * BLOCK_COLS).cast::<[[i8; 4]; QUADS]>();
                    let sum = match C::HAS_MINIMUM {
                        true => *job.rows.scaled_sum.add(at * C::SPANS + span),
                        false => 0.0,
                    };
                    (&*q, *job.rows.scale.add(at), sum)
                };
                let mut sum = 0i32;
                for quad in span * span_quads..(span + 1) * span_quads {
                    for (c, q) in codes[quad][4 * lane..4 * lane + 4].iter().zip(&q[quad]) {
                        sum += (i32::from(*c) - C::OFFSET) * i32::from(*q);
                    }
                }
                // SAFETY: an output that the job owns.
                let acc = unsafe { &mut *job.output.add(i * job.output_stride + g * GROUP_ROWS + lane) };
                *acc = (sum as f32 * step).mul_add(scale, *acc);
                if C::HAS_MINIMUM {
                    *acc = minimum.mul_add(scaled_sum, *acc);
                }
            }
        }
    }
}

/// # Safety
/// As for [`super::run`]; `g` is one of the job's groups and `group` its bytes.
unsafe fn multiply_floats(job: &GroupJob, g: usize, group: &[u8]) {
    let lanes = GROUP_ROWS.min(job.outputs - g * GROUP_ROWS);
    let width = job.format.block_bytes();
    let mut weights = [0f32; GROUP_ROWS];
    for step in 0..job.cols {
        // BF16: the second column of each pair first.
        let k = if job.format == BlockFormat::BF16 && step ^ 1 < job.cols { step ^ 1 } else { step };
        blocks::decode_row(job.format, &group[k * GROUP_ROWS * width..][..GROUP_ROWS * width], &mut weights);
        for i in 0..job.m {
            // SAFETY: row i < m, column k < cols; the outputs are the job's own.
            let (x, out) = unsafe {
                let out = job.output.add(i * job.output_stride + g * GROUP_ROWS);
                (*job.input.add(i * job.cols + k), std::slice::from_raw_parts_mut(out, lanes))
            };
            out.iter_mut().zip(&weights).for_each(|(acc, w)| *acc = w.mul_add(x, *acc));
        }
    }
}
