//! What is derived from the nodes: counters, orders of eviction, and what a parent knows of its children.
//!
//! A node is changed in [`Index::edit`] alone. It takes the node out of the books, lets the change happen and enters it
//! again; then the same for the parent, if it sees a difference. So the books follow from the nodes at all times.

use super::nodes::{NONE, Node, NodeId, flag};
use super::{ArenaId, Index};
use crate::key::BlockKey;

impl Index {
    pub(super) fn edit(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let before = self.nodes[id].seen();
        self.uncount(id);
        change(&mut self.nodes[id]);
        self.count(id);
        self.tell_parents(id, before);
    }

    fn tell_parents(&mut self, id: NodeId, before: u8) {
        let (mut id, mut before) = (id, before);
        while self.nodes[id].seen() != before && self.nodes[id].parent != NONE {
            let parent = self.nodes[id].parent;
            self.nodes.refresh(parent, id);
            before = self.nodes[parent].seen();
            self.uncount(parent);
            self.count(parent);
            id = parent;
        }
    }

    /// Takes a node out of counters and orders.
    pub(super) fn uncount(&mut self, id: NodeId) {
        self.count_by(id, u32::wrapping_sub, u64::wrapping_sub);
        let node = &self.nodes[id];
        if node.is(flag::IN_MEMORY_ORDER) {
            let (rank, on_device) = (self.memory_rank(id), node.is(flag::DEVICE));
            let arena = self.arena_mut(ArenaId(self.nodes[id].arena));
            let order = if on_device { &mut arena.device_order } else { &mut arena.ram_order };
            assert!(order.remove(&rank), "{id:?} is in the order that it is marked to be in");
        }
        if self.nodes[id].is(flag::IN_STORED_ORDER) {
            let rank = self.stored_rank(id);
            assert!(self.stored_order.remove(&rank), "{id:?} is in the order of the SSD");
        }
        self.nodes[id].set(flag::IN_MEMORY_ORDER | flag::IN_STORED_ORDER, false);
    }

    /// Decides anew whether a node is stuck, and enters it into counters and orders.
    pub(super) fn count(&mut self, id: NodeId) {
        let children = self.nodes.children_flags(id);
        let node = &mut self.nodes[id];
        let stuck = node.is(flag::MEMORY) && (is_held(node) || children & flag::STUCK != 0);
        node.set(flag::STUCK, stuck);
        self.count_by(id, u32::wrapping_add, u64::wrapping_add);
        if self.is_movable(id) {
            let (rank, on_device) = (self.memory_rank(id), self.nodes[id].is(flag::DEVICE));
            self.nodes[id].set(flag::IN_MEMORY_ORDER, true);
            let arena = self.arena_mut(ArenaId(self.nodes[id].arena));
            if on_device {
                arena.device_order.insert(rank)
            } else {
                arena.ram_order.insert(rank)
            };
        }
        if self.is_deletable(id) {
            let rank = self.stored_rank(id);
            self.nodes[id].set(flag::IN_STORED_ORDER, true);
            self.stored_order.insert(rank);
        }
    }

    /// On the device: may it be moved to RAM? In RAM: may it be dropped?
    pub(super) fn is_movable(&self, id: NodeId) -> bool {
        let (node, children) = (&self.nodes[id], self.nodes.children_flags(id));
        match (node.is(flag::MEMORY), node.is(flag::DEVICE)) {
            (false, _) => false,
            (true, true) => node.leases == 0 && children & flag::DEVICE == 0,
            (true, false) => self.is_droppable(id),
        }
    }

    /// May the copy in memory go?
    pub(super) fn is_droppable(&self, id: NodeId) -> bool {
        let (node, children) = (&self.nodes[id], self.nodes.children_flags(id));
        node.is(flag::MEMORY) && !node.is(flag::STUCK) && children & flag::MEMORY == 0
    }

    /// May the copy on SSD go?
    pub(super) fn is_deletable(&self, id: NodeId) -> bool {
        let (node, children) = (&self.nodes[id], self.nodes.children_flags(id));
        let kept = node.is(flag::PINNED | flag::RESTORING) || children & (flag::STORED | flag::WRITING) != 0;
        node.is(flag::STORED) && !kept
    }

    fn count_by(&mut self, id: NodeId, add: fn(u32, u32) -> u32, add_bytes: fn(u64, u64) -> u64) {
        let node = &self.nodes[id];
        let bytes = self.sizes.get(usize::from(node.size)).copied().unwrap_or(0);
        if node.is(flag::STORED) {
            self.stored_bytes = add_bytes(self.stored_bytes, bytes);
            self.stored_blocks = add_bytes(self.stored_blocks, 1);
        } else if node.is(flag::WANTED | flag::WRITING) {
            self.unsaved_bytes = add_bytes(self.unsaved_bytes, bytes);
        }
        if !node.is(flag::MEMORY) {
            return;
        }
        let (stuck, leased) = (u32::from(node.is(flag::STUCK)), u32::from(node.leases > 0));
        let copying = u32::from(node.is(flag::COPYING));
        let arena = self.arenas[usize::from(node.arena)].as_mut().expect("a node in memory has an arena");
        arena.stuck_nodes = add(arena.stuck_nodes, stuck);
        arena.copying = add(arena.copying, copying);
        if node.is(flag::DEVICE) {
            arena.device_nodes = add(arena.device_nodes, 1);
            arena.locked_nodes = add(arena.locked_nodes, leased);
        } else {
            arena.ram_nodes = add(arena.ram_nodes, 1);
            arena.stuck_ram_nodes = add(arena.stuck_ram_nodes, stuck);
        }
    }

    /// The node of a root, made when it is new. Whoever makes it hangs something on it or prunes it.
    pub(super) fn root(&mut self, key: BlockKey) -> NodeId {
        self.nodes.find(&key).unwrap_or_else(|| self.nodes.create(key, NONE, &[]))
    }

    /// The node of a block, made when it is new.
    pub(super) fn block(&mut self, parent: NodeId, tokens: &[u32]) -> NodeId {
        if let Some(id) = self.nodes.child_of(parent, tokens) {
            return id;
        }
        let key = self.nodes[parent].key.child(tokens);
        let id = self.nodes.create(key, parent, tokens);
        if self.pins.contains(&key) {
            self.edit(id, |node| node.set(flag::PINNED, true));
        }
        id
    }

    /// A block's KV is in `slot` now, which counts as on the device or in RAM.
    pub(super) fn enter_memory(&mut self, id: NodeId, arena_id: ArenaId, slot: u32, on_device: bool) {
        let arena = self.arena(arena_id);
        let base = if on_device { arena.device_clock } else { arena.ram_clock };
        let size = arena.size;
        self.edit(id, |node| {
            assert!(!node.is(flag::MEMORY), "a block has one place in memory");
            node.set(flag::MEMORY, true);
            node.set(flag::DEVICE, on_device);
            node.arena = arena_id.0;
            node.slot = slot;
            node.memory_base = base;
            if !node.is(flag::STORED) {
                node.size = size;
            }
        });
    }

    /// A block's copy in memory goes, and with it the wish to write it to SSD.
    pub(super) fn leave_memory(&mut self, id: NodeId) {
        let Node { arena, slot, .. } = self.nodes[id];
        let unsaved = self.nodes[id].is(flag::WANTED);
        let arena = self.arena_mut(ArenaId(arena));
        arena.free.push(slot);
        self.lost_unsaved += u64::from(unsaved);
        self.edit(id, |node| {
            assert!(node.leases == 0 && !node.is(flag::COPYING), "what is in use stays");
            node.set(flag::MEMORY | flag::DEVICE | flag::WANTED | flag::RESTORED, false);
        });
    }

    /// Forgets a node that is nowhere and has no children, and then its parents likewise. One that was forgotten since
    /// the caller learned its number, as the parent of another, is passed over.
    pub(super) fn prune(&mut self, id: NodeId) {
        let mut id = id;
        while id != NONE {
            let node = &self.nodes[id];
            let kept = flag::MEMORY | flag::STORED | flag::WRITING | flag::RESTORING | flag::FREE;
            if node.is(kept) || node.leases > 0 || node.holds > 0 || node.child != NONE {
                return;
            }
            let parent = node.parent;
            self.nodes.remove(id);
            id = parent;
        }
    }
}

/// Whether somebody wants this very node to stay in memory.
pub(super) fn is_held(node: &Node) -> bool {
    let pinned = node.is(flag::PINNED) && !node.is(flag::STORED);
    node.leases > 0 || node.holds > 0 || node.is(flag::COPYING) || pinned
}
