//! The tables of the database, and what a block is in them: a record, and its bytes cut into chunks.

use std::collections::HashSet;

use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::ReadError;
use super::record::{self, BlockRecord, StoredBlock, chunk_checksum};
use super::space;
use crate::BlockKey;
use crate::database::CHUNK_MARK;

// All keys have fixed widths: any bytes in a damaged page are a key, and the checksums find them wrong.
pub(super) const BLOCKS: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("blocks");
/// By the block's number and the chunk's place in it. Numbers rise and are never used again: chunks are appended, which
/// keeps the tree full, and none can pass for another block's.
pub(super) const CHUNKS: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("chunks");
pub(super) const SESSIONS: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("sessions");

/// The tables of blocks, open for writing.
pub(super) struct BlockTables<'tx> {
    blocks: Table<'tx, [u8; 32], &'static [u8]>,
    chunks: Table<'tx, (u64, u32), &'static [u8]>,
}

impl<'tx> BlockTables<'tx> {
    pub(super) fn open(tx: &'tx WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self { blocks: tx.open_table(BLOCKS)?, chunks: tx.open_table(CHUNKS)? })
    }

    /// Stores a block under this number, in place of what its key named before.
    pub(super) fn insert(
        &mut self,
        block: &StoredBlock,
        bytes: &[u8],
        number: u64,
    ) -> Result<(), redb::Error> {
        assert_eq!(block.bytes, bytes.len() as u64, "the record says how many bytes there are");
        self.remove(&block.key)?;
        let (mut checksums, mut rest) = (Vec::new(), bytes);
        for (chunk, length) in (0u32..).zip(space::chunk_lengths(block.bytes)) {
            let (bytes, others) = rest.split_at(length as usize);
            rest = others;
            checksums.push(chunk_checksum(&block.key, chunk, bytes));
            let mut value = self.chunks.insert_reserve((number, chunk), CHUNK_MARK.len() + bytes.len())?;
            let (mark, payload) = value.as_mut().split_at_mut(CHUNK_MARK.len());
            mark.copy_from_slice(&CHUNK_MARK);
            payload.copy_from_slice(bytes);
        }
        let record = BlockRecord { block: block.clone(), number, checksums };
        self.blocks.insert(block.key.as_bytes(), record::encode_block(&record).as_slice())?;
        Ok(())
    }

    /// Deletes a block; what it took of the file, 0 if it is not there.
    pub(super) fn remove(&mut self, key: &BlockKey) -> Result<u64, redb::Error> {
        let Some(removed) = self.blocks.remove(key.as_bytes())? else { return Ok(0) };
        let record = record::decode_block(*key.as_bytes(), removed.value());
        drop(removed);
        match record {
            Ok(record) => {
                self.remove_chunks(record.number)?;
                Ok(space::disk_bytes(record.block.bytes))
            }
            // Only a readable record says which chunks were its own.
            Err(_) => {
                self.remove_orphans()?;
                Ok(0)
            }
        }
    }

    fn remove_chunks(&mut self, number: u64) -> Result<(), redb::Error> {
        Ok(self.chunks.retain_in((number, 0)..=(number, u32::MAX), |_, _| false)?)
    }

    /// Deletes the chunks that no record knows. Reads a page of each block.
    fn remove_orphans(&mut self) -> Result<(), redb::Error> {
        let known = record_numbers(&self.blocks)?;
        let mut from = Some(0);
        while let Some(number) = from.map(|from| next_number_from(&self.chunks, from)).transpose()?.flatten()
        {
            if !known.contains(&number) {
                self.remove_chunks(number)?;
            }
            from = number.checked_add(1);
        }
        Ok(())
    }
}

/// Numbers of all blocks whose records are readable.
pub(super) fn record_numbers(
    blocks: &impl ReadableTable<[u8; 32], &'static [u8]>,
) -> Result<HashSet<u64>, redb::Error> {
    let mut numbers = HashSet::new();
    for entry in blocks.iter()? {
        let (key, value) = entry?;
        numbers.extend(record::decode_block(key.value(), value.value()).map(|record| record.number));
    }
    Ok(numbers)
}

/// The lowest number, `from` or higher, that chunks have.
pub(super) fn next_number_from(
    chunks: &impl ReadableTable<(u64, u32), &'static [u8]>,
    from: u64,
) -> Result<Option<u64>, redb::Error> {
    Ok(chunks.range((from, 0)..)?.next().transpose()?.map(|(key, _)| key.value().0))
}

/// The bytes of a block, each chunk compared with its checksum.
pub(super) fn read_block(
    tx: &ReadTransaction,
    key: &BlockKey,
) -> Result<Result<Vec<u8>, ReadError>, redb::Error> {
    let Some(found) = tx.open_table(BLOCKS)?.get(key.as_bytes())? else { return Ok(Err(ReadError::Missing)) };
    let record = match record::decode_block(*key.as_bytes(), found.value()) {
        Ok(record) => record,
        Err(why) => return Ok(Err(ReadError::Damaged(why))),
    };
    let chunks = tx.open_table(CHUNKS)?;
    // The number of checksums, which are in memory, bounds this.
    let mut bytes = Vec::with_capacity(record.block.bytes as usize);
    for (chunk, checksum) in (0u32..).zip(&record.checksums) {
        let Some(found) = chunks.get((record.number, chunk))? else {
            return Ok(Err(ReadError::Damaged("a chunk less than its record says")));
        };
        let payload = found.value().strip_prefix(&CHUNK_MARK);
        let Some(payload) = payload.filter(|payload| chunk_checksum(key, chunk, payload) == *checksum) else {
            return Ok(Err(ReadError::Damaged("a chunk with another checksum than its bytes have")));
        };
        bytes.extend_from_slice(payload);
    }
    match bytes.len() as u64 == record.block.bytes {
        true => Ok(Ok(bytes)),
        false => Ok(Err(ReadError::Damaged("chunks of another length than its record says"))),
    }
}
