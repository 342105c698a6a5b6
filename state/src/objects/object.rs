//! What an object is.
//!
//! Times are milliseconds since 1970, as the caller's clock has them.

/// Most bytes of a piece of a content: with its record and the database's own fields it fills a page of 256 KiB exactly.
pub const PIECE_BYTES: usize = (256 << 10) - 37;

/// What names an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// What it is, in the caller's words.
    pub kind: String,
    /// Whose it is; `""` is nobody in particular.
    pub tenant: String,
    /// Its id among the tenant's objects of its kind.
    pub id: String,
}

impl ObjectName {
    /// The name of these parts.
    pub fn new(kind: &str, tenant: &str, id: &str) -> Self {
        Self { kind: kind.to_owned(), tenant: tenant.to_owned(), id: id.to_owned() }
    }
}

/// Something that is kept for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its name.
    pub name: ObjectName,
    /// When it was made.
    pub created_ms: u64,
    /// When it goes, if nothing makes it go before.
    pub expires_ms: Option<u64>,
    /// It, in the caller's own bytes. It is read whole with each look.
    pub value: Vec<u8>,
    /// What else belongs to it.
    pub content: Option<Content>,
}

impl Object {
    /// Bytes that count for the retention.
    pub(super) fn kept_bytes(&self) -> u64 {
        kept_bytes(self.value.len() as u64, self.content)
    }
}

fn kept_bytes(value_bytes: u64, content: Option<Content>) -> u64 {
    value_bytes.saturating_add(content.map_or(0, |content| content.bytes))
}

/// Bytes of any length, in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// What names it in the store.
    pub(super) number: u64,
    pub(super) pieces: u32,
    pub(super) bytes: u64,
}

impl Content {
    /// How many pieces it has.
    pub fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Which objects a list begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectOrder {
    /// Those that were first put first.
    OldestFirst,
    /// Those that were first put last.
    NewestFirst,
}

/// How long objects are kept. The oldest go first, as soon as one bound is passed: a tenant's own where its bound is, and
/// before those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRetention {
    /// Time since it was made.
    pub max_age_ms: u64,
    /// Objects of all kinds and tenants.
    pub max_objects: u64,
    /// Bytes of their values and contents.
    pub max_bytes: u64,
    /// Objects of one tenant.
    pub tenant_objects: u64,
    /// Bytes of their values and contents.
    pub tenant_bytes: u64,
}

/// An object as its record has it: all but its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// What names it in the tables: of two objects the one that was first put later has the higher number.
    pub(super) number: u64,
    pub(super) name: ObjectName,
    pub(super) created_ms: u64,
    pub(super) expires_ms: Option<u64>,
    pub(super) value_bytes: u64,
    pub(super) content: Option<Content>,
}

impl Head {
    pub(super) fn new(number: u64, object: &Object) -> Self {
        Self {
            number,
            name: object.name.clone(),
            created_ms: object.created_ms,
            expires_ms: object.expires_ms,
            value_bytes: object.value.len() as u64,
            content: object.content,
        }
    }

    pub(super) fn with(self, value: Vec<u8>) -> Object {
        let Self { name, created_ms, expires_ms, content, .. } = self;
        Object { name, created_ms, expires_ms, value, content }
    }

    /// Bytes that count for the retention.
    pub(super) fn kept_bytes(&self) -> u64 {
        kept_bytes(self.value_bytes, self.content)
    }
}
