//! The job disk over real files: rounds that are given to the worker directly, and the thread itself.

use super::logs::Logs;
use super::record::{Step, encode};
use super::*;
use crate::device::fake::expected_text;
use crate::limits::READ_STEPS;
use std::path::Path;
use std::sync::mpsc;
use zllm_state::{JobClass, JobState, LogEntry, TokenLog};
use zllm_wire::{FinishReason, TokenTiers, Usage};

const FOREVER: Retention = Retention { max_age_ms: u64::MAX, max_jobs: u64::MAX, max_bytes: u64::MAX };

fn job(number: u64) -> JobRecord {
    JobRecord {
        number,
        tenant: "t".into(),
        model: "m".into(),
        session: None,
        label: None,
        batch: Some(format!("batch {}", number % 2)),
        key: None,
        class: JobClass::Normal,
        held: false,
        state: JobState::Queued,
        attempts: 0,
        submitted_ms: 1000 + number,
        started_ms: None,
        ended_ms: None,
        deadline_ms: None,
        start_by_ms: None,
        fingerprint: [7; 32],
        summary: vec![1, 2],
        prompt: vec![1, 2, 3],
        request: vec![9; 100],
    }
}

fn becomes(number: u64, state: JobState) -> JobChange {
    JobChange { number, state: Some(state), at_ms: 2000, ..JobChange::default() }
}

fn token(token: u32) -> TokenEntry {
    TokenEntry {
        choice: 0,
        token,
        state: token as f32,
        held: String::new(),
        sent: true,
        logprob: None,
        end: None,
    }
}

fn started() -> Event {
    Event::Started { cached_tokens: 1, cached_by_tier: TokenTiers::default(), prompt_tokens: 3 }
}

fn text(text: &str) -> Event {
    Event::Text { choice: 0, text: text.into(), tokens: 1, logprobs: vec![] }
}

fn finished() -> Event {
    Event::Finished { reason: FinishReason::Length, choices: vec![], usage: Usage::default() }
}

fn numbered(from: u64, events: &[Event]) -> NumberedEvents {
    (from..).zip(events.iter().cloned()).collect()
}

/// A worker and the answers to what it is asked, for tests that say what one round holds.
struct Bench {
    worker: Worker,
    commands: Vec<Command>,
}

impl Bench {
    fn open(dir: &Path) -> (Self, Opened) {
        let (worker, opened) = Worker::open(dir, FOREVER, Clock::start()).expect("a sound folder");
        (Self { worker, commands: Vec::new() }, opened)
    }

    fn ask<T>(&mut self, make: impl FnOnce(Reply<T>) -> Command) -> Receiver<Result<T, String>> {
        let (reply, answer) = oneshot::channel();
        self.commands.push(make(reply));
        answer
    }

    fn submit(&mut self, record: JobRecord) -> Receiver<Result<Submitted, String>> {
        self.ask(|reply| Command::Submit(Box::new(record), reply))
    }

    fn append(
        &mut self,
        job: u64,
        tokens: Vec<TokenEntry>,
        events: NumberedEvents,
    ) -> Receiver<Result<(), String>> {
        self.ask(|reply| Command::Append(NewStep { job, tokens, events }, reply))
    }

    fn change(&mut self, change: JobChange) -> Receiver<Result<(), String>> {
        self.ask(|reply| Command::Change(change, None, reply))
    }

    fn finish(&mut self, number: u64, rest: NumberedEvents) -> Receiver<Result<(), String>> {
        self.ask(|reply| Command::Change(becomes(number, JobState::Done), Some(rest), reply))
    }

    /// Does what was asked since the last round.
    fn round(&mut self) -> DiskFigures {
        let before = self.worker.figures();
        self.worker.round(std::mem::take(&mut self.commands).into_iter());
        let after = self.worker.figures();
        DiskFigures {
            transactions: after.transactions - before.transactions,
            flushes: after.flushes - before.flushes,
            ..after
        }
    }

    /// A job that runs and has drawn nothing.
    fn running(&mut self, number: u64) {
        let answers = (self.submit(job(number)), self.change(becomes(number, JobState::Running)));
        self.round();
        assert_eq!((done(answers.0), done(answers.1)), (Ok(Submitted::New), Ok(())));
    }
}

/// The answer that is there already.
fn done<T>(mut answer: Receiver<Result<T, String>>) -> Result<T, String> {
    answer.try_recv().expect("each caller is answered in its round")
}

#[test]
fn what_waits_together_is_one_transaction_a_kind_and_each_is_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut bench, opened) = Bench::open(folder.path());
    assert_eq!((opened.jobs.len(), opened.last_number), (0, 0));
    // As they come; a round takes new jobs, appends and changes in this order, whatever came first.
    let mut answers = Vec::new();
    let mut submitted = Vec::new();
    for number in 1..=50 {
        answers.push(bench.change(becomes(number, JobState::Running)));
        answers.push(bench.append(number, vec![token(1)], numbered(0, &[started(), text("a")])));
        answers.push(bench.append(number, vec![token(2)], numbered(2, &[text("b")])));
        submitted.push(bench.submit(job(number)));
        if number % 2 == 0 {
            answers.push(bench.finish(number, numbered(3, &[finished()])));
        }
    }
    let figures = bench.round();
    assert_eq!((figures.transactions, figures.flushes), (2, 1));
    assert!(figures.store_bytes > 0 && figures.log_bytes > 0);
    assert!(submitted.into_iter().map(done).all(|answer| answer == Ok(Submitted::New)));
    assert!(answers.into_iter().map(done).all(|answer| answer == Ok(())));
    let figures = bench.round();
    assert_eq!((figures.transactions, figures.flushes), (0, 0), "nothing to do costs nothing");

    assert_eq!(bench.worker.events(2, 1, 9), Ok(vec![text("a"), text("b"), finished()]));
    assert_eq!(bench.worker.events(99, 0, 9), Ok(vec![]));
    let record = bench.worker.record(2).expect("read").expect("kept");
    assert_eq!((record.state, record.prompt), (JobState::Done, vec![1, 2, 3]));
    let numbers = |records: Result<Vec<JobRecord>, String>| -> Vec<u64> {
        records.expect("read").iter().map(|record| record.number).collect()
    };
    assert_eq!(numbers(bench.worker.latest(Some(9), 3)), [8, 7, 6]);

    // The ended ones are gone from the log, the others are found again.
    drop(bench);
    let (_bench, opened) = Bench::open(folder.path());
    assert_eq!(opened.last_number, 50);
    assert_eq!(
        opened.jobs.iter().map(|job| job.record.number).collect::<Vec<_>>(),
        (1..=50).step_by(2).collect::<Vec<_>>()
    );
    for job in opened.jobs {
        assert_eq!(job.record.state, JobState::Running);
        assert_eq!((job.tokens, job.started, job.events), (vec![token(1), token(2)], Some(started()), 3));
    }
}

#[test]
fn every_event_is_found_wherever_it_is_and_from_any_offset() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut bench, _) = Bench::open(folder.path());
    bench.running(1);
    let words = expected_text("events", 400);
    let events: Vec<Event> =
        words.char_indices().map(|(at, word)| text(&word.to_string().repeat(at % 5 + 1))).collect();
    let mut offset = 0;
    // Steps of 0 to 6 events: those without say of tokens whose text is held back.
    for step in 0.. {
        let end = events.len().min(offset + step * 5 % 7);
        let answer = bench.append(1, vec![token(step as u32)], numbered(offset as u64, &events[offset..end]));
        bench.round();
        assert_eq!(done(answer), Ok(()));
        offset = end;
        if offset == events.len() {
            assert!(step > 3 * READ_STEPS, "it takes several reads: {step} steps");
            break;
        }
    }
    let check = |bench: &mut Bench, all: &[Event]| {
        for from in (0..all.len() + 3).step_by(3) {
            for max in [0, 1, 2, 17, 64, usize::MAX] {
                let expected: Vec<Event> = all.iter().skip(from).take(max).cloned().collect();
                assert_eq!(bench.worker.events(1, from as u64, max), Ok(expected), "{max} from {from}");
            }
        }
    };
    check(&mut bench, &events);
    drop(bench);
    let (mut bench, opened) = Bench::open(folder.path());
    assert_eq!(opened.jobs[0].events, events.len() as u64);
    assert!(opened.jobs[0].tokens.iter().enumerate().all(|(at, entry)| entry.token == at as u32));
    check(&mut bench, &events);
    let answer = bench.finish(1, numbered(events.len() as u64, &[finished()]));
    bench.round();
    assert_eq!(done(answer), Ok(()));
    check(&mut bench, &[&events[..], &[finished()]].concat());
}

#[test]
fn an_error_answers_all_of_its_transaction_and_the_next_round_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut bench, _) = Bench::open(folder.path());
    bench.running(1);
    let (file, aside) = (folder.path().join("jobs.redb"), folder.path().join("moved"));
    std::fs::rename(&file, &aside).expect("moved");
    let submits = [bench.submit(job(2)), bench.submit(job(3))];
    let refused = bench.append(2, vec![token(1)], numbered(0, &[started()]));
    let never = bench.change(becomes(3, JobState::Running));
    // The token log is another file, and has no trouble.
    let appended = bench.append(1, vec![token(1)], numbered(0, &[started()]));
    let changed = bench.change(JobChange { held: Some(true), ..becomes(1, JobState::Queued) });
    bench.round();
    let messages = submits.map(|answer| done(answer).expect_err("its file is not there"));
    assert_eq!(messages[0], messages[1]);
    assert!(messages[0].contains("jobs.redb"), "{}", messages[0]);
    assert_eq!((done(refused), done(never)), (Err(messages[0].clone()), Err(messages[0].clone())));
    assert_eq!(done(appended), Ok(()));
    assert!(done(changed).is_err_and(|why| why.contains("jobs.redb")));

    std::fs::rename(&aside, &file).expect("moved back");
    let again = (bench.submit(job(2)), bench.change(becomes(1, JobState::Queued)));
    bench.round();
    assert_eq!((done(again.0), done(again.1)), (Ok(Submitted::New), Ok(())));
    drop(bench);
    let (_bench, opened) = Bench::open(folder.path());
    let found: Vec<_> =
        opened.jobs.iter().map(|job| (job.record.number, job.events, job.record.held)).collect();
    assert_eq!(found, [(1, 1, false), (2, 0, false)]);
}

#[test]
fn a_key_has_one_job_and_what_belongs_to_another_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut bench, _) = Bench::open(folder.path());
    let keyed = |number| JobRecord { key: Some("k".into()), ..job(number) };
    let first = bench.submit(keyed(1));
    let second = bench.submit(keyed(2));
    let change = bench.change(becomes(2, JobState::Running));
    bench.round();
    assert_eq!((done(first), done(second)), (Ok(Submitted::New), Ok(Submitted::Known(1))));
    assert_eq!(done(change), Err("it is not stored: its key is that of job j-0000000000000001".to_owned()));
    assert_eq!(bench.worker.find("t", "k"), Ok(Some(1)));
    assert_eq!((bench.worker.find("t", "other"), bench.worker.find("", "k")), (Ok(None), Ok(None)));
}

#[test]
fn an_end_may_bring_all_its_events_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut bench, _) = Bench::open(folder.path());
    bench.running(1);
    let appended = bench.append(1, vec![], numbered(0, &[started(), text("a")]));
    let ended = bench.finish(1, numbered(0, &[finished()]));
    let cancelled = (
        bench.submit(job(2)),
        bench.ask(|reply| {
            Command::Change(becomes(2, JobState::Cancelled), Some(numbered(0, &[finished()])), reply)
        }),
    );
    bench.round();
    assert_eq!((done(appended), done(ended), done(cancelled.1)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(done(cancelled.0), Ok(Submitted::New));
    for job in [1, 2] {
        assert_eq!(bench.worker.events(job, 0, 9), Ok(vec![finished()]));
    }
}

/// A crash or damage may leave anything behind what was acknowledged.
#[test]
fn reading_ends_where_a_step_does_not_follow_and_the_rest_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let entry = |job, index, bytes| LogEntry { job, kind: 0, index, bytes };
    let step = |tokens_before, events_before, token_id: u32| {
        encode(&Step { tokens_before, events_before, tokens: vec![token(token_id)], events: vec![text("x")] })
    };
    let strange = [
        ("another version", vec![2; 20]),
        ("a token more before it", step(2, 1, 7)),
        ("an event less before it", step(1, 0, 7)),
    ];
    for (what, bytes) in strange {
        let (mut log, _) = TokenLog::open(folder.path()).expect("a log");
        let entries = [
            entry(5, 0, step(0, 0, 6)),
            entry(5, 1, bytes),
            entry(5, 2, step(2, 2, 8)),
            entry(6, 0, step(0, 0, 1)),
        ];
        log.append(&entries).expect("appended");
        drop(log);
        let (mut logs, mut left) = Logs::open(folder.path(), &[5, 9]).expect("a log");
        let left = left.remove(&5).expect("job 5 left something");
        assert_eq!((left.tokens, left.started, left.events), (vec![token(6)], None, 1), "{what}");
        assert!(!logs.has(6) && !logs.has(9), "nobody wants job 6, and job 9 left nothing");
        // What comes next goes where reading ended, and nothing old follows on it.
        let new = NewStep { job: 5, tokens: vec![token(7)], events: numbered(1, &[text("y")]) };
        logs.append(vec![new]).expect("appended");
        drop(logs);
        let (_, left) = Logs::open(folder.path(), &[5]).expect("a log");
        assert_eq!((left[&5].tokens.clone(), left[&5].events), (vec![token(6), token(7)], 2), "{what}");
        assert_eq!(left.len(), 1);
    }
}

fn spawn(dir: &Path) -> (JobDisk, Receiver<Result<Opened, String>>, tokio::sync::mpsc::Receiver<Organ>) {
    let (pulses, deaths) = Pulses::new(1);
    let (disk, opened) = JobDisk::spawn(dir.into(), FOREVER, Clock::start(), &pulses).expect("a thread");
    (disk, opened, deaths)
}

/// Holds the thread up until the sender is dropped.
fn hold_up(disk: &JobDisk) -> mpsc::SyncSender<()> {
    let (gate, wait) = mpsc::sync_channel::<()>(0);
    let (inside, is_inside) = mpsc::sync_channel(1);
    let held = disk.read(move |_| {
        inside.send(()).expect("the test waits");
        let _ = wait.recv();
        Ok(())
    });
    drop(held);
    is_inside.recv().expect("the thread comes to it");
    gate
}

#[actix::test]
async fn a_job_lives_through_the_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, opened, mut deaths) = spawn(folder.path());
    opened.await.expect("alive").expect("a sound folder");
    let keyed = JobRecord { key: Some("k".into()), ..job(1) };
    assert_eq!(disk.submit(keyed).await.expect("alive"), Ok(Submitted::New));
    assert_eq!(disk.find("t".into(), "k".into()).await.expect("alive"), Ok(Some(1)));
    assert_eq!(disk.change(becomes(1, JobState::Running)).await.expect("alive"), Ok(()));
    let appended = disk.append(1, vec![token(1)], numbered(0, &[started(), text("a")]));
    assert_eq!(appended.await.expect("alive"), Ok(()));
    let ended = disk.finish(becomes(1, JobState::Done), numbered(2, &[finished()]));
    assert_eq!(ended.await.expect("alive"), Ok(()));
    assert_eq!(disk.events(1, 1, 9).await.expect("alive"), Ok(vec![text("a"), finished()]));
    let latest = disk.latest(None, 9).await.expect("alive").expect("read");
    assert_eq!((latest.len(), latest[0].state), (1, JobState::Done));
    drop(disk);
    // The thread ends with the last way to it, which is no death.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(deaths.try_recv().ok(), None);
}

#[actix::test]
async fn a_full_channel_refuses_at_once_and_what_was_in_it_is_done_in_one_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, opened, _deaths) = spawn(folder.path());
    assert_eq!(opened.await.expect("alive").expect("a sound folder").last_number, 0);
    let gate = hold_up(&disk);
    let answers: Vec<_> = (1..=JOB_DISK_COMMANDS as u64).map(|number| disk.submit(job(number))).collect();
    let refused = done(disk.submit(job(5000))).expect_err("it is full");
    assert_eq!(refused, format!("the job disk has {JOB_DISK_COMMANDS} commands waiting; try again later"));
    drop(gate);
    for answer in answers {
        assert_eq!(answer.await.expect("alive"), Ok(Submitted::New));
    }
    let figures = disk.figures().await.expect("alive").expect("read");
    assert_eq!((figures.transactions, figures.flushes), (1, 0));
}

#[actix::test]
async fn a_folder_that_cannot_be_used_is_told_to_everybody_who_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("jobs.redb"), "no database").expect("written");
    let (disk, opened, _deaths) = spawn(folder.path());
    let why = opened.await.expect("alive").expect_err("it is no database");
    assert!(why.contains("jobs.redb") && why.contains("left as it is"), "{why}");
    assert_eq!(disk.submit(job(1)).await.expect("alive"), Err(why.clone()));
    assert_eq!(disk.append(1, vec![], vec![]).await.expect("alive"), Err(why.clone()));
    assert_eq!(disk.record(1).await.expect("alive"), Err(why));
    assert_eq!(std::fs::read(folder.path().join("jobs.redb")).expect("it is there"), b"no database");
}

#[actix::test]
async fn a_change_that_no_state_allows_ends_the_thread_and_the_daemon_hears_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, opened, mut deaths) = spawn(folder.path());
    opened.await.expect("alive").expect("a sound folder");
    assert_eq!(disk.submit(job(1)).await.expect("alive"), Ok(Submitted::New));
    let answer = disk.finish(becomes(1, JobState::Done), numbered(0, &[finished()]));
    assert!(answer.await.is_err(), "a job that never ran is not done");
    assert_eq!(deaths.recv().await, Some(Organ::JobDiskThread));
    assert_eq!(done(disk.record(1)), Err("the job disk's thread has ended".to_owned()));
}
