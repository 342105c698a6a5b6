//! GGUF files, version 2 and 3, as memory. The file is not trusted: after [`GgufFile::open`] every metadata value can
//! be decoded, and every tensor lies inside the file, aligned, and apart from the others.
//!
//! Layout (all little-endian): magic, version, tensor count, metadata count, metadata entries, tensor records, padding
//! to `general.alignment`, tensor data. Source: `docs/gguf.md` of ggml.
//!
//! Invariants: nothing is allocated by a count that the file's own size does not bear out; no value is copied before
//! it is asked for; `general.architecture` is there and a string.

mod cursor;
mod error;
pub mod limits;
mod metadata;
mod names;
mod tensors;
mod value;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use zllm_kernels::mapped_file::MappedFile;

use self::{cursor::Cursor, metadata::Entries, tensors::Records};
pub use self::{
    error::{GgufError, GgufErrorKind},
    metadata::{Metadata, PerLayer},
    tensors::{GgmlType, Tensor},
    value::{Array, Value, ValueType},
};

/// The key that says which family a model belongs to.
pub const ARCHITECTURE_KEY: &str = "general.architecture";
/// Where a file does not say `general.alignment`.
const DEFAULT_ALIGNMENT: u32 = 32;

/// An open and checked GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    source: Source,
    version: u32,
    entries: Entries,
    records: Records,
}

/// What the file's bytes are held by.
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

impl GgufFile {
    /// Maps the file at `path` and checks its header, metadata and tensor records. Reads no tensor data.
    ///
    /// # Errors
    /// The file cannot be opened, is no GGUF file of version 2 or 3, has no `general.architecture`, is one part of a
    /// split model, or contradicts itself; the message names the file, the offset or key, and what is wrong.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = MappedFile::open(path).map_err(|e| GgufError::new(path, GgufErrorKind::Open(e)))?;
        Self::parse(path, Source::Mapped(file))
    }

    /// As [`GgufFile::open`], for a file that is already in memory; `path` is what messages call it.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(path, Source::Owned(bytes.into_boxed_slice()))
    }

    /// The file, as it was named when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { path: &self.path, bytes: self.bytes(), table: &self.entries }
    }

    /// `general.architecture`, e.g. `llama`.
    pub fn architecture(&self) -> &str {
        self.metadata().require_str(ARCHITECTURE_KEY).expect("checked when the file was opened")
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        Tensor::all(self)
    }

    /// The tensor of this name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        Tensor::find(self, name)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn require_tensor(&self, name: &str) -> Result<Tensor<'_>, GgufError> {
        self.tensor(name).ok_or_else(|| self.error(GgufErrorKind::MissingTensor { name: name.to_owned() }))
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    /// Gives back the memory of a range that was copied; reading it again brings it in from the file.
    pub fn give_back(&self, range: Range<usize>) {
        if let Source::Mapped(file) = &self.source {
            file.give_back(range);
        }
    }

    /// `kind`, said of this file.
    pub fn error(&self, kind: GgufErrorKind) -> GgufError {
        GgufError::new(&self.path, kind)
    }

    fn parse(path: &Path, source: Source) -> Result<Self, GgufError> {
        let named = |kind| GgufError::new(path, kind);
        let mut cursor = Cursor::new(source.bytes());
        let version = read_version(&mut cursor).map_err(named)?;
        let tensor_count = cursor.u64("the tensor count").map_err(named)?;
        let entry_count = cursor.u64("the metadata count").map_err(named)?;
        Records::check_count(&cursor, tensor_count).map_err(named)?;
        let entries = Entries::read(&mut cursor, entry_count).map_err(named)?;

        let metadata = Metadata { path, bytes: source.bytes(), table: &entries };
        metadata.require_str(ARCHITECTURE_KEY)?;
        refuse_split(&metadata)?;
        let alignment = alignment(&metadata)?;
        let records = Records::read(&mut cursor, tensor_count, alignment).map_err(named)?;
        Ok(Self { path: path.to_owned(), version, entries, records, source })
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

fn refuse_split(metadata: &Metadata<'_>) -> Result<(), GgufError> {
    let count = metadata.opt_u64("split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(());
    }
    let number = metadata.opt_u64("split.no")?.unwrap_or(0).saturating_add(1);
    Err(metadata.error(GgufErrorKind::Split { number, count }))
}

fn alignment(metadata: &Metadata<'_>) -> Result<u32, GgufError> {
    let alignment = metadata.opt_u32("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    match alignment.is_power_of_two() {
        true => Ok(alignment),
        false => Err(metadata.error(GgufErrorKind::Alignment(alignment))),
    }
}
