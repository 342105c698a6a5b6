//! Carries out works and merges: steps 7 and 8 of the contract.
//!
//! The state of a row, and the record of a row and range, are [`record_len`] floats: m, l, padding to 16, then O.

use std::ops::Range;

use super::{
    RANGE_KEYS, Span,
    codec::{KeyCodec, query_units, with_codec},
    first_visible,
    schedule::{Merge, Work},
    tile::{self, Groups, RANGE_GROUPS, TILE_ROWS, Tile, TileScratch},
};
use crate::backend::{KvCodec, KvFormat, KvLayer};
use crate::cpu::{
    kv::{BLOCK_GROUPS, GROUP_TOKENS, LayerPlace, MAX_HEAD_DIM},
    math::exp2,
    share::Shared,
    simd::{LANES, Simd},
};

/// Floats of a record for values of `v_dim` dimensions.
pub(super) fn record_len(v_dim: usize) -> usize {
    LANES + v_dim
}

/// What all works of a call share.
pub(super) struct Context<'a> {
    /// The arena.
    pub(super) bytes: &'a [u8],
    pub(super) block_bytes: usize,
    pub(super) format: KvFormat,
    pub(super) place: &'a LayerPlace,
    /// Query heads of a KV head.
    pub(super) group: usize,
    pub(super) heads: usize,
    pub(super) spans: &'a [Span<'a>],
    pub(super) q: &'a [f32],
    /// Times log2 e.
    pub(super) scale: f32,
    pub(super) window: Option<usize>,
    /// Times log2 e.
    pub(super) softcap: Option<f32>,
    /// As given: natural logits.
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) out: Shared<'a, f32>,
    pub(super) records: Shared<'a, f32>,
}

impl Context<'_> {
    /// The keys of range `range` that a row at `position` sees, counted from the range's start.
    fn visible(&self, position: usize, range: usize) -> Range<usize> {
        let start = range * RANGE_KEYS;
        let first = first_visible(position, self.window).saturating_sub(start);
        let end = (position + 1).saturating_sub(start).min(RANGE_KEYS);
        if first < end { first..end } else { 0..0 }
    }

    /// Position and query head of row `row` of a work.
    fn row(&self, work: &Work, row: usize) -> (usize, usize) {
        let query = work.queries.start + row / self.group;
        (self.spans[work.span].position + query, work.kv_head * self.group + row % self.group)
    }

    /// Index of that row among all `rows x heads` of the batch.
    fn batch_row(&self, work: &Work, row: usize) -> usize {
        let query = self.spans[work.span].first_row + work.queries.start + row / self.group;
        query * self.heads + work.kv_head * self.group + row % self.group
    }

    /// Addresses of the groups of `range` that the work's rows see.
    fn groups(&self, work: &Work, range: usize) -> Groups {
        let span = &self.spans[work.span];
        let first = first_visible(span.position + work.queries.start, self.window) / GROUP_TOKENS;
        let end = (span.position + work.queries.end).div_ceil(GROUP_TOKENS);
        let in_range = range * RANGE_GROUPS..(range + 1) * RANGE_GROUPS;
        let mut groups = Groups::NONE;
        for group in first.max(in_range.start)..end.min(in_range.end) {
            let block = span.blocks[group / BLOCK_GROUPS] as usize * self.block_bytes;
            let block = &self.bytes[block..block + self.block_bytes];
            let slot = group - in_range.start;
            groups.keys[slot] = block[self.place.k_offset(work.kv_head, group % BLOCK_GROUPS)..].as_ptr();
            groups.values[slot] = block[self.place.v_offset(work.kv_head, group % BLOCK_GROUPS)..].as_ptr();
        }
        groups
    }
}

/// A thread's own memory.
pub(super) struct ThreadScratch {
    tile: Box<TileScratch>,
    /// Encoded queries, tile after tile.
    queries: Vec<u32>,
    scales: Vec<f32>,
    /// A record a row.
    states: Vec<f32>,
    /// Span, KV head and first query of the encoded queries.
    encoded: Option<(usize, usize, usize)>,
}

impl Default for ThreadScratch {
    fn default() -> Self {
        Self {
            tile: Box::new(TileScratch::ZERO),
            queries: vec![],
            scales: vec![],
            states: vec![],
            encoded: None,
        }
    }
}

impl ThreadScratch {
    /// Makes room for works of `rows` rows and forgets the last call.
    pub(super) fn prepare(&mut self, rows: usize, layer: KvLayer) {
        self.encoded = None;
        let rows = rows.next_multiple_of(TILE_ROWS);
        grow(&mut self.queries, rows * layer.k_dim, 0);
        grow(&mut self.scales, rows, 0.0);
        grow(&mut self.states, rows * record_len(layer.v_dim), 0.0);
    }

    #[inline(always)]
    fn encode<S: Simd>(&mut self, s: S, context: &Context<'_>, work: &Work, rows: usize) {
        let wanted = Some((work.span, work.kv_head, work.queries.start));
        if self.encoded == wanted {
            return;
        }
        let dim = context.place.layer.k_dim;
        let codec = context.format.keys;
        let tile_len = query_units(codec, dim) * TILE_ROWS;
        for row in 0..rows {
            let at = context.batch_row(work, row) * dim;
            let column = &mut self.queries[row / TILE_ROWS * tile_len..][row % TILE_ROWS..];
            let query = &context.q[at..at + dim];
            self.scales[row] = with_codec!(codec, C => C::put_query(s, query, context.scale, column));
        }
        self.encoded = wanted;
    }
}

fn grow<T: Clone>(vec: &mut Vec<T>, len: usize, fill: T) {
    if vec.len() < len {
        vec.resize(len, fill);
    }
}

/// Carries out a work: its rows with each of its ranges, ascending.
#[inline(always)]
pub(super) fn run<S: Simd>(s: S, context: &Context<'_>, work: &Work, scratch: &mut ThreadScratch) {
    let rows = work.queries.len() * context.group;
    let layer = context.place.layer;
    let tile_len = query_units(context.format.keys, layer.k_dim) * TILE_ROWS;
    let record_len = record_len(layer.v_dim);
    scratch.encode(s, context, work, rows);
    let records: Option<&mut [f32]> = work.record.map(|first| {
        // SAFETY: the schedule gives each work its own records.
        unsafe { context.records.part(first * record_len..(first + rows * work.ranges.len()) * record_len) }
    });
    let mut records = records;
    if records.is_none() {
        start_states(context, work, rows, &mut scratch.states);
    }
    let mut here = context.groups(work, work.ranges.start);
    for range in work.ranges.clone() {
        let next = if range + 1 < work.ranges.end { context.groups(work, range + 1) } else { here };
        for first in (0..rows).step_by(TILE_ROWS) {
            let in_tile = (rows - first).min(TILE_ROWS);
            let visible: [_; TILE_ROWS] = std::array::from_fn(|row| {
                if row < in_tile { context.visible(context.row(work, first + row).0, range) } else { 0..0 }
            });
            let operands = Tile {
                format: context.format,
                layer,
                queries: &scratch.queries[first / TILE_ROWS * tile_len..],
                scales: &scratch.scales[first..],
                visible: &visible[..in_tile],
                softcap: context.softcap,
                here: &here,
                // The first tile fetches the next range; the others find both in the cache.
                next: if first == 0 { &next } else { &here },
            };
            // SAFETY: `groups` took the address of every group that a row of the work sees from inside its block, and
            // the layout says that a K and a V group of the layer's dimensions lie there.
            unsafe { tile::compute(s, &operands, &mut scratch.tile) };
            for row in (0..in_tile).filter(|&row| !visible[row].is_empty()) {
                let (max, sum) = (scratch.tile.max[row], scratch.tile.sum[row]);
                let out = &scratch.tile.out[row * MAX_HEAD_DIM..][..layer.v_dim];
                let index = first + row;
                match &mut records {
                    None => merge(s, &mut scratch.states[index * record_len..][..record_len], max, sum, out),
                    Some(records) => {
                        let index = (range - work.ranges.start) * rows + index;
                        let record = &mut records[index * record_len..][..record_len];
                        (record[0], record[1]) = (max, sum);
                        record[LANES..].copy_from_slice(out);
                    }
                }
            }
        }
        here = next;
    }
    if records.is_none() {
        finish(s, context, work, rows, &scratch.states);
    }
}

/// Merges the records of a merge's ranges and writes its output.
#[inline(always)]
pub(super) fn merge_records<S: Simd>(s: S, context: &Context<'_>, work: &Merge, scratch: &mut ThreadScratch) {
    let rows = work.queries.len() * context.group;
    let record_len = record_len(context.place.layer.v_dim);
    let first = work.record.expect("a merge has records");
    // SAFETY: the works that wrote these records are done; each merge has its own.
    let records =
        unsafe { context.records.part(first * record_len..(first + rows * work.ranges.len()) * record_len) };
    start_states(context, work, rows, &mut scratch.states);
    for (range, records) in work.ranges.clone().zip(records.chunks_exact(rows * record_len)) {
        for (row, record) in records.chunks_exact(record_len).enumerate() {
            if !context.visible(context.row(work, row).0, range).is_empty() {
                let state = &mut scratch.states[row * record_len..][..record_len];
                merge(s, state, record[0], record[1], &record[LANES..]);
            }
        }
    }
    finish(s, context, work, rows, &scratch.states);
}

fn start_states(context: &Context<'_>, work: &Work, rows: usize, states: &mut [f32]) {
    let record_len = record_len(context.place.layer.v_dim);
    for (row, state) in states.chunks_exact_mut(record_len).take(rows).enumerate() {
        state.fill(0.0);
        state[0] = f32::NEG_INFINITY;
        if let Some(sinks) = context.sinks {
            state[0] = sinks[context.row(work, row).1] * std::f32::consts::LOG2_E;
            state[1] = 1.0;
        }
    }
}

/// Step 7: one range's result into a row's state.
#[inline(always)]
fn merge<S: Simd>(s: S, state: &mut [f32], max: f32, sum: f32, out: &[f32]) {
    let (head, into) = state.split_at_mut(LANES);
    let (m, l) = (head[0], head[1]);
    let new = if m > max { m } else { max };
    let mut exponents = [0.0; LANES];
    exponents[..2].copy_from_slice(&[m - new, max - new]);
    let mut powers = [0.0; LANES];
    s.store(exp2(s, s.load(&exponents)), &mut powers);
    let a = if m == f32::NEG_INFINITY { 0.0 } else { powers[0] };
    let b = powers[1];
    (head[0], head[1]) = (new, l.mul_add(a, sum * b));
    let (a, b) = (s.splat(a), s.splat(b));
    for (into, from) in into.as_chunks_mut::<LANES>().0.iter_mut().zip(out.as_chunks::<LANES>().0) {
        s.store(s.fma(s.load(into), a, s.mul(s.load(from), b)), into);
    }
}

/// Step 8.
#[inline(always)]
fn finish<S: Simd>(s: S, context: &Context<'_>, work: &Work, rows: usize, states: &[f32]) {
    let v_dim = context.place.layer.v_dim;
    for (row, state) in states.chunks_exact(record_len(v_dim)).take(rows).enumerate() {
        let at = context.batch_row(work, row) * v_dim;
        // SAFETY: the schedule gives each row to one work or merge.
        let out = unsafe { context.out.part(at..at + v_dim) };
        let inverse = s.splat(1.0 / state[1]);
        for (out, from) in
            out.as_chunks_mut::<LANES>().0.iter_mut().zip(state[LANES..].as_chunks::<LANES>().0)
        {
            s.store(s.mul(s.load(from), inverse), out);
        }
    }
}
