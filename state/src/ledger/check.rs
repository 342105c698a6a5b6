//! Every invariant of the ledger, recomputed from scratch: for tests, and for the daemon's debug builds.

use super::{BlockId, BlockLedger, Slot};
use std::collections::{BTreeSet, HashMap};

impl BlockLedger {
    /// Verifies all invariants. Walks every block and every lease.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub fn check(&self) -> Result<(), String> {
        self.check_free_list()?;
        self.check_leases()?;
        self.check_index()
    }

    fn check_free_list(&self) -> Result<(), String> {
        let listed: BTreeSet<BlockId> = self.free.iter().copied().collect();
        ensure(listed.len() == self.free.len(), || "a block is on the free list twice".into())?;
        let free_slots = self.all_blocks().filter(|(_, slot)| matches!(slot, Slot::Free)).map(|(id, _)| id);
        ensure(free_slots.collect::<BTreeSet<_>>() == listed, || "free list and free slots differ".into())
    }

    fn check_leases(&self) -> Result<(), String> {
        let mut references: HashMap<BlockId, u32> = HashMap::new();
        let mut private = 0usize;
        for (lease, held) in &self.leases {
            ensure(held.chain.len() <= held.table.len(), || format!("{lease:?} committed more than it has"))?;
            for &id in &held.chain {
                *references.entry(id).or_default() += 1;
            }
            for (position, &id) in held.table.iter().enumerate() {
                let shared = held.chain.get(position) == Some(&id);
                let owned = matches!(self.slots[id.0 as usize], Slot::Private(owner) if owner == *lease);
                ensure(shared != owned, || {
                    format!("{lease:?} neither owns nor shares its block {position}")
                })?;
                private += usize::from(owned);
            }
            let mut parent = None;
            for &id in &held.chain {
                let block = self.indexed(id);
                ensure(block.parent == parent, || format!("{lease:?} holds a chain with a gap at {id:?}"))?;
                parent = Some(id);
            }
        }
        for (id, slot) in self.all_blocks() {
            if let Slot::Indexed(block) = slot {
                let counted = references.get(&id).copied().unwrap_or(0);
                ensure(block.references == counted, || {
                    format!("{id:?} counts {} references, leases hold {counted}", block.references)
                })?;
            }
        }
        let private_slots = self.all_blocks().filter(|(_, slot)| matches!(slot, Slot::Private(_))).count();
        ensure(private_slots == private, || format!("{private_slots} private blocks, leases know {private}"))
    }

    fn check_index(&self) -> Result<(), String> {
        let mut children: HashMap<BlockId, u32> = HashMap::new();
        let (mut indexed, mut cached) = (0usize, 0u32);
        for (id, slot) in self.all_blocks() {
            let Slot::Indexed(block) = slot else { continue };
            indexed += 1;
            cached += u32::from(block.references == 0);
            ensure(self.index.get(&block.key) == Some(&id), || format!("{id:?} is not found by its key"))?;
            if let Some(parent) = block.parent {
                *children.entry(parent).or_default() += 1;
                let Slot::Indexed(above) = &self.slots[parent.0 as usize] else {
                    return Err(format!("{id:?} has a parent that is not indexed"));
                };
                ensure(above.references >= block.references.min(1), || {
                    format!("{id:?} is in use and its parent is not")
                })?;
            }
        }
        ensure(indexed == self.index.len(), || "the index names blocks that are not there".into())?;
        ensure(cached == self.cached_blocks, || {
            format!("{cached} cached blocks, {} counted", self.cached_blocks)
        })?;
        let mut evictable = BTreeSet::new();
        for (id, slot) in self.all_blocks() {
            let Slot::Indexed(block) = slot else { continue };
            let counted = children.get(&id).copied().unwrap_or(0);
            ensure(block.children == counted, || {
                format!("{id:?} counts {} children of {counted}", block.children)
            })?;
            if block.references == 0 && block.children == 0 {
                evictable.insert((block.last_use, id));
            }
        }
        ensure(evictable == self.evictable, || "the eviction order misses or invents a leaf".into())
    }

    fn all_blocks(&self) -> impl Iterator<Item = (BlockId, &Slot)> {
        self.slots.iter().enumerate().map(|(at, slot)| (BlockId(at as u32), slot))
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}
