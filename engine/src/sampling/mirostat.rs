//! Mirostat 2: leaves out tokens of more surprise than a bound `mu`, and moves the bound so that the surprise of what is
//! drawn stays near `mirostat_tau`.
//!
//! Source: Basu, Ramachandran, Keskar, Varshney, "Mirostat: a neural text decoding algorithm that directly controls
//! perplexity", ICLR 2021, and the authors' second version (github.com/basusourya/mirostat), as llama.cpp's
//! `src/llama-sampler.cpp` has it: mu begins at 2 tau; tokens with `-log2 p > mu` are left out, one stays at least; after
//! a draw `mu -= eta * (-log2 p' - tau)`, with p' the probability among those that stayed.
//!
//! `mu` depends on the probabilities of all draws before. It is the only state of the chain that the tokens do not tell, so
//! it is kept apart ([`super::SamplerState`]).

use std::f64::consts::LN_2;

use super::candidates::{Candidate, total};
use super::math;

/// Keeps the candidates of at most `mu` bits of surprise; the most likely one in any case.
pub(super) fn keep(candidates: &mut Vec<Candidate>, mu: f32) {
    let bound = (-f64::from(mu) * LN_2).min(700.0);
    let least = total(candidates) as f64 * math::exp(bound);
    let first = candidates.iter().copied().min_by(Candidate::rank).expect("a candidate is always left");
    candidates.retain(|candidate| candidate.weight() as f64 >= least || candidate.id == first.id);
}

/// The surprise of drawing `drawn` among `candidates`, in bits.
pub(super) fn surprise(candidates: &[Candidate], drawn: Candidate) -> f32 {
    (math::ln(total(candidates) as f64 / drawn.weight() as f64) / LN_2) as f32
}

/// The bound after a draw of `surprise` bits.
pub(super) fn follow(mu: f32, tau: f32, eta: f32, surprise: f32) -> f32 {
    mu - eta * (surprise - tau)
}
