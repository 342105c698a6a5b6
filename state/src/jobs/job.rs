//! What a job is on disk, and which states follow on which.
//!
//! Times are milliseconds since 1970, as the caller's clock has them.

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum JobState {
    /// It waits.
    Queued = 0,
    /// It is worked on.
    Running = 1,
    /// It has its result.
    Done = 2,
    /// It ended with an error.
    Failed = 3,
    /// Somebody ended it.
    Cancelled = 4,
}

impl JobState {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Done, Self::Failed, Self::Cancelled];

    /// Whether nothing follows on it.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    /// THE table: whether a job of this state may become one of that. A running job is queued again when it is parked or
    /// when the daemon was started again. No state follows on itself, so an end is recorded once.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Queued => matches!(next, Self::Running | Self::Failed | Self::Cancelled),
            Self::Running => matches!(next, Self::Queued | Self::Done | Self::Failed | Self::Cancelled),
            Self::Done | Self::Failed | Self::Cancelled => false,
        }
    }
}

/// How urgent a job is; the first one is the most urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum JobClass {
    /// Somebody waits for each word.
    Interactive = 0,
    /// Somebody waits for the end.
    Normal = 1,
    /// Nobody waits.
    Batch = 2,
}

impl JobClass {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Normal, Self::Batch];
}

/// All that is kept of a job but its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Its name: of two jobs the later one has the higher number.
    pub number: u64,
    /// Whose it is; `""` is nobody in particular.
    pub tenant: String,
    /// Name of the model.
    pub model: String,
    /// Id of the session that it belongs to.
    pub session: Option<String>,
    /// The client's words for it.
    pub label: Option<String>,
    /// Id, within its tenant, of the batch that it belongs to.
    pub batch: Option<String>,
    /// Its idempotency key within its tenant.
    pub key: Option<String>,
    /// How urgent it is.
    pub class: JobClass,
    /// Whether it stays in the queue until somebody releases it.
    pub held: bool,
    /// Where it is in its life.
    pub state: JobState,
    /// How often it began to run.
    pub attempts: u32,
    /// When it was submitted.
    pub submitted_ms: u64,
    /// When it first began to run.
    pub started_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// When it must have ended.
    pub deadline_ms: Option<u64>,
    /// When it must have begun to run.
    pub start_by_ms: Option<u64>,
    /// Of the model that its tokens are of.
    pub fingerprint: [u8; 32],
    /// What listings tell of it beside all this, in the caller's own bytes. It is read with each listing, so it is short.
    pub summary: Vec<u8>,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The request, in the caller's own bytes.
    pub request: Vec<u8>,
}

impl JobRecord {
    /// Bytes of the prompt and the request.
    pub(super) fn body_bytes(&self) -> u64 {
        self.prompt.len() as u64 * 4 + self.request.len() as u64
    }
}

/// What becomes of a submitted job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It is stored.
    New,
    /// It is not: its tenant has a job with its key already, and this is that one's number.
    Known(u64),
}

/// What changes of a job; `None` leaves a thing as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobChange {
    /// Which job.
    pub number: u64,
    /// The state that follows.
    pub state: Option<JobState>,
    /// Its class from now on.
    pub class: Option<JobClass>,
    /// Whether it is held from now on.
    pub held: Option<bool>,
    /// How often it began to run, with this time.
    pub attempts: Option<u32>,
    /// When: the job's start or end, if the state says so, and the time by which old jobs expire.
    pub at_ms: u64,
    /// What listings tell of it from now on.
    pub summary: Option<Vec<u8>>,
    /// The result, in the caller's own bytes; only with a terminal state.
    pub result: Option<Vec<u8>>,
}

/// How long ended jobs are kept. The oldest go first, as soon as one bound is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Time since a job's end.
    pub max_age_ms: u64,
    /// Ended jobs.
    pub max_jobs: u64,
    /// Bytes of the prompts, requests and results of all ended jobs.
    pub max_bytes: u64,
}

/// The small part of a job, which changes often and is read for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// Without prompt and request.
    pub(super) record: JobRecord,
    /// Bytes of prompt and request.
    pub(super) body_bytes: u64,
    /// Bytes of the result, if there is one.
    pub(super) result_bytes: Option<u64>,
}

impl Head {
    /// The head of a job that is about to be stored.
    ///
    /// # Panics
    /// When the job has begun already.
    pub(super) fn new(job: &JobRecord) -> Self {
        let (name, body_bytes) = (job_name(job.number), job.body_bytes());
        assert!(job.state == JobState::Queued, "{name} is {:?} as it is submitted", job.state);
        assert!(job.started_ms.is_none() && job.ended_ms.is_none(), "{name} has begun as it is submitted");
        let record = JobRecord { prompt: Vec::new(), request: Vec::new(), ..job.clone() };
        Self { record, body_bytes, result_bytes: None }
    }

    /// # Panics
    /// When the table of states forbids it, when a job that has ended changes, when a result comes without an end.
    pub(super) fn apply(&mut self, change: &JobChange) {
        let (job, name) = (&mut self.record, job_name(change.number));
        assert_eq!(job.number, change.number, "a change of another job");
        assert!(!job.state.is_terminal() || change.state.is_some(), "{name} is {:?} and changes", job.state);
        if let Some(next) = change.state {
            assert!(job.state.may_become(next), "{name} is {:?} and may not become {next:?}", job.state);
            job.state = next;
            if next == JobState::Running {
                job.started_ms.get_or_insert(change.at_ms);
            }
            job.ended_ms = next.is_terminal().then_some(change.at_ms);
        }
        if let Some(result) = &change.result {
            assert!(job.state.is_terminal(), "{name} has a result and is {:?}", job.state);
            self.result_bytes = Some(result.len() as u64);
        }
        if let Some(summary) = &change.summary {
            job.summary.clone_from(summary);
        }
        job.class = change.class.unwrap_or(job.class);
        job.held = change.held.unwrap_or(job.held);
        job.attempts = change.attempts.unwrap_or(job.attempts);
    }

    /// Bytes that count for the retention.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.body_bytes.saturating_add(self.result_bytes.unwrap_or(0))
    }
}

/// A job's name in messages, as clients see it.
pub(super) fn job_name(number: u64) -> String {
    format!("job j-{number:016x}")
}
