//! Cuts a batch into works for the threads. Free to cut in any way: no row's bits depend on it.
//!
//! Many rows (prefill): blocks of rows, each with all its ranges, merged as they come. Few rows (decode): pieces of
//! ranges, each leaving a record a range and row, merged afterwards, so that one long sequence keeps every thread busy.

use std::ops::Range;

use super::{RANGE_KEYS, Span, first_visible, tile::TILE_ROWS};

/// Rows of a block at most: a few tiles, for which a range's K and V stay in the second-level cache.
const BLOCK_ROWS: usize = 96;
/// Spans with at most this many rows may be cut by ranges.
const FEW_ROWS: usize = 48;
/// Pieces wanted for each thread, so that a slow one is not waited for.
const PIECES_PER_THREAD: usize = 4;
/// The same where pieces are ranges, which are cheap to cut: all threads come to their ends at about the same time.
const RANGE_PIECES_PER_THREAD: usize = 16;
/// Ranges of a piece at most.
const PIECE_RANGES: usize = 8;

/// Some queries of one span and KV head over some ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) span: usize,
    pub(super) kv_head: usize,
    /// Tokens of the span.
    pub(super) queries: Range<usize>,
    pub(super) ranges: Range<usize>,
    /// First record (ranges x rows of them), or none: all the ranges are here and the output is written at once.
    pub(super) record: Option<usize>,
}

/// The records of works over consecutive ranges, to be merged: as a [`Work`] over all of them.
pub(super) type Merge = Work;

/// Sizes that a schedule needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Records in all.
    pub(super) records: usize,
    /// Rows of the largest work.
    pub(super) rows: usize,
    /// How many works, the first ones, are blocks of many rows.
    pub(super) blocks: usize,
}

/// The ranges that `queries` of `span` see.
pub(super) fn visible_ranges(span: &Span<'_>, queries: &Range<usize>, window: Option<usize>) -> Range<usize> {
    let first = first_visible(span.position + queries.start, window) / RANGE_KEYS;
    first..(span.position + queries.end).div_ceil(RANGE_KEYS)
}

/// Fills `works`, longest first, and `merges`.
pub(super) fn schedule(
    spans: &[Span<'_>],
    window: Option<usize>,
    kv_heads: usize,
    group: usize,
    threads: usize,
    works: &mut Vec<Work>,
    merges: &mut Vec<Merge>,
) -> Plan {
    works.clear();
    merges.clear();
    let few = |span: &Span<'_>| span.rows * group <= FEW_ROWS;
    let long: usize = spans.iter().filter(|s| !few(s)).map(|s| s.rows * group * kv_heads).sum();
    let block_rows = (long / (threads * PIECES_PER_THREAD)).clamp(TILE_ROWS, BLOCK_ROWS);
    for (index, span) in spans.iter().enumerate().filter(|(_, s)| !few(s)) {
        push_blocks(index, span, window, kv_heads, block_queries(block_rows, group), works);
    }
    let blocks = works.len();
    let all = |span: &Span<'_>| visible_ranges(span, &(0..span.rows), window);
    let total: usize = spans.iter().filter(|s| few(s) && s.rows > 0).map(|s| all(s).len() * kv_heads).sum();
    let piece = match threads {
        1 => usize::MAX,
        _ => (total / (threads * RANGE_PIECES_PER_THREAD)).clamp(1, PIECE_RANGES),
    };
    let mut records = 0;
    for (span, s) in spans.iter().enumerate().filter(|(_, s)| few(s) && s.rows > 0) {
        for kv_head in 0..kv_heads {
            let whole = Work { span, kv_head, queries: 0..s.rows, ranges: all(s), record: None };
            if whole.ranges.len() <= piece {
                works.push(whole);
                continue;
            }
            let record = |range: usize| Some(records + (range - whole.ranges.start) * s.rows * group);
            for start in whole.ranges.clone().step_by(piece) {
                let ranges = start..(start + piece).min(whole.ranges.end);
                works.push(Work { ranges, record: record(start), ..whole.clone() });
            }
            let needed = whole.ranges.len() * s.rows * group;
            merges.push(Work { record: Some(records), ..whole });
            records += needed;
        }
    }
    let rows = works.iter().map(|w| w.queries.len() * group).max().unwrap_or(0);
    Plan { records, rows, blocks }
}

/// Queries of a block of about `rows` rows: full tiles where that is possible.
fn block_queries(rows: usize, group: usize) -> usize {
    let queries = (rows / group).max(1);
    // The smallest number of queries whose rows fill tiles.
    let full = (1..=TILE_ROWS).find(|q| (q * group).is_multiple_of(TILE_ROWS)).unwrap_or(TILE_ROWS);
    if queries > full { queries - queries % full } else { queries }
}

fn push_blocks(
    index: usize,
    span: &Span<'_>,
    window: Option<usize>,
    kv_heads: usize,
    queries: usize,
    works: &mut Vec<Work>,
) {
    // Late blocks see the most keys: they go first, so that the last ones to be taken are short.
    for block in (0..span.rows.div_ceil(queries)).rev() {
        let queries = block * queries..((block + 1) * queries).min(span.rows);
        for kv_head in 0..kv_heads {
            let ranges = visible_ranges(span, &queries, window);
            works.push(Work { span: index, kv_head, queries: queries.clone(), ranges, record: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_meets_every_visible_range_once_and_records_do_not_overlap() {
        let span = |first_row, rows, position| Span { first_row, rows, position, blocks: &[] };
        let spans =
            [span(0, 1, 16_000), span(1, 300, 70), span(301, 0, 5), span(301, 3, 1000), span(304, 1, 0)];
        for threads in 1..=3 {
            for (kv_heads, group) in [(2, 7), (1, 4), (3, 3), (8, 1)] {
                for window in [None, Some(300)] {
                    let (mut works, mut merges) = (vec![], vec![]);
                    let plan = schedule(&spans, window, kv_heads, group, threads, &mut works, &mut merges);
                    let mut seen = std::collections::HashSet::new();
                    let mut records = vec![false; plan.records];
                    for w in &works {
                        assert!(w.queries.len() * group <= plan.rows);
                        for q in w.queries.clone() {
                            for r in w.ranges.clone() {
                                assert!(seen.insert((w.span, w.kv_head, q, r)));
                            }
                        }
                        let rows = w.queries.len() * group;
                        for i in w.record.into_iter().flat_map(|first| first..first + w.ranges.len() * rows) {
                            assert!(!std::mem::replace(&mut records[i], true), "record {i} twice");
                        }
                    }
                    assert!(records.iter().all(|&r| r), "a record that nobody writes");
                    for (i, s) in spans.iter().enumerate() {
                        for q in 0..s.rows {
                            for r in visible_ranges(s, &(q..q + 1), window) {
                                assert!((0..kv_heads).all(|h| seen.contains(&(i, h, q, r))));
                            }
                        }
                    }
                }
            }
        }
    }
}
