//! The metadata of a GGUF file: typed lookup by key. Keeps only keys and offsets; values stay in the file's bytes.
//!
//! `opt_*` gives `None` for a missing key and an error for a value of another type; `require_*` gives an error for both.
//! An integer is taken from any of the eight integer types, as long as its value fits: writers differ.

use std::path::Path;

use super::{
    cursor::Cursor,
    error::{GgufError, GgufErrorKind},
    limits,
    names::NameIndex,
    value::{self, Array, Value, ValueType},
};

/// Where a value lies.
#[derive(Debug)]
pub(super) struct Entry {
    value_type: ValueType,
    offset: usize,
}

/// The parsed table of entries, without the bytes that it points into.
#[derive(Debug)]
pub(super) struct Entries {
    entries: Vec<Entry>,
    names: NameIndex,
}

impl Entries {
    /// Reads `count` entries from the cursor on and checks every value.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufErrorKind> {
        // A key's length, one byte of it, a type and the smallest value.
        const MIN_BYTES: usize = 8 + 1 + 4 + 1;
        let count = cursor.count(count, MIN_BYTES, limits::MAX_METADATA_ENTRIES, "metadata entries")?;
        let mut entries = Vec::with_capacity(count);
        let mut names = NameIndex::with_capacity(count);
        for _ in 0..count {
            let at = cursor.offset();
            let key = cursor.name("metadata key", limits::MAX_KEY_BYTES)?;
            if key.is_empty() {
                return Err(GgufErrorKind::EmptyKey { offset: at });
            }
            let value_type = value::value_type(cursor, key)?;
            entries.push(Entry { value_type, offset: cursor.offset() });
            names.push(key, at);
            value::read(cursor, value_type, key)?;
        }
        names
            .finish()
            .map_err(|twice| GgufErrorKind::DuplicateKey { offset: twice.offset, key: twice.name })?;
        Ok(Self { entries, names })
    }
}

/// The metadata of an open file.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: &'a [u8],
    pub(super) table: &'a Entries,
}

impl<'a> Metadata<'a> {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.table.names.find(key).map(|i| self.value(i))
    }

    /// Whether `key` is there.
    pub fn contains(&self, key: &str) -> bool {
        self.table.names.find(key).is_some()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.table.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.table.entries.is_empty()
    }

    /// All entries, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let this = *self;
        (0..self.len()).map(move |i| (this.table.names.name(i), this.value(i)))
    }

    /// All entries as the file has them, sorted by key: the key, the type and the value's bytes. For fingerprints.
    pub fn iter_raw(&self) -> impl Iterator<Item = (&'a str, ValueType, &'a [u8])> + use<'a> {
        let this = *self;
        this.table.names.sorted().map(move |i| {
            let Entry { value_type, offset } = this.table.entries[i];
            let mut cursor = Cursor::at(this.bytes, offset);
            value::read(&mut cursor, value_type, "").expect("the value was checked when the file was opened");
            (this.table.names.name(i), value_type, cursor.since(offset))
        })
    }

    /// The unsigned integer of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not an integer, or does not fit into 32 bits.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.opt_integer(key, "an unsigned 32-bit integer")
    }

    /// The unsigned integer of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not an integer, or is negative.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.opt_integer(key, "an unsigned 64-bit integer")
    }

    /// The unsigned integer of `key`.
    ///
    /// # Errors
    /// The key is missing, its value is not an integer, or does not fit into 32 bits.
    pub fn require_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.opt_u32(key)?.ok_or_else(|| self.missing(key, "an unsigned 32-bit integer"))
    }

    /// The number of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not a float.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(v)),
            Some(Value::F64(v)) => Ok(Some(v as f32)),
            Some(other) => Err(self.wrong_type(key, "a float", &other)),
        }
    }

    /// The truth value of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not a bool.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(v)),
            Some(other) => Err(self.wrong_type(key, "a bool", &other)),
        }
    }

    /// The text of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not a string, or not UTF-8.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(v)) => std::str::from_utf8(v)
                .map(Some)
                .map_err(|_| self.error(GgufErrorKind::StringNotUtf8 { key: key.to_owned() })),
            Some(other) => Err(self.wrong_type(key, "a string", &other)),
        }
    }

    /// The text of `key`.
    ///
    /// # Errors
    /// The key is missing, its value is not a string, or not UTF-8.
    pub fn require_str(&self, key: &str) -> Result<&'a str, GgufError> {
        self.opt_str(key)?.ok_or_else(|| self.missing(key, "a string"))
    }

    /// The array of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not an array.
    pub fn opt_array(&self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(v)) => Ok(Some(v)),
            Some(other) => Err(self.wrong_type(key, "an array", &other)),
        }
    }

    /// The array of strings of `key`, if it is there; the strings as bytes, in order.
    ///
    /// # Errors
    /// The value is not an array of strings.
    pub fn opt_strings(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = &'a [u8]> + use<'a>>, GgufError> {
        let array = self.opt_array_of(key, ValueType::String, "an array of strings")?;
        Ok(array.map(|array| {
            array.iter().map(|v| match v {
                Value::String(bytes) => bytes,
                other => unreachable!("an array of strings holds {other:?}"),
            })
        }))
    }

    /// The array of 32-bit floats of `key`, if it is there.
    ///
    /// # Errors
    /// The value is not an array of 32-bit floats.
    pub fn opt_f32s(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = f32> + use<'a>>, GgufError> {
        let array = self.opt_array_of(key, ValueType::F32, "an array of f32")?;
        Ok(array.map(|array| {
            array.iter().map(|v| match v {
                Value::F32(number) => number,
                other => unreachable!("an array of f32 holds {other:?}"),
            })
        }))
    }

    /// What `key` says of each of `layers` layers, if it is there: one integer (or bool, as 0 or 1) for all, or an
    /// array with one for each. Allocates no more than the array in the file.
    ///
    /// # Errors
    /// The value is neither, or the array does not have `layers` elements that fit into 32 bits.
    pub fn opt_per_layer(&self, key: &str, layers: usize) -> Result<Option<PerLayer>, GgufError> {
        const EXPECTED: &str = "an unsigned 32-bit integer, or an array of them with one for each layer";
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = |value: &Value<'_>| match *value {
            Value::Bool(v) => Ok(v.into()),
            other => self.integer(key, &other, EXPECTED),
        };
        let Value::Array(array) = value else { return Ok(Some(PerLayer::All(number(&value)?))) };
        if array.len() != layers {
            let (key, found) = (key.to_owned(), array.len());
            return Err(self.error(GgufErrorKind::ArrayLength { key, found, expected: layers }));
        }
        let each = array.iter().map(|v| number(&v)).collect::<Result<Box<[u32]>, _>>()?;
        Ok(Some(PerLayer::Each(each)))
    }

    /// Says that `key`, which should be `expected`, is missing.
    pub fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        self.error(GgufErrorKind::MissingKey { key: key.to_owned(), expected })
    }

    /// `kind`, said of this file.
    pub fn error(&self, kind: GgufErrorKind) -> GgufError {
        GgufError::new(self.path, kind)
    }

    fn value(&self, index: usize) -> Value<'a> {
        let Entry { value_type, offset } = self.table.entries[index];
        let mut cursor = Cursor::at(self.bytes, offset);
        value::read(&mut cursor, value_type, "").expect("the value was checked when the file was opened")
    }

    fn opt_array_of(
        &self,
        key: &str,
        element_type: ValueType,
        expected: &'static str,
    ) -> Result<Option<Array<'a>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.element_type() == element_type => Ok(Some(array)),
            Some(Value::Array(array)) => {
                let (key, found) = (key.to_owned(), array.element_type());
                Err(self.error(GgufErrorKind::WrongElementType { key, expected, found }))
            }
            Some(other) => Err(self.wrong_type(key, expected, &other)),
        }
    }

    fn opt_integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, GgufError> {
        self.get(key).map(|value| self.integer(key, &value, expected)).transpose()
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        value: &Value<'_>,
        expected: &'static str,
    ) -> Result<T, GgufError> {
        let found = value.as_integer().ok_or_else(|| self.wrong_type(key, expected, value))?;
        T::try_from(found)
            .map_err(|_| self.error(GgufErrorKind::OutOfRange { key: key.to_owned(), expected, found }))
    }

    fn wrong_type(&self, key: &str, expected: &'static str, found: &Value<'_>) -> GgufError {
        let (key, found) = (key.to_owned(), found.value_type());
        self.error(GgufErrorKind::WrongType { key, expected, found })
    }
}

/// A number for each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerLayer {
    /// The same for all.
    All(u32),
    /// One for each.
    Each(Box<[u32]>),
}

impl PerLayer {
    /// The number of `layer`, which is less than the count of layers that the value was read with.
    pub fn get(&self, layer: usize) -> u32 {
        match self {
            Self::All(number) => *number,
            Self::Each(numbers) => numbers[layer],
        }
    }
}
