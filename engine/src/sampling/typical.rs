//! Locally typical sampling: keeps the tokens whose surprise is nearest to the one that is to be expected.
//!
//! Source: Meister, Pimentel, Wiher, Cotterell, "Locally typical sampling", TACL 2023, section 4: the fewest tokens, in the
//! order of |entropy + ln p|, whose probabilities sum to at least `typical_p`. Ties go to the likelier token, then to the
//! lower id.
//!
//! With `e = ln likelihood`, `ln p = e - ln Z` and the entropy is `ln Z - mean(e)`, so the distance is `|e - mean(e)|`, and
//! no logarithm of a sum is needed. The list is not sorted: half of it is put aside again and again.

use std::cmp::Ordering;

use super::candidates::{Candidate, total};
use super::math;

/// A candidate and how far it is from typical.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distance {
    distance: f64,
    candidate: Candidate,
}

impl Distance {
    fn new(candidate: Candidate, mean: f64) -> Self {
        Self { distance: (energy(&candidate) - mean).abs(), candidate }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.candidate.rank(&other.candidate))
    }
}

fn energy(candidate: &Candidate) -> f64 {
    math::ln(f64::from(candidate.likelihood))
}

/// Keeps the most typical candidates that together have the share `typical_p`; at least one. `scratch` is any buffer.
pub(super) fn keep(candidates: &mut Vec<Candidate>, typical_p: f32, scratch: &mut Vec<Distance>) {
    let total = total(candidates);
    let sum: f64 = candidates.iter().map(|candidate| candidate.weight() as f64 * energy(candidate)).sum();
    let mean = sum / total as f64;
    scratch.clear();
    scratch.extend(candidates.iter().map(|&candidate| Distance::new(candidate, mean)));
    let target = (f64::from(typical_p) * total as f64).ceil() as u64;
    let last = last_of_the_fewest(scratch, target);
    candidates.retain(|&candidate| Distance::new(candidate, mean).order(&last).is_le());
}

/// The last of the fewest entries, in order, that weigh at least `target` together.
fn last_of_the_fewest(entries: &mut [Distance], target: u64) -> Distance {
    // All before `start` come first in the order and weigh `before`, which is not enough; the last one is in start..end.
    let (mut start, mut end, mut before) = (0, entries.len(), 0);
    while end - start > 1 {
        let middle = start + (end - start) / 2;
        entries[start..end].select_nth_unstable_by(middle - start, Distance::order);
        let left: u64 = entries[start..middle].iter().map(|entry| entry.candidate.weight()).sum();
        if before + left >= target {
            end = middle;
        } else {
            before += left;
            start = middle;
        }
    }
    entries[start]
}
