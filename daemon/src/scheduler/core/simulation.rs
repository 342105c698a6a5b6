//! A whole day of the scheduler in a few seconds: random arrivals, cancels and lost clients on a simulated device, with
//! the real index of blocks. Each run prints its seed when it fails.
//!
//! What must hold: exactly one terminal event a job and nothing after it, its answers side by side or one after another,
//! every lease given back, no starvation, a decode row for every sequence past its prompt in every step, and the tokens of
//! a job as if it had run alone. Leases begin inside of blocks, are granted long before they are answered, and are
//! refused without a reason now and then, as a store that reads from disk does.

use super::*;
use crate::scheduler::plan::RowOutcome;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use zllm_state::index::{ArenaId, Index, IndexOptions};
use zllm_state::{ArenaBudget, BlockKey, ByTier, Fingerprint, LeaseError};
use zllm_wire::StopCause;

const MODELS: [(&str, u32); 2] = [("a", 12), ("b", 6)];
const TOKEN_OF_THE_END: u32 = 0;

/// xorshift64*: small, seeded, the same everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// The simulated model and sampler: the next token is a hash of all tokens before and of the answer's number, and 1 in 24
/// ends the text.
fn next_token(tokens: &[u32], choice: u32) -> u32 {
    let mut hash = 0x811c_9dc5u32 ^ choice;
    for token in tokens {
        hash = (hash ^ token).wrapping_mul(0x0100_0193);
    }
    (hash >> 8) % 24
}

#[derive(Default)]
struct Record {
    prompt: Vec<u32>,
    max_tokens: usize,
    choices: u32,
    events: Vec<Event>,
    terminal: bool,
    arrival: u64,
    steps_waited: u64,
    cached: Option<ByTier>,
}

/// A question for a lease and, once the store has decided, the answer on its way.
struct Question {
    sequence: SequenceId,
    prompt: Arc<[u32]>,
    capacity: usize,
    answer: Option<Result<Lease, NoLease>>,
}

/// Blocks of each model beside those of running jobs.
const RAM_BLOCKS: u32 = 4;

struct Simulation {
    seed: u64,
    rng: Rng,
    core: Core,
    now: Uptime,
    index: Index,
    arenas: BTreeMap<ModelName, (ArenaId, BlockKey)>,
    /// What the device's blocks hold: a wrong block table shows up as wrong tokens.
    kv: HashMap<(ModelName, u32), [u32; BLOCK_TOKENS]>,
    /// What was asked and not answered, of each model.
    questions: BTreeMap<ModelName, Question>,
    /// Prompts that were to be brought nearer.
    prefetches: usize,
    /// Leases that began inside of a block.
    partial: usize,
    device: Option<StepPlan>,
    /// Sequences of which the device keeps something.
    known: HashSet<SequenceId>,
    records: BTreeMap<JobNumber, Record>,
    /// What each answer has generated, for those that have begun.
    generated: HashMap<SequenceId, Vec<u32>>,
    /// Text that a generation holds back: that of every third token waits for the next.
    held: HashMap<SequenceId, String>,
    next_job: u64,
    leases: i64,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let limits = CoreLimits {
            queued_jobs: 6,
            queued_prompt_tokens: 1000,
            queued_bytes: 4000,
            running_jobs: 3,
            prefill_chunk_tokens: 1 + (seed % 70) as usize,
        };
        let mut simulation = Self {
            seed,
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            core: Core::new(limits),
            now: Duration::ZERO,
            index: Index::new(IndexOptions::default()),
            arenas: BTreeMap::new(),
            kv: HashMap::new(),
            questions: BTreeMap::new(),
            prefetches: 0,
            partial: 0,
            device: None,
            known: HashSet::new(),
            records: BTreeMap::new(),
            generated: HashMap::new(),
            held: HashMap::new(),
            next_job: 0,
            leases: 0,
        };
        for (name, total_blocks) in MODELS {
            let model: ModelName = name.into();
            let (device_blocks, ram_blocks) = (total_blocks, RAM_BLOCKS);
            let budget = ArenaBudget { device_blocks, ram_blocks, block_bytes: 1, stored_bytes: 1 };
            let root = BlockKey::root(Fingerprint([total_blocks as u8; 32]), "");
            simulation.arenas.insert(model.clone(), (simulation.index.add_arena(budget), root));
            simulation.input(Input::ModelUp { model, total_blocks });
        }
        simulation
    }

    fn input(&mut self, input: Input) {
        for action in self.core.step(input, self.now) {
            self.carry_out(action);
        }
        self.core.check();
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Refused { job, .. } => {
                let record = &self.records[&job];
                assert!(record.events.is_empty(), "a refused job never existed");
                self.records.remove(&job);
            }
            Action::Lease { sequence, model, prompt, capacity_tokens: capacity, .. } => {
                self.judge_turn(sequence);
                let question = Question { sequence, prompt, capacity, answer: None };
                let before = self.questions.insert(model, question);
                assert!(before.is_none(), "one question of a model at a time");
            }
            Action::Prefetch { .. } => self.prefetches += 1,
            Action::Cached { job, report } => {
                let record = self.records.get_mut(&job).expect("submitted");
                assert!(record.cached.is_none(), "told once, for the first answer");
                record.cached = Some(report.cached);
            }
            Action::Commit { lease, tokens } => self.index.commit(lease, &tokens),
            Action::Release { lease, tokens, .. } => {
                self.leases -= 1;
                let tail = &tokens[tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS..];
                self.index.release(lease, tail, self.now.as_millis() as u64);
                self.index.check().expect("the index's invariants");
            }
            Action::Step(plan) => {
                assert!(self.device.is_none(), "one step at a time");
                self.judge_plan(&plan);
                self.device = Some(plan);
            }
            Action::Forget { sequence, .. } => {
                assert!(self.known.remove(&sequence), "only what the device knows");
            }
            Action::Event { job, event } => {
                let record = self.records.get_mut(&job).expect("submitted");
                assert!(!record.terminal, "{job:?} has an event after its terminal one: {event:?}");
                record.terminal = matches!(event, Event::Finished { .. } | Event::Failed { .. });
                record.events.push(event);
            }
            Action::Measure(_) | Action::Token { .. } => {}
        }
    }

    /// The answers of a job behind the first start when it has its first token.
    fn judge_turn(&self, sequence: SequenceId) {
        let first = SequenceId { choice: 0, ..sequence };
        let has_begun = self.generated.get(&first).is_some_and(|tokens| !tokens.is_empty());
        assert!(sequence.choice == 0 || has_begun, "{sequence:?} computes the prompt a second time");
    }

    fn judge_plan(&self, plan: &StepPlan) {
        assert!(!plan.rows.is_empty());
        let mut prefills = 0;
        for row in &plan.rows {
            let running = self.core.jobs[&row.sequence.job].running(row.sequence.choice);
            assert_eq!(row.position, running.computed);
            assert!(row.tokens.len() <= self.core.limits.prefill_chunk_tokens);
            prefills += usize::from(running.tokens.len() - running.computed > 1);
        }
        assert!(prefills <= 1, "at most one prefill chunk");
        for sequence in &self.core.running {
            let job = &self.core.jobs[&sequence.job];
            let running = job.running(sequence.choice);
            if job.model == plan.model && running.tokens.len() - running.computed == 1 {
                assert!(plan.rows.iter().any(|row| row.sequence == *sequence), "a decode row is missing");
            }
        }
    }

    fn submit(&mut self) {
        let id = JobNumber(self.next_job);
        self.next_job += 1;
        let (name, total_blocks) = MODELS[self.rng.below(2) as usize];
        let length = 1 + self.rng.below(u64::from(total_blocks) * 40) as usize;
        // Few distinct beginnings, so that prefixes are shared.
        let kind = self.rng.below(3) as u32;
        let mut prompt: Vec<u32> = (0..length as u32).map(|at| 100 + kind * 1000 + at).collect();
        if self.rng.below(2) == 0 {
            *prompt.last_mut().expect("not empty") = 50;
        }
        let max_tokens = 1 + self.rng.below(60) as usize;
        let owner = (self.rng.below(2) == 0).then(|| ConnectionId(self.rng.below(4)));
        let choices = if self.rng.below(3) == 0 { 1 + self.rng.below(5) as u32 } else { 1 };
        let arrival = self.next_job;
        let record = Record { prompt: prompt.clone(), max_tokens, choices, arrival, ..Record::default() };
        self.records.insert(id, record);
        let model = name.into();
        self.input(Input::Submit(NewJob {
            id,
            model,
            tenant: String::new(),
            prompt,
            max_tokens,
            choices,
            bytes: length,
            arrived_at: self.now,
            owner,
        }));
    }

    /// The store decides some of the questions; the answers stay on their way.
    fn decide_leases(&mut self) {
        let mut questions = std::mem::take(&mut self.questions);
        for (model, question) in &mut questions {
            if question.answer.is_none() && self.rng.below(2) == 0 {
                question.answer = Some(self.decide(model, &question.prompt, question.capacity));
            }
        }
        self.questions = questions;
    }

    fn decide(&mut self, model: &ModelName, prompt: &[u32], capacity: usize) -> Result<Lease, NoLease> {
        if self.rng.below(8) == 0 {
            return Err(NoLease::NotNow);
        }
        let (arena, root) = self.arenas[model];
        let now_ms = self.now.as_millis() as u64;
        let grant = match self.index.lease(arena, root, prompt, capacity, now_ms) {
            Ok(grant) => grant,
            Err(LeaseError::NotNow { .. }) => return Err(NoLease::NotNow),
            Err(never) => panic!("the core let an impossible job in: {never}"),
        };
        self.leases += 1;
        if let Some(copy) = grant.copy {
            self.partial += 1;
            let content = self.kv[&(model.clone(), copy.from)];
            self.kv.insert((model.clone(), copy.to), content);
        }
        let cache = CacheReport { cached: grant.cached, outcome: CacheOutcome::Nothing };
        let blocks = grant.blocks.into();
        Ok(Lease { id: grant.lease, blocks, cache })
    }

    /// The answers that are on their way arrive.
    fn answer_leases(&mut self) {
        let (decided, open) = std::mem::take(&mut self.questions)
            .into_iter()
            .partition(|(_, question)| question.answer.is_some());
        self.questions = open;
        let decided: BTreeMap<ModelName, Question> = decided;
        for Question { sequence, answer, .. } in decided.into_values() {
            self.input(Input::Leased { sequence, result: answer.expect("decided") });
        }
    }

    fn answer_step(&mut self) {
        let Some(plan) = self.device.take() else { return };
        let mut rows = Vec::new();
        for row in &plan.rows {
            for (at, token) in (row.position..).zip(&row.tokens) {
                let block = row.blocks[at / BLOCK_TOKENS];
                self.kv.entry((plan.model.clone(), block)).or_insert([u32::MAX; BLOCK_TOKENS])
                    [at % BLOCK_TOKENS] = *token;
            }
            self.known.insert(row.sequence);
            let accepted = row.samples.then(|| Ok(self.sample(&plan.model, row)));
            rows.push(RowOutcome { sequence: row.sequence, accepted });
        }
        self.input(Input::StepDone(StepOutcome { rows }));
    }

    /// Reads the sequence back out of the blocks, as attention would.
    fn sample(&mut self, model: &ModelName, row: &PlanRow) -> Accepted {
        let length = row.position + row.tokens.len();
        let seen: Vec<u32> = (0..length)
            .map(|at| self.kv[&(model.clone(), row.blocks[at / BLOCK_TOKENS])][at % BLOCK_TOKENS])
            .collect();
        let generated = self.generated.entry(row.sequence).or_default();
        let known = [&self.records[&row.sequence.job].prompt[..], &generated[..]].concat();
        assert_eq!(seen, known, "seed {}: the blocks of {:?} hold another sequence", self.seed, row.sequence);
        let token = next_token(&seen, row.sequence.choice);
        generated.push(token);
        let stop = Some(StopCause::EndOfText { token });
        let finish = (token == TOKEN_OF_THE_END).then_some(ChoiceEnd { reason: FinishReason::Stop, stop });
        if finish.is_some() {
            self.known.remove(&row.sequence);
        }
        let mut text = self.held.remove(&row.sequence).unwrap_or_default() + &format!("{token} ");
        let mut held = String::new();
        if finish.is_none() && token.is_multiple_of(3) {
            held = std::mem::take(&mut text);
            self.held.insert(row.sequence, held.clone());
        }
        Accepted { token, text, held, logprob: None, finish, state: 0.0 }
    }

    fn turn(&mut self, arrivals: bool) {
        self.now += Duration::from_millis(self.rng.below(20));
        match self.rng.below(20) {
            0..=3 if arrivals => self.submit(),
            4 if arrivals && self.next_job > 0 => {
                let job = JobNumber(self.rng.below(self.next_job));
                self.input(Input::Cancel(job));
            }
            5 if arrivals && self.rng.below(4) == 0 => {
                let owner = ConnectionId(self.rng.below(4));
                self.input(Input::OwnerGone(owner));
            }
            6 => self.input(Input::Tick),
            7..=9 => self.decide_leases(),
            10..=12 => self.answer_leases(),
            _ => self.answer_step(),
        }
        // Starvation: with bounded work before it, no job of this size waits for thousands of turns.
        for id in &self.core.queue {
            let record = self.records.get_mut(id).expect("submitted");
            record.steps_waited += 1;
            assert!(
                record.steps_waited < 20_000,
                "seed {}: {id:?} of arrival {} starves",
                self.seed,
                record.arrival
            );
        }
    }

    fn judge_end(&self) {
        assert!(self.core.is_idle());
        assert_eq!(self.leases, 0, "every lease is given back");
        assert!(self.known.is_empty(), "the device keeps nothing");
        for (arena, _) in self.arenas.values() {
            let figures = self.index.figures(*arena);
            assert_eq!((figures.leases, figures.device.used), (0, 0));
        }
        for (id, record) in &self.records {
            assert!(record.terminal, "seed {}: {id:?} never ended", self.seed);
            judge_events(record);
        }
    }
}

/// Each answer is that of the same prompt alone on the machine, as far as it came.
fn judge_events(record: &Record) {
    let Some(Event::Finished { reason, choices, usage }) = record.events.last() else {
        panic!("no job fails here")
    };
    assert_eq!(choices.len() as u32, record.choices, "every answer has its end");
    assert_eq!(choices.iter().map(|end| end.reason).max(), Some(*reason));
    let mut generated = 0;
    for (choice, end) in (0..).zip(choices) {
        generated += judge_answer(record, choice, end);
    }
    assert_eq!(generated, usage.generated_tokens, "held text comes with the end");
    let started = record.events.iter().filter(|event| matches!(event, Event::Started { .. })).count();
    assert!(started == 1 || (started == 0 && generated == 0), "a job starts once");
    assert_eq!(started == 1, record.cached.is_some(), "what was found is told with the start");
    assert_eq!(usage.cached_tokens, record.cached.map_or(0, |cached| cached.total()));
}

/// Returns how many tokens the answer has.
fn judge_answer(record: &Record, choice: u32, end: &ChoiceEnd) -> u64 {
    let (mut text, mut sent) = (String::new(), 0);
    for event in &record.events {
        if let Event::Text { choice: of, text: part, tokens, .. } = event
            && *of == choice
        {
            text.push_str(part);
            sent += u64::from(*tokens);
        }
    }
    let mut tokens = record.prompt.clone();
    let mut alone = String::new();
    let mut reason = FinishReason::Length;
    for _ in 0..sent {
        let token = next_token(&tokens, choice);
        tokens.push(token);
        alone.push_str(&format!("{token} "));
        if token == TOKEN_OF_THE_END {
            reason = FinishReason::Stop;
        }
    }
    assert_eq!(text, alone);
    match end.reason {
        FinishReason::Cancelled => {}
        FinishReason::Length => assert_eq!((reason, sent as usize), (end.reason, record.max_tokens)),
        FinishReason::Stop => assert_eq!(reason, end.reason),
    }
    sent
}

#[test]
fn random_days_end_well() {
    let (mut finished, mut cancelled, mut several, mut partly) = (0, 0, 0, 0);
    let (mut partial, mut prefetches, mut jobs) = (0, 0, 0);
    for seed in 1..=60 {
        let mut simulation = Simulation::new(seed);
        for _ in 0..4000 {
            simulation.turn(true);
        }
        let mut turns = 0;
        while !simulation.core.is_idle() {
            simulation.turn(false);
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: work remains");
        }
        simulation.judge_end();
        partial += simulation.partial;
        prefetches += simulation.prefetches;
        jobs += simulation.records.len();
        for record in simulation.records.values() {
            let Some(Event::Finished { reason, choices, .. }) = record.events.last() else { unreachable!() };
            let is_cut = |end: &ChoiceEnd| end.reason == FinishReason::Cancelled;
            match reason {
                FinishReason::Cancelled => cancelled += 1,
                _ => finished += 1,
            }
            several += usize::from(choices.len() > 1 && !choices.iter().any(is_cut));
            partly += usize::from(choices.iter().any(is_cut) && !choices.iter().all(is_cut));
        }
    }
    assert!(
        finished > 1000 && cancelled > 200 && several > 200 && partly > 20,
        "the days were too quiet: {finished} finished, {several} of them with several answers, {cancelled} cancelled, \
         {partly} of them after some of their answers"
    );
    assert!(partial > 300, "only {partial} leases began inside of a block");
    assert!(
        prefetches > 300 && prefetches <= jobs,
        "{prefetches} of {jobs} prompts were brought nearer, each once"
    );
}

#[test]
fn a_drain_ends_every_job_by_its_deadline() {
    for seed in 1..=20 {
        let mut simulation = Simulation::new(seed);
        for _ in 0..300 {
            simulation.turn(true);
        }
        let deadline = simulation.now + Duration::from_millis(100);
        simulation.input(Input::Drain { deadline });
        let accepted = simulation.records.len();
        simulation.submit();
        assert_eq!(simulation.records.len(), accepted, "a draining daemon takes no job");
        simulation.now = deadline;
        simulation.input(Input::Tick);
        // Of each model at most one lease question is still out, and one step.
        while !simulation.questions.is_empty() {
            simulation.decide_leases();
            simulation.answer_leases();
        }
        simulation.answer_step();
        assert!(simulation.core.is_idle(), "seed {seed}");
        simulation.judge_end();
    }
}
