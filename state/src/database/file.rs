//! Making and opening a database's file.

use std::fs;

use redb::backends::FileBackend;
use redb::{Builder, Database, StorageBackend, WriteTransaction};

use super::fault::{Fault, attempt};
use super::place::{Place, PlaceError, open_file};
use super::sealed::Sealed;

/// A database has a page at least. It would take a shorter file for a new one, and write over what somebody put there.
const SHORTEST_BYTES: u64 = 4096;

/// Opens the database in its place.
pub(crate) fn open(place: &Place, cache_bytes: usize) -> Result<Result<Database, Fault>, PlaceError> {
    let path = place.file();
    let file = open_file(&path, false)?;
    let length = file.metadata().map_err(|source| PlaceError::new(&path, "look at", source))?.len();
    if length < SHORTEST_BYTES {
        return Ok(Err(Fault::Unusable(format!("it is no database: {length} bytes"))));
    }
    Ok(attempt(|| open_sealed(FileBackend::new(file)?, cache_bytes)))
}

/// Makes a database in its place, with what `fill` puts in it.
pub(crate) fn make(
    place: &Place,
    cache_bytes: usize,
    fill: impl Fn(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<Result<Database, Fault>, PlaceError> {
    let path = place.unfinished();
    let attempt_once = || -> Result<_, PlaceError> {
        let file = open_file(&path, true)?;
        Ok(attempt(|| {
            let database = open_sealed(FileBackend::new(file)?, cache_bytes)?;
            transaction(&database, &fill)?;
            Ok(database)
        }))
    };
    let mut made = attempt_once()?;
    if let Err(Fault::Unusable(_)) = made {
        // What an earlier try left behind.
        fs::remove_file(&path).map_err(|source| PlaceError::new(&path, "remove", source))?;
        made = attempt_once()?;
    }
    if made.is_ok() {
        place.finish()?;
    }
    Ok(made)
}

/// Opens the database on a backend; an empty one becomes a database.
pub(crate) fn open_sealed(backend: impl StorageBackend, cache_bytes: usize) -> Result<Database, redb::Error> {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    Ok(builder.create_with_backend(Sealed(backend))?)
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
