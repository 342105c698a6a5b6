//! One value to one frame and back.
//!
//! A frame is a little-endian `u32` length, then that many bytes: the version byte and the value in bincode's
//! standard configuration (little-endian, variable-length integers). What [`encode`] gives, [`decode`] takes.

use crate::limits::{LENGTH_BYTES, MAX_DECODED_BYTES, MAX_FRAME_BYTES};
use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::{Serialize, de::DeserializeOwned};

/// The version of the protocol: first byte of every frame and a field of the hello.
pub const VERSION: u8 = 5;

const CONFIG: Configuration<LittleEndian, Varint, Limit<MAX_DECODED_BYTES>> =
    bincode::config::standard().with_limit::<MAX_DECODED_BYTES>();

/// Why a frame could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] std::io::Error),
    /// A frame longer than [`MAX_FRAME_BYTES`], ours or theirs.
    #[error("frame of {bytes} bytes is too long; at most {MAX_FRAME_BYTES} are allowed")]
    TooLong {
        /// Bytes after the length prefix.
        bytes: usize,
    },
    /// A frame of length 0, which has not even a version byte.
    #[error("empty frame; the shortest has one byte, its version")]
    Empty,
    /// The other end speaks another version.
    #[error("frame of protocol version {found}; this end speaks version {VERSION}")]
    Version {
        /// The version byte that was found.
        found: u8,
    },
    /// The stream ended, or the slice ends, inside a frame.
    #[error("frame ends after {have} of {need} bytes")]
    Truncated {
        /// Bytes that were there, the length prefix included.
        have: usize,
        /// Bytes that should be there, the length prefix included.
        need: usize,
    },
    /// The bytes are no value of the expected type.
    #[error("malformed frame: {0}")]
    Malformed(String),
    /// Bytes are left over behind the value.
    #[error("{extra} bytes left over behind the frame's value")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// The value cannot be encoded.
    #[error("cannot encode frame: {0}")]
    Encode(String),
    /// An earlier frame was bad, so nothing after it can be believed.
    #[error("an earlier frame on this connection was bad; open a new connection")]
    OutOfStep,
}

/// The whole frame for `value`: length prefix, version byte, payload.
///
/// # Errors
/// [`WireError::TooLong`] when the value does not fit in a frame, [`WireError::Encode`] when bincode cannot.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    let mut frame = vec![0, 0, 0, 0, VERSION];
    bincode::serde::encode_into_std_write(value, &mut frame, CONFIG)
        .map_err(|error| WireError::Encode(error.to_string()))?;
    let bytes = frame.len() - LENGTH_BYTES;
    check_length(bytes)?;
    frame[..LENGTH_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(frame)
}

/// The value of a whole frame as [`encode`] made it.
///
/// # Errors
/// Any [`WireError`] but `Io`: the bytes are not trusted.
pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, WireError> {
    let have = frame.len();
    let Some((prefix, rest)) = frame.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(WireError::Truncated { have, need: LENGTH_BYTES });
    };
    let bytes = body_length(*prefix)?;
    match rest.len().checked_sub(bytes) {
        None => Err(WireError::Truncated { have, need: LENGTH_BYTES + bytes }),
        Some(0) => decode_body(rest),
        Some(extra) => Err(WireError::Trailing { extra }),
    }
}

/// The length that a prefix announces, proven to be within bounds.
pub(crate) fn body_length(prefix: [u8; LENGTH_BYTES]) -> Result<usize, WireError> {
    let bytes = u32::from_le_bytes(prefix) as usize;
    check_length(bytes)?;
    Ok(bytes)
}

/// The value of what follows a length prefix: a version byte and the payload, with nothing behind it.
pub(crate) fn decode_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    let (&found, payload) = body.split_first().ok_or(WireError::Empty)?;
    if found != VERSION {
        return Err(WireError::Version { found });
    }
    let (value, used) = bincode::serde::decode_from_slice(payload, CONFIG)
        .map_err(|error| WireError::Malformed(error.to_string()))?;
    match payload.len() - used {
        0 => Ok(value),
        extra => Err(WireError::Trailing { extra }),
    }
}

fn check_length(bytes: usize) -> Result<(), WireError> {
    match bytes {
        0 => Err(WireError::Empty),
        1..=MAX_FRAME_BYTES => Ok(()),
        _ => Err(WireError::TooLong { bytes }),
    }
}
