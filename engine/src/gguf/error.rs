//! What can be wrong with a GGUF file. Every message names the file, then the offset or key, then what would be right.

use std::{io, path::Path};

use super::{limits, value::ValueType};

/// A GGUF file that cannot be used: which file, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", path.display())]
pub struct GgufError {
    /// The file, as it was named by the caller.
    pub path: Box<Path>,
    /// What is wrong with it.
    pub kind: GgufErrorKind,
}

impl GgufError {
    /// `kind`, said of the file at `path`.
    pub fn new(path: &Path, kind: GgufErrorKind) -> Self {
        Self { path: path.into(), kind }
    }
}

/// Why a GGUF file was refused. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages beside the fields say what they are")]
pub enum GgufErrorKind {
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    #[error("not a GGUF file: it begins with {found:02x?}, not with \"GGUF\"")]
    Magic { found: [u8; 4] },
    #[error(
        "a big-endian GGUF file (its version reads as {0:#010x}); convert the model on a little-endian machine"
    )]
    BigEndian(u32),
    #[error(
        "GGUF version 1, whose lengths have 32 bits, is not supported; convert the model again to version 3"
    )]
    Version1,
    #[error("GGUF version {0} is not known; versions 2 and 3 are")]
    Version(u32),
    #[error(
        "at byte {offset}: the file ends inside {what}, which needs {needed} bytes where {left} are left"
    )]
    Truncated { offset: usize, what: &'static str, needed: u64, left: usize },
    #[error("at byte {offset}: {count} {what} do not fit into the {left} bytes that are left")]
    CountDoesNotFit { offset: usize, what: &'static str, count: u64, left: usize },
    #[error("at byte {offset}: {count} {what}, more than the limit of {limit}")]
    TooMany { offset: usize, what: &'static str, count: u64, limit: usize },

    #[error("at byte {offset}: a metadata key of length 0")]
    EmptyKey { offset: usize },
    #[error("at byte {offset}: a {what} of {len} bytes; at most {limit} are allowed")]
    NameTooLong { offset: usize, what: &'static str, len: u64, limit: usize },
    #[error("at byte {offset}: a {what} that is not UTF-8")]
    NameNotUtf8 { offset: usize, what: &'static str },
    #[error("at byte {offset}: the metadata key `{key}` is there for the second time")]
    DuplicateKey { offset: usize, key: String },
    #[error("at byte {offset}: `{key}` has the value type {found}; types 0 to 12 are known")]
    UnknownValueType { offset: usize, key: String, found: u32 },
    #[error(
        "at byte {offset}: `{key}` is an array of arrays, which no model uses and which is not supported"
    )]
    NestedArray { offset: usize, key: String },
    #[error("at byte {offset}: `{key}` is a bool with the byte {found}, neither 0 nor 1")]
    BadBool { offset: usize, key: String, found: u8 },

    #[error("the metadata key `{key}` is missing; it should be {expected}")]
    MissingKey { key: String, expected: &'static str },
    #[error("`{key}` should be {expected}, but is of type {found}")]
    WrongType { key: String, expected: &'static str, found: ValueType },
    #[error("`{key}` should be {expected}, but is an array of {found}")]
    WrongElementType { key: String, expected: &'static str, found: ValueType },
    #[error("`{key}` should be {expected}, but is {found}")]
    OutOfRange { key: String, expected: &'static str, found: i128 },
    #[error("`{key}` is a string that is not UTF-8")]
    StringNotUtf8 { key: String },
    #[error("`{key}` has {found} elements where {expected} are needed")]
    ArrayLength { key: String, found: usize, expected: usize },
    #[error("`general.alignment` is {0}; it should be a power of two")]
    Alignment(u32),

    #[error("this is part {number} of {count} of a split model, which can only be opened from its files")]
    PartAlone { number: u64, count: u64 },
    #[error(
        "this is part {number} of {count} of a split model; open {first_name}, the others are found beside it"
    )]
    NotFirstPart { number: u64, count: u64, first_name: String },
    #[error("a split model of {count} parts; at most {} are supported", limits::MAX_PARTS)]
    TooManyParts { count: u64 },
    #[error(
        "this is part 1 of {count} of a split model, but its name does not end in -00001-of-{count:05}.gguf, by which \
         the other parts are found beside it"
    )]
    PartName { count: u64 },
    #[error("part {number} of {count} of a split model is missing; it should lie beside the first")]
    MissingPart { number: u64, count: u64 },
    #[error("`split.count` says that the model has {found} parts, where the first part says {expected}")]
    PartCount { found: u64, expected: u64 },
    #[error("`split.no` says that this is part {found}, but its name says part {expected}")]
    PartNumber { found: u64, expected: u64 },
    #[error("not a part of the same model as {first}: `{key}` differs")]
    PartOfAnother { key: String, first: String },
    #[error("the parts have {found} tensors, where `split.tensors.count` says {expected}")]
    PartsTensors { found: u64, expected: u64 },

    #[error("at byte {offset}: a tensor without a name")]
    EmptyTensorName { offset: usize },
    #[error("at byte {offset}: the tensor `{name}` is there for the second time")]
    DuplicateTensor { offset: usize, name: String },
    #[error(
        "at byte {offset}: the tensor `{name}` is there for the second time; the part {first} has it too"
    )]
    TensorInTwoParts { offset: usize, name: String, first: String },
    #[error(
        "at byte {offset}: tensor `{name}` has {found} dimensions; 1 to {} are allowed",
        limits::MAX_DIMS
    )]
    DimensionCount { offset: usize, name: String, found: u32 },
    #[error("at byte {offset}: dimension {index} of tensor `{name}` is {found}; it should be 1 to 2^63 - 1")]
    Dimension { offset: usize, name: String, index: usize, found: i64 },
    #[error("tensor `{name}` of shape {shape} is too large: its size overflows")]
    SizeOverflows { name: String, shape: String },
    #[error(
        "tensor `{name}` has rows of {cols} weights, not a whole number of {format} blocks of {block_len}"
    )]
    RaggedRow { name: String, cols: u64, format: &'static str, block_len: usize },
    #[error("at byte {offset}: tensor `{name}` has the type number {found}, which is not known")]
    UnknownTensorType { offset: usize, name: String, found: u32 },
    #[error(
        "at byte {offset}: tensor `{name}` has type {found} ({format}), which was removed from GGUF; quantise the \
         model again from its original"
    )]
    RemovedTensorType { offset: usize, name: String, found: u32, format: &'static str },
    #[error("tensor `{name}` lies at data offset {found}, not a multiple of the alignment {alignment}")]
    Misaligned { name: String, found: u64, alignment: u32 },
    #[error(
        "tensor `{name}` needs {bytes} bytes at data offset {at}, past the end of the file, which has {available} \
         bytes of data: the file is cut short or damaged"
    )]
    PastEnd { name: String, at: u64, bytes: u64, available: usize },
    #[error("the tensors `{first}` and `{second}` share bytes, from data offset {at}")]
    Overlap { first: String, second: String, at: usize },

    #[error("the tensor `{name}` is missing")]
    MissingTensor { name: String },
    #[error(
        "tensor `{name}` is packed as {format}, which cannot be decoded; use a file with one of: {known}"
    )]
    UndecodableFormat { name: String, format: &'static str, known: String },
}
