//! KV blocks and session manifests on disk: one redb file, `kv.redb`, with a byte budget that holds at every moment.
//!
//! * What a call returned `Ok` for is on disk: each transaction is synced. A block is there whole or not at all.
//! * Nothing that is read is trusted. Each record and each chunk of a block has a checksum of its own, because the
//!   database checks values when it opens after a crash and never again. Damage is a miss, never a wrong answer.
//! * A file that cannot be used (damaged, another format, no database at all) is set aside as `kv.redb.bad`, and the
//!   store starts empty: everything here can be computed again.
//! * After an error of the disk every call fails until the store is opened again ([`DiskError::is_fatal`]), because
//!   nobody knows what the file then holds.
//!
//! One thread writes; any may read meanwhile. A read waits at most for the reads before it, a write for those and for
//! other writes. FORMATS.md has the bytes.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};

use crate::BlockKey;
use crate::database::{self, Fault, Handle, Place, PlaceError, attempt};

mod aside;
mod check;
mod fit;
mod open;
mod record;
mod space;
mod tables;

pub use check::CheckReport;
pub use open::Contents;
pub use record::{Manifest, StoredBlock};
pub use space::{SMALLEST_BUDGET_BYTES, disk_bytes, free_bytes, session_bytes, smallest_budget, usable};

use tables::{BlockTables, SESSIONS};

/// The store on disk.
pub struct KvDisk {
    database: Handle,
    place: Place,
    /// For this file; what an unusable one that was set aside takes is subtracted.
    budget_bytes: u64,
    /// The next block's number.
    next_number: AtomicU64,
    /// Held for reading by whoever has a read transaction open. Such a one keeps all space that is freed meanwhile, and
    /// the budget knows how much that can be because none is open for longer than until the commit after the next.
    readers: RwLock<()>,
    /// Why no call can succeed any more.
    failed: OnceLock<String>,
}

/// Why the disk did not do it.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another process has the file open.
    #[error("{}: another daemon uses it; stop it, or give this one another state folder", path.display())]
    InUse {
        /// The database's file.
        path: PathBuf,
    },
    /// The budget is too small for the database to work in.
    #[error("a budget of {budget_bytes} bytes for KV on disk is too small; {smallest_bytes} or more work")]
    BudgetTooSmall {
        /// What was asked for.
        budget_bytes: u64,
        /// The smallest that works.
        smallest_bytes: u64,
    },
    /// The write could bring the file over its budget, or what is to be written is too large for it. What came before
    /// it in the same call is stored.
    #[error(
        "{}: no room for {needed_bytes} bytes more: {file_bytes} of {budget_bytes} are taken; evict blocks, then \
         shrink the file",
        path.display()
    )]
    NoRoom {
        /// The database's file.
        path: PathBuf,
        /// What the write could take at most.
        needed_bytes: u64,
        /// What the file has of the disk.
        file_bytes: u64,
        /// What it may have.
        budget_bytes: u64,
    },
    /// The operating system refused.
    #[error("{}: could not {doing}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The database cannot be used. Its file is out of the way: opened again, the store starts empty.
    #[error("{}: the database cannot be used ({why}); {outcome}", path.display())]
    Unusable {
        /// The database's file.
        path: PathBuf,
        /// What was found.
        why: String,
        /// What became of the file.
        outcome: String,
    },
    /// An earlier call failed.
    #[error("{}: not used since a failure ({why}); it works again once it is opened again", path.display())]
    Failed {
        /// The database's file.
        path: PathBuf,
        /// The failure.
        why: String,
    },
}

/// Why a block's bytes could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not on disk.
    #[error("the block is not on disk")]
    Missing,
    /// Its bytes are not those that were written; the rest of the store is not concerned.
    #[error("the block on disk is damaged: it has {0}")]
    Damaged(&'static str),
    /// The disk failed.
    #[error(transparent)]
    Io(#[from] DiskError),
}

impl KvDisk {
    /// Deletes blocks, then stores others; durable when it returns. More than one transaction's worth is written as
    /// several, in the order given: parents belong before children. A block that is stored already is replaced, and
    /// a key that is not stored deletes nothing.
    ///
    /// # Errors
    /// [`DiskError::NoRoom`] when the file could grow over its budget, as it cannot while all that is stored is
    /// within [`usable`](Self::usable_bytes), or when a block wants a larger budget ([`smallest_budget`]). Deleting is
    /// never refused for room. All other errors are the disk's.
    ///
    /// # Panics
    /// When a block's `bytes` are not the length of its bytes, or it has no tokens or more than a block holds.
    pub fn write(&self, blocks: &[(StoredBlock, Vec<u8>)], delete: &[BlockKey]) -> Result<(), DiskError> {
        let limit_bytes = space::transaction_bytes(self.budget_bytes);
        let mut delete = delete;
        while !delete.is_empty() {
            delete = self.run_transaction("delete KV", |tx| {
                let (mut tables, mut freed_bytes, mut rest) = (BlockTables::open(tx)?, 0, delete);
                while let Some((key, others)) = rest.split_first().filter(|_| freed_bytes < limit_bytes) {
                    freed_bytes += tables.remove(key)?;
                    rest = others;
                }
                Ok(rest)
            })?;
        }
        let mut rest = blocks;
        while !rest.is_empty() {
            let batch = self.next_batch(&mut rest, |(block, _)| disk_bytes(block.bytes))?;
            self.run_transaction("store KV", |tx| {
                let mut tables = BlockTables::open(tx)?;
                for (block, bytes) in batch {
                    tables.insert(block, bytes, self.next_number.fetch_add(1, Ordering::Relaxed))?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The bytes of a block, compared with their checksums.
    ///
    /// # Errors
    /// When it is not there, damaged, or the disk fails. A damaged block is left for [`write`](Self::write) to delete.
    pub fn read(&self, key: &BlockKey) -> Result<Vec<u8>, ReadError> {
        self.view("read KV", |tx| tables::read_block(tx, key))?
    }

    /// Stores manifests in place of those of the same tenant and id; durable when it returns. Each switches from the old
    /// one to the new one at once.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn put_sessions(&self, manifests: &[Manifest]) -> Result<(), DiskError> {
        let mut rest = manifests;
        while !rest.is_empty() {
            let batch = self.next_batch(&mut rest, session_bytes)?;
            self.run_transaction("store sessions", |tx| {
                let mut sessions = tx.open_table(SESSIONS)?;
                for manifest in batch {
                    let key = record::session_key(&manifest.tenant, &manifest.id);
                    sessions.insert(key, record::encode_manifest(manifest).as_slice())?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Deletes the sessions of these tenants and ids, as far as they are there; durable when it returns.
    ///
    /// # Errors
    /// The disk's.
    pub fn remove_sessions(&self, sessions: &[(String, String)]) -> Result<(), DiskError> {
        let keys: Vec<_> = sessions.iter().map(|(tenant, id)| record::session_key(tenant, id)).collect();
        self.delete_sessions(&keys)
    }

    fn delete_sessions(&self, keys: &[[u8; 32]]) -> Result<(), DiskError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.run_transaction("delete sessions", |tx| {
            let mut sessions = tx.open_table(SESSIONS)?;
            for key in keys {
                sessions.remove(key)?;
            }
            Ok(())
        })
    }

    /// Bytes that the file has of the disk now. It is sparse, so its length says nothing.
    pub fn file_bytes(&self) -> u64 {
        self.place.file_bytes()
    }

    /// [`usable`] of the budget, without what a database that was set aside takes of it.
    pub fn usable_bytes(&self) -> u64 {
        usable(self.budget_bytes)
    }

    /// Gives disk space back if the file has no room for a transaction, as after the budget was lowered or overstepped by
    /// what is stored: all that is stored moves to the file's front. Takes about a second per GiB moved, and does
    /// nothing where there is room. Evict before, to what is usable.
    ///
    /// # Errors
    /// The disk's; [`DiskError::NoRoom`] when what is stored is too much for the budget.
    pub fn shrink(&mut self) -> Result<(), DiskError> {
        let wanted_bytes =
            space::transaction_bytes(self.budget_bytes) + space::overhead_bytes(self.budget_bytes);
        if self.file_bytes() + wanted_bytes <= self.budget_bytes {
            return Ok(());
        }
        let compacted = attempt(|| Ok(self.database.compact()?));
        compacted.map_err(|fault| self.fail(fault, "shrink the file"))?;
        // Compaction leaves no allocator state behind; without it a crash now would mean a full repair.
        self.run_transaction("shrink the file", |_| Ok(()))?;
        match self.file_bytes() + wanted_bytes <= self.budget_bytes {
            true => Ok(()),
            false => Err(self.no_room(wanted_bytes)),
        }
    }

    /// Takes from `rest` what the next transaction stores: at least one item, within one transaction's bytes, and within
    /// what the file may grow by.
    fn next_batch<'a, T>(
        &self,
        rest: &mut &'a [T],
        item_bytes: impl Fn(&T) -> u64,
    ) -> Result<&'a [T], DiskError> {
        let limit_bytes = space::transaction_bytes(self.budget_bytes);
        let (mut count, mut batch_bytes) = (0, 0);
        for item in *rest {
            let with_item = batch_bytes + item_bytes(item);
            if with_item > limit_bytes {
                break;
            }
            (count, batch_bytes) = (count + 1, with_item);
        }
        let needed_bytes = batch_bytes + space::overhead_bytes(self.budget_bytes);
        if count == 0 {
            return Err(self.no_room(item_bytes(&rest[0])));
        }
        if self.file_bytes() + needed_bytes > self.budget_bytes {
            return Err(self.no_room(needed_bytes));
        }
        let (batch, others) = rest.split_at(count);
        *rest = others;
        Ok(batch)
    }

    /// Looks at the store as the last commit left it.
    fn view<T>(
        &self,
        doing: &'static str,
        call: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, DiskError> {
        let _reading = self.readers.read().unwrap_or_else(PoisonError::into_inner);
        self.run(doing, |database| call(&database.begin_read()?))
    }

    /// Runs one synced transaction.
    fn run_transaction<T>(
        &self,
        doing: &'static str,
        call: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, DiskError> {
        // Waits for the readers that began before, and keeps nobody from beginning after.
        drop(self.readers.write().unwrap_or_else(PoisonError::into_inner));
        let done = self.run(doing, |database| database::transaction(database, call))?;
        self.place.still_there().map_err(|error| self.fail(Fault::Io(error), doing))?;
        Ok(done)
    }

    fn run<T>(
        &self,
        doing: &'static str,
        call: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, DiskError> {
        if let Some(why) = self.failed.get() {
            return Err(DiskError::Failed { path: self.place.file(), why: why.clone() });
        }
        attempt(|| call(&self.database)).map_err(|fault| self.fail(fault, doing))
    }

    /// From here on every call fails.
    fn fail(&self, fault: Fault, doing: &'static str) -> DiskError {
        let path = self.place.file();
        if let Some(why) = self.failed.get() {
            return DiskError::Failed { path, why: why.clone() };
        }
        let error = DiskError::new(fault, doing, &self.place, self.budget_bytes);
        let _ = self.failed.set(error.to_string());
        error
    }

    fn no_room(&self, needed_bytes: u64) -> DiskError {
        let (path, file_bytes) = (self.place.file(), self.file_bytes());
        DiskError::NoRoom { path, needed_bytes, file_bytes, budget_bytes: self.budget_bytes }
    }
}

impl fmt::Debug for KvDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvDisk")
            .field("file", &self.place.file())
            .field("budget_bytes", &self.budget_bytes)
            .finish()
    }
}

impl From<PlaceError> for DiskError {
    fn from(error: PlaceError) -> Self {
        Self::Io { path: error.path, doing: error.doing, source: error.source }
    }
}

impl DiskError {
    /// Whether every later call fails too, until the store is opened again.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::NoRoom { .. })
    }

    /// The error of a call; a database that cannot be used is set aside.
    fn new(fault: Fault, doing: &'static str, place: &Place, budget_bytes: u64) -> Self {
        let path = place.file();
        match fault {
            Fault::InUse => Self::InUse { path },
            Fault::Io(source) => Self::Io { path, doing, source },
            Fault::Place(error) => error.into(),
            Fault::Failed => Self::Failed { path, why: format!("could not {doing}") },
            Fault::Unusable(why) => {
                Self::Unusable { outcome: aside::set_aside(place, budget_bytes), path, why }
            }
        }
    }
}

#[cfg(test)]
mod tests;
