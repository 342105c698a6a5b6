//! The nodes of the index: one for each block that is kept somewhere, and one for each root.
//!
//! Nodes lie in a slab of fixed chunks (no slack from doubling) and are found by key through a hash table of node
//! numbers. A node of the root has no tokens. The tokens of a node are packed to 18 bits, enough for the vocabularies
//! of nearly all models; a block with a larger id has its tokens in a side table.
//!
//! Invariants: a node's parent is a node; a full block has 64 tokens and a tail, which has fewer, has no children; the
//! children of a node are the tree of `children.rs`, and no two of them have equal tokens.

use crate::key::{BLOCK_TOKENS, BlockKey};
use hashbrown::HashTable;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Number of a node in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u32);

/// No node.
pub(super) const NONE: NodeId = NodeId(u32::MAX);

/// What is true of a node. Parents see the first six of their children.
pub(super) mod flag {
    /// In the arena: `slot` holds its KV.
    pub(in crate::index) const MEMORY: u16 = 1;
    /// Of those, on the device; the others are in RAM.
    pub(in crate::index) const DEVICE: u16 = 1 << 1;
    /// A copy is on SSD.
    pub(in crate::index) const STORED: u16 = 1 << 2;
    /// A copy is on its way to SSD.
    pub(in crate::index) const WRITING: u16 = 1 << 3;
    /// In memory and not to be dropped: somebody holds it or something below it.
    pub(in crate::index) const STUCK: u16 = 1 << 4;
    /// The five above.
    pub(in crate::index) const OWN_SEEN: u16 = 0x1f;
    /// On SSD and in no memory: seen by parents, derived from the others and never set by itself.
    pub(in crate::index) const SSD_ALONE: u16 = 1 << 5;
    /// Waits to be written to SSD.
    pub(in crate::index) const WANTED: u16 = 1 << 6;
    /// Being written, and the bytes are still read from the slot.
    pub(in crate::index) const COPYING: u16 = 1 << 7;
    /// A read from SSD is on its way.
    pub(in crate::index) const RESTORING: u16 = 1 << 8;
    /// Came from SSD and was not used since.
    pub(in crate::index) const RESTORED: u16 = 1 << 9;
    /// A user asked to keep a copy.
    pub(in crate::index) const PINNED: u16 = 1 << 10;
    /// Its tokens are in the side table.
    pub(in crate::index) const WIDE: u16 = 1 << 11;
    /// Listed in the eviction order of its tier of memory.
    pub(in crate::index) const IN_MEMORY_ORDER: u16 = 1 << 12;
    /// Listed in the eviction order of the SSD.
    pub(in crate::index) const IN_STORED_ORDER: u16 = 1 << 13;
    /// Was evicted while being written: the copy goes as soon as it is there.
    pub(in crate::index) const UNWANTED: u16 = 1 << 14;
    /// The place in the slab is free.
    pub(in crate::index) const FREE: u16 = 1 << 15;
}

const TOKEN_BITS: u32 = 18;
const PACKED_BYTES: usize = BLOCK_TOKENS * TOKEN_BITS as usize / 8;
const TOKEN_MASK: u64 = (1 << TOKEN_BITS) - 1;

/// Up to 64 token ids of 18 bits, four in nine bytes.
#[derive(Clone, Copy)]
pub(super) struct PackedTokens([u8; PACKED_BYTES]);

impl PackedTokens {
    fn pack(tokens: &[u32]) -> Self {
        assert!(tokens.len() <= BLOCK_TOKENS);
        let mut bytes = [0; PACKED_BYTES];
        for (four, out) in tokens.chunks(4).zip(bytes.chunks_exact_mut(9)) {
            let bits = four.iter().rev().fold(0u128, |bits, &token| bits << TOKEN_BITS | u128::from(token));
            out.copy_from_slice(&bits.to_le_bytes()[..9]);
        }
        Self(bytes)
    }

    fn unpack(&self, out: &mut [u32; BLOCK_TOKENS]) {
        for (nine, four) in self.0.chunks_exact(9).zip(out.chunks_exact_mut(4)) {
            let low = u64::from_le_bytes(nine[..8].try_into().expect("eight bytes"));
            let high = low >> (3 * TOKEN_BITS) | u64::from(nine[8]) << 10;
            for (at, token) in four[..3].iter_mut().enumerate() {
                *token = (low >> (at as u32 * TOKEN_BITS) & TOKEN_MASK) as u32;
            }
            four[3] = high as u32;
        }
    }
}

/// One block. 224 bytes, so that a million of them with all that finds and orders them stay under 250 MB.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) key: BlockKey,
    tokens: PackedTokens,
    pub(super) parent: NodeId,
    /// Top of the tree of this node's children.
    pub(super) child: NodeId,
    /// Below it in the tree of its siblings.
    pub(super) left: NodeId,
    pub(super) right: NodeId,
    /// Clock of its tier of memory at the last use there; see `policy.rs`.
    pub(super) memory_base: u32,
    /// Clock of the SSD at the last use.
    pub(super) stored_base: u32,
    pub(super) last_use_ms: u64,
    /// Its block of the arena, while it is in memory.
    pub(super) slot: u32,
    /// Leases that reference it; for a root, leases under it.
    pub(super) leases: u16,
    /// Reads from SSD whose prefix it is, and calls under way.
    pub(super) holds: u16,
    /// See [`flag`].
    pub(super) flags: u16,
    /// Index of what its copy takes on SSD.
    pub(super) size: u16,
    /// Index of the arena, while it is in memory.
    pub(super) arena: u8,
    pub(super) len: u8,
    /// Leases that used it, as far as a byte counts.
    pub(super) uses: u8,
    /// The seen flags of the siblings in the tree from this node down, its own included.
    pub(super) below: u8,
}

const _: () = assert!(size_of::<Node>() == 224);

impl Node {
    pub(super) fn is(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    pub(super) fn set(&mut self, flags: u16, on: bool) {
        if on { self.flags |= flags } else { self.flags &= !flags }
    }

    pub(super) fn is_root(&self) -> bool {
        self.len == 0
    }

    pub(super) fn is_tail(&self) -> bool {
        !self.is_root() && usize::from(self.len) < BLOCK_TOKENS
    }

    pub(super) fn seen(&self) -> u8 {
        let alone = self.is(flag::STORED) && !self.is(flag::MEMORY);
        (self.flags & flag::OWN_SEEN) as u8 | if alone { flag::SSD_ALONE as u8 } else { 0 }
    }
}

const CHUNK: usize = 1024;

/// All nodes.
pub(super) struct Nodes {
    chunks: Vec<Vec<Node>>,
    /// First free place; the next is its `parent`.
    free: NodeId,
    count: usize,
    table: HashTable<NodeId>,
    wide: HashMap<NodeId, Box<[u32]>>,
}

impl std::ops::Index<NodeId> for Nodes {
    type Output = Node;
    fn index(&self, id: NodeId) -> &Node {
        &self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }
}

impl std::ops::IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }
}

fn hash(key: &BlockKey) -> u64 {
    u64::from_le_bytes(key.as_bytes()[..8].try_into().expect("a key has 32 bytes"))
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: NONE, count: 0, table: HashTable::new(), wide: HashMap::new() }
    }

    /// Nodes, those of roots included.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn find(&self, key: &BlockKey) -> Option<NodeId> {
        self.table.find(hash(key), |&id| self[id].key == *key).copied()
    }

    /// A new node under `parent` (`NONE` for a root, which has no tokens).
    pub(super) fn create(&mut self, key: BlockKey, parent: NodeId, tokens: &[u32]) -> NodeId {
        assert!((parent == NONE) == tokens.is_empty(), "a root alone has no tokens");
        assert!(parent == NONE || !self[parent].is_tail(), "nothing follows a tail");
        let wide = tokens.iter().any(|&token| u64::from(token) > TOKEN_MASK);
        let node = Node {
            key,
            tokens: PackedTokens::pack(if wide { &[] } else { tokens }),
            parent,
            child: NONE,
            left: NONE,
            right: NONE,
            memory_base: 0,
            stored_base: 0,
            last_use_ms: 0,
            slot: 0,
            leases: 0,
            holds: 0,
            flags: if wide { flag::WIDE } else { 0 },
            size: 0,
            arena: 0,
            len: tokens.len() as u8,
            uses: 0,
            below: 0,
        };
        let id = self.place(node);
        if wide {
            self.wide.insert(id, tokens.into());
        }
        let Self { table, chunks, .. } = self;
        let key_of = |id: &NodeId| hash(&chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK].key);
        table.insert_unique(hash(&key), id, key_of);
        if parent != NONE {
            self.link(parent, id);
        }
        id
    }

    fn place(&mut self, node: Node) -> NodeId {
        self.count += 1;
        if self.free != NONE {
            let id = self.free;
            self.free = self[id].parent;
            self[id] = node;
            return id;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(node);
        let id = last * CHUNK + self.chunks[last].len() - 1;
        NodeId(u32::try_from(id).ok().filter(|&id| id != NONE.0).expect("fewer than four billion blocks"))
    }

    /// Forgets a node that has no children.
    pub(super) fn remove(&mut self, id: NodeId) {
        let Node { key, parent, child, .. } = self[id];
        assert!(child == NONE, "a node with children is still needed");
        if parent != NONE {
            self.unlink(parent, id);
        }
        self.table.find_entry(hash(&key), |&other| other == id).expect("each node is in the table").remove();
        self.wide.remove(&id);
        let free = self.free;
        self[id].flags = flag::FREE;
        self[id].parent = free;
        self.free = id;
        self.count -= 1;
    }

    /// Numbers of all nodes, in no meaningful order.
    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        let all = self.chunks.iter().enumerate();
        all.flat_map(|(chunk, nodes)| {
            let used = nodes.iter().enumerate().filter(|(_, node)| !node.is(flag::FREE));
            used.map(move |(at, _)| NodeId((chunk * CHUNK + at) as u32))
        })
    }

    /// Writes the node's tokens to the head of `out`; returns how many.
    pub(super) fn read_tokens(&self, id: NodeId, out: &mut [u32; BLOCK_TOKENS]) -> usize {
        let node = &self[id];
        let len = usize::from(node.len);
        if node.is(flag::WIDE) {
            out[..len].copy_from_slice(&self.wide[&id]);
        } else {
            node.tokens.unpack(out);
        }
        len
    }

    pub(super) fn tokens(&self, id: NodeId) -> Vec<u32> {
        let mut tokens = [0; BLOCK_TOKENS];
        let len = self.read_tokens(id, &mut tokens);
        tokens[..len].to_vec()
    }

    /// The node's tokens beside `other`: which comes first, a prefix before what continues it; and how many leading
    /// tokens both share.
    pub(super) fn compare(&self, id: NodeId, other: &[u32]) -> (Ordering, usize) {
        let mut tokens = [0; BLOCK_TOKENS];
        let len = self.read_tokens(id, &mut tokens);
        let shared = tokens[..len].iter().zip(other).take_while(|(own, other)| own == other).count();
        let order = match (tokens[..len].get(shared), other.get(shared)) {
            (Some(own), Some(other)) => own.cmp(other),
            (own, other) => own.is_some().cmp(&other.is_some()),
        };
        (order, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_whatever_their_size_and_number() {
        let mut nodes = Nodes::new();
        let root = nodes.create(BlockKey::from_bytes([1; 32]), NONE, &[]);
        for (at, (len, step)) in
            [(64, 4_161), (63, 4_161), (1, 262_143), (64, 262_144), (5, u32::MAX / 5)].into_iter().enumerate()
        {
            let tokens: Vec<u32> = (0..len).map(|at| at * step + step.min(1000)).collect();
            let id = nodes.create(BlockKey::from_bytes([at as u8 + 2; 32]), root, &tokens);
            assert_eq!(nodes.tokens(id), tokens);
            assert_eq!(nodes.find(&BlockKey::from_bytes([at as u8 + 2; 32])), Some(id));
            assert_eq!(nodes.compare(id, &tokens), (Ordering::Equal, tokens.len()));
        }
        let max: Vec<u32> = vec![(1 << 18) - 1; 64];
        let id = nodes.create(BlockKey::from_bytes([9; 32]), root, &max);
        assert_eq!((nodes.tokens(id), nodes[id].is(flag::WIDE)), (max, false));
    }
}
