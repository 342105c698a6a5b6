//! XTC, "exclude top choices": now and then leaves the most likely tokens out, so that the text takes another way.
//!
//! Source: the description by its author (oobabooga/text-generation-webui, pull request 6335): with the probability
//! `xtc_probability`, of the tokens whose probability is at least `xtc_threshold` all but the least likely are removed. Where
//! fewer than two are that likely nothing happens. Ties: the higher id counts as less likely.

use super::candidates::{Candidate, total};

/// Whether it is time to leave tokens out, by 64 random bits.
pub(super) fn is_due(xtc_probability: f32, random: u64) -> bool {
    // The upper 53 bits are a fraction from 0 to below 1, exactly.
    ((random >> 11) as f64) < f64::from(xtc_probability) * (1u64 << 53) as f64
}

/// Leaves out all candidates of at least the share `xtc_threshold` but the least likely of them.
pub(super) fn leave_out(candidates: &mut Vec<Candidate>, xtc_threshold: f32) {
    let least = f64::from(xtc_threshold) * total(candidates) as f64;
    let is_top = |candidate: &Candidate| candidate.weight() as f64 >= least;
    let stays = candidates.iter().copied().filter(is_top).max_by(Candidate::rank);
    if let Some(stays) = stays {
        candidates.retain(|candidate| candidate.id == stays.id || !is_top(candidate));
    }
}
