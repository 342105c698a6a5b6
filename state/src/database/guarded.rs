//! A database that closes when a call fails, for nobody knows what it then holds in memory, and opens again with the next.
//!
//! Its owner keeps books of what is in it, to know some of it without a look at the disk; they are read anew at each
//! opening. One thread owns it.

use std::fmt;
use std::path::Path;

use redb::{Database, ReadTransaction, ReadableDatabase, StorageBackend, WriteTransaction};

use super::error::DatabaseError;
use super::fault::{Fault, attempt};
use super::file::{Handle, Layout, make, open, open_on, transaction};
use super::meta::check_format;
use super::place::Place;

/// What the owner of a database knows of it, and how it is read.
pub(crate) trait Books: Default {
    /// The database that they are of.
    const LAYOUT: &'static Layout;
    /// How errors speak of it.
    const WORDS: Words;
    /// Its tables, open for writing.
    type Tables<'tx>;

    fn tables(tx: &WriteTransaction) -> Result<Self::Tables<'_>, redb::Error>;

    /// Reads the books of a database that was just opened.
    fn read(&mut self, database: &Database) -> Result<(), redb::Error>;
}

/// Words of errors.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    /// What is in the database.
    pub(crate) records: &'static str,
    /// What is done when its books are read.
    pub(crate) reading: &'static str,
    /// How the daemon starts without it.
    pub(crate) without: &'static str,
}

/// The database, open or not.
pub(crate) struct Guarded<B> {
    /// `None` before the first call and after a failure.
    database: Option<Handle>,
    open: Box<dyn Fn() -> Result<Handle, Fault> + Send>,
    place: Place,
    /// Right whenever the database is open.
    pub(crate) books: B,
}

impl<B: Books> Guarded<B> {
    /// The database in a folder. Both are made if they are missing.
    pub(crate) fn in_folder(dir: &Path) -> Result<Self, DatabaseError> {
        let place = Place::folder(dir, B::LAYOUT.file)?;
        if !place.exists()? {
            // Closed, and opened like any other.
            let made = make(&place, B::LAYOUT).map(drop);
            made.map_err(|fault| Self::error(fault, "make the database", &place))?;
        }
        let at = place.clone();
        Ok(Self::new(place, move || open(&at, B::LAYOUT)))
    }

    /// The database on a backend, for tests of what a disk may do; an empty one is filled first. After a failure another one
    /// is asked for.
    pub(crate) fn on_backend<S: StorageBackend>(backend: impl Fn() -> S + Send + 'static) -> Self {
        Self::new(Place::nowhere(B::LAYOUT.file), move || open_on(backend(), B::LAYOUT))
    }

    fn new(place: Place, open: impl Fn() -> Result<Handle, Fault> + Send + 'static) -> Self {
        Self { database: None, open: Box::new(open), place, books: B::default() }
    }

    /// The database, opened if it is not.
    pub(crate) fn ready(&mut self) -> Result<&Database, DatabaseError> {
        if self.database.is_none() {
            let database = (self.open)().map_err(|fault| self.fail(fault, "open"))?;
            let read = attempt(|| {
                check_format(&database.begin_read()?, B::LAYOUT)?;
                self.books.read(&database)
            });
            read.map_err(|fault| self.fail(fault, B::WORDS.reading))?;
            self.database = Some(database);
        }
        Ok(self.database.as_ref().expect("it was opened"))
    }

    /// Looks at the records as the last transaction left them.
    pub(crate) fn view<T>(
        &mut self,
        doing: &'static str,
        call: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, DatabaseError> {
        let database = self.ready()?;
        let looked = attempt(|| call(&database.begin_read()?));
        looked.map_err(|fault| self.fail(fault, doing))
    }

    /// Runs one synced transaction.
    pub(crate) fn write<T>(
        &mut self,
        doing: &'static str,
        call: impl FnOnce(&mut B::Tables<'_>) -> Result<T, redb::Error>,
    ) -> Result<T, DatabaseError> {
        let database = self.ready()?;
        let done = attempt(|| transaction(database, |tx| call(&mut B::tables(tx)?)));
        let done = done.and_then(|value| self.place.still_there().map(|()| value).map_err(Fault::Io));
        done.map_err(|fault| self.fail(fault, doing))
    }

    /// Bytes that the file has of the disk now. It is sparse, so its length says nothing.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.place.file_bytes()
    }

    fn fail(&mut self, fault: Fault, doing: &'static str) -> DatabaseError {
        self.database = None;
        Self::error(fault, doing, &self.place)
    }

    fn error(fault: Fault, doing: &'static str, place: &Place) -> DatabaseError {
        DatabaseError::new(fault, doing, place, &B::WORDS)
    }
}

impl<B> fmt::Debug for Guarded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.file().fmt(f)
    }
}
