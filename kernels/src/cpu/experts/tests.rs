//! Routing and pairs against a naive twin, in every instruction set and thread count.

use super::*;
use proptest::prelude::*;

const SENTINEL: f32 = -77.0;
const SENTINELS: usize = 19;
/// Errors of weights against f64, relative.
const WEIGHT_TOLERANCE: f64 = 2e-6;

/// What a row should get: experts in order, weights in f64.
fn twin(logits: &[f32], routing: &Routing, bias: Option<&[f32]>, ranks: &[f32]) -> (Vec<u32>, Vec<f64>) {
    let softmax = |x: &[f64]| {
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|p| p / sum).collect::<Vec<_>>()
    };
    let wide: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    let scores = match routing.scores {
        RoutingScores::Softmax => softmax(&wide),
        RoutingScores::Sigmoid => wide.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        RoutingScores::SoftmaxOfChosen => wide,
    };
    // The f32 ranks are within their tolerance of these; choices are checked on the f32 ones, where near ties fall.
    for (i, (&rank, score)) in ranks.iter().zip(&scores).enumerate() {
        let bias = bias.map_or(0.0, |b| f64::from(b[i]));
        let bound = WEIGHT_TOLERANCE * (score.abs() + bias.abs()) + 1e-30;
        assert!((f64::from(rank) - (score + bias)).abs() <= bound, "rank {rank} of {score} + {bias}");
    }
    let sorted = |mut indices: Vec<usize>, of: &dyn Fn(usize) -> f32| {
        // A stable sort keeps the lower of equal ones first.
        indices.sort_by(|&a, &b| of(b).total_cmp(&of(a)));
        indices
    };
    let size = routing.experts / routing.groups;
    let worth = |group: usize| {
        let members = sorted((group * size..(group + 1) * size).collect(), &|i| ranks[i] + 0.0);
        members.iter().take(2).fold(0.0, |sum, &i| sum + ranks[i])
    };
    let mut groups = sorted((0..routing.groups).collect(), &worth);
    groups.truncate(routing.groups_used);
    let members = (0..routing.experts).filter(|i| groups.contains(&(i / size))).collect();
    let mut chosen = sorted(members, &|i| ranks[i] + 0.0);
    chosen.truncate(routing.used);
    let mut weights: Vec<f64> = chosen.iter().map(|&i| scores[i]).collect();
    if routing.scores == RoutingScores::SoftmaxOfChosen {
        weights = softmax(&weights);
    }
    if routing.normalise {
        let sum = weights.iter().sum::<f64>().max(f64::from(SMALLEST_WEIGHT_SUM));
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= f64::from(routing.scale));
    (chosen.into_iter().map(|i| i as u32).collect(), weights)
}

/// The f32 ranks of a row, made by the scalar kernel itself.
fn ranks_of(logits: &[f32], routing: &Routing, bias: Option<&[f32]>) -> Vec<f32> {
    let all = Routing {
        used: routing.experts,
        groups: 1,
        groups_used: 1,
        normalise: false,
        scale: 1.0,
        ..*routing
    };
    let mut routes = Routes::try_new(1, routing.experts).unwrap();
    route(&Pool::new(1), Isa::Scalar, logits, &all, None, &mut routes);
    let mut ranks = vec![0.0; routing.experts];
    for (&expert, &weight) in routes.experts.iter().zip(&routes.weights) {
        let score =
            if routing.scores == RoutingScores::SoftmaxOfChosen { logits[expert as usize] } else { weight };
        ranks[expert as usize] = bias.map_or(score, |b| score + b[expert as usize]);
    }
    ranks
}

/// Routes in every instruction set and with 1 to 3 threads, all the same; checks the bookkeeping of pairs.
fn everywhere(logits: &[f32], routing: &Routing, bias: Option<&[f32]>) -> Routes {
    let rows = logits.len() / routing.experts;
    let mut results: Vec<Routes> = vec![];
    for threads in 1..=3 {
        for isa in Isa::available() {
            // More room than rows, and what an earlier step left.
            let mut routes = Routes::try_new(rows + 3, routing.used).unwrap();
            route(
                &Pool::new(threads),
                isa,
                &vec![0.5; (rows + 3) * routing.experts],
                routing,
                bias,
                &mut routes,
            );
            route(&Pool::new(threads), isa, logits, routing, bias, &mut routes);
            results.push(routes);
        }
    }
    let count = rows * routing.used;
    for other in &results {
        let bits = |r: &Routes| -> Vec<u32> {
            r.weights[..count].iter().map(|w| if w.is_nan() { 1 } else { w.to_bits() }).collect()
        };
        assert_eq!(bits(other), bits(&results[0]));
        assert_eq!(other.experts[..count], results[0].experts[..count]);
        assert_eq!((&other.runs, other.pairs(), other.rows()), (&results[0].runs, count, rows));
        assert_eq!(other.sources[..count], results[0].sources[..count]);
    }
    let routes = results.swap_remove(0);
    let mut seen = vec![false; count];
    let mut next = (0, 0);
    for Run { expert, pairs } in routes.runs() {
        assert!(*expert >= next.0 && pairs.start == next.1 && !pairs.is_empty(), "runs ascend without gaps");
        next = (expert + 1, pairs.end);
        assert!(routes.sources[pairs.clone()].is_sorted(), "rows of an expert ascend");
        for pair in pairs.clone() {
            let row = routes.sources[pair] as usize;
            let own = &routes.experts[row * routing.used..][..routing.used];
            let choice = own.iter().position(|&e| e as usize == *expert).expect("the row chose this expert");
            assert_eq!(routes.pairs[row * routing.used + choice] as usize, pair);
            assert!(!std::mem::replace(&mut seen[pair], true));
        }
    }
    assert_eq!(next.1, count);
    routes
}

fn routings() -> impl Strategy<Value = Routing> {
    use RoutingScores::{Sigmoid, Softmax, SoftmaxOfChosen};
    let scores = proptest::sample::select(vec![Softmax, Sigmoid, SoftmaxOfChosen]);
    let shape =
        (1..40usize, 1..7usize).prop_flat_map(|(size, groups)| (Just(size), Just(groups), 1..=groups));
    (shape, scores, 1..10usize, any::<bool>(), proptest::sample::select(vec![1.0f32, 2.5])).prop_map(
        |((size, groups, groups_used), scores, used, normalise, scale)| Routing {
            experts: size * groups,
            used: used.min(size * groups_used),
            scores,
            groups,
            groups_used,
            normalise,
            scale,
        },
    )
}

fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn routes_are_those_of_the_twin(
        routing in routings(), rows in 1..40usize, seed in 1u64.., coarse in any::<bool>(), biased in any::<bool>()
    ) {
        let mut logits = noise(seed, rows * routing.experts);
        // Coarse logits have many ties.
        logits.iter_mut().for_each(|x| *x = if coarse { (*x * 3.0).round() } else { *x * 8.0 });
        let bias = noise(seed ^ 99, routing.experts);
        let bias = biased.then_some(&bias[..]);
        let routes = everywhere(&logits, &routing, bias);
        for (row, logits) in logits.chunks_exact(routing.experts).enumerate() {
            let ranks = ranks_of(logits, &routing, bias);
            let (experts, weights) = twin(logits, &routing, bias, &ranks);
            let own = row * routing.used..(row + 1) * routing.used;
            prop_assert_eq!(&routes.experts[own.clone()], &experts[..], "row {}", row);
            for (&got, want) in routes.weights[own.clone()].iter().zip(weights) {
                prop_assert!((f64::from(got) - want).abs() <= WEIGHT_TOLERANCE * want.abs() + 1e-30, "{} for {}", got, want);
            }
            // Alone, to the bit.
            let mut alone = Routes::try_new(1, routing.used).unwrap();
            route(&Pool::new(1), Isa::best(), logits, &routing, bias, &mut alone);
            prop_assert_eq!(&alone.experts[..], &experts[..]);
            prop_assert_eq!(&alone.weights[..], &routes.weights[own]);
        }
    }

    #[test]
    fn pairs_come_back_to_their_rows(
        routing in routings(), rows in 1..40usize, cols in 1..70usize, seed in 1u64..
    ) {
        let logits = noise(seed, rows * routing.experts);
        let routes = everywhere(&logits, &routing, None);
        let pairs = routes.pairs();
        let gathered = noise(seed ^ 1, pairs * cols);
        // A pair's source is its row, and its expert the one of its run.
        for run in routes.runs() {
            for pair in run.pairs.clone() {
                let row = routes.sources()[pair] as usize;
                let choice = routes.of_row(row).0.iter().position(|&e| e as usize == run.expert);
                let choice = choice.expect("an expert of the row");
                prop_assert_eq!(routes.pairs[row * routing.used + choice] as usize, pair);
            }
        }
        let mut want = vec![0.0; rows * cols];
        for (index, out) in want.iter_mut().enumerate() {
            let (row, col) = (index / cols, index % cols);
            for choice in 0..routing.used {
                let at = row * routing.used + choice;
                let value = gathered[routes.pairs[at] as usize * cols + col];
                *out = if choice == 0 { routes.weights[at] * value } else { routes.weights[at].mul_add(value, *out) };
            }
        }
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            for isa in Isa::available() {
                let mut buffer = vec![SENTINEL; rows * cols + 2 * SENTINELS];
                combine(&pool, isa, &routes, cols, &gathered, &mut buffer[SENTINELS..][..rows * cols]);
                prop_assert_eq!(&buffer[SENTINELS..][..rows * cols], &want[..], "{} {}", isa.name(), threads);
                let gaps = [0..SENTINELS, buffer.len() - SENTINELS..buffer.len()];
                prop_assert!(gaps.into_iter().flatten().all(|i| buffer[i] == SENTINEL));
            }
        }
    }
}

#[test]
fn ties_go_to_the_lower_expert() {
    let routing = Routing {
        experts: 8,
        used: 3,
        scores: RoutingScores::Softmax,
        groups: 1,
        groups_used: 1,
        normalise: true,
        scale: 1.0,
    };
    let routes = everywhere(&[1.0, 2.0, 1.0, 2.0, 1.0, 0.0, 2.0, 2.0], &routing, None);
    assert_eq!(routes.experts[..3], [1, 3, 6]);
    assert!(routes.weights[..3].iter().all(|w| *w == routes.weights[0]));
    // Groups of two: 1 + 2 twice, then 1, then 4.
    let grouped = Routing { groups: 4, groups_used: 2, ..routing };
    let routes = everywhere(&[1.0, 2.0, 1.0, 2.0, 1.0, 0.0, 2.0, 2.0], &grouped, None);
    assert_eq!(routes.experts[..3], [1, 6, 7]);
}

#[test]
fn a_bias_moves_the_choice_and_not_the_weight() {
    for scores in [RoutingScores::Softmax, RoutingScores::Sigmoid] {
        let routing =
            Routing { experts: 4, used: 1, scores, groups: 1, groups_used: 1, normalise: false, scale: 1.0 };
        let logits = [3.0, 0.0, 0.0, 1.0];
        let free = everywhere(&logits, &routing, None);
        let moved = everywhere(&logits, &routing, Some(&[0.0, 0.0, 5.0, 0.0]));
        assert_eq!((free.experts[0], moved.experts[0]), (0, 2));
        let want = if scores == RoutingScores::Sigmoid { 0.5 } else { 1.0 / (3f32.exp() + 2.0 + 1f32.exp()) };
        assert!((moved.weights[0] - want).abs() < 1e-6, "{} for {want}", moved.weights[0]);
    }
}

#[test]
fn a_small_sum_does_not_make_large_weights() {
    let routing = Routing {
        experts: 4,
        used: 2,
        scores: RoutingScores::Sigmoid,
        groups: 1,
        groups_used: 1,
        normalise: true,
        scale: 2.0,
    };
    let routes = everywhere(&[-20.0, -21.0, -30.0, -31.0], &routing, None);
    let want = (-20f64).exp() / f64::from(SMALLEST_WEIGHT_SUM) * 2.0;
    assert!((f64::from(routes.weights[0]) / want - 1.0).abs() < 1e-5);
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    const COLS: usize = 21;
    for scores in [RoutingScores::Softmax, RoutingScores::Sigmoid, RoutingScores::SoftmaxOfChosen] {
        for (groups, groups_used) in [(1, 1), (4, 2)] {
            let routing =
                Routing { experts: 24, used: 5, scores, groups, groups_used, normalise: true, scale: 1.0 };
            let clean = noise(5, 4 * routing.experts);
            let want = everywhere(&clean, &routing, None);
            let mut logits = clean;
            logits[routing.experts + 7] = f32::NAN;
            logits[2 * routing.experts..3 * routing.experts].fill(f32::NAN);
            let routes = everywhere(&logits, &routing, None);
            let gathered = noise(6, 4 * routing.used * COLS);
            let mut output = vec![0.0; 4 * COLS];
            combine(&Pool::new(2), Isa::best(), &routes, COLS, &gathered, &mut output);
            for row in 0..4 {
                let own = row * routing.used..(row + 1) * routing.used;
                let bad = row == 1 || row == 2;
                assert!(output[row * COLS..(row + 1) * COLS].iter().all(|x| x.is_nan() == bad), "row {row}");
                if !bad {
                    assert_eq!(routes.experts[own.clone()], want.experts[own.clone()]);
                    assert_eq!(routes.weights[own.clone()], want.weights[own]);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "9 of 8 experts")]
fn more_experts_than_the_groups_used_have_are_refused() {
    let routing = Routing {
        experts: 16,
        used: 9,
        scores: RoutingScores::Softmax,
        groups: 4,
        groups_used: 2,
        normalise: true,
        scale: 1.0,
    };
    let mut routes = Routes::try_new(1, 9).unwrap();
    route(&Pool::new(1), Isa::Scalar, &[0.0; 16], &routing, None, &mut routes);
}
