//! The tokens that are still in, once typical, XTC or mirostat must look at each of them; and the draw among them.
//!
//! Invariants of a list: in the order of the ids, none of weight 0, at least one. Weights are integers
//! (`distribution.rs`), so that no order of addition changes a sum.

use std::cmp::Ordering;

use zllm_kernels::cpu::vocabulary::weight;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    /// `exp((logit - max) / temperature)`: 1 for the most likely token of the row.
    pub(super) likelihood: f32,
}

impl Candidate {
    /// Its part of [`total`].
    pub(super) fn weight(&self) -> u64 {
        weight(self.likelihood)
    }

    /// Likelier first, then the lower id.
    pub(super) fn rank(&self, other: &Self) -> Ordering {
        other.likelihood.total_cmp(&self.likelihood).then(self.id.cmp(&other.id))
    }
}

/// All weights together.
pub(super) fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(Candidate::weight).sum()
}

/// The candidate at a random point of the weights, laid out by id.
pub(super) fn draw(candidates: &[Candidate], random: u64) -> Candidate {
    let mut point = ((u128::from(random) * u128::from(total(candidates))) >> 64) as u64;
    for candidate in candidates {
        if point < candidate.weight() {
            return *candidate;
        }
        point -= candidate.weight();
    }
    unreachable!("the point lies below the sum of the weights");
}
