//! What lasts between requests: which KV blocks of a device hold which tokens, and which sessions use them.
//!
//! Everything here but the disk is pure accounting. There is no tensor, no device and no clock: a caller hands in token
//! ids and the time, and gets block numbers back. The daemon's KV store actor is the only writer.
//!
//! * [`BlockKey`] names the content of a block: a chained hash of all tokens up to its end.
//! * [`BlockLedger`] owns the accounting of one device's block arena and the prefix index over it.
//! * [`SessionTable`] remembers the timelines that clients may continue, and what of them is still on the device.
//! * [`index::Index`] is the table of all blocks of all models in all tiers; it takes the ledger's place.
//! * [`KvDisk`] keeps blocks and the manifests of sessions in a file, within a budget.
#![forbid(unsafe_code)]

mod disk;
pub mod index;
mod key;
mod ledger;
mod session;
mod tier;

pub use disk::{
    CheckReport, Contents, DiskError, KvDisk, Manifest, ReadError, SMALLEST_BUDGET_BYTES, StoredBlock,
    disk_bytes, free_bytes, session_bytes, smallest_budget, usable,
};
pub use key::{BLOCK_TOKENS, BlockKey, Fingerprint, block_keys};
pub use ledger::{BlockFigures, BlockId, BlockLedger, Grant, LeaseError, LeaseId};
pub use session::{Session, SessionId, SessionTable};
pub use tier::{ByTier, Tier};
