//! Reads from SSD back into an arena.
//!
//! A read takes its slots when it begins and holds the part of its prefix that is in memory, so that each block has its
//! parent in memory when it arrives. A block is in one read at a time. A lease that computes the same block meanwhile
//! wins: the read's slot is given back.

use super::nodes::{NodeId, flag};
use super::{ArenaId, Index};
use crate::key::BlockKey;
use crate::tier::Tier;

/// Name of a read, until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RestoreId(u64);

/// Blocks to read, parents before children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// The name to finish under.
    pub id: RestoreId,
    /// What goes where.
    pub reads: Vec<Read>,
}

/// One block to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// What to read.
    pub key: BlockKey,
    /// The block of the arena that takes it.
    pub slot: u32,
}

/// A read that is on its way.
pub(super) struct Reading {
    pub(super) arena: ArenaId,
    pub(super) on_device: bool,
    /// Held from the root down; the last is the parent of the first read.
    pub(super) prefix: Vec<NodeId>,
    pub(super) blocks: Vec<(NodeId, u32)>,
    now_ms: u64,
}

impl Index {
    /// Takes slots for what of a prompt lies on SSD alone, as far as there is room; `into` says whether they count as on
    /// the device (for a lease that comes next) or in RAM. `None` when nothing is missing that is not being read
    /// already, or when there is no room.
    ///
    /// # Panics
    /// When `into` is the SSD.
    pub fn begin_restore(
        &mut self,
        arena: ArenaId,
        root: BlockKey,
        tokens: &[u32],
        into: Tier,
        now_ms: u64,
    ) -> Option<Restore> {
        assert!(into != Tier::Ssd, "a read from SSD goes to memory");
        let found = self.find(arena, root, tokens, false);
        let mut missing = found.stored.blocks;
        missing.extend(found.stored.partial.map(|(id, _)| id));
        let mut prefix = vec![self.nodes.find(&root)?];
        prefix.extend(found.memory.blocks);
        missing.truncate(self.room_for_reads(arena, &prefix, into == Tier::Device) as usize);
        // The parent of what is left is in memory or is read first: `missing` is cut at its end alone.
        if missing.is_empty() || prefix.iter().any(|&id| self.nodes[id].holds == u16::MAX) {
            return None;
        }
        for &id in &prefix {
            self.edit(id, |node| node.holds += 1);
        }
        for &id in &missing {
            self.edit(id, |node| node.set(flag::RESTORING, true));
        }
        let count = missing.len() as u32;
        let on_device = into == Tier::Device;
        let room = self.arena_mut(arena);
        *if on_device { &mut room.restoring_device } else { &mut room.restoring_ram } += count;
        self.make_room(arena);
        let room = self.arena_mut(arena);
        let slots: Vec<u32> = missing.iter().map(|_| room.take_slot()).collect();
        let reads = missing.iter().zip(&slots).map(|(&id, &slot)| Read { key: self.nodes[id].key, slot });
        let reads = reads.collect();
        let id = RestoreId(self.name());
        let blocks = missing.into_iter().zip(slots).collect();
        self.restores.insert(id, Reading { arena, on_device, prefix, blocks, now_ms });
        Some(Restore { id, reads })
    }

    /// Blocks that can be read when all of `prefix` is held.
    fn room_for_reads(&self, id: ArenaId, prefix: &[NodeId], on_device: bool) -> u32 {
        let arena = self.arena(id);
        let woken = prefix.iter().map(|&id| &self.nodes[id]);
        let woken = woken.filter(|node| node.is(flag::MEMORY) && !node.is(flag::STUCK));
        let (mut stuck, mut stuck_in_ram) = (arena.stuck_nodes, arena.stuck_ram_nodes);
        for node in woken {
            stuck += 1;
            stuck_in_ram += u32::from(!node.is(flag::DEVICE));
        }
        let busy = arena.private + arena.restoring_device;
        let budget = &arena.budget;
        let in_all = arena.slots().saturating_sub(stuck + busy + arena.restoring_ram);
        let in_tier = if on_device {
            budget.device_blocks.saturating_sub(arena.locked_nodes + busy)
        } else {
            budget.ram_blocks.saturating_sub(stuck_in_ram + arena.restoring_ram)
        };
        in_all.min(in_tier)
    }

    /// The read in which the next missing block of a prompt is on its way, if there is one: worth waiting for.
    pub fn restoring(&self, arena: ArenaId, root: BlockKey, tokens: &[u32]) -> Option<RestoreId> {
        let stored = self.find(arena, root, tokens, true).stored;
        let next = stored.blocks.first().copied().or(stored.partial.map(|(id, _)| id))?;
        let holds =
            |reading: &Reading| reading.arena == arena && reading.blocks.iter().any(|&(id, _)| id == next);
        self.restores.iter().find(|(_, reading)| holds(reading)).map(|(&id, _)| id)
    }

    /// A read has ended; `ok` says for each of its blocks whether the content is in its slot. The first that is not cuts:
    /// it and all later ones (also those that `ok` does not mention) are given back. A name that is not known, because
    /// the arena was removed meanwhile, is passed over.
    pub fn finish_restore(&mut self, id: RestoreId, ok: &[bool]) {
        let Some(Reading { arena, on_device, prefix, blocks, now_ms }) = self.restores.remove(&id) else {
            return;
        };
        let count = blocks.len() as u32;
        let room = self.arena_mut(arena);
        *if on_device { &mut room.restoring_device } else { &mut room.restoring_ram } -= count;
        let mut good = ok.iter().take(blocks.len()).take_while(|&&ok| ok).count();
        for (at, &(id, slot)) in blocks.iter().enumerate() {
            self.edit(id, |node| node.set(flag::RESTORING, false));
            if self.nodes[id].is(flag::MEMORY) && self.nodes[id].arena != arena.0 {
                // The same model is loaded twice and computed it there: what follows has no parent here.
                good = 0;
            }
            if at < good && !self.nodes[id].is(flag::MEMORY) {
                self.enter_memory(id, arena, slot, on_device);
                self.touch(id, false, now_ms);
                self.edit(id, |node| node.set(flag::RESTORED, true));
            } else {
                self.arena_mut(arena).free.push(slot);
            }
        }
        for &id in prefix.iter().rev() {
            self.edit(id, |node| node.holds -= 1);
        }
        for &(id, _) in blocks.iter().rev() {
            if self.nodes[id].is(flag::MEMORY) {
                self.drop_continued(id);
                self.drop_if_continued(id);
            } else {
                self.prune(id);
            }
        }
        self.prune(prefix[0]);
    }
}
