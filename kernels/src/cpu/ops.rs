//! Vector operations between the matrix products: norms, sums, activations, rotary embedding.
//!
//! Tensors are f32, row after row. Rows (or runs of elements) go to whichever thread is free; the bits of an element depend
//! on its row and the parameters only. The one reduction, of [`rms_norm`], has its order in its documentation. Elementary
//! functions are those of `math`. NaN gives NaN, in its own row only.

use super::{
    isa::Isa,
    math::{exp, tanh},
    pool::Pool,
    share::Shared,
    simd::{self, Kernel, LANES, Simd},
};
use crate::backend::Activation;

mod heads;
#[cfg(test)]
mod tests;

pub use heads::{Heads, RopeTables, turn_heads};

/// Elements that a thread should at least take: below, a hand-off costs more than it saves.
const GRAIN_ELEMENTS: usize = 16_384;
/// Values of a row that are normed before they are added: little enough to stay in the first level.
const NORMED_AT_ONCE: usize = 256;

/// Something done to whole rows in place.
trait RowOp: Sync {
    /// `x` is rows from `first_row` on. Implementations are `#[inline(always)]`, like all generic code for [`Simd`].
    fn apply<S: Simd>(&self, s: S, first_row: usize, x: &mut [f32]);
}

/// Some rows, on one thread.
struct Piece<'a, O> {
    op: &'a O,
    first_row: usize,
    x: &'a mut [f32],
}

impl<O: RowOp> Kernel for Piece<'_, O> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.op.apply(s, self.first_row, self.x);
    }
}

/// Applies `op` to the rows of `x`, in parallel.
fn by_rows<O: RowOp>(pool: &Pool, isa: Isa, x: &mut [f32], cols: usize, op: &O) {
    assert!(cols > 0 && x.len().is_multiple_of(cols), "{} elements in rows of {cols}", x.len());
    let rows = x.len() / cols;
    let x = Shared::new(x);
    pool.split(rows, (GRAIN_ELEMENTS / cols).max(1), &|rows, _| {
        // SAFETY: the pool hands out each row once.
        let part = unsafe { x.part(rows.start * cols..rows.end * cols) };
        simd::dispatch(isa, Piece { op, first_row: rows.start, x: part });
    });
}

/// The elements, then zeros.
#[inline(always)]
pub(super) fn padded(x: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

/// `x = f(x, y)`, element by element.
pub(super) trait Map: Sync {
    fn map<S: Simd>(&self, s: S, x: S::F, y: S::F) -> S::F;
}

/// Applies `op` to all of `x`, which is as long as `y`.
#[inline(always)]
pub(super) fn map<S: Simd, M: Map>(s: S, op: &M, x: &mut [f32], y: &[f32]) {
    let (x, x_rest) = x.as_chunks_mut::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x.iter_mut().zip(y) {
        s.store(op.map(s, s.load(x), s.load(y)), x);
    }
    if !x_rest.is_empty() {
        let mut lanes = padded(x_rest);
        s.store(op.map(s, s.load(&lanes), s.load(&padded(y_rest))), &mut lanes);
        x_rest.copy_from_slice(&lanes[..x_rest.len()]);
    }
}

/// `out = op(x, y)`; all three are equally long.
#[inline(always)]
pub(super) fn map_into<S: Simd, M: Map>(s: S, op: &M, x: &[f32], y: &[f32], out: &mut [f32]) {
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (out, (x, y)) in out.iter_mut().zip(x.iter().zip(y)) {
        s.store(op.map(s, s.load(x), s.load(y)), out);
    }
    if !out_rest.is_empty() {
        out_rest.copy_from_slice(x_rest);
        map(s, op, out_rest, y_rest);
    }
}

/// A [`Map`] with a tensor of the same shape.
struct WithTensor<'a, M>(M, &'a [f32]);

impl<M: Map> RowOp for WithTensor<'_, M> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, first: usize, x: &mut [f32]) {
        map(s, &self.0, x, &self.1[first..first + x.len()]);
    }
}

/// `x = op(x)`, element by element: a [`Map`] that does not look at its second operand.
#[inline(always)]
pub(super) fn map_alone<S: Simd, M: Map>(s: S, op: &M, x: &mut [f32]) {
    let (lanes, rest) = x.as_chunks_mut::<LANES>();
    for x in lanes {
        let value = s.load(x);
        s.store(op.map(s, value, value), x);
    }
    let copy = padded(rest);
    map(s, op, rest, &copy[..rest.len()]);
}

/// A [`Map`] of the element alone.
struct Alone<M>(M);

impl<M: Map> RowOp for Alone<M> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, _first_row: usize, x: &mut [f32]) {
        map_alone(s, &self.0, x);
    }
}

/// `x + y`
pub(super) struct Sum;

impl Map for Sum {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, y: S::F) -> S::F {
        s.add(x, y)
    }
}

/// `x + factor * y`, each step rounded by itself.
pub(super) struct PlusTimes(pub(super) f32);

impl Map for PlusTimes {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, y: S::F) -> S::F {
        s.add(x, s.mul(y, s.splat(self.0)))
    }
}

/// `x += factor * y`.
///
/// # Panics
/// When the lengths differ.
pub fn add(pool: &Pool, isa: Isa, x: &mut [f32], y: &[f32], factor: f32) {
    assert_eq!(x.len(), y.len(), "the two sides of a sum");
    by_rows(pool, isa, x, 1, &WithTensor(PlusTimes(factor), y));
}

/// `x * factor`
pub(super) struct Times(pub(super) f32);

impl Map for Times {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, _: S::F) -> S::F {
        s.mul(x, s.splat(self.0))
    }
}

/// `x *= factor`.
pub fn scale(pool: &Pool, isa: Isa, x: &mut [f32], factor: f32) {
    by_rows(pool, isa, x, 1, &Alone(Times(factor)));
}

struct Cap(f32);

impl Map for Cap {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, _: S::F) -> S::F {
        s.mul(tanh(s, s.mul(x, s.splat(1.0 / self.0))), s.splat(self.0))
    }
}

/// `x = cap * tanh(x / cap)`.
pub fn softcap(pool: &Pool, isa: Isa, x: &mut [f32], cap: f32) {
    by_rows(pool, isa, x, 1, &Alone(Cap(cap)));
}

struct Gate<A>(A);

struct Silu;

impl Map for Gate<Silu> {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, up: S::F) -> S::F {
        let below = s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x)));
        s.mul(s.div(x, below), up)
    }
}

struct GeluTanh;

impl Map for Gate<GeluTanh> {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, up: S::F) -> S::F {
        // (1 + tanh u) / 2 = 1 / (1 + e^-2u), without its cancellation; the constants are -2 sqrt(2/pi) and 0.044715.
        let cubic = s.fma(s.mul(s.splat(0.044_715), s.mul(x, x)), x, x);
        let below = s.add(s.splat(1.0), exp(s, s.mul(s.splat(-1.595_769_2), cubic)));
        s.mul(s.div(x, below), up)
    }
}

/// A gate of at most `limit`, an up within it, one more than the up.
struct ClampedSwiglu {
    alpha: f32,
    limit: f32,
}

impl Map for Gate<ClampedSwiglu> {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, gate: S::F, up: S::F) -> S::F {
        let ClampedSwiglu { alpha, limit } = self.0;
        // The bounds come first: min and max keep a NaN of their second operand.
        let gate = s.min(s.splat(limit), gate);
        let up = s.max(s.splat(-limit), s.min(s.splat(limit), up));
        let below = s.add(s.splat(1.0), exp(s, s.mul(s.splat(-alpha), gate)));
        s.mul(s.div(gate, below), s.add(up, s.splat(1.0)))
    }
}

/// `gate = activation(gate, up)`, element by element.
///
/// # Panics
/// When the lengths differ.
pub fn gated(pool: &Pool, isa: Isa, gate: &mut [f32], up: &[f32], activation: Activation) {
    assert_eq!(gate.len(), up.len(), "the two sides of a gate");
    match activation {
        Activation::Silu => by_rows(pool, isa, gate, 1, &WithTensor(Gate(Silu), up)),
        Activation::GeluTanh => by_rows(pool, isa, gate, 1, &WithTensor(Gate(GeluTanh), up)),
        Activation::ClampedSwiglu { alpha, limit } => {
            by_rows(pool, isa, gate, 1, &WithTensor(Gate(ClampedSwiglu { alpha, limit }), up));
        }
    }
}

/// `out = activation(gate, up)`; all three are equally long.
#[inline(always)]
pub(super) fn gated_into<S: Simd>(s: S, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Silu => map_into(s, &Gate(Silu), gate, up, out),
        Activation::GeluTanh => map_into(s, &Gate(GeluTanh), gate, up, out),
        Activation::ClampedSwiglu { alpha, limit } => {
            map_into(s, &Gate(ClampedSwiglu { alpha, limit }), gate, up, out);
        }
    }
}

/// A factor for each row.
struct RowFactors<'a> {
    cols: usize,
    factors: &'a [f32],
    /// Whether the factors go through the sigmoid first.
    gates: bool,
}

impl RowOp for RowFactors<'_> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, first_row: usize, x: &mut [f32]) {
        for (row, &factor) in x.chunks_exact_mut(self.cols).zip(&self.factors[first_row..]) {
            let mut lanes = [factor; LANES];
            if self.gates {
                s.store(sigmoid(s, s.load(&lanes)), &mut lanes);
            }
            map_alone(s, &Times(lanes[0]), row);
        }
    }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `x[row] *= factors[row]`, for as many rows as there are factors.
///
/// # Panics
/// When `x` is not that many rows.
pub fn scale_rows(pool: &Pool, isa: Isa, x: &mut [f32], factors: &[f32]) {
    by_factors(pool, isa, x, factors, false);
}

/// `x[row] *= 1 / (1 + e^-gates[row])`, for as many rows as there are gates.
///
/// # Panics
/// When `x` is not that many rows.
pub fn gate_rows(pool: &Pool, isa: Isa, x: &mut [f32], gates: &[f32]) {
    by_factors(pool, isa, x, gates, true);
}

fn by_factors(pool: &Pool, isa: Isa, x: &mut [f32], factors: &[f32], gates: bool) {
    let cols = x.len().checked_div(factors.len()).unwrap_or(0);
    assert_eq!(x.len(), factors.len() * cols, "a factor for each row");
    if cols > 0 {
        by_rows(pool, isa, x, cols, &RowFactors { cols, factors, gates });
    }
}

/// What a norm of root mean squares multiplies with. A row has the length of the weight.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// A factor a column.
    pub weight: &'a [f32],
    /// Added to the mean of the squares.
    pub epsilon: f32,
}

impl Norm<'_> {
    /// What the norm of `row` multiplies each value with, before the weight.
    #[inline(always)]
    pub(super) fn factor<S: Simd>(&self, s: S, row: &[f32]) -> Normalised {
        let mean = sum_of_squares(s, row) / row.len() as f32;
        Normalised((mean + self.epsilon).sqrt().recip())
    }

    /// Norms each run of `weight.len()` values of `x`.
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, x: &mut [f32]) {
        for run in x.chunks_exact_mut(self.weight.len()) {
            map(s, &self.factor(s, run), run, self.weight);
        }
    }
}

/// Sixteen lanes (lane = column mod 16), ascending, `fma`, then the tree of `simd`.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (lanes, rest) = x.as_chunks::<LANES>();
    let mut sum = s.splat(0.0);
    for x in lanes {
        let x = s.load(x);
        sum = s.fma(x, x, sum);
    }
    if !rest.is_empty() {
        let rest = s.load(&padded(rest));
        sum = s.fma(rest, rest, sum);
    }
    s.reduce_add(sum)
}

/// `x * factor * y`, from the left, each step rounded by itself.
pub(super) struct Normalised(f32);

impl Map for Normalised {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: S::F, weight: S::F) -> S::F {
        s.mul(s.mul(x, s.splat(self.0)), weight)
    }
}

struct RmsNorm<'a> {
    input: &'a [f32],
    norm: Norm<'a>,
}

impl RowOp for RmsNorm<'_> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, first_row: usize, out: &mut [f32]) {
        let weight = self.norm.weight;
        let input = self.input[first_row * weight.len()..].chunks_exact(weight.len());
        for (input, out) in input.zip(out.chunks_exact_mut(weight.len())) {
            map_into(s, &self.norm.factor(s, input), input, weight, out);
        }
    }
}

/// `out = x * (1 / sqrt(mean of squares + epsilon)) * weight`, row by row. The sum of squares runs in sixteen lanes
/// (lane = column mod 16), columns ascending, `fma`, then the tree 8+8, 4+4, 2+2, 1+1. For a norm a head, a row is a head.
///
/// # Panics
/// When the lengths differ or are not whole rows.
pub fn rms_norm(pool: &Pool, isa: Isa, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "a norm keeps the size");
    by_rows(pool, isa, out, norm.weight.len(), &RmsNorm { input: x, norm });
}

/// [`rms_norm`] in place.
///
/// # Panics
/// When `x` is not whole rows.
pub fn rms_norm_in_place(pool: &Pool, isa: Isa, x: &mut [f32], norm: Norm<'_>) {
    by_rows(pool, isa, x, norm.weight.len(), &InPlace(norm));
}

struct InPlace<'a>(Norm<'a>);

impl RowOp for InPlace<'_> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, _first_row: usize, x: &mut [f32]) {
        self.0.apply(s, x);
    }
}

/// `x += factor * rms_norm(y)`, row by row, each step rounded by itself.
///
/// # Panics
/// When the lengths differ or are not whole rows.
pub fn add_normed(pool: &Pool, isa: Isa, x: &mut [f32], y: &[f32], norm: Norm<'_>, factor: f32) {
    assert_eq!(x.len(), y.len(), "the two sides of a sum");
    by_rows(pool, isa, x, norm.weight.len(), &AddNormed { source: y, norm, factor });
}

struct AddNormed<'a> {
    source: &'a [f32],
    norm: Norm<'a>,
    factor: f32,
}

impl RowOp for AddNormed<'_> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, first_row: usize, x: &mut [f32]) {
        let Self { source, norm, factor } = *self;
        let cols = norm.weight.len();
        for (x, source) in x.chunks_exact_mut(cols).zip(source[first_row * cols..].chunks_exact(cols)) {
            let normalised = norm.factor(s, source);
            let mut normed = [0.0; NORMED_AT_ONCE];
            let parts = source.chunks(NORMED_AT_ONCE).zip(norm.weight.chunks(NORMED_AT_ONCE));
            for (x, (source, weight)) in x.chunks_mut(NORMED_AT_ONCE).zip(parts) {
                let normed = &mut normed[..x.len()];
                map_into(s, &normalised, source, weight, normed);
                map(s, &PlusTimes(factor), x, normed);
            }
        }
    }
}
