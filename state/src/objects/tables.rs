//! The tables of the database, and what an object is in them.

use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};

use super::object::{Content, Head, Object, ObjectName, ObjectOrder};
use super::record::{self, NameKey};
use crate::database::{META, META_LAST};

type Bytes = &'static [u8];

// All keys have fixed widths: any bytes in a damaged page are a key, and the checksums find them wrong.
/// By the object's number, as values are.
const HEADS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("heads");
const VALUES: TableDefinition<'_, u64, Bytes> = TableDefinition::new("values");
/// A name leads to its object's number.
const NAMES: TableDefinition<'_, NameKey, u64> = TableDefinition::new("names");
/// The objects of a kind and tenant, in the order of their numbers.
const LISTS: TableDefinition<'_, (NameKey, u64), ()> = TableDefinition::new("lists");
/// By the content's number and the piece's place in it.
const PIECES: TableDefinition<'_, (u64, u32), Bytes> = TableDefinition::new("pieces");
/// Contents with pieces that no object has.
const LOOSE: TableDefinition<'_, u64, ()> = TableDefinition::new("loose");

/// The tables, open for writing.
pub(super) struct ObjectTables<'tx> {
    meta: Table<'tx, u32, u64>,
    heads: Table<'tx, u64, Bytes>,
    values: Table<'tx, u64, Bytes>,
    names: Table<'tx, NameKey, u64>,
    lists: Table<'tx, (NameKey, u64), ()>,
    pieces: Table<'tx, (u64, u32), Bytes>,
    loose: Table<'tx, u64, ()>,
}

impl<'tx> ObjectTables<'tx> {
    pub(super) fn open(tx: &'tx WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            meta: tx.open_table(META)?,
            heads: tx.open_table(HEADS)?,
            values: tx.open_table(VALUES)?,
            names: tx.open_table(NAMES)?,
            lists: tx.open_table(LISTS)?,
            pieces: tx.open_table(PIECES)?,
            loose: tx.open_table(LOOSE)?,
        })
    }

    /// Writes what a new database has.
    pub(super) fn begin(tx: &WriteTransaction) -> Result<(), redb::Error> {
        ObjectTables::open(tx)?.put_last_number(0)
    }

    pub(super) fn put_last_number(&mut self, number: u64) -> Result<(), redb::Error> {
        self.meta.insert(META_LAST, number)?;
        Ok(())
    }

    /// The head of the object of this name, if there is one.
    pub(super) fn head_of(&self, name: &ObjectName) -> Result<Option<Head>, redb::Error> {
        let number = self.names.get(record::key_of_name(name))?.map(|number| number.value());
        number.map(|number| head(&self.heads, number)).transpose()
    }

    /// Puts an object, in place of the one that it was before.
    pub(super) fn put(
        &mut self,
        head: &Head,
        value: &[u8],
        before: Option<&Head>,
    ) -> Result<(), redb::Error> {
        let number = head.number;
        let old = before.and_then(|before| before.content);
        if head.content != old {
            self.own(head)?;
            old.map(|old| self.remove_pieces(old.number)).transpose()?;
        }
        self.heads.insert(number, record::encode_head(head).as_slice())?;
        self.values.insert(number, record::encode_value(number, value).as_slice())?;
        if before.is_none() {
            self.names.insert(record::key_of_name(&head.name), number)?;
            self.lists.insert((key_of_list(head), number), ())?;
        }
        Ok(())
    }

    /// Makes a loose content that of an object.
    fn own(&mut self, head: &Head) -> Result<(), redb::Error> {
        head.content.map(|content| self.loose.remove(content.number)).transpose()?;
        Ok(())
    }

    /// Deletes objects that are there, with their contents.
    pub(super) fn remove_all(&mut self, numbers: &[u64]) -> Result<(), redb::Error> {
        for &number in numbers {
            let head = head(&self.heads, number)?;
            self.heads.remove(number)?;
            self.values.remove(number)?;
            self.names.remove(record::key_of_name(&head.name))?;
            self.lists.remove((key_of_list(&head), number))?;
            head.content.map(|content| self.remove_pieces(content.number)).transpose()?;
        }
        Ok(())
    }

    /// Puts the next piece of a loose content.
    pub(super) fn put_piece(&mut self, content: Content, piece: &[u8]) -> Result<(), redb::Error> {
        let Content { number, pieces, .. } = content;
        self.loose.insert(number, ())?;
        self.pieces.insert((number, pieces), record::encode_piece(number, pieces, piece).as_slice())?;
        Ok(())
    }

    /// Deletes a content, if it is loose.
    pub(super) fn remove_loose(&mut self, content: u64) -> Result<(), redb::Error> {
        let was_loose = self.loose.remove(content)?.is_some();
        if was_loose { self.remove_pieces(content) } else { Ok(()) }
    }

    fn remove_pieces(&mut self, content: u64) -> Result<(), redb::Error> {
        Ok(self.pieces.retain_in((content, 0)..=(content, u32::MAX), |_, _| false)?)
    }
}

fn key_of_list(head: &Head) -> NameKey {
    record::key_of_list(&head.name.kind, &head.name.tenant)
}

/// A record that is not as it should be makes the whole file unusable: nobody guesses about what clients put down.
fn damaged(number: u64, what: &str, why: &str) -> redb::Error {
    redb::Error::Corrupted(format!("{what} of object {number} has {why}"))
}

/// The head of an object that is there.
fn head(heads: &impl ReadableTable<u64, Bytes>, number: u64) -> Result<Head, redb::Error> {
    let found = heads.get(number)?.ok_or_else(|| damaged(number, "the record", "no head"))?;
    decode(number, found.value())
}

fn decode(number: u64, bytes: &[u8]) -> Result<Head, redb::Error> {
    record::decode_head(number, bytes).map_err(|why| damaged(number, "the head", why))
}

/// All heads, the oldest first.
pub(super) fn heads(tx: &ReadTransaction) -> Result<Vec<Head>, redb::Error> {
    let entries = tx.open_table(HEADS)?.range::<u64>(..)?;
    entries
        .map(|entry| {
            let (number, bytes) = entry?;
            decode(number.value(), bytes.value())
        })
        .collect()
}

/// The number of the object of this name, if there is one.
pub(super) fn find(tx: &ReadTransaction, name: &ObjectName) -> Result<Option<u64>, redb::Error> {
    Ok(tx.open_table(NAMES)?.get(record::key_of_name(name))?.map(|number| number.value()))
}

/// Whether an object that is about to be put may have its content: it is its own already, or loose.
pub(super) fn may_have(tx: &ReadTransaction, object: &Object) -> Result<bool, redb::Error> {
    let Some(content) = object.content else { return Ok(true) };
    if content.pieces == 0 || tx.open_table(LOOSE)?.get(content.number)?.is_some() {
        return Ok(true);
    }
    let before = find(tx, &object.name)?.map(|number| head(&tx.open_table(HEADS)?, number)).transpose()?;
    Ok(before.is_some_and(|before| before.content == object.content))
}

/// Whether a piece may be appended to a content: it has none yet, or is loose.
pub(super) fn may_grow(tx: &ReadTransaction, content: Content) -> Result<bool, redb::Error> {
    Ok(content.pieces == 0 || tx.open_table(LOOSE)?.get(content.number)?.is_some())
}

/// The object of this number, which is there.
pub(super) fn object(tx: &ReadTransaction, number: u64) -> Result<Object, redb::Error> {
    let head = head(&tx.open_table(HEADS)?, number)?;
    let found = tx.open_table(VALUES)?.get(number)?;
    let bytes = found.ok_or_else(|| damaged(number, "the record", "no value"))?;
    let value = record::decode_value(&head, bytes.value());
    value.map(|value| head.with(value)).map_err(|why| damaged(number, "the value", why))
}

/// Numbers of at most `limit` objects of a kind and tenant, those behind the object of the number `after`.
pub(super) fn numbers(
    tx: &ReadTransaction,
    kind: &str,
    tenant: &str,
    after: Option<u64>,
    limit: usize,
    order: ObjectOrder,
) -> Result<Vec<u64>, redb::Error> {
    let (list, lists) = (record::key_of_list(kind, tenant), tx.open_table(LISTS)?);
    let number = |entry: Result<(redb::AccessGuard<'_, (NameKey, u64)>, _), redb::StorageError>| {
        entry.map(|(key, _): (_, redb::AccessGuard<'_, ()>)| key.value().1).map_err(redb::Error::from)
    };
    match order {
        ObjectOrder::OldestFirst => {
            let from = after.map_or(0, |after| after + 1);
            lists.range((list, from)..=(list, u64::MAX))?.take(limit).map(number).collect()
        }
        ObjectOrder::NewestFirst => {
            let end = after.unwrap_or(u64::MAX);
            lists.range((list, 0)..(list, end))?.rev().take(limit).map(number).collect()
        }
    }
}

/// A piece of a content, if it is there.
pub(super) fn piece(tx: &ReadTransaction, content: u64, index: u32) -> Result<Option<Vec<u8>>, redb::Error> {
    let found = tx.open_table(PIECES)?.get((content, index))?;
    let piece = found.map(|bytes| record::decode_piece(content, index, bytes.value())).transpose();
    piece.map_err(|why| redb::Error::Corrupted(format!("piece {index} of content {content} has {why}")))
}

/// Numbers of the contents that no object has.
pub(super) fn loose(tx: &ReadTransaction) -> Result<Vec<u64>, redb::Error> {
    tx.open_table(LOOSE)?.range::<u64>(..)?.map(|entry| Ok(entry?.0.value())).collect()
}

/// Whether the tables beside the heads have as many entries as there are objects.
pub(super) fn check_counts(tx: &ReadTransaction, objects: u64) -> Result<(), redb::Error> {
    let counts = [
        ("values", tx.open_table(VALUES)?.len()?),
        ("names", tx.open_table(NAMES)?.len()?),
        ("places in lists", tx.open_table(LISTS)?.len()?),
    ];
    for (what, found) in counts {
        if found != objects {
            return Err(redb::Error::Corrupted(format!("it has {found} {what}, and {objects} objects")));
        }
    }
    Ok(())
}
