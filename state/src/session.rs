//! Timelines that clients may continue: what they hold, when they were last used, what they saved.
//!
//! A session is a memory aid, never a source of truth. A cache hit is decided by the tokens alone; the session only
//! says which blocks belong together, for `list`, `show` and `evict`. The table is bounded: when it is full, the least
//! recently used session is forgotten (its blocks stay cached until they are evicted on their own).

use crate::key::{BLOCK_TOKENS, BlockKey, Fingerprint, block_keys};
use std::collections::{HashMap, HashSet};

/// A client's name for a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub String);

/// What is known of one timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The model that it was computed with; opaque here.
    pub model: String,
    /// Tokens whose KV was computed: the prompt and what was generated.
    pub tokens: u64,
    /// Keys of its full blocks, in token order.
    pub keys: Vec<BlockKey>,
    /// Keys of blocks that earlier turns made and the last one left: they hang on `keys` and go before them. At most
    /// 1024, the latest.
    pub left: Vec<BlockKey>,
    /// When a request last ended on it, in milliseconds since the Unix epoch.
    pub last_use_ms: u64,
    /// Requests that ran on it.
    pub turns: u64,
    /// Prompt tokens that came from the cache, over all turns.
    pub hit_tokens: u64,
}

/// Blocks that a session remembers beside its last turn's: 64 thousand tokens of turns that were taken back.
const MAX_LEFT_KEYS: usize = 1024;

/// All sessions, by name.
#[derive(Debug)]
pub struct SessionTable {
    capacity: usize,
    sessions: HashMap<SessionId, Session>,
}

impl SessionTable {
    /// An empty table of at most `capacity` sessions.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a table of no sessions cannot record one");
        Self { capacity, sessions: HashMap::new() }
    }

    /// Notes that a request ended on `id` having computed `tokens`, of which `hit_tokens` came from the cache.
    /// A session that moves to another model starts over.
    pub fn record(
        &mut self,
        id: &SessionId,
        model: &str,
        fingerprint: Fingerprint,
        tokens: &[u32],
        hit_tokens: u64,
        now_ms: u64,
    ) {
        let before = self.sessions.get(id).filter(|session| session.model == model);
        let turns = before.map_or(0, |session| session.turns) + 1;
        let hit_tokens = before.map_or(0, |session| session.hit_tokens) + hit_tokens;
        let full = tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS;
        let keys: Vec<BlockKey> = block_keys(BlockKey::root(fingerprint, ""), &tokens[..full]).collect();
        let current: HashSet<&BlockKey> = keys.iter().collect();
        let earlier = before.iter().flat_map(|session| session.left.iter().chain(&session.keys));
        let mut left: Vec<BlockKey> = earlier.filter(|key| !current.contains(key)).copied().collect();
        left.drain(..left.len().saturating_sub(MAX_LEFT_KEYS));
        if !self.sessions.contains_key(id) && self.sessions.len() == self.capacity {
            self.forget_oldest();
        }
        self.sessions.insert(
            id.clone(),
            Session {
                model: model.to_owned(),
                tokens: tokens.len() as u64,
                keys,
                left,
                last_use_ms: now_ms,
                turns,
                hit_tokens,
            },
        );
        assert!(self.sessions.len() <= self.capacity);
    }

    /// One session.
    pub fn get(&self, id: &SessionId) -> Option<&Session> {
        self.sessions.get(id)
    }

    /// Forgets one session and returns what it held.
    pub fn remove(&mut self, id: &SessionId) -> Option<Session> {
        self.sessions.remove(id)
    }

    /// Forgets the sessions of one model; returns how many.
    pub fn remove_model(&mut self, model: &str) -> usize {
        let before = self.sessions.len();
        self.sessions.retain(|_, session| session.model != model);
        before - self.sessions.len()
    }

    /// All sessions, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.sessions.iter()
    }

    fn forget_oldest(&mut self) {
        let oldest = self.sessions.iter().min_by_key(|(id, session)| (session.last_use_ms, *id));
        let oldest = oldest.map(|(id, _)| id.clone());
        if let Some(id) = oldest {
            self.sessions.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINGERPRINT: Fingerprint = Fingerprint([3; 32]);

    fn id(name: &str) -> SessionId {
        SessionId(name.to_owned())
    }

    #[test]
    fn turns_and_hits_add_up_and_another_model_starts_over() {
        let mut table = SessionTable::new(4);
        let tokens: Vec<u32> = (0..200).collect();
        table.record(&id("a"), "m", FINGERPRINT, &tokens[..100], 0, 10);
        table.record(&id("a"), "m", FINGERPRINT, &tokens, 64, 20);
        let session = table.get(&id("a")).expect("recorded");
        assert_eq!((session.turns, session.hit_tokens, session.tokens, session.keys.len()), (2, 64, 200, 3));
        table.record(&id("a"), "other", FINGERPRINT, &tokens, 64, 30);
        let session = table.get(&id("a")).expect("recorded");
        assert_eq!((session.turns, session.hit_tokens), (1, 64));
    }

    #[test]
    fn blocks_that_a_turn_left_are_remembered() {
        let mut table = SessionTable::new(4);
        let long: Vec<u32> = (0..300).collect();
        let mut other = long[..150].to_vec();
        other.extend([9; 60]);
        for tokens in [&long, &other, &long] {
            table.record(&id("a"), "m", FINGERPRINT, tokens, 0, 10);
            let session = table.get(&id("a")).expect("recorded");
            assert!(session.left.iter().all(|key| !session.keys.contains(key)));
        }
        let session = table.get(&id("a")).expect("recorded");
        let left: Vec<BlockKey> =
            block_keys(BlockKey::root(FINGERPRINT, ""), &other[..192]).skip(2).collect();
        assert_eq!((session.keys.len(), &session.left), (4, &left), "the third block of the second turn");
    }

    #[test]
    fn a_full_table_forgets_the_least_recently_used() {
        let mut table = SessionTable::new(2);
        table.record(&id("old"), "m", FINGERPRINT, &[1], 0, 1);
        table.record(&id("new"), "m", FINGERPRINT, &[1], 0, 2);
        table.record(&id("old"), "m", FINGERPRINT, &[1], 0, 3);
        table.record(&id("third"), "m", FINGERPRINT, &[1], 0, 4);
        let mut names: Vec<_> = table.iter().map(|(id, _)| id.0.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["old", "third"]);
    }
}
