//! The table of numbers that each database has: its format, and the highest number of its records.

use redb::{ReadTransaction, TableDefinition};

use super::file::Layout;

pub(crate) const META: TableDefinition<'_, u32, u64> = TableDefinition::new("meta");
/// Key of the format's number.
pub(crate) const META_FORMAT: u32 = 0;
/// Key of the highest number that a record ever had, so that those of deleted ones are not given again.
pub(crate) const META_LAST: u32 = 1;

/// Whether the database is of the format that this build reads.
pub(crate) fn check_format(tx: &ReadTransaction, layout: &Layout) -> Result<(), redb::Error> {
    let (found, format) = (meta(tx, META_FORMAT)?, layout.format);
    if found == Some(format) {
        return Ok(());
    }
    let found = found.map_or("no format number".to_owned(), |found| format!("format {found}"));
    Err(redb::Error::Corrupted(format!("it has {found}, and this zllm reads format {format}")))
}

/// The highest number that a record ever had, 0 if there was none.
pub(crate) fn last_number(tx: &ReadTransaction) -> Result<u64, redb::Error> {
    Ok(meta(tx, META_LAST)?.unwrap_or(0))
}

fn meta(tx: &ReadTransaction, key: u32) -> Result<Option<u64>, redb::Error> {
    Ok(tx.open_table(META)?.get(key)?.map(|value| value.value()))
}
