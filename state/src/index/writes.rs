//! What goes to SSD, and what is there.
//!
//! A block is wanted, then written in a batch: handed out by [`Index::next_writes`] and held in memory until
//! [`Index::writes_copied`]; [`Index::writes_done`] says how it ended. Parents are handed out before their children,
//! and a block counts as stored only when its parent does.

use super::nodes::{NONE, NodeId, flag};
use super::{ArenaId, Index};
use crate::disk::StoredBlock;
use crate::key::{BLOCK_TOKENS, BlockKey};

/// A batch to write, all from one arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writes {
    /// Where the blocks lie.
    pub arena: ArenaId,
    /// Parents before children.
    pub blocks: Vec<BlockToStore>,
}

/// One block to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockToStore {
    /// Its name.
    pub key: BlockKey,
    /// The block before it; for a first block the root's key.
    pub parent: BlockKey,
    /// Blocks before it.
    pub position: u32,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Where its KV lies.
    pub slot: u32,
}

impl Index {
    /// Queues blocks for writing, unless they are on SSD or on their way; with each, whatever is above it. Keys that are
    /// not in memory are passed over.
    pub fn want_stored<'k>(&mut self, keys: impl Iterator<Item = &'k BlockKey>) {
        for key in keys {
            if let Some(id) = self.nodes.find(key) {
                self.want(id);
            }
        }
    }

    /// From the node up to what is on SSD or waits already; so wanting a whole text costs no more than its blocks.
    pub(super) fn want(&mut self, id: NodeId) {
        let mut path = Vec::new();
        let mut at = id;
        while self.nodes[at].is(flag::MEMORY | flag::WRITING)
            && !self.nodes[at].is(flag::STORED | flag::WANTED)
        {
            path.push(at);
            at = self.nodes[at].parent;
        }
        for id in path.into_iter().rev() {
            if self.nodes[id].is(flag::WRITING) {
                // What was evicted while it was on its way is wanted again.
                self.edit(id, |node| node.set(flag::UNWANTED, false));
            } else {
                self.edit(id, |node| node.set(flag::WANTED, true));
                self.wanted.push_back(self.nodes[id].key);
            }
        }
    }

    /// The node and what is above it, from the top, as far as it is in memory and neither on SSD nor on its way there.
    fn unsaved_path(&self, id: NodeId) -> Vec<NodeId> {
        let is_unsaved = |&id: &NodeId| {
            self.nodes[id].is(flag::MEMORY) && !self.nodes[id].is(flag::STORED | flag::WRITING)
        };
        let parent = |&id: &NodeId| Some(self.nodes[id].parent).filter(|&id| id != NONE);
        let mut path: Vec<NodeId> = std::iter::successors(Some(id), parent).take_while(is_unsaved).collect();
        path.reverse();
        path
    }

    /// The next blocks to write, of one arena and together at most `max_bytes` of SSD (but one block at least). They
    /// stay in memory until they are copied.
    pub fn next_writes(&mut self, max_bytes: u64) -> Option<Writes> {
        let mut writes: Option<Writes> = None;
        let mut bytes = 0;
        while let Some(key) = self.wanted.pop_front() {
            let Some(wanted) = self.nodes.find(&key).filter(|&id| self.nodes[id].is(flag::WANTED)) else {
                continue;
            };
            let arena = ArenaId(self.nodes[wanted].arena);
            let size = self.arena(arena).budget.stored_bytes;
            // A parent that was stored when its child was queued may have gone since: it is written again.
            for id in self.unsaved_path(wanted) {
                let fits = bytes + size <= max_bytes || bytes == 0;
                if !fits || writes.as_ref().is_some_and(|writes| writes.arena != arena) {
                    self.wanted.push_front(key);
                    return writes;
                }
                bytes += size;
                let block = self.start_writing(id);
                writes.get_or_insert(Writes { arena, blocks: Vec::new() }).blocks.push(block);
            }
        }
        writes
    }

    fn start_writing(&mut self, id: NodeId) -> BlockToStore {
        let size = self.arena(ArenaId(self.nodes[id].arena)).size;
        self.edit(id, |node| {
            node.set(flag::WANTED | flag::UNWANTED, false);
            node.set(flag::WRITING | flag::COPYING, true);
            node.size = size;
        });
        let node = &self.nodes[id];
        let (key, parent, slot) = (node.key, node.parent, node.slot);
        self.deletes.remove(&key);
        let tokens = self.nodes.tokens(id);
        BlockToStore { key, parent: self.nodes[parent].key, position: self.position(id), tokens, slot }
    }

    /// Blocks before a node.
    fn position(&self, id: NodeId) -> u32 {
        let parent = |&id: &NodeId| Some(self.nodes[id].parent).filter(|&id| !self.nodes[id].is_root());
        std::iter::successors(Some(id), parent).skip(1).count() as u32
    }

    /// The bytes of these blocks were read from their slots: memory does not hold them for the write any more.
    pub fn writes_copied(&mut self, keys: &[BlockKey]) {
        for key in keys {
            if let Some(id) = self.nodes.find(key) {
                self.edit(id, |node| node.set(flag::COPYING, false));
            }
        }
    }

    /// A batch has ended: its blocks are on SSD, or none is. Keys stand in the order in which they were handed out. A
    /// block that was evicted or cut off meanwhile goes to the deletes.
    pub fn writes_done(&mut self, keys: &[BlockKey], stored: bool) {
        let mut ended = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(id) = self.nodes.find(key).filter(|&id| self.nodes[id].is(flag::WRITING)) else {
                // Its arena was removed before the copy, or the disk was lost: nothing waits for it.
                self.writes_copied(&[*key]);
                if !self.nodes.find(key).is_some_and(|id| self.nodes[id].is(flag::STORED)) {
                    self.deletes.insert(*key);
                }
                continue;
            };
            let parent = self.nodes[self.nodes[id].parent].clone();
            let is_wanted = !self.nodes[id].is(flag::UNWANTED);
            let stored = stored && is_wanted && (parent.is_root() || parent.is(flag::STORED));
            let clock = self.stored_clock;
            self.edit(id, |node| {
                node.set(flag::WRITING | flag::COPYING | flag::UNWANTED, false);
                node.set(flag::STORED, stored);
                node.stored_base = clock;
            });
            if !stored {
                self.deletes.insert(*key);
                self.lost_unsaved += u64::from(is_wanted && !self.nodes[id].is(flag::MEMORY));
            }
            ended.push(id);
        }
        for id in ended.into_iter().rev() {
            if self.nodes[id].is(flag::STORED) {
                self.drop_continued(id);
            }
            self.drop_if_continued(id);
            self.prune(id);
        }
    }

    /// Nothing that waits for its write is wanted any more; returns how many blocks that were.
    pub fn forget_wanted(&mut self) -> usize {
        let mut forgotten = 0;
        for key in std::mem::take(&mut self.wanted) {
            if let Some(id) = self.nodes.find(&key).filter(|&id| self.nodes[id].is(flag::WANTED)) {
                self.edit(id, |node| node.set(flag::WANTED, false));
                self.drop_if_continued(id);
                forgotten += 1;
            }
        }
        forgotten
    }

    /// Bytes that wait for their write or are on their way.
    pub fn unsaved_bytes(&self) -> u64 {
        self.unsaved_bytes
    }

    /// Blocks so far that were wanted on SSD and left memory before they got there.
    pub fn lost_unsaved(&self) -> u64 {
        self.lost_unsaved
    }

    /// Bytes that copies on SSD take.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// A block that was found on SSD, where it takes `bytes`. Returns whether it is taken: its parent must be there (or
    /// be a root, at position 0) and be full, its key must follow from its tokens.
    pub fn insert_stored(&mut self, block: &StoredBlock, bytes: u64) -> bool {
        let StoredBlock { key, parent, position, ref tokens, written_ms, .. } = *block;
        if !(1..=BLOCK_TOKENS).contains(&tokens.len()) || parent.child(tokens) != key {
            return false;
        }
        let above = if position == 0 { Some(self.root(parent)) } else { self.nodes.find(&parent) };
        let is_parent = |id: NodeId| {
            let node = &self.nodes[id];
            node.is_root() == (position == 0) && !node.is_tail() && (position == 0 || node.is(flag::STORED))
        };
        let Some(above) = above.filter(|&id| is_parent(id)) else { return false };
        let id = self.block(above, tokens);
        if self.nodes[id].is(flag::STORED | flag::WRITING) {
            return false;
        }
        let size = self.size(bytes);
        let clock = self.stored_clock;
        self.edit(id, |node| {
            node.set(flag::STORED, true);
            node.set(flag::WANTED, false);
            node.size = size;
            node.uses = node.uses.max(1);
            node.stored_base = clock;
            node.last_use_ms = node.last_use_ms.max(written_ms);
        });
        true
    }

    /// The disk is lost: nothing is on SSD, nothing waits for it, nothing is to be deleted there.
    pub fn forget_stored(&mut self) {
        let ids: Vec<NodeId> = self.nodes.ids().collect();
        for &id in &ids {
            if self.nodes[id].is(flag::STORED | flag::WANTED | flag::WRITING) {
                self.edit(id, |node| {
                    node.set(flag::STORED | flag::WANTED | flag::WRITING | flag::UNWANTED, false);
                });
            }
        }
        for id in ids {
            self.prune(id);
        }
        self.wanted.clear();
        self.deletes.clear();
    }

    /// A copy on SSD is damaged: it and what hangs on it there are of no use. Returns the keys to delete.
    pub fn drop_stored(&mut self, key: &BlockKey) -> Vec<BlockKey> {
        let Some(id) = self.nodes.find(key).filter(|&id| !self.nodes[id].is_root()) else {
            return Vec::new();
        };
        let mut open = vec![id];
        let mut dropped = Vec::new();
        while let Some(id) = open.pop() {
            if self.nodes[id].is(flag::STORED) {
                dropped.push(id);
                open.extend(self.nodes.children(id));
            }
        }
        let keys = dropped.iter().map(|&id| self.nodes[id].key).collect();
        for id in dropped.into_iter().rev() {
            self.edit(id, |node| node.set(flag::STORED, false));
            self.prune(id);
        }
        keys
    }
}
