//! Queries and keys between their product and attention: norms of heads and rotary position embedding, in one pass.
//!
//! Pair i of a head at position p turns by the angle `p * frequency[i]`, computed in f64; cosine and sine are rounded to
//! f32 once. An element's bits depend on its row and its position only.

use super::{GRAIN_ELEMENTS, LANES, Norm, Shared, padded};
use crate::{
    backend::RopeStyle,
    cpu::{
        isa::Isa,
        pool::Pool,
        simd::{self, Kernel, Simd},
    },
};
use std::ops::Range;

/// Frequencies of one kind of layer, and the sines and cosines of the positions of the last call: all layers of a step, q
/// and k, have the same positions, so they are computed once a step.
#[derive(Clone, Debug)]
pub struct RopeTables {
    style: RopeStyle,
    /// Radians a position, for each pair.
    frequencies: Vec<f64>,
    attn_factor: f64,
    positions: Vec<usize>,
    /// A row for each position, laid out as a head is: with [`RopeStyle::Neox`] cosines, then sines; with
    /// [`RopeStyle::Interleaved`] cosine and sine of each pair.
    turns: Vec<f32>,
}

impl RopeTables {
    /// Pair i of `rotary_dim / 2` turns by `freq_scale * base^(-2 i / rotary_dim) / factors[i]` a position. Sines and
    /// cosines are multiplied by `attn_factor` (YaRN's; 1 for plain rope).
    ///
    /// # Panics
    /// When `rotary_dim` is odd or there are not `rotary_dim / 2` factors.
    pub fn new(
        style: RopeStyle,
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
            style,
            frequencies: (0..rotary_dim / 2).map(frequency).collect(),
            attn_factor: f64::from(attn_factor),
            positions: vec![],
            turns: vec![],
        }
    }

    fn rotary_dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    fn prepare(&mut self, pool: &Pool, positions: &[usize]) {
        if self.positions == positions {
            return;
        }
        self.positions.clear();
        self.positions.extend_from_slice(positions);
        let pairs = self.frequencies.len();
        self.turns.resize(positions.len() * 2 * pairs, 0.0);
        let Self { style, frequencies, attn_factor, turns, .. } = self;
        let turns = Shared::new(turns);
        // About 20 ns a pair.
        pool.split(positions.len(), (512 / pairs.max(1)).max(1), &|rows, _| {
            for row in rows {
                // SAFETY: the pool hands out each row once.
                let turns = unsafe { turns.part(row * 2 * pairs..(row + 1) * 2 * pairs) };
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = (positions[row] as f64 * frequency).sin_cos();
                    let (first, second) = match style {
                        RopeStyle::Neox => (pair, pairs + pair),
                        RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                    };
                    (turns[first], turns[second]) =
                        ((cos * *attn_factor) as f32, (sin * *attn_factor) as f32);
                }
            }
        });
    }
}

/// Rows of heads, and what they are normed with.
#[derive(Debug)]
pub struct Heads<'a> {
    /// A row for each position, of some heads.
    pub x: &'a mut [f32],
    /// The norm of each head, or of the row, by the length of its weight.
    pub norm: Option<Norm<'a>>,
}

/// Norms the heads of each tensor that has a norm, then turns the first `rotary_dim` of each head's `head_dim` values, in
/// place; without `rope` nothing turns.
///
/// # Panics
/// When the sizes do not fit.
pub fn turn_heads<const N: usize>(
    pool: &Pool,
    isa: Isa,
    heads: [Heads<'_>; N],
    head_dim: usize,
    positions: &[usize],
    mut rope: Option<&mut RopeTables>,
) {
    let rows = positions.len();
    if let Some(tables) = &mut rope {
        assert!(tables.rotary_dim() <= head_dim, "rotary dimension {} of {head_dim}", tables.rotary_dim());
        tables.prepare(pool, positions);
    }
    let heads = heads.map(|Heads { x, norm }| {
        let cols = x.len().checked_div(rows).unwrap_or(0);
        assert_eq!(x.len(), rows * cols, "a position for each row");
        assert!(cols.is_multiple_of(head_dim), "rows of {cols} are whole heads of {head_dim}");
        assert!(norm.is_none_or(|n| cols.is_multiple_of(n.weight.len())), "rows of {cols} are whole norms");
        SharedHeads { x: Shared::new(x), cols, norm }
    });
    let cols: usize = heads.iter().map(|heads| heads.cols).sum();
    let rope = rope.as_deref();
    pool.split(rows, (GRAIN_ELEMENTS / cols.max(1)).max(1), &|rows, _| {
        // SAFETY: the pool hands out each row once.
        unsafe { heads.each_ref().map(|heads| heads.rows(rows.clone())) }
            .into_iter()
            .for_each(|heads| simd::dispatch(isa, Turn { heads, head_dim, rope, first_row: rows.start }));
    });
}

struct SharedHeads<'a> {
    x: Shared<'a, f32>,
    cols: usize,
    norm: Option<Norm<'a>>,
}

impl<'a> SharedHeads<'a> {
    /// # Safety
    /// Nobody else has these rows.
    unsafe fn rows(&self, rows: Range<usize>) -> Rows<'a> {
        // SAFETY: as the caller promises.
        let x = unsafe { self.x.part(rows.start * self.cols..rows.end * self.cols) };
        Rows { x, cols: self.cols, norm: self.norm }
    }
}

/// Some rows, on one thread.
struct Rows<'a> {
    x: &'a mut [f32],
    cols: usize,
    norm: Option<Norm<'a>>,
}

struct Turn<'a> {
    heads: Rows<'a>,
    head_dim: usize,
    rope: Option<&'a RopeTables>,
    first_row: usize,
}

impl Kernel for Turn<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Rows { x, cols, norm } = self.heads;
        for (index, row) in x.chunks_exact_mut(cols.max(1)).enumerate() {
            if let Some(norm) = norm {
                norm.apply(s, row);
            }
            let Some(rope) = self.rope else { continue };
            let rotary_dim = rope.rotary_dim();
            let turns = &rope.turns[(self.first_row + index) * rotary_dim..][..rotary_dim];
            for head in row.chunks_exact_mut(self.head_dim) {
                let head = &mut head[..rotary_dim];
                match rope.style {
                    RopeStyle::Neox => turn_halves(s, head, turns),
                    RopeStyle::Interleaved => turn_neighbours(s, head, turns),
                }
            }
        }
    }
}

/// Each `(x, y)`, one of the first half of a head and one of the second, becomes `(fma(-y, sin, x cos), fma(y, cos, x sin))`.
#[inline(always)]
fn turn_halves<S: Simd>(s: S, head: &mut [f32], turns: &[f32]) {
    let (x, y) = head.split_at_mut(turns.len() / 2);
    let (cos, sin) = turns.split_at(turns.len() / 2);
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks_mut::<LANES>(), y.as_chunks_mut::<LANES>());
    let ((cos, cos_rest), (sin, sin_rest)) = (cos.as_chunks::<LANES>(), sin.as_chunks::<LANES>());
    for ((x, y), (cos, sin)) in x.iter_mut().zip(y).zip(cos.iter().zip(sin)) {
        turn_halves_of_16(s, x, y, cos, sin);
    }
    if !x_rest.is_empty() {
        let (mut x, mut y) = (padded(x_rest), padded(y_rest));
        turn_halves_of_16(s, &mut x, &mut y, &padded(cos_rest), &padded(sin_rest));
        x_rest.copy_from_slice(&x[..x_rest.len()]);
        y_rest.copy_from_slice(&y[..y_rest.len()]);
    }
}

#[inline(always)]
fn turn_halves_of_16<S: Simd>(
    s: S,
    x: &mut [f32; LANES],
    y: &mut [f32; LANES],
    cos: &[f32; LANES],
    sin: &[f32; LANES],
) {
    let (a, b, cos, sin) = (s.load(x), s.load(y), s.load(cos), s.load(sin));
    s.store(s.fma(s.sub(s.splat(0.0), b), sin, s.mul(a, cos)), x);
    s.store(s.fma(b, cos, s.mul(a, sin)), y);
}

/// The same where x and y are neighbours: even and odd elements.
#[inline(always)]
fn turn_neighbours<S: Simd>(s: S, head: &mut [f32], turns: &[f32]) {
    let (head, head_rest) = head.as_chunks_mut::<LANES>();
    let (turns, turns_rest) = turns.as_chunks::<LANES>();
    for (pairs, turns) in head.iter_mut().zip(turns) {
        turn_eight_neighbours(s, pairs, turns);
    }
    if !head_rest.is_empty() {
        let mut pairs = padded(head_rest);
        turn_eight_neighbours(s, &mut pairs, &padded(turns_rest));
        head_rest.copy_from_slice(&pairs[..head_rest.len()]);
    }
}

#[inline(always)]
fn turn_eight_neighbours<S: Simd>(s: S, pairs: &mut [f32; LANES], turns: &[f32; LANES]) {
    const EVEN: u16 = 0x5555;
    let (pairs_now, cos_sin) = (s.load(pairs), s.load(turns));
    let (x, y) = (s.even_twice(pairs_now), s.odd_twice(pairs_now));
    let sin_cos = s.select_bits(EVEN, s.odd_twice(cos_sin), s.even_twice(cos_sin));
    let y = s.select_bits(EVEN, s.sub(s.splat(0.0), y), y);
    s.store(s.fma(y, sin_cos, s.mul(x, cos_sin)), pairs);
}
