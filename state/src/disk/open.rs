//! Opening: what is on disk becomes the store's contents, and what cannot be used goes out of its way.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, RwLock};

use redb::{ReadTransaction, ReadableTable, StorageBackend, WriteTransaction};

use super::aside;
use super::record::{self, Manifest, StoredBlock};
use super::tables::{BLOCKS, BlockTables, CHUNKS, SESSIONS};
use super::{DiskError, KvDisk, SMALLEST_BUDGET_BYTES};
use crate::BlockKey;
use crate::database::{self, Handle, Layout, Place};

/// How a block is cut into chunks is part of its format.
pub(super) const LAYOUT: Layout =
    Layout { file: "kv.redb", cache_bytes: 32 << 20, format: 1, begin: create_tables };

/// What was on disk.
#[derive(Debug, Default)]
pub struct Contents {
    /// All blocks, each after its parent.
    pub blocks: Vec<StoredBlock>,
    /// All sessions.
    pub sessions: Vec<Manifest>,
    /// What an operator should know: what was set aside or dropped, and why.
    pub notes: Vec<String>,
}

impl KvDisk {
    /// Opens the store in a folder, which is made if it is missing. A file that cannot be used is set aside, and the
    /// store starts empty; records that cannot be used, and the descendants of such blocks, are deleted. Either way the
    /// contents have a note that says so. What is over the budget, when that is smaller than before, is deleted.
    ///
    /// It takes as long as reading the records does, after a crash too; the blocks' bytes are not read.
    ///
    /// # Errors
    /// When the file is in use, the budget is below [`SMALLEST_BUDGET_BYTES`], or the system refuses: a folder that may
    /// not be written, a full disk.
    pub fn open(dir: &Path, budget_bytes: u64) -> Result<(Self, Contents), DiskError> {
        check_budget(budget_bytes)?;
        let place = Place::folder(dir, LAYOUT.file)?;
        aside::drop_large_set_aside(&place, budget_bytes);
        let mut notes = Vec::new();
        if place.exists()? {
            match Self::open_existing(&place, budget_bytes) {
                Err(error @ DiskError::Unusable { .. }) => {
                    notes.push(format!("{error}; the store starts empty"))
                }
                opened => {
                    let (mut disk, mut contents) = opened?;
                    disk.fit(&mut contents)?;
                    return Ok((disk, contents));
                }
            }
        }
        let made = database::make(&place, &LAYOUT);
        let database =
            made.map_err(|fault| DiskError::new(fault, "make the database", &place, budget_bytes))?;
        let (disk, contents) = Self::start(database, place, budget_bytes)?;
        Ok((disk, Contents { notes, ..contents }))
    }

    /// Opens the store on a backend of the database, for tests of what a disk may do. The budget bounds only
    /// transactions then: such a file takes nothing of a disk.
    ///
    /// # Errors
    /// As [`open`](Self::open), but a database that cannot be used is an error.
    pub fn open_with_backend(
        backend: impl StorageBackend,
        budget_bytes: u64,
    ) -> Result<(Self, Contents), DiskError> {
        check_budget(budget_bytes)?;
        let place = Place::nowhere(LAYOUT.file);
        let database = database::open_on(backend, &LAYOUT);
        let database = database.map_err(|fault| DiskError::new(fault, "open", &place, budget_bytes))?;
        Self::start(database, place, budget_bytes)
    }

    fn open_existing(place: &Place, budget_bytes: u64) -> Result<(Self, Contents), DiskError> {
        let database = database::open(place, &LAYOUT);
        let database = database.map_err(|fault| DiskError::new(fault, "open", place, budget_bytes))?;
        Self::start(database, place.clone(), budget_bytes)
    }

    fn start(database: Handle, place: Place, budget_bytes: u64) -> Result<(Self, Contents), DiskError> {
        let disk = Self {
            database,
            budget_bytes: budget_bytes.saturating_sub(aside::set_aside_bytes(&place)),
            place,
            next_number: AtomicU64::new(0),
            readers: RwLock::new(()),
            failed: OnceLock::new(),
        };
        disk.view("read the format", |tx| database::check_format(tx, &LAYOUT))?;
        let mut found = disk.view("read the records", find)?;
        found.leave_out_orphans();
        disk.next_number.store(found.next_number, Ordering::Relaxed);
        disk.write(&[], &found.bad_blocks)?;
        disk.delete_sessions(&found.bad_sessions)?;
        Ok((disk, found.contents))
    }
}

/// Contents, and the keys of the records that are not part of them.
#[derive(Default)]
struct Found {
    contents: Contents,
    bad_blocks: Vec<BlockKey>,
    bad_sessions: Vec<[u8; 32]>,
    next_number: u64,
}

/// Reads all records, blocks in the order of their positions.
fn find(tx: &ReadTransaction) -> Result<Found, redb::Error> {
    let mut found = Found::default();
    for entry in tx.open_table(BLOCKS)?.iter()? {
        let (key, value) = entry?;
        match record::decode_block(key.value(), value.value()) {
            Ok(record) => {
                found.next_number = found.next_number.max(record.number.saturating_add(1));
                found.contents.blocks.push(record.block);
            }
            Err(why) => found.drop_block(BlockKey::from_bytes(key.value()), why),
        }
    }
    if let Some((key, _)) = tx.open_table(CHUNKS)?.last()? {
        found.next_number = found.next_number.max(key.value().0.saturating_add(1));
    }
    for entry in tx.open_table(SESSIONS)?.iter()? {
        let (key, value) = entry?;
        match record::decode_manifest(key.value(), value.value()) {
            Ok(manifest) => found.contents.sessions.push(manifest),
            Err(why) => {
                found.contents.notes.push(format!("a session's record was dropped: it has {why}"));
                found.bad_sessions.push(key.value());
            }
        }
    }
    found.contents.blocks.sort_by_key(|block| block.position);
    Ok(found)
}

impl Found {
    fn drop_block(&mut self, key: BlockKey, why: &str) {
        self.contents.notes.push(format!("the record of {key:?} was dropped: it has {why}"));
        self.bad_blocks.push(key);
    }

    /// Leaves out the blocks, in the order of their positions, that have no parent among those kept: nothing leads to
    /// them any more.
    fn leave_out_orphans(&mut self) {
        let mut kept: HashMap<BlockKey, u32> = HashMap::with_capacity(self.contents.blocks.len());
        let before = self.contents.blocks.len();
        let bad_blocks = &mut self.bad_blocks;
        self.contents.blocks.retain(|block| {
            let follows = kept.get(&block.parent).map(|position| position.checked_add(1));
            let keep = block.position == 0 || follows == Some(Some(block.position));
            match keep {
                true => drop(kept.insert(block.key, block.position)),
                false => bad_blocks.push(block.key),
            }
            keep
        });
        let left_out = before - self.contents.blocks.len();
        if left_out > 0 {
            self.contents
                .notes
                .push(format!("{left_out} blocks were dropped: a block before them is not there"));
        }
    }
}

fn create_tables(tx: &WriteTransaction) -> Result<(), redb::Error> {
    BlockTables::open(tx)?;
    tx.open_table(SESSIONS)?;
    Ok(())
}

fn check_budget(budget_bytes: u64) -> Result<(), DiskError> {
    match budget_bytes < SMALLEST_BUDGET_BYTES {
        true => Err(DiskError::BudgetTooSmall { budget_bytes, smallest_bytes: SMALLEST_BUDGET_BYTES }),
        false => Ok(()),
    }
}
