//! What is known of the objects without a look at the disk.

use redb::{Database, ReadableDatabase, WriteTransaction};

use super::kept::Kept;
use super::tables::{self, ObjectTables};
use crate::database::{self, Books, Layout, Words};

#[derive(Default)]
pub(super) struct ObjectBooks {
    pub(super) kept: Kept,
    /// The highest number that an object or a content ever had.
    pub(super) last_number: u64,
}

impl Books for ObjectBooks {
    const LAYOUT: &'static Layout =
        &Layout { file: "objects.redb", cache_bytes: 16 << 20, format: 1, begin: ObjectTables::begin };
    const WORDS: Words =
        Words { records: "objects", reading: "read the objects", without: "without objects" };
    type Tables<'tx> = ObjectTables<'tx>;

    fn tables(tx: &WriteTransaction) -> Result<ObjectTables<'_>, redb::Error> {
        ObjectTables::open(tx)
    }

    fn read(&mut self, database: &Database) -> Result<(), redb::Error> {
        let tx = database.begin_read()?;
        let heads = tables::heads(&tx)?;
        tables::check_counts(&tx, heads.len() as u64)?;
        let highest = heads.last().map_or(0, |head| head.number);
        // A content that has no piece yet has its number in memory alone.
        self.last_number = self.last_number.max(highest).max(database::last_number(&tx)?);
        self.kept = Kept::default();
        heads.iter().for_each(|head| self.kept.insert(head));
        Ok(())
    }
}
