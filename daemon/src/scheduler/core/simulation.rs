//! A whole day of the scheduler in a few seconds: random arrivals, cancels and lost clients on a simulated device, with
//! the real block ledger. Each run prints its seed when it fails.
//!
//! What must hold: exactly one terminal event a job and nothing after it, every lease given back, no starvation, a decode row for
//! every sequence past its prompt in every step, and the tokens of a job as if it had run alone.

use super::*;
use crate::scheduler::plan::RowOutcome;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use zllm_state::{BlockLedger, Fingerprint, LeaseError};
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

/// The simulated model: the next token is a hash of all tokens before, and 1 in 24 ends the text.
fn next_token(tokens: &[u32]) -> u32 {
    let mut hash = 0x811c_9dc5u32;
    for token in tokens {
        hash = (hash ^ token).wrapping_mul(0x0100_0193);
    }
    (hash >> 8) % 24
}

#[derive(Default)]
struct Record {
    prompt: Vec<u32>,
    max_tokens: usize,
    events: Vec<Event>,
    terminal: bool,
    arrival: u64,
    steps_waited: u64,
}

struct Simulation {
    seed: u64,
    rng: Rng,
    core: Core,
    now: Uptime,
    ledgers: BTreeMap<ModelName, BlockLedger>,
    /// What the device's blocks hold: a wrong block table shows up as wrong tokens.
    kv: HashMap<(ModelName, u32), [u32; BLOCK_TOKENS]>,
    lease_question: Option<(JobNumber, ModelName, Arc<[u32]>, usize)>,
    device: Option<StepPlan>,
    /// What the device keeps of a job.
    known: HashSet<JobNumber>,
    records: BTreeMap<JobNumber, Record>,
    tokens: HashMap<JobNumber, Vec<u32>>,
    /// Text that a generation holds back: that of every third token waits for the next.
    held: HashMap<JobNumber, String>,
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
            ledgers: BTreeMap::new(),
            kv: HashMap::new(),
            lease_question: None,
            device: None,
            known: HashSet::new(),
            records: BTreeMap::new(),
            tokens: HashMap::new(),
            held: HashMap::new(),
            next_job: 0,
            leases: 0,
        };
        for (name, total_blocks) in MODELS {
            let model: ModelName = name.into();
            let ledger = BlockLedger::new(Fingerprint([total_blocks as u8; 32]), total_blocks, 1);
            simulation.ledgers.insert(model.clone(), ledger);
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
            Action::Lease { job, model, prompt, capacity_tokens } => {
                assert!(self.lease_question.is_none(), "one question at a time");
                self.lease_question = Some((job, model, prompt, capacity_tokens));
            }
            Action::Commit { model, lease, tokens } => {
                self.ledgers.get_mut(&model).expect("model").commit(lease, &tokens);
            }
            Action::Release { model, lease, .. } => {
                self.leases -= 1;
                let ledger = self.ledgers.get_mut(&model).expect("model");
                ledger.release(lease);
                ledger.check().expect("ledger invariants");
            }
            Action::Step(plan) => {
                assert!(self.device.is_none(), "one step at a time");
                self.judge_plan(&plan);
                self.device = Some(plan);
            }
            Action::Forget { job, .. } => assert!(self.known.remove(&job), "only what the device knows"),
            Action::Event { job, event } => {
                let record = self.records.get_mut(&job).expect("submitted");
                assert!(!record.terminal, "{job:?} has an event after its terminal one: {event:?}");
                record.terminal = matches!(event, Event::Finished { .. } | Event::Failed { .. });
                record.events.push(event);
            }
            Action::Measure(_) | Action::Token { .. } => {}
        }
    }

    fn judge_plan(&self, plan: &StepPlan) {
        assert!(!plan.rows.is_empty());
        let mut prefills = 0;
        for row in &plan.rows {
            let job = &self.core.jobs[&row.job];
            let Phase::Running(running) = &job.phase else { panic!("a waiting job is in a step") };
            assert_eq!(row.position, running.computed);
            assert!(row.tokens.len() <= self.core.limits.prefill_chunk_tokens);
            prefills += usize::from(running.tokens.len() - running.computed > 1);
        }
        assert!(prefills <= 1, "at most one prefill chunk");
        for id in &self.core.running {
            let job = &self.core.jobs[id];
            let Phase::Running(running) = &job.phase else { unreachable!() };
            if job.model == plan.model && running.tokens.len() - running.computed == 1 {
                assert!(plan.rows.iter().any(|row| row.job == *id), "a decode row is missing");
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
        let record =
            Record { prompt: prompt.clone(), max_tokens, arrival: self.next_job, ..Record::default() };
        self.records.insert(id, record);
        self.tokens.insert(id, prompt.clone());
        let new =
            NewJob { id, model: name.into(), prompt, max_tokens, bytes: length, arrived_at: self.now, owner };
        self.input(Input::Submit(new));
    }

    fn answer_lease(&mut self) {
        let Some((job, model, prompt, capacity)) = self.lease_question.take() else { return };
        let result = match self.ledgers.get_mut(&model).expect("model").lease(&prompt, capacity) {
            Ok(grant) => {
                self.leases += 1;
                let blocks = grant.blocks.iter().map(|id| id.0).collect();
                Ok(Lease { id: grant.lease, blocks, cached_tokens: grant.cached_tokens })
            }
            Err(LeaseError::NotNow { .. }) => Err(NoLease::NotNow),
            Err(never) => panic!("the core let an impossible job in: {never}"),
        };
        self.input(Input::Leased { job, result });
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
            self.known.insert(row.job);
            let accepted = row.samples.then(|| Ok(self.sample(&plan.model, row)));
            rows.push(RowOutcome { job: row.job, accepted });
        }
        self.input(Input::StepDone(StepOutcome { rows }));
    }

    /// Reads the sequence back out of the blocks, as attention would.
    fn sample(&mut self, model: &ModelName, row: &PlanRow) -> Accepted {
        let length = row.position + row.tokens.len();
        let seen: Vec<u32> = (0..length)
            .map(|at| self.kv[&(model.clone(), row.blocks[at / BLOCK_TOKENS])][at % BLOCK_TOKENS])
            .collect();
        let known = self.tokens.get_mut(&row.job).expect("submitted");
        assert_eq!(&seen, known, "seed {}: the blocks of {:?} hold another sequence", self.seed, row.job);
        let token = next_token(&seen);
        known.push(token);
        let stop = Some(StopCause::EndOfText { token });
        let finish = (token == TOKEN_OF_THE_END).then_some(ChoiceEnd { reason: FinishReason::Stop, stop });
        if finish.is_some() {
            self.known.remove(&row.job);
        }
        let mut text = self.held.remove(&row.job).unwrap_or_default() + &format!("{token} ");
        let mut held = String::new();
        if finish.is_none() && token.is_multiple_of(3) {
            held = std::mem::take(&mut text);
            self.held.insert(row.job, held.clone());
        }
        Accepted { token, text, held, logprob: None, finish }
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
            6..=11 => self.answer_lease(),
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
        for ledger in self.ledgers.values() {
            assert_eq!(ledger.live_leases(), 0);
            assert_eq!(ledger.figures().used_blocks, 0);
        }
        for (id, record) in &self.records {
            assert!(record.terminal, "seed {}: {id:?} never ended", self.seed);
            judge_events(record);
        }
    }
}

/// The events of a job that ended by itself are those of the same prompt alone on the machine.
fn judge_events(record: &Record) {
    let Some(Event::Finished { reason, usage, .. }) = record.events.last() else {
        panic!("no job fails here")
    };
    let text: String = record.events.iter().filter_map(|event| text_of(event)).collect();
    let sent: u32 = record
        .events
        .iter()
        .map(|event| if let Event::Text { tokens, .. } = event { *tokens } else { 0 })
        .sum();
    assert_eq!(u64::from(sent), usage.generated_tokens, "held text comes with the end");

    let mut tokens = record.prompt.clone();
    let mut alone = String::new();
    let mut end = FinishReason::Length;
    for _ in 0..usage.generated_tokens {
        let token = next_token(&tokens);
        tokens.push(token);
        alone.push_str(&format!("{token} "));
        if token == TOKEN_OF_THE_END {
            end = FinishReason::Stop;
        }
    }
    assert_eq!(text, alone);
    match reason {
        FinishReason::Cancelled => {}
        FinishReason::Length => {
            assert_eq!((end, usage.generated_tokens as usize), (*reason, record.max_tokens))
        }
        FinishReason::Stop => assert_eq!(end, *reason),
    }
}

fn text_of(event: &Event) -> Option<&str> {
    if let Event::Text { text, .. } = event { Some(text) } else { None }
}

#[test]
fn random_days_end_well() {
    let (mut finished, mut cancelled) = (0, 0);
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
        for record in simulation.records.values() {
            match record.events.last() {
                Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => cancelled += 1,
                _ => finished += 1,
            }
        }
    }
    assert!(
        finished > 1000 && cancelled > 200,
        "the days were too quiet: {finished} finished, {cancelled} cancelled"
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
        // Each at most one lease question and one step are still out.
        simulation.answer_lease();
        simulation.answer_step();
        assert!(simulation.core.is_idle(), "seed {seed}");
        simulation.judge_end();
    }
}
