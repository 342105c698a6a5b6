//! `kill -9` at random moments while sessions run, spill, are restored and saved: what was acknowledged is there at the next
//! start, nothing half-written is visible, the budget holds, and the answers are right.

use crate::common::kv::{
    BLOCK_BYTES, Drawn, Reference, Rng, folder_bytes, ids, request, seed, session, soak,
};
use crate::common::{Builder, Client, Daemon, PATIENCE, now};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zllm_wire::{Answer, CacheOutcome, EvictTarget, Op, SessionInfo, Tier};

const WORKERS: u64 = 2;
/// Sessions of each worker; nobody else touches them.
const SESSIONS_EACH: u64 = 3;
/// A session that has become longer is dropped, and another takes its place.
const LONGEST: usize = 280;
const DRAWN: u32 = 2;

/// A session as its client knows it.
struct Timeline {
    id: String,
    /// The prompt of its next turn: all before it and something new.
    next: Vec<u32>,
    /// Tokens of it whose saving was acknowledged; `None`: nothing was.
    saved: Option<u64>,
}

/// One client's sessions and its dice.
struct Worker {
    number: u64,
    rng: Rng,
    made: u64,
    timelines: Vec<Timeline>,
    /// Ids of sessions that were dropped, acknowledged or not.
    dropped: Vec<String>,
    /// Prompts and what the daemon said to them; compared with what is right while it is down.
    answers: Vec<(Vec<u32>, Vec<Drawn>)>,
    counts: Counts,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    turns: u64,
    found: u64,
    saves: u64,
    drops: u64,
    evictions: u64,
    computed: u64,
}

impl Worker {
    fn new(number: u64, seed: u64) -> Self {
        let rng = Rng::new(seed + 1000 * (number + 1));
        let mut worker = Self {
            number,
            rng,
            made: 0,
            timelines: Vec::new(),
            dropped: Vec::new(),
            answers: Vec::new(),
            counts: Counts::default(),
        };
        for _ in 0..SESSIONS_EACH {
            let timeline = worker.new_timeline();
            worker.timelines.push(timeline);
        }
        worker
    }

    fn new_timeline(&mut self) -> Timeline {
        let id = format!("w{}-{}", self.number, self.made);
        self.made += 1;
        let tokens = 70 + self.rng.below(100);
        Timeline { id, next: self.rng.tokens(tokens), saved: None }
    }

    /// Works until the daemon is gone; counts its steps.
    fn work(&mut self, client: &mut Client, steps: &AtomicU64) {
        while self.step(client).is_some() {
            steps.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn step(&mut self, client: &mut Client) -> Option<()> {
        let at = self.rng.below(SESSIONS_EACH) as usize;
        if self.timelines[at].next.len() > LONGEST {
            return self.drop_session(client, at);
        }
        self.turn(client, at)?;
        match self.rng.below(4) {
            0 | 1 => self.save(client, at),
            2 => {
                let tier = if self.rng.below(2) == 0 { Tier::Device } else { Tier::Ram };
                self.counts.evictions += 1;
                let evict = Op::Evict { target: EvictTarget::All, tier: Some(tier) };
                let answer = client.try_ask(evict)?;
                assert!(matches!(answer, Answer::Evicted { .. }), "{answer:?}");
                Some(())
            }
            _ => Some(()),
        }
    }

    /// One request. What was saved of the session is found, wherever it is now.
    fn turn(&mut self, client: &mut Client, at: usize) -> Option<()> {
        let timeline = &mut self.timelines[at];
        let turn = client.try_turn(request(ids(&timeline.next), DRAWN, Some(&timeline.id)))?;
        self.answers.push((timeline.next.clone(), turn.drawn.clone()));
        self.counts.turns += 1;
        self.counts.found += u64::from(turn.cached().total() > 0);
        let least = timeline.saved.unwrap_or(0).min(timeline.next.len() as u64 - 1);
        if turn.cached().total() < least {
            let outcome = match client.try_ask(Op::Why { job: turn.job.clone() })? {
                Answer::Why(story) => story.outcome,
                other => panic!("no story but {other:?}"),
            };
            let computed = matches!(outcome, CacheOutcome::Computed { .. });
            assert!(computed, "{} has {least} saved, {:?} found: {outcome:?}", timeline.id, turn.cached());
            self.counts.computed += 1;
        }
        timeline.next.extend(turn.tokens());
        timeline.next.extend(self.rng.tokens(3));
        Some(())
    }

    fn save(&mut self, client: &mut Client, at: usize) -> Option<()> {
        let timeline = &mut self.timelines[at];
        match client.try_ask(Op::Save { session: Some(session(&timeline.id)) })? {
            // The last token drawn was not computed, and the three after it were not asked for.
            Answer::Saved { sessions: 1, .. } => timeline.saved = Some(timeline.next.len() as u64 - 4),
            other => panic!("{} was not saved but {other:?}", timeline.id),
        }
        self.counts.saves += 1;
        Some(())
    }

    fn drop_session(&mut self, client: &mut Client, at: usize) -> Option<()> {
        let fresh = self.new_timeline();
        let old = std::mem::replace(&mut self.timelines[at], fresh);
        self.dropped.push(old.id.clone());
        self.counts.drops += 1;
        let answer =
            client.try_ask(Op::Evict { target: EvictTarget::Session(session(&old.id)), tier: None })?;
        assert!(matches!(answer, Answer::Evicted { .. }), "{answer:?}");
        Some(())
    }

    fn compare_answers(&mut self, reference: &mut Reference) {
        for (prompt, drawn) in self.answers.drain(..) {
            assert_eq!(drawn, reference.answer(&prompt, DRAWN), "a prompt of {} tokens", prompt.len());
        }
    }

    /// After a kill: what was acknowledged is listed, and nothing that nobody made.
    fn compare(&self, listed: &HashMap<String, SessionInfo>) {
        for timeline in &self.timelines {
            let info = listed.get(&timeline.id);
            let (tokens, saved) = info.map_or((0, false), |info| (info.tokens, info.saved));
            let least = timeline.saved.unwrap_or(0);
            assert!(tokens >= least, "{}: {tokens} of {least} saved tokens are there", timeline.id);
            assert!(tokens < timeline.next.len() as u64 + u64::from(DRAWN), "{} is too long", timeline.id);
            assert!(info.is_none() || saved, "{}: what is there after a start is saved", timeline.id);
        }
        let own = listed.keys().filter(|id| id.starts_with(&format!("w{}-", self.number)));
        for id in own {
            let known = self.timelines.iter().any(|timeline| timeline.id == *id) || self.dropped.contains(id);
            assert!(known, "nobody made {id}");
        }
    }
}

/// Everything that must hold after a start, before anything is asked of it.
fn check_after_start(daemon: &Daemon, client: &mut Client, workers: &[Worker]) {
    let report = client.check();
    assert_eq!((report.damaged, report.dangling), (vec![], vec![]));
    assert_eq!(report.sessions, report.complete_sessions, "every session that is visible is whole");
    let listed = client.sessions();
    assert_eq!(report.sessions, listed.len() as u64);
    workers.iter().for_each(|worker| worker.compare(&listed));
    check_budget(daemon, client);
}

fn check_budget(daemon: &Daemon, client: &mut Client) {
    let budget = daemon.settings.ssd_budget_bytes;
    let (told, seen) = (client.status().kv.file_bytes, folder_bytes(&daemon.settings.kv_dir));
    assert!(told <= budget && seen <= budget, "{told} bytes told, {seen} seen, {budget} may be");
}

#[test]
fn killed_at_any_moment_it_keeps_what_it_has_acknowledged() {
    let kills = if soak() { 200 } else { 8 };
    let seed = seed("killed_at_any_moment", 9);
    let mut rng = Rng::new(seed);
    let mut reference = Reference::start();
    let mut daemon = Builder::new()
        .with(|settings| {
            // Room for two running requests and a session more; in RAM for two; on the SSD for all.
            settings.kv_budget_bytes = 15 * BLOCK_BYTES;
            settings.ram_budget_bytes = 10 * BLOCK_BYTES;
            settings.ssd_budget_bytes = 160 << 20;
        })
        .start();
    let mut workers: Vec<Worker> = (0..WORKERS).map(|number| Worker::new(number, seed)).collect();
    for kill in 0..kills {
        // So many steps and then so long: also a slow machine comes to do something.
        let moment = (rng.below(7), Duration::from_millis(rng.below(400)));
        let (steps, over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for worker in &mut workers {
                let (mut client, steps) = (daemon.connect(), &steps);
                scope.spawn(move || worker.work(&mut client, steps));
            }
            let mut watcher = daemon.connect();
            let (daemon_now, over) = (&daemon, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let Some(Answer::Status(status)) = watcher.try_ask(Op::Status) else { break };
                    let stored = folder_bytes(&daemon_now.settings.kv_dir);
                    let budget = daemon_now.settings.ssd_budget_bytes;
                    assert!(stored <= budget && status.kv.file_bytes <= budget, "{stored} of {budget} bytes");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            // A client that has found something wrong makes no more steps, and tells when the daemon is gone.
            let give_up = now() + PATIENCE;
            while steps.load(Ordering::Relaxed) < moment.0 && now() < give_up {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(moment.1);
            over.store(true, Ordering::Relaxed);
            daemon.signal("KILL");
        });
        daemon.wait();
        workers.iter_mut().for_each(|worker| worker.compare_answers(&mut reference));
        daemon.start_again();
        check_after_start(&daemon, &mut daemon.connect(), &workers);
        if soak() {
            println!(
                "kill {kill} after {moment:?}: {:?}",
                workers.iter().map(|w| w.counts).collect::<Vec<_>>()
            );
        }
    }
    let counts: Vec<Counts> = workers.iter().map(|worker| worker.counts).collect();
    println!("{kills} kills; each worker: {counts:?}");
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    assert!(sum(|of| of.turns) > 0 && sum(|of| of.found) > 0 && sum(|of| of.saves) > 0, "they worked");
    daemon.terminate();
}
