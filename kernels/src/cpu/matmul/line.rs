//! The terms of a call on one line of work, off which the threads cut pieces.
//!
//! A group of 32 outputs is never cut. It is worth its bytes times the rows that it is multiplied with, but at least
//! [`ROWS_OF_FULL_PIECE`] of them: few rows take as long as the weights take to come from memory. So one piece of work is
//! spread evenly whether it is one large matrix or hundreds of experts with a row or many each.

use super::{finish::Finish, layout::GROUP_ROWS, weight::PackedWeight};
use crate::blocks::BlockFormat;
use std::ops::Range;

/// Pieces of a thread's stretch: as long as it takes to stream them is what a thread may have to wait for another.
const PIECE_BYTES: usize = 100 << 10;
/// From this many rows on a piece shrinks, as its time grows with the rows.
const ROWS_OF_FULL_PIECE: usize = 16;
/// What one item of the pool's range is worth: a cache line with few rows.
const ITEM_WORK: usize = 64 * ROWS_OF_FULL_PIECE;
/// The pool counts in 32 bits; from here on items are worth more.
const MOST_ITEMS: usize = 1 << 30;

/// One product of a call.
pub struct Term<'a> {
    /// N outputs by K inputs
    pub weight: &'a PackedWeight,
    /// the rows of the input that it multiplies
    pub rows: Range<usize>,
    /// what becomes of it
    pub finish: Finish<'a>,
    /// as many rows of N
    pub output: &'a mut [f32],
}

/// Terms, one after the other. It keeps its memory from call to call.
#[derive(Default)]
pub(super) struct Line {
    placed: Vec<Placed>,
    work: usize,
}

struct Placed {
    weight: *const PackedWeight,
    format: BlockFormat,
    output: *mut f32,
    scale: f32,
    /// null: none
    bias: *const f32,
    added: Option<f32>,
    rows: Range<usize>,
    /// where it begins
    start: usize,
    group_work: usize,
    groups: usize,
}

// SAFETY: a place is numbers to every thread, until `Line::parts` makes something of them under its caller's promise.
unsafe impl Send for Placed {}
// SAFETY: as above.
unsafe impl Sync for Placed {}

/// A run of groups of one term.
pub(super) struct Part<'a> {
    pub(super) weight: &'a PackedWeight,
    pub(super) groups: Range<usize>,
    /// the rows of the input
    pub(super) rows: Range<usize>,
    /// what becomes of the outputs; its bias begins with the first group
    pub(super) finish: Finish<'a>,
    /// where the first of them has the first output of the first group
    pub(super) output: *mut f32,
}

impl Line {
    /// Forgets all terms.
    pub(super) fn clear(&mut self) {
        self.placed.clear();
        self.work = 0;
    }

    /// Adds a term of an input of `rows` rows of `cols`. Its borrows are not kept: see [`Self::parts`].
    ///
    /// # Panics
    /// When shapes do not fit each other.
    pub(super) fn push(&mut self, term: Term<'_>, rows: usize, cols: usize) {
        let Term { weight, rows: own, finish, output } = term;
        assert_eq!(weight.cols(), cols, "columns of terms that share an input");
        assert!(own.start <= own.end && own.end <= rows, "rows {own:?} of an input of {rows}");
        assert_eq!(own.len().checked_mul(weight.rows()), Some(output.len()), "output of {} rows", own.len());
        assert!(finish.bias.is_none_or(|b| b.len() == weight.rows()), "a bias has the outputs' width");
        if own.is_empty() {
            return;
        }
        let group_work = weight.group_bytes() * own.len().max(ROWS_OF_FULL_PIECE);
        let groups = weight.rows().div_ceil(GROUP_ROWS);
        self.placed.push(Placed {
            weight,
            format: weight.format(),
            output: output.as_mut_ptr(),
            scale: finish.scale,
            bias: finish.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            added: finish.added,
            rows: own,
            start: self.work,
            group_work,
            groups,
        });
        self.work += groups * group_work;
    }

    /// Number of rows of each term whose products are added to its output.
    pub(super) fn added_rows(&self) -> impl Iterator<Item = usize> {
        self.placed.iter().filter(|p| p.added.is_some()).map(|p| p.rows.len())
    }

    /// Format and number of rows of each term.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (BlockFormat, usize)> {
        self.placed.iter().map(|p| (p.format, p.rows.len()))
    }

    /// How the pool should cut it.
    pub(super) fn spread(&self) -> Spread {
        let item_work = ITEM_WORK.max(self.work.div_ceil(MOST_ITEMS));
        let two_groups = 2 * self.placed.iter().map(|p| p.group_work).max().unwrap_or(0);
        let piece = two_groups.max(PIECE_BYTES * ROWS_OF_FULL_PIECE);
        Spread { item_work, items: self.work.div_ceil(item_work), grain: piece / item_work }
    }

    /// The groups that begin inside `items`.
    ///
    /// # Safety
    /// The borrows of all terms are alive.
    pub(super) unsafe fn parts(
        &self,
        spread: &Spread,
        items: Range<usize>,
    ) -> impl Iterator<Item = Part<'_>> {
        let work = items.start * spread.item_work..items.end * spread.item_work;
        let first = self.placed.partition_point(|p| p.start + p.groups * p.group_work <= work.start);
        self.placed[first..].iter().take_while(move |p| p.start < work.end).filter_map(move |p| {
            let bound = |at: usize| at.saturating_sub(p.start).div_ceil(p.group_work).min(p.groups);
            let groups = bound(work.start)..bound(work.end);
            let output = p.output.wrapping_add(groups.start * GROUP_ROWS);
            if groups.is_empty() {
                return None;
            }
            // SAFETY: as the caller promises.
            let weight = unsafe { &*p.weight };
            let bias = (!p.bias.is_null()).then(|| {
                let columns = groups.start * GROUP_ROWS..(groups.end * GROUP_ROWS).min(weight.rows());
                // SAFETY: as the caller promises; it has a value for each of the weight's rows.
                unsafe { std::slice::from_raw_parts(p.bias.add(columns.start), columns.len()) }
            });
            let finish = Finish { scale: p.scale, bias, added: p.added };
            Some(Part { weight, groups, rows: p.rows.clone(), finish, output })
        })
    }
}

/// How a call is cut: items of work, and how many of them a piece has.
pub(super) struct Spread {
    item_work: usize,
    pub(super) items: usize,
    pub(super) grain: usize,
}
