//! The one table of all KV blocks: of all models, loaded or not, in all tiers.
//!
//! Everything here is accounting: no tensor, no device, no clock, no disk. A caller hands in token ids and the time, and
//! gets block numbers back, and lists of what to read, write and delete.
//!
//! Each block is a node under its parent block; a first block hangs on the root of its model and tenant. A node is in
//! memory (in one arena, on the device or in RAM), on SSD, or both. A lease is one sequence's claim on blocks: on the
//! nodes of its prefix, which it shares, and on private blocks, which it writes.
//!
//! Invariants, all verified by [`Index::check`]:
//!
//! * A node in memory has its parent in memory, in the same arena; a node on SSD has its parent on SSD. Hence whatever
//!   is found from the root down is usable, and eviction works from the leaves.
//! * A node never changes its tokens, and its slot holds exactly their KV. Only private blocks are written.
//! * What leases hold on the device, with what is being read to it, stays within `device_blocks`; what is in RAM stays
//!   within `ram_blocks`. Device and RAM are one arena of slots: a move between them changes these books alone.
//! * Nothing that is leased, held for a read, being copied out, or pinned without a copy on SSD is dropped, and so
//!   neither is anything above it.
//! * A lease's block table never changes while it lives, and has all blocks for the whole request: a running sequence
//!   never runs out.
//!
//! The files: `nodes` and `children` hold the tree, `books` whatever is derived from it, `lookup` finds prefixes;
//! `leases`, `restores` and `writes` are the three kinds of work on it; `policy` says what goes first and `evict` takes
//! it; `views` is for those who look; `check` verifies everything.

mod books;
mod check;
mod children;
mod evict;
mod leases;
mod lookup;
mod nodes;
mod policy;
mod restores;
mod views;
mod writes;

use crate::key::BlockKey;
use crate::tier::ByTier;
use nodes::{NodeId, Nodes};
use policy::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

pub use leases::LeaseError;
pub use lookup::{Missing, NearMiss};
pub use restores::{Read, Restore, RestoreId};
pub use views::{ArenaFigures, BlockView, TierFigures};
pub use writes::{BlockToStore, Writes};

/// The blocks of memory of one loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(u8);

/// One sequence's claim on its blocks, from admission to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(u64);

/// What an arena has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaBudget {
    /// Blocks that may count as on the device: all that leases need at one time.
    pub device_blocks: u32,
    /// Further blocks that may hold what no lease uses.
    pub ram_blocks: u32,
    /// Size of a block in memory.
    pub block_bytes: u64,
    /// What a block takes on SSD.
    pub stored_bytes: u64,
}

/// What the index does of its own accord.
#[derive(Debug, Clone, Copy, Default)]
pub struct IndexOptions {
    /// Queue a block for SSD when a second lease uses it.
    pub store_on_second_use: bool,
}

/// What a new lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The name to commit and release under.
    pub lease: LeaseId,
    /// The block table, in token order: `blocks[i]` holds tokens `64 i .. 64 (i + 1)`.
    pub blocks: Vec<u32>,
    /// Leading tokens whose KV is there once `copy` is done, by where they were before; `ssd` counts those that were
    /// read back since their last use. Less than the prompt's length.
    pub cached: ByTier,
    /// The prefix ends inside a block: the content of one slot is to be copied before the lease's first step.
    pub copy: Option<Copy>,
    /// Where the prompt leaves something that is kept and goes on otherwise.
    pub near_miss: Option<NearMiss>,
}

/// A block to copy inside an arena, before any later use of either slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// The kept block.
    pub from: u32,
    /// The lease's own.
    pub to: u32,
}

struct Arena {
    budget: ArenaBudget,
    /// Index of `budget.stored_bytes`.
    size: u16,
    /// What losing a copy in memory costs where another is on SSD, in tokens of computing: one block is 64.
    read_cost: u64,
    /// Slots that were given back.
    free: Vec<u32>,
    /// Slots from here on were never used.
    unused_from: u32,
    leases: u32,
    /// Slots of leases that are no nodes.
    private: u32,
    /// Slots that are being read into, by where they will count.
    restoring_device: u32,
    restoring_ram: u32,
    /// Nodes on the device; those of them that are leased.
    device_nodes: u32,
    locked_nodes: u32,
    /// Nodes in RAM; those of them that are stuck.
    ram_nodes: u32,
    stuck_ram_nodes: u32,
    /// Nodes that are stuck, wherever they are.
    stuck_nodes: u32,
    /// Nodes whose bytes are being read for the SSD.
    copying: u32,
    device_clock: u32,
    ram_clock: u32,
    /// Nodes without a lease and without a child on the device: what may be moved to RAM.
    device_order: BTreeSet<Rank>,
    /// Nodes in RAM that are not stuck and have no child in memory: what may be dropped.
    ram_order: BTreeSet<Rank>,
}

/// The table.
pub struct Index {
    options: IndexOptions,
    nodes: Nodes,
    arenas: Vec<Option<Arena>>,
    leases: HashMap<LeaseId, leases::Lease>,
    restores: BTreeMap<RestoreId, restores::Reading>,
    /// Names given to leases and restores so far.
    names: u64,
    /// Sizes of copies on SSD; nodes name them by number.
    sizes: Vec<u64>,
    stored_bytes: u64,
    stored_blocks: u64,
    /// Copies that went to make room for others, since the start.
    evicted: ByTier,
    unsaved_bytes: u64,
    lost_unsaved: u64,
    stored_clock: u32,
    /// Nodes on SSD without a child there or on its way there, that are neither pinned nor being read.
    stored_order: BTreeSet<Rank>,
    /// Blocks to write, oldest wish first. A key whose node is not [`nodes::flag::WANTED`] any more is passed over.
    wanted: VecDeque<BlockKey>,
    /// In order, as are the pins: one history of calls has one outcome.
    deletes: BTreeSet<BlockKey>,
    pins: BTreeSet<BlockKey>,
}

impl Index {
    /// A table of nothing.
    pub fn new(options: IndexOptions) -> Self {
        Self {
            options,
            nodes: Nodes::new(),
            arenas: Vec::new(),
            leases: HashMap::new(),
            restores: BTreeMap::new(),
            names: 0,
            sizes: Vec::new(),
            stored_bytes: 0,
            stored_blocks: 0,
            unsaved_bytes: 0,
            lost_unsaved: 0,
            stored_clock: 0,
            evicted: ByTier::default(),
            stored_order: BTreeSet::new(),
            wanted: VecDeque::new(),
            deletes: BTreeSet::new(),
            pins: BTreeSet::new(),
        }
    }

    /// A model was loaded: its arena is empty.
    ///
    /// # Panics
    /// When 255 arenas exist.
    pub fn add_arena(&mut self, budget: ArenaBudget) -> ArenaId {
        assert!(
            budget.device_blocks.checked_add(budget.ram_blocks).is_some(),
            "slots are numbered in 32 bits"
        );
        let arena = Arena {
            budget,
            size: self.size(budget.stored_bytes),
            read_cost: 16,
            free: Vec::new(),
            unused_from: 0,
            leases: 0,
            private: 0,
            restoring_device: 0,
            restoring_ram: 0,
            device_nodes: 0,
            locked_nodes: 0,
            ram_nodes: 0,
            stuck_ram_nodes: 0,
            stuck_nodes: 0,
            copying: 0,
            device_clock: 0,
            ram_clock: 0,
            device_order: BTreeSet::new(),
            ram_order: BTreeSet::new(),
        };
        let at = self.arenas.iter().position(Option::is_none).unwrap_or(self.arenas.len());
        let id = ArenaId(u8::try_from(at).expect("at most 255 models are loaded"));
        if at == self.arenas.len() {
            self.arenas.push(None);
        }
        self.arenas[at] = Some(arena);
        id
    }

    /// A model was unloaded: what its arena held is gone, the copies on SSD stay. Reads from SSD into it are forgotten;
    /// writes from it end as they do: with what was copied out in time, or with nothing.
    ///
    /// # Panics
    /// When a lease of the arena lives.
    pub fn remove_arena(&mut self, id: ArenaId) {
        assert_eq!(self.arena(id).leases, 0, "an arena is removed when its leases have ended");
        let open = self.restores.iter().filter(|(_, reading)| reading.arena == id);
        let open: Vec<RestoreId> = open.map(|(&restore, _)| restore).collect();
        for restore in open {
            self.finish_restore(restore, &[]);
        }
        let here = |index: &Self, node: NodeId| {
            let node = &index.nodes[node];
            node.is(nodes::flag::MEMORY) && node.arena == id.0
        };
        let gone: Vec<NodeId> = self.nodes.ids().filter(|&node| here(self, node)).collect();
        for &node in &gone {
            if self.nodes[node].is(nodes::flag::COPYING) {
                self.edit(node, |node| node.set(nodes::flag::COPYING, false));
            }
            self.leave_memory(node);
        }
        // Children were listed in any order: a node goes when the last one below it has gone.
        for node in gone {
            self.prune(node);
        }
        self.arenas[usize::from(id.0)] = None;
    }

    /// How fast the tiers are: reading one block from SSD takes this part of the time that computing it takes. A block
    /// that can be read back quickly is the cheaper one to lose.
    ///
    /// # Panics
    /// When the ratio is negative or no number.
    pub fn set_costs(&mut self, id: ArenaId, read_cost_per_block: f32) {
        assert!(read_cost_per_block >= 0.0, "a cost of {read_cost_per_block} blocks");
        let cost = (f64::from(read_cost_per_block) * crate::key::BLOCK_TOKENS as f64).ceil();
        let read_cost = cost.clamp(1.0, crate::key::BLOCK_TOKENS as f64) as u64;
        if self.arena(id).read_cost == read_cost {
            return;
        }
        let arena = self.arena(id);
        let listed = arena.device_order.iter().chain(&arena.ram_order);
        let listed: Vec<NodeId> = listed.map(|rank| rank.node).collect();
        for &node in &listed {
            self.uncount(node);
        }
        self.arena_mut(id).read_cost = read_cost;
        for &node in &listed {
            self.count(node);
        }
    }

    /// Leases of an arena that have not been released.
    pub fn live_leases(&self, id: ArenaId) -> usize {
        self.arena(id).leases as usize
    }

    fn arena(&self, id: ArenaId) -> &Arena {
        self.arenas[usize::from(id.0)].as_ref().expect("the arena was added and not removed")
    }

    fn arena_mut(&mut self, id: ArenaId) -> &mut Arena {
        self.arenas[usize::from(id.0)].as_mut().expect("the arena was added and not removed")
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    fn size(&mut self, bytes: u64) -> u16 {
        let at = self.sizes.iter().position(|&size| size == bytes).unwrap_or(self.sizes.len());
        if at == self.sizes.len() {
            self.sizes.push(bytes);
        }
        u16::try_from(at).expect("models have few sizes of blocks")
    }
}

impl Arena {
    fn device_used(&self) -> u32 {
        self.device_nodes + self.private + self.restoring_device
    }

    fn ram_used(&self) -> u32 {
        self.ram_nodes + self.restoring_ram
    }

    fn slots(&self) -> u32 {
        self.budget.device_blocks + self.budget.ram_blocks
    }

    /// A slot that holds nothing. Whoever takes one has counted it before and made room.
    fn take_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.unused_from < self.slots(), "room was made");
            self.unused_from += 1;
            self.unused_from - 1
        })
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = (self.nodes.len(), self.leases.len(), self.restores.len());
        write!(f, "Index({} nodes, {} leases, {} reads)", figures.0, figures.1, figures.2)
    }
}
