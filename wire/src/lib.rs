//! The socket protocol between `zllmd` and its clients: types and framing, no logic.
//!
//! Both ends exchange length-prefixed [`bincode`] frames over a Unix stream socket; `docs/SOCKET.md` describes every
//! byte. A client sends [`ClientFrame::Hello`] first and is answered with [`ServerFrame::Welcome`] or
//! [`ServerFrame::Refused`]; after that it may have several [`Request`]s in flight, each with an id of its own
//! choosing, and gets [`Reply`]s that carry the same id. Each request is answered with any number of
//! [`Answer`]s that are not final and then exactly one that is (see [`Answer::is_final`]).
//!
//! Invariant: no type here is recursive (a decoder could be made to overflow its stack), no enum is tagged or
//! untagged by serde attributes and no field is skipped (bincode cannot read those back).
//! Invariant: within one [`VERSION`] enum variants are only appended and fields never change; the golden bytes in
//! `tests/golden.rs` hold us to it. Lengths read from the socket are never trusted (see [`limits`]).
#![forbid(unsafe_code)]

mod codec;
mod frame;
mod id;
mod info;
mod key;
mod kv;
pub mod limits;
mod message;
mod params;
pub mod paths;
mod queue;
mod template;

pub use codec::{VERSION, WireError, decode, encode};
pub use frame::{FrameDecoder, read_frame, write_frame};
pub use id::{BatchId, IdError, IdempotencyKey, JobId, KeyName, SessionId, Tenant, TokenIds};
pub use info::{
    BlockUsage, ChoiceDetail, DeviceInfo, JobDetail, JobInfo, JobState, ModelInfo, ModelState, Percentiles,
    SessionDetail, SessionInfo, SessionState, Speed, Status,
};
pub use key::{KeyInfo, KeySettings};
pub use kv::{
    BlockRun, BlockState, CacheOutcome, CacheStory, CheckReport, KvStatus, ModelRate, Residency, SessionRef,
    SsdState, Tier, TierBlocks, TierBytes, TierMap, TokenTiers,
};
pub use message::{
    Answer, ChoiceEnd, ClientFrame, ErrorCode, Event, EvictTarget, Fault, FinishReason, InspectTarget,
    LoadStage, Op, Prompt, Reply, Request, ServerFrame, ShowTarget, StopCause, Submit, Template,
    TokenLogprob, TopLogprob, Usage,
};
pub use params::{GenerationParams, LogitBias, SamplingParams};
pub use paths::{default_models_dir, default_socket_path, find_socket_path};
pub use queue::{
    BatchJob, BatchPage, CancelTarget, Class, ClassLoad, Moment, MomentKind, Phase, QueueLoad, QueueReport,
    RunningJob, TenantLoad, WaitReason, WaitingJob,
};
pub use template::{BUILTIN_TEMPLATES, is_template_file};
