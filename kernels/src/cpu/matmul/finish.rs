//! What becomes of a product's outputs: scale, bias and the sum with a residual, by the thread that computed them and while
//! they are in its cache.

use super::{GroupJob, layout::GROUP_ROWS};
use crate::cpu::{
    isa::Isa,
    ops::{PlusTimes, Sum, Times, map, map_alone},
    simd::{self, Kernel, Simd},
};

/// Floats that a thread keeps of products which are to be added to outputs, if a group is not more: 128 KiB.
const SUMS_AT_ONCE: usize = 32 << 10;

/// `y = scale * product + bias`, each step rounded by itself; then `output = y`, or `output += added * y`.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// 1 for none.
    pub scale: f32,
    /// A value for each column of the output.
    pub bias: Option<&'a [f32]>,
    /// The factor of a sum; none: the output is replaced.
    pub added: Option<f32>,
}

impl Finish<'_> {
    /// `output = product`.
    pub const NONE: Self = Self { scale: 1.0, bias: None, added: None };

    fn is_none(&self) -> bool {
        self.scale == 1.0 && self.bias.is_none() && self.added.is_none()
    }
}

/// Groups of which a thread keeps the products of `m` rows.
fn groups_at_once(m: usize) -> usize {
    (SUMS_AT_ONCE / (m * GROUP_ROWS)).max(1)
}

/// Floats that a thread needs for the products of `m` rows which are to be added to outputs.
pub(super) fn sums(m: usize) -> usize {
    groups_at_once(m) * m * GROUP_ROWS
}

/// Runs `job` and finishes its outputs; `finish` has the bias of its columns.
///
/// # Safety
/// As for [`super::run`]; where products are added, this thread has [`sums`] floats at `sums` to itself.
pub(super) unsafe fn run(isa: Isa, job: &GroupJob, finish: Finish<'_>, sums: *mut f32) {
    let cols = job.outputs.min(job.count * GROUP_ROWS);
    let part = Part {
        finish,
        rows: job.m,
        cols,
        product: job.output,
        output: job.output,
        strides: [job.output_stride; 2],
    };
    if finish.added.is_none() {
        // SAFETY: as the caller promises.
        unsafe { super::run(isa, job) };
        if !finish.is_none() {
            simd::dispatch(isa, part);
        }
        return;
    }
    for first in (0..job.count).step_by(groups_at_once(job.m)) {
        let count = groups_at_once(job.m).min(job.count - first);
        let start = first * GROUP_ROWS;
        let cols = (count * GROUP_ROWS).min(cols - start);
        let now = GroupJob {
            groups: job.groups.wrapping_add(first * job.group_bytes),
            count,
            outputs: job.outputs - start,
            output: sums,
            output_stride: cols,
            ..*job
        };
        // SAFETY: as the caller promises.
        unsafe { super::run(isa, &now) };
        let finish = Finish { bias: finish.bias.map(|bias| &bias[start..start + cols]), ..finish };
        let output = job.output.wrapping_add(start);
        simd::dispatch(
            isa,
            Part { finish, cols, product: sums, output, strides: [cols, job.output_stride], ..part },
        );
    }
}

/// A rectangle of products. Made by [`run`] alone, whose caller vouches for the pointers.
#[derive(Clone, Copy)]
struct Part<'a> {
    finish: Finish<'a>,
    rows: usize,
    cols: usize,
    product: *mut f32,
    /// The same place where products replace outputs.
    output: *mut f32,
    /// From one row of products, and of outputs, to the next.
    strides: [usize; 2],
}

impl Kernel for Part<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { finish, rows, cols, product, output, strides } = self;
        for row in 0..rows {
            // SAFETY: see the type. The slice is gone before the next row's.
            let values = unsafe { std::slice::from_raw_parts_mut(product.add(row * strides[0]), cols) };
            if finish.scale != 1.0 {
                map_alone(s, &Times(finish.scale), values);
            }
            if let Some(bias) = finish.bias {
                map(s, &Sum, values, bias);
            }
            if let Some(factor) = finish.added {
                // SAFETY: see the type; products that are added lie elsewhere.
                let sums = unsafe { std::slice::from_raw_parts_mut(output.add(row * strides[1]), cols) };
                map(s, &PlusTimes(factor), sums, values);
            }
        }
    }
}
