//! Writes GGUF files, sound and malformed, for tests.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

pub(crate) const Q4_0: u32 = 2;
pub(crate) const Q4_2: u32 = 4;
pub(crate) const I8: u32 = 24;

/// A file under construction.
pub(crate) struct File(pub(crate) Vec<u8>);

impl File {
    pub(crate) fn header(magic: &[u8; 4], version: u32, tensors: u64, entries: u64) -> Self {
        let mut bytes = magic.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(entries.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn new(tensors: u64, entries: u64) -> Self {
        Self::header(b"GGUF", 3, tensors, entries)
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn zeros(self, count: usize) -> Self {
        self.raw(&vec![0; count])
    }

    pub(crate) fn u32(self, number: u32) -> Self {
        self.raw(&number.to_le_bytes())
    }

    pub(crate) fn u64(self, number: u64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    pub(crate) fn string(self, bytes: &[u8]) -> Self {
        self.u64(bytes.len() as u64).raw(bytes)
    }

    pub(crate) fn entry(self, key: &str, value_type: u32, payload: &[u8]) -> Self {
        self.string(key.as_bytes()).u32(value_type).raw(payload)
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.string(key.as_bytes()).u32(STRING).string(value.as_bytes())
    }

    pub(crate) fn number(self, key: &str, value: u32) -> Self {
        self.entry(key, U32, &value.to_le_bytes())
    }

    pub(crate) fn tensor(self, name: &str, dims: &[u64], ggml_type: u32, offset: u64) -> Self {
        let file = self.string(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().fold(file, |file, &dim| file.u64(dim)).u32(ggml_type).u64(offset)
    }
}
