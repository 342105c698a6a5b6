//! What lasts between requests: which KV blocks of a device hold which tokens, and which sessions use them.
//!
//! Everything here but what is on disk is pure accounting. There is no tensor, no device and no clock: a caller hands in token
//! ids and the time, and gets block numbers back. The daemon's KV store actor is the only writer.
//!
//! * [`BlockKey`] names the content of a block: a chained hash of all tokens up to its end.
//! * [`index::Index`] is the table of all blocks of all models in all tiers.
//! * [`SessionTable`] remembers the timelines that clients may continue.
//! * [`KvDisk`] keeps blocks and the manifests of sessions in a file, within a budget.
//! * [`JobStore`] keeps durable jobs in a file, and [`TokenLog`] what they have generated so far.
//! * [`ObjectStore`] keeps what clients put down and come back for, in a file.
//! * [`KvStore`] puts them together: messages and the time come in, [`Action`]s go out.
#![forbid(unsafe_code)]

mod database;
mod disk;
pub mod index;
mod jobs;
mod key;
mod objects;
mod session;
mod store;
mod tier;

pub use database::DatabaseError;
pub use disk::{
    CheckReport, Contents, DiskError, KvDisk, Manifest, ReadError, SMALLEST_BUDGET_BYTES, StoredBlock,
    disk_bytes, free_bytes, session_bytes, smallest_budget, usable,
};
pub use index::{
    ArenaBudget, ArenaFigures, BlockToStore, BlockView, Index, IndexOptions, LeaseError, LeaseId, Read,
    Restore, RestoreId, TierFigures,
};
pub use jobs::{
    JobChange, JobClass, JobRecord, JobState, JobStore, LogEntry, OpenedJobs, Retention, Submitted, TokenLog,
    TokenLogError,
};
pub use key::{BLOCK_TOKENS, BlockKey, Fingerprint, block_keys};
pub use objects::{
    Content, Object, ObjectError, ObjectName, ObjectOrder, ObjectRetention, ObjectStore, PIECE_BYTES,
};
pub use session::{Session, SessionName, SessionTable, Turn};
pub use store::{
    Action, CacheOutcome, DiskContents, DiskState, EvictTarget, Evicted, Granted, KvStore, LeaseRequest,
    MapRun, ReadOutcome, RunState, SaveOutcome, SavePolicy, SessionError, SessionUse, SessionView,
    StoreFigures, StoreOptions, TierMap, WriteId,
};
pub use tier::{ByTier, Tier};
