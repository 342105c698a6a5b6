//! The block ledger against a naive model, over random histories of leases, commits, releases and evictions.
//!
//! The model keeps no refcounts and no index: it stores whole token sequences and recounts everything each time.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use zllm_state::{
    BLOCK_TOKENS, BlockId, BlockKey, BlockLedger, Fingerprint, Grant, LeaseError, LeaseId, block_keys,
};

const FINGERPRINT: Fingerprint = Fingerprint([9; 32]);
const TOTAL_BLOCKS: u32 = 12;

#[derive(Debug, Clone)]
enum Op {
    /// A sequence of `blocks` blocks and `tail` tokens whose content comes from a small alphabet, so that prefixes meet.
    Lease {
        content: Vec<u8>,
        tail: usize,
        growth: usize,
    },
    /// Computes the next block of the `which`-th live lease; `content` is used beyond its prompt.
    Commit {
        which: usize,
        content: u8,
    },
    Release {
        which: usize,
    },
    EvictCached,
    EvictChain {
        content: Vec<u8>,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let content = || prop::collection::vec(0u8..2, 0..5);
    let op = prop_oneof![
        4 => (content(), 0..BLOCK_TOKENS, 1usize..200)
            .prop_map(|(content, tail, growth)| Op::Lease { content, tail, growth }),
        8 => (0usize..8, 0u8..2).prop_map(|(which, content)| Op::Commit { which, content }),
        3 => (0usize..8).prop_map(|which| Op::Release { which }),
        1 => Just(Op::EvictCached),
        1 => content().prop_map(|content| Op::EvictChain { content }),
    ];
    prop::collection::vec(op, 1..120)
}

fn tokens_of(content: &[u8], tail: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = content.iter().flat_map(|&c| [u32::from(c); BLOCK_TOKENS]).collect();
    tokens.extend(std::iter::repeat_n(7, tail));
    tokens
}

struct LiveLease {
    id: LeaseId,
    table: Vec<BlockId>,
    prompt: Vec<u32>,
    committed: Vec<u32>,
}

/// What should be on the device: each cached or used prefix as whole tokens, with the block that holds its end.
#[derive(Default)]
struct Model {
    indexed: BTreeMap<Vec<u32>, BlockId>,
    live: Vec<LiveLease>,
}

impl Model {
    fn longest_prefix(&self, tokens: &[u32]) -> Vec<BlockId> {
        let usable = tokens.len().saturating_sub(1) / BLOCK_TOKENS;
        (1..=usable).map_while(|blocks| self.indexed.get(&tokens[..blocks * BLOCK_TOKENS]).copied()).collect()
    }

    /// Blocks that some lease reads or writes, its duplicates and the blocks beside them included.
    fn used(&self) -> BTreeSet<BlockId> {
        let mut used = BTreeSet::new();
        for lease in &self.live {
            used.extend(lease.table.iter().copied());
            for end in (BLOCK_TOKENS..=lease.committed.len()).step_by(BLOCK_TOKENS) {
                used.insert(self.indexed[&lease.committed[..end]]);
            }
        }
        used
    }

    fn cached(&self) -> BTreeSet<BlockId> {
        let used = self.used();
        self.indexed.values().copied().filter(|id| !used.contains(id)).collect()
    }

    /// Learns from the ledger which cached blocks it gave up; the rules of eviction are asserted on the way.
    fn drop_evicted(&mut self, ledger: &BlockLedger, used_before: &BTreeSet<BlockId>) {
        let gone: Vec<Vec<u32>> = self
            .indexed
            .keys()
            .filter(|tokens| {
                let keys: Vec<_> = block_keys(BlockKey::root(FINGERPRINT, ""), tokens).collect();
                (ledger.resident_blocks(&keys) as usize) < keys.len()
            })
            .cloned()
            .collect();
        for tokens in gone {
            let id = self.indexed.remove(&tokens).expect("listed above");
            assert!(!used_before.contains(&id), "a block in use was evicted");
        }
        for tokens in self.indexed.keys().filter(|tokens| tokens.len() > BLOCK_TOKENS) {
            let parent = &tokens[..tokens.len() - BLOCK_TOKENS];
            assert!(self.indexed.contains_key(parent), "a prefix went before its suffix");
        }
    }
}

fn expect_lease(model: &Model, prompt: &[u32], capacity: usize) -> Result<(Vec<BlockId>, u32), LeaseError> {
    let needed = capacity.div_ceil(BLOCK_TOKENS) as u32;
    if needed > TOTAL_BLOCKS {
        return Err(LeaseError::NeverFits { needed_blocks: needed, total_blocks: TOTAL_BLOCKS });
    }
    let prefix = model.longest_prefix(prompt);
    let fresh = needed - prefix.len() as u32;
    let mut unavailable = model.used();
    unavailable.extend(prefix.iter().copied());
    let available = TOTAL_BLOCKS - unavailable.len() as u32;
    if fresh > available {
        return Err(LeaseError::NotNow { needed_blocks: fresh, available_blocks: available });
    }
    Ok((prefix, fresh))
}

fn check_grant(model: &Model, grant: &Grant, prefix: &[BlockId], fresh: u32) {
    assert_eq!(&grant.blocks[..prefix.len()], prefix);
    assert_eq!(grant.cached_tokens, prefix.len() * BLOCK_TOKENS);
    assert_eq!(grant.blocks.len(), prefix.len() + fresh as usize);
    let distinct: BTreeSet<_> = grant.blocks.iter().collect();
    assert_eq!(distinct.len(), grant.blocks.len(), "a block was granted twice in one lease");
    let used = model.used();
    for id in &grant.blocks[prefix.len()..] {
        assert!(!used.contains(id), "a fresh block belongs to another lease");
        assert!(!prefix.contains(id), "a fresh block is part of the prefix");
    }
}

fn apply(ledger: &mut BlockLedger, model: &mut Model, op: &Op) {
    let used_before = model.used();
    match op {
        Op::Lease { content, tail, growth } => {
            let mut prompt = tokens_of(content, *tail);
            prompt.push(5);
            let capacity = prompt.len() + growth;
            let expected = expect_lease(model, &prompt, capacity);
            match (ledger.lease(&prompt, capacity), expected) {
                (Ok(grant), Ok((prefix, fresh))) => {
                    check_grant(model, &grant, &prefix, fresh);
                    let committed = prompt[..grant.cached_tokens].to_vec();
                    model.drop_evicted(ledger, &used_before);
                    model.live.push(LiveLease { id: grant.lease, table: grant.blocks, prompt, committed });
                }
                (Err(got), Err(want)) => assert_eq!(got, want),
                (got, want) => panic!("ledger says {got:?}, model says {want:?}"),
            }
        }
        Op::Commit { which, content } if !model.live.is_empty() => {
            let at = which % model.live.len();
            let lease = &mut model.live[at];
            let start = lease.committed.len();
            if start / BLOCK_TOKENS == lease.table.len() {
                return;
            }
            let block: Vec<u32> = (start..start + BLOCK_TOKENS)
                .map(|position| lease.prompt.get(position).copied().unwrap_or(u32::from(*content)))
                .collect();
            ledger.commit(lease.id, &block);
            lease.committed.extend(&block);
            let own = lease.table[start / BLOCK_TOKENS];
            model.indexed.entry(lease.committed.clone()).or_insert(own);
        }
        Op::Release { which } if !model.live.is_empty() => {
            let lease = model.live.swap_remove(which % model.live.len());
            ledger.release(lease.id);
        }
        Op::Commit { .. } | Op::Release { .. } => {}
        Op::EvictCached => {
            let freed = ledger.evict_cached();
            assert_eq!(freed as usize, model.cached().len());
            model.drop_evicted(ledger, &used_before);
        }
        Op::EvictChain { content } => {
            let keys: Vec<_> = block_keys(BlockKey::root(FINGERPRINT, ""), &tokens_of(content, 0)).collect();
            let before = model.indexed.len();
            let freed = ledger.evict_chains(keys.iter());
            model.drop_evicted(ledger, &used_before);
            assert_eq!(before - model.indexed.len(), freed as usize);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn ledger_agrees_with_the_model(ops in ops()) {
        let mut ledger = BlockLedger::new(FINGERPRINT, TOTAL_BLOCKS, 1024);
        let mut model = Model::default();
        for op in &ops {
            apply(&mut ledger, &mut model, op);
            ledger.check().expect("invariants hold after every operation");
            let figures = ledger.figures();
            prop_assert_eq!(figures.used_blocks as usize, model.used().len());
            prop_assert_eq!(figures.cached_blocks as usize, model.cached().len());
            prop_assert_eq!(figures.used_blocks + figures.cached_blocks + figures.free_blocks, TOTAL_BLOCKS);
        }
        while let Some(lease) = model.live.pop() {
            ledger.release(lease.id);
        }
        ledger.check().expect("invariants hold at the end");
        ledger.evict_cached();
        prop_assert_eq!(ledger.figures().free_blocks, TOTAL_BLOCKS);
    }
}

#[test]
fn the_least_recently_used_leaf_goes_first() {
    let mut ledger = BlockLedger::new(FINGERPRINT, 4, 1);
    for content in [[0, 1], [2, 3]] {
        let prompt = tokens_of(&content, 0);
        let grant = ledger.lease(&prompt, prompt.len()).expect("two of four");
        prompt.chunks_exact(BLOCK_TOKENS).for_each(|block| ledger.commit(grant.lease, block));
        ledger.release(grant.lease);
    }
    // The first chain is used again, so the second one's leaf is the oldest.
    let mut first = tokens_of(&[0, 1], 0);
    first.push(5);
    let again = ledger.lease(&first, first.len()).expect("both blocks of the prefix and one evicted");
    assert_eq!(again.cached_tokens, 2 * BLOCK_TOKENS);
    let second: Vec<_> = block_keys(BlockKey::root(FINGERPRINT, ""), &tokens_of(&[2, 3], 0)).collect();
    assert_eq!(ledger.resident_blocks(&second), 1, "its leaf went, its prefix stayed");
    ledger.check().expect("invariants");
}

#[test]
fn a_request_larger_than_the_arena_is_refused_with_both_numbers() {
    let mut ledger = BlockLedger::new(FINGERPRINT, 4, 1);
    let error = ledger.lease(&[1; 10], 257).expect_err("five blocks of four");
    assert_eq!(error, LeaseError::NeverFits { needed_blocks: 5, total_blocks: 4 });
    assert!(error.to_string().contains("5 KV blocks") && error.to_string().contains("has 4"), "{error}");
}
