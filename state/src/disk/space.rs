//! What stored things take of the file, in bytes, and how much may be stored for the file to stay within a budget.
//!
//! The database allocates pages of 4 KiB times a power of two, copies each page that it changes, and can use again what
//! one commit frees only after the next. So a file is larger than what is stored in it, and it never shrinks by itself.
//! All figures here are upper bounds; the churn test of `tests/disk_budget.rs` holds them against the file.

use std::{io, path::Path};

use super::record;
use crate::{BLOCK_TOKENS, Manifest};

/// What a chunk's page has beside it: a mark (8), its key (12), and the page's own fields (8).
const BESIDE_CHUNK: u64 = 28;

/// Lengths of chunks, each of which fills its page exactly. A block takes as many of the first as fit, then of the next:
/// the database's pages are powers of two, and a page for the whole rest would be half empty in bad cases.
const CHUNK_BYTES: [u64; 5] = [
    (256 << 10) - BESIDE_CHUNK,
    (128 << 10) - BESIDE_CHUNK,
    (64 << 10) - BESIDE_CHUNK,
    (32 << 10) - BESIDE_CHUNK,
    (16 << 10) - BESIDE_CHUNK,
];

/// The smallest budget that [`KvDisk::open`](super::KvDisk::open) takes.
pub const SMALLEST_BUDGET_BYTES: u64 = 16 << 20;

/// A transaction holds at most this much, so that little is lost with it and little memory is held for it.
const TRANSACTION_BYTES: u64 = 32 << 20;

const PAGE_BYTES: u64 = 4096;

/// Lengths of a block's chunks, first to last; what is less than the smallest length is the last.
pub(super) fn chunk_lengths(block_bytes: u64) -> impl Iterator<Item = u64> {
    let mut rest = block_bytes;
    std::iter::from_fn(move || {
        let length = CHUNK_BYTES.into_iter().find(|length| *length <= rest).unwrap_or(rest);
        rest -= length;
        (length > 0).then_some(length)
    })
}

/// Chunks of a block.
pub(super) fn chunks(block_bytes: u64) -> u64 {
    block_bytes / CHUNK_BYTES[0] + chunk_lengths(block_bytes % CHUNK_BYTES[0]).count() as u64
}

/// What a block of this size takes of the file at most, with its record and its share of the trees above.
pub fn disk_bytes(block_bytes: u64) -> u64 {
    let pages: u64 = chunk_lengths(block_bytes).map(|length| own_pages(length + BESIDE_CHUNK)).sum();
    let chunks = chunks(block_bytes);
    // A chunk's entry in the page above has 36 bytes, and pages are at least a third full.
    pages + 3 * 36 * chunks + shared_bytes(record::block_record_bytes(BLOCK_TOKENS as u64, chunks))
}

/// What a session's manifest takes of the file at most.
pub fn session_bytes(manifest: &Manifest) -> u64 {
    shared_bytes(record::manifest_record_bytes(manifest))
}

/// How much may be stored, as [`disk_bytes`] and [`session_bytes`] count it, so that the file stays within the budget
/// at every moment.
pub fn usable(budget_bytes: u64) -> u64 {
    // What is being written, what the commit before has freed, and what this one frees; holes that nothing fits into;
    // the trees' copied pages and the allocator's own state.
    budget_bytes.saturating_sub(
        3 * transaction_bytes(budget_bytes) + budget_bytes / 16 + overhead_bytes(budget_bytes),
    )
}

/// The smallest budget with which a block of this size can be stored, also beside a database that was set aside.
pub fn smallest_budget(block_bytes: u64) -> u64 {
    (48 * disk_bytes(block_bytes)).max(SMALLEST_BUDGET_BYTES)
}

/// The most that one transaction adds.
pub(super) fn transaction_bytes(budget_bytes: u64) -> u64 {
    TRANSACTION_BYTES.min(budget_bytes / 32)
}

/// The most that a transaction takes beside what it adds: copies of the pages above, and the allocator's state.
pub(super) fn overhead_bytes(budget_bytes: u64) -> u64 {
    (1 << 20) + budget_bytes / 4096
}

/// Bytes that the file system still has for this user at this path.
///
/// # Errors
/// When the file system does not say.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let figures = nix::sys::statvfs::statvfs(path)?;
    // The widths of both differ from one platform to another.
    #[allow(clippy::useless_conversion)]
    let (blocks, block_bytes) = (u64::from(figures.blocks_available()), u64::from(figures.fragment_size()));
    Ok(blocks.saturating_mul(block_bytes))
}

/// Bytes of the pages that an entry takes alone, with a page's share of the page of seals. One that is smaller than a
/// page may leave a page to itself, or cost its neighbours two.
fn own_pages(entry_bytes: u64) -> u64 {
    let pages = entry_bytes.div_ceil(PAGE_BYTES);
    let pages = if pages == 1 { 3 } else { pages.next_power_of_two() };
    pages * (PAGE_BYTES + 16)
}

/// Bytes of a record's share of its page: pages of several records are at least a third full.
fn shared_bytes(record_bytes: u64) -> u64 {
    let with_key = record_bytes + 32 + 8;
    if with_key < PAGE_BYTES / 2 { 3 * with_key } else { 3 * PAGE_BYTES + own_pages(with_key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fill_their_pages() {
        let lengths = |bytes| chunk_lengths(bytes).collect::<Vec<_>>();
        assert_eq!(lengths(0), []);
        assert_eq!(lengths(1), [1]);
        assert_eq!(lengths(262_116), [262_116]);
        assert_eq!(lengths(262_117), [262_116, 1]);
        // KV of 64 tokens of qwen2.5-coder-0.5b.
        assert_eq!(lengths(830_464), [262_116, 262_116, 262_116, 32_740, 11_376]);
        for bytes in (0..3_000_000).step_by(9_973) {
            assert_eq!(lengths(bytes).iter().sum::<u64>(), bytes);
            assert_eq!(lengths(bytes).len() as u64, chunks(bytes));
            assert!(disk_bytes(bytes) >= bytes && disk_bytes(bytes) < bytes + bytes / 100 + (26 << 10));
        }
        assert_eq!(chunks(u64::MAX), u64::MAX / 262_116 + lengths(u64::MAX % 262_116).len() as u64);
    }
}
