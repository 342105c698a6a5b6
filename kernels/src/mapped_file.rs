//! A read-only file as memory. The one place that maps files; every other crate sees a byte slice.

use std::{fs::File, io, ops::Range, path::Path};

use memmap2::{Mmap, UncheckedAdvice};

/// A whole file, mapped read-only and shared with the page cache.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps `path`.
    ///
    /// # Errors
    /// What opening or mapping gave. An empty file maps to an empty slice.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Asked before it is opened: opening a pipe would wait for somebody who writes into it.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is private to this value and read-only. Another process that truncates the file while it
        // is mapped can still raise SIGBUS; model files are replaced by rename, never rewritten in place.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(map))
    }

    /// Gives the pages of `range` back after they were copied; a later read brings them in again from the file.
    pub fn give_back(&self, range: Range<usize>) {
        if range.end > self.0.len() || range.is_empty() {
            return;
        }
        // SAFETY: the mapping is file-backed and read-only, so dropped pages are read again from the file: no byte that
        // a reader can see changes.
        let _ = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
    }
}

impl std::ops::Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
