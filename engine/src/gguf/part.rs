//! One file of a model: its bytes, header and metadata. Most models are one part; a split one is several.
//!
//! Invariant: every metadata value was checked; the tensor records, from `records_at` on, are still to be read.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use zllm_kernels::mapped_file::MappedFile;

use super::{
    ALIGNMENT_KEY,
    cursor::Cursor,
    error::{GgufError, GgufErrorKind},
    metadata::{Entries, Metadata},
    tensors::Records,
};

/// Where a file does not say `general.alignment`.
const DEFAULT_ALIGNMENT: u32 = 32;

/// One file.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    source: Source,
    pub(super) version: u32,
    entries: Entries,
    /// Of every tensor's data, in bytes; a power of two.
    pub(super) alignment: u32,
    pub(super) tensor_count: u64,
    records_at: usize,
}

/// What a file's bytes are held by.
#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    Owned(Box<[u8]>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Part {
    /// Maps the file at `path` and reads its header and metadata.
    pub(super) fn open(path: &Path) -> Result<Self, GgufError> {
        let file = MappedFile::open(path).map_err(|e| GgufError::new(path, GgufErrorKind::Open(e)))?;
        Self::read(path, Source::Mapped(file))
    }

    /// As [`Part::open`], for bytes that are in memory already.
    pub(super) fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::read(path, Source::Owned(bytes.into_boxed_slice()))
    }

    /// The whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    pub(super) fn metadata(&self) -> Metadata<'_> {
        Metadata { path: &self.path, bytes: self.bytes(), table: &self.entries }
    }

    /// A cursor at the first tensor record.
    pub(super) fn records(&self) -> Cursor<'_> {
        Cursor::at(self.bytes(), self.records_at)
    }

    /// `kind`, said of this file.
    pub(super) fn error(&self, kind: GgufErrorKind) -> GgufError {
        GgufError::new(&self.path, kind)
    }

    /// Gives back the memory of a range that was copied; reading it again brings it in from the file.
    pub(super) fn give_back(&self, range: Range<usize>) {
        if let Source::Mapped(file) = &self.source {
            file.give_back(range);
        }
    }

    fn read(path: &Path, source: Source) -> Result<Self, GgufError> {
        let named = |kind| GgufError::new(path, kind);
        let mut cursor = Cursor::new(source.bytes());
        let version = read_version(&mut cursor).map_err(named)?;
        let tensor_count = cursor.u64("the tensor count").map_err(named)?;
        let entry_count = cursor.u64("the metadata count").map_err(named)?;
        Records::check_count(&cursor, tensor_count).map_err(named)?;
        let entries = Entries::read(&mut cursor, entry_count).map_err(named)?;
        let records_at = cursor.offset();
        let alignment = alignment(&Metadata { path, bytes: source.bytes(), table: &entries })?;
        Ok(Self { path: path.to_owned(), source, version, entries, alignment, tensor_count, records_at })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufErrorKind> {
    let found = cursor.array("the magic number")?;
    if &found != b"GGUF" {
        return Err(GgufErrorKind::Magic { found });
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        1 => Err(GgufErrorKind::Version1),
        version if (1..=0xffff).contains(&version.swap_bytes()) => Err(GgufErrorKind::BigEndian(version)),
        version => Err(GgufErrorKind::Version(version)),
    }
}

fn alignment(metadata: &Metadata<'_>) -> Result<u32, GgufError> {
    let alignment = metadata.opt_u32(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    match alignment.is_power_of_two() {
        true => Ok(alignment),
        false => Err(metadata.error(GgufErrorKind::Alignment(alignment))),
    }
}
