//! Durable jobs on disk: what was acknowledged to a client, in one redb file, `jobs.redb`, and beside it what running jobs
//! have generated so far ([`TokenLog`]).
//!
//! * What a call returned `Ok` for is on disk: each is one synced transaction, for any number of jobs.
//! * What a call returned an error for has not happened, but that old jobs may have expired; and the next call opens the
//!   file again by itself. (A process that ends in between may find it done: a disk that fails while it syncs may have
//!   written all.)
//! * A job takes one way through the table of states ([`JobState::may_become`]); another one is the caller's defect and a
//!   panic. So exactly one end of a job is ever recorded.
//! * Nothing that is read is trusted: pages and records have checksums. A file that is damaged is an error and is left
//!   as it is: acknowledged jobs are never set aside by guessing.
//!
//! One thread owns it. FORMATS.md has the bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::Path;

use redb::StorageBackend;

use crate::database::{DatabaseError, Guarded};

mod books;
mod ended;
mod job;
mod record;
mod tables;
mod token_log;

pub use job::{JobChange, JobClass, JobRecord, JobState, Retention, Submitted};
pub use token_log::{LogEntry, TokenLog, TokenLogError};

use books::JobBooks;
use job::{Head, job_name};
use tables::JobTables;

/// All durable jobs: those that wait or run, and those that ended lately.
#[derive(Debug)]
pub struct JobStore {
    file: Guarded<JobBooks>,
    retention: Retention,
}

/// What a daemon that starts has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedJobs {
    /// The jobs that have not ended, the oldest first.
    pub unfinished: Vec<JobRecord>,
    /// The highest number that a job ever had, 0 if there was none.
    pub last_number: u64,
}

impl JobStore {
    /// Opens the jobs in a folder, which is made if it is missing, and lets those expire that ended too long ago or are too
    /// many.
    ///
    /// # Errors
    /// When the file is in use, cannot be used (it stays as it is), or the system refuses.
    pub fn open(dir: &Path, retention: Retention, now_ms: u64) -> Result<(Self, OpenedJobs), DatabaseError> {
        Self::start(Guarded::in_folder(dir)?, retention, now_ms)
    }

    /// Opens the jobs on a backend of the database, for tests of what a disk may do; an empty one is filled first. After a
    /// failure another one is asked for.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_backend<B: StorageBackend>(
        backend: impl Fn() -> B + Send + 'static,
        retention: Retention,
        now_ms: u64,
    ) -> Result<(Self, OpenedJobs), DatabaseError> {
        Self::start(Guarded::on_backend(backend), retention, now_ms)
    }

    fn start(
        file: Guarded<JobBooks>,
        retention: Retention,
        now_ms: u64,
    ) -> Result<(Self, OpenedJobs), DatabaseError> {
        let mut store = Self { file, retention };
        store.expire(now_ms)?;
        let unfinished = store.file.view("read the jobs", tables::unfinished)?;
        let last_number = store.file.books.last_number;
        Ok((store, OpenedJobs { unfinished, last_number }))
    }

    /// Stores jobs, all of them or, after an error, none; durable when it returns. Of jobs of one tenant and key only the
    /// first is stored as long as that one is kept, also after it ended.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// When a job is not queued or its number is another's.
    pub fn submit(&mut self, jobs: &[JobRecord]) -> Result<Vec<Submitted>, DatabaseError> {
        let stored = self.file.view("look for jobs and keys", |tx| {
            jobs.iter().map(|job| tables::find_job(tx, job)).collect::<Result<Vec<_>, _>>()
        })?;
        let (mut new, mut before, mut keys) = (Vec::new(), BTreeMap::new(), HashMap::new());
        let outcomes = jobs.iter().zip(stored).map(|(job, stored)| {
            let first = job.key.as_ref().map(|key| keys.entry((&job.tenant, key)).or_insert(stored.of_key));
            if let Some(Some(number)) = first {
                return Submitted::Known(*number);
            }
            let fresh = !stored.is_there && before.insert(job.number, None).is_none();
            assert!(fresh, "{} is submitted twice", job_name(job.number));
            first.map(|number| number.insert(job.number));
            new.push((job, Head::new(job)));
            Submitted::New
        });
        let outcomes = outcomes.collect();
        let Some((highest, _)) = before.last_key_value() else { return Ok(outcomes) };
        let last_number = self.file.books.last_number.max(*highest);
        self.write("store jobs", before, |tables| {
            for (job, head) in &new {
                tables.insert(job, head)?;
            }
            tables.put_last_number(last_number)
        })?;
        self.file.books.last_number = last_number;
        Ok(outcomes)
    }

    /// Changes jobs, all or, after an error, none; durable when it returns. Several changes of one job follow on each other.
    /// In the same transaction jobs that ended before expire, by the latest time of the changes; their numbers are the
    /// answer. A job that ends in this call stays until the next one at least.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// When the table of states forbids a change, a job that ended or is not there changes, or a result comes without an
    /// end: the caller has lost track of its jobs.
    pub fn change(&mut self, changes: &[JobChange]) -> Result<Vec<u64>, DatabaseError> {
        let Some(now_ms) = changes.iter().map(|change| change.at_ms).max() else { return Ok(Vec::new()) };
        let numbers: BTreeSet<u64> = changes.iter().map(|change| change.number).collect();
        let before: BTreeMap<_, _> = self.file.view("read the jobs that change", |tx| {
            numbers.iter().map(|number| Ok((*number, tables::head(tx, *number)?))).collect()
        })?;
        let (mut after, mut results) = (before.clone(), Vec::new());
        for change in changes {
            let head = after.get_mut(&change.number).and_then(Option::as_mut);
            let head = head.unwrap_or_else(|| panic!("{} changes and is not there", job_name(change.number)));
            head.apply(change);
            results.extend(change.result.as_ref().map(|result| (change.number, result)));
        }
        let after: Vec<Head> = after.into_values().flatten().collect();
        let expired = self.file.books.ended.expired(&self.retention, now_ms, after.iter());
        self.write("change jobs", before, |tables| {
            for head in &after {
                tables.put_head(head)?;
            }
            for (number, result) in &results {
                tables.put_result(*number, result)?;
            }
            tables.remove_all(&expired)
        })?;
        self.file.books.ended.remove(&expired);
        after.iter().for_each(|head| self.file.books.ended.insert(head));
        Ok(expired.into_iter().map(|(_, number)| number).collect())
    }

    /// Lets ended jobs expire when nothing else changes; their numbers are the answer.
    ///
    /// # Errors
    /// The disk's.
    pub fn expire(&mut self, now_ms: u64) -> Result<Vec<u64>, DatabaseError> {
        self.file.ready()?;
        let expired = self.file.books.ended.expired(&self.retention, now_ms, std::iter::empty());
        if !expired.is_empty() {
            self.write("delete old jobs", BTreeMap::new(), |tables| tables.remove_all(&expired))?;
            self.file.books.ended.remove(&expired);
        }
        Ok(expired.into_iter().map(|(_, number)| number).collect())
    }

    /// All of a job but its result, if it is kept.
    ///
    /// # Errors
    /// The disk's.
    pub fn record(&mut self, number: u64) -> Result<Option<JobRecord>, DatabaseError> {
        self.file.view("read a job", |tx| {
            tables::head(tx, number)?.map(|head| tables::whole(tx, head)).transpose()
        })
    }

    /// The number of the job of this idempotency key, if it is kept.
    ///
    /// # Errors
    /// The disk's.
    pub fn find(&mut self, tenant: &str, key: &str) -> Result<Option<u64>, DatabaseError> {
        self.file.view("look for a key", |tx| tables::job_of_key(tx, tenant, key))
    }

    /// A job's result, if it is kept and ended with one.
    ///
    /// # Errors
    /// The disk's.
    pub fn result(&mut self, number: u64) -> Result<Option<Vec<u8>>, DatabaseError> {
        self.file.view("read a job's result", |tx| match tables::head(tx, number)? {
            Some(head) => tables::result(tx, &head),
            None => Ok(None),
        })
    }

    /// The latest jobs with a number below `before`, at most `limit`, the newest first. Their prompts and requests are left
    /// empty: only heads are read.
    ///
    /// # Errors
    /// The disk's.
    pub fn latest(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<JobRecord>, DatabaseError> {
        self.file.view("list the jobs", |tx| {
            let end = before.map_or(Bound::Unbounded, Bound::Excluded);
            let newest_first = tables::heads(tx, (Bound::Unbounded, end))?;
            newest_first.rev().take(limit).map(|head| Ok(head?.record)).collect()
        })
    }

    /// The jobs of a tenant's batch, the oldest first. Their prompts and requests are left empty.
    ///
    /// # Errors
    /// The disk's.
    pub fn of_batch(&mut self, tenant: &str, batch: &str) -> Result<Vec<JobRecord>, DatabaseError> {
        self.file.view("list a batch's jobs", |tx| {
            let numbers = tables::jobs_of_batch(tx, tenant, batch)?;
            let head = |number| {
                tables::head(tx, number)?.ok_or_else(|| tables::damaged(number, "the record", "no head"))
            };
            numbers.into_iter().map(|number| Ok(head(number)?.record)).collect()
        })
    }

    /// Bytes that the file has of the disk now. It is sparse, so its length says nothing.
    pub fn file_bytes(&self) -> u64 {
        self.file.file_bytes()
    }

    /// Runs one synced transaction that changes the jobs of these heads, and others only by deleting ended ones.
    fn write(
        &mut self,
        doing: &'static str,
        before: BTreeMap<u64, Option<Head>>,
        call: impl FnOnce(&mut JobTables<'_>) -> Result<(), redb::Error>,
    ) -> Result<(), DatabaseError> {
        let done = self.file.write(doing, call);
        if done.is_err() {
            self.file.books.in_doubt.extend(before);
        }
        done
    }
}
