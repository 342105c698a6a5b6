//! The bytes of a stored record: a version, fields of fixed little-endian widths, and a checksum over all before it.
//!
//! Nothing read is trusted: a length is compared with the bytes that are there before anything of that length is made,
//! a record must end where its fields end, and whatever does not hold makes the whole record unreadable.

/// Bytes of a checksum: the first half of a blake3 hash. It is there to find damage, not to withstand an attacker who
/// can write the file anyway.
pub(crate) const CHECKSUM_BYTES: usize = 16;
pub(crate) type Checksum = [u8; CHECKSUM_BYTES];

/// A checksum of what was hashed.
pub(crate) fn half(hash: blake3::Hash) -> Checksum {
    *hash.as_bytes().first_chunk().expect("a hash is twice as long")
}

/// Checksum of a record: its key is hashed along, so that a right record in a wrong place is damage as well.
fn record_checksum(key: &[u8], record: &[u8]) -> Checksum {
    half(blake3::Hasher::new().update(key).update(record).finalize())
}

/// A record that is being written.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new(version: u8) -> Self {
        Self(vec![version])
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32s(&mut self, values: &[u32]) {
        self.u32(u32::try_from(values.len()).expect("fewer tokens than u32 counts"));
        values.iter().for_each(|value| self.u32(*value));
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.u32(u32::try_from(text.len()).expect("a name of less than 4 GiB"));
        self.bytes(text.as_bytes());
    }

    pub(crate) fn option_u64(&mut self, value: Option<u64>) {
        self.u8(value.is_some().into());
        self.u64(value.unwrap_or(0));
    }

    pub(crate) fn option_string(&mut self, text: Option<&str>) {
        self.u8(text.is_some().into());
        self.string(text.unwrap_or_default());
    }

    /// The record under its key.
    pub(crate) fn seal(mut self, key: &[u8]) -> Vec<u8> {
        let checksum = record_checksum(key, &self.0);
        self.bytes(&checksum);
        self.0
    }
}

/// The fields of a record, read in their order.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The fields of a record whose checksum and version are right.
    pub(crate) fn open(version: u8, key: &[u8], bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or("too few bytes")?;
        if record_checksum(key, record) != *checksum {
            return Err("another checksum than its bytes have");
        }
        match record.split_first() {
            Some((found, rest)) if *found == version => Ok(Self { rest }),
            Some(_) => Err("a version that this zllm does not know"),
            None => Err("too few bytes"),
        }
    }

    pub(crate) fn take(&mut self, length: u64) -> Result<&'a [u8], &'static str> {
        let taken = usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length));
        let (taken, rest) = taken.ok_or("fewer bytes than its fields need")?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        Ok(*self.take(N as u64)?.first_chunk().expect("N bytes were taken"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, &'static str> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err("a flag that is neither 0 nor 1"),
        }
    }

    pub(crate) fn option_u64(&mut self) -> Result<Option<u64>, &'static str> {
        match (self.flag()?, self.u64()?) {
            (true, value) => Ok(Some(value)),
            (false, 0) => Ok(None),
            (false, _) => Err("a number that is not set and not 0"),
        }
    }

    pub(crate) fn option_string(&mut self) -> Result<Option<String>, &'static str> {
        match (self.flag()?, self.string()?) {
            (true, text) => Ok(Some(text)),
            (false, text) if text.is_empty() => Ok(None),
            (false, _) => Err("a name that is not set and not empty"),
        }
    }

    pub(crate) fn u32s(&mut self) -> Result<Vec<u32>, &'static str> {
        let count = self.u32()?;
        let (words, []) = self.take(u64::from(count) * 4)?.as_chunks() else {
            unreachable!("a multiple of 4")
        };
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// All bytes that are left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// A record ends where its fields end.
    pub(crate) fn end(self) -> Result<(), &'static str> {
        if self.rest.is_empty() { Ok(()) } else { Err("more bytes than its fields need") }
    }

    pub(crate) fn string(&mut self) -> Result<String, &'static str> {
        let length = self.u32()?;
        let text = std::str::from_utf8(self.take(length.into())?).map_err(|_| "a name that is not UTF-8")?;
        Ok(text.to_owned())
    }
}
