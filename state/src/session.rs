//! Timelines that clients may continue: what they hold, when they were last used, what of them is saved.
//!
//! A session is a memory aid, never a source of truth. A cache hit is decided by the tokens alone; the session says which
//! blocks belong together, for `list`, `show`, `evict` and `pin`, and it keeps the tokens, so that a client can go on
//! without sending them again.
//!
//! Invariants: the table is bounded in sessions and in tokens; when it is full the least recently used session that is
//! not pinned is forgotten (its blocks stay until they are evicted on their own). A session's generation grows with
//! each change of its timeline; it is saved when the generation on disk is the same.

use crate::key::{BlockKey, block_keys};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A client's name for a timeline. Two tenants' equal ids are two sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionName {
    /// Whose; `""` for nobody in particular.
    pub tenant: String,
    /// What the client calls it.
    pub id: String,
}

impl std::fmt::Display for SessionName {
    /// `id`, or `tenant/id`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.tenant.as_str() {
            "" => f.write_str(&self.id),
            tenant => write!(f, "{tenant}/{}", self.id),
        }
    }
}

/// What is known of one timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The model that it was computed with; opaque here.
    pub model: String,
    /// Root of its keys: the model's fingerprint and the tenant.
    pub root: BlockKey,
    /// Tokens whose KV was computed: the prompt and what was generated.
    pub tokens: Arc<[u32]>,
    /// Keys of its blocks, in token order, the tail's included.
    pub keys: Vec<BlockKey>,
    /// Keys of blocks that earlier turns made and the last one left: they hang on `keys` and go before them. At most
    /// 1024, the latest.
    pub left: Vec<BlockKey>,
    /// Counts the changes of the timeline.
    pub generation: u64,
    /// The generation that is on disk.
    pub saved_generation: Option<u64>,
    /// Tokens that the last answer drew: where its sampler stands.
    pub sampled: u64,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When a request last ended on it.
    pub last_use_ms: u64,
    /// Requests that ran on it.
    pub turns: u64,
    /// Those of them that found something in the cache.
    pub hits: u64,
    /// Prompt tokens that came from the cache, over all turns.
    pub hit_tokens: u64,
    /// Its blocks are never evicted from their last place.
    pub pinned: bool,
    /// How long it is kept without use; `None`: as the configuration says.
    pub ttl_ms: Option<u64>,
}

/// What a request leaves on a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Root of the keys.
    pub root: BlockKey,
    /// Tokens whose KV was computed.
    pub tokens: &'a [u32],
    /// How many came from the cache.
    pub hit_tokens: u64,
    /// How many were drawn.
    pub sampled: u64,
}

/// Blocks that a session remembers beside its last turn's: 64 thousand tokens of turns that were taken back.
const MAX_LEFT_KEYS: usize = 1024;

/// All sessions, by name.
#[derive(Debug)]
pub struct SessionTable {
    max_sessions: usize,
    max_tokens: usize,
    tokens: usize,
    sessions: BTreeMap<SessionName, Session>,
}

impl SessionTable {
    /// An empty table of at most so many sessions, which have at most so many tokens together.
    pub fn new(max_sessions: usize, max_tokens: usize) -> Self {
        assert!(max_sessions > 0 && max_tokens > 0, "a table of no sessions cannot record one");
        Self { max_sessions, max_tokens, tokens: 0, sessions: BTreeMap::new() }
    }

    /// Notes that a request ended on `name`. A session that moves to another model starts over. Returns the sessions that
    /// had to be forgotten for it; the new one is among them when it alone is over the bound.
    pub fn record(&mut self, name: &SessionName, turn: &Turn<'_>, now_ms: u64) -> Vec<SessionName> {
        let before = self.sessions.get(name);
        let same = before.filter(|session| session.root == turn.root);
        let keys: Vec<BlockKey> = block_keys(turn.root, turn.tokens).collect();
        let current: HashSet<&BlockKey> = keys.iter().collect();
        let earlier = same.iter().flat_map(|session| session.left.iter().chain(&session.keys));
        let mut left: Vec<BlockKey> = earlier.filter(|key| !current.contains(key)).copied().collect();
        left.drain(..left.len().saturating_sub(MAX_LEFT_KEYS));
        let session = Session {
            model: turn.model.to_owned(),
            root: turn.root,
            tokens: turn.tokens.into(),
            keys,
            left,
            generation: before.map_or(0, |session| session.generation) + 1,
            saved_generation: before.and_then(|session| session.saved_generation),
            sampled: turn.sampled,
            created_ms: same.map_or(now_ms, |session| session.created_ms),
            last_use_ms: now_ms,
            turns: same.map_or(0, |session| session.turns) + 1,
            hits: same.map_or(0, |session| session.hits) + u64::from(turn.hit_tokens > 0),
            hit_tokens: same.map_or(0, |session| session.hit_tokens) + turn.hit_tokens,
            pinned: before.is_some_and(|session| session.pinned),
            ttl_ms: before.and_then(|session| session.ttl_ms),
        };
        self.insert(name.clone(), session)
    }

    /// Puts a session in, over one of the same name. Returns what had to be forgotten for it.
    pub fn insert(&mut self, name: SessionName, session: Session) -> Vec<SessionName> {
        self.remove(&name);
        self.tokens += session.tokens.len();
        self.sessions.insert(name, session);
        let mut forgotten = Vec::new();
        while self.sessions.len() > self.max_sessions || self.tokens > self.max_tokens {
            let Some(oldest) = self.oldest() else { break };
            self.remove(&oldest);
            forgotten.push(oldest);
        }
        forgotten
    }

    /// One session.
    pub fn get(&self, name: &SessionName) -> Option<&Session> {
        self.sessions.get(name)
    }

    /// One session, whose tokens must stay as they are.
    pub fn get_mut(&mut self, name: &SessionName) -> Option<&mut Session> {
        self.sessions.get_mut(name)
    }

    /// Forgets one session and returns what it held.
    pub fn remove(&mut self, name: &SessionName) -> Option<Session> {
        let session = self.sessions.remove(name)?;
        self.tokens -= session.tokens.len();
        Some(session)
    }

    /// All sessions, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&SessionName, &Session)> {
        self.sessions.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Tokens of all of them together.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The session that goes first: the least recently used, and a pinned one only when all are.
    fn oldest(&self) -> Option<SessionName> {
        let oldest = self.sessions.iter().min_by_key(|(_, session)| (session.pinned, session.last_use_ms));
        oldest.map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Fingerprint;

    fn name(id: &str) -> SessionName {
        SessionName { tenant: String::new(), id: id.to_owned() }
    }

    fn root(model: u8) -> BlockKey {
        BlockKey::root(Fingerprint([model; 32]), "")
    }

    fn turn(tokens: &[u32], hit_tokens: u64) -> Turn<'_> {
        Turn { model: "m", root: root(3), tokens, hit_tokens, sampled: 1 }
    }

    #[test]
    fn turns_and_hits_add_up_and_another_model_starts_over() {
        let mut table = SessionTable::new(4, 1000);
        let tokens: Vec<u32> = (0..200).collect();
        table.record(&name("a"), &turn(&tokens[..100], 0), 10);
        table.record(&name("a"), &turn(&tokens, 64), 20);
        let session = table.get(&name("a")).expect("recorded");
        assert_eq!((session.turns, session.hits, session.hit_tokens, session.keys.len()), (2, 1, 64, 4));
        assert_eq!((session.created_ms, session.generation, session.saved_generation), (10, 2, None));
        table.record(&name("a"), &Turn { root: root(4), ..turn(&tokens, 64) }, 30);
        let session = table.get(&name("a")).expect("recorded");
        assert_eq!((session.turns, session.hit_tokens, session.generation), (1, 64, 3));
        assert!(session.left.is_empty(), "another model's blocks are not its own");
    }

    #[test]
    fn blocks_that_a_turn_left_are_remembered() {
        let mut table = SessionTable::new(4, 1000);
        let long: Vec<u32> = (0..300).collect();
        let mut other = long[..150].to_vec();
        other.extend([9; 60]);
        for tokens in [&long, &other, &long] {
            table.record(&name("a"), &turn(tokens, 0), 10);
            let session = table.get(&name("a")).expect("recorded");
            assert!(session.left.iter().all(|key| !session.keys.contains(key)));
        }
        let session = table.get(&name("a")).expect("recorded");
        let left: Vec<BlockKey> = block_keys(root(3), &other).skip(2).collect();
        assert_eq!((session.keys.len(), &session.left), (5, &left), "what follows its second block");
    }

    #[test]
    fn a_full_table_forgets_the_least_recently_used_that_is_not_pinned() {
        let mut table = SessionTable::new(2, 100);
        table.record(&name("old"), &turn(&[1], 0), 1);
        table.record(&name("new"), &turn(&[1], 0), 2);
        table.record(&name("old"), &turn(&[1], 0), 3);
        assert_eq!(table.record(&name("third"), &turn(&[1], 0), 4), [name("new")]);
        table.get_mut(&name("old")).expect("kept").pinned = true;
        assert_eq!(table.record(&name("big"), &turn(&[1; 99], 0), 5), [name("third")]);
        assert_eq!(table.record(&name("huge"), &turn(&[1; 101], 0), 6), [name("big"), name("huge")]);
        let names: Vec<_> = table.iter().map(|(name, _)| name.id.as_str()).collect();
        assert_eq!(names, ["old"]);
    }
}
