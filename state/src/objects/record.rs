//! The bytes of an object's records: its head, its value, a piece of its content. FORMATS.md has the layouts as tables.

use super::object::{Content, Head, ObjectName};
use crate::database::{Reader, Writer};

/// First byte of each record that this version writes.
pub(super) const VERSION: u8 = 1;

/// Bytes of an index's key: a hash, so that it has one width and any bytes of it are a key.
pub(super) type NameKey = [u8; 32];

/// Which record it is; hashed into the checksum, so that none passes for another.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Head = 0,
    Value = 1,
    Piece = 2,
}

/// What a record's checksum is of beside its bytes. Only pieces have an index.
fn seal_key(kind: Kind, number: u64, index: u32) -> [u8; 13] {
    let mut key = [kind as u8; 13];
    key[1..9].copy_from_slice(&number.to_le_bytes());
    key[9..].copy_from_slice(&index.to_le_bytes());
    key
}

/// Key of an object's name in its table.
pub(super) fn key_of_name(name: &ObjectName) -> NameKey {
    hashed(b"zllm object 1", &[&name.kind, &name.tenant, &name.id])
}

/// Key of all objects of a kind and tenant in their table.
pub(super) fn key_of_list(kind: &str, tenant: &str) -> NameKey {
    hashed(b"zllm object list 1", &[kind, tenant])
}

fn hashed(domain: &[u8], parts: &[&str]) -> NameKey {
    let mut hash = blake3::Hasher::new();
    hash.update(domain);
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    *hash.finalize().as_bytes()
}

pub(super) fn encode_head(head: &Head) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.u64(head.created_ms);
    out.option_u64(head.expires_ms);
    out.u64(head.value_bytes);
    let content = head.content.unwrap_or(Content { number: 0, pieces: 0, bytes: 0 });
    out.u8(head.content.is_some().into());
    out.u64(content.number);
    out.u32(content.pieces);
    out.u64(content.bytes);
    for part in [&head.name.kind, &head.name.tenant, &head.name.id] {
        out.string(part);
    }
    out.seal(&seal_key(Kind::Head, head.number, 0))
}

/// The head that these bytes are under this number, or what is wrong with them.
pub(super) fn decode_head(number: u64, bytes: &[u8]) -> Result<Head, &'static str> {
    let mut input = Reader::open(VERSION, &seal_key(Kind::Head, number, 0), bytes)?;
    let (created_ms, expires_ms, value_bytes) = (input.u64()?, input.option_u64()?, input.u64()?);
    let has_content = input.flag()?;
    let content = Content { number: input.u64()?, pieces: input.u32()?, bytes: input.u64()? };
    if !has_content && (content.number, content.pieces, content.bytes) != (0, 0, 0) {
        return Err("a content that is not set and not 0");
    }
    let name = ObjectName { kind: input.string()?, tenant: input.string()?, id: input.string()? };
    input.end()?;
    let content = has_content.then_some(content);
    Ok(Head { number, name, created_ms, expires_ms, value_bytes, content })
}

pub(super) fn encode_value(number: u64, value: &[u8]) -> Vec<u8> {
    encode(Kind::Value, number, 0, value)
}

/// The value of the object of this head, or what is wrong with these bytes.
pub(super) fn decode_value(head: &Head, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    let value = decode(Kind::Value, head.number, 0, bytes)?;
    if value.len() as u64 == head.value_bytes { Ok(value) } else { Err("another length than its head says") }
}

pub(super) fn encode_piece(content: u64, index: u32, piece: &[u8]) -> Vec<u8> {
    encode(Kind::Piece, content, index, piece)
}

/// This piece of a content, or what is wrong with these bytes.
pub(super) fn decode_piece(content: u64, index: u32, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    decode(Kind::Piece, content, index, bytes)
}

fn encode(kind: Kind, number: u64, index: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.bytes(bytes);
    out.seal(&seal_key(kind, number, index))
}

fn decode(kind: Kind, number: u64, index: u32, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    Ok(Reader::open(VERSION, &seal_key(kind, number, index), bytes)?.rest().to_vec())
}

#[cfg(test)]
mod tests;
