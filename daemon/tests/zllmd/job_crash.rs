//! `kill -9` at random moments, also while the daemon starts, and SIGTERM now and then, while durable jobs of every kind wait
//! and run: each that was acknowledged ends exactly once, with the text, tokens and log probabilities of a run that nobody
//! disturbs. Clients submit what was not acknowledged again under the same key; readers come back and read on.

use crate::common::durable::{BATCH, JOBS, Outcome, Reader, batch, request, undisturbed};
use crate::common::kv::{Rng, seed, soak};
use crate::common::{Builder, Client, Daemon, Settings, now, wait_for};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zllm_wire::{Answer, ErrorCode, JobId, JobState, Op, ShowTarget};

/// Jobs whose logs are read as they come: the interactive one, a normal one, and of the batch those with two answers.
const READ: [usize; 5] = [0, 1, 10, 17, 23];

/// Few places, so that jobs wait; no time to drain, so that a SIGTERM leaves jobs behind too.
fn settings(settings: &mut Settings) {
    settings.more = "[limits]\nrunning_jobs = 4\ndrain_seconds = 0\n".into();
}

/// The jobs of a round as their clients know them.
struct Round {
    number: usize,
    /// Ids of those that were acknowledged.
    jobs: Mutex<BTreeMap<usize, JobId>>,
    readers: Vec<Reader>,
    /// Those that were seen to have ended, with the length of their logs.
    ended: BTreeMap<usize, u64>,
}

/// What all lives of the daemon did together.
#[derive(Debug, Default)]
struct Counts {
    rounds: u64,
    /// Kills while jobs ran, or waited.
    at_work: u64,
    /// Kills while the daemon started.
    at_start: u64,
    terminations: u64,
    /// Submissions that were sent again, and found their job.
    found_again: u64,
    /// Times that a job began to run after its first.
    restarts: u64,
    /// Tokens that were drawn, as the daemons last told before they ended.
    drawn: u64,
}

impl Counts {
    fn kills(&self) -> u64 {
        self.at_work + self.at_start
    }
}

impl Round {
    fn new(number: usize) -> Self {
        let readers = READ.map(Reader::new).into();
        Self { number, jobs: Mutex::default(), readers, ended: BTreeMap::new() }
    }

    fn known(&self) -> BTreeMap<usize, JobId> {
        self.jobs.lock().expect("no client panicked").clone()
    }

    /// Submits all that was not acknowledged, some at a time, and a few again that were; how many were known.
    fn submit(&self, client: &mut Client, rng: &mut Rng) -> u64 {
        let known = self.known();
        let mut missing: Vec<usize> = (0..JOBS).filter(|index| !known.contains_key(index)).collect();
        missing.extend(known.keys().filter(|_| rng.below(20) == 0));
        let mut found = 0;
        while !missing.is_empty() {
            let together = missing.drain(..missing.len().min(1 + rng.below(20) as usize)).collect::<Vec<_>>();
            let Some(sent) = together
                .iter()
                .map(|&index| {
                    Some((index, client.try_send(Op::Submit(Box::new(request(self.number, index))))?))
                })
                .collect::<Option<Vec<_>>>()
            else {
                return found;
            };
            for (index, id) in sent {
                let (job, was_known) = match client.try_answer(id) {
                    Some(Answer::Accepted { job, known }) => (job, known),
                    Some(Answer::Error(fault)) if fault.code == ErrorCode::Draining => continue,
                    Some(other) => panic!("job {index} was not accepted but {other:?}"),
                    None => return found,
                };
                let mut jobs = self.jobs.lock().expect("no client panicked");
                if let Some(first) = jobs.insert(index, job.clone()) {
                    assert!(was_known && first == job, "job {index} was {first}, and is {job}: {was_known}");
                }
                found += u64::from(was_known);
            }
        }
        found
    }

    /// After a start: what was acknowledged is there, and what had ended is as it was.
    fn check(&mut self, client: &mut Client) {
        for (index, job) in self.known() {
            let Answer::Job(detail) = client.ask(Op::Show(ShowTarget::Job(job.clone()))) else {
                panic!("job {index}, {job}, is lost")
            };
            let has_ended = detail.info.state == JobState::Done;
            assert!(!has_ended || detail.attempts > 0, "it ran to end so: {detail:?}");
            assert!(
                has_ended || matches!(detail.info.state, JobState::Queued | JobState::Running),
                "{detail:?}"
            );
            match self.ended.get(&index) {
                Some(events) => {
                    assert!(has_ended && detail.events == *events, "job {index} had ended: {detail:?}");
                }
                None if has_ended => {
                    self.ended.insert(index, detail.events);
                }
                None => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        self.ended.len() == JOBS && self.readers.iter().all(|reader| reader.has_ended)
    }

    /// Every job ended once, as it does undisturbed, and its readers saw exactly that.
    fn compare(&self, client: &mut Client, expected: &[Outcome], counts: &mut Counts) {
        let known = self.known();
        for (index, job) in &known {
            let id = client.send(Op::Attach { job: job.clone(), from: 0 });
            let log = client.finish(id).events;
            let name = format!("round {}, job {index}, {job}", self.number);
            Outcome::of(&name, &log).compare(&expected[*index], &name);
            for reader in self.readers.iter().filter(|reader| reader.index == *index) {
                assert_eq!(reader.log, log, "{name}: what its reader saw");
            }
            let Answer::Job(detail) = client.ask(Op::Show(ShowTarget::Job(job.clone()))) else {
                panic!("{name} is lost")
            };
            counts.restarts += u64::from(detail.attempts.saturating_sub(1));
        }
        // None twice: a label of this round stands for one job alone.
        let Answer::Listing { jobs, .. } = client.ask(Op::List) else { panic!("no listing") };
        let prefix = format!("{}-", self.number);
        let of_round =
            jobs.iter().filter(|info| info.label.as_ref().is_some_and(|label| label.starts_with(&prefix)));
        let mut listed: Vec<&JobId> = of_round.map(|info| &info.id).collect();
        let mut acknowledged: Vec<&JobId> = known.values().collect();
        listed.sort();
        acknowledged.sort();
        assert_eq!(listed, acknowledged);
        let of_batch = Op::BatchJobs { tenant: None, batch: batch(self.number), after: None };
        let Answer::BatchJobs(page) = client.ask(of_batch) else { panic!("no batch") };
        assert_eq!(page.jobs.len(), BATCH);
        counts.rounds += 1;
    }
}

/// One life of the daemon's clients: they work until it is gone, or until all has ended.
fn live(
    daemon: &mut Daemon,
    round: &mut Round,
    rng: &mut Rng,
    end: Option<(&str, Duration)>,
    counts: &mut Counts,
) {
    let over = AtomicBool::new(false);
    let mut readers = std::mem::take(&mut round.readers);
    let (this, jobs): (&Round, _) = (round, &round.jobs);
    let (daemon_now, over) = (&*daemon, &over);
    let mut submits = Rng::new(rng.next());
    std::thread::scope(|scope| {
        let submitter = scope.spawn(move || {
            Client::try_connect(&daemon_now.socket())
                .map_or(0, |mut client| this.submit(&mut client, &mut submits))
        });
        for reader in readers.iter_mut().filter(|reader| !reader.has_ended) {
            scope.spawn(move || {
                let known = || jobs.lock().expect("no client panicked").get(&reader.index).cloned();
                let mut job = known();
                while job.is_none() && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(2));
                    job = known();
                }
                if let Some((job, mut client)) = job.zip(Client::try_connect(&daemon_now.socket())) {
                    reader.read_on(&mut client, &job);
                }
            });
        }
        let watcher = scope.spawn(move || {
            let mut drawn = 0;
            let Some(mut client) = Client::try_connect(&daemon_now.socket()) else { return drawn };
            while !over.load(Ordering::Relaxed) {
                let Some(Answer::Status(status)) = client.try_ask(Op::Status) else { break };
                assert!(status.jobs_durable, "{:?}", status.jobs_fault);
                drawn = status.generated_tokens;
                let is_idle = status.queued_jobs == 0 && status.running_jobs == 0;
                if end.is_none() && is_idle && jobs.lock().expect("no client panicked").len() == JOBS {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            drawn
        });
        if let Some((signal, after)) = end {
            std::thread::sleep(after);
            over.store(true, Ordering::Relaxed);
            daemon_now.signal(signal);
        }
        counts.found_again += submitter.join().expect("the submitter");
        counts.drawn += watcher.join().expect("the watcher");
        over.store(true, Ordering::Relaxed);
    });
    round.readers = readers;
}

#[test]
fn killed_at_any_moment_every_acknowledged_job_ends_once_and_as_if_undisturbed() {
    let kills = if soak() { 200 } else { 6 };
    let seed = seed("killed jobs", 11);
    let mut rng = Rng::new(seed);
    let expected = undisturbed(settings);
    let mut counts = Counts::default();
    let mut daemon = Builder::new().with(settings).start();
    let mut round = Round::new(0);
    let begun = now();
    while counts.kills() < kills {
        let after = Duration::from_millis(rng.below(if soak() { 900 } else { 500 }));
        let signal = if rng.below(8) == 0 { "TERM" } else { "KILL" };
        *if signal == "TERM" { &mut counts.terminations } else { &mut counts.at_work } += 1;
        live(&mut daemon, &mut round, &mut rng, Some((signal, after)), &mut counts);
        let status = daemon.wait();
        assert!(signal == "KILL" || status.code() == Some(0), "{}", daemon.log());
        while counts.kills() < kills && rng.below(3) == 0 {
            daemon.kill_while_it_starts(after / 3);
            counts.at_start += 1;
        }
        daemon.start_again();
        let mut client = daemon.connect();
        round.check(&mut client);
        if soak() {
            let (kills, number, ended) = (counts.kills(), round.number, round.ended.len());
            println!("{kills} kills, {signal} after {after:?}: round {number}, {ended} jobs have ended");
        }
        if round.is_over() {
            round.compare(&mut client, &expected, &mut counts);
            round = Round::new(round.number + 1);
        }
    }
    live(&mut daemon, &mut round, &mut rng, None, &mut counts);
    let mut client = daemon.connect();
    wait_for("the last job's end", || {
        round.check(&mut client);
        round.is_over().then_some(())
    });
    round.compare(&mut client, &expected, &mut counts);
    let needed = counts.rounds * expected.iter().map(|outcome| outcome.generated_tokens).sum::<u64>();
    let (took, twice) = (now() - begun, counts.drawn.saturating_sub(needed));
    println!("{counts:?} in {took:?}; {needed} tokens undisturbed, so at least {twice} were drawn twice");
    assert!(counts.restarts > 0, "something ran when it was killed");
    daemon.terminate();
}
