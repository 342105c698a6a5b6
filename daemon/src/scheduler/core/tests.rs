//! Single decisions of the core that the simulation meets only by chance.

mod embeddings;

use super::job::CANCELLED;
use super::*;
use crate::limits::{PREFETCHED_JOBS, RETRY_AFTER};
use crate::scheduler::plan::{Accepted, PlanRow, RowOutcome, StepOutcome};
use std::time::Duration;
use zllm_state::BLOCK_TOKENS;
use zllm_state::ByTier;
use zllm_state::index::{Index, IndexOptions};
use zllm_state::{ArenaBudget, BlockKey, Fingerprint};
use zllm_wire::{ChoiceEnd, Class, Event, FinishReason};

fn limits() -> CoreLimits {
    let queue = Amount { jobs: 2, tokens: 1000, bytes: 1000 };
    CoreLimits {
        queue,
        classes: [queue; 3],
        tenant: queue,
        running_jobs: 2,
        prefill_chunk_tokens: 8,
        pace: None,
        aging: Some(Duration::from_secs(10)),
    }
}

/// Room for many that wait.
fn roomy() -> CoreLimits {
    let queue = Amount { jobs: 99, tokens: 10_000, bytes: 10_000 };
    CoreLimits { queue, classes: [queue; 3], tenant: queue, ..limits() }
}

fn up(core: &mut Core, model: &str) {
    let input = Input::ModelUp { model: model.into(), total_blocks: 4, devices: vec![0] };
    core.step(input, Duration::ZERO);
}

/// A core with these limits and a model.
fn core_with(limits: CoreLimits) -> Core {
    let mut core = Core::new(limits);
    up(&mut core, "m");
    core
}

fn core() -> Core {
    core_with(limits())
}

fn job(id: u64, prompt_tokens: usize, max_tokens: usize) -> Input {
    Input::Submit(new_job(id, prompt_tokens, max_tokens))
}

fn new_job(id: u64, prompt_tokens: usize, max_tokens: usize) -> NewJob {
    NewJob {
        id: JobNumber(id),
        model: "m".into(),
        tenant: "t".into(),
        class: Class::Normal,
        prompt: vec![1; prompt_tokens],
        max_tokens,
        choices: 1,
        pooling: None,
        bytes: 10,
        arrived_at: Duration::ZERO,
        start_by: None,
        deadline: None,
        owner: Some(ConnectionId(0)),
    }
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

/// Jobs whose leases are asked for.
fn asked(actions: &[Action]) -> Vec<u64> {
    let asked = |action: &Action| match action {
        Action::Lease { sequence, .. } => Some(sequence.job.0),
        _ => None,
    };
    actions.iter().filter_map(asked).collect()
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
    Accepted { token, text: text.into(), held: held.into(), logprob: None, state: 0.0, finish: None }
}

fn done(core: &mut Core, tokens: &[(u64, Option<u32>)]) -> Vec<Action> {
    let rows = tokens
        .iter()
        .map(|&(id, token)| RowOutcome {
            sequence: first(id),
            accepted: token.map(|token| Ok(accepted(token, "x", ""))),
            pool: None,
        })
        .collect();
    step_done(core, rows)
}

fn step_done(core: &mut Core, rows: Vec<RowOutcome>) -> Vec<Action> {
    let (model, outcome, took) = ("m".into(), StepOutcome { rows }, Duration::from_millis(1));
    let actions = core.step(Input::StepDone { model, outcome, took }, Duration::ZERO);
    core.check();
    actions
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_both_numbers() {
    let mut core = core();
    let actions = core.step(job(1, 200, 58), Duration::ZERO);
    let refusal = refusal(&actions);
    assert!(matches!(refusal, Refusal::NeverFits { needed: 5, total: 4, .. }), "{refusal:?}");
    let fits = core.step(job(2, 200, 57), Duration::ZERO);
    assert!(
        fits.iter().any(|action| matches!(action, Action::Event { event: Event::Queued { .. }, .. })),
        "256 positions are four blocks: {fits:?}"
    );
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let mut core = core();
    core.step(job(1, 10, 5), Duration::ZERO);
    core.step(job(2, 10, 5), Duration::ZERO);
    let actions = core.step(job(3, 10, 5), Duration::ZERO);
    let Refusal::QueueFull { what: "jobs", queued: 2, limit: 2, retry_after, .. } = refusal(&actions) else {
        panic!("{actions:?}")
    };
    assert!(*retry_after >= *RETRY_AFTER.start());
}

#[test]
fn the_bounds_in_tokens_and_bytes_hold_too() {
    let mut core = core_with(CoreLimits { queue: Amount { jobs: 9, tokens: 15, bytes: 25 }, ..roomy() });
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
    let actions = core.step(Input::Cancel(vec![JobNumber(1)]), Duration::ZERO);
    assert!(ending(&actions).is_none(), "the device is writing into its blocks");
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert!(plan(&actions).is_none() && core.is_idle());

    core.step(job(2, 3, 9), Duration::ZERO);
    core.step(job(3, 3, 9), Duration::ZERO);
    let actions = core.step(Input::Cancel(vec![JobNumber(3)]), Duration::ZERO);
    assert!(ending(&actions).is_some(), "a waiting job ends at once");
}

#[test]
fn a_sequence_that_gives_no_token_fails_alone_and_gives_its_blocks_back() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    let row = RowOutcome { sequence: first(1), accepted: Some(Err("no number".into())), pool: None };
    let actions = step_done(&mut core, vec![row]);
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
    let row = RowOutcome { sequence: first(1), accepted: Some(Ok(first_token)), pool: None };
    step_done(&mut core, vec![row]);
    core.step(Input::Cancel(vec![JobNumber(1)]), Duration::ZERO);
    let second_token = accepted(8, "", "<end");
    let row = RowOutcome { sequence: first(1), accepted: Some(Ok(second_token)), pool: None };
    let actions = step_done(&mut core, vec![row]);
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
    assert_eq!(asked(&actions), [2], "it asks again: {actions:?}");
}

#[test]
fn the_end_of_a_connection_cancels_its_own_jobs() {
    let mut core = core();
    for (id, owner) in [(1, Some(ConnectionId(5))), (2, None)] {
        core.step(Input::Submit(NewJob { owner, ..new_job(id, 3, 9) }), Duration::ZERO);
    }
    core.step(Input::Stored(JobNumber(2)), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    grant(&mut core, 2, &[1]);
    core.step(Input::OwnerGone(ConnectionId(5)), Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert_eq!((core.load().queued_jobs, core.load().running_jobs), (0, 1));
}

/// A job of `choices` answers whose first has its first token, and all of whose others are granted their lease.
fn side_by_side(core: &mut Core, choices: u32) {
    core.step(Input::Submit(NewJob { choices, ..new_job(1, 3, 9) }), Duration::ZERO);
    grant(core, 1, &[0]);
    let actions = done(core, &[(1, Some(7))]);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Lease { sequence, .. } if sequence.choice == 1)),
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
    core.step(Input::Submit(NewJob { choices: 2, ..new_job(1, 20, 9) }), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    // The first chunk of the prompt is out: the second answer waits, another job does not.
    let actions = core.step(job(2, 3, 9), Duration::ZERO);
    assert_eq!(asked(&actions), [2], "{actions:?}");
    assert_eq!((core.load().queued_jobs, core.load().running_jobs), (1, 1), "one of two answers runs");
}

#[test]
fn a_failing_answer_fails_its_job_once_and_every_lease_comes_back() {
    let mut core = core_with(CoreLimits { running_jobs: 4, ..limits() });
    side_by_side(&mut core, 3);
    let in_flight = core.in_flight.first().cloned().expect("a step is out");
    // Whoever is in the step: the first fails, the others get a token.
    let rows = in_flight.rows.iter().enumerate().map(|(at, row)| {
        let result = if at == 0 { Err("no number".to_owned()) } else { Ok(accepted(8, "x", "")) };
        RowOutcome { sequence: row.sequence, accepted: row.samples.then_some(result), pool: None }
    });
    let rows = rows.collect();
    let actions = step_done(&mut core, rows);
    core.check();
    let endings =
        actions.iter().filter(|action| matches!(action, Action::Event { event: Event::Failed { .. }, .. }));
    assert_eq!(endings.count(), 1, "{actions:?}");
    let released = actions.iter().filter(|action| matches!(action, Action::Release { .. })).count();
    assert_eq!((released, core.is_idle()), (3, true), "{actions:?}");
}

#[test]
fn a_cancel_ends_every_answer_and_counts_what_they_took_together() {
    let mut core = core_with(CoreLimits { running_jobs: 4, ..limits() });
    side_by_side(&mut core, 2);
    let mut actions = core.step(Input::Cancel(vec![JobNumber(1)]), Duration::ZERO);
    core.check();
    if let Some(plan) = core.in_flight.first().cloned() {
        let outcome = |row: &PlanRow| RowOutcome {
            sequence: row.sequence,
            accepted: row.samples.then(|| Ok(accepted(8, "x", ""))),
            pool: None,
        };
        let rows = plan.rows.iter().map(outcome).collect();
        actions = step_done(&mut core, rows);
    }
    let Some(Event::Finished { reason: FinishReason::Cancelled, choices, usage }) = ending(&actions) else {
        panic!("{actions:?}")
    };
    assert_eq!(choices.as_slice(), [CANCELLED; 2]);
    assert_eq!((usage.prompt_tokens, core.is_idle()), (3, true));
}

#[test]
fn a_lease_that_begins_inside_of_a_block_commits_it_when_it_is_full() {
    let mut core = core_with(CoreLimits { prefill_chunk_tokens: 50, ..limits() });
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
    core.step(Input::Cancel(vec![JobNumber(1)]), Duration::ZERO);
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
    up(&mut core, "other");
    core.step(job(1, 3, 9), Duration::ZERO);
    let actions = core.step(job(2, 3, 9), Duration::ZERO);
    assert!(!actions.iter().any(|action| matches!(action, Action::Lease { .. })), "{actions:?}");
    // The two that are asking count as running: a third must wait for a place.
    core.step(Input::Cancel(vec![JobNumber(2)]), Duration::ZERO);
    let other = NewJob { model: "other".into(), ..new_job(3, 3, 9) };
    let actions = core.step(Input::Submit(other), Duration::ZERO);
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::Lease { sequence, .. } if *sequence == first(3))),
        "{actions:?}"
    );
    core.check();
    grant(&mut core, 3, &[0]);
    let actions = core.step(Input::Cancel(vec![JobNumber(1)]), Duration::ZERO);
    assert!(ending(&actions).is_none(), "its lease is on its way");
    let actions = grant(&mut core, 1, &[0]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    let released =
        |action: &Action| matches!(action, Action::Release { sequence, .. } if *sequence == first(1));
    assert!(actions.iter().any(released), "{actions:?}");
}

#[test]
fn the_next_jobs_that_wait_are_brought_nearer_once() {
    let mut core = core_with(CoreLimits { running_jobs: 1, ..roomy() });
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

// ---- what is durable ----

fn durable(id: u64, class: Class) -> Input {
    Input::Submit(NewJob { owner: None, class, ..new_job(id, 3, 9) })
}

/// Submits a durable job and has it stored.
fn stored(core: &mut Core, id: u64, class: Class) -> Vec<Action> {
    core.step(durable(id, class), Duration::ZERO);
    core.step(Input::Stored(JobNumber(id)), Duration::ZERO)
}

#[test]
fn a_durable_job_starts_when_it_is_on_disk_and_never_existed_when_it_is_not() {
    let mut core = core();
    assert!(asked(&core.step(durable(1, Class::Normal), Duration::ZERO)).is_empty());
    assert_eq!(core.view(Duration::ZERO).waiting[0].why, Why::Storing);
    assert_eq!(asked(&core.step(Input::Stored(JobNumber(1)), Duration::ZERO)), [1]);
    core.step(durable(2, Class::Normal), Duration::ZERO);
    let actions = core.step(Input::Unstored(JobNumber(2)), Duration::ZERO);
    assert!(actions.is_empty(), "{actions:?}");
    core.check();
}

#[test]
fn a_stopping_daemon_parks_what_is_durable_and_cancels_the_rest_at_the_deadline() {
    let mut core = core();
    stored(&mut core, 1, Class::Normal);
    grant(&mut core, 1, &[0]);
    core.step(job(2, 3, 9), Duration::ZERO);
    grant(&mut core, 2, &[1]);
    done(&mut core, &[(1, Some(7))]);
    let actions = core.step(Input::Drain { deadline: Duration::from_secs(5) }, Duration::ZERO);
    assert!(matches!(refusal(&core.step(job(3, 3, 9), Duration::ZERO)), Refusal::Stopping), "{actions:?}");
    let actions = done(&mut core, &[(1, Some(8)), (2, Some(7))]);
    let parked = |action: &Action| matches!(action, Action::Parked { job: JobNumber(1) });
    assert!(actions.iter().any(parked) && !core.is_idle(), "{actions:?}");
    core.step(Input::Tick, Duration::from_secs(5));
    let actions = done(&mut core, &[(2, Some(8))]);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert!(core.is_idle() && core.load().parked_jobs == 1);
}

#[test]
fn a_restored_job_goes_on_from_its_last_token_and_starts_once() {
    let mut core = core();
    let progress = Progress { generated: vec![7, 8], state: 1.5, unsent_tokens: 1, ..Progress::default() };
    let restored = RestoredJob {
        job: NewJob { owner: None, ..new_job(1, 3, 4) },
        stored: true,
        held: false,
        started: Some((Duration::ZERO, ByTier::default())),
        choices: vec![RestoredChoice::Open(progress)],
    };
    let actions = core.step(Input::Restore(restored), Duration::ZERO);
    let lease_of = |action: &Action| match action {
        Action::Lease { tokens, capacity_tokens, .. } => Some((tokens.to_vec(), *capacity_tokens)),
        _ => None,
    };
    assert_eq!(actions.iter().find_map(lease_of), Some((vec![1, 1, 1, 7, 8], 6)));
    let actions = grant(&mut core, 1, &[0]);
    let resumes = |action: &Action| matches!(action, Action::Resume { generated, state: 1.5, .. } if *generated == [7, 8]);
    assert!(actions.iter().any(resumes), "{actions:?}");
    assert!(
        !actions.iter().any(|action| matches!(action, Action::Event { event: Event::Started { .. }, .. }))
    );
    done(&mut core, &[(1, Some(9))]);
    let actions = done(&mut core, &[(1, Some(10))]);
    let Some(Event::Finished { usage, .. }) = ending(&actions) else { panic!("{actions:?}") };
    assert_eq!(usage.generated_tokens, 4);
}

#[test]
fn a_restored_job_whose_answers_have_ended_is_told_of_at_once() {
    let mut core = core();
    let end = ChoiceEnd { reason: FinishReason::Stop, stop: None };
    let restored = RestoredJob {
        job: NewJob { owner: None, ..new_job(1, 3, 4) },
        stored: true,
        held: false,
        started: Some((Duration::ZERO, ByTier::default())),
        choices: vec![RestoredChoice::Ended { end, generated: 2 }],
    };
    let actions = core.step(Input::Restore(restored), Duration::ZERO);
    assert!(matches!(ending(&actions), Some(Event::Finished { reason: FinishReason::Stop, .. })));
    core.check();
}

#[test]
fn jobs_of_a_model_that_is_not_loaded_wait_for_it() {
    let mut core = Core::new(limits());
    let restored = |id| RestoredJob {
        job: NewJob { owner: None, ..new_job(id, 3, 4) },
        stored: true,
        held: false,
        started: None,
        choices: vec![RestoredChoice::Open(Progress::default())],
    };
    assert!(asked(&core.step(Input::Restore(restored(1)), Duration::ZERO)).is_empty());
    assert_eq!(core.view(Duration::ZERO).waiting[0].why, Why::Model("m".into()));
    assert_eq!(core.wanted_models().into_iter().collect::<Vec<_>>(), ["m".into()]);
    let input = Input::ModelUp { model: "m".into(), total_blocks: 4, devices: vec![0] };
    assert_eq!(asked(&core.step(input, Duration::ZERO)), [1]);
    // Nobody else has a sampler for it.
    let actions = grant(&mut core, 1, &[0]);
    let begins = |action: &Action| matches!(action, Action::Resume { generated, .. } if generated.is_empty());
    assert!(actions.iter().any(begins), "{actions:?}");
}

// ---- who gives way, who waits ----

#[test]
fn batch_work_gives_its_place_to_others_and_goes_on_where_it_was() {
    let mut core = core_with(CoreLimits { running_jobs: 1, ..roomy() });
    stored(&mut core, 1, Class::Batch);
    grant(&mut core, 1, &[0]);
    done(&mut core, &[(1, Some(7))]);
    core.step(job(2, 3, 1), Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(8))]);
    let parked =
        |action: &Action| matches!(action, Action::Release { parked: true, tokens, .. } if tokens.len() == 4);
    assert!(actions.iter().any(parked), "{actions:?}");
    assert_eq!(asked(&actions), [2]);
    assert_eq!(core.view(Duration::ZERO).waiting[1].why, Why::Parked);
    grant(&mut core, 2, &[1]);
    assert_eq!(asked(&done(&mut core, &[(2, Some(7))])), [1], "its turn again");
    let actions = grant(&mut core, 1, &[0]);
    let resumes =
        |action: &Action| matches!(action, Action::Resume { generated, .. } if *generated == [7, 8]);
    assert!(actions.iter().any(resumes), "{actions:?}");
}

#[test]
fn batch_work_gives_its_memory_to_others() {
    let mut core = core();
    stored(&mut core, 1, Class::Batch);
    grant(&mut core, 1, &[0]);
    core.step(job(2, 3, 9), Duration::ZERO);
    let refused = Input::Leased { sequence: first(2), result: Err(NoLease::NotNow) };
    core.step(refused, Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Release { parked: true, .. })),
        "{actions:?}"
    );
    assert_eq!(asked(&actions), [2], "before the one that gave way");
}

#[test]
fn nothing_above_batch_work_gives_way() {
    let mut core = core_with(CoreLimits { running_jobs: 1, ..roomy() });
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(Input::Submit(NewJob { class: Class::Interactive, ..new_job(2, 3, 9) }), Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(!actions.iter().any(|action| matches!(action, Action::Release { .. })), "{actions:?}");
}

#[test]
fn a_class_that_waits_without_a_start_goes_before_the_one_above() {
    let mut core = core_with(CoreLimits { running_jobs: 1, ..roomy() });
    core.step(Input::Submit(NewJob { class: Class::Batch, ..new_job(1, 3, 1) }), Duration::ZERO);
    core.step(Input::Leased { sequence: first(1), result: Err(NoLease::NotNow) }, Duration::ZERO);
    let late = Duration::from_secs(21);
    core.step(
        Input::Submit(NewJob { class: Class::Interactive, arrived_at: late, ..new_job(2, 3, 1) }),
        late,
    );
    assert_eq!(core.view(late).waiting[0].job, JobNumber(1), "two levels in twenty seconds");
}

#[test]
fn a_held_job_waits_and_is_parked_if_it_runs() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(Input::Hold { job: JobNumber(1), held: true }, Duration::ZERO);
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Release { parked: true, .. })),
        "{actions:?}"
    );
    assert!(asked(&actions).is_empty());
    assert_eq!(core.view(Duration::ZERO).waiting[0].why, Why::Held);
    let actions = core.step(Input::Hold { job: JobNumber(1), held: false }, Duration::ZERO);
    assert_eq!(asked(&actions), [1]);
    core.step(Input::Hold { job: JobNumber(1), held: true }, Duration::ZERO);
    let actions = grant(&mut core, 1, &[0]);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Release { parked: true, .. })),
        "{actions:?}"
    );
}

#[test]
fn a_pause_lets_run_what_runs_and_start_nothing() {
    let mut core = core();
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(Input::Pause(true), Duration::ZERO);
    assert!(matches!(refusal(&core.step(job(2, 3, 9), Duration::ZERO)), Refusal::Paused));
    assert!(asked(&stored(&mut core, 3, Class::Normal)).is_empty());
    assert!(plan(&done(&mut core, &[(1, Some(7))])).is_some());
    assert_eq!(asked(&core.step(Input::Pause(false), Duration::ZERO)), [3]);
}

#[test]
fn jobs_that_are_late_fail_with_the_reason() {
    let mut core = core();
    let late = |id, start_by, deadline| NewJob { start_by, deadline, ..new_job(id, 3, 9) };
    let second = Some(Duration::from_secs(1));
    core.step(Input::Submit(late(1, None, second)), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    core.step(Input::Submit(late(2, second, None)), Duration::ZERO);
    let actions = core.step(Input::Tick, Duration::from_secs(2));
    assert!(ending(&actions).is_none(), "one is in a step, the other's lease is on its way: {actions:?}");
    let actions =
        core.step(Input::Leased { sequence: first(2), result: Err(NoLease::NotNow) }, Duration::ZERO);
    let failed = |actions: &[Action], words: &str| matches!(ending(actions), Some(Event::Failed { message }) if message.contains(words));
    assert!(failed(&actions, "waited for its start"), "{actions:?}");
    let actions = done(&mut core, &[(1, Some(7))]);
    assert!(failed(&actions, "deadline"), "{actions:?}");
}

#[test]
fn each_class_and_tenant_has_bounds_of_its_own() {
    let one = Amount { jobs: 1, tokens: 1000, bytes: 1000 };
    let mut core = core_with(CoreLimits { running_jobs: 1, tenant: one, ..roomy() });
    core.limits.classes[Class::Batch as usize] = one;
    core.step(job(1, 3, 9), Duration::ZERO);
    grant(&mut core, 1, &[0]);
    let of =
        |id, tenant: &str, class| Input::Submit(NewJob { tenant: tenant.into(), class, ..new_job(id, 3, 9) });
    core.step(of(2, "a", Class::Batch), Duration::ZERO);
    let actions = core.step(of(3, "b", Class::Batch), Duration::ZERO);
    assert!(refusal(&actions).to_string().contains("class batch"), "{actions:?}");
    let actions = core.step(of(4, "a", Class::Normal), Duration::ZERO);
    assert!(refusal(&actions).to_string().contains("tenant a"), "{actions:?}");
    core.step(of(5, "b", Class::Normal), Duration::ZERO);
    core.check();
}

#[test]
fn models_on_devices_of_their_own_compute_side_by_side() {
    let mut core = core();
    let other = Input::ModelUp { model: "other".into(), total_blocks: 4, devices: vec![1] };
    core.step(other, Duration::ZERO);
    core.step(job(1, 3, 9), Duration::ZERO);
    let actions =
        core.step(Input::Submit(NewJob { model: "other".into(), ..new_job(2, 3, 9) }), Duration::ZERO);
    assert_eq!(asked(&actions), [2]);
    assert!(plan(&grant(&mut core, 1, &[0])).is_some());
    assert!(plan(&grant(&mut core, 2, &[0])).is_some(), "another device");
    core.check();
}
