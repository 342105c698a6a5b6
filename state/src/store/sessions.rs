//! What clients do with sessions: fork, pin, limit, evict, go on.

use super::prefixes::Prefix;
use super::{Action, KvStore};
use crate::key::{BLOCK_TOKENS, BlockKey};
use crate::session::{Session, SessionName};
use crate::tier::{ByTier, Tier};
use std::collections::HashSet;
use std::sync::Arc;

/// Why a session cannot do what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Nobody knows it.
    #[error("there is no session {id}")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// A fork would write over another session.
    #[error("session {id} is there already; evict it or fork to another name")]
    Exists {
        /// The name that is taken.
        id: String,
    },
    /// A fork beyond the session's end.
    #[error("session {id} has {tokens} tokens; fork at 1 up to {tokens}, not at {at}")]
    OutOfRange {
        /// The session.
        id: String,
        /// Its length.
        tokens: usize,
        /// Where the fork was to be.
        at: u64,
    },
    /// Its tokens belong to another model, or another state of this one.
    #[error(
        "session {id} was made with model {model:?}, or with other weights or another KV format under that name; send the \
         whole prompt instead"
    )]
    OtherModel {
        /// The session.
        id: String,
        /// The model that made it.
        model: String,
    },
    /// Too much would be pinned.
    #[error(
        "{pinned_bytes} bytes would be pinned, {limit_bytes} may be: half of what sessions may take; unpin another first"
    )]
    TooMuchPinned {
        /// With this session.
        pinned_bytes: u64,
        /// The bound.
        limit_bytes: u64,
    },
}

/// What to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictTarget {
    /// One session.
    Session(SessionName),
    /// All that is cached, of sessions or not.
    All,
    /// Sessions without use for so long.
    OlderThan {
        /// In milliseconds.
        idle_ms: u64,
    },
}

/// What was evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Sessions that are gone, or lost something in the tier.
    pub sessions: u64,
    /// Copies of blocks, by the tier that they left.
    pub blocks: ByTier,
    /// Their bytes.
    pub bytes: u64,
}

impl KvStore {
    /// One session.
    pub fn session(&self, name: &SessionName) -> Option<&Session> {
        self.sessions.get(name)
    }

    /// All sessions, by name.
    pub fn sessions(&self) -> impl Iterator<Item = (&SessionName, &Session)> {
        self.sessions.iter()
    }

    /// The tokens of a session, to go on with.
    ///
    /// # Errors
    /// There is no such session, or it is not this model's.
    pub fn continue_session(&self, name: &SessionName, model: &str) -> Result<Arc<[u32]>, SessionError> {
        let session = self.known(name)?;
        let root = self.models.get(model).map(|model| BlockKey::root(model.fingerprint, &name.tenant));
        if root != Some(session.root) {
            return Err(SessionError::OtherModel { id: name.to_string(), model: session.model.clone() });
        }
        Ok(session.tokens.clone())
    }

    /// Makes a session of the first `at` tokens of another, or of all; they share the blocks.
    ///
    /// # Errors
    /// There is no such session, its name is taken, or it is not that long.
    pub fn fork(
        &mut self,
        from: &SessionName,
        to: &SessionName,
        at: Option<u64>,
        now_ms: u64,
    ) -> Result<Vec<Action>, SessionError> {
        let session = self.known(from)?;
        let tokens = session.tokens.len();
        let at = at.unwrap_or(tokens as u64);
        if at == 0 || at > tokens as u64 {
            return Err(SessionError::OutOfRange { id: from.to_string(), tokens, at });
        }
        if self.sessions.get(to).is_some() {
            return Err(SessionError::Exists { id: to.to_string() });
        }
        let at = at as usize;
        let whole = if at == tokens { session.keys.len() } else { at / BLOCK_TOKENS };
        let fork = Session {
            tokens: session.tokens[..at].into(),
            keys: session.keys[..whole].to_vec(),
            left: Vec::new(),
            generation: 1,
            saved_generation: None,
            created_ms: now_ms,
            last_use_ms: now_ms,
            turns: 0,
            hits: 0,
            hit_tokens: 0,
            pinned: false,
            ..session.clone()
        };
        let forgotten = self.sessions.insert(to.clone(), fork);
        self.session_changed(to, forgotten);
        Ok(self.done())
    }

    /// Pins a session or lets go of it. What is pinned keeps at least one copy of each block.
    ///
    /// # Errors
    /// There is no such session, or too much would be pinned.
    pub fn pin(&mut self, name: &SessionName, pinned: bool) -> Result<Vec<Action>, SessionError> {
        self.known(name)?;
        if pinned {
            self.judge_pin(name)?;
        }
        let session = self.sessions.get_mut(name).expect("looked up above");
        session.pinned = pinned;
        self.changed_settings(name);
        self.bound_prefixes();
        Ok(self.done())
    }

    /// Sets how long a session is kept without use; `None`: as the configuration says.
    ///
    /// # Errors
    /// There is no such session.
    pub fn set_ttl(&mut self, name: &SessionName, ttl_ms: Option<u64>) -> Result<Vec<Action>, SessionError> {
        self.known(name)?;
        self.sessions.get_mut(name).expect("looked up above").ttl_ms = ttl_ms;
        self.changed_settings(name);
        Ok(self.done())
    }

    /// Evicts from one tier, or from all. Without a tier a session goes whole: what other sessions share with it stays, and of
    /// all that goes prefixes are held no more. What is leased stays in any case; what is pinned stays unless its session is
    /// named.
    ///
    /// # Errors
    /// There is no such session.
    pub fn evict(
        &mut self,
        target: &EvictTarget,
        tier: Option<Tier>,
        now_ms: u64,
    ) -> Result<(Evicted, Vec<Action>), SessionError> {
        let evicted = match target {
            EvictTarget::Session(name) => {
                self.known(name)?;
                self.evict_sessions(std::slice::from_ref(name), tier)
            }
            EvictTarget::OlderThan { idle_ms } => {
                let is_old = |session: &Session| {
                    !session.pinned && now_ms.saturating_sub(session.last_use_ms) >= *idle_ms
                };
                let names: Vec<SessionName> =
                    self.sessions.iter().filter(|(_, s)| is_old(s)).map(|(name, _)| name.clone()).collect();
                self.evict_sessions(&names, tier)
            }
            EvictTarget::All => {
                if tier.is_none() {
                    self.let_prefixes_go();
                }
                self.evict_all(tier)
            }
        };
        let actions = self.done();
        Ok((evicted, actions))
    }

    /// Sessions whose time is over go.
    pub(super) fn end_sessions(&mut self, now_ms: u64) {
        let default = self.options.session_ttl_ms;
        let is_over = |session: &Session| {
            let ttl = session.ttl_ms.or(default);
            !session.pinned && ttl.is_some_and(|ttl| now_ms.saturating_sub(session.last_use_ms) >= ttl)
        };
        let over: Vec<SessionName> =
            self.sessions.iter().filter(|(_, s)| is_over(s)).map(|(name, _)| name.clone()).collect();
        if !over.is_empty() {
            self.evict_sessions(&over, None);
        }
    }

    /// Tells the index what is pinned now.
    pub(super) fn pin_all(&mut self) {
        let pinned = self.sessions.iter().filter(|(_, session)| session.pinned);
        let prefixes = self.prefixes.iter().flat_map(Prefix::keys);
        self.index.pin(pinned.flat_map(|(_, session)| &session.keys).chain(prefixes));
    }

    fn known(&self, name: &SessionName) -> Result<&Session, SessionError> {
        self.sessions.get(name).ok_or_else(|| SessionError::NotFound { id: name.to_string() })
    }

    /// A manifest must be written again, with the same timeline: that of a saved session whatever the policy.
    fn changed_settings(&mut self, name: &SessionName) {
        let session = self.sessions.get_mut(name).expect("its caller has looked it up");
        session.generation += 1;
        if session.saved_generation.is_some() {
            self.keep_session(name, false);
        }
        self.session_changed(name, Vec::new());
    }

    fn judge_pin(&self, name: &SessionName) -> Result<(), SessionError> {
        let sessions = self.sessions.iter().filter(|(other, session)| session.pinned || *other == name);
        let keys: HashSet<&BlockKey> = sessions.flat_map(|(_, session)| &session.keys).collect();
        let pinned_bytes = keys.iter().filter_map(|key| self.bytes_of(key)).sum();
        let limit_bytes = self.pin_limit_bytes();
        if pinned_bytes > limit_bytes {
            return Err(SessionError::TooMuchPinned { pinned_bytes, limit_bytes });
        }
        Ok(())
    }

    /// What may be pinned: half of what sessions may take.
    pub(super) fn pin_limit_bytes(&self) -> u64 {
        let memory = self.models.values().map(|model| {
            u64::from(model.budget.ram_blocks + model.budget.device_blocks) * model.budget.block_bytes
        });
        let disk = self.options.disk_budget_bytes;
        let room = if disk > 0 { disk } else { memory.sum() };
        room / 2
    }

    /// What a block takes in memory or on disk, whichever is more; `None`: it is nowhere.
    pub(super) fn bytes_of(&self, key: &BlockKey) -> Option<u64> {
        self.index.view(key).map(|view| view.bytes.max(view.stored_bytes))
    }

    /// What these sessions have and no other has. Together, because each look at all sessions takes its time.
    fn evict_sessions(&mut self, names: &[SessionName], tier: Option<Tier>) -> Evicted {
        let named: HashSet<&SessionName> = names.iter().collect();
        let of_named = names.iter().filter_map(|name| self.sessions.get(name));
        // A session's own order, so that a block stands after its parent.
        let keys: Vec<BlockKey> = of_named
            .flat_map(|session| self.blocks_of(session).chain(session.left.iter().copied()))
            .collect();
        let mut own: HashSet<BlockKey> = keys.iter().copied().collect();
        for (_, session) in self.sessions.iter().filter(|(name, _)| !named.contains(name)) {
            for key in self.blocks_of(session) {
                own.remove(&key);
            }
        }
        let before: Vec<ByTier> = names.iter().map(|name| self.copies_of(name)).collect();
        if tier.is_none() {
            // Named by hand, or over: a pin goes with its session.
            for name in names {
                self.sessions.remove(name);
                self.session_gone(name);
            }
            self.pin_all();
        }
        let bytes = |store: &Self| {
            let views = own.iter().filter_map(|key| store.index.view(key));
            views.map(|view| view.bytes + view.stored_bytes).sum::<u64>()
        };
        let bytes_before = bytes(self);
        let blocks = self.index.evict(keys.iter().filter(|key| own.contains(*key)), tier);
        if matches!(tier, None | Some(Tier::Ssd)) {
            self.evict_again(keys.iter().filter(|key| own.contains(*key)).copied());
        }
        let has_lost =
            |(name, before): &(&SessionName, ByTier)| tier.is_none() || self.copies_of(name) != *before;
        let sessions = names.iter().zip(before).filter(has_lost).count() as u64;
        Evicted { sessions, blocks, bytes: bytes_before - bytes(self) }
    }

    fn evict_all(&mut self, tier: Option<Tier>) -> Evicted {
        let names: Vec<SessionName> = self.sessions.iter().map(|(name, _)| name.clone()).collect();
        let before: Vec<ByTier> = names.iter().map(|name| self.copies_of(name)).collect();
        let bytes = |store: &Self| {
            let arenas = store.models.values().map(|model| {
                let figures = store.index.figures(model.arena);
                let blocks =
                    figures.device.used + figures.device.cached + figures.ram.used + figures.ram.cached;
                u64::from(blocks) * model.budget.block_bytes
            });
            arenas.sum::<u64>() + store.index.stored_bytes()
        };
        let bytes_before = bytes(self);
        let blocks = self.index.evict_all(tier);
        if matches!(tier, None | Some(Tier::Ssd)) {
            let keys: Vec<BlockKey> =
                self.sessions.iter().flat_map(|(_, session)| &session.keys).copied().collect();
            self.evict_again(keys.into_iter());
        }
        let has_lost = |(name, before): &(&SessionName, ByTier)| self.copies_of(name) != *before;
        let sessions = names.iter().zip(before).filter(has_lost).count() as u64;
        Evicted { sessions, blocks, bytes: bytes_before - bytes(self) }
    }

    /// The blocks in which a session's KV is, each after its parent: its own, but for a tail that a longer block took over.
    pub(super) fn blocks_of(&self, session: &Session) -> impl DoubleEndedIterator<Item = BlockKey> + use<> {
        let mut keys = session.keys.clone();
        if let Some((last, before)) = keys.split_last_mut() {
            let parent = before.last().unwrap_or(&session.root);
            let tokens = session.tokens.chunks(BLOCK_TOKENS).nth(before.len()).unwrap_or_default();
            *last = self.index.holder(parent, tokens).unwrap_or(*last);
        }
        keys.into_iter()
    }

    /// Copies of a session's blocks, by tier.
    fn copies_of(&self, name: &SessionName) -> ByTier {
        self.sessions.get(name).map_or_else(ByTier::default, |session| self.brief_view(session).blocks)
    }
}
