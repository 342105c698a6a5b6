//! Names of KV blocks: a chain of hashes, so that equal keys mean equal tokens from position 0 to the block's end.
//!
//! `key = blake3(parent's key || the block's tokens as little-endian u32)`. The first block's parent is the root:
//! `blake3("zllm kv root 1" || fingerprint || tenant)`, where the fingerprint is the hash of whatever else the KV depends
//! on (weights, tokenizer, rope, KV format and layout). So two sequences share a block exactly when they share the
//! model, the tenant and every token up to its end, on every machine and in every run.
//!
//! A full block has [`BLOCK_TOKENS`] tokens. A tail, the last and partly filled block of a sequence, has fewer and is
//! named in the same way; the lengths differ, so a tail's name is never a full block's.

use std::fmt;

/// Tokens in one KV block. The block is the unit of sharing, of eviction and of accounting.
pub const BLOCK_TOKENS: usize = 64;

/// Hash of everything beside the tokens that decides the content of a KV block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Name of a block: the hash of its parent's name and its own tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey([u8; 32]);

impl BlockKey {
    /// The parent of every first block of a tenant; the tenant that is nobody in particular is `""`.
    pub fn root(fingerprint: Fingerprint, tenant: &str) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(b"zllm kv root 1").update(&fingerprint.0).update(tenant.as_bytes());
        Self(*hash.finalize().as_bytes())
    }

    /// The key of the block that holds `tokens` and follows this one.
    ///
    /// # Panics
    /// When `tokens` is empty or more than a block holds.
    pub fn child(&self, tokens: &[u32]) -> Self {
        assert!((1..=BLOCK_TOKENS).contains(&tokens.len()), "a block holds 1 to {BLOCK_TOKENS} tokens");
        let mut bytes = [0u8; 32 + BLOCK_TOKENS * 4];
        bytes[..32].copy_from_slice(&self.0);
        for (out, token) in bytes[32..].chunks_exact_mut(4).zip(tokens) {
            out.copy_from_slice(&token.to_le_bytes());
        }
        Self(*blake3::hash(&bytes[..32 + tokens.len() * 4]).as_bytes())
    }

    /// The key of these bytes, as it was stored.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Keys of all blocks of `tokens`, first to last, that of the tail included.
pub fn block_keys(root: BlockKey, tokens: &[u32]) -> impl Iterator<Item = BlockKey> + '_ {
    let mut parent = root;
    tokens.chunks(BLOCK_TOKENS).map(move |block| {
        parent = parent.child(block);
        parent
    })
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockKey({:02x}{:02x}{:02x}{:02x}..)", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x}{:02x}{:02x}..)", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(fingerprint: u8, tenant: &str) -> BlockKey {
        BlockKey::root(Fingerprint([fingerprint; 32]), tenant)
    }

    #[test]
    fn a_key_depends_on_model_tenant_order_and_every_earlier_token() {
        let tokens: Vec<u32> = (0..130).collect();
        let keys: Vec<_> = block_keys(root(1, ""), &tokens).collect();
        assert_eq!(keys.len(), 3, "two full blocks and a tail");
        for other in [root(2, ""), root(1, "a")] {
            assert!(block_keys(other, &tokens).zip(&keys).all(|(other, key)| other != *key));
        }

        let mut first_changed = tokens.clone();
        first_changed[0] = 99;
        let changed: Vec<_> = block_keys(root(1, ""), &first_changed).collect();
        assert!(
            changed.iter().zip(&keys).all(|(changed, key)| changed != key),
            "all depend on the first token"
        );

        let mut tail_changed = tokens;
        tail_changed[129] = 99;
        let changed: Vec<_> = block_keys(root(1, ""), &tail_changed).collect();
        assert_eq!(keys[..2], changed[..2]);
        assert_ne!(keys[2], changed[2]);
    }

    /// The layout is a stored format: checked against the hash itself.
    #[test]
    fn the_hashed_bytes_are_parent_then_little_endian_tokens() {
        let tokens: Vec<u32> = (1000..1064).collect();
        let root = root(7, "t");
        let mut bytes = b"zllm kv root 1".to_vec();
        bytes.extend([7u8; 32]);
        bytes.push(b't');
        assert_eq!(root.as_bytes(), blake3::hash(&bytes).as_bytes());
        for length in [64, 3] {
            let mut bytes = root.as_bytes().to_vec();
            tokens[..length].iter().for_each(|t| bytes.extend_from_slice(&t.to_le_bytes()));
            assert_eq!(root.child(&tokens[..length]).as_bytes(), blake3::hash(&bytes).as_bytes());
        }
    }
}
