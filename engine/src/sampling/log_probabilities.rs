//! Natural log probabilities of the most likely tokens, for reports; drawing does not use them.

use std::cmp::Ordering;

use zllm_kernels::cpu::{
    isa::Isa,
    vocabulary::{BLOCK, block_maxima, total_weight, weight},
};

use super::{distribution::maximum, math};

/// What a report says of one place: the model's own distribution there, before anything of the sampler's chain.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbabilities {
    /// The natural log probability of the token that was drawn.
    pub drawn: f32,
    /// The most likely tokens with theirs, most likely first, ties by id.
    pub top: Vec<(u32, f32)>,
}

/// The log softmax of one row: a logit's log probability is `logit - max - ln_sum`, in f64. The sum is one of weights
/// (`distribution.rs`), which is off by less than 1e-6 of itself.
#[derive(Debug, Clone)]
struct LogSoftmax {
    max: f64,
    ln_sum: f64,
    block_maxima: Vec<f32>,
}

impl LogSoftmax {
    /// `None` when no logit is above negative infinity. NaN is no token's logit.
    fn new(isa: Isa, logits: &[f32]) -> Option<Self> {
        let mut maxima = Vec::new();
        block_maxima(isa, logits, &mut maxima);
        let max = maximum(&maxima);
        if max == f32::NEG_INFINITY {
            return None;
        }
        let max = max.min(f32::MAX);
        let sum = total_weight(isa, logits, max, 1.0) as f64 / weight(1.0) as f64;
        Some(Self { max: f64::from(max), ln_sum: math::ln(sum), block_maxima: maxima })
    }

    fn of(&self, logit: f32) -> f32 {
        (f64::from(logit.min(f32::MAX)) - self.max - self.ln_sum) as f32
    }

    /// The `top_n` most likely tokens, most likely first, ties by id.
    fn top(&self, logits: &[f32], top_n: usize) -> Vec<(u32, f32)> {
        let by_rank = |a: &(u32, f32), b: &(u32, f32)| match b.1.partial_cmp(&a.1) {
            Some(Ordering::Equal) | None => a.0.cmp(&b.0),
            Some(order) => order,
        };
        if top_n == 0 {
            return Vec::new();
        }
        let mut reach = f32::NEG_INFINITY;
        if top_n < self.block_maxima.len() {
            // At least that many tokens, one a block, are no smaller than this block maximum.
            let mut maxima = self.block_maxima.clone();
            reach = *maxima.select_nth_unstable_by(top_n - 1, |a, b| b.total_cmp(a)).1;
        }
        let blocks = (0u32..).step_by(BLOCK).zip(logits.chunks(BLOCK)).zip(&self.block_maxima);
        let mut ranked: Vec<(u32, f32)> = blocks
            .filter(|(_, most)| **most >= reach)
            .flat_map(|((first, block), _)| (first..).zip(block.iter().copied()))
            .filter(|&(_, logit)| logit > f32::NEG_INFINITY)
            // Finite, so that differences are; no model means more by infinity.
            .map(|(id, logit)| (id, logit.min(f32::MAX)))
            .collect();
        if top_n < ranked.len() {
            ranked.select_nth_unstable_by(top_n, by_rank);
            ranked.truncate(top_n);
        }
        ranked.sort_unstable_by(by_rank);
        for (_, logit) in &mut ranked {
            *logit = self.of(*logit);
        }
        ranked
    }
}

/// The `top_n` most likely tokens and their natural log probabilities, most likely first, ties by id. NaN logits count as
/// negative infinity; with no logit above that, the result is empty.
pub fn log_probabilities(logits: &[f32], top_n: usize) -> Vec<(u32, f32)> {
    LogSoftmax::new(Isa::best(), logits).map(|softmax| softmax.top(logits, top_n)).unwrap_or_default()
}

/// The report on a row from which `drawn` was drawn; `None` when the row holds no number.
pub(crate) fn log_probabilities_beside(
    isa: Isa,
    logits: &[f32],
    drawn: u32,
    top_n: usize,
) -> Option<TokenLogProbabilities> {
    let softmax = LogSoftmax::new(isa, logits)?;
    Some(TokenLogProbabilities { drawn: softmax.of(logits[drawn as usize]), top: softmax.top(logits, top_n) })
}
