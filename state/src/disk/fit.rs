//! Opening with a smaller budget than before: what is too much goes, and the file gives its space back.

use super::{Contents, DiskError, KvDisk, disk_bytes, session_bytes};
use crate::BlockKey;
use std::collections::{HashMap, HashSet};

impl KvDisk {
    /// Brings what was found under the budget. Sessions that were used longest ago go first, as far as they have more than a
    /// quarter; then blocks: those of whose branch nothing was written for longest, suffixes before prefixes.
    pub(super) fn fit(&mut self, contents: &mut Contents) -> Result<(), DiskError> {
        let usable = self.usable_bytes();
        contents.sessions.sort_by_key(|session| std::cmp::Reverse(session.last_use_ms));
        let mut taken = 0;
        let kept = contents.sessions.iter().take_while(|session| {
            taken += session_bytes(session);
            taken <= usable / 4
        });
        let gone = contents.sessions.split_off(kept.count());
        let room = usable - contents.sessions.iter().map(session_bytes).sum::<u64>();
        let surplus = surplus(contents, room);
        if !gone.is_empty() || !surplus.is_empty() {
            let (sessions, blocks) = (gone.len(), surplus.len());
            contents
                .notes
                .push(format!("{blocks} blocks and {sessions} sessions were over the budget and went"));
        }
        let names: Vec<_> = gone.into_iter().map(|session| (session.tenant, session.id)).collect();
        self.remove_sessions(&names)?;
        let keys: Vec<BlockKey> = surplus.iter().copied().collect();
        self.write(&[], &keys)?;
        contents.blocks.retain(|block| !surplus.contains(&block.key));
        self.shrink()
    }
}

/// Blocks to delete so that the others fit into `room`; with a block all that hangs on it.
fn surplus(contents: &Contents, room: u64) -> HashSet<BlockKey> {
    let mut over =
        contents.blocks.iter().map(|block| disk_bytes(block.bytes)).sum::<u64>().saturating_sub(room);
    let mut surplus = HashSet::new();
    if over == 0 {
        return surplus;
    }
    // When something was last written on the branch that begins at a block. Parents stand first.
    let mut latest: HashMap<BlockKey, u64> = HashMap::new();
    for block in contents.blocks.iter().rev() {
        let own = latest.get(&block.key).copied().unwrap_or(0).max(block.written_ms);
        latest.insert(block.key, own);
        let parent = latest.entry(block.parent).or_default();
        *parent = own.max(*parent);
    }
    let mut order: Vec<_> = contents.blocks.iter().collect();
    order.sort_by_key(|block| (latest[&block.key], std::cmp::Reverse(block.position)));
    for block in order {
        if over == 0 {
            break;
        }
        over = over.saturating_sub(disk_bytes(block.bytes));
        surplus.insert(block.key);
    }
    surplus
}
