//! Carries out works and merges: steps 7 and 8 of the contract.
//!
//! The state of a tile's rows, and the record of a tile and range, are m of each row, l of each row (16 floats each), then
//! O, row after row. They are given [`record_len`] floats a row.

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
    kv::{BLOCK_GROUPS, GROUP_TOKENS, LayerPlace},
    math::exp2,
    share::Shared,
    simd::{LANES, Simd},
};

/// Floats of a record for values of `v_dim` dimensions.
pub(super) fn record_len(v_dim: usize) -> usize {
    2 * LANES + v_dim
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

    /// The keys of range `range` that each of the `rows` rows of a tile from `first` on sees.
    fn tile_visible(
        &self,
        work: &Work,
        first: usize,
        rows: usize,
        range: usize,
    ) -> [Range<usize>; TILE_ROWS] {
        let mut visible = [const { 0..0 }; TILE_ROWS];
        let mut position = self.spans[work.span].position + work.queries.start + first / self.group;
        let mut head = first % self.group;
        for keys in &mut visible[..rows] {
            *keys = self.visible(position, range);
            head += 1;
            if head == self.group {
                (position, head) = (position + 1, 0);
            }
        }
        visible
    }

    /// Query head of row `row` of a work.
    fn head(&self, work: &Work, row: usize) -> usize {
        work.kv_head * self.group + row % self.group
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
        // What is not seen may still be fetched for nothing: addresses that are cheap to fetch.
        let anywhere = [self.bytes.as_ptr(); RANGE_GROUPS];
        let mut groups = Groups { keys: anywhere, values: anywhere };
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
    /// A state a tile.
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

/// Carries out a work: its rows with each of its ranges, ascending. `following` is what this thread is likely to do next.
#[inline(always)]
pub(super) fn run<S: Simd>(
    s: S,
    context: &Context<'_>,
    work: &Work,
    following: Option<&Work>,
    scratch: &mut ThreadScratch,
) {
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
        let next = match following {
            _ if range + 1 < work.ranges.end => context.groups(work, range + 1),
            Some(following) => context.groups(following, following.ranges.start),
            None => here,
        };
        for first in (0..rows).step_by(TILE_ROWS) {
            let in_tile = (rows - first).min(TILE_ROWS);
            let visible = context.tile_visible(work, first, in_tile, range);
            let operands = Tile {
                format: context.format,
                layer,
                queries: &scratch.queries[first / TILE_ROWS * tile_len..],
                scales: &scratch.scales[first..],
                visible: &visible[..in_tile],
                softcap: context.softcap,
                here: &here,
                // The first tile fetches half a range ahead, the range's values, then the next one's keys; the others
                // find all of this in the cache.
                fetch_first: if first == 0 { &here.values } else { &here.keys },
                fetch_second: if first == 0 { &next.keys } else { &here.values },
            };
            // SAFETY: `groups` took the address of every group that a row of the work sees from inside its block, and
            // the layout says that a K and a V group of the layer's dimensions lie there.
            unsafe { tile::compute(s, &operands, &mut scratch.tile) };
            let TileScratch { max, sum, out, .. } = &*scratch.tile;
            let out = &out[..in_tile * layer.v_dim];
            match &mut records {
                None => {
                    let state = &mut scratch.states[first * record_len..];
                    merge(s, state, &visible[..in_tile], max, sum, out);
                }
                Some(records) => {
                    let index = (range - work.ranges.start) * rows + first;
                    let (max_to, sum_to, out_to) = parts(&mut records[index * record_len..]);
                    (*max_to, *sum_to) = (*max, *sum);
                    out_to[..out.len()].copy_from_slice(out);
                }
            }
        }
        here = next;
    }
    if records.is_none() {
        finish(s, context, work, rows, &mut scratch.states);
    }
}

/// Merges the records of a merge's ranges and writes its output.
#[inline(always)]
pub(super) fn merge_records<S: Simd>(s: S, context: &Context<'_>, work: &Merge, scratch: &mut ThreadScratch) {
    let rows = work.queries.len() * context.group;
    let v_dim = context.place.layer.v_dim;
    let record_len = record_len(v_dim);
    let first = work.record.expect("a merge has records");
    // SAFETY: the works that wrote these records are done; each merge has its own.
    let records =
        unsafe { context.records.part(first * record_len..(first + rows * work.ranges.len()) * record_len) };
    start_states(context, work, rows, &mut scratch.states);
    for (range, records) in work.ranges.clone().zip(records.chunks_exact_mut(rows * record_len)) {
        for first in (0..rows).step_by(TILE_ROWS) {
            let in_tile = (rows - first).min(TILE_ROWS);
            let visible = context.tile_visible(work, first, in_tile, range);
            let (max, sum, out) = parts(&mut records[first * record_len..]);
            let out = &out[..in_tile * v_dim];
            merge(s, &mut scratch.states[first * record_len..], &visible[..in_tile], max, sum, out);
        }
    }
    finish(s, context, work, rows, &mut scratch.states);
}

/// m, l and O of a state or record.
fn parts(of: &mut [f32]) -> (&mut [f32; LANES], &mut [f32; LANES], &mut [f32]) {
    let (m, rest) = of.split_first_chunk_mut().expect("a state has m");
    let (l, o) = rest.split_first_chunk_mut().expect("a state has l");
    (m, l, o)
}

fn start_states(context: &Context<'_>, work: &Work, rows: usize, states: &mut [f32]) {
    let record_len = record_len(context.place.layer.v_dim);
    for first in (0..rows).step_by(TILE_ROWS) {
        let in_tile = (rows - first).min(TILE_ROWS);
        let state = &mut states[first * record_len..][..in_tile * record_len];
        state.fill(0.0);
        let (m, l, _) = parts(state);
        m.fill(f32::NEG_INFINITY);
        for (row, (m, l)) in m.iter_mut().zip(l).enumerate().take(in_tile) {
            if let Some(sinks) = context.sinks {
                *m = sinks[context.head(work, first + row)] * std::f32::consts::LOG2_E;
                *l = 1.0;
            }
        }
    }
}

/// Step 7: one range's results into the state of a tile's rows, those that see a key of the range.
#[inline(always)]
fn merge<S: Simd>(
    s: S,
    state: &mut [f32],
    visible: &[Range<usize>],
    max: &[f32; LANES],
    sum: &[f32; LANES],
    out: &[f32],
) {
    let (m_kept, l_kept, into) = parts(state);
    let (m, l, max) = (s.load(m_kept), s.load(l_kept), s.load(max));
    let new = s.max(m, max);
    let a = exp2(s, s.sub(m, new));
    // At the start, where m is -inf, nothing is kept.
    let a = s.select_less(m, s.splat(f32::MIN), s.splat(0.0), a);
    let b = exp2(s, s.sub(max, new));
    let seen = visible.iter().rev().fold(0, |bits, keys| bits << 1 | u16::from(!keys.is_empty()));
    s.store(s.select_bits(seen, new, m), m_kept);
    s.store(s.select_bits(seen, s.fma(l, a, s.mul(s.load(sum), b)), l), l_kept);
    let (mut factors, mut others) = ([0.0; LANES], [0.0; LANES]);
    s.store(a, &mut factors);
    s.store(b, &mut others);
    let v_dim = out.len() / visible.len();
    let rows = into.chunks_exact_mut(v_dim).zip(out.chunks_exact(v_dim));
    for (row, (into, out)) in rows.enumerate().filter(|(row, _)| !visible[*row].is_empty()) {
        let (a, b) = (s.splat(factors[row]), s.splat(others[row]));
        for (into, from) in into.as_chunks_mut::<LANES>().0.iter_mut().zip(out.as_chunks::<LANES>().0) {
            s.store(s.fma(s.load(into), a, s.mul(s.load(from), b)), into);
        }
    }
}

/// Step 8.
#[inline(always)]
fn finish<S: Simd>(s: S, context: &Context<'_>, work: &Work, rows: usize, states: &mut [f32]) {
    let v_dim = context.place.layer.v_dim;
    for first in (0..rows).step_by(TILE_ROWS) {
        let (_, l, o) = parts(&mut states[first * record_len(v_dim)..]);
        let in_tile = (rows - first).min(TILE_ROWS);
        for (row, from) in o.chunks_exact(v_dim).enumerate().take(in_tile) {
            let at = context.batch_row(work, first + row) * v_dim;
            // SAFETY: the schedule gives each row to one work or merge.
            let out = unsafe { context.out.part(at..at + v_dim) };
            let inverse = s.splat(1.0 / l[row]);
            for (out, from) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(from.as_chunks::<LANES>().0) {
                s.store(s.mul(s.load(from), inverse), out);
            }
        }
    }
}
