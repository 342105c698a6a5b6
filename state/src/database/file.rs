//! Making and opening a database's file, and closing it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, StorageBackend, WriteTransaction};

use super::fault::{Fault, attempt};
use super::meta::{META, META_FORMAT};
use super::place::{Place, PlaceError, open_file};
use super::sealed::Sealed;

/// A database has a page at least. It would take a shorter file for a new one, and write over what somebody put there.
const SHORTEST_BYTES: u64 = 4096;

/// What makes a database one of its kind.
pub(crate) struct Layout {
    /// Name of its file.
    pub(crate) file: &'static str,
    /// The system's own cache holds the file; the database's needs to hold the pages of a transaction.
    pub(crate) cache_bytes: usize,
    /// Format of the whole file: its tables and their keys.
    pub(crate) format: u64,
    /// Makes the tables of a new one, beside the format's number.
    pub(crate) begin: fn(&WriteTransaction) -> Result<(), redb::Error>,
}

/// An open database. Dropped it closes, whatever is in its file.
pub(crate) struct Handle(Option<Database>);

impl Deref for Handle {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().expect("only drop takes it")
    }
}

impl DerefMut for Handle {
    fn deref_mut(&mut self) -> &mut Database {
        self.0.as_mut().expect("only drop takes it")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Closing writes, and the database may panic over a damaged file (see `attempt`).
        let database = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
    }
}

/// Opens the database in its place.
pub(crate) fn open(place: &Place, layout: &Layout) -> Result<Handle, Fault> {
    let path = place.file();
    let file = open_file(&path, false)?;
    let length = file.metadata().map_err(|source| PlaceError::new(&path, "look at", source))?.len();
    if length < SHORTEST_BYTES {
        return Err(Fault::Unusable(format!("it is no database: {length} bytes")));
    }
    attempt(|| open_sealed(FileBackend::new(file)?, layout))
}

/// Opens the database on a backend; an empty one becomes a database.
pub(crate) fn open_on(backend: impl StorageBackend, layout: &Layout) -> Result<Handle, Fault> {
    attempt(|| {
        let database = open_sealed(backend, layout)?;
        if database.begin_read()?.list_tables()?.next().is_none() {
            fill(&database, layout)?;
        }
        Ok(database)
    })
}

/// Makes a database in its place.
pub(crate) fn make(place: &Place, layout: &Layout) -> Result<Handle, Fault> {
    let path = place.unfinished();
    let attempt_once = || {
        let file = open_file(&path, true)?;
        attempt(|| {
            let database = open_sealed(FileBackend::new(file)?, layout)?;
            fill(&database, layout)?;
            Ok(database)
        })
    };
    let mut made = attempt_once();
    if let Err(Fault::Unusable(_)) = made {
        // What an earlier try left behind.
        fs::remove_file(&path).map_err(|source| PlaceError::new(&path, "remove", source))?;
        made = attempt_once();
    }
    let made = made?;
    place.finish()?;
    Ok(made)
}

fn open_sealed(backend: impl StorageBackend, layout: &Layout) -> Result<Handle, redb::Error> {
    let mut builder = Builder::new();
    builder.set_cache_size(layout.cache_bytes);
    Ok(Handle(Some(builder.create_with_backend(Sealed(backend))?)))
}

fn fill(database: &Database, layout: &Layout) -> Result<(), redb::Error> {
    transaction(database, |tx| {
        tx.open_table(META)?.insert(META_FORMAT, layout.format)?;
        (layout.begin)(tx)
    })
}

/// Runs one synced transaction. The allocator's state is saved with it, so that opening after a crash takes no time in
/// proportion to the file.
pub(crate) fn transaction<T>(
    database: &Database,
    call: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
) -> Result<T, redb::Error> {
    let mut tx = database.begin_write()?;
    tx.set_quick_repair(true);
    let done = call(&tx)?;
    tx.commit()?;
    Ok(done)
}
