//! Jobs that end with their prompt, whose rows are pooled.

use super::*;
use zllm_engine::{Pool, Pooling};

fn to_embed(id: u64, prompt_tokens: usize) -> NewJob {
    NewJob { pooling: Some(Pooling::Mean), ..new_job(id, prompt_tokens, 0) }
}

/// Computes the step under way: a row of a text is its position and 1.
fn compute(core: &mut Core) -> Vec<Action> {
    let plan = core.in_flight[0].clone();
    let outcome = |row: &PlanRow| {
        let pool = row.pool.clone().map(|mut pool| {
            (row.position..row.position + row.tokens.len()).for_each(|at| pool.add(&[at as f32, 1.0], 2));
            pool
        });
        let accepted = row.samples.then(|| Ok(accepted(7, "x", "")));
        RowOutcome { sequence: row.sequence, accepted, pool }
    };
    let rows = plan.rows.iter().map(outcome).collect();
    step_done(core, rows)
}

fn pooled(tokens: usize) -> Pool {
    let mut pool = Pool::new(Pooling::Mean);
    (0..tokens).for_each(|at| pool.add(&[at as f32, 1.0], 2));
    pool
}

/// What was pooled for each job.
fn pools(actions: &[Action]) -> Vec<(u64, Pool)> {
    let pool = |action: &Action| match action {
        Action::Pooled { job, pool } => Some((job.0, pool.clone())),
        _ => None,
    };
    actions.iter().filter_map(pool).collect()
}

#[test]
fn a_text_is_computed_in_chunks_pooled_once_and_leaves_nothing_in_the_cache() {
    let mut core = core_with(CoreLimits { prefill_chunk_tokens: 60, ..roomy() });
    let asks = core.step(Input::Submit(to_embed(1, 150)), Duration::ZERO);
    let lease = |action: &Action| match action {
        Action::Lease { tokens, capacity_tokens, .. } => Some((tokens.len(), *capacity_tokens)),
        _ => None,
    };
    assert_eq!(asks.iter().find_map(lease), Some((0, 150)), "nothing is looked up, all of it has room");
    assert!(!asks.iter().any(|action| matches!(action, Action::Prefetch { .. })), "{asks:?}");
    let mut all = grant(&mut core, 1, &[0, 1, 2]);
    for _ in 0..3 {
        all.extend(compute(&mut core));
    }
    assert_eq!(pools(&all), [(1, pooled(150))]);
    assert!(
        !all.iter().any(|action| matches!(action, Action::Commit { .. } | Action::Resume { .. })),
        "{all:?}"
    );
    let released = |action: &Action| match action {
        Action::Release { tokens, sampled, parked, .. } => Some((tokens.len(), *sampled, *parked)),
        _ => None,
    };
    assert_eq!(all.iter().filter_map(released).collect::<Vec<_>>(), [(0, 0, false)]);
    let Some(Event::Finished { reason: FinishReason::Stop, usage, .. }) = ending(&all) else {
        panic!("{all:?}")
    };
    assert_eq!((usage.prompt_tokens, usage.generated_tokens), (150, 0));
    assert!(core.is_idle() && plan(&all[all.len() - 1..]).is_none());
    // What the device never knew it need not forget, and what nobody drew is no token.
    assert!(
        !all.iter().any(|action| matches!(action, Action::Forget { .. } | Action::Token { .. })),
        "{all:?}"
    );
}

#[test]
fn it_runs_beside_answers_and_neither_takes_the_others_row() {
    let mut core = core_with(roomy());
    core.step(Input::Submit(to_embed(1, 20)), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(job(2, 3, 3), Duration::ZERO);
    grant(&mut core, 2, &[1]);
    let mut all = Vec::new();
    while !core.is_idle() {
        all.extend(compute(&mut core));
    }
    assert_eq!(pools(&all), [(1, pooled(20))]);
    let tokens =
        all.iter().filter(|action| matches!(action, Action::Token { job: JobNumber(2), .. })).count();
    assert_eq!(tokens, 3);
}

#[test]
fn one_that_gave_way_begins_anew() {
    let mut core = core_with(CoreLimits { running_jobs: 1, ..roomy() });
    core.step(Input::Submit(NewJob { class: Class::Batch, ..to_embed(1, 20) }), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    compute(&mut core);
    core.step(Input::Submit(NewJob { class: Class::Interactive, ..new_job(2, 3, 1) }), Duration::ZERO);
    let actions = compute(&mut core);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Release { parked: true, .. })),
        "{actions:?}"
    );
    assert_eq!(asked(&actions), [2]);
    grant(&mut core, 2, &[0]);
    assert_eq!(asked(&compute(&mut core)), [1]);
    let mut all = grant(&mut core, 1, &[0]);
    let first = core.in_flight[0].rows[0].clone();
    assert_eq!((first.position, first.pool), (0, Some(Pool::new(Pooling::Mean))));
    while !core.is_idle() {
        all.extend(compute(&mut core));
    }
    assert_eq!(pools(&all), [(1, pooled(20))]);
    assert!(!all.iter().any(|action| matches!(action, Action::Resume { .. })), "it has no sampler: {all:?}");
}

#[test]
fn one_that_is_cancelled_gives_nothing() {
    let mut core = core();
    core.step(Input::Submit(to_embed(1, 20)), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(Input::OwnerGone(ConnectionId(0)), Duration::ZERO);
    let all = compute(&mut core);
    assert!(pools(&all).is_empty());
    assert!(matches!(ending(&all), Some(Event::Finished { reason: FinishReason::Cancelled, .. })), "{all:?}");
    assert!(core.is_idle());
}

#[test]
fn texts_do_not_go_first_for_a_prefix_that_they_cannot_share() {
    let mut core = core_with(CoreLimits { running_jobs: 1, ..roomy() });
    core.step(job(1, 30, 1), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(Input::Submit(NewJob { prompt: vec![2; 40], ..to_embed(2, 40) }), Duration::ZERO);
    core.step(Input::Submit(to_embed(3, 31)), Duration::ZERO);
    let mut all = Vec::new();
    while !core.is_idle() && asked(&all).is_empty() {
        all = compute(&mut core);
    }
    assert_eq!(asked(&all), [2], "in the order of arrival");
}
