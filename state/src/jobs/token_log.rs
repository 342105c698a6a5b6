//! What running jobs have generated so far: small entries, often appended, in a sled database, `tokens`, beside the jobs.
//!
//! * What [`append`](TokenLog::append) returned `Ok` for is on disk. sled's own flush hands bytes to the system and no
//!   further, so the file is synced here, through a handle of our own.
//! * Each entry has a checksum. Reading stops where one is missing or damaged: what follows is computed again.
//! * For the same reason a database that cannot be used is set aside as `tokens.bad`, whenever that shows, and the log
//!   begins empty: an operator is told, and no call fails for it.
//! * After an error the next call opens the log again by itself.
//!
//! Values stay far below what sled puts into files of their own, which it never syncs: a longer entry is cut into parts.
//! One thread owns the log.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::database::{Fault, PlaceError, Reader, Writer, allocated_bytes, catch, make_folder, open_file};

const FOLDER: &str = "tokens";
const SET_ASIDE: &str = "tokens.bad";

/// The system's own cache holds the file.
const CACHE_BYTES: u64 = 16 << 20;

/// sled keeps the space of what is deleted. A log that is empty and larger than this begins anew.
const RENEW_ABOVE_BYTES: u64 = 64 << 20;

/// Bytes of an entry's part. Up to 16 parts share a page, which becomes a file of its own from 128 KiB on.
const PART_BYTES: usize = 4096;

/// How long a closed database is waited for, and how often.
const CLOSE_WAIT: Duration = Duration::from_millis(5);
const CLOSE_WAITS: u32 = 1000;

/// First byte of each part that this version writes.
const VERSION: u8 = 1;

/// Bytes of a part's key: job, kind, index and part, big-endian, so that they are in their order.
const KEY_BYTES: usize = 8 + 1 + 8 + 2;

/// One entry to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The job's number.
    pub job: u64,
    /// Which of the job's logs.
    pub kind: u8,
    /// Its place in that log, from 0.
    pub index: u64,
    /// What it says, in the caller's own bytes.
    pub bytes: Vec<u8>,
}

/// The log.
pub struct TokenLog {
    /// The folder that holds the log's own folder.
    dir: PathBuf,
    /// `None` after an error: the next call opens it again.
    opened: Option<Opened>,
    notes: Vec<String>,
}

struct Opened {
    database: sled::Db,
    /// The database's file once more: sled syncs nothing.
    file: File,
    path: PathBuf,
}

/// Why the log did not do it.
#[derive(Debug, thiserror::Error)]
pub enum TokenLogError {
    /// Another process has the log open.
    #[error("{}: another daemon uses it; stop it, or give this one another folder for jobs", path.display())]
    InUse {
        /// The log's folder.
        path: PathBuf,
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
}

impl TokenLog {
    /// Opens the log in a folder, which is made if it is missing; with notes for an operator: what was set aside, and why.
    ///
    /// # Errors
    /// When it is in use or the system refuses.
    pub fn open(dir: &Path) -> Result<(Self, Vec<String>), TokenLogError> {
        let mut log = Self { dir: dir.to_owned(), opened: None, notes: Vec::new() };
        log.ready()?;
        log.renew_if_large()?;
        let notes = log.take_notes();
        Ok((log, notes))
    }

    /// Appends entries, all or, after an error or a crash, perhaps some; durable when it returns. An entry that is there
    /// already is replaced.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// When an entry is longer than 256 MiB.
    pub fn append(&mut self, entries: &[LogEntry]) -> Result<(), TokenLogError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut batch = sled::Batch::default();
        for entry in entries {
            let parts = entry.bytes.len().div_ceil(PART_BYTES).max(1);
            let last = u16::try_from(parts - 1).expect("an entry has at most 65536 parts");
            for part in 0..=last {
                let start = usize::from(part) * PART_BYTES;
                let end = entry.bytes.len().min(start + PART_BYTES);
                let key = key(entry.job, entry.kind, entry.index, part);
                batch.insert(&key, encode_part(&key, part == last, &entry.bytes[start..end]));
            }
        }
        self.run("append", |opened| {
            opened.database.apply_batch(batch.clone())?;
            opened.make_durable()
        })
    }

    /// A log's entries from index `from` on, at most `max` of them: each follows on the one before it. It ends at the first
    /// that is missing or damaged.
    ///
    /// # Errors
    /// The disk's.
    pub fn read(&mut self, job: u64, kind: u8, from: u64, max: usize) -> Result<Vec<Vec<u8>>, TokenLogError> {
        self.run("read", |opened| {
            let (mut entries, mut entry, mut wanted) = (Vec::new(), Vec::new(), Some((from, 0)));
            let end = key(job, kind, u64::MAX, u16::MAX);
            let mut parts = opened.database.range(key(job, kind, from, 0)..=end);
            while let Some((index, part)) = wanted.filter(|_| entries.len() < max) {
                let Some((found, value)) = parts.next().transpose()? else { break };
                let part_key = key(job, kind, index, part);
                // Parts of an entry that a shorter one has replaced.
                if *found < part_key[..] {
                    continue;
                }
                if *found != part_key {
                    break;
                }
                let Ok((is_last, bytes)) = decode_part(&part_key, &value) else { break };
                entry.extend_from_slice(bytes);
                if is_last {
                    entries.push(std::mem::take(&mut entry));
                    wanted = index.checked_add(1).map(|index| (index, 0));
                } else {
                    wanted = part.checked_add(1).map(|part| (index, part));
                }
            }
            Ok(entries)
        })
    }

    /// Deletes a log's entries from index `from` on: what lies behind a gap must not follow on what is appended next.
    ///
    /// # Errors
    /// The disk's.
    pub fn cut(&mut self, job: u64, kind: u8, from: u64) -> Result<(), TokenLogError> {
        let end = key(job, kind, u64::MAX, u16::MAX);
        self.run("cut", |opened| {
            opened.delete(key(job, kind, from, 0)..=end)?;
            opened.make_durable()
        })
    }

    /// Deletes all entries of these jobs, as far as there are any. A power cut may bring some back.
    ///
    /// # Errors
    /// The disk's.
    pub fn remove(&mut self, jobs: &[u64]) -> Result<(), TokenLogError> {
        self.run("remove", |opened| {
            for job in jobs {
                opened.delete(key(*job, 0, 0, 0)..=key(*job, u8::MAX, u64::MAX, u16::MAX))?;
            }
            opened.database.flush()?;
            Ok(())
        })?;
        self.renew_if_large()
    }

    /// Numbers of the jobs that have entries, the lowest first.
    ///
    /// # Errors
    /// The disk's.
    pub fn jobs(&mut self) -> Result<Vec<u64>, TokenLogError> {
        self.run("list", |opened| {
            let (mut jobs, mut from) = (Vec::new(), Some(0));
            while let Some(lowest) = from {
                let Some((found, _)) = opened.database.range(key(lowest, 0, 0, 0)..).next().transpose()?
                else {
                    break;
                };
                let Some(job) = found.first_chunk() else {
                    return Err(Fault::Unusable("a key that is none".to_owned()));
                };
                jobs.push(u64::from_be_bytes(*job));
                from = jobs.last().and_then(|job| job.checked_add(1));
            }
            Ok(jobs)
        })
    }

    /// Bytes that the log has of the disk now.
    pub fn disk_bytes(&self) -> u64 {
        let Ok(entries) = fs::read_dir(self.folder()) else { return 0 };
        entries.flatten().map(|entry| allocated_bytes(&entry.path())).sum()
    }

    /// What an operator should know of what happened since this was asked last.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn folder(&self) -> PathBuf {
        self.dir.join(FOLDER)
    }

    /// Calls the database. One that turns out to be damaged is set aside, and the call is made on an empty one.
    fn run<T>(
        &mut self,
        doing: &'static str,
        call: impl Fn(&Opened) -> Result<T, Fault>,
    ) -> Result<T, TokenLogError> {
        let opened = self.ready()?;
        let mut done = catch(|| call(opened));
        if let Err(Fault::Unusable(why)) = done {
            self.close();
            self.set_aside(&why)?;
            let opened = self.ready()?;
            done = catch(|| call(opened));
        }
        done.map_err(|fault| {
            self.close();
            self.error(fault, doing)
        })
    }

    /// The log, opened if it is not; one that cannot be used is set aside.
    fn ready(&mut self) -> Result<&Opened, TokenLogError> {
        if self.opened.is_none() {
            let folder = self.folder();
            make_folder(&folder)?;
            let mut opened = catch(|| Opened::open(&folder));
            if let Err(Fault::Unusable(why)) = opened {
                self.set_aside(&why)?;
                opened = catch(|| Opened::open(&folder));
            }
            self.opened = Some(opened.map_err(|fault| self.error(fault, "open"))?);
        }
        Ok(self.opened.as_ref().expect("it was opened"))
    }

    /// Renames the log's folder, in place of an earlier one that was set aside, and makes it anew.
    fn set_aside(&mut self, why: &str) -> Result<(), TokenLogError> {
        let (folder, kept) = (self.folder(), self.dir.join(SET_ASIDE));
        let missing_is_fine = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        };
        let renamed = fs::remove_dir_all(&kept)
            .or_else(missing_is_fine)
            .and_then(|()| fs::rename(&folder, &kept).or_else(missing_is_fine));
        renamed.map_err(|source| PlaceError::new(&folder, "set aside", source))?;
        self.notes.push(format!(
            "{}: the log of what running jobs generated cannot be used ({why}); it was set aside as {SET_ASIDE}, and what \
             is missing is computed again",
            folder.display()
        ));
        Ok(make_folder(&folder)?)
    }

    /// Begins anew if nothing is in it and it takes much of the disk.
    fn renew_if_large(&mut self) -> Result<(), TokenLogError> {
        if self.disk_bytes() <= RENEW_ABOVE_BYTES || !self.jobs()?.is_empty() {
            return Ok(());
        }
        self.close();
        let folder = self.folder();
        fs::remove_dir_all(&folder).map_err(|source| PlaceError::new(&folder, "remove", source))?;
        self.ready().map(drop)
    }

    fn close(&mut self) {
        let Some(Opened { database, file, .. }) = self.opened.take() else { return };
        // Closing writes, and may panic when the disk refuses.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
        // Threads of sled may still hold the database. Until they let go it is locked, and cannot be opened again.
        let mut waits = 0..CLOSE_WAITS;
        while let Err(TryLockError::WouldBlock) = file.try_lock()
            && waits.next().is_some()
        {
            thread::sleep(CLOSE_WAIT);
        }
    }

    fn error(&self, fault: Fault, doing: &'static str) -> TokenLogError {
        let path = self.folder();
        match fault {
            Fault::InUse => TokenLogError::InUse { path },
            Fault::Io(source) => TokenLogError::Io { path, doing, source },
            Fault::Place(error) => error.into(),
            Fault::Failed => unreachable!("sled has no such error"),
            // An empty one as well, so it is not the log.
            Fault::Unusable(why) => TokenLogError::Io { path, doing, source: io::Error::other(why) },
        }
    }
}

impl Opened {
    /// Opens the database in its folder. All files that it has now are safe afterwards.
    fn open(folder: &Path) -> Result<Self, Fault> {
        let path = folder.join("db");
        if let Ok(file) = File::open(&path)
            && let Err(TryLockError::WouldBlock) = file.try_lock()
        {
            return Err(Fault::InUse);
        }
        let config = sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).flush_every_ms(None);
        let database = config.open()?;
        let file = open_file(&path, false).map_err(|error| Fault::Io(error.source))?;
        for entry in fs::read_dir(folder)? {
            File::open(entry?.path())?.sync_all()?;
        }
        for folder in [Some(folder), folder.parent()].into_iter().flatten() {
            File::open(folder)?.sync_all()?;
        }
        Ok(Self { database, file, path })
    }

    fn delete(&self, keys: RangeInclusive<[u8; KEY_BYTES]>) -> Result<(), Fault> {
        let mut batch = sled::Batch::default();
        for key in self.database.range(keys).keys() {
            batch.remove(key?);
        }
        Ok(self.database.apply_batch(batch)?)
    }

    /// Returns when all that was written is on disk.
    fn make_durable(&self) -> Result<(), Fault> {
        self.database.flush()?;
        self.file.sync_data()?;
        match self.path.try_exists()? {
            true => Ok(()),
            false => Err(Fault::Unusable("its file was taken away".to_owned())),
        }
    }
}

impl Drop for TokenLog {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for TokenLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLog").field("folder", &self.folder()).finish()
    }
}

impl From<sled::Error> for Fault {
    fn from(error: sled::Error) -> Self {
        match error {
            // A copy of an error of the system has its kind, and its number only in its text.
            sled::Error::Io(error) if !is_damage(error.kind()) => {
                match (error.raw_os_error(), error.kind()) {
                    (None, kind) if kind != io::ErrorKind::Other => Self::Io(kind.into()),
                    _ => Self::Io(error),
                }
            }
            error => Self::Unusable(error.to_string()),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<PlaceError> for TokenLogError {
    fn from(error: PlaceError) -> Self {
        Self::Io { path: error.path, doing: error.doing, source: error.source }
    }
}

/// A file that ends early, or that is missing though the log knows of it.
fn is_damage(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    matches!(kind, InvalidData | InvalidInput | NotFound | UnexpectedEof)
}

fn key(job: u64, kind: u8, index: u64, part: u16) -> [u8; KEY_BYTES] {
    let mut key = [kind; KEY_BYTES];
    key[..8].copy_from_slice(&job.to_be_bytes());
    key[9..17].copy_from_slice(&index.to_be_bytes());
    key[17..].copy_from_slice(&part.to_be_bytes());
    key
}

fn encode_part(key: &[u8], is_last: bool, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.u8(is_last.into());
    out.bytes(bytes);
    out.seal(key)
}

/// Whether it is the last part of its entry, and its bytes.
fn decode_part<'a>(key: &[u8], value: &'a [u8]) -> Result<(bool, &'a [u8]), &'static str> {
    let mut input = Reader::open(VERSION, key, value)?;
    Ok((input.flag()?, input.rest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and parts are a stored format: the bytes are compared with FORMATS.md.
    #[test]
    fn an_entry_has_the_documented_bytes() {
        let key = key(0x0102, 3, 0x0405, 0x0607);
        assert_eq!(key, [0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 4, 5, 6, 7]);
        for is_last in [false, true] {
            let mut value = vec![1, is_last.into(), b'e', b'n', b't', b'r', b'y'];
            let checksum = blake3::Hasher::new().update(&key).update(&value).finalize();
            value.extend(&checksum.as_bytes()[..16]);
            assert_eq!(encode_part(&key, is_last, b"entry"), value);
            assert_eq!(decode_part(&key, &value), Ok((is_last, &b"entry"[..])));
        }
    }
}
