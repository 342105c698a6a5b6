//! Frames over a byte stream: blocking helpers, and an incremental decoder for callers that read by themselves.
//!
//! Invariant: memory grows with the bytes that have arrived, never with the length that a prefix announces.

use crate::codec::{WireError, body_length, decode_body, encode};
use crate::limits::LENGTH_BYTES;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{Read, Write};

/// Writes one frame and flushes.
///
/// # Errors
/// Those of [`encode`], and [`WireError::Io`].
pub fn write_frame<T: Serialize>(writer: &mut impl Write, value: &T) -> Result<(), WireError> {
    writer.write_all(&encode(value)?)?;
    writer.flush()?;
    Ok(())
}

/// Blocks for one frame; `None` when the stream ends between two frames.
///
/// # Errors
/// Those of [`crate::decode`], and [`WireError::Io`]. After an error the stream is out of step: close it. A read
/// timeout is such an error too; a caller that wants timeouts uses [`FrameDecoder`].
pub fn read_frame<T: DeserializeOwned>(reader: &mut impl Read) -> Result<Option<T>, WireError> {
    let mut prefix = Vec::with_capacity(LENGTH_BYTES);
    reader.by_ref().take(LENGTH_BYTES as u64).read_to_end(&mut prefix)?;
    if prefix.is_empty() {
        return Ok(None);
    }
    let prefix: [u8; LENGTH_BYTES] = prefix
        .try_into()
        .map_err(|short: Vec<u8>| WireError::Truncated { have: short.len(), need: LENGTH_BYTES })?;
    let bytes = body_length(prefix)?;
    let mut body = Vec::new();
    reader.by_ref().take(bytes as u64).read_to_end(&mut body)?;
    if body.len() < bytes {
        return Err(WireError::Truncated { have: LENGTH_BYTES + body.len(), need: LENGTH_BYTES + bytes });
    }
    decode_body(&body).map(Some)
}

/// Cuts a stream of bytes into frames: push what was read, pop values until there are none.
///
/// Its memory is bounded by one frame and one push as long as the caller pops all before it pushes again.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Where the first frame that is not popped yet begins in `buffer`.
    start: usize,
    failed: bool,
}

impl FrameDecoder {
    /// An empty decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they came from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next value off; `None` when its bytes are not all there yet.
    ///
    /// # Errors
    /// Those of [`crate::decode`]; after the first, every call gives [`WireError::OutOfStep`].
    pub fn pop<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        if self.failed {
            return Err(WireError::OutOfStep);
        }
        let popped = self.try_pop();
        self.failed = popped.is_err();
        popped
    }

    /// Whether the stream may end here: no frame has begun.
    pub fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    fn try_pop<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let Some((prefix, rest)) = self.buffer[self.start..].split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = body_length(*prefix)?;
        let Some(body) = rest.get(..bytes) else {
            return Ok(None);
        };
        let value = decode_body(body)?;
        self.start += LENGTH_BYTES + bytes;
        Ok(Some(value))
    }
}
