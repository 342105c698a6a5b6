//! Prefixes that clients ask to have kept for a while: pinned until then, without being anybody's session.
//!
//! Invariants: they are bounded in number, in all and of each tenant, and in bytes together with what pinned sessions have.
//! Where there are too many of a tenant, or too much of all, the tenant's go first that has most, and of those the ones that
//! were asked for longest ago: nobody loses what is held to a tenant that has as much. They give way where a request would find no room for them. They hold whole blocks, computed or not
//! yet, and end with the process: what is on disk stays there, and may go.

use super::{Action, KvStore};
use crate::key::{BLOCK_TOKENS, BlockKey, block_keys};
use std::collections::{HashMap, HashSet};

/// A prefix that is held.
#[derive(Debug)]
pub(super) struct Prefix {
    tenant: String,
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
    /// does: less than a block is not held, nor is what has no room beside pinned sessions and other tenants.
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
        let last = *keys.last().expect("it has a block");
        let prefix = Prefix { tenant: tenant.to_owned(), keys, block_bytes, until_ms };
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
        let is_held = self.prefixes.iter().any(|held| held.keys.contains(&last));
        (is_held, self.done())
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

    /// Has some of them go until what is pinned is within its bounds.
    pub(super) fn bound_prefixes(&mut self) {
        while let Some(place) = self.next_prefix_to_go() {
            self.prefixes.remove(place);
        }
        self.pin_all();
    }

    /// The place of the next one that has to go: the first of a tenant that has too many, or of the one that has most blocks
    /// where all have too much.
    fn next_prefix_to_go(&self) -> Option<usize> {
        // How many each tenant has, and how many blocks.
        let mut tenants: HashMap<&str, (usize, usize)> = HashMap::new();
        for prefix in &self.prefixes {
            let (count, blocks) = tenants.entry(&prefix.tenant).or_default();
            (*count, *blocks) = (*count + 1, *blocks + prefix.keys.len());
        }
        let most = self.options.max_tenant_prefixes;
        let too_many = self.prefixes.iter().position(|prefix| tenants[&*prefix.tenant].0 > most);
        too_many.or_else(|| {
            let is_over = self.prefixes.len() > self.options.max_prefixes
                || self.pinned_bytes(&self.prefixes) > self.pin_limit_bytes();
            // Of two that have as much, the one that asked last.
            let largest = self.prefixes.iter().max_by_key(|prefix| tenants[&*prefix.tenant].1);
            let tenant = &largest.filter(|_| is_over)?.tenant;
            self.prefixes.iter().position(|prefix| prefix.tenant == *tenant)
        })
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
