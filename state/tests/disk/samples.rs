//! Blocks and sessions to store, all of a seed: the same in each run, so what is read can be compared with what is made
//! again.

use crate::random::Random;
use zllm_state::{BlockKey, Fingerprint, Manifest, StoredBlock, block_keys};

/// The parent of all sample blocks.
pub(crate) fn root() -> BlockKey {
    BlockKey::root(Fingerprint([7; 32]), "tenant")
}

/// Tokens of the sequence of this seed.
pub(crate) fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(150_000) as u32).collect()
}

/// The bytes of a sample block: noise that its key decides.
pub(crate) fn bytes(key: &BlockKey, length: usize) -> Vec<u8> {
    let mut seed = [0; 8];
    seed.copy_from_slice(&key.as_bytes()[..8]);
    let mut random = Random::new(u64::from_le_bytes(seed));
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The blocks of a sequence of this many tokens, each of so many bytes, first to last.
pub(crate) fn chain(seed: u64, count: usize, block_bytes: usize) -> Vec<(StoredBlock, Vec<u8>)> {
    let tokens = tokens(seed, count);
    let mut parent = root();
    let keys: Vec<_> = block_keys(root(), &tokens).collect();
    let blocks = tokens.chunks(64).zip(keys).enumerate();
    let stored = blocks.map(|(position, (tokens, key))| {
        let block = StoredBlock {
            key,
            parent: std::mem::replace(&mut parent, key),
            position: position as u32,
            tokens: tokens.to_vec(),
            bytes: block_bytes as u64,
            written_ms: 1000 + position as u64,
        };
        (block, bytes(&key, block_bytes))
    });
    stored.collect()
}

/// One block that follows on the root, and its bytes.
pub(crate) fn block(seed: u64, block_bytes: usize) -> (StoredBlock, Vec<u8>) {
    chain(seed, 64, block_bytes).remove(0)
}

/// The session that has computed all of its tokens.
pub(crate) fn session(id: &str, seed: u64, tokens: usize, generation: u64) -> Manifest {
    let tokens = self::tokens(seed, tokens);
    Manifest {
        tenant: "tenant".into(),
        id: id.into(),
        model: "model".into(),
        root: root(),
        keys: block_keys(root(), &tokens).collect(),
        tokens,
        generation,
        sampled: 17,
        turns: generation,
        hits: 1,
        hit_tokens: 64,
        created_ms: 5,
        last_use_ms: 6,
        pinned: generation.is_multiple_of(2),
        ttl_ms: Some(7).filter(|_| generation.is_multiple_of(3)),
    }
}

/// What the files in `testdata/kv_store` hold: two full blocks and a tail, a block of chunks of three lengths, and a session. Never to
/// be changed: the files were written with it.
pub(crate) fn fixture() -> (Vec<(StoredBlock, Vec<u8>)>, Vec<Manifest>) {
    let blocks = [chain(21, 140, 3_000), chain(22, 64, 278_500)].concat();
    (blocks, vec![session("fixture", 21, 140, 3)])
}
