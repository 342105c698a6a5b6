//! Metadata values: the thirteen types of GGUF, and arrays that stay in the file's bytes until they are walked.

use std::fmt;

use super::{cursor::Cursor, error::GgufErrorKind};

/// The type of a metadata value, with its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// In the order of their numbers.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Bytes of a value; of strings and arrays the least that one can have.
    const fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// A metadata value. Strings are bytes: the format asks for UTF-8 but vocabularies do not always keep to it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value<'_> {
    /// This value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Whether both say the same. Integers of any type are compared by their value: writers differ; floats by their bits.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self.as_integer(), other.as_integer(), self, other) {
            (Some(a), Some(b), ..) => a == b,
            (.., Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (.., Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits(),
            _ => self == other,
        }
    }

    /// The value of any of the eight integer types.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// An array value: checked when the file was opened, decoded when it is walked. Never an array of arrays.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element_type: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element_type, self.len)
    }
}

impl<'a> Array<'a> {
    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        let element_type = self.element_type;
        (0..self.len).map(move |_| {
            scalar(&mut cursor, element_type, "").expect("the elements were checked when the file was opened")
        })
    }
}

/// Reads the value of type `value_type` of `key`, which begins at the cursor.
pub(super) fn read<'a>(
    cursor: &mut Cursor<'a>,
    value_type: ValueType,
    key: &str,
) -> Result<Value<'a>, GgufErrorKind> {
    match value_type {
        ValueType::Array => Ok(Value::Array(array(cursor, key)?)),
        _ => scalar(cursor, value_type, key),
    }
}

fn array<'a>(cursor: &mut Cursor<'a>, key: &str) -> Result<Array<'a>, GgufErrorKind> {
    let offset = cursor.offset();
    let element_type = value_type(cursor, key)?;
    if element_type == ValueType::Array {
        return Err(GgufErrorKind::NestedArray { offset, key: key.to_owned() });
    }
    let count = cursor.u64("an array's length")?;
    let len = cursor.count(count, element_type.min_bytes(), usize::MAX, "array elements")?;
    let start = cursor.offset();
    match element_type {
        ValueType::String | ValueType::Bool => {
            for _ in 0..len {
                scalar(cursor, element_type, key)?;
            }
        }
        _ => {
            cursor.take((len * element_type.min_bytes()) as u64, "an array")?;
        }
    }
    Ok(Array { element_type, len, bytes: cursor.since(start) })
}

/// Reads the number of a value type.
pub(super) fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufErrorKind> {
    let offset = cursor.offset();
    let found = cursor.u32("a value type")?;
    ValueType::from_number(found).ok_or_else(|| GgufErrorKind::UnknownValueType {
        offset,
        key: key.to_owned(),
        found,
    })
}

fn scalar<'a>(cursor: &mut Cursor<'a>, value_type: ValueType, key: &str) -> Result<Value<'a>, GgufErrorKind> {
    const WHAT: &str = "a metadata value";
    let offset = cursor.offset();
    Ok(match value_type {
        ValueType::U8 => Value::U8(cursor.u8(WHAT)?),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::U32 => Value::U32(cursor.u32(WHAT)?),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::Bool => match cursor.u8(WHAT)? {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            found => return Err(GgufErrorKind::BadBool { offset, key: key.to_owned(), found }),
        },
        ValueType::String => Value::String(cursor.string(WHAT)?),
        ValueType::U64 => Value::U64(cursor.u64(WHAT)?),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::Array => return Err(GgufErrorKind::NestedArray { offset, key: key.to_owned() }),
    })
}
