//! What clients put down and come back for, on disk: answers, conversations, files, in one redb file, `objects.redb`.
//!
//! An [`Object`] has a name, a value of the caller's own bytes, and perhaps a [`Content`]: bytes of any length that go in
//! and come out in pieces, so that nobody has them in memory whole. Objects of one kind and tenant are listed in the order
//! in which they were first put.
//!
//! * A call is one synced transaction: what it returned `Ok` for is on disk. After an error all of it has happened or
//!   nothing, and the next call opens the file again by itself. Puts and deletes may be repeated.
//! * A content belongs to nobody until an object is put with it. Those that never were are gone at the next start.
//! * What is too old or too much goes by itself, the oldest first; what a call puts stays until the next one at least.
//! * Nothing that is read is trusted: pages and records have checksums. A file that is damaged is an error and is left
//!   as it is.
//!
//! One thread owns it. FORMATS.md has the bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use redb::{Database, ReadTransaction, ReadableDatabase};

use crate::database::{self, Fault, Place, PlaceError, attempt};

mod kept;
mod object;
mod open;
mod record;
mod tables;

pub use object::{Content, Object, ObjectName, ObjectOrder, ObjectRetention, PIECE_BYTES};

use kept::Kept;
use object::Head;
use tables::ObjectTables;

/// All objects.
pub struct ObjectStore {
    /// `None` after a failure: the next call opens the file again.
    database: Option<Database>,
    open: Open,
    place: Place,
    retention: ObjectRetention,
    kept: Kept,
    /// The highest number that an object or a content ever had.
    last_number: u64,
}

/// Opens the database in its place.
type Open = Box<dyn Fn() -> Result<Result<Database, Fault>, PlaceError> + Send>;

/// Why the disk did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ObjectStoreError {
    /// Another process has the file open.
    #[error("{}: another daemon uses it; stop it, or give this one another folder for objects", path.display())]
    InUse {
        /// The database's file.
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
    /// The database is damaged, of another version, or none. It is left as it is.
    #[error(
        "{}: the objects in it cannot be used ({why}). It is left as it is: bring it back from a backup, or move it away, \
         and the daemon starts without objects",
        path.display()
    )]
    Unusable {
        /// The database's file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
}

impl ObjectStore {
    /// Puts objects. One whose name is there already is replaced and keeps its place in the order; a content that it had
    /// and has no more is deleted. Of several with one name the last one stays.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// When a content is another object's or was abandoned.
    pub fn put(&mut self, objects: &[Object], now_ms: u64) -> Result<(), ObjectStoreError> {
        if objects.is_empty() {
            return Ok(());
        }
        for object in objects.iter().filter(|object| object.content.is_some()) {
            let may = self.view("look for a content", |tx| tables::may_have(tx, object))?;
            assert!(may, "{:?} is put with a content that is not there, or another's", object.name);
        }
        self.ready()?;
        let (retention, mut last_number) = (self.retention, self.last_number);
        // After an error they are read anew.
        let mut kept = std::mem::take(&mut self.kept);
        (self.kept, self.last_number) = self.write("store objects", |tables| {
            let mut staying = BTreeSet::new();
            for object in objects {
                let before = tables.head_of(&object.name)?;
                let number = before.as_ref().map_or(last_number + 1, |head| head.number);
                last_number = last_number.max(number);
                let head = Head::new(number, object);
                tables.put(&head, &object.value, before.as_ref())?;
                kept.insert(&head);
                staying.insert(number);
            }
            let expired = kept.expired(&retention, now_ms, &staying);
            tables.remove_all(&expired)?;
            expired.iter().for_each(|number| kept.remove(*number));
            tables.put_last_number(last_number)?;
            Ok((kept, last_number))
        })?;
        Ok(())
    }

    /// An object, if it is kept.
    ///
    /// # Errors
    /// The disk's.
    pub fn get(&mut self, name: &ObjectName) -> Result<Option<Object>, ObjectStoreError> {
        self.view("read an object", |tx| {
            tables::find(tx, name)?.map(|number| tables::object(tx, number)).transpose()
        })
    }

    /// Deletes objects and their contents; whether each was there.
    ///
    /// # Errors
    /// The disk's.
    pub fn delete(&mut self, names: &[ObjectName]) -> Result<Vec<bool>, ObjectStoreError> {
        let found =
            self.view("look for objects", |tx| names.iter().map(|name| tables::find(tx, name)).collect())?;
        let found: Vec<Option<u64>> = found;
        let mut numbers: Vec<u64> = found.iter().flatten().copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        if !numbers.is_empty() {
            self.write("delete objects", |tables| tables.remove_all(&numbers))?;
            numbers.iter().for_each(|number| self.kept.remove(*number));
        }
        Ok(found.iter().map(Option::is_some).collect())
    }

    /// At most `limit` objects of this kind and tenant in this order, those behind the object of the id `after`; `None`
    /// when there is none of this id.
    ///
    /// # Errors
    /// The disk's.
    pub fn list(
        &mut self,
        kind: &str,
        tenant: &str,
        after: Option<&str>,
        limit: usize,
        order: ObjectOrder,
    ) -> Result<Option<Vec<Object>>, ObjectStoreError> {
        self.view("list objects", |tx| {
            let after = match after {
                None => None,
                Some(id) => match tables::find(tx, &ObjectName::new(kind, tenant, id))? {
                    None => return Ok(None),
                    found => found,
                },
            };
            let numbers = tables::numbers(tx, kind, tenant, after, limit, order)?;
            numbers
                .into_iter()
                .map(|number| tables::object(tx, number))
                .collect::<Result<Vec<_>, _>>()
                .map(Some)
        })
    }

    /// Deletes what is too old or too much when nothing else is put.
    ///
    /// # Errors
    /// The disk's.
    pub fn expire(&mut self, now_ms: u64) -> Result<(), ObjectStoreError> {
        self.ready()?;
        let expired = self.kept.expired(&self.retention, now_ms, &BTreeSet::new());
        if !expired.is_empty() {
            self.write("delete old objects", |tables| tables.remove_all(&expired))?;
            expired.iter().for_each(|number| self.kept.remove(*number));
        }
        Ok(())
    }

    /// A content without pieces. Nothing of it is on disk yet.
    pub fn begin_content(&mut self) -> Content {
        self.last_number += 1;
        Content { number: self.last_number, pieces: 0, bytes: 0 }
    }

    /// Appends a piece to a content that no object has yet; the content with it. To append to what was appended to already
    /// overwrites.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// When the piece is empty or has more than [`PIECE_BYTES`], or the content is an object's or abandoned.
    pub fn append(&mut self, content: Content, piece: &[u8]) -> Result<Content, ObjectStoreError> {
        assert!((1..=PIECE_BYTES).contains(&piece.len()), "a piece of {} bytes", piece.len());
        let may = self.view("look for a content", |tx| tables::may_grow(tx, content))?;
        assert!(may, "{content:?} is not there, or an object's");
        let last_number = self.last_number;
        self.write("store a piece of a content", |tables| {
            tables.put_piece(content, piece)?;
            tables.put_last_number(last_number)
        })?;
        Ok(Content { pieces: content.pieces + 1, bytes: content.bytes + piece.len() as u64, ..content })
    }

    /// A piece of a content, from 0; `None` when its object is gone, and beyond its last.
    ///
    /// # Errors
    /// The disk's.
    pub fn piece(&mut self, content: Content, piece: u32) -> Result<Option<Vec<u8>>, ObjectStoreError> {
        self.view("read a piece of a content", |tx| tables::piece(tx, content.number, piece))
    }

    /// Deletes the pieces of a content that no object has; nothing happens to another.
    ///
    /// # Errors
    /// The disk's.
    pub fn abandon(&mut self, content: Content) -> Result<(), ObjectStoreError> {
        self.write("delete a content", |tables| tables.remove_loose(content.number))
    }

    /// Bytes that the file has of the disk now. It is sparse, so its length says nothing.
    pub fn file_bytes(&self) -> u64 {
        self.place.file_bytes()
    }

    /// Looks at the objects as the last transaction left them.
    fn view<T>(
        &mut self,
        doing: &'static str,
        call: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, ObjectStoreError> {
        let database = self.ready()?;
        let looked = attempt(|| call(&database.begin_read()?));
        looked.map_err(|fault| self.fail(fault, doing))
    }

    /// Runs one synced transaction.
    fn write<T>(
        &mut self,
        doing: &'static str,
        call: impl FnOnce(&mut ObjectTables<'_>) -> Result<T, redb::Error>,
    ) -> Result<T, ObjectStoreError> {
        let database = self.ready()?;
        let done = attempt(|| database::transaction(database, |tx| call(&mut ObjectTables::open(tx)?)));
        let done = done.and_then(|value| self.place.still_there().map(|()| value).map_err(Fault::Io));
        done.map_err(|fault| self.fail(fault, doing))
    }

    /// The database, opened again if it failed.
    fn ready(&mut self) -> Result<&Database, ObjectStoreError> {
        if self.database.is_none() {
            self.reopen()?;
        }
        Ok(self.database.as_ref().expect("it was opened"))
    }

    /// Closes the database: nobody knows what it holds in memory.
    fn fail(&mut self, fault: Fault, doing: &'static str) -> ObjectStoreError {
        self.close();
        ObjectStoreError::new(fault, doing, &self.place)
    }

    fn close(&mut self) {
        let database = self.database.take();
        // Closing writes, and the database may panic over a damaged file (see `attempt`).
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStore")
            .field("file", &self.place.file())
            .field("retention", &self.retention)
            .finish()
    }
}

impl From<PlaceError> for ObjectStoreError {
    fn from(error: PlaceError) -> Self {
        Self::Io { path: error.path, doing: error.doing, source: error.source }
    }
}

impl ObjectStoreError {
    fn new(fault: Fault, doing: &'static str, place: &Place) -> Self {
        let path = place.file();
        match fault {
            Fault::InUse => Self::InUse { path },
            Fault::Io(source) => Self::Io { path, doing, source },
            Fault::Failed => Self::Io { path, doing, source: io::Error::other("an earlier call failed") },
            Fault::Unusable(why) => Self::Unusable { path, why },
        }
    }
}
