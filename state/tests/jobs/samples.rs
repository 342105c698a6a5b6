//! Jobs to store, each of a number: the same in each run, so what is read can be compared with what is made again.

use zllm_state::{JobChange, JobClass, JobRecord, JobState, Retention};

use crate::random::Random;

/// Nothing expires.
pub(crate) const FOREVER: Retention =
    Retention { max_age_ms: u64::MAX, max_jobs: u64::MAX, max_bytes: u64::MAX };

/// A job that waits; some have a key, a batch, a session or a deadline, and all have a prompt and a request.
pub(crate) fn job(number: u64) -> JobRecord {
    let mut random = Random::new(number);
    let mut some = |name: &str| (random.below(3) == 0).then(|| format!("{name} {number}"));
    let (session, label, key) = (some("session"), some("label"), some("key"));
    let batch = (random.below(3) == 0).then(|| format!("batch {}", number % 3));
    JobRecord {
        number,
        tenant: ["", "tenant", "other"][random.below(3) as usize].into(),
        model: "smollm2".into(),
        session,
        label,
        batch,
        key,
        class: JobClass::ALL[random.below(3) as usize],
        held: random.below(5) == 0,
        state: JobState::Queued,
        attempts: 0,
        submitted_ms: 1_000_000 + number,
        started_ms: None,
        ended_ms: None,
        deadline_ms: (random.below(3) == 0).then_some(9_000_000 + number),
        start_by_ms: (random.below(3) == 0).then_some(8_000_000 + number),
        fingerprint: [number as u8; 32],
        summary: bytes(number + 1, random.below(40) as usize),
        prompt: (0..random.below(300)).map(|_| random.below(150_000) as u32).collect(),
        request: bytes(number, random.below(2000) as usize),
    }
}

/// Noise of a seed.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.next() as u8).collect()
}

/// A change to this state.
pub(crate) fn becomes(number: u64, state: JobState, at_ms: u64) -> JobChange {
    let attempts = (state == JobState::Running).then_some(1);
    JobChange { number, state: Some(state), at_ms, attempts, ..JobChange::default() }
}

/// An end with a result.
pub(crate) fn done(number: u64, at_ms: u64, result: Vec<u8>) -> JobChange {
    JobChange { result: Some(result), ..becomes(number, JobState::Done, at_ms) }
}

/// What the files in `testdata/jobs` hold: jobs in each state, with and without results, one of them longer than a page.
/// Never to be changed: the files were written with it.
pub(crate) fn fixture() -> (Vec<JobRecord>, Vec<JobChange>) {
    let jobs = (101..=116).map(|number| JobRecord { key: Some(format!("key {number}")), ..job(number) });
    let run = (103..=112).map(|number| becomes(number, JobState::Running, 2_000_000 + number));
    let changes = [
        becomes(102, JobState::Cancelled, 2_000_001),
        becomes(105, JobState::Queued, 2_000_200),
        becomes(106, JobState::Failed, 2_000_300),
        becomes(107, JobState::Cancelled, 2_000_300),
        done(108, 2_000_400, bytes(108, 9000)),
        JobChange { summary: Some(b"ended".to_vec()), ..done(109, 2_000_500, Vec::new()) },
        becomes(110, JobState::Done, 2_000_600),
    ];
    let held =
        JobChange { number: 101, held: Some(true), class: Some(JobClass::Batch), ..JobChange::default() };
    (jobs.collect(), run.chain(changes).chain([held]).collect())
}
