//! Checking all that is stored, and repairing nothing.

use std::collections::{HashMap, HashSet};

use redb::{ReadTransaction, ReadableTable, TableDefinition};

use super::record::{self, Manifest, StoredBlock};
use super::tables::{self, BLOCKS, CHUNKS, SESSIONS};
use super::{DiskError, KvDisk, ReadError};
use crate::{BLOCK_TOKENS, BlockKey};

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Blocks whose record and bytes are right.
    pub blocks: u64,
    /// Bytes of KV in them.
    pub block_bytes: u64,
    /// Sessions whose record is right.
    pub sessions: u64,
    /// Those of them whose blocks are all there. A session that lacks some is right too: they were evicted.
    pub complete_sessions: u64,
    /// What has other bytes than were written, one line each.
    pub damaged: Vec<String>,
    /// References that lead nowhere or elsewhere, one line each: a block without its parent, a session whose keys are
    /// not those of its tokens.
    pub dangling: Vec<String>,
    /// Blocks' bytes that no record knows.
    pub orphans: u64,
}

impl CheckReport {
    /// Whether all that is stored is right.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.dangling.is_empty() && self.orphans == 0
    }
}

impl KvDisk {
    /// Reads every record and every block and compares them with their checksums and with each other. Others may read
    /// and write meanwhile: no transaction is held for longer than a block takes, because an open one keeps the space
    /// that others free.
    ///
    /// # Errors
    /// When the disk fails; damage is in the report.
    pub fn check(&self) -> Result<CheckReport, DiskError> {
        let mut report = CheckReport::default();
        let mut blocks = HashMap::new();
        for record in self.view("check the blocks' records", |tx| all(tx, BLOCKS, record::decode_block))? {
            match record {
                Ok(record) => drop(blocks.insert(record.block.key, record.block)),
                Err(why) => report.damaged.push(format!("block {why}")),
            }
        }
        let sessions = self.view("check the sessions", |tx| all(tx, SESSIONS, record::decode_manifest))?;
        for session in sessions {
            match session {
                Ok(manifest) => check_session(&manifest, &blocks, &mut report),
                Err(why) => report.damaged.push(format!("session {why}")),
            }
        }
        for block in blocks.values() {
            check_parent(block, &blocks, &mut report);
            match self.read(&block.key) {
                Ok(bytes) => {
                    report.blocks += 1;
                    report.block_bytes += bytes.len() as u64;
                }
                // Deleted since its record was read.
                Err(ReadError::Missing) => {}
                Err(ReadError::Damaged(why)) => {
                    report.damaged.push(format!("block {:?}: it has {why}", block.key))
                }
                Err(ReadError::Io(error)) => return Err(error),
            }
        }
        report.orphans = self.count_orphans()?;
        report.damaged.sort();
        report.dangling.sort();
        Ok(report)
    }

    /// Numbers that chunks have and no record has. Reads a page of each block.
    fn count_orphans(&self) -> Result<u64, DiskError> {
        let (mut orphans, mut known, mut from) = (0, HashSet::new(), Some(0));
        while let Some(lowest) = from {
            let next = self.view("check the chunks", |tx| {
                let next = tables::next_number_from(&tx.open_table(CHUNKS)?, lowest)?;
                if next.is_some_and(|number| !known.contains(&number)) {
                    // At the first one, and at those that were written meanwhile.
                    known = tables::record_numbers(&tx.open_table(BLOCKS)?)?;
                }
                Ok(next)
            })?;
            let Some(number) = next else { break };
            orphans += u64::from(!known.contains(&number));
            from = number.checked_add(1);
        }
        Ok(orphans)
    }
}

/// All records of a table; for an unreadable one its key and what is wrong.
fn all<T>(
    tx: &ReadTransaction,
    table: TableDefinition<'_, [u8; 32], &'static [u8]>,
    decode: fn([u8; 32], &[u8]) -> Result<T, &'static str>,
) -> Result<Vec<Result<T, String>>, redb::Error> {
    let mut records = Vec::new();
    for entry in tx.open_table(table)?.iter()? {
        let (key, value) = entry?;
        let record = decode(key.value(), value.value());
        records.push(
            record.map_err(|why| format!("{:?}: its record has {why}", BlockKey::from_bytes(key.value()))),
        );
    }
    Ok(records)
}

/// A block follows on the one before it, which is full.
fn check_parent(block: &StoredBlock, blocks: &HashMap<BlockKey, StoredBlock>, report: &mut CheckReport) {
    if block.position == 0 {
        return;
    }
    let wrong = match blocks.get(&block.parent) {
        None => "is not there",
        Some(parent) if parent.position.checked_add(1) != Some(block.position) => {
            "is not at the position before it"
        }
        Some(parent) if parent.tokens.len() != BLOCK_TOKENS => "is not full",
        Some(_) => return,
    };
    report.dangling.push(format!("block {:?}: the block before it, {:?}, {wrong}", block.key, block.parent));
}

/// Whether all of a session's KV is there. Its last block may be gone where another begins with the same tokens: what goes
/// on from a tail takes its place.
fn is_complete(manifest: &Manifest, blocks: &HashMap<BlockKey, StoredBlock>) -> bool {
    let Some((last, before)) = manifest.keys.split_last() else { return true };
    let is_there = |key: &BlockKey| blocks.contains_key(key);
    let tail = manifest.tokens.get(before.len() * BLOCK_TOKENS..).unwrap_or_default();
    let parent = before.last().unwrap_or(&manifest.root);
    let continues = |block: &StoredBlock| block.parent == *parent && block.tokens.starts_with(tail);
    before.iter().all(is_there) && (is_there(last) || blocks.values().any(continues))
}

fn check_session(manifest: &Manifest, blocks: &HashMap<BlockKey, StoredBlock>, report: &mut CheckReport) {
    report.sessions += 1;
    report.complete_sessions += u64::from(is_complete(manifest, blocks));
    if !keys_fit(manifest) {
        let (tenant, id) = (&manifest.tenant, &manifest.id);
        report
            .dangling
            .push(format!("session {id:?} of tenant {tenant:?}: its keys are not those of its tokens"));
    }
}

/// Whether a session's keys are the chain over its tokens from its root. The last tokens may have none, for their KV is
/// not computed: so the last key is that of any start of its block.
fn keys_fit(manifest: &Manifest) -> bool {
    let Some((last, full)) = manifest.keys.split_last() else { return true };
    let (mut parent, mut blocks) = (manifest.root, manifest.tokens.chunks(BLOCK_TOKENS));
    for key in full {
        match blocks.next() {
            Some(tokens) if tokens.len() == BLOCK_TOKENS && parent.child(tokens) == *key => parent = *key,
            _ => return false,
        }
    }
    blocks.next().is_some_and(|tokens| (1..=tokens.len()).any(|end| parent.child(&tokens[..end]) == *last))
}
