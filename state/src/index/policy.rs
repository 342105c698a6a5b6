//! What goes first when a tier is full: GreedyDual with frequency.
//!
//! Each tier has a clock. A block's priority is `base + min(uses, 16) * cost`, where `base` is what the clock showed at
//! the block's last use in that tier. The block of the lowest priority goes, and the clock moves up to that priority.
//!
//! The reasons:
//!
//! * Cost. What losing a copy costs is the time to get it back: a block that is also on SSD is read, another is
//!   computed again. The unit is the computing of one token, so a tail costs less than a full block. Cheap goes first.
//! * Frequency. One pass over a thousand prompts that never come again has `uses` of 1, and does not push out a system
//!   prompt that every request uses. 16 uses are as good as any number, so that fame does not last for ever.
//! * Age. The clock rises with each eviction, so what is not used any more is overtaken by what is new, however often
//!   it was used in the past. With equal uses and costs the order is that of the last use.
//! * Suffixes before prefixes. Only leaves of a tier are candidates, and a prefix was used at least as often and as
//!   lately as what hangs on it. As the priority is fixed at the last use and not when a block becomes a leaf, an old
//!   conversation goes as a whole before the next one is touched.
//! * A block that is wanted on SSD and was not copied out yet goes after all others, where going means being lost.
//!
//! A clock has 32 bits, to spare memory. It rises by at most 1024 while a whole tier is turned over; should it ever
//! reach its end it stays there, and what is new is ordered by its last use alone.
//!
//! After P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms" (1997), and L. Cherkasova, "Improving WWW
//! Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy" (1998). Blocks of one arena have one size.

use super::nodes::{Node, NodeId, flag};
use super::{ArenaId, Index};

/// Uses beyond this many count no more.
const MAX_USES: u8 = 16;

/// Place in an order of eviction: the least goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// In units of one token's computing; [`LAST_RESORT`] is added to what goes after all others.
    pub(super) priority: u64,
    pub(super) last_use_ms: u64,
    pub(super) node: NodeId,
}

const LAST_RESORT: u64 = 1 << 63;

impl Rank {
    /// What the clock shows when this one has gone.
    pub(super) fn clock(&self) -> u32 {
        u32::try_from(self.priority & !LAST_RESORT).unwrap_or(u32::MAX)
    }
}

impl Index {
    /// Place of a node in the order of its tier of memory.
    pub(super) fn memory_rank(&self, id: NodeId) -> Rank {
        let node = &self.nodes[id];
        let arena = self.arena(ArenaId(node.arena));
        let again = u64::from(node.len);
        let cost = if node.is(flag::STORED) { again.min(arena.read_cost) } else { again };
        // Leaving the device is no loss as long as there is RAM to go to.
        let is_loss = !node.is(flag::DEVICE) || arena.budget.ram_blocks == 0;
        let last = if is_loss && node.is(flag::WANTED) { LAST_RESORT } else { 0 };
        rank(id, node, node.memory_base, cost, last)
    }

    /// Place of a node in the order of the SSD.
    pub(super) fn stored_rank(&self, id: NodeId) -> Rank {
        let node = &self.nodes[id];
        rank(id, node, node.stored_base, u64::from(node.len), 0)
    }

    /// Notes a use: of a new lease when `counts`, of the same one as before otherwise.
    pub(super) fn touch(&mut self, id: NodeId, counts: bool, now_ms: u64) {
        let node = &self.nodes[id];
        let stored_clock = self.stored_clock;
        let memory_clock = node.is(flag::MEMORY).then(|| {
            let arena = self.arena(ArenaId(node.arena));
            if node.is(flag::DEVICE) { arena.device_clock } else { arena.ram_clock }
        });
        self.edit(id, |node| {
            node.uses = node.uses.saturating_add(u8::from(counts));
            node.last_use_ms = node.last_use_ms.max(now_ms);
            node.stored_base = stored_clock;
            node.memory_base = memory_clock.unwrap_or(node.memory_base);
        });
    }
}

fn rank(id: NodeId, node: &Node, base: u32, cost: u64, last: u64) -> Rank {
    let priority = (u64::from(base) + u64::from(node.uses.min(MAX_USES)) * cost) | last;
    Rank { priority, last_use_ms: node.last_use_ms, node: id }
}
