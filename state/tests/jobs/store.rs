//! What the store answers, and what it refuses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tempfile::TempDir;
use zllm_state::{DatabaseError, JobChange, JobClass, JobRecord, JobState, JobStore, Retention, Submitted};

use crate::folder::{Kept, keeps_its_file};
use crate::samples::{FOREVER, becomes, done, job};

fn open(dir: &TempDir, retention: Retention) -> (JobStore, Vec<JobRecord>, u64) {
    let (store, opened) = JobStore::open(dir.path(), retention, 0).unwrap();
    (store, opened.unfinished, opened.last_number)
}

fn with_key(number: u64, tenant: &str, key: &str) -> JobRecord {
    JobRecord { tenant: tenant.into(), key: Some(key.into()), ..job(number) }
}

/// A head as lists have it.
fn head(job: &JobRecord) -> JobRecord {
    JobRecord { prompt: Vec::new(), request: Vec::new(), ..job.clone() }
}

#[test]
fn jobs_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, unfinished, last) = open(&dir, FOREVER);
    assert_eq!((unfinished, last), (vec![], 0));
    let jobs: Vec<_> = (1..=40).map(job).collect();
    assert_eq!(store.submit(&jobs).unwrap(), vec![Submitted::New; 40]);
    store.change(&[becomes(3, JobState::Running, 50)]).unwrap();
    store.change(&[done(3, 60, b"result".to_vec()), becomes(4, JobState::Cancelled, 61)]).unwrap();
    let held =
        JobChange { number: 5, held: Some(true), class: Some(JobClass::Interactive), ..JobChange::default() };
    store.change(&[held]).unwrap();
    drop(store);

    let (mut store, unfinished, last) = open(&dir, FOREVER);
    assert_eq!(last, 40);
    let mut expected = jobs.clone();
    (expected[4].held, expected[4].class) = (true, JobClass::Interactive);
    let ended = JobRecord {
        state: JobState::Done,
        attempts: 1,
        started_ms: Some(50),
        ended_ms: Some(60),
        ..expected[2].clone()
    };
    let cancelled = JobRecord { state: JobState::Cancelled, ended_ms: Some(61), ..expected[3].clone() };
    expected.drain(2..4);
    assert_eq!(unfinished, expected);
    assert_eq!(store.record(3).unwrap(), Some(ended.clone()));
    assert_eq!(store.record(4).unwrap(), Some(cancelled.clone()));
    assert_eq!(store.result(3).unwrap(), Some(b"result".to_vec()));
    assert_eq!(
        (store.result(4).unwrap(), store.result(5).unwrap(), store.record(41).unwrap()),
        (None, None, None)
    );
    assert_eq!(store.latest(Some(6), 3).unwrap(), [head(&expected[2]), head(&cancelled), head(&ended)]);
    assert_eq!(store.latest(None, 2).unwrap(), [head(&jobs[39]), head(&jobs[38])]);
    assert!(store.file_bytes() > 0);
}

#[test]
fn a_running_job_may_wait_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, ..) = open(&dir, FOREVER);
    store.submit(&[job(1)]).unwrap();
    let again = JobChange { attempts: Some(2), ..becomes(1, JobState::Running, 30) };
    let changes = [becomes(1, JobState::Running, 10), becomes(1, JobState::Queued, 20), again];
    store.change(&changes).unwrap();
    let record = store.record(1).unwrap().unwrap();
    assert_eq!((record.state, record.attempts, record.started_ms), (JobState::Running, 2, Some(10)));
}

#[test]
fn a_key_leads_to_its_first_job_as_long_as_that_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, ..) = open(&dir, Retention { max_jobs: 0, ..FOREVER });
    let submitted = store
        .submit(&[with_key(1, "t", "a"), with_key(2, "t", "a"), with_key(3, "u", "a"), with_key(4, "t", "b")])
        .unwrap();
    assert_eq!(submitted, [Submitted::New, Submitted::Known(1), Submitted::New, Submitted::New]);
    assert_eq!(store.record(2).unwrap(), None);
    assert_eq!(store.submit(&[with_key(5, "t", "a")]).unwrap(), [Submitted::Known(1)]);
    store.change(&[becomes(1, JobState::Failed, 5)]).unwrap();
    assert_eq!(store.submit(&[with_key(6, "t", "a")]).unwrap(), [Submitted::Known(1)]);
    drop(store);
    // The first job expires as the store is opened, and its key with it.
    let (mut store, unfinished, last) = open(&dir, Retention { max_jobs: 0, ..FOREVER });
    assert_eq!((unfinished.len(), last), (2, 4));
    assert_eq!(store.submit(&[with_key(7, "t", "a")]).unwrap(), [Submitted::New]);
    // No key is no key that others could have.
    let keyless = |number| JobRecord { key: None, ..job(number) };
    assert_eq!(store.submit(&[keyless(8), keyless(9)]).unwrap(), [Submitted::New; 2]);
}

#[test]
fn a_batch_is_its_tenants_own() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, ..) = open(&dir, FOREVER);
    let in_batch = |number, tenant: &str, batch: &str| JobRecord {
        tenant: tenant.into(),
        batch: Some(batch.into()),
        ..job(number)
    };
    let jobs = [in_batch(1, "t", "x"), in_batch(2, "u", "x"), in_batch(3, "t", "y"), in_batch(4, "t", "x")];
    store.submit(&jobs).unwrap();
    assert_eq!(store.of_batch("t", "x").unwrap(), [head(&jobs[0]), head(&jobs[3])]);
    assert_eq!(store.of_batch("u", "x").unwrap(), [head(&jobs[1])]);
    assert_eq!(store.of_batch("u", "y").unwrap(), []);
}

#[test]
fn old_jobs_expire_by_count_age_and_bytes_and_unfinished_ones_never() {
    let sized = |number| JobRecord { prompt: vec![0; 100], request: vec![0; 100], ..job(number) };
    let ends = |number| done(number, number * 10, vec![7; 500]);
    // Ten jobs end at 10, 20, ... 100, each of 1000 bytes; then an eleventh lets those expire that are too many.
    for (retention, kept) in [
        (Retention { max_jobs: 4, ..FOREVER }, 8..=11),
        (Retention { max_age_ms: 50, ..FOREVER }, 6..=11),
        (Retention { max_bytes: 3999, ..FOREVER }, 9..=11),
        (FOREVER, 1..=11),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, ..) = open(&dir, FOREVER);
        store.submit(&(0..=11).map(sized).collect::<Vec<_>>()).unwrap();
        let run: Vec<_> = (1..=11).map(|number| becomes(number, JobState::Running, number)).collect();
        store.change(&run).unwrap();
        store.change(&(1..=10).map(ends).collect::<Vec<_>>()).unwrap();
        drop(store);
        let (mut store, opened) = JobStore::open(dir.path(), retention, 100).unwrap();
        assert_eq!(opened.unfinished.iter().map(|job| job.number).collect::<Vec<_>>(), [0, 11]);
        store.change(&[ends(11)]).unwrap();
        for number in 0..=11 {
            let is_kept = number == 0 || kept.contains(&number);
            assert_eq!(store.record(number).unwrap().is_some(), is_kept, "{retention:?} {number}");
            assert_eq!(
                store.result(number).unwrap().is_some(),
                is_kept && number > 0,
                "{retention:?} {number}"
            );
        }
        assert_eq!(store.expire(u64::MAX).unwrap().len(), if retention.max_age_ms == 50 { 6 } else { 0 });
    }
}

/// Also one that ends and is alone too much: whoever waits for it can ask once.
#[test]
fn what_ends_stays_until_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, ..) = open(&dir, Retention { max_jobs: 0, max_age_ms: 0, max_bytes: 0 });
    store.submit(&[job(1), job(2)]).unwrap();
    assert_eq!(store.change(&[becomes(1, JobState::Cancelled, 5)]).unwrap(), []);
    assert!(store.record(1).unwrap().is_some());
    assert_eq!(store.change(&[becomes(2, JobState::Running, 6)]).unwrap(), [1]);
    assert_eq!(store.record(1).unwrap(), None);
}

#[test]
fn the_table_of_states_is_what_the_store_lets_happen() {
    use JobState::{Cancelled, Done, Failed, Queued, Running};
    let way = |state| match state {
        Queued => vec![],
        Running | Failed | Cancelled => vec![state],
        Done => vec![Running, Done],
    };
    for from in JobState::ALL {
        for to in JobState::ALL {
            let dir = tempfile::tempdir().unwrap();
            let (mut store, ..) = open(&dir, FOREVER);
            store.submit(&[job(1)]).unwrap();
            let changes: Vec<_> = way(from).into_iter().map(|state| becomes(1, state, 5)).collect();
            store.change(&changes).unwrap();
            let changed = catch_unwind(AssertUnwindSafe(|| store.change(&[becomes(1, to, 9)])));
            let expected = match from {
                Queued => matches!(to, Running | Failed | Cancelled),
                Running => matches!(to, Queued | Done | Failed | Cancelled),
                Done | Failed | Cancelled => false,
            };
            assert_eq!((changed.is_ok(), from.may_become(to)), (expected, expected), "{from:?} {to:?}");
            let state = if expected { to } else { from };
            assert_eq!(store.record(1).unwrap().unwrap().state, state);
        }
    }
}

fn panic_of(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    *panic.downcast::<String>().unwrap()
}

/// The caller has lost track of its jobs: nothing is changed, and the panic names what.
#[test]
fn defects_of_the_caller_are_panics_that_name_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, ..) = open(&dir, FOREVER);
    store.submit(&[job(0xa), job(0xb)]).unwrap();
    store.change(&[becomes(0xa, JobState::Failed, 5)]).unwrap();
    let name = "job j-000000000000000a";
    let mut change =
        |change: JobChange| panic_of(|| drop(store.change(&[becomes(0xb, JobState::Running, 6), change])));
    assert_eq!(change(becomes(0xa, JobState::Done, 6)), format!("{name} is Failed and may not become Done"));
    let held = JobChange { number: 0xa, held: Some(true), ..JobChange::default() };
    assert_eq!(change(held), format!("{name} is Failed and changes"));
    assert_eq!(change(becomes(0xc, JobState::Running, 6)), "job j-000000000000000c changes and is not there");
    let early = JobChange { number: 0xb, result: Some(vec![]), ..JobChange::default() };
    assert_eq!(change(early), "job j-000000000000000b has a result and is Running");
    assert_eq!(panic_of(|| drop(store.submit(&[job(0xc), job(0xa)]))), format!("{name} is submitted twice"));
    let running = JobRecord { state: JobState::Running, ..job(0xd) };
    let message = "job j-000000000000000d is Running as it is submitted";
    assert_eq!(panic_of(|| drop(store.submit(&[running]))), message);
    assert_eq!(store.record(0xb).unwrap(), Some(job(0xb)));
    assert_eq!(store.record(0xc).unwrap(), None);
}

impl Kept for JobStore {
    const FILE: &'static str = "jobs.redb";
    const WITHOUT: &'static str = "with an empty queue";

    fn open(dir: &Path) -> Result<Self, DatabaseError> {
        Ok(Self::open(dir, FOREVER, 0)?.0)
    }

    fn put(&mut self, number: u64) -> Result<(), DatabaseError> {
        self.submit(&[job(number)]).map(drop)
    }

    fn has(&mut self, number: u64) -> bool {
        self.record(number).unwrap() == Some(job(number))
    }
}

#[test]
fn it_keeps_its_file() {
    keeps_its_file::<JobStore>();
}
