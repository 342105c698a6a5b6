//! The scalar twin: plain Rust over the packed layout, the order contract of [`super`] written out. What machines without an
//! instruction set of their own run, and what the others are tested against.

use super::{
    GroupJob,
    layout::{BLOCK_COLS, Format, GROUP_ROWS, QUAD_BYTES, QUADS, code_at, scales_at, with_format},
};
use crate::blocks;

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
            with_format!(job.format, F => multiply_quantised::<F>(job, g, group), _ => multiply_floats(job, g, group));
        }
    }
}

/// # Safety
/// As for [`super::run`]; `g` is one of the job's groups and `group` its bytes.
unsafe fn multiply_quantised<F: Format>(job: &GroupJob, g: usize, group: &[u8]) {
    let blocks = job.cols / BLOCK_COLS;
    let lanes = GROUP_ROWS.min(job.outputs - g * GROUP_ROWS);
    let span_quads = QUADS / F::SPANS;
    let mut codes = [[0u8; QUAD_BYTES]; QUADS];
    for b in 0..blocks {
        let header = &group[F::header_at(b)..][..F::HEADER_BYTES];
        let packed = &group[F::codes_at(b)..][..F::CODE_BYTES];
        for (quad, codes) in codes.iter_mut().enumerate() {
            codes.iter_mut().enumerate().for_each(|(p, code)| *code = code_at::<F>(packed, quad, p));
        }
        for span in 0..F::SPANS {
            for lane in 0..lanes {
                let scales = scales_at::<F>(header, b % F::UNIT_BLOCKS * F::SPANS + span, lane);
                for i in 0..job.m {
                    let at = i * blocks + b;
                    // SAFETY: row i < m, block b < blocks.
                    let (q, scale, scaled_sum) = unsafe {
                        let q = job.rows.codes.add(at * BLOCK_COLS).cast::<[[i8; 4]; QUADS]>();
                        (&*q, *job.rows.scale.add(at), *job.rows.scaled_sum.add(at))
                    };
                    let mut sum = 0i32;
                    for quad in span * span_quads..(span + 1) * span_quads {
                        for (c, q) in codes[quad][4 * lane..4 * lane + 4].iter().zip(&q[quad]) {
                            sum += (i32::from(*c) - F::OFFSET) * i32::from(*q);
                        }
                    }
                    // SAFETY: an output that the job owns.
                    let acc = unsafe { &mut *job.output.add(i * job.output_stride + g * GROUP_ROWS + lane) };
                    *acc = (sum as f32 * scale).mul_add(scales.scale, *acc);
                    if F::HAS_MINIMUM {
                        *acc = scales.minimum.mul_add(scaled_sum, *acc);
                    }
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
    for (k, column) in group.chunks_exact(GROUP_ROWS * width).enumerate() {
        blocks::decode_row(job.format, column, &mut weights);
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
