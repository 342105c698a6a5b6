//! Opening: the format, what is kept, and the contents that nobody came back for.

use std::path::Path;

use redb::{ReadTransaction, ReadableDatabase, StorageBackend};

use super::kept::Kept;
use super::object::ObjectRetention;
use super::tables::{self, FORMAT, META_FORMAT, META_LAST, ObjectTables};
use super::{ObjectStore, ObjectStoreError, Open};
use crate::database::{self, Place, attempt};

const FILE: &str = "objects.redb";

/// The system's own cache holds the file; the database's needs to hold the pages of a transaction.
const CACHE_BYTES: usize = 16 << 20;

impl ObjectStore {
    /// Opens the objects in a folder, which is made if it is missing, and lets those expire that are too old or too many.
    ///
    /// # Errors
    /// When the file is in use, cannot be used (it stays as it is), or the system refuses.
    pub fn open(dir: &Path, retention: ObjectRetention, now_ms: u64) -> Result<Self, ObjectStoreError> {
        let place = Place::folder(dir, FILE)?;
        if !place.exists()? {
            let made = database::make(&place, CACHE_BYTES, ObjectTables::begin)?;
            // Closed, and opened like any other.
            drop(made.map_err(|fault| ObjectStoreError::new(fault, "make the database", &place))?);
        }
        let at = place.clone();
        Self::start(place, Box::new(move || database::open(&at, CACHE_BYTES)), retention, now_ms)
    }

    /// Opens the objects on a backend of the database, for tests of what a disk may do; an empty one is filled first. After
    /// a failure another one is asked for.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_backend<B: StorageBackend>(
        backend: impl Fn() -> B + Send + 'static,
        retention: ObjectRetention,
        now_ms: u64,
    ) -> Result<Self, ObjectStoreError> {
        let open = move || {
            Ok(attempt(|| {
                let database = database::open_sealed(backend(), CACHE_BYTES)?;
                if database.begin_read()?.list_tables()?.next().is_none() {
                    database::transaction(&database, ObjectTables::begin)?;
                }
                Ok(database)
            }))
        };
        Self::start(Place::nowhere(FILE), Box::new(open), retention, now_ms)
    }

    fn start(
        place: Place,
        open: Open,
        retention: ObjectRetention,
        now_ms: u64,
    ) -> Result<Self, ObjectStoreError> {
        let mut store =
            Self { database: None, open, place, retention, kept: Kept::default(), last_number: 0 };
        let loose = store.view("look for loose contents", tables::loose)?;
        if !loose.is_empty() {
            store.write("delete loose contents", |tables| {
                loose.iter().try_for_each(|content| tables.remove_loose(*content))
            })?;
        }
        store.expire(now_ms)?;
        Ok(store)
    }

    /// Opens the file and reads what is kept in memory.
    pub(super) fn reopen(&mut self) -> Result<(), ObjectStoreError> {
        let opened = (self.open)()?;
        let database = opened.map_err(|fault| self.fail(fault, "open"))?;
        let database = &*self.database.insert(database);
        let read = attempt(|| read_books(&database.begin_read()?));
        let (kept, last_number) = read.map_err(|fault| self.fail(fault, "read the objects"))?;
        self.kept = kept;
        // A content that has no piece yet has its number in memory alone.
        self.last_number = self.last_number.max(last_number);
        Ok(())
    }
}

/// What is kept, and the highest number.
fn read_books(tx: &ReadTransaction) -> Result<(Kept, u64), redb::Error> {
    let format = tables::meta(tx, META_FORMAT)?;
    if format != Some(FORMAT) {
        let found = format.map_or("no format number".to_owned(), |format| format!("format {format}"));
        let message = format!("it has {found}, and this zllm reads format {FORMAT}");
        return Err(redb::Error::Corrupted(message));
    }
    let heads = tables::heads(tx)?;
    tables::check_counts(tx, heads.len() as u64)?;
    let mut kept = Kept::default();
    heads.iter().for_each(|head| kept.insert(head));
    let highest = heads.last().map_or(0, |head| head.number);
    Ok((kept, highest.max(tables::meta(tx, META_LAST)?.unwrap_or(0))))
}
