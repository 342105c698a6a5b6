//! Merging of neighbours by priority, the core of both kinds of tokenizer: a doubly linked list of symbols and a heap
//! of possible merges. `n` symbols take O(n log n), whatever the text.

use std::{cmp::Reverse, collections::BinaryHeap};

/// No symbol, or no token.
pub(super) const NONE: u32 = u32::MAX;

/// A part of the text that will be one token: the bytes `start..end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) end: u32,
    /// The token, or [`NONE`] where it is not known.
    pub(super) id: u32,
    /// The neighbours' positions, or [`NONE`].
    before: u32,
    after: u32,
    /// Whether it became part of the symbol before it.
    merged: bool,
}

/// A merge of two neighbours: the lowest `priority` comes first, among equals the leftmost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) priority: u32,
    pub(super) id: u32,
}

/// A possible merge in the heap. The order of the fields is the order of the merges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    right: u32,
    id: u32,
    /// Bytes of both together: they changed since, if it is another number now.
    len: u32,
}

/// The memory of merging, kept from one piece of text to the next.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the last piece of text.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Adds the next symbol of the text, of `len` bytes. A text may have up to 4 GiB.
    pub(super) fn push(&mut self, len: usize, id: u32) {
        let position = u32::try_from(self.symbols.len()).expect("a text of up to 4 GiB");
        let start = match self.symbols.last_mut() {
            None => 0,
            Some(last) => {
                last.after = position;
                last.end
            }
        };
        let end = u32::try_from(start as usize + len).expect("a text of up to 4 GiB");
        let before = position.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start, end, id, before, after: NONE, merged: false });
    }

    /// Merges until `rule` knows no more merges.
    pub(super) fn merge(&mut self, rule: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right, &rule);
        }
        while let Some(Reverse(Candidate { left, right, id, len, .. })) = self.heap.pop() {
            let (l, r) = (self.symbols[left as usize], self.symbols[right as usize]);
            // Symbols only grow or vanish: as long as both are there and as long as they were, they are the same.
            if l.merged || r.merged || (l.end - l.start) + (r.end - r.start) != len {
                continue;
            }
            debug_assert_eq!((l.after, r.before, l.end), (right, left, r.start));
            self.symbols[left as usize] = Symbol { end: r.end, id, after: r.after, ..l };
            self.symbols[right as usize].merged = true;
            if r.after != NONE {
                self.symbols[r.after as usize].before = left;
                self.consider(left, r.after, &rule);
            }
            if l.before != NONE {
                self.consider(l.before, left, &rule);
            }
        }
    }

    fn consider(&mut self, left: u32, right: u32, rule: &impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Merge { priority, id }) = rule(l, r) {
            self.heap.push(Reverse(Candidate { priority, left, right, id, len: r.end - l.start }));
        }
    }

    /// The symbols that are left, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| !symbol.merged)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges of letters: which pair makes which letter, and how early.
    fn rule(left: u32, right: u32) -> Option<Merge> {
        let mixed = (left * 7 + right * 13) % 16;
        (mixed < 9).then_some(Merge { priority: (left * 5 + right * 3) % 6, id: (left + right * 2) % 8 })
    }

    /// Looks for the best merge of all neighbours, carries it out, and begins again.
    fn naive(mut ids: Vec<u32>) -> Vec<u32> {
        loop {
            let merges = ids.windows(2).enumerate().filter_map(|(i, w)| Some((rule(w[0], w[1])?, i)));
            let Some((merge, i)) = merges.min_by_key(|(merge, i)| (merge.priority, *i)) else { return ids };
            ids.splice(i..i + 2, [merge.id]);
        }
    }

    proptest! {
        #[test]
        fn merges_as_the_naive_way_does(ids in prop::collection::vec(0u32..8, 0..60)) {
            let mut merger = Merger::default();
            ids.iter().for_each(|&id| merger.push(1, id));
            merger.merge(|l, r| rule(l.id, r.id));
            prop_assert_eq!(merger.symbols().map(|s| s.id).collect::<Vec<_>>(), naive(ids));
        }
    }
}
