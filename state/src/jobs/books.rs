//! What is known of the jobs without a look at the disk, and what is put back after a failure.

use std::collections::BTreeMap;

use redb::{Database, ReadableDatabase, WriteTransaction};

use super::ended::Ended;
use super::job::Head;
use super::tables::{self, JobTables};
use crate::database::{self, Books, Layout, Words};

#[derive(Default)]
pub(super) struct JobBooks {
    pub(super) ended: Ended,
    /// The highest number that a job ever had.
    pub(super) last_number: u64,
    /// What calls that failed may have changed all the same: the heads as they were acknowledged, `None` for a job that was
    /// not there. They are put back when the file is opened again.
    pub(super) in_doubt: BTreeMap<u64, Option<Head>>,
}

impl Books for JobBooks {
    const LAYOUT: &'static Layout =
        &Layout { file: "jobs.redb", cache_bytes: 16 << 20, format: 1, begin: JobTables::begin };
    const WORDS: Words = Words { records: "jobs", reading: "read the jobs", without: "with an empty queue" };
    type Tables<'tx> = JobTables<'tx>;

    fn tables(tx: &WriteTransaction) -> Result<JobTables<'_>, redb::Error> {
        JobTables::open(tx)
    }

    fn read(&mut self, database: &Database) -> Result<(), redb::Error> {
        if !self.in_doubt.is_empty() {
            database::transaction(database, |tx| {
                let mut tables = JobTables::open(tx)?;
                for (number, before) in &self.in_doubt {
                    tables.put_back(*number, before.as_ref())?;
                }
                tables.put_last_number(self.last_number)
            })?;
        }
        let tx = database.begin_read()?;
        let heads = tables::heads(&tx, ..)?.collect::<Result<Vec<_>, _>>()?;
        tables::check_counts(&tx, &heads)?;
        let highest = heads.last().map_or(0, |head| head.record.number);
        self.last_number = highest.max(database::last_number(&tx)?);
        self.ended = Ended::default();
        heads.iter().for_each(|head| self.ended.insert(head));
        self.in_doubt.clear();
        Ok(())
    }
}
