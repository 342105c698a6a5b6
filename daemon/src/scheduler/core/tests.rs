//! Single decisions of the core that the simulation meets only by chance.

use super::*;
use crate::scheduler::plan::RowOutcome;
use zllm_state::ByTier;
use zllm_state::index::{Index, IndexOptions};
use zllm_state::{ArenaBudget, BlockKey, Fingerprint};

fn limits() -> CoreLimits {
    CoreLimits {
        queued_jobs: 2,
        queued_prompt_tokens: 1000,
        queued_bytes: 1000,
        running_jobs: 2,
        prefill_chunk_tokens: 8,
    }
}

fn core() -> Core {
    let mut core = Core::new(limits());
    core.step(Input::ModelUp { model: "m".into(), total_blocks: 4 }, Duration::ZERO);
    core
}

fn job(id: u64, prompt_tokens: usize, max_tokens: usize) -> Input {
    Input::Submit(NewJob {
        id: JobNumber(id),
        model: "m".into(),
        tenant: "t".into(),
        prompt: vec![1; prompt_tokens],
        max_tokens,
        choices: 1,
        bytes: 10,
        arrived_at: Duration::ZERO,
        owner: None,
    })
}

fn refusal(actions: &[Action]) -> &Refusal {
    actions
        .iter()
        .find_map(|action| if let Action::Refused { refusal, .. } = action { Some(refusal) } else { None })
        .expect("a refusal")
}

fn plan(actions: &[Action]) -> Option<&StepPlan> {
    actions.iter().find_map(|action| if let Action::Step(plan) = action { Some(plan) } else { None })
}

fn ending(actions: &[Action]) -> Option<&Event> {
    actions.iter().find_map(|action| match action {
        Action::Event { event: event @ (Event::Finished { .. } | Event::Failed { .. }), .. } => Some(event),
        _ => None,
    })
}

fn first(id: u64) -> SequenceId {
    SequenceId { job: JobNumber(id), choice: 0 }
}

/// A lease of `blocks` with so many cached tokens.
fn lease(blocks: &[u32], cached: u64) -> Lease {
    // Any index makes a lease id; one of its own keeps this test apart from the index's rules.
    let mut index = Index::new(IndexOptions::default());
    let budget = ArenaBudget { device_blocks: 1, ram_blocks: 0, block_bytes: 1, stored_bytes: 1 };
    let arena = index.add_arena(budget);
    let root = BlockKey::root(Fingerprint([0; 32]), "");
    let id = index.lease(arena, root, &[1], 1, 0).expect("one block").lease;
    let cached = ByTier { ram: cached, ..ByTier::default() };
    Lease { id, blocks: blocks.into(), cache: CacheReport { cached, outcome: CacheOutcome::Nothing } }
}

fn grant(core: &mut Core, id: u64, blocks: &[u32]) -> Vec<Action> {
    core.step(Input::Leased { sequence: first(id), result: Ok(lease(blocks, 0)) }, Duration::ZERO)
}

fn accepted(token: u32, text: &str, held: &str) -> Accepted {
    Accepted { token, text: text.into(), held: held.into(), logprob: None, finish: None, state: 0.0 }
}

fn done(core: &mut Core, tokens: &[(u64, Option<u32>)]) -> Vec<Action> {
    let rows = tokens
        .iter()
        .map(|&(id, token)| RowOutcome {
            sequence: first(id),
            accepted: token.map(|token| Ok(accepted(token, "x", ""))),
        })
        .collect();
    core.step(Input::StepDone(StepOutcome { rows }), Duration::ZERO)
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_both_numbers() {
    let mut core = core();
    let actions = core.step(job(1, 200, 58), Duration::ZERO);
    let refusal = refusal(&actions);
    assert!(matches!(refusal, Refusal::NeverFits { needed: 5, total: 4, .. }), "{refusal:?}");
    let fits = core.step(job(2, 200, 57), Duration::ZERO);
    assert!(
        matches!(fits[0], Action::Event { event: Event::Queued { .. }, .. }),
        "256 positions are four blocks: {fits:?}"
    );
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let mut core = core();
    core.step(job(1, 10, 5), Duration::ZERO);
    core.step(job(2, 10, 5), Duration::ZERO);
    let actions = core.step(job(3, 10, 5), Duration::ZERO);
    let Refusal::QueueFull { what: "jobs", queued: 2, limit: 2, retry_after } = refusal(&actions) else {
        panic!("{actions:?}")
    };
    assert!(*retry_after >= *RETRY_AFTER.start());
}

#[test]
fn the_bounds_in_tokens_and_bytes_hold_too() {
    let mut core =
        Core::new(CoreLimits { queued_prompt_tokens: 15, queued_bytes: 25, queued_jobs: 9, ..limits() });
    core.step(Input::ModelUp { model: "m".into(), total_blocks: 4 }, Duration::ZERO);
    core.step(job(1, 10, 5), Duration::ZERO);
    let actions = core.step(job(2, 10, 5), Duration::ZERO);
    assert!(matches!(refusal(&actions), Refusal::QueueFull { what: "prompt tokens", .. }));
    core.step(job(3, 1, 5), Duration::ZERO);
    let actions = core.step(job(4, 1, 5), Duration::ZERO);
    assert!(matches!(refusal(&actions), Refusal::QueueFull { what: "request bytes", .. }));
}

#[test]
fn decode_rows_go_with_one_prefill_chunk() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    core.step(job(2, 20, 9), Duration::ZERO);
    let actions = grant(&mut core, 1, &[0]);
    assert_eq!(plan(&actions).expect("the device is free").rows.len(), 1);
    grant(&mut core, 2, &[1]);
    let actions = done(&mut core, &[(1, Some(7))]);
    let rows = &plan(&actions).expect("both go on").rows;
    let shape: Vec<_> =
        rows.iter().map(|row| (row.sequence.job.0, row.position, row.tokens.len(), row.samples)).collect();
    assert_eq!(shape, [(1, 3, 1, true), (2, 0, 8, false)]);
}

#[test]
fn the_last_token_ends_the_job_with_length() {
    let mut core = core();
    core.step(job(1, 3, 1), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    let actions = done(&mut core, &[(1, Some(7))]);
    let Some(Event::Finished { reason: FinishReason::Length, usage, .. }) = ending(&actions) else {
        panic!("{actions:?}")
    };
    assert_eq!((usage.prompt_tokens, usage.generated_tokens), (3, 1));
    assert!(
        actions.iter().any(|action| matches!(action, Action::Release { tokens, .. } if tokens.len() == 3))
    );
    assert!(
        actions.iter().any(|action| matches!(action, Action::Forget { .. })),
        "the device did not end it"
    );
}

#[test]
fn a_cancel_waits_for_the_step_it_is_in_and_for_nothing_else() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    let actions = core.step(Input::Cancel(JobNumber(1)), Duration::ZERO);
    assert!(ending(&actions).is_none(), "the device is writing into its blocks");
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert!(plan(&actions).is_none() && core.is_idle());

    core.step(job(2, 3, 9), Duration::ZERO);
    core.step(job(3, 3, 9), Duration::ZERO);
    let actions = core.step(Input::Cancel(JobNumber(3)), Duration::ZERO);
    assert!(ending(&actions).is_some(), "a waiting job ends at once");
}

#[test]
fn a_sequence_that_gives_no_token_fails_alone_and_gives_its_blocks_back() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    let row = RowOutcome { sequence: first(1), accepted: Some(Err("no number".into())) };
    let actions = core.step(Input::StepDone(StepOutcome { rows: vec![row] }), Duration::ZERO);
    let failed = |action: &Action| matches!(action, Action::Event { event: Event::Failed { message }, .. } if message == "no number");
    assert!(actions.iter().any(failed), "{actions:?}");
    assert!(actions.iter().any(|action| matches!(
        action,
        Action::Release { sequence: SequenceId { job: JobNumber(1), choice: 0 }, .. }
    )));
    assert!(
        !actions.iter().any(|action| matches!(action, Action::Forget { .. })),
        "the device has forgotten it"
    );
    assert!(core.is_idle());
}

#[test]
fn text_that_is_held_back_comes_before_the_cancelled_end() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    let first_token = accepted(7, "", "<en");
    let row = RowOutcome { sequence: first(1), accepted: Some(Ok(first_token)) };
    core.step(Input::StepDone(StepOutcome { rows: vec![row] }), Duration::ZERO);
    core.step(Input::Cancel(JobNumber(1)), Duration::ZERO);
    let second_token = accepted(8, "", "<end");
    let row = RowOutcome { sequence: first(1), accepted: Some(Ok(second_token)) };
    let actions = core.step(Input::StepDone(StepOutcome { rows: vec![row] }), Duration::ZERO);
    let events: Vec<_> = actions
        .iter()
        .filter_map(|action| if let Action::Event { event, .. } = action { Some(event) } else { None })
        .collect();
    assert!(
        matches!(events[..], [Event::Text { text, tokens: 2, .. }, Event::Finished { reason: FinishReason::Cancelled, .. }]
            if text == "<end"),
        "{events:?}"
    );
}

#[test]
fn a_release_that_overtakes_a_refusal_is_not_missed() {
    let mut core = core();
    core.step(job(1, 3, 1), Duration::ZERO);
    grant(&mut core, 1, &[0, 1, 2]);
    core.step(job(2, 100, 100), Duration::ZERO);
    // Job 1 ends while the KV store's refusal for job 2 is on its way.
    done(&mut core, &[(1, Some(7))]);
    let actions =
        core.step(Input::Leased { sequence: first(2), result: Err(NoLease::NotNow) }, Duration::ZERO);
    assert!(
        matches!(actions[0], Action::Lease { sequence: SequenceId { job: JobNumber(2), .. }, .. }),
        "it asks again: {actions:?}"
    );
}

#[test]
fn the_end_of_a_connection_cancels_its_own_jobs() {
    let mut core = core();
    for (id, owner) in [(1, Some(ConnectionId(5))), (2, None)] {
        let Input::Submit(new) = job(id, 3, 9) else { unreachable!() };
        core.step(Input::Submit(NewJob { owner, ..new }), Duration::ZERO);
    }
    grant(&mut core, 1, &[0]);
    grant(&mut core, 2, &[1]);
    core.step(Input::OwnerGone(ConnectionId(5)), Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert_eq!(core.load(), Load { queued_jobs: 0, running_jobs: 1 });
}

/// A job of `choices` answers whose first has its first token, and all of whose others are granted their lease.
fn side_by_side(core: &mut Core, choices: u32) {
    let Input::Submit(new) = job(1, 3, 9) else { unreachable!() };
    core.step(Input::Submit(NewJob { choices, ..new }), Duration::ZERO);
    grant(core, 1, &[0]);
    let actions = done(core, &[(1, Some(7))]);
    assert!(
        matches!(actions[..], [.., Action::Lease { sequence: SequenceId { choice: 1, .. }, .. }, _]),
        "{actions:?}"
    );
    for choice in 1..choices {
        let sequence = SequenceId { job: JobNumber(1), choice };
        core.step(Input::Leased { sequence, result: Ok(lease(&[choice], 0)) }, Duration::ZERO);
    }
    core.check();
}

#[test]
fn answers_behind_the_first_wait_for_the_prompt_and_hold_nobody_back() {
    let mut core = core();
    let Input::Submit(new) = job(1, 20, 9) else { unreachable!() };
    core.step(Input::Submit(NewJob { choices: 2, ..new }), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    // The first chunk of the prompt is out: the second answer waits, another job does not.
    let actions = core.step(job(2, 3, 9), Duration::ZERO);
    assert!(
        matches!(actions[..], [_, Action::Lease { sequence: SequenceId { job: JobNumber(2), .. }, .. }]),
        "{actions:?}"
    );
    assert_eq!(core.load(), Load { queued_jobs: 2, running_jobs: 1 });
}

#[test]
fn a_failing_answer_fails_its_job_once_and_every_lease_comes_back() {
    let mut core = Core::new(CoreLimits { running_jobs: 4, ..limits() });
    core.step(Input::ModelUp { model: "m".into(), total_blocks: 4 }, Duration::ZERO);
    side_by_side(&mut core, 3);
    let in_flight = core.in_flight.clone().expect("a step is out");
    // Whoever is in the step: the first fails, the others get a token.
    let rows = in_flight.rows.iter().enumerate().map(|(at, row)| {
        let result = if at == 0 { Err("no number".to_owned()) } else { Ok(accepted(8, "x", "")) };
        RowOutcome { sequence: row.sequence, accepted: row.samples.then_some(result) }
    });
    let rows = rows.collect();
    let actions = core.step(Input::StepDone(StepOutcome { rows }), Duration::ZERO);
    core.check();
    let endings =
        actions.iter().filter(|action| matches!(action, Action::Event { event: Event::Failed { .. }, .. }));
    assert_eq!(endings.count(), 1, "{actions:?}");
    let released = actions.iter().filter(|action| matches!(action, Action::Release { .. })).count();
    assert_eq!((released, core.is_idle()), (3, true), "{actions:?}");
}

#[test]
fn a_cancel_ends_every_answer_and_counts_what_they_took_together() {
    let mut core = Core::new(CoreLimits { running_jobs: 4, ..limits() });
    core.step(Input::ModelUp { model: "m".into(), total_blocks: 4 }, Duration::ZERO);
    side_by_side(&mut core, 2);
    let mut actions = core.step(Input::Cancel(JobNumber(1)), Duration::ZERO);
    core.check();
    if let Some(plan) = core.in_flight.clone() {
        let outcome = |row: &PlanRow| RowOutcome {
            sequence: row.sequence,
            accepted: row.samples.then(|| Ok(accepted(8, "x", ""))),
        };
        let rows = plan.rows.iter().map(outcome).collect();
        actions = core.step(Input::StepDone(StepOutcome { rows }), Duration::ZERO);
    }
    let Some(Event::Finished { reason: FinishReason::Cancelled, choices, usage }) = ending(&actions) else {
        panic!("{actions:?}")
    };
    assert_eq!(choices.as_slice(), [CANCELLED; 2]);
    assert_eq!((usage.prompt_tokens, core.is_idle()), (3, true));
}

#[test]
fn a_lease_that_begins_inside_of_a_block_commits_it_when_it_is_full() {
    let mut core = Core::new(CoreLimits { prefill_chunk_tokens: 50, ..limits() });
    core.step(Input::ModelUp { model: "m".into(), total_blocks: 4 }, Duration::ZERO);
    core.step(job(1, 140, 9), Duration::ZERO);
    let leased = Input::Leased { sequence: first(1), result: Ok(lease(&[0, 1, 2], 70)) };
    let actions = core.step(leased, Duration::ZERO);
    let row = &plan(&actions).expect("the device is free").rows[0];
    assert_eq!((row.position, row.tokens.len(), row.samples), (70, 50, false));
    let committed = |actions: &[Action]| {
        let commit = |action: &&Action| matches!(action, Action::Commit { tokens, .. } if tokens.len() == BLOCK_TOKENS);
        actions.iter().filter(commit).count()
    };
    let actions = done(&mut core, &[(1, None)]);
    assert_eq!(committed(&actions), 0, "120 tokens do not fill the second block");
    let actions = done(&mut core, &[(1, Some(7))]);
    assert_eq!(committed(&actions), 1, "the first was full before");
    core.step(Input::Cancel(JobNumber(1)), Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(8))]);
    let Some(Action::Release { tokens, cached_tokens: 70, sampled: 2, .. }) =
        actions.iter().find(|action| matches!(action, Action::Release { .. }))
    else {
        panic!("{actions:?}")
    };
    assert_eq!(tokens.len(), 141, "a tail of 13 tokens; the last sampled one was never fed");
}

#[test]
fn a_lease_that_is_late_holds_its_own_model_back_and_no_other() {
    let mut core = core();
    core.step(Input::ModelUp { model: "other".into(), total_blocks: 4 }, Duration::ZERO);
    core.step(job(1, 3, 9), Duration::ZERO);
    let actions = core.step(job(2, 3, 9), Duration::ZERO);
    assert!(!actions.iter().any(|action| matches!(action, Action::Lease { .. })), "{actions:?}");
    // The two that are asking count as running: a third must wait for a place.
    core.cancel_where(Duration::ZERO, |job| job.prefetched);
    let Input::Submit(new) = job(3, 3, 9) else { unreachable!() };
    let actions = core.step(Input::Submit(NewJob { model: "other".into(), ..new }), Duration::ZERO);
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::Lease { sequence, .. } if *sequence == first(3))),
        "{actions:?}"
    );
    core.check();
    grant(&mut core, 3, &[0]);
    let actions = core.step(Input::Cancel(JobNumber(1)), Duration::ZERO);
    assert!(ending(&actions).is_none(), "its lease is on its way");
    let actions = grant(&mut core, 1, &[0]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    let released =
        |action: &Action| matches!(action, Action::Release { sequence, .. } if *sequence == first(1));
    assert!(actions.iter().any(released), "{actions:?}");
}

#[test]
fn the_next_jobs_that_wait_are_brought_nearer_once() {
    let mut core = Core::new(CoreLimits { queued_jobs: 99, running_jobs: 1, ..limits() });
    core.step(Input::ModelUp { model: "m".into(), total_blocks: 4 }, Duration::ZERO);
    let prefetches = |actions: &[Action]| {
        let prefetch = |action: &&Action| matches!(action, Action::Prefetch { tenant, .. } if tenant == "t");
        actions.iter().filter(prefetch).count()
    };
    let actions = core.step(job(0, 3, 1), Duration::ZERO);
    assert_eq!(prefetches(&actions), 0, "it need not wait");
    let waiting: usize = (1..10).map(|id| prefetches(&core.step(job(id, 3, 1), Duration::ZERO))).sum();
    assert_eq!(waiting, PREFETCHED_JOBS);
    let mut actions = grant(&mut core, 0, &[0]);
    actions.extend(done(&mut core, &[(0, Some(7))]));
    assert_eq!(prefetches(&actions), 1, "one has its turn, one moves up: {actions:?}");
}

#[test]
fn a_refusal_without_a_release_to_come_is_asked_again_at_the_next_tick() {
    let mut core = core();
    core.step(job(1, 3, 1), Duration::ZERO);
    let refused = Input::Leased { sequence: first(1), result: Err(NoLease::NotNow) };
    let asks = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Lease { .. }));
    let actions = core.step(refused, Duration::ZERO);
    assert!(!asks(&actions), "{actions:?}");
    let actions = core.step(Input::Tick, Duration::ZERO);
    assert!(asks(&actions), "{actions:?}");
}
