//! Accounting of one device's KV blocks, and the prefix index over the full ones.
//!
//! Each block is in exactly one state:
//!
//! * free;
//! * private to one lease, which writes it;
//! * indexed under its [`BlockKey`]: full, immutable, shared by any number of leases. With no lease on it, it is
//!   *cached*: it waits for the next request with the same prefix, or for eviction.
//!
//! Invariants (all verified by [`BlockLedger::check`]):
//!
//! * A lease references every indexed block of its prefix, so an unreferenced block has only unreferenced children.
//!   Hence all cached blocks can be evicted leaf by leaf, and `free + cached` is what a new lease can get.
//! * Only an unreferenced leaf is ever evicted: suffixes go before prefixes, and nothing in use goes at all. Among the
//!   leaves the least recently used goes first.
//! * A lease's block table never changes while it lives. When two leases compute the same block, the second keeps its
//!   own copy until its release and references the indexed one beside it.
//! * Blocks for the whole request are taken at admission, so a running sequence never runs out.

mod check;

use crate::key::{BLOCK_TOKENS, BlockKey, Fingerprint};
use std::collections::{BTreeSet, HashMap};

/// Number of a block in the device's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// One sequence's claim on its blocks, from admission to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(u64);

/// What a new lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The name to commit and release under.
    pub lease: LeaseId,
    /// The block table, in token order: `blocks[i]` holds tokens `64 i .. 64 (i + 1)`.
    pub blocks: Vec<BlockId>,
    /// Leading tokens whose KV is already there; a multiple of 64, and less than the prompt's length.
    pub cached_tokens: usize,
}

/// Why no lease was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The request is larger than the whole arena.
    #[error(
        "the request needs {needed_blocks} KV blocks, the model has {total_blocks} in all; shorten the prompt, lower \
         max_tokens or raise the model's kv_budget"
    )]
    NeverFits {
        /// Blocks that the request needs.
        needed_blocks: u32,
        /// Blocks that exist.
        total_blocks: u32,
    },
    /// Other leases hold too much just now; try again after a release.
    #[error("{needed_blocks} more KV blocks are needed, {available_blocks} can be had until others finish")]
    NotNow {
        /// Fresh blocks that the request needs beside its cached prefix.
        needed_blocks: u32,
        /// Free blocks and cached ones that may be evicted.
        available_blocks: u32,
    },
}

/// How the arena is used, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockFigures {
    /// All blocks of the arena.
    pub total_blocks: u32,
    /// Held by leases, private or shared.
    pub used_blocks: u32,
    /// Full, indexed and unreferenced.
    pub cached_blocks: u32,
    /// Holding nothing.
    pub free_blocks: u32,
    /// Size of one block.
    pub block_bytes: u64,
}

/// The accounting itself. One for each loaded model, whose fingerprint roots all keys.
#[derive(Debug)]
pub struct BlockLedger {
    root: BlockKey,
    block_bytes: u64,
    slots: Vec<Slot>,
    free: Vec<BlockId>,
    index: HashMap<BlockKey, BlockId>,
    /// Unreferenced leaves by last use: what may be evicted next.
    evictable: BTreeSet<(u64, BlockId)>,
    /// Indexed blocks without a lease, leaves or not.
    cached_blocks: u32,
    leases: HashMap<LeaseId, Lease>,
    next_lease: u64,
    /// Counts uses; orders evictions without a clock.
    use_counter: u64,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Free,
    Private(LeaseId),
    Indexed(IndexedBlock),
}

#[derive(Debug, Clone, Copy)]
struct IndexedBlock {
    key: BlockKey,
    parent: Option<BlockId>,
    /// Indexed blocks whose parent this is.
    children: u32,
    /// Leases that reference it.
    references: u32,
    last_use: u64,
}

#[derive(Debug)]
struct Lease {
    table: Vec<BlockId>,
    /// The indexed blocks of the sequence so far, in token order. `chain[i] == table[i]` but for duplicates.
    chain: Vec<BlockId>,
    /// Key of the chain's last block, or the root.
    key: BlockKey,
}

impl BlockLedger {
    /// A ledger of `total_blocks` free blocks of `block_bytes` each.
    pub fn new(fingerprint: Fingerprint, total_blocks: u32, block_bytes: u64) -> Self {
        Self {
            root: BlockKey::root(fingerprint, ""),
            block_bytes,
            slots: vec![Slot::Free; total_blocks as usize],
            free: (0..total_blocks).rev().map(BlockId).collect(),
            index: HashMap::new(),
            evictable: BTreeSet::new(),
            cached_blocks: 0,
            leases: HashMap::new(),
            next_lease: 0,
            use_counter: 0,
        }
    }

    /// The blocks of the longest prefix of `tokens` that is indexed, and the last one's key. At least one token is left
    /// to compute: the logits of the last token are needed and are not kept.
    fn longest_prefix(&self, tokens: &[u32]) -> (Vec<BlockId>, BlockKey) {
        let usable = tokens.len().saturating_sub(1) / BLOCK_TOKENS;
        let mut key = self.root;
        let mut blocks = Vec::new();
        for block in tokens.chunks_exact(BLOCK_TOKENS).take(usable) {
            let next = key.child(block);
            let Some(&id) = self.index.get(&next) else { break };
            key = next;
            blocks.push(id);
        }
        (blocks, key)
    }

    /// Takes the blocks of a sequence that begins with `tokens` and may grow to `capacity_tokens`: its cached prefix
    /// is referenced, the rest is fresh, and cached blocks of others are evicted when nothing else is free.
    ///
    /// # Errors
    /// [`LeaseError`] with both numbers; the ledger is then unchanged.
    pub fn lease(&mut self, tokens: &[u32], capacity_tokens: usize) -> Result<Grant, LeaseError> {
        assert!(capacity_tokens >= tokens.len(), "a lease must at least cover its prompt");
        let needed = capacity_tokens.div_ceil(BLOCK_TOKENS);
        let total_blocks = self.slots.len() as u32;
        if needed > self.slots.len() {
            let needed_blocks = u32::try_from(needed).unwrap_or(u32::MAX);
            return Err(LeaseError::NeverFits { needed_blocks, total_blocks });
        }
        let (prefix, key) = self.longest_prefix(tokens);
        let fresh = (needed - prefix.len()) as u32;
        let woken = prefix.iter().filter(|&&id| self.indexed(id).references == 0).count() as u32;
        let available_blocks = self.available_blocks() - woken;
        if fresh > available_blocks {
            return Err(LeaseError::NotNow { needed_blocks: fresh, available_blocks });
        }

        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        for &id in &prefix {
            self.reference(id);
        }
        let mut table = prefix.clone();
        for _ in 0..fresh {
            let id = self.take_block();
            self.slots[id.0 as usize] = Slot::Private(lease);
            table.push(id);
        }
        let grant = Grant { lease, blocks: table.clone(), cached_tokens: prefix.len() * BLOCK_TOKENS };
        self.leases.insert(lease, Lease { table, chain: prefix, key });
        Ok(grant)
    }

    /// Indexes the next full block of a lease, which holds `tokens`. From here on the block is immutable. Where an equal
    /// one was indexed before, the lease keeps its copy and references that one too.
    ///
    /// # Panics
    /// When the lease is unknown, or all its blocks are committed.
    pub fn commit(&mut self, lease: LeaseId, tokens: &[u32]) {
        let held = self.leases.get(&lease).expect("commit names a live lease");
        let position = held.chain.len();
        let own = *held.table.get(position).expect("commit names a block of the lease");
        let parent = held.chain.last().copied();
        let key = held.key.child(tokens);
        let existing = self.index.get(&key).copied();

        let id = match existing {
            Some(id) => {
                self.reference(id);
                id
            }
            None => {
                assert!(matches!(self.slots[own.0 as usize], Slot::Private(owner) if owner == lease));
                self.use_counter += 1;
                self.slots[own.0 as usize] = Slot::Indexed(IndexedBlock {
                    key,
                    parent,
                    children: 0,
                    references: 1,
                    last_use: self.use_counter,
                });
                self.index.insert(key, own);
                if let Some(parent) = parent {
                    self.indexed_mut(parent).children += 1;
                }
                own
            }
        };
        let held = self.leases.get_mut(&lease).expect("looked up above");
        held.chain.push(id);
        held.key = key;
    }

    /// Ends a lease. Its indexed blocks stay cached; its private ones, and copies of indexed ones, are free at once.
    ///
    /// # Panics
    /// When the lease is unknown: a ticket is given back exactly once.
    pub fn release(&mut self, lease: LeaseId) {
        let held = self.leases.remove(&lease).expect("release names a live lease");
        for id in held.table {
            if matches!(self.slots[id.0 as usize], Slot::Private(owner) if owner == lease) {
                self.slots[id.0 as usize] = Slot::Free;
                self.free.push(id);
            }
        }
        for id in held.chain {
            self.unreference(id);
        }
    }

    /// Frees every cached block; returns how many.
    pub fn evict_cached(&mut self) -> u32 {
        let before = self.free.len();
        while self.evict_oldest() {}
        (self.free.len() - before) as u32
    }

    /// Frees the cached blocks of chains, last key first, as far as nothing else uses them; returns how many. A key
    /// stands after its parent's.
    pub fn evict_chains<'k>(&mut self, keys: impl DoubleEndedIterator<Item = &'k BlockKey>) -> u32 {
        let mut freed = 0;
        for key in keys.rev() {
            let Some(&id) = self.index.get(key) else { continue };
            let block = *self.indexed(id);
            if block.references == 0 && block.children == 0 {
                self.evict(id, block);
                freed += 1;
            }
        }
        freed
    }

    /// Leading blocks of a chain that are on the device. A search by halves will do: a block's parents are there as
    /// long as it is.
    pub fn resident_blocks(&self, keys: &[BlockKey]) -> u32 {
        keys.partition_point(|key| self.index.contains_key(key)) as u32
    }

    /// How the arena is used just now.
    pub fn figures(&self) -> BlockFigures {
        let total_blocks = self.slots.len() as u32;
        let free_blocks = self.free.len() as u32;
        BlockFigures {
            total_blocks,
            used_blocks: total_blocks - free_blocks - self.cached_blocks,
            cached_blocks: self.cached_blocks,
            free_blocks,
            block_bytes: self.block_bytes,
        }
    }

    /// Leases that have not been released.
    pub fn live_leases(&self) -> usize {
        self.leases.len()
    }

    fn available_blocks(&self) -> u32 {
        self.free.len() as u32 + self.cached_blocks
    }

    fn take_block(&mut self) -> BlockId {
        if self.free.is_empty() {
            assert!(self.evict_oldest(), "the lease was checked against what can be evicted");
        }
        self.free.pop().expect("a block is free or was just evicted")
    }

    fn evict_oldest(&mut self) -> bool {
        let Some(&(_, id)) = self.evictable.first() else { return false };
        let block = *self.indexed(id);
        self.evict(id, block);
        true
    }

    fn evict(&mut self, id: BlockId, block: IndexedBlock) {
        assert!(block.references == 0 && block.children == 0, "only an unreferenced leaf is evicted");
        self.evictable.remove(&(block.last_use, id));
        self.index.remove(&block.key);
        self.slots[id.0 as usize] = Slot::Free;
        self.free.push(id);
        self.cached_blocks -= 1;
        if let Some(parent) = block.parent {
            self.indexed_mut(parent).children -= 1;
            self.note_if_evictable(parent);
        }
    }

    fn reference(&mut self, id: BlockId) {
        self.use_counter += 1;
        let now = self.use_counter;
        let block = self.indexed_mut(id);
        let before = (block.last_use, id);
        let was_cached = block.references == 0;
        block.references += 1;
        block.last_use = now;
        if was_cached {
            self.cached_blocks -= 1;
            self.evictable.remove(&before);
        }
    }

    fn unreference(&mut self, id: BlockId) {
        self.use_counter += 1;
        let now = self.use_counter;
        let block = self.indexed_mut(id);
        assert!(block.references > 0, "a reference is dropped once");
        block.references -= 1;
        block.last_use = now;
        if block.references == 0 {
            self.cached_blocks += 1;
            self.note_if_evictable(id);
        }
    }

    fn note_if_evictable(&mut self, id: BlockId) {
        let block = *self.indexed(id);
        if block.references == 0 && block.children == 0 {
            self.evictable.insert((block.last_use, id));
        }
    }

    fn indexed(&self, id: BlockId) -> &IndexedBlock {
        match &self.slots[id.0 as usize] {
            Slot::Indexed(block) => block,
            other => panic!("block {id:?} is not indexed but {other:?}"),
        }
    }

    fn indexed_mut(&mut self, id: BlockId) -> &mut IndexedBlock {
        match &mut self.slots[id.0 as usize] {
            Slot::Indexed(block) => block,
            other => panic!("block {id:?} is not indexed but {other:?}"),
        }
    }
}
