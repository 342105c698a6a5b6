//! The sampler against a naive f64 twin that sorts everything, against chi-square bounds, and against golden draws.

use super::candidates::{self, Candidate};
use super::distribution::{Distribution, Filters};
use super::random::{Stream, random_stream_u64};
use super::{
    MAX_DRY_BREAKERS, MAX_LOGIT_BIASES, Sampler, SamplerState, SamplingError, SamplingParams,
    log_probabilities, mirostat, random_u64, temperature, typical, xtc,
};
use proptest::prelude::*;

/// Ids and probabilities that the chain keeps, by the book; `None` if a limit falls too near a token to compare.
fn twin(logits: &[f32], filters: &Filters) -> Option<Vec<(u32, f64)>> {
    let max = logits
        .iter()
        .copied()
        .filter(|logit| !logit.is_nan())
        .fold(f64::NEG_INFINITY, |max, v| max.max(v.into()));
    let likelihood = |&logit: &f32| ((f64::from(logit) - max) / f64::from(filters.temperature)).exp();
    let mut ranked: Vec<(u32, f64)> =
        (0..).zip(logits.iter().map(likelihood)).filter(|(_, p)| !p.is_nan()).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if filters.top_k > 0 {
        ranked.truncate(filters.top_k);
    }
    let total: f64 = ranked.iter().map(|(_, p)| p).sum();
    if filters.top_p < 1.0 {
        let mut sum = 0.0;
        let mut kept = 0;
        for &(_, p) in &ranked {
            sum += p / total;
            kept += 1;
            if (sum - f64::from(filters.top_p)).abs() < 1e-5 {
                return None;
            }
            if sum > f64::from(filters.top_p) {
                break;
            }
        }
        ranked.truncate(kept);
    }
    if ranked
        .iter()
        .any(|(_, p)| (p - f64::from(filters.min_p)).abs() < 1e-6 && (1e-6..1.0).contains(&filters.min_p))
    {
        return None;
    }
    ranked.retain(|&(_, p)| p >= f64::from(filters.min_p));
    let total: f64 = ranked.iter().map(|(_, p)| p).sum();
    Some(ranked.into_iter().map(|(id, p)| (id, p / total)).collect())
}

/// How often each token comes up over evenly spread random numbers: a token owns one stretch of them, so its count
/// must be its share to within one.
fn shares(logits: &[f32], filters: &Filters, draws: u64) -> Vec<u64> {
    let mut counts = vec![0; logits.len()];
    let mut distribution = Distribution::default();
    for draw in 0..draws {
        let random = (u64::MAX / draws) * draw + u64::MAX / draws / 2;
        distribution.read(logits);
        counts[distribution.draw(&mut logits.to_vec(), filters, random) as usize] += 1;
    }
    counts
}

fn assert_as_twin(logits: &[f32], filters: &Filters) -> Result<(), TestCaseError> {
    const DRAWS: u64 = 500;
    let expected =
        twin(logits, filters).ok_or_else(|| TestCaseError::reject("a limit lies too near a token"))?;
    let counts = shares(logits, filters, DRAWS);
    for (id, &count) in (0u32..).zip(&counts) {
        let probability = expected.iter().find(|kept| kept.0 == id).map_or(0.0, |kept| kept.1);
        let share = probability * DRAWS as f64;
        prop_assert!(
            (count as f64 - share).abs() < 1.01,
            "token {id}: drawn {count}, expected {share}, {filters:?}"
        );
        prop_assert!(probability > 0.0 || count == 0, "token {id} should not be kept: {filters:?}");
    }
    Ok(())
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        // Multiples of 1/8 make ties; ties must break by id.
        20 => (-40i32..40).prop_map(|eighths| eighths as f32 / 8.0),
        10 => -30.0f32..30.0,
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn draws_as_the_sorted_twin(
        mut logits in prop::collection::vec(logit(), 1..400),
        anchor in -5.0f32..20.0,
        temperature in 0.1f32..4.0,
        top_k in prop_oneof![Just(0usize), 1usize..8, 1usize..500],
        top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
        min_p in prop_oneof![Just(0.0f32), Just(1e-20), Just(1.0), 0.0f32..0.5],
    ) {
        logits[0] = anchor;
        assert_as_twin(&logits, &Filters { temperature, top_k, top_p, min_p })?;
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest(logits in prop::collection::vec(logit(), 1..300)) {
        let best = (0u32..).zip(&logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY)
            .fold(None, |best: Option<(u32, f32)>, (id, &logit)| match best {
                Some(best) if best.1 >= logit => Some(best),
                _ => Some((id, logit)),
            });
        let mut sampler = Sampler::new(SamplingParams::greedy(), &[]);
        let drawn = sampler.sample(&mut logits.clone(), 0);
        prop_assert_eq!(drawn, best.map_or(0, |best| best.0));
        prop_assert_eq!(sampler.was_degenerate(), best.is_none());
        let mut hot = Sampler::new(SamplingParams { top_k: 1, temperature: 2.0, ..SamplingParams::greedy() }, &[]);
        prop_assert_eq!(hot.sample(&mut logits.clone(), 0), drawn);
    }

    #[test]
    fn penalties_as_counted_afresh(
        tokens in prop::collection::vec(0u32..12, 0..60),
        split in 0usize..60,
        repeat_last_n in prop_oneof![Just(0u32), Just(u32::MAX), 1u32..40],
        repeat_penalty in 0.5f32..2.0,
        frequency_penalty in -2.0f32..2.0,
        presence_penalty in -2.0f32..2.0,
    ) {
        let params = SamplingParams { repeat_last_n, repeat_penalty, frequency_penalty, presence_penalty, ..SamplingParams::greedy() };
        let original: Vec<f32> = (0..10).map(|id| id as f32 * 0.75 - 3.0).collect();
        let (prompt, generated) = tokens.split_at(split.min(tokens.len()));
        let mut penalties = super::penalties::Penalties::new(&params, prompt);
        generated.iter().for_each(|&token| penalties.push(token));
        let mut logits = original.clone();
        penalties.apply(&mut logits);
        let window = &tokens[tokens.len().saturating_sub(repeat_last_n as usize)..];
        for (id, &logit) in (0u32..).zip(&original) {
            let count = window.iter().filter(|&&token| token == id).count();
            let expected = match count {
                0 => logit,
                _ if logit > 0.0 => logit / repeat_penalty - (count as f32 * frequency_penalty + presence_penalty),
                _ => logit * repeat_penalty - (count as f32 * frequency_penalty + presence_penalty),
            };
            prop_assert_eq!(logits[id as usize], expected);
        }
    }

    #[test]
    fn log_probabilities_as_sorted(logits in prop::collection::vec(logit(), 0..200), top_n in 0usize..250) {
        let filters = Filters { temperature: 1.0, top_k: top_n.max(1), top_p: 1.0, min_p: 0.0 };
        let usable: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&l| f64::from(l)))
            .filter(|(_, logit)| *logit > f64::NEG_INFINITY).collect();
        let log_sum = usable.iter().map(|(_, logit)| logit.exp()).sum::<f64>().ln();
        let got = log_probabilities(&logits, top_n);
        prop_assert_eq!(got.len(), top_n.min(usable.len()));
        for &(id, value) in &got {
            prop_assert!((f64::from(value) - (f64::from(logits[id as usize]) - log_sum)).abs() < 1e-5);
        }
        let ranked = twin(&logits, &filters).expect("no limit but top-k");
        prop_assert!(got.iter().map(|kept| kept.0).eq(ranked.iter().map(|kept| kept.0).take(got.len())));
    }
}

/// A row as candidates, and as ids with their probabilities.
type Row = (Vec<Candidate>, Vec<(u32, f64)>);

/// What is left of a row at a temperature, as candidates and by the book: ids and probabilities, of those that weigh.
/// Rejects a row with a candidate so near the least weight that f32 cannot tell.
fn open_row(logits: &[f32], temperature: f32) -> Result<Row, TestCaseError> {
    let filters = Filters { temperature, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let mut kept = Vec::new();
    let mut distribution = Distribution::default();
    distribution.read(logits);
    distribution.keep(&mut logits.to_vec(), &filters, &mut kept);
    let ranked = twin(logits, &filters).expect("there is no limit");
    // A candidate of less than 2^-41 of the largest weight has none.
    let least = ranked[0].1 * 0.5f64.powi(41);
    if ranked.iter().any(|&(_, p)| (p / least - 1.0).abs() < 1e-3) {
        return Err(TestCaseError::reject("undecidable in f32"));
    }
    let all: Vec<(u32, f64)> = ranked.into_iter().filter(|&(_, p)| p > least).collect();
    Ok((kept, all))
}

fn ids_of(candidates: &[Candidate]) -> Vec<u32> {
    candidates.iter().map(|candidate| candidate.id).collect()
}

fn sorted_ids(pairs: &[(u32, f64)]) -> Vec<u32> {
    let mut ids: Vec<u32> = pairs.iter().map(|pair| pair.0).collect();
    ids.sort_unstable();
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn typical_as_the_paper_says(
        mut logits in prop::collection::vec(logit(), 1..300),
        anchor in -5.0f32..20.0,
        temperature in 0.3f32..3.0,
        typical_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
    ) {
        logits[0] = anchor;
        let (mut found, all) = open_row(&logits, temperature)?;
        typical::keep(&mut found, typical_p, &mut Vec::new());
        let entropy: f64 = all.iter().map(|(_, p)| -p * p.ln()).sum();
        let distance = |p: f64| (-p.ln() - entropy).abs();
        let mut ordered = all.clone();
        ordered.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)).then(b.1.total_cmp(&a.1)).then(a.0.cmp(&b.0)));
        let (mut sum, mut count) = (0.0, 0);
        for (place, &(_, p)) in ordered.iter().enumerate() {
            sum += p;
            count = place + 1;
            if sum >= f64::from(typical_p) {
                break;
            }
        }
        // Undecidable in f32: a sum at the limit, or different tokens equally far from typical at the cut.
        let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
        let last = ordered[count - 1].1;
        prop_assume!(!near(sum, typical_p.into()) && !near(sum - last, typical_p.into()));
        prop_assume!(ordered.iter().all(|&(_, p)| p == last || !near(distance(p), distance(last))));
        prop_assert_eq!(ids_of(&found), sorted_ids(&ordered[..count]));
    }

    #[test]
    fn xtc_leaves_out_all_likely_tokens_but_the_least(
        mut logits in prop::collection::vec(logit(), 1..300),
        anchor in -5.0f32..20.0,
        temperature in 0.3f32..3.0,
        threshold in prop_oneof![Just(0.0f32), 0.0f32..0.5, 0.0f32..0.05],
    ) {
        logits[0] = anchor;
        let (mut found, all) = open_row(&logits, temperature)?;
        xtc::leave_out(&mut found, threshold);
        prop_assume!(all.iter().all(|(_, p)| threshold == 0.0 || (p / f64::from(threshold) - 1.0).abs() > 1e-4));
        let likely = all.iter().filter(|(_, p)| *p >= f64::from(threshold)).count();
        prop_assert_eq!(ids_of(&found), sorted_ids(&all[likely.saturating_sub(1)..]));
    }

    #[test]
    fn mirostat_leaves_out_what_surprises_more_than_its_bound(
        mut logits in prop::collection::vec(logit(), 1..300),
        anchor in -5.0f32..20.0,
        temperature in 0.3f32..3.0,
        mu in prop_oneof![Just(-5.0f32), Just(2000.0), -1.0f32..12.0],
        random in any::<u64>(),
    ) {
        logits[0] = anchor;
        let (mut found, all) = open_row(&logits, temperature)?;
        mirostat::keep(&mut found, mu);
        prop_assume!(all.iter().all(|(_, p)| (-p.log2() - f64::from(mu)).abs() > 1e-4));
        let stay = all.iter().filter(|(_, p)| -p.log2() <= f64::from(mu)).count().max(1);
        prop_assert_eq!(ids_of(&found), sorted_ids(&all[..stay]));
        let sum: f64 = all[..stay].iter().map(|(_, p)| p).sum();
        let drawn = candidates::draw(&found, random);
        let p = all.iter().find(|pair| pair.0 == drawn.id).expect("it was kept").1;
        let surprise = mirostat::surprise(&found, drawn);
        prop_assert!((f64::from(surprise) + (p / sum).log2()).abs() < 1e-3, "{surprise} of {}", p / sum);
    }

    #[test]
    fn dynamic_temperature_follows_the_entropy(
        mut logits in prop::collection::vec(logit(), 2..300),
        anchor in -5.0f32..20.0,
        temperature in 0.0f32..3.0,
        range in 0.01f32..3.0,
        exponent in prop_oneof![Just(0.0f32), Just(1.0), 0.1f32..4.0],
    ) {
        logits[0] = anchor;
        let usable = logits.iter().filter(|logit| **logit > f32::NEG_INFINITY).count();
        let found = temperature::dynamic(&logits, temperature, range, exponent);
        if usable < 2 {
            prop_assert_eq!(found, temperature);
            return Ok(());
        }
        let all = twin(&logits, &Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }).expect("no limit");
        let entropy: f64 = all.iter().filter(|(_, p)| *p > 0.0).map(|(_, p)| -p * p.ln()).sum();
        let (low, high) = (f64::from(temperature - range).max(0.0), f64::from(temperature + range));
        let expected = low + (high - low) * (entropy / (usable as f64).ln()).powf(exponent.into());
        prop_assert!((f64::from(found) - expected).abs() < 1e-4 * (1.0 + high), "{found}, expected {expected}");
    }
}

#[test]
fn draws_among_candidates_follow_their_weights() {
    let logits: Vec<f32> = (0..30).map(|id| ((id * 7) % 30) as f32 / 10.0).collect();
    let (kept, all) = open_row(&logits, 1.0).expect("far from the least weight");
    const DRAWS: u64 = 1000;
    let mut counts = [0u64; 30];
    for draw in 0..DRAWS {
        counts[candidates::draw(&kept, (u64::MAX / DRAWS) * draw + u64::MAX / DRAWS / 2).id as usize] += 1;
    }
    for (id, probability) in all {
        let (count, share) = (counts[id as usize] as f64, probability * DRAWS as f64);
        assert!((count - share).abs() < 1.01, "token {id}: drawn {count}, expected {share}");
    }
}

#[test]
fn xtc_is_due_as_often_as_it_should_be_and_apart_from_the_draw() {
    for probability in [0.0f32, 0.25, 0.7, 1.0] {
        let due = |position| xtc::is_due(probability, random_stream_u64(5, position, Stream::Xtc));
        let count = (0..10_000).filter(|&position| due(position)).count() as f64;
        assert!(
            (count - 10_000.0 * f64::from(probability)).abs() <= 150.0,
            "{count} of 10000 at {probability}"
        );
    }
    assert!(!xtc::is_due(0.0, 0) && xtc::is_due(1.0, u64::MAX));
    // With the draw's own bits XTC would be due exactly where the draw falls on the first candidates.
    let same = (0..10_000u64).filter(|&at| {
        (random_u64(5, at) < u64::MAX / 2) == xtc::is_due(0.5, random_stream_u64(5, at, Stream::Xtc))
    });
    assert!((same.count() as f64 - 5000.0).abs() < 200.0);
}

/// Chi-square of draws with `filters` against the twin with `claimed`, and its degrees of freedom; tokens expected
/// fewer than five times are pooled.
fn chi_square(filters: &Filters, claimed: &Filters, logits: &[f32], seed: u64) -> (f64, usize) {
    const DRAWS: u64 = 20_000;
    let params = SamplingParams {
        temperature: filters.temperature,
        top_k: filters.top_k as u32,
        top_p: filters.top_p,
        min_p: filters.min_p,
        seed,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, &[]);
    let mut counts = vec![0u64; logits.len()];
    for position in 0..DRAWS {
        counts[sampler.sample(&mut logits.to_vec(), position) as usize] += 1;
    }
    let expected = twin(logits, claimed).expect("limits lie between tokens");
    assert_eq!(counts.iter().sum::<u64>(), expected.iter().map(|kept| counts[kept.0 as usize]).sum::<u64>());
    let (mut sum, mut cells, mut pooled, mut pooled_count) = (0.0, 0, 0.0, 0.0);
    for (id, probability) in expected {
        let share = probability * DRAWS as f64;
        let count = counts[id as usize] as f64;
        if share < 5.0 {
            pooled += share;
            pooled_count += count;
        } else {
            sum += (count - share).powi(2) / share;
            cells += 1;
        }
    }
    if pooled > 0.0 {
        sum += (pooled_count - pooled).powi(2) / pooled;
        cells += 1;
    }
    (sum, cells - 1)
}

/// Wilson and Hilferty's approximation of the chi-square quantile at 3.1 standard deviations (1 in 1000).
fn bound(degrees: usize) -> f64 {
    let k = degrees as f64;
    k * (1.0 - 2.0 / (9.0 * k) + 3.1 * (2.0 / (9.0 * k)).sqrt()).powi(3)
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..200).map(|id| ((id * 37) % 200) as f32 / 25.0).collect();
    for (seed, (temperature, top_k, top_p, min_p)) in
        [(1.0, 0, 1.0, 0.0), (0.6, 0, 0.9, 0.0), (2.0, 50, 1.0, 0.0), (1.5, 0, 0.97, 0.1)]
            .into_iter()
            .enumerate()
    {
        let filters = Filters { temperature, top_k, top_p, min_p };
        let (sum, degrees) = chi_square(&filters, &filters, &logits, seed as u64);
        assert!(sum < bound(degrees), "{filters:?}: chi-square {sum} with {degrees} degrees of freedom");
    }
    // The canary: draws at one temperature must not pass for those at another.
    let claimed = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let (sum, degrees) = chi_square(&Filters { temperature: 1.1, ..claimed }, &claimed, &logits, 0);
    assert!(sum > bound(degrees), "chi-square {sum} should exceed the bound");
}

fn synthetic_row(length: u64, row: u64) -> Vec<f32> {
    (0..length).map(|id| (random_u64(row, id) >> 40) as f32 / (1 << 21) as f32).collect()
}

#[test]
fn golden_draws_stay() {
    let params = SamplingParams {
        repeat_penalty: 1.1,
        presence_penalty: 0.5,
        logit_bias: vec![(3, 2.0), (7, -1.0)],
        seed: 42,
        ..SamplingParams::default()
    };
    let draw = |params: &SamplingParams| -> Vec<u32> {
        let mut sampler = Sampler::new(params.clone(), &[5, 6, 7]);
        (3..15).map(|position| sampler.sample(&mut synthetic_row(1000, position), position)).collect()
    };
    assert_eq!(draw(&params), GOLDEN_DEFAULT);
    let open = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, temperature: 1.3, ..params };
    assert_eq!(draw(&open), GOLDEN_OPEN);
}
// Made by this sampler when its chain had passed the tests above; they pin every bit of the chain from then on.
const GOLDEN_DEFAULT: [u32; 12] = [230, 839, 550, 843, 4, 3, 751, 52, 467, 713, 806, 266];
const GOLDEN_OPEN: [u32; 12] = [903, 0, 704, 655, 772, 962, 406, 826, 541, 283, 518, 487];

#[test]
fn a_resumed_sequence_goes_on_the_same() {
    let params =
        SamplingParams { frequency_penalty: 1.0, repeat_penalty: 1.3, seed: 9, ..SamplingParams::default() };
    let mut tokens = vec![1, 2, 3];
    let mut sampler = Sampler::new(params.clone(), &tokens);
    for position in 3..40 {
        tokens.push(sampler.sample(&mut synthetic_row(50, position % 3), position));
    }
    for start in 3..40 {
        let mut resumed = Sampler::new(params.clone(), &tokens[..start]);
        for (position, &token) in tokens.iter().enumerate().skip(start) {
            assert_eq!(resumed.sample(&mut synthetic_row(50, position as u64 % 3), position as u64), token);
        }
    }
}

#[test]
fn mirostat_goes_on_from_its_state_and_keeps_the_surprise_near_its_aim() {
    let params =
        SamplingParams { mirostat_tau: 3.0, mirostat_eta: 0.2, seed: 4, ..SamplingParams::mirostat() };
    assert_eq!(params.validate(500), Ok(()));
    let row = |position: u64| -> Vec<f32> {
        synthetic_row(500, position).iter().map(|logit| logit * 1.5).collect()
    };
    let mut sampler = Sampler::new(params.clone(), &[]);
    assert_eq!(sampler.state(), SamplerState { mirostat_mu: 6.0 });
    let (mut states, mut tokens, mut surprises) = (vec![sampler.state()], Vec::new(), 0.0);
    for position in 0..200 {
        let before = sampler.state().mirostat_mu;
        tokens.push(sampler.sample(&mut row(position), position));
        states.push(sampler.state());
        // mu' = mu - eta (surprise - tau)
        surprises += (before - sampler.state().mirostat_mu) / 0.2 + 3.0;
    }
    let mean = surprises / 200.0;
    assert!((mean - 3.0).abs() < 0.3, "the mean surprise is {mean} bits");
    let text = serde_json::to_string(&states[77]).expect("a state is plain data");
    let state = serde_json::from_str(&text).expect("what was written");
    let mut resumed = Sampler::new(params.clone(), &tokens[..77]).resume_from(state);
    for position in 77..200 {
        assert_eq!(resumed.sample(&mut row(position), position), tokens[position as usize]);
    }
    // The canary: without its state another sequence comes.
    let mut lost = Sampler::new(params, &tokens[..77]);
    let others = (77..200).filter(|&at| lost.sample(&mut row(at), at) != tokens[at as usize]).count();
    assert!(others > 0, "mu makes no difference");
}

#[test]
fn forbidden_tokens_are_not_drawn_whatever_their_bias() {
    let params = SamplingParams { logit_bias: vec![(3, 1000.0), (4, 500.0)], ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(params, &[]);
    assert_eq!(sampler.sample(&mut [0.0; 6], 0), 3);
    assert_eq!(sampler.sample_except(&mut [0.0; 6], 1, &[3, 900]), 4);
    assert_eq!(sampler.sample_except(&mut [0.0; 6], 2, &[3, 4, 0]), 1);
    sampler.sample_except(&mut [0.0; 2], 3, &[0, 1]);
    assert!(sampler.was_degenerate());
}

#[test]
fn the_chain_goes_in_its_documented_order() {
    let draw = |params: &SamplingParams, logits: &[f32]| {
        Sampler::new(params.clone(), &[1, 1]).sample(&mut logits.to_vec(), 2)
    };
    // A penalty before the bias: 4 / 2 + 1 < 3.5. The other way round it would be (4 + 1) / 2 too, but for token 2: -1 * 2 + 4.
    let penalty =
        SamplingParams { repeat_penalty: 2.0, logit_bias: vec![(1, 1.0)], ..SamplingParams::greedy() };
    assert_eq!(draw(&penalty, &[3.2, 4.0]), 0, "4 / 2 + 1 = 3");
    assert_eq!(draw(&penalty, &[2.8, 4.0]), 1, "(4 + 1) / 2 = 2.5 would lose");
    // Temperature before top-p: at 10 the two are alike, and a share of 0.6 needs both; at 1 the first has 0.88.
    let hot = SamplingParams { temperature: 10.0, top_p: 0.6, ..SamplingParams::greedy() };
    let drawn: Vec<u32> =
        (0..50).map(|seed| draw(&SamplingParams { seed, ..hot.clone() }, &[2.0, 0.0])).collect();
    assert!(drawn.contains(&0) && drawn.contains(&1), "{drawn:?}");
    // XTC after top-k: the least likely of the two that are left stays, not one from the tail.
    let xtc = SamplingParams { temperature: 1.0, top_k: 2, xtc_probability: 1.0, ..SamplingParams::greedy() };
    assert_eq!(draw(&xtc, &[3.0, 2.9, 2.8, 2.7]), 1);
    // DRY before everything that draws: token 1 would prolong "1", so it loses.
    let dry = SamplingParams { dry_multiplier: 5.0, dry_allowed_length: 1, ..SamplingParams::greedy() };
    assert_eq!(draw(&dry, &[0.0, 4.0]), 0);
}

#[test]
fn answers_to_one_prompt_have_seeds_of_their_own() {
    let params = SamplingParams { seed: 9, ..SamplingParams::default() };
    assert_eq!(params.for_choice(0), params);
    let mut seeds: Vec<u64> = (0..16).map(|choice| params.for_choice(choice).seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 16);
    assert_ne!(params.for_choice(1).seed, SamplingParams::default().for_choice(1).seed);
}

#[test]
fn rows_without_a_usable_logit_give_token_zero_and_say_so() {
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        let mut sampler = Sampler::new(params, &[]);
        assert_eq!(sampler.sample(&mut [f32::NAN, f32::NEG_INFINITY, f32::NAN], 0), 0);
        assert!(sampler.was_degenerate());
        assert_eq!(sampler.sample(&mut [f32::NAN, 1.0, f32::NEG_INFINITY], 1), 1);
        assert!(!sampler.was_degenerate());
        assert_ne!(sampler.sample(&mut [f32::NAN, f32::MAX, f32::INFINITY], 2), 0);
    }
    assert!(log_probabilities(&[f32::NAN, f32::NEG_INFINITY], 3).is_empty());
}

type Change = fn(&mut SamplingParams);

/// Parameters that only tune others, and what turns these on.
const TUNED: [(&str, Change, Change); 11] = [
    ("dynatemp_exponent", |p| p.dynatemp_exponent = 2.0, |p| p.dynatemp_range = 0.5),
    ("xtc_threshold", |p| p.xtc_threshold = 0.2, |p| p.xtc_probability = 0.5),
    (
        "mirostat_tau",
        |p| p.mirostat_tau = 3.0,
        |p| {
            *p = SamplingParams { mirostat_tau: 3.0, ..SamplingParams::mirostat() };
        },
    ),
    (
        "mirostat_eta",
        |p| p.mirostat_eta = 0.2,
        |p| {
            *p = SamplingParams { mirostat_eta: 0.2, ..SamplingParams::mirostat() };
        },
    ),
    ("repeat_last_n", |p| p.repeat_last_n = 32, |p| p.repeat_penalty = 1.1),
    ("repeat_last_n", |p| p.repeat_last_n = 32, |p| p.frequency_penalty = 0.1),
    ("repeat_last_n", |p| p.repeat_last_n = 32, |p| p.presence_penalty = 0.1),
    ("dry_base", |p| p.dry_base = 2.0, |p| p.dry_multiplier = 0.8),
    ("dry_allowed_length", |p| p.dry_allowed_length = 3, |p| p.dry_multiplier = 0.8),
    ("dry_penalty_last_n", |p| p.dry_penalty_last_n = 9, |p| p.dry_multiplier = 0.8),
    ("dry_sequence_breakers", |p| p.dry_sequence_breakers.clear(), |p| p.dry_multiplier = 0.8),
];

const VOCAB_SIZE: usize = 100;

/// The default parameters, so changed, are refused in these words.
fn refuse(change: fn(&mut SamplingParams), message: &str) {
    let mut params = SamplingParams::default();
    change(&mut params);
    assert_eq!(params.validate(VOCAB_SIZE).unwrap_err().to_string(), message);
}

#[test]
fn numbers_out_of_range_are_named() {
    assert_eq!(SamplingParams::default().validate(VOCAB_SIZE), Ok(()));
    assert_eq!(SamplingParams::greedy().validate(VOCAB_SIZE), Ok(()));
    refuse(|p| p.temperature = f32::NAN, "temperature is NaN, must be from 0 to 100");
    refuse(|p| p.temperature = -0.1, "temperature is -0.1, must be from 0 to 100");
    refuse(|p| p.top_p = 1.5, "top_p is 1.5, must be from 0 to 1");
    refuse(|p| p.min_p = -1.0, "min_p is -1, must be from 0 to 1");
    refuse(|p| p.repeat_penalty = 0.0, "repeat_penalty is 0, must be from 0.01 to 100");
    refuse(|p| p.frequency_penalty = f32::INFINITY, "frequency_penalty is inf, must be from -2 to 2");
    refuse(|p| p.presence_penalty = -3.0, "presence_penalty is -3, must be from -2 to 2");
    refuse(|p| p.logit_bias = vec![(1, f32::NAN)], "logit_bias is NaN, must be from -1000 to 1000");
    refuse(
        |p| p.logit_bias = vec![(100, 1.0)],
        "logit_bias names token 100, must be from 0 to 99 (the vocabulary has 100 tokens)",
    );
    refuse(|p| p.typical_p = 1.5, "typical_p is 1.5, must be from 0 to 1");
    refuse(|p| p.dynatemp_range = -1.0, "dynatemp_range is -1, must be from 0 to 100");
    refuse(|p| p.dynatemp_exponent = f32::NAN, "dynatemp_exponent is NaN, must be from 0 to 100");
    refuse(|p| p.xtc_probability = 1.1, "xtc_probability is 1.1, must be from 0 to 1");
    refuse(|p| p.xtc_threshold = 0.6, "xtc_threshold is 0.6, must be from 0 to 0.5");
    refuse(|p| p.mirostat = 1, "mirostat is 1, must be 0 (off) or 2: only the second version is here");
    refuse(|p| p.mirostat_tau = -1.0, "mirostat_tau is -1, must be from 0 to 100");
    refuse(|p| p.mirostat_eta = 2.0, "mirostat_eta is 2, must be from 0 to 1");
    refuse(|p| p.dry_multiplier = -1.0, "dry_multiplier is -1, must be from 0 to 100");
    refuse(|p| p.dry_base = 0.5, "dry_base is 0.5, must be from 1 to 100");
    refuse(|p| p.dry_allowed_length = 0, "dry_allowed_length is 0, must be from 1 to 1024");
    refuse(
        |p| p.dry_sequence_breakers = vec!["x".into(), String::new()],
        "dry_sequence_breakers has one of 0 bytes at place 1, must be from 1 to 40",
    );
    let many = SamplingParams {
        dry_sequence_breakers: vec!["x".into(); MAX_DRY_BREAKERS + 1],
        ..SamplingParams::default()
    };
    assert_eq!(
        many.validate(VOCAB_SIZE),
        Err(SamplingError::TooManyBreakers { count: MAX_DRY_BREAKERS + 1 })
    );
    let many =
        SamplingParams { logit_bias: vec![(0, 0.0); MAX_LOGIT_BIASES + 1], ..SamplingParams::default() };
    assert_eq!(many.validate(VOCAB_SIZE), Err(SamplingError::TooManyBiases { count: MAX_LOGIT_BIASES + 1 }));
}

#[test]
fn contradictions_and_what_has_no_effect_are_named() {
    refuse(
        |p| p.mirostat = 2,
        "top_k cannot be used with mirostat: it decides by itself how many tokens stay",
    );
    refuse(
        |p| *p = SamplingParams { xtc_probability: 0.5, ..SamplingParams::mirostat() },
        "xtc_probability cannot be used with mirostat: it decides by itself how many tokens stay",
    );
    for change in [
        |p: &mut SamplingParams| p.typical_p = 0.5,
        |p: &mut SamplingParams| p.xtc_probability = 0.5,
        |p: &mut SamplingParams| p.mirostat = 2,
    ] {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        let message = params.validate(VOCAB_SIZE).unwrap_err().to_string();
        let why = "cannot be used with temperature 0: the most likely token is taken and nothing is drawn";
        assert!(message.ends_with(why), "{message}");
        // A range makes it a temperature again.
        params.dynatemp_range = 0.5;
        assert_eq!(params.validate(VOCAB_SIZE), Ok(()));
    }
    refuse(
        |p| p.mirostat_tau = 3.0,
        "mirostat_tau has no effect without mirostat; give that too, or leave it out",
    );
    refuse(
        |p| p.repeat_last_n = 0,
        "repeat_last_n has no effect without a repeat, frequency or presence penalty; give that too, or leave it out",
    );
    for (field, tune, turn_on) in TUNED {
        let mut params = SamplingParams::default();
        tune(&mut params);
        let message = params.validate(VOCAB_SIZE).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{field} has no effect without ")), "{message}");
        turn_on(&mut params);
        assert_eq!(params.validate(VOCAB_SIZE), Ok(()), "{field}");
    }
}

#[test]
fn missing_fields_are_the_defaults() {
    let params: SamplingParams = serde_json::from_str(r#"{"top_k": 3, "logit_bias": [[5, -2.5]]}"#).unwrap();
    assert_eq!(params, SamplingParams { top_k: 3, logit_bias: vec![(5, -2.5)], ..SamplingParams::default() });
    let unknown = serde_json::from_str::<SamplingParams>(r#"{"top_q": 3}"#).unwrap_err();
    assert!(unknown.to_string().contains("unknown field `top_q`"), "{unknown}");
}
