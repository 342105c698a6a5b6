//! The records of blocks and sessions: what their fields are, and what must hold of them. FORMATS.md has the layouts as
//! tables.

use super::space;
use crate::database::{CHECKSUM_BYTES, Checksum, Reader, Writer, half};
use crate::{BLOCK_TOKENS, BlockKey};

/// First byte of each record that this version writes.
pub(super) const VERSION: u8 = 1;

/// What is known of a block on disk beside its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its name.
    pub key: BlockKey,
    /// The block before it; for a first block the root's key, which names no block.
    pub parent: BlockKey,
    /// Blocks before it in its sequence: 0 for a first block.
    pub position: u32,
    /// Its tokens, 1 to [`BLOCK_TOKENS`] of them; fewer than that for a tail.
    pub tokens: Vec<u32>,
    /// Bytes of KV that were stored.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970.
    pub written_ms: u64,
}

/// What a session is when nobody is asking it anything: the record of which it is made again after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Whose session it is; `""` is nobody in particular.
    pub tenant: String,
    /// The session's id within its tenant.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// The parent of its first block: model and tenant as a hash.
    pub root: BlockKey,
    /// All tokens of the session, prompts and answers.
    pub tokens: Vec<u32>,
    /// Keys of the blocks that hold the tokens whose KV is computed, a tail's key at the end if there is one.
    pub keys: Vec<BlockKey>,
    /// Counts the session's changes; of two manifests the higher one is the newer.
    pub generation: u64,
    /// Tokens drawn so far, which is the position of the sampler's next draw.
    pub sampled: u64,
    /// Requests answered.
    pub turns: u64,
    /// Turns that found something in the cache.
    pub hits: u64,
    /// Prompt tokens of all turns that needed no computing.
    pub hit_tokens: u64,
    /// When the session began, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it was last used, in milliseconds since 1970.
    pub last_use_ms: u64,
    /// Whether its blocks stay whatever else wants the space.
    pub pinned: bool,
    /// How long it is kept after its last use; `None` is as long as there is space.
    pub ttl_ms: Option<u64>,
}

/// A block's record as the table holds it: the block, where its chunks lie, and what they must hash to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockRecord {
    pub(super) block: StoredBlock,
    /// First half of its chunks' keys.
    pub(super) number: u64,
    /// One for each chunk.
    pub(super) checksums: Vec<Checksum>,
}

/// Checksum of a chunk. The block's key and the chunk's place are hashed along, so that a right chunk in a wrong place
/// is damage as well.
pub(super) fn chunk_checksum(key: &BlockKey, chunk: u32, bytes: &[u8]) -> Checksum {
    let mut hash = blake3::Hasher::new();
    hash.update(key.as_bytes()).update(&chunk.to_le_bytes()).update(bytes);
    half(hash.finalize())
}

/// Key of a session in its table: a hash, so that it has one width and any bytes of it are a key.
pub(super) fn session_key(tenant: &str, id: &str) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(b"zllm session 1").update(&(tenant.len() as u64).to_le_bytes());
    hash.update(tenant.as_bytes()).update(id.as_bytes());
    *hash.finalize().as_bytes()
}

pub(super) fn encode_block(record: &BlockRecord) -> Vec<u8> {
    let block = &record.block;
    assert!((1..=BLOCK_TOKENS).contains(&block.tokens.len()), "a block holds 1 to {BLOCK_TOKENS} tokens");
    assert_eq!(record.checksums.len() as u64, space::chunks(block.bytes), "one checksum a chunk");
    let mut out = Writer::new(VERSION);
    out.bytes(block.parent.as_bytes());
    out.u32(block.position);
    out.u64(record.number);
    out.u64(block.bytes);
    out.u64(block.written_ms);
    out.u32s(&block.tokens);
    record.checksums.iter().for_each(|checksum| out.bytes(checksum));
    out.seal(block.key.as_bytes())
}

/// The record that these bytes are under this key, or what is wrong with them.
pub(super) fn decode_block(key: [u8; 32], bytes: &[u8]) -> Result<BlockRecord, &'static str> {
    let mut input = Reader::open(VERSION, &key, bytes)?;
    let parent = BlockKey::from_bytes(input.array()?);
    let position = input.u32()?;
    let number = input.u64()?;
    let stored_bytes = input.u64()?;
    let written_ms = input.u64()?;
    let tokens = input.u32s()?;
    if !(1..=BLOCK_TOKENS).contains(&tokens.len()) {
        return Err("a number of tokens that no block has");
    }
    let checksums = input.rest();
    if space::chunks(stored_bytes).checked_mul(CHECKSUM_BYTES as u64) != Some(checksums.len() as u64) {
        return Err("another number of checksums than its chunks need");
    }
    let checksums = checksums.as_chunks().0.to_vec();
    let key = BlockKey::from_bytes(key);
    if parent.child(&tokens) != key {
        return Err("a key that is not the hash of its parent and tokens");
    }
    let block = StoredBlock { key, parent, position, tokens, bytes: stored_bytes, written_ms };
    Ok(BlockRecord { block, number, checksums })
}

pub(super) fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.string(&manifest.tenant);
    out.string(&manifest.id);
    out.string(&manifest.model);
    out.bytes(manifest.root.as_bytes());
    out.u32s(&manifest.tokens);
    out.u32(u32::try_from(manifest.keys.len()).expect("fewer keys than tokens"));
    manifest.keys.iter().for_each(|key| out.bytes(key.as_bytes()));
    out.u64(manifest.generation);
    out.u64(manifest.sampled);
    out.u64(manifest.turns);
    out.u64(manifest.hits);
    out.u64(manifest.hit_tokens);
    out.u64(manifest.created_ms);
    out.u64(manifest.last_use_ms);
    out.u8(manifest.pinned.into());
    out.option_u64(manifest.ttl_ms);
    out.seal(&session_key(&manifest.tenant, &manifest.id))
}

/// The manifest that these bytes are under this key, or what is wrong with them.
pub(super) fn decode_manifest(key: [u8; 32], bytes: &[u8]) -> Result<Manifest, &'static str> {
    let mut input = Reader::open(VERSION, &key, bytes)?;
    let (tenant, id, model) = (input.string()?, input.string()?, input.string()?);
    let root = BlockKey::from_bytes(input.array()?);
    let tokens = input.u32s()?;
    let keys = input.u32()?;
    let (keys, []) = input.take(u64::from(keys) * 32)?.as_chunks() else { unreachable!("a multiple of 32") };
    let manifest = Manifest {
        tenant,
        id,
        model,
        root,
        tokens,
        keys: keys.iter().map(|key| BlockKey::from_bytes(*key)).collect(),
        generation: input.u64()?,
        sampled: input.u64()?,
        turns: input.u64()?,
        hits: input.u64()?,
        hit_tokens: input.u64()?,
        created_ms: input.u64()?,
        last_use_ms: input.u64()?,
        pinned: input.flag()?,
        ttl_ms: input.option_u64()?,
    };
    input.end()?;
    if session_key(&manifest.tenant, &manifest.id) != key {
        return Err("another session's key");
    }
    Ok(manifest)
}

/// Bytes of a block's record with this many tokens and chunks.
pub(super) fn block_record_bytes(tokens: u64, chunks: u64) -> u64 {
    1 + 32 + 4 + 3 * 8 + 4 + 4 * tokens + CHECKSUM_BYTES as u64 * (chunks + 1)
}

/// Bytes of a manifest's record.
pub(super) fn manifest_record_bytes(manifest: &Manifest) -> u64 {
    let strings = manifest.tenant.len() + manifest.id.len() + manifest.model.len();
    let lists = 4 * manifest.tokens.len() + 32 * manifest.keys.len();
    (1 + 5 * 4 + strings + 32 + lists + 8 * 8 + 2 + CHECKSUM_BYTES) as u64
}

#[cfg(test)]
mod tests;
