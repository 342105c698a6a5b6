//! Names of KV blocks: a chain of hashes, so that equal keys mean equal tokens from position 0 to the block's end.
//!
//! `key[i] = blake3(key[i - 1] || tokens of block i as little-endian u32)`, and `key[-1]` is the fingerprint of whatever
//! else the KV depends on (weights, tokenizer, template, KV format). Two sequences share a block exactly when they
//! share the fingerprint and every token up to its end.

use std::fmt;

/// Tokens in one KV block. The block is the unit of sharing, of eviction and of accounting.
pub const BLOCK_TOKENS: usize = 64;

/// Hash of everything beside the tokens that decides the content of a KV block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Name of a full block: the hash of its parent's name and its own 64 tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey([u8; 32]);

impl BlockKey {
    /// The parent of every first block.
    pub fn root(fingerprint: Fingerprint) -> Self {
        Self(fingerprint.0)
    }

    /// The key of the block that holds `tokens` and follows this one.
    ///
    /// # Panics
    /// When `tokens` is not one full block.
    pub fn child(&self, tokens: &[u32]) -> Self {
        assert_eq!(tokens.len(), BLOCK_TOKENS, "a block key names a full block");
        let mut bytes = [0u8; 32 + BLOCK_TOKENS * 4];
        bytes[..32].copy_from_slice(&self.0);
        for (out, token) in bytes[32..].chunks_exact_mut(4).zip(tokens) {
            out.copy_from_slice(&token.to_le_bytes());
        }
        Self(*blake3::hash(&bytes).as_bytes())
    }
}

/// Keys of all full blocks of `tokens`, first to last; a partial tail has no key.
pub fn block_keys(fingerprint: Fingerprint, tokens: &[u32]) -> impl Iterator<Item = BlockKey> + '_ {
    let mut parent = BlockKey::root(fingerprint);
    tokens.chunks_exact(BLOCK_TOKENS).map(move |block| {
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

    #[test]
    fn a_key_depends_on_fingerprint_order_and_every_earlier_token() {
        let tokens: Vec<u32> = (0..130).collect();
        let keys: Vec<_> = block_keys(Fingerprint([1; 32]), &tokens).collect();
        assert_eq!(keys.len(), 2, "the tail of two tokens has no key");
        assert_ne!(keys, block_keys(Fingerprint([2; 32]), &tokens).collect::<Vec<_>>());

        let mut first_changed = tokens.clone();
        first_changed[0] = 99;
        let changed: Vec<_> = block_keys(Fingerprint([1; 32]), &first_changed).collect();
        assert_ne!(keys[0], changed[0]);
        assert_ne!(keys[1], changed[1], "a later block's key must depend on the first token");

        let mut tail_changed = tokens;
        tail_changed[129] = 99;
        assert_eq!(keys, block_keys(Fingerprint([1; 32]), &tail_changed).collect::<Vec<_>>());
    }

    /// The layout is a stored format later on: `blake3(parent || little-endian tokens)`, checked against the hash itself.
    #[test]
    fn the_hashed_bytes_are_parent_then_little_endian_tokens() {
        let tokens: Vec<u32> = (1000..1064).collect();
        let mut bytes = vec![7u8; 32];
        tokens.iter().for_each(|t| bytes.extend_from_slice(&t.to_le_bytes()));
        let key = BlockKey::root(Fingerprint([7; 32])).child(&tokens);
        assert_eq!(&key.0, blake3::hash(&bytes).as_bytes());
    }
}
