//! What others may see, and what they may ask to keep.

use super::nodes::{Node, NodeId, flag};
use super::{ArenaId, Index};
use crate::key::BlockKey;
use crate::tier::{ByTier, Tier};
use std::collections::BTreeSet;

/// One block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockView {
    /// Where it is in memory: arena, tier and slot.
    pub memory: Option<(ArenaId, Tier, u32)>,
    /// A copy is on SSD.
    pub stored: bool,
    /// A copy is wanted on SSD, and its write has not begun.
    pub wanted: bool,
    /// A copy is on its way to SSD.
    pub writing: bool,
    /// A read from SSD is on its way.
    pub restoring: bool,
    /// Leases that use it.
    pub leases: u32,
    /// A user asked to keep it.
    pub pinned: bool,
    /// Leases that used it so far; 255 stands for more.
    pub uses: u32,
    /// When it was used last, in milliseconds since the Unix epoch.
    pub last_use_ms: u64,
    /// How many tokens it holds.
    pub tokens: usize,
    /// Bytes in memory; 0 when it is not there.
    pub bytes: u64,
    /// Bytes on SSD; 0 when it is not there.
    pub stored_bytes: u64,
}

/// How a tier of an arena is used, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierFigures {
    /// The budget.
    pub total: u32,
    /// Held by leases, private or shared, and by reads that are on their way.
    pub used: u32,
    /// Kept for later.
    pub cached: u32,
    /// Holding nothing.
    pub free: u32,
}

/// How an arena is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// On the device.
    pub device: TierFigures,
    /// In RAM.
    pub ram: TierFigures,
    /// Size of one block.
    pub block_bytes: u64,
    /// Live leases.
    pub leases: u32,
}

impl Index {
    /// One block.
    pub fn view(&self, key: &BlockKey) -> Option<BlockView> {
        self.nodes
            .find(key)
            .map(|id| &self.nodes[id])
            .filter(|node| !node.is_root())
            .map(|node| self.view_of(node))
    }

    /// All blocks, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = (BlockKey, BlockView)> + '_ {
        let nodes = self.nodes.ids().map(|id| &self.nodes[id]).filter(|node| !node.is_root());
        nodes.map(|node| (node.key, self.view_of(node)))
    }

    fn view_of(&self, node: &Node) -> BlockView {
        let arena = ArenaId(node.arena);
        let tier = if node.is(flag::DEVICE) { Tier::Device } else { Tier::Ram };
        let memory = node.is(flag::MEMORY).then_some((arena, tier, node.slot));
        let bytes = memory.map_or(0, |_| self.arena(arena).budget.block_bytes);
        let stored_bytes = if node.is(flag::STORED) { self.sizes[usize::from(node.size)] } else { 0 };
        BlockView {
            memory,
            stored: node.is(flag::STORED),
            wanted: node.is(flag::WANTED),
            writing: node.is(flag::WRITING),
            restoring: node.is(flag::RESTORING),
            leases: u32::from(node.leases),
            pinned: node.is(flag::PINNED),
            uses: u32::from(node.uses),
            last_use_ms: node.last_use_ms,
            tokens: usize::from(node.len),
            bytes,
            stored_bytes,
        }
    }

    /// The tokens of a block.
    pub fn tokens(&self, key: &BlockKey) -> Option<Vec<u32>> {
        self.nodes.find(key).map(|id| self.nodes.tokens(id))
    }

    /// How an arena is used just now.
    pub fn figures(&self, id: ArenaId) -> ArenaFigures {
        let arena = self.arena(id);
        let device_blocks = arena.budget.device_blocks;
        let ram_blocks = arena.budget.ram_blocks;
        ArenaFigures {
            device: TierFigures {
                total: device_blocks,
                used: arena.locked_nodes + arena.private + arena.restoring_device,
                cached: arena.device_nodes - arena.locked_nodes,
                free: device_blocks - arena.device_used(),
            },
            ram: TierFigures {
                total: ram_blocks,
                used: arena.restoring_ram,
                cached: arena.ram_nodes,
                free: ram_blocks - arena.ram_used(),
            },
            block_bytes: arena.budget.block_bytes,
            leases: arena.leases,
        }
    }

    /// Copies that went to make room for others since the start, by the tier that they left.
    pub fn evicted(&self) -> ByTier {
        self.evicted
    }

    /// What the largest kind of block takes on SSD, of all that were ever there.
    pub fn largest_copy_bytes(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Copies on SSD.
    pub fn stored_blocks(&self) -> u64 {
        self.stored_blocks
    }

    /// Pins these blocks, and no others: each keeps at least one copy, and the one on SSD as long as the disk does.
    /// A key that is not known yet is pinned as soon as it is.
    pub fn pin<'k>(&mut self, keys: impl Iterator<Item = &'k BlockKey>) {
        let before = std::mem::replace(&mut self.pins, keys.copied().collect::<BTreeSet<_>>());
        let pinned = self.pins.difference(&before);
        let pinned: Vec<NodeId> = pinned.filter_map(|key| self.nodes.find(key)).collect();
        for id in pinned {
            self.edit(id, |node| node.set(flag::PINNED, true));
        }
        let loose = before.difference(&self.pins);
        let loose: Vec<BlockKey> = loose.copied().collect();
        for key in loose {
            if let Some(id) = self.nodes.find(&key) {
                self.edit(id, |node| node.set(flag::PINNED, false));
                self.drop_if_continued(id);
            }
        }
    }
}
