//! The conversation: frames of either direction, operations, answers and events.

use crate::id::{BatchId, IdempotencyKey, JobId, KeyName, SessionId, Tenant, TokenIds};
use crate::info::{JobDetail, JobInfo, ModelInfo, SessionDetail, SessionInfo, Status};
use crate::key::{KeyInfo, KeySettings};
use crate::kv::{CacheStory, CheckReport, Residency, SessionRef, Tier, TokenTiers};
use crate::params::GenerationParams;
use crate::queue::{BatchPage, CancelTarget, Class, QueueReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// The first frame, and only the first.
    Hello {
        /// The protocol version that the client speaks: [`crate::VERSION`].
        version: u8,
        /// The client's name and version, for the log.
        client: String,
    },
    /// A request.
    Request(Request),
}

/// What the daemon sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ServerFrame {
    /// The answer to a good hello.
    Welcome {
        /// The protocol version of this connection.
        version: u8,
        /// The daemon's name and version.
        server: String,
        /// Its process id.
        pid: u32,
    },
    /// The answer to a hello that is not accepted, or to bytes that are no frame; the daemon then closes.
    Refused {
        /// The protocol version that the daemon speaks.
        version: u8,
        /// Why.
        message: String,
    },
    /// An answer to a request.
    Reply(Reply),
}

/// One request. At most [`crate::limits::MAX_IN_FLIGHT`] at once on one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client; no two requests in flight on a connection have the same.
    pub id: u64,
    /// What to do.
    pub body: Op,
}

/// One answer to the request with the same id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// The answer.
    pub body: Answer,
}

/// What a client may ask for, and the answers to it. Any may also be answered with [`Answer::Error`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Every model: [`Answer::Models`].
    Models,
    /// Load a model: [`Answer::Progress`]*, then [`Answer::Model`]; at once when it is loaded.
    Load {
        /// Its name.
        model: String,
    },
    /// Unload a model when its jobs have ended: [`Answer::Done`].
    Unload {
        /// Its name.
        model: String,
    },
    /// A new job: [`Answer::Accepted`], with `stream` then [`Answer::Event`]*, then [`Answer::Done`].
    Submit(Box<Submit>),
    /// Read a job's events from an offset on, those to come too: [`Answer::Event`]*, then [`Answer::Done`].
    Attach {
        /// The job.
        job: JobId,
        /// Offset of the first event wanted; 0 is the first of all.
        from: u64,
    },
    /// End jobs: [`Answer::Cancelled`], also when they had ended. One that waited never runs.
    Cancel {
        /// Which.
        target: CancelTarget,
    },
    /// Sessions and jobs: [`Answer::Listing`].
    List,
    /// One job or session: [`Answer::Job`] or [`Answer::Session`].
    Show(ShowTarget),
    /// Drop cached KV: [`Answer::Evicted`]. What running jobs hold stays, and what is pinned, unless its session is named.
    Evict {
        /// Whose.
        target: EvictTarget,
        /// From this tier only: what is dropped from the device moves to host memory while there is room. `None`: from all,
        /// and a session that is named, or older than was asked, is forgotten.
        tier: Option<Tier>,
    },
    /// The daemon at a glance: [`Answer::Status`].
    Status,
    /// Text to token ids: [`Answer::Tokens`].
    Tokenize {
        /// The model whose tokenizer to use; loaded when it is not.
        model: String,
        /// The text.
        text: String,
        /// Whether special tokens written out in the text become those tokens.
        parse_special: bool,
        /// Whether to begin with the begin-of-sequence token, if the model wants one.
        add_bos: bool,
    },
    /// Stop the daemon: [`Answer::Done`] when it has begun to.
    Stop {
        /// Whether running jobs may end first.
        drain: bool,
    },
    /// What a model file is and what of it would fit, without loading it: [`Answer::Inspection`].
    Inspect(InspectTarget),
    /// Where every KV block is: [`Answer::Residency`].
    Residency,
    /// A new session with the beginning of another's timeline: [`Answer::Session`]. No KV is copied.
    Fork {
        /// The session to begin like.
        from: SessionRef,
        /// The new one's id, of the same tenant; no session has it yet.
        to: SessionId,
        /// How many of its tokens to take; `None`: all.
        tokens: Option<u64>,
    },
    /// Keep a session's KV until it is unpinned: [`Answer::Done`], also when it was pinned.
    Pin {
        /// The session.
        session: SessionRef,
    },
    /// Let a session's KV go when the room is needed: [`Answer::Done`], also when it was not pinned.
    Unpin {
        /// The session.
        session: SessionRef,
    },
    /// Say when a session is forgotten, unless it is pinned: [`Answer::Done`].
    Ttl {
        /// The session.
        session: SessionRef,
        /// So long after its last use; `None`: as the configuration says.
        ttl_ms: Option<u64>,
    },
    /// Write sessions to the SSD now: [`Answer::Saved`], when it is synced.
    Save {
        /// The session; `None`: all.
        session: Option<SessionRef>,
    },
    /// Read everything on the SSD and compare it with its checksums and references, mending nothing:
    /// [`Answer::Checked`].
    Check,
    /// Why a job found what it found in the cache: [`Answer::Why`].
    Why {
        /// The job.
        job: JobId,
    },
    /// Who waits, who runs, and how full the queue is: [`Answer::Queue`].
    Queue,
    /// Let a job wait until it is released: [`Answer::Done`], also when it was held. One that runs is parked.
    Hold {
        /// The job.
        job: JobId,
    },
    /// Let a job that is held have its turn: [`Answer::Done`], also when it was not held.
    Release {
        /// The job.
        job: JobId,
    },
    /// Make a job more or less urgent: [`Answer::Done`].
    SetClass {
        /// The job.
        job: JobId,
        /// Its new class.
        class: Class,
    },
    /// Let nothing that waits start, until [`Op::Resume`]: [`Answer::Done`]. What runs goes on. New jobs that are detached
    /// wait, others are refused.
    Drain,
    /// End a drain: [`Answer::Done`], also when there was none.
    Resume,
    /// The jobs of a batch, those that were submitted first first: [`Answer::BatchJobs`].
    BatchJobs {
        /// Whose it is.
        tenant: Option<Tenant>,
        /// The batch.
        batch: BatchId,
        /// Only those that were submitted after this one: the last of the answer before. `None`: from the first on.
        after: Option<JobId>,
    },
    /// The API keys: [`Answer::Keys`].
    Keys,
    /// Make an API key: [`Answer::NewKey`], when it is on the disk. From then on HTTP asks for one.
    AddKey(KeySettings),
    /// Let an API key be none any more: [`Answer::Done`], when that is on the disk.
    RevokeKey {
        /// Which.
        name: KeyName,
    },
}

/// A new job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// The model; loaded when it is not.
    pub model: String,
    /// What it is given: the whole prompt, whatever was computed before, unless it continues a session.
    pub prompt: Prompt,
    /// How it answers.
    pub params: GenerationParams,
    /// The name under which the timeline's KV is kept, listed and evicted; the answer does not depend on it.
    pub session: Option<SessionId>,
    /// Whose it is: only KV of the same tenant is found, and the session is the tenant's. `None` is one of its own.
    pub tenant: Option<Tenant>,
    /// Whether it goes on without this connection, and without this process of the daemon: it is on the disk before it is
    /// acknowledged. `false`: the job is cancelled when this connection goes away.
    pub detached: bool,
    /// Whether its events follow on this connection.
    pub stream: bool,
    /// A name for people to recognise it by; at most [`crate::limits::MAX_LABEL_BYTES`].
    pub label: Option<String>,
    /// How urgent it is.
    pub class: Class,
    /// It fails when it has not ended so long from now.
    pub deadline_ms: Option<u64>,
    /// It fails when it has not started so long from now.
    pub max_wait_ms: Option<u64>,
    /// When the same tenant submitted a job with this key before, that one is the answer. Only for detached jobs.
    pub key: Option<IdempotencyKey>,
    /// The batch that it is a part of; at most [`crate::limits::MAX_BATCH_JOBS`] are.
    pub batch: Option<BatchId>,
}

impl Submit {
    /// A job that lives as long as its connection, whose events follow on it and for which somebody waits.
    pub fn new(model: impl Into<String>, prompt: Prompt, params: GenerationParams) -> Self {
        Self {
            model: model.into(),
            prompt,
            params,
            session: None,
            tenant: None,
            detached: false,
            stream: true,
            label: None,
            class: Class::Interactive,
            deadline_ms: None,
            max_wait_ms: None,
            key: None,
            batch: None,
        }
    }
}

/// What a model is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Prompt {
    /// Text as it is, without a template.
    Text {
        /// The text.
        text: String,
        /// Whether special tokens written out in the text become those tokens.
        parse_special: bool,
    },
    /// A conversation for the model's chat template. Open-ended, so it travels as JSON.
    Chat {
        /// A JSON array of messages, each an object with `role` and `content`.
        messages_json: String,
        /// A JSON array of tool definitions.
        tools_json: Option<String>,
        /// The template to use instead of the model's; `None`: the one that the daemon has for the model.
        template: Option<Template>,
        /// Go on with the last message, the assistant's, instead of answering it.
        continue_last: bool,
    },
    /// Token ids as they are.
    Tokens(TokenIds),
    /// A session's kept timeline, followed by text. Not found when there is no such session of the job's tenant and model.
    Continue {
        /// The session; the job's own may be another, which then goes on from there.
        session: SessionId,
        /// The text.
        text: String,
        /// Whether special tokens written out in the text become those tokens.
        parse_special: bool,
    },
}

/// A chat template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Template {
    /// One of the model file's own by name, such as `tool_use`, else one of [`crate::BUILTIN_TEMPLATES`].
    Named(String),
    /// The text of a Jinja template, at most [`crate::limits::MAX_TEMPLATE_BYTES`].
    Source(String),
}

/// What [`Op::Show`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShowTarget {
    /// A job.
    Job(JobId),
    /// A session.
    Session(SessionRef),
}

/// What [`Op::Evict`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvictTarget {
    /// One session's KV.
    Session(SessionRef),
    /// All that is cached.
    All,
    /// That of sessions which were not used for a while.
    OlderThan {
        /// For so long at least.
        idle_ms: u64,
    },
}

/// What [`Op::Inspect`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectTarget {
    /// A model by its name.
    Model(String),
    /// A file by its absolute path, as the daemon sees it.
    File(String),
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Final: what was asked is done, or the stream has ended.
    Done,
    /// Final: what was asked is not done.
    Error(Fault),
    /// Every model.
    Models(Vec<ModelInfo>),
    /// How far a load is. Not final.
    Progress {
        /// What it is at.
        stage: LoadStage,
        /// Bytes of this stage that are done.
        done_bytes: u64,
        /// Bytes of this stage; 0 when not known.
        total_bytes: u64,
    },
    /// A loaded model.
    Model(ModelInfo),
    /// A job was made. Not final.
    Accepted {
        /// Its id.
        job: JobId,
        /// Whether it was there: it is the first one of the request's key.
        known: bool,
    },
    /// An event of a job. Not final.
    Event {
        /// Its number in the job's log; each is one more than the one before.
        offset: u64,
        /// The event.
        event: Event,
    },
    /// Sessions and jobs, latest first; at most [`crate::limits::MAX_LIST_ROWS`] of each.
    Listing {
        /// Sessions.
        sessions: Vec<SessionInfo>,
        /// Jobs.
        jobs: Vec<JobInfo>,
    },
    /// One job.
    Job(Box<JobDetail>),
    /// One session.
    Session(Box<SessionDetail>),
    /// What was evicted.
    Evicted {
        /// Sessions that lost KV.
        sessions: u32,
        /// Blocks freed.
        blocks: u64,
        /// Bytes freed.
        bytes: u64,
    },
    /// The daemon at a glance.
    Status(Box<Status>),
    /// Token ids.
    Tokens(TokenIds),
    /// What a model file is. Open-ended, so it travels as JSON; its keys are in `docs/SOCKET.md`.
    Inspection {
        /// A JSON object.
        json: String,
    },
    /// Where every KV block is.
    Residency(Box<Residency>),
    /// What is on the SSD now and was not before, synced.
    Saved {
        /// Sessions whose latest state is there now; those included that were.
        sessions: u32,
        /// Blocks written.
        blocks: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// What a check of the SSD found.
    Checked(Box<CheckReport>),
    /// Why a job found what it found in the cache.
    Why(Box<CacheStory>),
    /// What was cancelled.
    Cancelled {
        /// Jobs that were ended by it; those that had ended before do not count.
        jobs: u32,
    },
    /// Who waits, who runs, and how full the queue is.
    Queue(Box<QueueReport>),
    /// Jobs of a batch.
    BatchJobs(BatchPage),
    /// The API keys, by name; at most [`crate::limits::MAX_KEYS`].
    Keys(Vec<KeyInfo>),
    /// A new API key. This is the only time that it is told: the daemon keeps its hash.
    NewKey {
        /// The key.
        key: String,
    },
}

impl Answer {
    /// Whether no further answer to the same request follows.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Progress { .. } | Self::Accepted { .. } | Self::Event { .. })
    }
}

/// An error that the client is told about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind.
    pub code: ErrorCode,
    /// What was wrong, where, and what would work; lower case.
    pub message: String,
}

/// Kinds of [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// No model, job or session of that name.
    NotFound,
    /// No room now.
    Refused {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The request makes no sense, now or later.
    Invalid,
    /// The daemon tried and could not.
    Failed,
    /// The daemon takes no new work: it is about to stop, or a client drains it.
    Draining,
    /// The prompt leaves no room in the model's context.
    TooLong {
        /// Tokens of the prompt.
        tokens: u64,
        /// Tokens of the context.
        context: u64,
    },
}

/// What a load is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadStage {
    /// Reading the file's metadata and tokenizer.
    Open,
    /// Bringing weights into the device's layout.
    Weights,
}

/// One entry of a job's log. A log is `Queued`*, then `Started`, then `Text`*, then one of the last two; a job that
/// ends before it starts has only the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It waits.
    Queued {
        /// How many jobs are before it.
        position: u32,
    },
    /// Its prompt is being computed.
    Started {
        /// Tokens of the prompt found in the KV cache.
        cached_tokens: u64,
        /// The same by the tier that they were on.
        cached_by_tier: TokenTiers,
        /// Tokens of the prompt, those included.
        prompt_tokens: u64,
    },
    /// More text of one of its answers. Never splits a character.
    Text {
        /// Which answer: 0 up to `n` - 1.
        choice: u32,
        /// The text; empty when only log probabilities are left to tell.
        text: String,
        /// Tokens it took; the text of a token may come with a later event.
        tokens: u32,
        /// One entry for each of those tokens when log probabilities were asked for, else none.
        logprobs: Vec<TokenLogprob>,
    },
    /// It ended by itself, or was cancelled.
    Finished {
        /// Why: of its answers' reasons the last in the order of [`FinishReason`].
        reason: FinishReason,
        /// How each answer ended, in order.
        choices: Vec<ChoiceEnd>,
        /// What all answers took together.
        usage: Usage,
    },
    /// It failed.
    Failed {
        /// Why.
        message: String,
    },
}

/// A generated token as the model saw it. Log probabilities are natural logarithms of the model's own distribution:
/// before penalties, biases, temperature and filters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenLogprob {
    /// The token's id.
    pub token: u32,
    /// What it adds to the text; may end within a character, and is empty for control tokens.
    pub bytes: Vec<u8>,
    /// Its log probability.
    pub logprob: f32,
    /// Where its bytes begin in the answer's text, in bytes. A token that a stop has cut off begins at or after the end.
    pub offset: u64,
    /// The likeliest tokens at its place, likeliest first, as many as were asked for; it is among them when it ranks so high.
    pub top: Vec<TopLogprob>,
}

/// One of the likeliest tokens at a place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopLogprob {
    /// The token's id.
    pub token: u32,
    /// What it would add to the text.
    pub bytes: Vec<u8>,
    /// Its log probability.
    pub logprob: f32,
}

/// How one answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ChoiceEnd {
    /// Why.
    pub reason: FinishReason,
    /// What stopped it, when the reason is [`FinishReason::Stop`].
    pub stop: Option<StopCause>,
}

/// What stopped an answer. None of it is part of the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// One of the model's own end tokens.
    EndOfText {
        /// Its id.
        token: u32,
    },
    /// One of the request's stop tokens.
    Token {
        /// Its id.
        token: u32,
    },
    /// One of the request's stop strings.
    Text {
        /// The string.
        text: String,
    },
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token, a stop token or a stop string.
    Stop,
    /// The limit of tokens, or the end of the context.
    Length,
    /// A client cancelled it or went away.
    Cancelled,
}

/// What a job took. Times are milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Those of them that were found in the KV cache.
    pub cached_tokens: u64,
    /// The same by the tier that they were on.
    pub cached_by_tier: TokenTiers,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// From the request to the start of its prefill.
    pub queue_ms: f64,
    /// From the start of the prefill to its end.
    pub prefill_ms: f64,
    /// From the request to the first token.
    pub first_token_ms: f64,
    /// From the first token to the last.
    pub decode_ms: f64,
}
