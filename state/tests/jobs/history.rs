//! Random histories of jobs, applied to the store and to its twin: they never differ, whatever the disk does.

use zllm_state::{DatabaseError, JobChange, JobClass, JobRecord, JobState, JobStore, Retention, Submitted};

use crate::flaky::FlakyDisk;
use crate::random::Random;
use crate::samples::{FOREVER, bytes, job};
use crate::twin::Twin;

/// What a client or the scheduler does.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Submit(Vec<JobRecord>),
    Change(Vec<JobChange>),
    Expire(u64),
}

/// What a step gives.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Submitted(Vec<Submitted>),
    Expired(Vec<u64>),
}

impl Step {
    /// The next step of a history that has come so far: a legal one.
    pub(crate) fn random(random: &mut Random, twin: &Twin, now_ms: u64) -> Self {
        let unfinished = twin.unfinished();
        match random.below(10) {
            0..4 => {
                // Few keys, so that some are known already.
                let mut number = twin.last_number;
                let jobs = (0..random.below(5)).map(|_| {
                    number += 1 + random.below(3);
                    let key = (random.below(2) == 0).then(|| format!("key {}", random.below(12)));
                    JobRecord { key, ..job(number) }
                });
                let jobs = jobs.collect();
                Step::Submit(jobs)
            }
            4..9 if !unfinished.is_empty() => {
                let mut after: Vec<_> = unfinished.iter().map(|job| (job.number, job.state)).collect();
                let changes = (0..=random.below(6)).filter_map(|_| {
                    let at = random.below(after.len() as u64) as usize;
                    let (number, state) = &mut after[at];
                    (!state.is_terminal()).then(|| change(random, *number, state, now_ms))
                });
                Step::Change(changes.collect())
            }
            _ => Step::Expire(now_ms),
        }
    }

    pub(crate) fn on_store(&self, store: &mut JobStore) -> Result<Answer, DatabaseError> {
        Ok(match self {
            Step::Submit(jobs) => Answer::Submitted(store.submit(jobs)?),
            Step::Change(changes) => Answer::Expired(store.change(changes)?),
            Step::Expire(now_ms) => Answer::Expired(store.expire(*now_ms)?),
        })
    }

    pub(crate) fn on_twin(&self, twin: &mut Twin) -> Answer {
        match self {
            Step::Submit(jobs) => Answer::Submitted(twin.submit(jobs)),
            Step::Change(changes) => Answer::Expired(twin.change(changes)),
            Step::Expire(now_ms) => Answer::Expired(twin.expire(*now_ms)),
        }
    }
}

fn change(random: &mut Random, number: u64, state: &mut JobState, now_ms: u64) -> JobChange {
    let mut change = JobChange { number, at_ms: now_ms, ..JobChange::default() };
    let next = JobState::ALL[random.below(5) as usize];
    if state.may_become(next) {
        (change.state, *state) = (Some(next), next);
    }
    if random.below(3) == 0 {
        change.held = Some(random.below(2) == 0);
        change.class = Some(JobClass::ALL[random.below(3) as usize]);
        change.summary = Some(bytes(now_ms, random.below(40) as usize));
        change.attempts = Some(random.below(5) as u32);
    }
    if state.is_terminal() && random.below(4) > 0 {
        change.result = Some(bytes(number, random.below(6000) as usize));
    }
    change
}

fn retention(random: &mut Random) -> Retention {
    let mut bound = |limit| if random.below(3) == 0 { u64::MAX } else { random.below(limit) };
    Retention { max_age_ms: bound(3000), max_jobs: bound(20), max_bytes: bound(60_000) }
}

fn open(
    disk: &FlakyDisk,
    retention: Retention,
    now_ms: u64,
) -> Result<(JobStore, Vec<JobRecord>, u64), String> {
    let disk = disk.clone();
    let (store, opened) = JobStore::open_with_backend(move || disk.clone(), retention, now_ms)
        .map_err(|error| error.to_string())?;
    Ok((store, opened.unfinished, opened.last_number))
}

/// Opens what is on this disk, which must be what the twin has, and nothing more or less.
pub(crate) fn verify(image: Vec<u8>, twin: &Twin) -> Result<(), String> {
    let (mut store, unfinished, last_number) = open(&FlakyDisk::of(image), FOREVER, 0)?;
    if unfinished != twin.unfinished() || last_number != twin.last_number {
        return Err("other jobs are not finished".to_owned());
    }
    twin.compare(&mut store)?;
    // And it goes on.
    let next = JobRecord { key: None, ..job(last_number + 1) };
    store.submit(&[next]).map(drop).map_err(|error| error.to_string())
}

/// One history; now and then the daemon is started again, and the disk may stop and work again.
fn run(seed: u64, steps: u32, disk_fails: bool) -> (u32, u32) {
    let mut random = Random::new(seed);
    let (disk, mut now_ms) = (FlakyDisk::default(), 1000);
    let mut twin = Twin::new(retention(&mut random));
    let mut store = open(&disk, twin.retention, now_ms).unwrap().0;
    let (mut done, mut failed) = (0, 0);
    for step_number in 0..steps {
        let place = format!("ZLLM_SEED={seed} step {step_number}");
        now_ms += random.below(400);
        if random.below(12) == 0 {
            drop(store);
            twin.retention = retention(&mut random);
            let opened =
                open(&disk, twin.retention, now_ms).unwrap_or_else(|error| panic!("{place}: {error}"));
            twin.expire(now_ms);
            assert_eq!((opened.1, opened.2), (twin.unfinished(), twin.last_number), "{place}");
            store = opened.0;
        }
        let step = Step::random(&mut random, &twin, now_ms);
        if disk_fails && random.below(3) == 0 {
            disk.stop_after_calls(random.below(60));
        }
        let answer = step.on_store(&mut store);
        let refused = answer.is_err();
        match answer {
            Ok(answer) => {
                assert_eq!(answer, step.on_twin(&mut twin), "{place}: {step:?}");
                done += 1;
            }
            Err(error) => {
                assert!(disk_fails && matches!(error, DatabaseError::Io { .. }), "{place}: {error}");
                failed += 1;
            }
        }
        disk.work_again(random.below(2) == 0);
        // It has not happened, but old jobs may have expired all the same.
        if refused && let Answer::Expired(expired) = step.on_twin(&mut twin.clone()) {
            let is_gone = |number: &u64| store.record(*number).unwrap().is_none();
            if !expired.is_empty() && expired.iter().all(is_gone) {
                expired.iter().for_each(|number| drop(twin.jobs.remove(number)));
            }
        }
        twin.compare(&mut store).unwrap_or_else(|wrong| panic!("{place}: {wrong} after {step:?}"));
    }
    drop(store);
    twin.retention = FOREVER;
    verify(disk.durable(), &twin).unwrap_or_else(|wrong| panic!("ZLLM_SEED={seed}: {wrong}"));
    (done, failed)
}

/// Seeds that found something.
const FOUND: [u64; 1] = [54];

/// The seeds of this run.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("ZLLM_SEED") {
        Ok(seed) => vec![seed.parse().expect("ZLLM_SEED is a number")],
        Err(_) => (0..count).chain(FOUND).collect(),
    }
}

#[test]
fn the_store_answers_as_a_map_in_memory_would() {
    for seed in seeds(25) {
        assert_eq!(run(seed, 60, false), (60, 0));
    }
}

#[test]
fn what_a_call_refused_has_not_happened() {
    let (mut done, mut failed) = (0, 0);
    for seed in seeds(40) {
        let run = run(seed, 60, true);
        (done, failed) = (done + run.0, failed + run.1);
    }
    println!("{done} steps done, {failed} failed");
    assert!(failed > done / 20, "{done} steps done, {failed} failed");
}
