//! The file below the database: each page has a checksum beside it, so that the database never sees a byte that it did
//! not write.
//!
//! The database trusts its pages. Trials with changed bytes in pages of its trees ended in wrong lookups, in panics, in
//! panics while unwinding, which abort the process, and in endless loops. Here a changed page is an error of the read.
//!
//! Layout: page 0 is the database's header (320 bytes) and its seal. Then groups of 257 pages: a page of 256 seals, and
//! the 256 pages that they belong to. A read or write covers one page of the database, which is a power of two of file
//! pages and has one seal, at its first page's place. It covers the whole page, or, where that holds a chunk of a block,
//! its head: a chunk has a checksum of its own, and damage in it shall cost a block and not the store.
//!
//! Power cuts: a page and its seal are written by the same call and synced by the same sync, and no page is read before
//! the header names it, which is after that sync (all commits are in two phases). The header and its seal are in one
//! sector.

use std::io;
use std::ops::Bound;

use redb::{BackendError, StorageBackend};

/// First bytes of each chunk, by which its page is known for one.
pub(crate) const CHUNK_MARK: [u8; 8] = *b"zllmkv 1";

const PAGE: u64 = 4096;
const HEADER_BYTES: usize = 320;
const SEAL_BYTES: usize = 16;
const GROUP: u64 = PAGE / SEAL_BYTES as u64;
/// What is sealed of a chunk's page: the database's own fields, the key, and a bit of the chunk.
const HEAD_BYTES: usize = 512;

/// A backend whose pages are sealed.
#[derive(Debug)]
pub(super) struct Sealed<B>(pub(super) B);

impl<B: StorageBackend> Sealed<B> {
    /// The parts of a range of pages that lie together in the file: offset there, and length.
    fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize)> {
        let (mut page, end) = (offset / PAGE, (offset + length as u64) / PAGE);
        std::iter::from_fn(move || {
            let first = (page < end).then_some(page)?;
            page = end.min((first - 1) / GROUP * GROUP + GROUP + 1);
            Some((place(first), ((page - first) * PAGE) as usize))
        })
    }

    fn read_sealed(&self, offset: u64, seal_offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut sealed = [0; SEAL_BYTES];
        self.0.read(seal_offset, &mut sealed)?;
        if sealed == seal(offset, out) {
            return Ok(());
        }
        let message = format!("page {} has other bytes than were written", offset / PAGE);
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

/// Where a page of the database, not the header, is in the file.
fn place(page: u64) -> u64 {
    let index = page - 1;
    (1 + index / GROUP * (GROUP + 1) + 1 + index % GROUP) * PAGE
}

/// Where the seal of a page of the database, not the header, is in the file.
fn seal_place(page: u64) -> u64 {
    let index = page - 1;
    (1 + index / GROUP * (GROUP + 1)) * PAGE + index % GROUP * SEAL_BYTES as u64
}

/// Length of the file for this length of the database.
fn file_length(length: u64) -> u64 {
    let pages = length.div_ceil(PAGE);
    if pages < 2 { pages * PAGE } else { place(pages - 1) + PAGE }
}

/// Length of the database in a file of this length.
fn database_length(file_length: u64) -> u64 {
    let pages = file_length / PAGE;
    let Some(rest) = pages.checked_sub(1) else { return 0 };
    let (groups, rest) = (rest / (GROUP + 1), rest % (GROUP + 1));
    (1 + groups * GROUP + rest.saturating_sub(1)) * PAGE
}

/// Seal of a page's bytes. Its place and length are hashed along: a page is none elsewhere, nor are its parts.
fn seal(offset: u64, bytes: &[u8]) -> [u8; SEAL_BYTES] {
    let covered = if holds_chunk(bytes) { &bytes[..HEAD_BYTES] } else { bytes };
    let mut hash = blake3::Hasher::new();
    hash.update(&offset.to_le_bytes()).update(&(bytes.len() as u64).to_le_bytes()).update(covered);
    *hash.finalize().as_bytes().first_chunk().expect("a hash is twice as long")
}

/// Whether a page is larger than one of the file and begins with a chunk: behind 4 bytes of the database, of which the
/// last two count the entries, and for each entry 4 bytes of length and 12 of key.
fn holds_chunk(page: &[u8]) -> bool {
    let first_value = 4 + 16 * usize::from(u16::from_le_bytes([page[2], page[3]]));
    page.len() > PAGE as usize
        && first_value + CHUNK_MARK.len() <= HEAD_BYTES
        && page[first_value..].starts_with(&CHUNK_MARK)
}

impl<B: StorageBackend> StorageBackend for Sealed<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(database_length(self.0.len()?))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() <= HEADER_BYTES {
            let mut header = [0; HEADER_BYTES];
            self.0.read(0, &mut header)?;
            self.read_sealed(0, HEADER_BYTES as u64, &mut header)?;
            out.copy_from_slice(&header[..out.len()]);
            return Ok(());
        }
        whole_pages(offset, out.len())?;
        let mut rest = &mut *out;
        for (at, length) in Self::parts(offset, rest.len()) {
            let (part, others) = rest.split_at_mut(length);
            self.0.read(at, part)?;
            rest = others;
        }
        self.read_sealed(offset, seal_place(offset / PAGE), out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(file_length(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset == 0 && data.len() == HEADER_BYTES {
            return self.0.write(0, &[data, &seal(0, data)].concat());
        }
        whole_pages(offset, data.len())?;
        let mut rest = data;
        for (at, length) in Self::parts(offset, rest.len()) {
            let (part, others) = rest.split_at(length);
            self.0.write(at, part)?;
            rest = others;
        }
        self.0.write(seal_place(offset / PAGE), &seal(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}

/// Refuses what is not a range of pages behind the header: only a damaged header could make the database ask for it.
fn whole_pages(offset: u64, length: usize) -> io::Result<()> {
    let whole =
        offset > 0 && length > 0 && offset.is_multiple_of(PAGE) && (length as u64).is_multiple_of(PAGE);
    if whole {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "a range that is not of whole pages"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_seals_have_places_of_their_own() {
        let mut taken = std::collections::HashSet::new();
        for page in 1..2000 {
            assert!(taken.insert(place(page)));
            assert!(seal_place(page) / PAGE * PAGE < place(page), "the seals are before their group");
            assert_eq!(database_length(file_length((page + 1) * PAGE)), (page + 1) * PAGE);
        }
        assert!((1..2000).all(|page| !taken.contains(&(seal_place(page) / PAGE * PAGE))));
        assert_eq!([0, 1, 4096].map(file_length), [0, 4096, 4096]);
        assert_eq!([0, 4095, 4096, 8192, 12288].map(database_length), [0, 0, 4096, 4096, 8192]);
    }

    #[test]
    fn a_range_over_groups_is_read_in_parts() {
        let parts: Vec<_> =
            Sealed::<redb::backends::InMemoryBackend>::parts(250 * PAGE, 520 * PAGE as usize).collect();
        let pages: Vec<_> = parts.iter().map(|(at, length)| (at / PAGE, *length as u64 / PAGE)).collect();
        assert_eq!(pages, [(251, 7), (259, 256), (516, 256), (773, 1)]);
    }

    #[test]
    fn a_change_in_a_page_its_place_or_its_seal_is_found() {
        let file = redb::backends::InMemoryBackend::new();
        let sealed = Sealed(file);
        sealed.set_len(40 * PAGE).unwrap();
        let page: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
        let mut chunk = page.clone();
        chunk[..4].copy_from_slice(&[1, 0, 1, 0]);
        chunk[20..28].copy_from_slice(&CHUNK_MARK);
        let mut read = vec![0; 8192];
        for (bytes, whole) in [(&page, true), (&chunk, false)] {
            for at in [0, 511, 512, 5000] {
                sealed.write(2 * PAGE, bytes).unwrap();
                sealed.read(2 * PAGE, &mut read).unwrap();
                assert_eq!(read, *bytes);
                sealed.0.write(place(2) + at, &[bytes[at as usize] ^ 1]).unwrap();
                assert_eq!(sealed.read(2 * PAGE, &mut read).is_err(), whole || at < 512, "byte {at}");
            }
            sealed.write(2 * PAGE, bytes).unwrap();
            assert!(sealed.read(2 * PAGE, &mut read[..4096]).is_err(), "half of a page is no page");
            sealed.0.write(seal_place(2), &[0]).unwrap();
            assert!(sealed.read(2 * PAGE, &mut read).is_err());
        }
        sealed.write(0, &page[..HEADER_BYTES]).unwrap();
        sealed.read(0, &mut read[..9]).unwrap();
        assert_eq!(read[..9], page[..9]);
        sealed.0.write(300, &[7]).unwrap();
        assert_eq!(sealed.read(0, &mut read[..9]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
