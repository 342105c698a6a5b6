//! Natural log probabilities of the most likely tokens, for reports; drawing does not use them.

use std::cmp::Ordering;

/// The `top_n` most likely tokens and their natural log probabilities (log softmax computed in f64), most likely
/// first, ties by id. NaN logits count as negative infinity; with no logit above that, the result is empty.
pub fn log_probabilities(logits: &[f32], top_n: usize) -> Vec<(u32, f32)> {
    let by_rank = |a: &(u32, f32), b: &(u32, f32)| match b.1.partial_cmp(&a.1) {
        Some(Ordering::Equal) | None => a.0.cmp(&b.0),
        Some(order) => order,
    };
    let mut ranked: Vec<(u32, f32)> = (0..)
        .zip(logits.iter().copied())
        .filter(|&(_, logit)| logit > f32::NEG_INFINITY)
        // Finite, so that differences are; no model means more by infinity.
        .map(|(id, logit)| (id, logit.min(f32::MAX)))
        .collect();
    let max = f64::from(ranked.iter().fold(f32::NEG_INFINITY, |max, &(_, logit)| max.max(logit)));
    let sum: f64 = ranked.iter().map(|&(_, logit)| (f64::from(logit) - max).exp()).sum();
    if top_n < ranked.len() {
        ranked.select_nth_unstable_by(top_n, by_rank);
        ranked.truncate(top_n);
    }
    ranked.sort_unstable_by(by_rank);
    for (_, logit) in &mut ranked {
        *logit = (f64::from(*logit) - max - sum.ln()) as f32;
    }
    ranked
}
