//! Prefixes that clients ask to have kept for a while: pinned until then, without being anybody's session.
//!
//! Invariants: they are bounded in number, and in bytes together with what pinned sessions have; those that were asked for
//! longest ago go first. They give way where a request would find no room for them. They hold whole blocks, computed or not
//! yet, and end with the process: what is on disk stays there, and may go.

use super::{Action, KvStore};
use crate::key::{BLOCK_TOKENS, BlockKey, block_keys};
use std::collections::HashSet;

/// A prefix that is held.
#[derive(Debug)]
pub(super) struct Prefix {
    /// In token order, at least one.
    keys: Vec<BlockKey>,
    /// What a block takes that is not computed yet.
    block_bytes: u64,
    until_ms: u64,
}

impl Prefix {
    /// Its blocks.
    pub(super) fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    /// Whether a timeline of these blocks begins with it.
    fn begins(&self, keys: &[BlockKey]) -> bool {
        keys.get(self.keys.len() - 1) == self.keys.last()
    }
}

impl KvStore {
    /// Pins the blocks of the first of a prompt's tokens until a time, or for longer where they are held already. Whether it
    /// does: less than a block is not held, nor is what has no room beside pinned sessions.
    pub fn hold_prefix(
        &mut self,
        model: &str,
        tenant: &str,
        tokens: &[u32],
        until_ms: u64,
    ) -> (bool, Vec<Action>) {
        let Some(of) = self.models.get(model) else { return (false, Vec::new()) };
        let whole = &tokens[..tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS];
        let keys: Vec<BlockKey> = block_keys(BlockKey::root(of.fingerprint, tenant), whole).collect();
        if keys.is_empty() {
            return (false, Vec::new());
        }
        let block_bytes = of.budget.block_bytes.max(of.budget.stored_bytes);
        let prefix = Prefix { keys, block_bytes, until_ms };
        if self.pinned_bytes([&prefix]) > self.pin_limit_bytes() {
            return (false, Vec::new());
        }
        let covers = |held: &Prefix| held.until_ms >= until_ms && prefix.begins(&held.keys);
        match self.prefixes.iter().position(covers) {
            // Asked for again.
            Some(place) => self.prefixes[place..].rotate_left(1),
            None => {
                self.prefixes.retain(|held| held.until_ms > until_ms || !held.begins(&prefix.keys));
                self.save_unasked(&prefix.keys);
                self.prefixes.push(prefix);
            }
        }
        self.bound_prefixes();
        (true, self.done())
    }

    /// Prefixes whose blocks stay for now.
    pub fn held_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Those whose time is over are not held any more.
    pub(super) fn end_prefixes(&mut self, now_ms: u64) {
        let before = self.prefixes.len();
        self.prefixes.retain(|prefix| prefix.until_ms > now_ms);
        if self.prefixes.len() < before {
            self.pin_all();
        }
    }

    /// None is held any more.
    pub(super) fn let_prefixes_go(&mut self) {
        self.prefixes.clear();
        self.pin_all();
    }

    /// Has the first of them go until what is pinned is within its bounds.
    pub(super) fn bound_prefixes(&mut self) {
        while self.prefixes.len() > self.options.max_prefixes
            || (!self.prefixes.is_empty() && self.pinned_bytes(&self.prefixes) > self.pin_limit_bytes())
        {
            self.prefixes.remove(0);
        }
        self.pin_all();
    }

    /// A request has computed these blocks: those of prefixes among them are worth a place on disk, where they take none of
    /// the memory.
    pub(super) fn save_prefixes(&mut self, computed: &[BlockKey]) {
        let held = self.prefixes.iter().filter(|prefix| prefix.begins(computed));
        let keys: Vec<BlockKey> = held.flat_map(|prefix| prefix.keys.iter().copied()).collect();
        self.save_unasked(&keys);
    }

    /// What is pinned with these prefixes.
    fn pinned_bytes<'p>(&self, prefixes: impl IntoIterator<Item = &'p Prefix>) -> u64 {
        let sessions = self.sessions.iter().filter(|(_, session)| session.pinned);
        let mut seen: HashSet<&BlockKey> = sessions.flat_map(|(_, session)| &session.keys).collect();
        let mut bytes: u64 = seen.iter().filter_map(|key| self.bytes_of(key)).sum();
        for prefix in prefixes {
            for key in prefix.keys.iter() {
                if seen.insert(key) {
                    bytes += self.bytes_of(key).unwrap_or(prefix.block_bytes);
                }
            }
        }
        bytes
    }
}
