//! Opening: which jobs are not over, and putting back what a failed call may have left.

use std::path::Path;

use redb::{ReadTransaction, ReadableDatabase, StorageBackend};

use super::ended::Ended;
use super::job::{JobRecord, Retention};
use super::tables::{self, FORMAT, JobTables, META_FORMAT, META_LAST};
use super::{JobStore, JobStoreError, Open};
use crate::database::{self, Place, attempt};

const FILE: &str = "jobs.redb";

/// The system's own cache holds the file; the database's needs to hold the pages of a transaction.
const CACHE_BYTES: usize = 16 << 20;

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
    pub fn open(dir: &Path, retention: Retention, now_ms: u64) -> Result<(Self, OpenedJobs), JobStoreError> {
        let place = Place::folder(dir, FILE)?;
        if !place.exists()? {
            let made = database::make(&place, CACHE_BYTES, JobTables::begin)?;
            // Closed, and opened like any other.
            drop(made.map_err(|fault| JobStoreError::new(fault, "make the database", &place))?);
        }
        let at = place.clone();
        Self::start(place, Box::new(move || database::open(&at, CACHE_BYTES)), retention, now_ms)
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
    ) -> Result<(Self, OpenedJobs), JobStoreError> {
        let open = move || {
            Ok(attempt(|| {
                let database = database::open_sealed(backend(), CACHE_BYTES)?;
                if database.begin_read()?.list_tables()?.next().is_none() {
                    database::transaction(&database, JobTables::begin)?;
                }
                Ok(database)
            }))
        };
        Self::start(Place::nowhere(FILE), Box::new(open), retention, now_ms)
    }

    fn start(
        place: Place,
        open: Open,
        retention: Retention,
        now_ms: u64,
    ) -> Result<(Self, OpenedJobs), JobStoreError> {
        let mut store = Self {
            database: None,
            open,
            place,
            retention,
            ended: Ended::default(),
            last_number: 0,
            in_doubt: Default::default(),
        };
        store.expire(now_ms)?;
        let unfinished = store.view("read the jobs", read_unfinished)?;
        let last_number = store.last_number;
        Ok((store, OpenedJobs { unfinished, last_number }))
    }

    /// Opens the file, puts back what is in doubt, and reads what is kept in memory.
    pub(super) fn reopen(&mut self) -> Result<(), JobStoreError> {
        let opened = (self.open)()?;
        let database = opened.map_err(|fault| self.fail(fault, "open"))?;
        let database = &*self.database.insert(database);
        let read = attempt(|| {
            check_format(&database.begin_read()?)?;
            if !self.in_doubt.is_empty() {
                database::transaction(database, |tx| {
                    let mut tables = JobTables::open(tx)?;
                    for (number, before) in &self.in_doubt {
                        tables.put_back(*number, before.as_ref())?;
                    }
                    tables.put_last_number(self.last_number)
                })?;
            }
            read_books(&database.begin_read()?)
        });
        let (ended, last_number) = read.map_err(|fault| self.fail(fault, "read the jobs"))?;
        self.in_doubt.clear();
        (self.ended, self.last_number) = (ended, last_number);
        Ok(())
    }
}

fn check_format(tx: &ReadTransaction) -> Result<(), redb::Error> {
    let format = tables::meta(tx, META_FORMAT)?;
    if format == Some(FORMAT) {
        return Ok(());
    }
    let found = format.map_or("no format number".to_owned(), |format| format!("format {format}"));
    Err(redb::Error::Corrupted(format!("it has {found}, and this zllm reads format {FORMAT}")))
}

/// Who has ended, and the highest number.
fn read_books(tx: &ReadTransaction) -> Result<(Ended, u64), redb::Error> {
    let heads = tables::heads(tx, ..)?.collect::<Result<Vec<_>, _>>()?;
    tables::check_counts(tx, &heads)?;
    let mut ended = Ended::default();
    heads.iter().for_each(|head| ended.insert(head));
    let highest = heads.last().map_or(0, |head| head.record.number);
    Ok((ended, highest.max(tables::meta(tx, META_LAST)?.unwrap_or(0))))
}

fn read_unfinished(tx: &ReadTransaction) -> Result<Vec<JobRecord>, redb::Error> {
    let mut unfinished = Vec::new();
    for head in tables::heads(tx, ..)? {
        let head = head?;
        if !head.record.state.is_terminal() {
            unfinished.push(tables::whole(tx, head)?);
        }
    }
    Ok(unfinished)
}
