//! Making room, and evicting on request. The order is that of `policy.rs`; what may go at all is said in `books.rs`.

use super::nodes::{NONE, NodeId, flag};
use super::{ArenaId, Index};
use crate::key::BlockKey;
use crate::tier::{ByTier, Tier};

impl Index {
    /// Brings an arena back under its budgets: unused blocks leave the device for RAM, and what RAM does not hold is
    /// dropped. The caller made sure that this can be done.
    pub(super) fn make_room(&mut self, id: ArenaId) {
        while self.arena(id).ram_used() > self.arena(id).budget.ram_blocks {
            // A block in RAM may have children on the device: then those go first.
            let dropped = self.drop_from_ram(id) || self.drop_from_device(id);
            assert!(dropped, "the caller made sure of room in RAM");
        }
        while self.arena(id).device_used() > self.arena(id).budget.device_blocks {
            if self.has_room_in_ram(id, true) {
                let first = self.arena(id).device_order.first().copied();
                let first = first.expect("the caller made sure that enough is not leased");
                self.arena_mut(id).device_clock = first.clock().max(self.arena(id).device_clock);
                self.move_to_ram(first.node);
                self.evicted.device += 1;
            } else {
                let dropped = self.drop_from_device(id);
                assert!(dropped, "the caller made sure of room on the device");
            }
        }
    }

    /// Whether one more block can be in RAM, after another was dropped if need be: one that waits for its write only if
    /// it `may_lose` that.
    fn has_room_in_ram(&mut self, id: ArenaId, may_lose: bool) -> bool {
        let arena = self.arena(id);
        // What waits stands last in the order: when the first does, all do.
        let loses = arena.ram_order.first().is_some_and(|first| self.nodes[first.node].is(flag::WANTED));
        arena.ram_used() < arena.budget.ram_blocks || (may_lose || !loses) && self.drop_from_ram(id)
    }

    fn drop_from_ram(&mut self, id: ArenaId) -> bool {
        let Some(first) = self.arena(id).ram_order.first().copied() else { return false };
        self.arena_mut(id).ram_clock = first.clock().max(self.arena(id).ram_clock);
        self.drop_from_memory(first.node);
        self.evicted.ram += 1;
        true
    }

    fn drop_from_device(&mut self, id: ArenaId) -> bool {
        let mut order = self.arena(id).device_order.iter();
        let Some(first) = order.find(|rank| self.is_droppable(rank.node)).copied() else { return false };
        self.arena_mut(id).device_clock = first.clock().max(self.arena(id).device_clock);
        self.drop_from_memory(first.node);
        self.evicted.device += 1;
        true
    }

    fn move_to_ram(&mut self, id: NodeId) {
        let arena = ArenaId(self.nodes[id].arena);
        let clock = self.arena(arena).ram_clock;
        self.edit(id, |node| {
            node.set(flag::DEVICE, false);
            node.memory_base = clock;
        });
    }

    fn drop_from_memory(&mut self, id: NodeId) {
        assert!(self.is_droppable(id), "suffixes go before prefixes, and what is held does not go");
        self.leave_memory(id);
        self.prune(id);
    }

    /// A block's copy on SSD goes: the key is to be deleted there.
    pub(super) fn leave_ssd(&mut self, id: NodeId) {
        self.edit(id, |node| node.set(flag::STORED, false));
        self.deletes.insert(self.nodes[id].key);
    }

    /// Evicts copies on SSD until `needed` more bytes are within `budget`; returns whether they are. Pinned blocks, those
    /// that are being read and whatever is above them stay.
    pub fn make_stored_room(&mut self, needed: u64, budget: u64) -> bool {
        while self.stored_bytes.saturating_add(needed) > budget {
            let Some(first) = self.stored_order.first().copied() else { return false };
            self.stored_clock = first.clock().max(self.stored_clock);
            self.leave_ssd(first.node);
            self.prune(first.node);
            self.evicted.ssd += 1;
        }
        true
    }

    /// Keys to delete on SSD since the last call. A block that is stored again is not among them.
    pub fn take_deletes(&mut self) -> Vec<BlockKey> {
        std::mem::take(&mut self.deletes).into_iter().collect()
    }

    /// How many keys the next call gives.
    pub fn waiting_deletes(&self) -> usize {
        self.deletes.len()
    }

    /// Evicts what these keys name, from one tier or from all, and counts what went from where. A key stands after its
    /// parent's. Nothing that is leased, pinned, held or above such a block goes. From the device blocks go to RAM, or
    /// nowhere if there is no room that can be made. What waits for its write to SSD is in no other place: asked to leave
    /// the device or RAM it stays in memory.
    pub fn evict<'k>(
        &mut self,
        keys: impl DoubleEndedIterator<Item = &'k BlockKey>,
        from: Option<Tier>,
    ) -> ByTier {
        let mut evicted = ByTier::default();
        for key in keys.rev() {
            if let Some(id) = self.nodes.find(key) {
                self.evict_node(id, from, &mut evicted);
            }
        }
        evicted
    }

    /// Evicts everything, from one tier or from all, as [`Index::evict`] does.
    pub fn evict_all(&mut self, from: Option<Tier>) -> ByTier {
        let mut evicted = ByTier::default();
        let leaves: Vec<NodeId> = self.nodes.ids().filter(|&id| self.nodes[id].child == NONE).collect();
        for leaf in leaves {
            let mut next = leaf;
            // Up from the leaf; a parent with other children is left to the last of them.
            while next != NONE && !self.nodes[next].is(flag::FREE) {
                let parent = self.nodes[next].parent;
                self.evict_node(next, from, &mut evicted);
                next = parent;
            }
        }
        evicted
    }

    fn evict_node(&mut self, id: NodeId, from: Option<Tier>, evicted: &mut ByTier) {
        if self.nodes[id].is(flag::PINNED) {
            return;
        }
        let takes = |tier: Tier| from.is_none_or(|from| from == tier);
        if takes(Tier::Ssd) {
            if self.is_deletable(id) {
                self.leave_ssd(id);
                evicted.ssd += 1;
            }
            // What waits or is on its way there is not wanted any more.
            let is_writing = self.nodes[id].is(flag::WRITING);
            self.edit(id, |node| {
                node.set(flag::WANTED, false);
                node.set(flag::UNWANTED, is_writing);
            });
        }
        // Never when the copy on SSD was to go: the wish for it went too.
        let waits = self.nodes[id].is(flag::WANTED);
        let on_device = self.nodes[id].is(flag::DEVICE);
        if from == Some(Tier::Device) {
            if on_device && self.is_movable(id) {
                let arena = ArenaId(self.nodes[id].arena);
                let is_droppable = self.is_droppable(id) && !waits;
                if self.has_room_in_ram(arena, false) {
                    self.move_to_ram(id);
                    evicted.device += 1;
                } else if is_droppable {
                    self.drop_from_memory(id);
                    evicted.device += 1;
                }
            }
            return;
        }
        if self.is_droppable(id) && !waits && (takes(Tier::Ram) && !on_device || from.is_none()) {
            self.leave_memory(id);
            *evicted.of(if on_device { Tier::Device } else { Tier::Ram }) += 1;
        }
        self.prune(id);
    }
}
