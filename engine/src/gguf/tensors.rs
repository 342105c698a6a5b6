//! Tensor records: name, shape, type and place, checked so that every tensor lies inside the file and shares no byte
//! with another one.
//!
//! Source of the type numbers and sizes: the GGUF specification and `ggml.h` / `ggml-common.h` of ggml (facts only).

use std::ops::Range;

use zllm_kernels::blocks::BlockFormat;

use super::{
    GgufFile,
    cursor::Cursor,
    error::{GgufError, GgufErrorKind},
    limits,
    names::{NameIndex, Twice},
    part::Part,
};

/// A type that GGUF knows: how many weights a block has, in how many bytes. Not all of them can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlType {
    /// The number in the file.
    pub number: u32,
    /// The name that users know.
    pub name: &'static str,
    /// Weights in a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
}

impl GgmlType {
    /// The type of number `number`, or why there is none.
    fn from_number(number: u32) -> Result<Self, Option<&'static str>> {
        if let Some((_, name)) = REMOVED.into_iter().find(|(n, _)| *n == number) {
            return Err(Some(name));
        }
        if let Some(format) = BlockFormat::from_ggml_type(number) {
            let (block_len, block_bytes) = (format.block_len(), format.block_bytes());
            return Ok(Self { number, name: format.name(), block_len, block_bytes });
        }
        let known = UNDECODABLE.into_iter().find(|(n, ..)| *n == number);
        known
            .map(|(number, name, block_len, block_bytes)| Self { number, name, block_len, block_bytes })
            .ok_or(None)
    }
}

/// Number, name, weights in a block, bytes of a block of the types that no [`BlockFormat`] is: intermediate results of ggml's
/// own products, and numbers that are no weights. A file may hold them as long as nobody reads them.
const UNDECODABLE: [(u32, &str, usize, usize); 7] = [
    (9, "Q8_1", 32, 36),
    (15, "Q8_K", 256, 292),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
];

/// Numbers that old files may have, and what they meant.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// One record of the tensor table.
#[derive(Debug)]
struct Record {
    ggml_type: GgmlType,
    dims: [usize; limits::MAX_DIMS],
    dim_count: usize,
    /// Which file.
    part: u32,
    /// From the start of that file.
    range: Range<usize>,
}

/// The parsed table of tensors, without the bytes that it points into.
#[derive(Debug)]
pub(super) struct Records {
    records: Vec<Record>,
    names: NameIndex,
}

impl Records {
    /// Checks a count of tensors against the bytes that are left: a name's length, one byte of it, a dimension count,
    /// one dimension, a type and an offset.
    pub(super) fn check_count(cursor: &Cursor<'_>, count: u64) -> Result<usize, GgufErrorKind> {
        const MIN_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;
        cursor.count(count, MIN_BYTES, limits::MAX_TENSORS, "tensors")
    }

    /// Reads the records of all parts.
    ///
    /// # Errors
    /// A record or a tensor's place is wrong, or a name is there twice; said of the part where that is.
    pub(super) fn read(parts: &[Part]) -> Result<Self, GgufError> {
        let mut names = NameIndex::with_capacity(0);
        let mut records = Vec::new();
        for (index, part) in (0..).zip(parts) {
            let first = records.len();
            let mut cursor = part.records();
            append(&mut cursor, part, index, &mut records, &mut names).map_err(|kind| part.error(kind))?;
            let place = Place { cursor: &cursor, alignment: part.alignment, names: &names, first };
            place.check(&mut records[first..]).map_err(|kind| part.error(kind))?;
        }
        names.finish().map_err(|Twice { name, offset, first, second }| {
            let [first, second] = [first, second].map(|i: usize| &parts[records[i].part as usize]);
            second.error(match std::ptr::eq(first, second) {
                true => GgufErrorKind::DuplicateTensor { offset, name },
                false => {
                    let first = first.path.display().to_string();
                    GgufErrorKind::TensorInTwoParts { offset, name, first }
                }
            })
        })?;
        Ok(Self { records, names })
    }

    /// Where the first tensor's data begins in each part; the part's end where it has none.
    pub(super) fn data_starts(&self, parts: &[Part]) -> Vec<usize> {
        let mut starts: Vec<usize> = parts.iter().map(|part| part.bytes().len()).collect();
        for record in &self.records {
            let start = &mut starts[record.part as usize];
            *start = (*start).min(record.range.start);
        }
        starts
    }
}

/// Reads the records of part `index` from the cursor on.
fn append(
    cursor: &mut Cursor<'_>,
    part: &Part,
    index: u32,
    records: &mut Vec<Record>,
    names: &mut NameIndex,
) -> Result<(), GgufErrorKind> {
    let count = Records::check_count(cursor, part.tensor_count)?;
    let total = records.len() + count;
    if total > limits::MAX_TENSORS {
        let (offset, limit) = (cursor.offset(), limits::MAX_TENSORS);
        return Err(GgufErrorKind::TooMany { offset, what: "tensors", count: total as u64, limit });
    }
    records.reserve(count);
    for _ in 0..count {
        let at = cursor.offset();
        let name = cursor.name("tensor name", limits::MAX_TENSOR_NAME_BYTES)?;
        if name.is_empty() {
            return Err(GgufErrorKind::EmptyTensorName { offset: at });
        }
        records.push(record(cursor, name, index, part.alignment)?);
        names.push(name, at);
    }
    Ok(())
}

/// What places the tensors of one part: they are read up to the cursor, and their data begins at the next multiple of
/// `alignment`.
struct Place<'a> {
    cursor: &'a Cursor<'a>,
    alignment: u32,
    names: &'a NameIndex,
    /// Position of the part's first record among all.
    first: usize,
}

impl Place<'_> {
    /// Turns ranges of the data section into ranges of the file, and checks that they lie in it and apart.
    fn check(&self, records: &mut [Record]) -> Result<(), GgufErrorKind> {
        let end_of_file = self.cursor.offset() + self.cursor.left();
        let start =
            self.cursor.offset().checked_next_multiple_of(self.alignment as usize).unwrap_or(usize::MAX);
        let available = end_of_file.saturating_sub(start);
        let name = |i: usize| self.names.name(self.first + i).to_owned();
        let mut order: Vec<u32> = (0..).take(records.len()).collect();
        order.sort_by_key(|&i| records[i as usize].range.start);
        let mut previous: Option<usize> = None;
        for i in order.into_iter().map(|i| i as usize) {
            let range = records[i].range.clone();
            if range.end > available {
                let (name, at) = (name(i), range.start as u64);
                return Err(GgufErrorKind::PastEnd { name, at, bytes: range.len() as u64, available });
            }
            if let Some(p) = previous
                && records[p].range.end > start + range.start
            {
                return Err(GgufErrorKind::Overlap { first: name(p), second: name(i), at: range.start });
            }
            records[i].range = start + range.start..start + range.end;
            previous = Some(i);
        }
        Ok(())
    }
}

/// Reads what follows a tensor's name. The record's range is still one of the data section.
fn record(cursor: &mut Cursor<'_>, name: &str, part: u32, alignment: u32) -> Result<Record, GgufErrorKind> {
    let owned = || name.to_owned();
    let offset = cursor.offset();
    let found = cursor.u32("a tensor's dimension count")?;
    let dim_count = found as usize;
    if !(1..=limits::MAX_DIMS).contains(&dim_count) {
        return Err(GgufErrorKind::DimensionCount { offset, name: owned(), found });
    }
    let mut dims = [1; limits::MAX_DIMS];
    for (index, dim) in dims[..dim_count].iter_mut().enumerate() {
        let offset = cursor.offset();
        let found = i64::from_le_bytes(cursor.array("a tensor's dimension")?);
        *dim = match usize::try_from(found) {
            Ok(n) if n > 0 => n,
            _ => return Err(GgufErrorKind::Dimension { offset, name: owned(), index, found }),
        };
    }
    let offset = cursor.offset();
    let found = cursor.u32("a tensor's type")?;
    let ggml_type = GgmlType::from_number(found).map_err(|removed| match removed {
        Some(format) => GgufErrorKind::RemovedTensorType { offset, name: owned(), found, format },
        None => GgufErrorKind::UnknownTensorType { offset, name: owned(), found },
    })?;
    let bytes = size(name, &dims[..dim_count], ggml_type)?;
    let at = cursor.u64("a tensor's offset")?;
    if !at.is_multiple_of(alignment.into()) {
        return Err(GgufErrorKind::Misaligned { name: owned(), found: at, alignment });
    }
    let past_end =
        || GgufErrorKind::PastEnd { name: owned(), at, bytes: bytes as u64, available: cursor.left() };
    let start = usize::try_from(at).map_err(|_| past_end())?;
    let end = start.checked_add(bytes).ok_or_else(past_end)?;
    Ok(Record { ggml_type, dims, dim_count, part, range: start..end })
}

/// The bytes of a tensor.
fn size(name: &str, dims: &[usize], ggml_type: GgmlType) -> Result<usize, GgufErrorKind> {
    let GgmlType { name: format, block_len, block_bytes, .. } = ggml_type;
    if !dims[0].is_multiple_of(block_len) {
        return Err(GgufErrorKind::RaggedRow {
            name: name.to_owned(),
            cols: dims[0] as u64,
            format,
            block_len,
        });
    }
    let row_bytes = (dims[0] / block_len).checked_mul(block_bytes);
    let bytes = dims[1..].iter().fold(row_bytes, |bytes, &dim| bytes?.checked_mul(dim));
    // No slice is larger than `isize::MAX`, and GGUF counts in signed numbers.
    let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
    bytes.ok_or_else(|| GgufErrorKind::SizeOverflows { name: name.to_owned(), shape: format!("{dims:?}") })
}

/// A tensor of an open file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    file: &'a GgufFile,
    index: usize,
}

impl<'a> Tensor<'a> {
    pub(super) fn find(file: &'a GgufFile, name: &str) -> Option<Self> {
        file.records.names.find(name).map(|index| Self { file, index })
    }

    pub(super) fn all(file: &'a GgufFile) -> impl ExactSizeIterator<Item = Self> + use<'a> {
        (0..file.records.records.len()).map(move |index| Self { file, index })
    }

    fn record(&self) -> &'a Record {
        &self.file.records.records[self.index]
    }

    /// The name, e.g. `blk.0.attn_q.weight`.
    pub fn name(&self) -> &'a str {
        self.file.records.names.name(self.index)
    }

    /// The type, which may be one that cannot be decoded.
    pub fn ggml_type(&self) -> GgmlType {
        self.record().ggml_type
    }

    /// How the weights are packed.
    ///
    /// # Errors
    /// This type cannot be decoded; the message names the tensor and the formats that can.
    pub fn format(&self) -> Result<BlockFormat, GgufError> {
        let GgmlType { number, name: format, .. } = self.ggml_type();
        BlockFormat::from_ggml_type(number).ok_or_else(|| {
            let known = BlockFormat::ALL.map(BlockFormat::name).join(", ");
            self.file.error(GgufErrorKind::UndecodableFormat { name: self.name().to_owned(), format, known })
        })
    }

    /// The shape in the file's order, innermost first: `dims()[0]` is the length of a row. One to four, none is 0.
    pub fn dims(&self) -> &'a [usize] {
        let record = self.record();
        &record.dims[..record.dim_count]
    }

    /// Weights in a row.
    pub fn cols(&self) -> usize {
        self.record().dims[0]
    }

    /// Rows, counted over all outer dimensions.
    pub fn rows(&self) -> usize {
        self.record().dims[1..].iter().product()
    }

    /// The packed weights, rows one after the other.
    pub fn bytes(&self) -> &'a [u8] {
        &self.part().bytes()[self.range()]
    }

    /// Where the packed weights lie in their file: the model's file, or the part that has this tensor.
    pub fn range(&self) -> Range<usize> {
        self.record().range.clone()
    }

    /// Gives back the memory of a range of [`Tensor::bytes`] that was copied; reading it again brings it in from the
    /// file.
    pub fn give_back(&self, range: Range<usize>) {
        let start = self.record().range.start;
        self.part().give_back(start + range.start..start + range.end);
    }

    fn part(&self) -> &'a Part {
        &self.file.parts[self.record().part as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_type_or_a_removed_one() {
        let decodable = BlockFormat::ALL.map(|f| (f.ggml_type(), f.name()));
        let undecodable = UNDECODABLE.map(|(number, name, ..)| (number, name));
        let mut numbers = Vec::new();
        for (number, name) in decodable.into_iter().chain(undecodable) {
            assert_eq!(GgmlType::from_number(number).map(|t| t.name), Ok(name));
            numbers.push(number);
        }
        for (number, name) in REMOVED {
            assert_eq!(GgmlType::from_number(number), Err(Some(name)));
            numbers.push(number);
        }
        numbers.sort_unstable();
        // Every number of ggml has a meaning here, and one only.
        assert_eq!(numbers, (0..43).collect::<Vec<_>>());
        assert_eq!(GgmlType::from_number(43), Err(None));
    }
}
