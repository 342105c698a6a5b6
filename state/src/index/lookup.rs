//! Finding what is kept of a text: exact to the token.
//!
//! From the root down, each full block is the child that shares all 64 tokens; at the end of that chain the child, full
//! block or tail, that shares the most of what is left. At least one token is always left to compute: the logits of the
//! last token are needed and are not kept. No hash is computed on the way.

use super::children::Among;
use super::nodes::{NONE, Node, NodeId, flag};
use super::{ArenaId, Index};
use crate::key::{BLOCK_TOKENS, BlockKey};

/// Where a prompt leaves what is kept: the place, and the tokens round it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearMiss {
    /// Leading tokens that agree; at least one.
    pub shared: usize,
    /// The last of those, at most 8.
    pub before: Vec<u32>,
    /// How the kept text goes on, at most 16 tokens.
    pub kept: Vec<u32>,
    /// How the prompt goes on, at most 16 tokens.
    pub asked: Vec<u32>,
}

const TOKENS_BEFORE: usize = 8;
const TOKENS_AFTER: usize = 16;

/// What of a usable prefix lies on SSD alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing {
    /// Tokens that a lease would find cached after a read, and would not now.
    pub tokens: u64,
    /// Bytes to read, as they are counted on SSD.
    pub bytes: u64,
    /// Blocks to read.
    pub blocks: u32,
}

/// A path from a node down.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// Full blocks that agree to the last token.
    pub(super) blocks: Vec<NodeId>,
    /// The child after them that agrees longest, and for how many tokens: at least one, and not all 64.
    pub(super) partial: Option<(NodeId, usize)>,
}

/// What a prompt finds in an arena and beside it.
pub(super) struct Found {
    pub(super) memory: Path,
    /// What follows `memory.blocks` on SSD and is not in any memory; its partial block is named where it agrees longer
    /// than the one in memory.
    pub(super) stored: Path,
}

impl Index {
    /// What can be had of a prompt. With `busy`, blocks count as on SSD that are being read already.
    pub(super) fn find(&self, arena: ArenaId, root: BlockKey, tokens: &[u32], busy: bool) -> Found {
        let usable = &tokens[..tokens.len().saturating_sub(1)];
        let Some(root) = self.nodes.find(&root) else {
            return Found { memory: Path::default(), stored: Path::default() };
        };
        let in_arena = |node: &Node| node.arena == arena.0;
        let memory = self.follow(root, usable, &Among { flags: flag::MEMORY, accept: &in_arena });
        let end = memory.blocks.last().copied().unwrap_or(root);
        let rest = &usable[memory.blocks.len() * BLOCK_TOKENS..];
        let can_be_read = |node: &Node| busy || !node.is(flag::RESTORING);
        let mut stored = self.follow(end, rest, &Among { flags: flag::SSD_ALONE, accept: &can_be_read });
        let in_memory = memory.partial.map_or(0, |(_, shared)| shared);
        if stored.blocks.is_empty() {
            stored.partial = stored.partial.filter(|&(_, shared)| shared > in_memory);
        }
        Found { memory, stored }
    }

    fn follow(&self, from: NodeId, tokens: &[u32], among: &Among<'_>) -> Path {
        let mut path = Path::default();
        let mut at = from;
        loop {
            let rest = &tokens[path.blocks.len() * BLOCK_TOKENS..];
            let rest = &rest[..rest.len().min(BLOCK_TOKENS)];
            match self.nodes.nearest(at, rest, among) {
                Some((id, BLOCK_TOKENS)) => {
                    path.blocks.push(id);
                    at = id;
                }
                Some((id, shared)) if shared > 0 => {
                    path.partial = Some((id, shared));
                    return path;
                }
                _ => return path,
            }
        }
    }

    /// What a lease of these tokens would have to read from SSD first, to have all that is kept of them.
    pub fn missing(&self, arena: ArenaId, root: BlockKey, tokens: &[u32]) -> Missing {
        let found = self.find(arena, root, tokens, true);
        let in_memory = found.memory.partial.map_or(0, |(_, shared)| shared);
        let partial = found.stored.partial.map_or(0, |(_, shared)| shared);
        let nodes = found.stored.blocks.iter().copied().chain(found.stored.partial.map(|(id, _)| id));
        let sizes: Vec<u64> = nodes.map(|id| self.sizes[usize::from(self.nodes[id].size)]).collect();
        let gained = (found.stored.blocks.len() * BLOCK_TOKENS + partial).saturating_sub(in_memory);
        Missing {
            tokens: if sizes.is_empty() { 0 } else { gained as u64 },
            bytes: sizes.iter().sum(),
            blocks: sizes.len() as u32,
        }
    }

    /// Where the prompt leaves what is kept, in whatever tier, if both go on and the shared part is long.
    pub(super) fn near_miss(&self, root: BlockKey, tokens: &[u32]) -> Option<NearMiss> {
        let root = self.nodes.find(&root)?;
        let kept_anywhere = Among { flags: flag::MEMORY | flag::STORED, accept: &|_| true };
        let path = self.follow(root, tokens, &kept_anywhere);
        let end = path.blocks.last().copied().unwrap_or(root);
        let in_block = path.partial.map_or(0, |(_, shared)| shared);
        let shared = path.blocks.len() * BLOCK_TOKENS + in_block;
        // However early: one other token in a system text costs all that comes behind it.
        if shared == 0 || shared == tokens.len() {
            return None;
        }
        let first_child = |id: NodeId| self.nodes.first_after(self.nodes[id].child, &[], &kept_anywhere);
        let mut next = match path.partial {
            Some((id, _)) => Some(id),
            // Nothing agrees in its first token: whichever was used last of the two neighbours.
            None => self.nodes.nearest(end, &tokens[shared..], &kept_anywhere).map(|(id, _)| id),
        };
        // A tail that agrees to its end is continued, not left: nothing is kept after it.
        let mut kept = Vec::new();
        let mut skip = in_block;
        while let Some(id) = next.filter(|&id| id != NONE && kept.len() < TOKENS_AFTER) {
            let own = self.nodes.tokens(id);
            kept.extend(own[skip..].iter().take(TOKENS_AFTER - kept.len()));
            skip = 0;
            next = first_child(id);
        }
        let asked = tokens[shared..].iter().take(TOKENS_AFTER).copied().collect();
        let before = tokens[shared.saturating_sub(TOKENS_BEFORE)..shared].to_vec();
        (!kept.is_empty()).then_some(NearMiss { shared, before, kept, asked })
    }
}
