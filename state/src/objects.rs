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
//!   Each tenant has a bound of its own, beyond which its own objects go and no others'; it is never passed.
//! * Nothing that is read is trusted: pages and records have checksums. A file that is damaged is an error and is left
//!   as it is.
//!
//! One thread owns it. FORMATS.md has the bytes.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use redb::StorageBackend;

use crate::database::{DatabaseError, Guarded};

mod books;
mod kept;
mod object;
mod record;
mod tables;

pub use object::{Content, Object, ObjectName, ObjectOrder, ObjectRetention, PIECE_BYTES};

use books::ObjectBooks;
use object::Head;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The bound of one tenant.
    #[error("a tenant may have {most} {what} kept, and here are {asked}")]
    TooMuch {
        /// What is bounded: `objects` or `bytes`.
        what: &'static str,
        /// How many were to be put.
        asked: u64,
        /// The bound.
        most: u64,
    },
    /// The disk.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// All objects.
#[derive(Debug)]
pub struct ObjectStore {
    file: Guarded<ObjectBooks>,
    retention: ObjectRetention,
}

impl ObjectStore {
    /// Opens the objects in a folder, which is made if it is missing, and lets those expire that are too old or too many.
    ///
    /// # Errors
    /// When the file is in use, cannot be used (it stays as it is), or the system refuses.
    pub fn open(dir: &Path, retention: ObjectRetention, now_ms: u64) -> Result<Self, DatabaseError> {
        Self::start(Guarded::in_folder(dir)?, retention, now_ms)
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
    ) -> Result<Self, DatabaseError> {
        Self::start(Guarded::on_backend(backend), retention, now_ms)
    }

    fn start(
        file: Guarded<ObjectBooks>,
        retention: ObjectRetention,
        now_ms: u64,
    ) -> Result<Self, DatabaseError> {
        let mut store = Self { file, retention };
        let loose = store.file.view("look for loose contents", tables::loose)?;
        if !loose.is_empty() {
            store.file.write("delete loose contents", |tables| {
                loose.iter().try_for_each(|content| tables.remove_loose(*content))
            })?;
        }
        store.expire(now_ms)?;
        Ok(store)
    }

    /// Puts objects. One whose name is there already is replaced and keeps its place in the order; a content that it had
    /// and has no more is deleted. Of several with one name the last one stays.
    ///
    /// # Errors
    /// [`ObjectError::TooMuch`] when these alone are more than a tenant may have; nothing is put then. The disk's.
    ///
    /// # Panics
    /// When a content is another object's or was abandoned.
    pub fn put(&mut self, objects: &[Object], now_ms: u64) -> Result<(), ObjectError> {
        if objects.is_empty() {
            return Ok(());
        }
        self.check_tenants(objects)?;
        for object in objects.iter().filter(|object| object.content.is_some()) {
            let may = self.file.view("look for a content", |tx| tables::may_have(tx, object))?;
            assert!(may, "{:?} is put with a content that is not there, or another's", object.name);
        }
        self.file.ready()?;
        let (retention, mut last_number) = (self.retention, self.file.books.last_number);
        // After an error they are read anew.
        let mut kept = std::mem::take(&mut self.file.books.kept);
        (self.file.books.kept, self.file.books.last_number) = self.file.write("store objects", |tables| {
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
            tables.remove_all(&kept.expire(&retention, now_ms, &staying))?;
            tables.put_last_number(last_number)?;
            Ok((kept, last_number))
        })?;
        Ok(())
    }

    /// Refuses what would be over a tenant's bound even if everything else of it went: what a call puts stays.
    fn check_tenants(&self, objects: &[Object]) -> Result<(), ObjectError> {
        let sizes: HashMap<_, _> = objects.iter().map(|object| (&object.name, object.kept_bytes())).collect();
        let mut tenants: HashMap<&str, (u64, u64)> = HashMap::new();
        for (name, size) in sizes {
            let (objects, bytes) = tenants.entry(&name.tenant).or_default();
            (*objects, *bytes) = (*objects + 1, bytes.saturating_add(size));
        }
        let ObjectRetention { tenant_objects, tenant_bytes, .. } = self.retention;
        for (objects, bytes) in tenants.into_values() {
            for (what, asked, most) in [("objects", objects, tenant_objects), ("bytes", bytes, tenant_bytes)]
            {
                if asked > most {
                    return Err(ObjectError::TooMuch { what, asked, most });
                }
            }
        }
        Ok(())
    }

    /// An object, if it is kept.
    ///
    /// # Errors
    /// The disk's.
    pub fn get(&mut self, name: &ObjectName) -> Result<Option<Object>, DatabaseError> {
        self.file.view("read an object", |tx| {
            tables::find(tx, name)?.map(|number| tables::object(tx, number)).transpose()
        })
    }

    /// Deletes objects and their contents; whether each was there.
    ///
    /// # Errors
    /// The disk's.
    pub fn delete(&mut self, names: &[ObjectName]) -> Result<Vec<bool>, DatabaseError> {
        let found = self
            .file
            .view("look for objects", |tx| names.iter().map(|name| tables::find(tx, name)).collect())?;
        let found: Vec<Option<u64>> = found;
        let mut numbers: Vec<u64> = found.iter().flatten().copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        if !numbers.is_empty() {
            self.file.write("delete objects", |tables| tables.remove_all(&numbers))?;
            numbers.iter().for_each(|number| self.file.books.kept.remove(*number));
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
    ) -> Result<Option<Vec<Object>>, DatabaseError> {
        self.file.view("list objects", |tx| {
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
    pub fn expire(&mut self, now_ms: u64) -> Result<(), DatabaseError> {
        self.file.ready()?;
        // After an error they are read anew.
        let expired = self.file.books.kept.expire(&self.retention, now_ms, &BTreeSet::new());
        if !expired.is_empty() {
            self.file.write("delete old objects", |tables| tables.remove_all(&expired))?;
        }
        Ok(())
    }

    /// A content without pieces. Nothing of it is on disk yet.
    pub fn begin_content(&mut self) -> Content {
        self.file.books.last_number += 1;
        Content { number: self.file.books.last_number, pieces: 0, bytes: 0 }
    }

    /// Appends a piece to a content that no object has yet; the content with it. To append to what was appended to already
    /// overwrites.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// When the piece is empty or has more than [`PIECE_BYTES`], or the content is an object's or abandoned.
    pub fn append(&mut self, content: Content, piece: &[u8]) -> Result<Content, DatabaseError> {
        assert!((1..=PIECE_BYTES).contains(&piece.len()), "a piece of {} bytes", piece.len());
        let may = self.file.view("look for a content", |tx| tables::may_grow(tx, content))?;
        assert!(may, "{content:?} is not there, or an object's");
        let last_number = self.file.books.last_number;
        self.file.write("store a piece of a content", |tables| {
            tables.put_piece(content, piece)?;
            tables.put_last_number(last_number)
        })?;
        Ok(Content { pieces: content.pieces + 1, bytes: content.bytes + piece.len() as u64, ..content })
    }

    /// A piece of a content, from 0; `None` when its object is gone, and beyond its last.
    ///
    /// # Errors
    /// The disk's.
    pub fn piece(&mut self, content: Content, piece: u32) -> Result<Option<Vec<u8>>, DatabaseError> {
        self.file.view("read a piece of a content", |tx| tables::piece(tx, content.number, piece))
    }

    /// Deletes the pieces of a content that no object has; nothing happens to another.
    ///
    /// # Errors
    /// The disk's.
    pub fn abandon(&mut self, content: Content) -> Result<(), DatabaseError> {
        self.file.write("delete a content", |tables| tables.remove_loose(content.number))
    }

    /// Bytes that the file has of the disk now. It is sparse, so its length says nothing.
    pub fn file_bytes(&self) -> u64 {
        self.file.file_bytes()
    }
}
