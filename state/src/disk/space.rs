//! What stored things take of the file, in bytes, and how much may be stored for the file to stay within a budget.
//!
//! The database allocates pages of 4 KiB times a power of two, copies each page that it changes, and can use again what
//! one commit frees only after the next. So a file is larger than what is stored in it, and it never shrinks by itself.
//! All figures here are upper bounds; the churn test of `tests/disk_budget.rs` holds them against the file.

use std::{io, path::Path};

use super::record;
use crate::{BLOCK_TOKENS, Manifest};

/// Bytes of a chunk: with its mark (8), its key (12) and the page's own fields (8) it fills 64 pages exactly.
pub(super) const CHUNK_BYTES: usize = 256 * 1024 - 28;

/// The smallest budget that [`KvDisk::open`](super::KvDisk::open) takes.
pub const SMALLEST_BUDGET_BYTES: u64 = 16 << 20;

/// A transaction holds at most this much, so that little is lost with it and little memory is held for it.
const TRANSACTION_BYTES: u64 = 32 << 20;

const PAGE_BYTES: u64 = 4096;

/// Chunks of a block.
pub(super) fn chunks(block_bytes: u64) -> u64 {
    block_bytes.div_ceil(CHUNK_BYTES as u64)
}

/// What a block of this size takes of the file at most, with its record and its share of the trees above.
pub fn disk_bytes(block_bytes: u64) -> u64 {
    let (whole, rest) = (block_bytes / CHUNK_BYTES as u64, block_bytes % CHUNK_BYTES as u64);
    let payload = whole * chunk_bytes(CHUNK_BYTES as u64) + if rest > 0 { chunk_bytes(rest) } else { 0 };
    let chunks = chunks(block_bytes);
    // A chunk's entry in the page above has 36 bytes, and pages are at least a third full.
    payload + 3 * 36 * chunks + shared_bytes(record::block_record_bytes(BLOCK_TOKENS as u64, chunks))
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

/// Bytes of the pages that a chunk takes.
fn chunk_bytes(bytes: u64) -> u64 {
    own_pages(bytes + 28)
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
