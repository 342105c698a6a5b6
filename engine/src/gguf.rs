//! GGUF files, version 2 and 3, as memory. The file is not trusted: after [`GgufFile::open`] every metadata value can
//! be decoded, and every tensor lies inside its file, aligned, and apart from the others.
//!
//! Layout (all little-endian): magic, version, tensor count, metadata count, metadata entries, tensor records, padding
//! to `general.alignment`, tensor data. Source: `docs/gguf.md` of ggml. A model is one file, or several parts
//! (`split.rs`) that are read as if they were one.
//!
//! Invariants: nothing is allocated by a count that the file's own size does not bear out; no value is copied before
//! it is asked for; `general.architecture` is there and a string.

mod cursor;
mod error;
pub mod limits;
mod metadata;
mod names;
mod part;
mod split;
mod tensors;
mod value;

use std::path::Path;

pub use self::{
    error::{GgufError, GgufErrorKind},
    metadata::{Metadata, PerLayer},
    split::{SplitName, part_paths},
    tensors::{GgmlType, Tensor},
    value::{Array, Value, ValueType},
};
use self::{part::Part, tensors::Records};

/// The key that says which family a model belongs to.
pub const ARCHITECTURE_KEY: &str = "general.architecture";
/// The key of the tensors' alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// An open and checked model file, with all its parts if it is a split one.
#[derive(Debug)]
pub struct GgufFile {
    /// At least one. The first has the metadata.
    parts: Vec<Part>,
    records: Records,
}

impl GgufFile {
    /// Maps the file at `path` and checks its header, metadata and tensor records. Reads no tensor data. If it is the
    /// first part of a split model, the others are opened too; they lie beside it.
    ///
    /// # Errors
    /// The file cannot be opened, is no GGUF file of version 2 or 3, has no `general.architecture`, contradicts itself,
    /// or is a part of a split model that is not the first, or whose other parts are missing or do not belong to it;
    /// the message names the file, the offset or key, and what is wrong.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::assemble(split::complete(Part::open(path)?)?)
    }

    /// As [`GgufFile::open`], for a file that is already in memory; `path` is what messages call it.
    ///
    /// # Errors
    /// As [`GgufFile::open`]; and the file is a part of a split model.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        let part = Part::from_bytes(path, bytes)?;
        split::refuse(&part)?;
        Self::assemble(vec![part])
    }

    /// The file, or the first part, as it was named when it was opened.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// All files of the model, in order; one unless it is split.
    pub fn part_paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|part| &*part.path)
    }

    /// Bytes of all files together.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes().len() as u64).sum()
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.parts[0].version
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        self.parts[0].metadata()
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

    /// What each part has before its tensors' data: its metadata and records, whole. For fingerprints.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.records.data_starts(&self.parts);
        self.parts.iter().zip(ends).map(|(part, end)| &part.bytes()[..end])
    }

    /// `kind`, said of this file.
    pub fn error(&self, kind: GgufErrorKind) -> GgufError {
        self.parts[0].error(kind)
    }

    fn assemble(parts: Vec<Part>) -> Result<Self, GgufError> {
        parts[0].metadata().require_str(ARCHITECTURE_KEY)?;
        let records = Records::read(&parts)?;
        Ok(Self { parts, records })
    }
}
