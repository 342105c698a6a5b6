//! Ids as clients see them, and token ids in bulk.
//!
//! Invariant: a [`JobId`] begins with `j-` and a [`SessionId`] does not, so that one word on a command line says
//! which of the two it is. These, a [`BatchId`], a [`Tenant`] and a [`KeyName`] are 1 to [`MAX_ID_BYTES`] bytes of `A-Z a-z 0-9 . _ -`: printable, without quoting,
//! in a terminal, a URL and a file name. Ids that the daemon makes sort by the time they were made.

use crate::limits::{MAX_ID_BYTES, MAX_KEY_BYTES};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// Why a string is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty or too long.
    #[error("id of {bytes} bytes; 1 to {MAX_ID_BYTES} are allowed")]
    Length {
        /// Length of what was given.
        bytes: usize,
    },
    /// A character that ids do not have.
    #[error("id {id:?} has the character {character:?}; letters, digits, '.', '_' and '-' are allowed")]
    Character {
        /// What was given.
        id: String,
        /// The first bad character.
        character: char,
    },
    /// A job id without its prefix.
    #[error("job id {id:?} does not begin with \"j-\"")]
    NotAJob {
        /// What was given.
        id: String,
    },
    /// A session id with the prefix of a job id.
    #[error("session id {id:?} begins with \"j-\", which is kept for jobs")]
    NotASession {
        /// What was given.
        id: String,
    },
    /// An idempotency key that is empty or too long.
    #[error("idempotency key of {bytes} bytes; 1 to {MAX_KEY_BYTES} are allowed")]
    KeyLength {
        /// Length of what was given.
        bytes: usize,
    },
    /// A character that idempotency keys do not have.
    #[error("idempotency key has the character {character:?}; printable ASCII is allowed")]
    KeyCharacter {
        /// The first bad character.
        character: char,
    },
}

const JOB_PREFIX: &str = "j-";

/// The id of a job; see the invariants of this file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^j-[A-Za-z0-9._-]{0,62}$"))]
pub struct JobId(String);

/// The id of a session; see the invariants of this file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^(?!j-)[A-Za-z0-9._-]{1,64}$"))]
pub struct SessionId(String);

impl JobId {
    /// Proves that `id` is a job's.
    ///
    /// # Errors
    /// See [`IdError`].
    pub fn new(id: impl Into<String>) -> Result<Self, IdError> {
        let id = checked(id.into())?;
        if id.starts_with(JOB_PREFIX) { Ok(Self(id)) } else { Err(IdError::NotAJob { id }) }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl SessionId {
    /// Proves that `id` is a session's.
    ///
    /// # Errors
    /// See [`IdError`].
    pub fn new(id: impl Into<String>) -> Result<Self, IdError> {
        let id = checked(id.into())?;
        if id.starts_with(JOB_PREFIX) { Err(IdError::NotASession { id }) } else { Ok(Self(id)) }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whose sessions and KV something is about; see the invariants of this file. What one tenant has computed, no other finds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^[A-Za-z0-9._-]{1,64}$"))]
pub struct Tenant(String);

impl Tenant {
    /// Proves that `name` is one.
    ///
    /// # Errors
    /// See [`IdError`].
    pub fn new(name: impl Into<String>) -> Result<Self, IdError> {
        Ok(Self(checked(name.into())?))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of an API key; see the invariants of this file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyName(String);

impl KeyName {
    /// Proves that `name` is one.
    ///
    /// # Errors
    /// See [`IdError`].
    pub fn new(name: impl Into<String>) -> Result<Self, IdError> {
        Ok(Self(checked(name.into())?))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a batch of jobs of one tenant; see the invariants of this file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^[A-Za-z0-9._-]{1,64}$"))]
pub struct BatchId(String);

impl BatchId {
    /// Proves that `id` is one.
    ///
    /// # Errors
    /// See [`IdError`].
    pub fn new(id: impl Into<String>) -> Result<Self, IdError> {
        Ok(Self(checked(id.into())?))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a client calls a submission, so that the same one sent again makes no second job: 1 to [`MAX_KEY_BYTES`] bytes
/// of printable ASCII. Each tenant has its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = r"^[ -~]{1,128}$"))]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Proves that `key` is one.
    ///
    /// # Errors
    /// See [`IdError`].
    pub fn new(key: impl Into<String>) -> Result<Self, IdError> {
        let key = key.into();
        if !(1..=MAX_KEY_BYTES).contains(&key.len()) {
            return Err(IdError::KeyLength { bytes: key.len() });
        }
        match key.chars().find(|c| !matches!(c, ' '..='~')) {
            Some(character) => Err(IdError::KeyCharacter { character }),
            None => Ok(Self(key)),
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn checked(id: String) -> Result<String, IdError> {
    if !(1..=MAX_ID_BYTES).contains(&id.len()) {
        return Err(IdError::Length { bytes: id.len() });
    }
    match id.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-')) {
        Some(character) => Err(IdError::Character { id, character }),
        None => Ok(id),
    }
}

macro_rules! string_conversions {
    ($id:ident) => {
        impl TryFrom<String> for $id {
            type Error = IdError;
            fn try_from(id: String) -> Result<Self, IdError> {
                Self::new(id)
            }
        }
        impl std::str::FromStr for $id {
            type Err = IdError;
            fn from_str(id: &str) -> Result<Self, IdError> {
                Self::new(id)
            }
        }
        impl From<$id> for String {
            fn from(id: $id) -> Self {
                id.0
            }
        }
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}
string_conversions!(JobId);
string_conversions!(SessionId);
string_conversions!(Tenant);
string_conversions!(KeyName);
string_conversions!(BatchId);
string_conversions!(IdempotencyKey);

/// Token ids in bulk. On the wire a byte string of little-endian `u32`s: four bytes an id, decoded in one pass and
/// counted by the frame's limit as what it is. In JSON an array of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
pub struct TokenIds(pub Vec<u32>);

impl Serialize for TokenIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_seq(&self.0);
        }
        let bytes: Vec<u8> = self.0.iter().flat_map(|id| id.to_le_bytes()).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Vec::deserialize(deserializer).map(Self);
        }
        deserializer.deserialize_byte_buf(LittleEndianIds)
    }
}

struct LittleEndianIds;

impl de::Visitor<'_> for LittleEndianIds {
    type Value = TokenIds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string of four bytes a token id")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<TokenIds, E> {
        let (ids, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(E::invalid_length(bytes.len(), &self));
        }
        Ok(TokenIds(ids.iter().map(|id| u32::from_le_bytes(*id)).collect()))
    }
}
