//! The rows that a call multiplies: given as they are, or made a little at a time on the way into the kernels' codes.
//!
//! What is made has the bits that the operations of `ops` give: [`rms_norm`](crate::cpu::ops::rms_norm),
//! [`gated`](crate::cpu::ops::gated).

use super::layout::BLOCK_COLS;
use crate::{
    backend::Activation,
    cpu::{
        ops::{Norm, gated_into, map_into},
        simd::Simd,
    },
};
use std::ops::Range;

/// Values that are made at a time: little enough to stay in the first level. A multiple of a block.
pub(super) const MADE_AT_ONCE: usize = 512;

/// Rows of activations, all of one width.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// As they are.
    Rows(&'a [f32]),
    /// Row r is row `picks[r]` of `rows`.
    Picked {
        /// Rows to pick from.
        rows: &'a [f32],
        /// One for each row.
        picks: &'a [u32],
    },
    /// The norm of each row.
    Normed {
        /// The rows.
        rows: &'a [f32],
        /// The norm of a whole row.
        norm: Norm<'a>,
    },
    /// `activation(gate, up)`, element by element.
    Gated {
        /// The rows of the one.
        gate: &'a [f32],
        /// The rows of the other.
        up: &'a [f32],
        /// What is made of them.
        activation: Activation,
    },
}

impl<'a> Input<'a> {
    /// How many rows of `cols` values these are.
    ///
    /// # Panics
    /// When they are not whole rows, or their parts do not fit each other.
    pub(super) fn rows(&self, cols: usize) -> usize {
        let whole = |values: &[f32]| {
            assert!(
                cols > 0 && values.len().is_multiple_of(cols),
                "{} inputs in rows of {cols}",
                values.len()
            );
            values.len() / cols
        };
        match *self {
            Self::Rows(rows) => whole(rows),
            Self::Picked { rows, picks } => {
                let given = whole(rows);
                assert!(picks.iter().all(|&pick| (pick as usize) < given), "a pick is beyond {given} rows");
                picks.len()
            }
            Self::Normed { rows, norm } => {
                assert_eq!(norm.weight.len(), cols, "a norm keeps the width");
                whole(rows)
            }
            Self::Gated { gate, up, .. } => {
                assert_eq!(gate.len(), up.len(), "the two sides of a gate");
                whole(gate)
            }
        }
    }

    /// The rows, where they need not be made.
    pub(super) fn as_rows(&self) -> Option<&'a [f32]> {
        if let Self::Rows(rows) = *self { Some(rows) } else { None }
    }

    /// About how much longer a value takes than one that is there.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Rows(_) | Self::Picked { .. } => 1,
            Self::Normed { .. } => 2,
            Self::Gated { .. } => 4,
        }
    }

    /// The values that are made together, for rows of `cols`: a row, or a block where each value stands for itself.
    pub(super) fn unit(&self, cols: usize) -> usize {
        match self {
            Self::Rows(_) | Self::Gated { .. } if cols.is_multiple_of(BLOCK_COLS) => BLOCK_COLS,
            _ => cols,
        }
    }

    /// Gives `sink` the values `own` of the rows (of `cols` values), which are whole [units](Self::unit): in order, some
    /// blocks or the rest of a row at a time.
    #[inline(always)]
    pub(super) fn each<S: Simd>(&self, s: S, cols: usize, own: Range<usize>, sink: &mut impl Sink) {
        let mut made = [0.0; MADE_AT_ONCE];
        let rows = own.start / cols..own.end / cols;
        match *self {
            Self::Rows(rows) => sink.take(s, &rows[own]),
            Self::Picked { rows: given, picks } => {
                for &pick in &picks[rows] {
                    sink.take(s, &given[pick as usize * cols..][..cols]);
                }
            }
            Self::Normed { rows: given, norm } => {
                for row in given[rows.start * cols..rows.end * cols].chunks_exact(cols) {
                    let factor = norm.factor(s, row);
                    for (x, weight) in row.chunks(MADE_AT_ONCE).zip(norm.weight.chunks(MADE_AT_ONCE)) {
                        let made = &mut made[..x.len()];
                        map_into(s, &factor, x, weight, made);
                        sink.take(s, made);
                    }
                }
            }
            Self::Gated { gate, up, activation } => {
                let parts = gate[own.clone()].chunks(MADE_AT_ONCE).zip(up[own].chunks(MADE_AT_ONCE));
                for (gate, up) in parts {
                    let made = &mut made[..gate.len()];
                    gated_into(s, activation, gate, up, made);
                    sink.take(s, made);
                }
            }
        }
    }
}

/// Where values go. Implementations are `#[inline(always)]`, like all generic code for [`Simd`].
pub(super) trait Sink {
    /// The values after those of the last call; they do not outlive this one.
    fn take<S: Simd>(&mut self, s: S, values: &[f32]);
}

/// Copies them.
pub(super) struct Copied<'a>(pub(super) &'a mut [f32]);

impl Sink for Copied<'_> {
    #[inline(always)]
    fn take<S: Simd>(&mut self, _s: S, values: &[f32]) {
        let next = self.0.split_off_mut(..values.len()).expect("room for every value");
        next.copy_from_slice(values);
    }
}
