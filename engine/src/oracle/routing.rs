//! Which experts a row goes to, written for reading.

use zllm_kernels::backend::{Routing, RoutingScores};

use super::sigmoid;

/// The least sum that normalised weights are divided by: the smallest normal f16, as in llama.cpp (`build_moe_ffn`).
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// The chosen experts, best first, and their weights.
pub(super) fn choose(routing: &Routing, scores: &[f32], bias: Option<&[f32]>) -> Vec<(usize, f32)> {
    let values = match routing.scores {
        RoutingScores::Softmax => softmax(scores),
        RoutingScores::Sigmoid => scores.iter().map(|x| sigmoid(*x)).collect(),
        RoutingScores::SoftmaxOfChosen => scores.to_vec(),
    };
    let mut for_choice = values.clone();
    if let Some(bias) = bias {
        for_choice.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
    if routing.groups > 1 {
        let group_len = routing.experts / routing.groups;
        let group_values: Vec<f32> = for_choice
            .chunks_exact(group_len)
            .map(|group| best(group, 2).into_iter().map(|i| group[i]).sum())
            .collect();
        let open = best(&group_values, routing.groups_used);
        for (group, values) in for_choice.chunks_exact_mut(group_len).enumerate() {
            if !open.contains(&group) {
                values.fill(f32::NEG_INFINITY);
            }
        }
    }
    let chosen = best(&for_choice, routing.used);
    let mut weights: Vec<f32> = chosen.iter().map(|i| values[*i]).collect();
    if routing.scores == RoutingScores::SoftmaxOfChosen {
        weights = softmax(&weights);
    }
    if routing.normalise {
        let sum = weights.iter().sum::<f32>().max(LEAST_SUM);
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    chosen.into_iter().zip(weights.into_iter().map(|w| w * routing.scale)).collect()
}

/// The places of the `count` largest values, largest first; of equal ones the first.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(count);
    order
}

fn softmax(values: &[f32]) -> Vec<f32> {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = values.iter().map(|x| (x - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|x| x / sum).collect()
}
