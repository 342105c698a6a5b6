//! Natural log probabilities of the most likely tokens, for reports; drawing does not use them.

use std::cmp::Ordering;

use super::distribution::maximum;
use super::math;

/// What a report says of one place: the model's own distribution there, before anything of the sampler's chain.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbabilities {
    /// The natural log probability of the token that was drawn.
    pub drawn: f32,
    /// The most likely tokens with theirs, most likely first, ties by id.
    pub top: Vec<(u32, f32)>,
}

/// The log softmax of one row: a logit's log probability is `logit - max - ln_sum`, in f64.
#[derive(Debug, Clone, Copy)]
struct LogSoftmax {
    max: f64,
    ln_sum: f64,
}

impl LogSoftmax {
    /// `None` when no logit is above negative infinity.
    fn new(logits: &[f32]) -> Option<Self> {
        let max = maximum(logits);
        if max == f32::NEG_INFINITY {
            return None;
        }
        let max = f64::from(max.min(f32::MAX));
        // NaN is no token's logit.
        let usable = logits.iter().filter(|logit| !logit.is_nan());
        let sum: f64 = usable.map(|&logit| math::exp(f64::from(logit.min(f32::MAX)) - max)).sum();
        Some(Self { max, ln_sum: math::ln(sum) })
    }

    fn of(&self, logit: f32) -> f32 {
        (f64::from(logit.min(f32::MAX)) - self.max - self.ln_sum) as f32
    }
}

/// The `top_n` most likely tokens and their natural log probabilities (log softmax computed in f64), most likely
/// first, ties by id. NaN logits count as negative infinity; with no logit above that, the result is empty.
pub fn log_probabilities(logits: &[f32], top_n: usize) -> Vec<(u32, f32)> {
    LogSoftmax::new(logits).map(|softmax| top(logits, &softmax, top_n)).unwrap_or_default()
}

/// The report on a row from which `drawn` was drawn; `None` when the row holds no number.
pub(crate) fn log_probabilities_beside(
    logits: &[f32],
    drawn: u32,
    top_n: usize,
) -> Option<TokenLogProbabilities> {
    let softmax = LogSoftmax::new(logits)?;
    let top = top(logits, &softmax, top_n);
    Some(TokenLogProbabilities { drawn: softmax.of(logits[drawn as usize]), top })
}

fn top(logits: &[f32], softmax: &LogSoftmax, top_n: usize) -> Vec<(u32, f32)> {
    let by_rank = |a: &(u32, f32), b: &(u32, f32)| match b.1.partial_cmp(&a.1) {
        Some(Ordering::Equal) | None => a.0.cmp(&b.0),
        Some(order) => order,
    };
    if top_n == 0 {
        return Vec::new();
    }
    let mut ranked: Vec<(u32, f32)> = (0..)
        .zip(logits.iter().copied())
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
        *logit = softmax.of(*logit);
    }
    ranked
}
