//! The tables of the database, and what a job is in them.

use redb::{ReadTransaction, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};

use super::job::{Head, JobRecord, job_name};
use super::record::{self, NameKey};
use crate::database::{META, META_LAST};

type Bytes = &'static [u8];

// All keys have fixed widths: any bytes in a damaged page are a key, and the checksums find them wrong.
/// By the job's number, as bodies and results are.
const HEADS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("heads");
const BODIES: TableDefinition<'_, u64, Bytes> = TableDefinition::new("bodies");
const RESULTS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("results");
/// A tenant's idempotency key leads to the job that had it first.
const KEYS: TableDefinition<'_, NameKey, u64> = TableDefinition::new("keys");
/// The jobs of a tenant's batch.
const BATCHES: TableDefinition<'_, (NameKey, u64), ()> = TableDefinition::new("batches");

/// The tables, open for writing.
pub(super) struct JobTables<'tx> {
    meta: Table<'tx, u32, u64>,
    heads: Table<'tx, u64, Bytes>,
    bodies: Table<'tx, u64, Bytes>,
    results: Table<'tx, u64, Bytes>,
    keys: Table<'tx, NameKey, u64>,
    batches: Table<'tx, (NameKey, u64), ()>,
}

impl<'tx> JobTables<'tx> {
    pub(super) fn open(tx: &'tx WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            meta: tx.open_table(META)?,
            heads: tx.open_table(HEADS)?,
            bodies: tx.open_table(BODIES)?,
            results: tx.open_table(RESULTS)?,
            keys: tx.open_table(KEYS)?,
            batches: tx.open_table(BATCHES)?,
        })
    }

    /// Writes what a new database has.
    pub(super) fn begin(tx: &WriteTransaction) -> Result<(), redb::Error> {
        JobTables::open(tx)?.put_last_number(0)
    }

    /// Stores a new job.
    pub(super) fn insert(&mut self, job: &JobRecord, head: &Head) -> Result<(), redb::Error> {
        self.put_head(head)?;
        self.bodies.insert(job.number, record::encode_body(job).as_slice())?;
        if let Some(key) = &job.key {
            self.keys.insert(record::key_of_key(&job.tenant, key), job.number)?;
        }
        if let Some(batch) = &job.batch {
            self.batches.insert((record::key_of_batch(&job.tenant, batch), job.number), ())?;
        }
        Ok(())
    }

    /// Says which number a job had that was the highest ever.
    pub(super) fn put_last_number(&mut self, number: u64) -> Result<(), redb::Error> {
        self.meta.insert(META_LAST, number)?;
        Ok(())
    }

    /// Puts a head in place of the job's old one.
    pub(super) fn put_head(&mut self, head: &Head) -> Result<(), redb::Error> {
        self.heads.insert(head.record.number, record::encode_head(head).as_slice())?;
        Ok(())
    }

    pub(super) fn put_result(&mut self, number: u64, result: &[u8]) -> Result<(), redb::Error> {
        self.results.insert(number, record::encode_result(number, result).as_slice())?;
        Ok(())
    }

    /// Makes a job what it was when it had this head, or nothing.
    pub(super) fn put_back(&mut self, number: u64, head: Option<&Head>) -> Result<(), redb::Error> {
        let Some(head) = head else { return self.remove(number) };
        assert!(head.result_bytes.is_none(), "what has ended does not change");
        self.results.remove(number)?;
        self.put_head(head)
    }

    /// Deletes these jobs, each the time of its end and its number.
    pub(super) fn remove_all(&mut self, expired: &[(u64, u64)]) -> Result<(), redb::Error> {
        expired.iter().try_for_each(|(_, number)| self.remove(*number))
    }

    /// Deletes all that is stored of a job, if anything is.
    pub(super) fn remove(&mut self, number: u64) -> Result<(), redb::Error> {
        let Some(removed) = self.heads.remove(number)? else { return Ok(()) };
        let job = decode(number, removed.value())?.record;
        drop(removed);
        self.bodies.remove(number)?;
        self.results.remove(number)?;
        if let Some(key) = &job.key {
            self.keys.remove(record::key_of_key(&job.tenant, key))?;
        }
        if let Some(batch) = &job.batch {
            self.batches.remove((record::key_of_batch(&job.tenant, batch), number))?;
        }
        Ok(())
    }
}

/// A record that is not as it should be makes the whole file unusable: nobody guesses about acknowledged jobs.
pub(super) fn damaged(number: u64, what: &str, why: &str) -> redb::Error {
    redb::Error::Corrupted(format!("{what} of {} has {why}", job_name(number)))
}

fn decode(number: u64, bytes: &[u8]) -> Result<Head, redb::Error> {
    record::decode_head(number, bytes).map_err(|why| damaged(number, "the head", why))
}

/// The heads of a range of numbers, lowest first; from the other end as well.
pub(super) fn heads(
    tx: &ReadTransaction,
    numbers: impl std::ops::RangeBounds<u64>,
) -> Result<impl DoubleEndedIterator<Item = Result<Head, redb::Error>>, redb::Error> {
    let entries = tx.open_table(HEADS)?.range(numbers)?;
    Ok(entries.map(|entry| {
        let (number, bytes) = entry?;
        decode(number.value(), bytes.value())
    }))
}

/// The head of a job, if it is stored.
pub(super) fn head(tx: &ReadTransaction, number: u64) -> Result<Option<Head>, redb::Error> {
    let found = tx.open_table(HEADS)?.get(number)?;
    found.map(|bytes| decode(number, bytes.value())).transpose()
}

/// The jobs that have not ended, lowest number first.
pub(super) fn unfinished(tx: &ReadTransaction) -> Result<Vec<JobRecord>, redb::Error> {
    let is_unfinished =
        |head: &Result<Head, _>| head.as_ref().map_or(true, |head| !head.record.state.is_terminal());
    heads(tx, ..)?.filter(is_unfinished).map(|head| whole(tx, head?)).collect()
}

/// The whole record of the job of this head.
pub(super) fn whole(tx: &ReadTransaction, head: Head) -> Result<JobRecord, redb::Error> {
    let number = head.record.number;
    let found = tx.open_table(BODIES)?.get(number)?;
    let bytes = found.ok_or_else(|| damaged(number, "the record", "no prompt"))?;
    let body = record::decode_body(&head, bytes.value());
    let (prompt, request) = body.map_err(|why| damaged(number, "the prompt", why))?;
    Ok(JobRecord { prompt, request, ..head.record })
}

/// The result of the job of this head, if it has one.
pub(super) fn result(tx: &ReadTransaction, head: &Head) -> Result<Option<Vec<u8>>, redb::Error> {
    let Some(length) = head.result_bytes else { return Ok(None) };
    let number = head.record.number;
    let found = tx.open_table(RESULTS)?.get(number)?;
    let bytes = found.ok_or_else(|| damaged(number, "the record", "no result"))?;
    match record::decode_result(number, bytes.value()) {
        Ok(result) if result.len() as u64 == length => Ok(Some(result)),
        Ok(_) => Err(damaged(number, "the result", "another length than its head says")),
        Err(why) => Err(damaged(number, "the result", why)),
    }
}

/// What is stored before a job is.
pub(super) struct Stored {
    /// Whether the job's number has a job.
    pub(super) is_there: bool,
    /// The job that has the job's key.
    pub(super) of_key: Option<u64>,
}

pub(super) fn find_job(tx: &ReadTransaction, job: &JobRecord) -> Result<Stored, redb::Error> {
    let is_there = tx.open_table(HEADS)?.get(job.number)?.is_some();
    let Some(key) = &job.key else { return Ok(Stored { is_there, of_key: None }) };
    Ok(Stored { is_there, of_key: job_of_key(tx, &job.tenant, key)? })
}

/// The number of the job that has a tenant's key.
pub(super) fn job_of_key(tx: &ReadTransaction, tenant: &str, key: &str) -> Result<Option<u64>, redb::Error> {
    let found = tx.open_table(KEYS)?.get(record::key_of_key(tenant, key))?;
    Ok(found.map(|number| number.value()))
}

/// Numbers of a batch's jobs, lowest first.
pub(super) fn jobs_of_batch(
    tx: &ReadTransaction,
    tenant: &str,
    batch: &str,
) -> Result<Vec<u64>, redb::Error> {
    let key = record::key_of_batch(tenant, batch);
    let entries = tx.open_table(BATCHES)?.range((key, 0)..=(key, u64::MAX))?;
    entries.map(|entry| Ok(entry?.0.value().1)).collect()
}

/// Whether the tables beside the heads have as many entries as these heads name.
pub(super) fn check_counts(tx: &ReadTransaction, heads: &[Head]) -> Result<(), redb::Error> {
    let count = |has: fn(&Head) -> bool| heads.iter().filter(|head| has(head)).count() as u64;
    let expected = [
        ("prompts", tx.open_table(BODIES)?.len()?, count(|_| true)),
        ("results", tx.open_table(RESULTS)?.len()?, count(|head| head.result_bytes.is_some())),
        ("keys", tx.open_table(KEYS)?.len()?, count(|head| head.record.key.is_some())),
        ("batches", tx.open_table(BATCHES)?.len()?, count(|head| head.record.batch.is_some())),
    ];
    for (what, found, expected) in expected {
        if found != expected {
            let message = format!("it has {found} {what}, and its jobs {expected}");
            return Err(redb::Error::Corrupted(message));
        }
    }
    Ok(())
}
