//! A position in the file's bytes that only moves forward and never past the end. All numbers are little-endian.

use super::error::GgufErrorKind;

/// Reads numbers and lengths; every read is checked against what is left.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Goes on at `offset` bytes from the start, which lies within the file.
    pub(super) fn at(bytes: &'a [u8], offset: usize) -> Self {
        assert!(offset <= bytes.len());
        Self { bytes, offset }
    }

    /// Bytes from the start of the file.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes from here to the end of the file.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// The next `len` bytes, which are part of `what`.
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufErrorKind> {
        let left = self.left();
        match usize::try_from(len) {
            Ok(n) if n <= left => {
                let taken = &self.bytes[self.offset..self.offset + n];
                self.offset += n;
                Ok(taken)
            }
            _ => Err(GgufErrorKind::Truncated { offset: self.offset, what, needed: len, left }),
        }
    }

    /// The bytes from offset `start` up to here.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.offset]
    }

    /// The next `N` bytes, which are part of `what`.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufErrorKind> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("`take` gave as many bytes as were asked for"))
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, GgufErrorKind> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufErrorKind> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufErrorKind> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string's bytes: a 64-bit length, then that many bytes.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufErrorKind> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A string that is a name: UTF-8 and at most `limit` bytes.
    pub(super) fn name(&mut self, what: &'static str, limit: usize) -> Result<&'a str, GgufErrorKind> {
        let offset = self.offset;
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        if bytes.len() > limit {
            return Err(GgufErrorKind::NameTooLong { offset, what, len, limit });
        }
        std::str::from_utf8(bytes).map_err(|_| GgufErrorKind::NameNotUtf8 { offset, what })
    }

    /// Checks a count before anything is allocated by it: `count` items of at least `min_bytes` each must fit into
    /// what is left, and be no more than `limit`.
    pub(super) fn count(
        &self,
        count: u64,
        min_bytes: usize,
        limit: usize,
        what: &'static str,
    ) -> Result<usize, GgufErrorKind> {
        let (offset, left) = (self.offset, self.left());
        match usize::try_from(count) {
            Ok(n) if n <= left / min_bytes => match n <= limit {
                true => Ok(n),
                false => Err(GgufErrorKind::TooMany { offset, what, count, limit }),
            },
            _ => Err(GgufErrorKind::CountDoesNotFit { offset, what, count, left }),
        }
    }
}
