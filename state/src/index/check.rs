//! Every invariant of the index, recomputed from the nodes: for tests, and for debug builds.

use super::nodes::{NONE, Node, NodeId, flag};
use super::{ArenaId, Index};
use crate::key::BLOCK_TOKENS;
use std::collections::{BTreeSet, HashMap, HashSet};

type Outcome = Result<(), String>;

impl Index {
    /// Verifies all invariants. Walks every node, slot, lease and read: for tests and small tables.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub fn check(&self) -> Result<(), String> {
        self.check_tree()?;
        self.check_closure()?;
        self.check_holders()?;
        self.check_orders()?;
        self.check_slots()?;
        self.check_bytes()
    }

    fn check_tree(&self) -> Outcome {
        let mut reached = 0;
        let roots: Vec<NodeId> = self.nodes.ids().filter(|&id| self.nodes[id].parent == NONE).collect();
        let mut open = roots;
        while let Some(id) = open.pop() {
            reached += 1;
            let (node, tokens) = (&self.nodes[id], self.nodes.tokens(id));
            ensure(self.nodes.find(&node.key) == Some(id), || format!("{id:?} is not found by its key"))?;
            ensure(node.parent == NONE || self.nodes[node.parent].key.child(&tokens) == node.key, || {
                format!("the key of {id:?} does not follow from its tokens")
            })?;
            let children = self.nodes.children(id);
            ensure(children.is_empty() || node.is_root() || tokens.len() == BLOCK_TOKENS, || {
                format!("{id:?} is a tail and has children")
            })?;
            let listed: Vec<Vec<u32>> = children.iter().map(|&id| self.nodes.tokens(id)).collect();
            ensure(listed.windows(2).all(|two| two[0] < two[1]), || {
                format!("children of {id:?} are unordered")
            })?;
            ensure(children.iter().all(|&child| self.nodes[child].parent == id), || {
                format!("a child of {id:?} names another parent")
            })?;
            let seen = children.iter().fold(0, |all, &id| all | u16::from(self.nodes[id].seen()));
            ensure(self.nodes.children_flags(id) == seen && !node.is(flag::SSD_ALONE), || {
                format!("{id:?} sums up its children wrongly")
            })?;
            let pinned = self.pins.contains(&node.key) && !node.is_root();
            ensure(node.is(flag::PINNED) == pinned, || format!("{id:?} is pinned on one side only"))?;
            open.extend(children);
        }
        ensure(reached == self.nodes.len(), || format!("{reached} of {} nodes are reached", self.nodes.len()))
    }

    fn check_closure(&self) -> Outcome {
        for id in self.nodes.ids() {
            let node = &self.nodes[id];
            let kept = flag::MEMORY | flag::STORED | flag::WRITING | flag::RESTORING;
            ensure(node.is(kept) || node.leases > 0 || node.holds > 0 || node.child != NONE, || {
                format!("{id:?} is nowhere and was not forgotten")
            })?;
            if node.is_root() {
                ensure(node.flags == 0, || format!("root {id:?} has flags {:x}", node.flags))?;
                continue;
            }
            let parent = &self.nodes[node.parent];
            let is_below_block = !parent.is_root();
            if node.is(flag::MEMORY) && is_below_block {
                ensure(parent.is(flag::MEMORY) && parent.arena == node.arena, || {
                    format!("{id:?} is in memory and its parent is not in the same arena")
                })?;
            }
            ensure(!node.is(flag::STORED) || !is_below_block || parent.is(flag::STORED), || {
                format!("{id:?} is on SSD and its parent is not")
            })?;
            let needs_memory = flag::DEVICE | flag::WANTED | flag::COPYING | flag::RESTORED;
            ensure(node.is(flag::MEMORY) || !node.is(needs_memory) && node.leases == 0, || {
                format!("{id:?} is not in memory and has flags {:x}", node.flags)
            })?;
            ensure(!node.is(flag::WANTED) || !node.is(flag::STORED | flag::WRITING), || {
                format!("{id:?} is wanted on SSD and is on its way or there")
            })?;
            ensure(!node.is(flag::WANTED) || self.wanted.contains(&node.key), || {
                format!("{id:?} is wanted on SSD and not in the queue")
            })?;
            ensure(!node.is(flag::STORED) || !self.deletes.contains(&node.key), || {
                format!("{id:?} is on SSD and to be deleted there")
            })?;
        }
        Ok(())
    }

    fn check_holders(&self) -> Outcome {
        let mut leases: HashMap<NodeId, u16> = HashMap::new();
        let mut holds: HashMap<NodeId, u16> = HashMap::new();
        let mut restoring = HashSet::new();
        for (name, lease) in &self.leases {
            *leases.entry(lease.root).or_default() += 1;
            let mut parent = lease.root;
            for &id in &lease.chain {
                *leases.entry(id).or_default() += 1;
                ensure(self.nodes[id].parent == parent && self.nodes[id].arena == lease.arena.0, || {
                    format!("{name:?} holds a chain with a gap at {id:?}")
                })?;
                parent = id;
            }
            ensure(lease.chain.len() <= lease.table.len(), || format!("{name:?} committed too much"))?;
        }
        for (name, reading) in &self.restores {
            for &id in &reading.prefix {
                *holds.entry(id).or_default() += 1;
                ensure(self.nodes[id].is_root() || self.nodes[id].is(flag::MEMORY), || {
                    format!("{name:?} holds {id:?}, which is not in memory")
                })?;
            }
            for &(id, _) in &reading.blocks {
                ensure(restoring.insert(id), || format!("{id:?} is in two reads"))?;
            }
        }
        for id in self.nodes.ids() {
            let node = &self.nodes[id];
            let counted = (leases.get(&id).copied().unwrap_or(0), holds.get(&id).copied().unwrap_or(0));
            ensure((node.leases, node.holds) == counted, || {
                format!("{id:?} counts {} leases and {} holds of {counted:?}", node.leases, node.holds)
            })?;
            ensure(node.is(flag::RESTORING) == restoring.contains(&id), || {
                format!("{id:?} is being read on one side only")
            })?;
            let below = self.nodes.children_flags(id) & flag::STUCK != 0;
            let stuck = node.is(flag::MEMORY) && (super::books::is_held(node) || below);
            ensure(node.is(flag::STUCK) == stuck, || format!("{id:?} is stuck: {stuck}"))?;
        }
        Ok(())
    }

    fn check_orders(&self) -> Outcome {
        let mut stored = BTreeSet::new();
        let mut memory: HashMap<(u8, bool), BTreeSet<super::Rank>> = HashMap::new();
        for id in self.nodes.ids() {
            let (node, movable, deletable) = (&self.nodes[id], self.is_movable(id), self.is_deletable(id));
            ensure(node.is(flag::IN_MEMORY_ORDER) == movable, || format!("{id:?} may be moved: {movable}"))?;
            ensure(node.is(flag::IN_STORED_ORDER) == deletable, || format!("{id:?} may go: {deletable}"))?;
            if movable {
                let order = memory.entry((node.arena, node.is(flag::DEVICE))).or_default();
                order.insert(self.memory_rank(id));
            }
            if deletable {
                stored.insert(self.stored_rank(id));
            }
        }
        ensure(stored == self.stored_order, || "the order of the SSD misses or invents a leaf".into())?;
        for (at, arena) in self.arenas.iter().enumerate() {
            let Some(arena) = arena else { continue };
            for (on_device, order) in [(true, &arena.device_order), (false, &arena.ram_order)] {
                let expected = memory.remove(&(at as u8, on_device)).unwrap_or_default();
                ensure(*order == expected, || format!("arena {at}: wrong order, on device: {on_device}"))?;
            }
        }
        ensure(memory.is_empty(), || "a node is in an arena that is gone".into())
    }

    fn check_slots(&self) -> Outcome {
        for (at, arena) in self.arenas.iter().enumerate() {
            let Some(arena) = arena else { continue };
            let id = ArenaId(at as u8);
            let nodes: Vec<NodeId> = self.nodes.ids().collect();
            let here =
                |&id: &NodeId| self.nodes[id].is(flag::MEMORY) && usize::from(self.nodes[id].arena) == at;
            let here: Vec<NodeId> = nodes.into_iter().filter(here).collect();
            let mut slots: Vec<u32> = here.iter().map(|&id| self.nodes[id].slot).collect();
            let mut private = 0;
            for lease in self.leases.values().filter(|lease| lease.arena == id) {
                let shared: HashSet<u32> = lease.chain.iter().map(|&id| self.nodes[id].slot).collect();
                let own = lease.table.iter().filter(|slot| !shared.contains(slot));
                let before = slots.len();
                slots.extend(own);
                private += slots.len() - before;
            }
            let readings = self.restores.values().filter(|reading| reading.arena == id);
            let (mut to_device, mut to_ram) = (0, 0);
            for reading in readings {
                slots.extend(reading.blocks.iter().map(|&(_, slot)| slot));
                *if reading.on_device { &mut to_device } else { &mut to_ram } += reading.blocks.len() as u32;
            }
            slots.extend(&arena.free);
            slots.extend(arena.unused_from..arena.slots());
            let distinct: BTreeSet<u32> = slots.iter().copied().collect();
            let all = arena.slots() as usize;
            ensure(distinct.len() == all && slots.len() == all, || {
                format!("arena {at}: {} claims on {} of {all} slots", slots.len(), distinct.len())
            })?;
            ensure(distinct.last().is_none_or(|&last| (last as usize) < all), || {
                format!("arena {at}: a slot beyond {all}")
            })?;
            let count = |test: &dyn Fn(&Node) -> bool| {
                here.iter().filter(|&&id| test(&self.nodes[id])).count() as u32
            };
            let expected = [
                private as u32,
                to_device,
                to_ram,
                count(&|node| node.is(flag::DEVICE)),
                count(&|node| node.is(flag::DEVICE) && node.leases > 0),
                count(&|node| !node.is(flag::DEVICE)),
                count(&|node| !node.is(flag::DEVICE) && node.is(flag::STUCK)),
                count(&|node| node.is(flag::STUCK)),
                count(&|node| node.is(flag::COPYING)),
                self.leases.values().filter(|lease| lease.arena == id).count() as u32,
            ];
            let counted = [
                arena.private,
                arena.restoring_device,
                arena.restoring_ram,
                arena.device_nodes,
                arena.locked_nodes,
                arena.ram_nodes,
                arena.stuck_ram_nodes,
                arena.stuck_nodes,
                arena.copying,
                arena.leases,
            ];
            ensure(counted == expected, || format!("arena {at} counts {counted:?} of {expected:?}"))?;
            ensure(arena.device_used() <= arena.budget.device_blocks, || {
                format!("arena {at}: device is over")
            })?;
            ensure(arena.ram_used() <= arena.budget.ram_blocks, || format!("arena {at}: RAM is over"))?;
        }
        Ok(())
    }

    fn check_bytes(&self) -> Outcome {
        let sum = |test: &dyn Fn(&Node) -> bool| -> u64 {
            let nodes = self.nodes.ids().map(|id| &self.nodes[id]).filter(|node| test(node));
            nodes.map(|node| self.sizes[usize::from(node.size)]).sum()
        };
        let stored = sum(&|node| node.is(flag::STORED));
        let unsaved = sum(&|node| !node.is(flag::STORED) && node.is(flag::WANTED | flag::WRITING));
        ensure((stored, unsaved) == (self.stored_bytes, self.unsaved_bytes), || {
            format!("{stored} bytes stored and {unsaved} unsaved, counted {self:?}")
        })
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message()) }
}
