//! Leases: the claim of one sequence on its blocks, from admission to release.
//!
//! Invariants:
//!
//! * A lease references every node of its chain, so nothing of its prefix can go. Its other blocks are private to it.
//! * Where two leases compute the same block, the second keeps its own copy until its release and references the node
//!   beside it. Where the node is in the arena of another model (one model loaded twice), it stays there: the lease is
//!   then *apart* and its further blocks stay private.
//! * A lease never writes into a node. Where its prefix ends inside a block, it gets a copy of that block.
//! * A tail is a leaf. Once a sibling in the same tier continues it, it is of no use and goes when nobody holds it.

use super::children::Among;
use super::lookup::Path;
use super::nodes::{Node, NodeId, flag};
use super::{ArenaId, Copy, Grant, Index, LeaseId};
use crate::key::{BLOCK_TOKENS, BlockKey};
use crate::tier::{ByTier, Tier};
use std::collections::HashSet;

/// Why no lease was granted. The index is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The request is larger than the whole device budget.
    #[error(
        "the request needs {needed_blocks} KV blocks, the model has {total_blocks} in all; shorten the prompt, lower \
         max_tokens or raise the model's kv_budget"
    )]
    NeverFits {
        /// Blocks that the request needs.
        needed_blocks: u32,
        /// Blocks that may be on the device.
        total_blocks: u32,
    },
    /// Others hold too much just now; try again after a release, the end of a read from SSD or of a copy to it.
    #[error("{needed_blocks} more KV blocks are needed, {available_blocks} can be had until others finish")]
    NotNow {
        /// Fresh blocks that the request needs beside its cached prefix.
        needed_blocks: u32,
        /// Free blocks and cached ones that may be evicted.
        available_blocks: u32,
    },
    /// Nothing is at work in the arena, but pinned blocks that are not on SSD fill it: no waiting will help.
    #[error(
        "{needed_blocks} more KV blocks are needed, pinned sessions leave {available_blocks}; unpin some, or save them"
    )]
    Pinned {
        /// Fresh blocks that the request needs beside its cached prefix.
        needed_blocks: u32,
        /// Blocks that can be had.
        available_blocks: u32,
    },
}

pub(super) struct Lease {
    pub(super) arena: ArenaId,
    pub(super) root: NodeId,
    /// The nodes of the sequence so far, in token order. `table[i]` is the slot of `chain[i]` but for duplicates.
    pub(super) chain: Vec<NodeId>,
    pub(super) table: Vec<u32>,
    /// Nothing is committed any more.
    pub(super) apart: bool,
    now_ms: u64,
}

impl Lease {
    fn end(&self) -> NodeId {
        self.chain.last().copied().unwrap_or(self.root)
    }
}

impl Index {
    /// Takes the blocks of a sequence that begins with `tokens` and may grow to `capacity_tokens`: its cached prefix is
    /// referenced and counts as on the device from now on, the rest is fresh; what others left is moved to RAM or
    /// dropped where room is needed.
    ///
    /// # Errors
    /// [`LeaseError`] with both numbers; the index is then unchanged.
    ///
    /// # Panics
    /// When the capacity does not cover the tokens.
    pub fn lease(
        &mut self,
        arena: ArenaId,
        root: BlockKey,
        tokens: &[u32],
        capacity_tokens: usize,
        now_ms: u64,
    ) -> Result<Grant, LeaseError> {
        assert!(capacity_tokens >= tokens.len(), "a lease must at least cover its prompt");
        let needed = u32::try_from(capacity_tokens.div_ceil(BLOCK_TOKENS)).unwrap_or(u32::MAX);
        let total_blocks = self.arena(arena).budget.device_blocks;
        if needed > total_blocks {
            return Err(LeaseError::NeverFits { needed_blocks: needed, total_blocks });
        }
        let mut path = self.find(arena, root, tokens, true).memory;
        let fresh = needed - path.blocks.len() as u32;
        let mut available = self.available(arena, &path);
        if fresh > available && path.partial.is_some() {
            // The block to copy from would have to go to make room: then it is no use.
            path.partial = None;
            available = self.available(arena, &path);
        }
        if fresh > available {
            return Err(self.refusal(arena, fresh, available));
        }
        let near_miss = self.near_miss(root, tokens);
        let cached = self.cached(&path);
        let root = self.root(root);
        self.edit(root, |node| node.leases += 1);
        for &id in &path.blocks {
            self.reference(id, arena);
            self.use_again(id, now_ms);
        }
        if let Some((id, _)) = path.partial {
            // Not given away before the caller knows the slot.
            self.edit(id, |node| node.holds += 1);
            self.use_again(id, now_ms);
        }
        let mut table: Vec<u32> = path.blocks.iter().map(|&id| self.nodes[id].slot).collect();
        table.extend(self.take_private(arena, fresh));
        let copy = path.partial.map(|(id, _)| {
            self.edit(id, |node| node.holds -= 1);
            Copy { from: self.nodes[id].slot, to: table[path.blocks.len()] }
        });
        let lease = LeaseId(self.name());
        let blocks = table.clone();
        self.arena_mut(arena).leases += 1;
        self.leases.insert(lease, Lease { arena, root, chain: path.blocks, table, apart: false, now_ms });
        Ok(Grant { lease, blocks, cached, copy, near_miss })
    }

    /// Blocks that a lease with this prefix can have beside it.
    fn available(&self, id: ArenaId, path: &Path) -> u32 {
        let arena = self.arena(id);
        let is_free = |node: &&NodeId| !self.nodes[**node].is(flag::STUCK);
        let is_unlocked =
            |node: &&NodeId| self.nodes[**node].leases == 0 || !self.nodes[**node].is(flag::DEVICE);
        let locked = arena.locked_nodes + path.blocks.iter().filter(is_unlocked).count() as u32;
        let source = path.partial.iter().map(|(id, _)| id);
        let stuck = arena.stuck_nodes + path.blocks.iter().chain(source).filter(is_free).count() as u32;
        let on_device =
            arena.budget.device_blocks.saturating_sub(locked + arena.private + arena.restoring_device);
        let in_all = arena
            .slots()
            .saturating_sub(stuck + arena.private + arena.restoring_device + arena.restoring_ram);
        on_device.min(in_all)
    }

    fn refusal(&self, id: ArenaId, needed_blocks: u32, available_blocks: u32) -> LeaseError {
        let arena = self.arena(id);
        let reading = arena.restoring_device + arena.restoring_ram > 0;
        if arena.leases == 0 && !reading && arena.copying == 0 {
            return LeaseError::Pinned { needed_blocks, available_blocks };
        }
        LeaseError::NotNow { needed_blocks, available_blocks }
    }

    fn cached(&self, path: &Path) -> ByTier {
        let mut cached = ByTier::default();
        let full = path.blocks.iter().map(|&id| (id, BLOCK_TOKENS));
        for (id, tokens) in full.chain(path.partial) {
            *cached.of(self.nodes[id].came_from()) += tokens as u64;
        }
        cached
    }

    /// A lease holds the node, on the device.
    fn reference(&mut self, id: NodeId, arena: ArenaId) {
        let clock = self.arena(arena).device_clock;
        self.edit(id, |node| {
            assert!(node.is(flag::MEMORY) && node.arena == arena.0, "a lease uses what is in its arena");
            node.leases = node.leases.checked_add(1).expect("at most 65,535 leases share a block");
            if !node.is(flag::DEVICE) {
                node.set(flag::DEVICE, true);
                node.memory_base = clock;
            }
        });
    }

    /// Another lease uses what is there.
    fn use_again(&mut self, id: NodeId, now_ms: u64) {
        self.touch(id, true, now_ms);
        self.edit(id, |node| node.set(flag::RESTORED, false));
        if self.options.store_on_second_use && self.nodes[id].uses >= 2 {
            self.want(id);
        }
    }

    fn take_private(&mut self, id: ArenaId, count: u32) -> Vec<u32> {
        self.arena_mut(id).private += count;
        self.make_room(id);
        let arena = self.arena_mut(id);
        (0..count).map(|_| arena.take_slot()).collect()
    }

    /// The next full block of a lease holds `tokens`. From here on it is immutable and found by others. Where an equal
    /// one is kept already, the lease keeps its copy and references that one too.
    ///
    /// # Panics
    /// When the lease is unknown, all its blocks are committed, or `tokens` are not 64.
    pub fn commit(&mut self, lease: LeaseId, tokens: &[u32]) {
        assert_eq!(tokens.len(), BLOCK_TOKENS, "a block is committed when it is full");
        let held = self.leases.get(&lease).expect("commit names a live lease");
        let own = *held.table.get(held.chain.len()).expect("commit names a block of the lease");
        let (arena, parent, now_ms) = (held.arena, held.end(), held.now_ms);
        if held.apart {
            return;
        }
        let id = self.block(parent, tokens);
        let node = &self.nodes[id];
        if node.is(flag::MEMORY) && node.arena != arena.0 {
            self.leases.get_mut(&lease).expect("looked up above").apart = true;
            return;
        }
        let is_new = !node.is(flag::MEMORY);
        if is_new {
            self.arena_mut(arena).private -= 1;
            self.enter_memory(id, arena, own, true);
        }
        // A duplicate may be in RAM, and stays there: its lease works on a copy of its own.
        self.edit(id, |node| {
            node.leases = node.leases.checked_add(1).expect("at most 65,535 leases share a block");
        });
        self.touch(id, is_new, now_ms);
        self.leases.get_mut(&lease).expect("looked up above").chain.push(id);
        if is_new {
            self.drop_continued(id);
        }
    }

    /// Ends a lease. Its nodes stay cached, and so does `tail`, the tokens computed after the last full block; its other
    /// blocks are free at once.
    ///
    /// # Panics
    /// When the lease is unknown (a ticket is given back exactly once), or the tail is a full block or longer.
    pub fn release(&mut self, lease: LeaseId, tail: &[u32], now_ms: u64) {
        assert!(tail.len() < BLOCK_TOKENS, "a full block is committed");
        let held = self.leases.remove(&lease).expect("release names a live lease");
        let shared: HashSet<u32> = held.chain.iter().map(|&id| self.nodes[id].slot).collect();
        let mut own = held.table.clone();
        own.retain(|slot| !shared.contains(slot));
        if let Some(&slot) = held.table.get(held.chain.len())
            && !tail.is_empty()
            && !held.apart
            && self.keep_tail(&held, tail, slot, now_ms)
        {
            own.retain(|&other| other != slot);
        }
        let arena = self.arena_mut(held.arena);
        arena.private -= own.len() as u32;
        arena.free.extend(own);
        arena.leases -= 1;
        for &id in held.chain.iter().rev() {
            self.edit(id, |node| node.leases -= 1);
            self.touch(id, false, now_ms);
        }
        self.edit(held.root, |node| node.leases -= 1);
        self.prune(held.root);
    }

    /// Makes a node of a lease's last block; returns whether the node took the slot (and perhaps gave it up again).
    fn keep_tail(&mut self, held: &Lease, tail: &[u32], slot: u32, now_ms: u64) -> bool {
        let id = self.block(held.end(), tail);
        let is_new = !self.nodes[id].is(flag::MEMORY);
        if is_new {
            self.arena_mut(held.arena).private -= 1;
            self.enter_memory(id, held.arena, slot, true);
        }
        self.touch(id, is_new, now_ms);
        if is_new {
            self.drop_continued(id);
            self.drop_if_continued(id);
        }
        is_new
    }
}

impl Node {
    /// The tier that a lease finds the block in.
    fn came_from(&self) -> Tier {
        match (self.is(flag::RESTORED), self.is(flag::DEVICE)) {
            (true, _) => Tier::Ssd,
            (false, true) => Tier::Device,
            (false, false) => Tier::Ram,
        }
    }
}

/// Tails that a sibling continues.
impl Index {
    /// A node has come to a tier: the tail that it continues there goes. There is at most one that is not held, as it
    /// would itself be continued by another.
    pub(super) fn drop_continued(&mut self, id: NodeId) {
        let (tokens, Node { parent, arena, .. }) = (self.nodes.tokens(id), &self.nodes[id]);
        let (parent, arena) = (*parent, *arena);
        let shorter = &tokens[..tokens.len() - 1];
        for flags in [flag::MEMORY, flag::STORED] {
            if shorter.is_empty() || !self.nodes[id].is(flags) {
                continue;
            }
            let accept = |node: &Node| flags != flag::MEMORY || node.arena == arena;
            let among = Among { flags, accept: &accept };
            let before = self.nodes.last_until(self.nodes[parent].child, shorter, &among);
            if let Some(before) = before {
                self.drop_if_continued(before);
            }
        }
    }

    /// Drops what a sibling makes needless of a tail that nobody holds.
    pub(super) fn drop_if_continued(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        let held = flag::PINNED | flag::RESTORING | flag::WRITING | flag::FREE;
        if !node.is_tail() || node.is(held) || node.holds > 0 {
            return;
        }
        let (tokens, arena) = (self.nodes.tokens(id), node.arena);
        let (in_memory, on_ssd) = (node.is(flag::MEMORY), node.is(flag::STORED));
        let (parent, here) = (node.parent, |node: &Node| node.arena == arena);
        if in_memory && let Some(longer) = self.continued_by(parent, &tokens, flag::MEMORY, &here) {
            if self.nodes[id].is(flag::WANTED) {
                self.edit(id, |node| node.set(flag::WANTED, false));
                self.want(longer);
            }
            self.leave_memory(id);
        }
        if on_ssd && self.continued_by(parent, &tokens, flag::STORED, &|_| true).is_some() {
            self.leave_ssd(id);
        }
        self.prune(id);
    }

    /// The block in which these tokens after `parent` are: their own, or a longer one that took their place when they were a
    /// tail. One that is on SSD comes before others.
    pub fn holder(&self, parent: &BlockKey, tokens: &[u32]) -> Option<BlockKey> {
        let parent = self.nodes.find(parent)?;
        let longer = |flags: u16| self.continued_by(parent, tokens, flags, &|_| true);
        let own = self.nodes.child_of(parent, tokens);
        let holder = own.or_else(|| longer(flag::STORED)).or_else(|| longer(flag::MEMORY | flag::WRITING));
        holder.map(|id| self.nodes[id].key)
    }

    /// The first block, of those with any of the flags, that begins with a tail's tokens and goes on.
    fn continued_by(
        &self,
        parent: NodeId,
        tokens: &[u32],
        flags: u16,
        accept: &dyn Fn(&Node) -> bool,
    ) -> Option<NodeId> {
        let next = self.nodes.first_after(self.nodes[parent].child, tokens, &Among { flags, accept })?;
        (self.nodes.compare(next, tokens).1 == tokens.len()).then_some(next)
    }
}
