//! Rotary position embedding.
//!
//! Pair i of a head at position p turns by the angle `p * frequency[i]`, computed in f64; cosine and sine are rounded to
//! f32 once. An element's bits depend on its position and value only.

use super::{LANES, RowOp, Shared, Simd, by_rows, padded};
use crate::{
    backend::RopeStyle,
    cpu::{isa::Isa, pool::Pool},
};

/// Frequencies of one kind of layer, and the sines and cosines of the positions of the last call: all layers of a step, q
/// and k, have the same positions, so they are computed once a step.
#[derive(Clone, Debug)]
pub struct RopeTables {
    /// Radians a position, for each pair.
    frequencies: Vec<f64>,
    attn_factor: f64,
    positions: Vec<usize>,
    /// A row for each position: cosines, then sines.
    turns: Vec<f32>,
}

impl RopeTables {
    /// Pair i of `rotary_dim / 2` turns by `freq_scale * base^(-2 i / rotary_dim) / factors[i]` a position. Sines and
    /// cosines are multiplied by `attn_factor` (YaRN's; 1 for plain rope).
    ///
    /// # Panics
    /// When `rotary_dim` is odd or there are not `rotary_dim / 2` factors.
    pub fn new(
        rotary_dim: usize,
        base: f64,
        freq_scale: f64,
        factors: Option<&[f32]>,
        attn_factor: f32,
    ) -> Self {
        assert!(rotary_dim.is_multiple_of(2), "rotary dimension {rotary_dim} is odd");
        assert!(factors.is_none_or(|f| f.len() == rotary_dim / 2), "a frequency factor for each pair");
        let frequency = |pair: usize| {
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            freq_scale * base.powf(-2.0 * pair as f64 / rotary_dim as f64) / factor
        };
        Self {
            frequencies: (0..rotary_dim / 2).map(frequency).collect(),
            attn_factor: f64::from(attn_factor),
            positions: vec![],
            turns: vec![],
        }
    }

    fn prepare(&mut self, pool: &Pool, positions: &[usize]) {
        if self.positions == positions {
            return;
        }
        self.positions.clear();
        self.positions.extend_from_slice(positions);
        let pairs = self.frequencies.len();
        self.turns.resize(positions.len() * 2 * pairs, 0.0);
        let (frequencies, attn_factor) = (&self.frequencies, self.attn_factor);
        let turns = Shared::new(&mut self.turns);
        // About 20 ns a pair.
        pool.split(positions.len(), (512 / pairs.max(1)).max(1), &|rows, _| {
            for row in rows {
                // SAFETY: the pool hands out each row once.
                let turns = unsafe { turns.part(row * 2 * pairs..(row + 1) * 2 * pairs) };
                let (cosines, sines) = turns.split_at_mut(pairs);
                for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
                    let (s, c) = (positions[row] as f64 * frequency).sin_cos();
                    (*cos, *sin) = ((c * attn_factor) as f32, (s * attn_factor) as f32);
                }
            }
        });
    }
}

/// How to rotate.
#[derive(Debug)]
pub struct RopeParams<'a> {
    /// Leading dimensions of a head that are rotated; the others stay.
    pub rotary_dim: usize,
    /// Which elements pair up.
    pub style: RopeStyle,
    /// Frequencies for `rotary_dim`.
    pub tables: &'a mut RopeTables,
}

/// Rotates the heads of `x` (a row for each of `positions`, of some heads of `head_dim`) in place.
///
/// # Panics
/// When the sizes do not fit.
pub fn rope(
    pool: &Pool,
    isa: Isa,
    x: &mut [f32],
    head_dim: usize,
    positions: &[usize],
    params: RopeParams<'_>,
) {
    let RopeParams { rotary_dim, style, tables } = params;
    if positions.is_empty() {
        assert!(x.is_empty(), "a position for each row");
        return;
    }
    let cols = x.len() / positions.len();
    assert_eq!(x.len(), positions.len() * cols, "a row for each position");
    assert!(cols > 0 && cols.is_multiple_of(head_dim), "rows of {cols} are whole heads of {head_dim}");
    assert!(rotary_dim <= head_dim, "rotary dimension {rotary_dim} of {head_dim}");
    assert_eq!(tables.frequencies.len() * 2, rotary_dim, "tables of another rotary dimension");
    tables.prepare(pool, positions);
    if rotary_dim > 0 {
        by_rows(pool, isa, x, cols, &Rotate { cols, head_dim, style, turns: &tables.turns, rotary_dim });
    }
}

struct Rotate<'a> {
    /// Of a row.
    cols: usize,
    head_dim: usize,
    rotary_dim: usize,
    style: RopeStyle,
    turns: &'a [f32],
}

impl RowOp for Rotate<'_> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, first_row: usize, x: &mut [f32]) {
        let turns = self.turns[first_row * self.rotary_dim..].chunks_exact(self.rotary_dim);
        for (row, turns) in x.chunks_exact_mut(self.cols).zip(turns) {
            let (cosines, sines) = turns.split_at(self.rotary_dim / 2);
            for head in row.chunks_exact_mut(self.head_dim) {
                let head = &mut head[..self.rotary_dim];
                match self.style {
                    RopeStyle::Neox => rotate_halves(s, head, cosines, sines),
                    RopeStyle::Interleaved => rotate_neighbours(s, head, cosines, sines),
                }
            }
        }
    }
}

#[inline(always)]
fn rotate_halves<S: Simd>(s: S, head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (a, b) = head.split_at_mut(cosines.len());
    let turns = cosines.chunks(LANES).zip(sines.chunks(LANES));
    for ((a, b), (cos, sin)) in a.chunks_mut(LANES).zip(b.chunks_mut(LANES)).zip(turns) {
        let (mut x, mut y) = (padded(a), padded(b));
        rotate(s, &mut x, &mut y, &padded(cos), &padded(sin));
        a.copy_from_slice(&x[..a.len()]);
        b.copy_from_slice(&y[..b.len()]);
    }
}

#[inline(always)]
fn rotate_neighbours<S: Simd>(s: S, head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let turns = cosines.chunks(LANES).zip(sines.chunks(LANES));
    for (pairs, (cos, sin)) in head.as_chunks_mut::<2>().0.chunks_mut(LANES).zip(turns) {
        let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
        for ((x, y), pair) in x.iter_mut().zip(&mut y).zip(pairs.iter()) {
            [*x, *y] = *pair;
        }
        rotate(s, &mut x, &mut y, &padded(cos), &padded(sin));
        for ((x, y), pair) in x.iter().zip(&y).zip(pairs) {
            *pair = [*x, *y];
        }
    }
}

/// `(x, y) = (fma(-y, sin, x cos), fma(y, cos, x sin))`.
#[inline(always)]
fn rotate<S: Simd>(s: S, x: &mut [f32; LANES], y: &mut [f32; LANES], cos: &[f32; LANES], sin: &[f32; LANES]) {
    let (a, b, cos, sin) = (s.load(x), s.load(y), s.load(cos), s.load(sin));
    s.store(s.fma(s.sub(s.splat(0.0), b), sin, s.mul(a, cos)), x);
    s.store(s.fma(b, cos, s.mul(a, sin)), y);
}
