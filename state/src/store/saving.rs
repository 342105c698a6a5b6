//! Writing behind: blocks first, parents before children; then the manifests that name them; then what they replace goes.
//!
//! Invariants: one transaction is on its way at a time. A manifest is written when its session's blocks are on disk, or can
//! no longer come there; where a longer block took over a session's tail, that one stands for it. What waits is bounded by the unsaved budget; what is over it is not written, and computed again
//! when it is wanted. When the disk is lost everything goes on without it; when it is back, all sessions are saved anew.

use super::{Action, KvStore};
use crate::disk::{Manifest, StoredBlock, disk_bytes};
use crate::key::{BlockKey, block_keys};
use crate::session::{Session, SessionName};
use crate::tier::Tier;
use std::collections::{BTreeSet, VecDeque};

/// What is written to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavePolicy {
    /// What named sessions leave, and what is used a second time.
    Sessions,
    /// What is used a second time.
    SecondUse,
    /// Everything.
    All,
    /// Nothing but what a client asks to save.
    Never,
}

/// What can be had of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DiskState {
    /// It cannot be used now, or was never there.
    #[default]
    Down,
    /// It can be used.
    Ready,
}

/// What a disk holds when it is opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiskContents {
    /// Blocks, parents before children.
    pub blocks: Vec<StoredBlock>,
    /// Sessions.
    pub sessions: Vec<Manifest>,
}

/// What a save request has brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaveOutcome {
    /// All that there was of what was asked for is on disk, synced.
    Done {
        /// Sessions.
        sessions: u64,
        /// Their blocks on disk.
        blocks: u64,
        /// Bytes of those.
        bytes: u64,
    },
    /// It is not.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Name of a transaction, until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteId(u64);

#[derive(Debug)]
struct InFlight {
    id: WriteId,
    what: Writing,
}

#[derive(Debug)]
enum Writing {
    /// The blocks and their bytes in memory.
    Blocks(Vec<BlockKey>, u64),
    /// Manifests by session and generation; sessions whose manifests go.
    Sessions { put: Vec<(SessionName, u64)>, remove: Vec<SessionName> },
}

/// A save request that is not answered yet.
#[derive(Debug)]
struct SaveWait {
    ticket: u64,
    /// Nothing at all may wait to be written.
    everything: bool,
    /// Sessions and the generation that is to be on disk.
    sessions: Vec<(SessionName, u64)>,
}

/// What waits to be written.
#[derive(Debug, Default)]
pub(super) struct Saving {
    pub(super) state: DiskState,
    in_flight: Option<InFlight>,
    /// Transactions so far.
    writes: u64,
    /// The last transaction was of blocks: sessions whose blocks are written by now come first.
    sessions_first: bool,
    /// Sessions whose latest generation is to be written, oldest first, each once.
    dirty: VecDeque<SessionName>,
    /// Sessions whose manifests are to go.
    gone: BTreeSet<SessionName>,
    waiting: Vec<SaveWait>,
    /// What was evicted from disk while blocks that hang on it were on their way there, parents first: it goes when they
    /// have come.
    evicted: Vec<BlockKey>,
    /// Blocks on disk that are of no use: damaged, or hanging on nothing.
    strays: Vec<BlockKey>,
    /// Blocks that were written.
    pub(super) written_blocks: u64,
    pub(super) written_bytes: u64,
    /// Blocks that could not be, for want of room.
    pub(super) refused_blocks: u64,
}

/// Manifests of one transaction.
const SESSIONS_A_WRITE: usize = 64;
/// Bytes of a manifest: for each token itself and its share of a key, doubled by the database's pages; and a page.
const MANIFEST_TOKEN_BYTES: u64 = 9;
const MANIFEST_BYTES: u64 = 8192;

impl KvStore {
    /// The disk can be used and holds this.
    pub fn disk_ready(&mut self, contents: DiskContents) -> Vec<Action> {
        self.saving.state = DiskState::Ready;
        for block in contents.blocks {
            let (key, taken) = (block.key, disk_bytes(block.bytes));
            if !self.index.insert_stored(&block, taken) {
                self.saving.strays.push(key);
            }
        }
        for manifest in contents.sessions {
            self.take_manifest(manifest);
        }
        if self.keeps_sessions() {
            let is_unsaved = |session: &Session| session.saved_generation != Some(session.generation);
            let unsaved = self.sessions.iter().filter(|(_, session)| is_unsaved(session));
            let unsaved: Vec<SessionName> = unsaved.map(|(name, _)| name.clone()).collect();
            for name in unsaved {
                self.keep_session(&name, false);
            }
        }
        self.pin_all();
        self.done()
    }

    /// The disk is lost: what it kept is forgotten, what waits for it is not done.
    pub fn disk_down(&mut self, reason: &str, now_ms: u64) -> Vec<Action> {
        // First, or a lease that waits would begin another read.
        self.saving.state = DiskState::Down;
        self.give_up_any_restore(now_ms);
        match self.saving.in_flight.take().map(|in_flight| in_flight.what) {
            Some(Writing::Blocks(keys, _)) => {
                self.index.writes_copied(&keys);
                self.index.writes_done(&keys, false);
            }
            // Perhaps they are not gone: a session that was evicted must not come back with the disk.
            Some(Writing::Sessions { remove, .. }) => {
                let stay_away = remove.into_iter().filter(|name| self.sessions.get(name).is_none());
                self.saving.gone.extend(stay_away);
            }
            None => {}
        }
        self.index.forget_stored();
        self.saving.evicted.clear();
        self.saving.dirty.clear();
        self.saving.strays.clear();
        let names: Vec<SessionName> = self.sessions.iter().map(|(name, _)| name.clone()).collect();
        for name in names {
            self.sessions.get_mut(&name).expect("listed above").saved_generation = None;
        }
        for wait in std::mem::take(&mut self.saving.waiting) {
            let outcome = SaveOutcome::Failed { reason: reason.to_owned() };
            self.actions.push(Action::Saved { ticket: wait.ticket, outcome });
        }
        self.done()
    }

    /// The blocks of a write were fetched from the device: their slots may go. Whether the write is still wanted: the disk
    /// that it was meant for may have been lost meanwhile.
    pub fn fetched(&mut self, id: WriteId) -> bool {
        let Some(in_flight) = self.saving.in_flight.as_ref().filter(|in_flight| in_flight.id == id) else {
            return false;
        };
        if let Writing::Blocks(keys, _) = &in_flight.what {
            self.index.writes_copied(keys);
        }
        true
    }

    /// A transaction has ended. One that failed while the disk is still up found no room. One that is not wanted any more is
    /// passed over.
    pub fn written(&mut self, id: WriteId, ok: bool) -> Vec<Action> {
        let in_flight = self.saving.in_flight.take_if(|in_flight| in_flight.id == id);
        match in_flight.map(|in_flight| in_flight.what) {
            Some(Writing::Blocks(keys, bytes)) => {
                if ok {
                    self.index.writes_copied(&keys);
                    self.index.writes_done(&keys, true);
                    self.saving.written_blocks += keys.len() as u64;
                    self.saving.written_bytes += bytes;
                } else {
                    self.refuse_blocks(&keys);
                }
            }
            Some(Writing::Sessions { put, .. }) if ok => {
                for (name, generation) in put {
                    if let Some(session) = self.sessions.get_mut(&name) {
                        session.saved_generation = Some(generation);
                    }
                }
            }
            Some(Writing::Sessions { put, .. }) => self.refuse_saves(&put),
            None => {}
        }
        if self.saving.in_flight.is_none() {
            let evicted = std::mem::take(&mut self.saving.evicted);
            self.index.evict(evicted.iter(), Some(Tier::Ssd));
        }
        self.done()
    }

    /// Saves one session, or all; answered by [`Action::Saved`] when they are on disk.
    pub fn save(&mut self, ticket: u64, name: Option<&SessionName>) -> Vec<Action> {
        let names: Vec<SessionName> = match name {
            Some(name) => vec![name.clone()],
            None => self.sessions.iter().map(|(name, _)| name.clone()).collect(),
        };
        self.save_named(ticket, &names, false);
        self.done()
    }

    /// Saves everything that the policy finds worth keeping; answered by [`Action::Saved`] when nothing waits any more.
    pub fn save_worthy(&mut self, ticket: u64) -> Vec<Action> {
        let kept = self.sessions.iter().filter(|_| self.keeps_sessions());
        let names: Vec<SessionName> = kept.map(|(name, _)| name.clone()).collect();
        self.save_named(ticket, &names, true);
        self.done()
    }

    fn save_named(&mut self, ticket: u64, names: &[SessionName], everything: bool) {
        if self.saving.state == DiskState::Down {
            let reason = "there is no disk to save to now; see `zllmctl status`".to_owned();
            return self.actions.push(Action::Saved { ticket, outcome: SaveOutcome::Failed { reason } });
        }
        for name in names {
            self.keep_session(name, true);
        }
        let generation = |name: &SessionName| Some((name.clone(), self.sessions.get(name)?.generation));
        let sessions = names.iter().filter_map(generation).collect();
        self.saving.waiting.push(SaveWait { ticket, everything, sessions });
    }

    /// Whether nothing is waiting to be written, or can be.
    pub fn is_saved(&self) -> bool {
        self.saving.state == DiskState::Down
            || (self.saving.in_flight.is_none()
                && self.saving.dirty.is_empty()
                && self.index.unsaved_bytes() == 0)
    }

    /// A copy on disk is no good: it and what hangs on it go.
    pub(super) fn damaged(&mut self, key: &BlockKey) {
        let keys = self.index.drop_stored(key);
        self.saving.strays.extend(keys);
    }

    /// A request without a session has ended.
    pub(super) fn keep_unnamed(&mut self, keys: &[BlockKey], wanted_again: bool) {
        if self.options.save == SavePolicy::All || (wanted_again && self.keeps_sessions()) {
            self.want(keys);
        }
    }

    /// Has blocks written as those of sessions are.
    pub(super) fn save_unasked(&mut self, keys: &[BlockKey]) {
        if self.keeps_sessions() {
            self.want(keys);
        }
    }

    /// Whether sessions are saved without being asked for.
    fn keeps_sessions(&self) -> bool {
        matches!(self.options.save, SavePolicy::Sessions | SavePolicy::All)
    }

    /// A session has a new state, and others were forgotten for it.
    pub(super) fn session_changed(&mut self, name: &SessionName, forgotten: Vec<SessionName>) {
        forgotten.iter().for_each(|forgotten| self.session_gone(forgotten));
        if self.keeps_sessions() {
            self.keep_session(name, false);
        }
        if self.sessions.get(name).is_some_and(|session| session.pinned) {
            self.pin_all();
        }
    }

    /// Blocks that were to leave the disk and had to stay for what is on its way there, parents first.
    pub(super) fn evict_again(&mut self, keys: impl Iterator<Item = BlockKey>) {
        if self.saving.in_flight.is_some() {
            let stayed = |key: &BlockKey| self.index.view(key).is_some_and(|view| view.stored);
            let stayed: Vec<BlockKey> = keys.filter(stayed).collect();
            self.saving.evicted.extend(stayed);
        }
    }

    /// A session's manifest and what it keeps on disk are to go.
    pub(super) fn session_gone(&mut self, name: &SessionName) {
        self.saving.dirty.retain(|dirty| dirty != name);
        if let Some(InFlight { what: Writing::Sessions { put, .. }, .. }) = &mut self.saving.in_flight {
            // What is being written is not the state of one that comes under the same name.
            put.retain(|(sent, _)| sent != name);
        }
        // Who waits for it waits for the others: one that comes under the same name is another session.
        for wait in &mut self.saving.waiting {
            wait.sessions.retain(|(wanted, _)| wanted != name);
        }
        self.saving.gone.insert(name.clone());
        if self.saving.state == DiskState::Down && self.saving.gone.len() > self.options.max_sessions {
            // The disk does not come to be told, and has no more sessions than this.
            self.saving.gone.pop_first();
        }
    }

    /// Has a session's blocks and manifest written, unless they are.
    pub(super) fn keep_session(&mut self, name: &SessionName, even_over_budget: bool) {
        let Some(session) = self.sessions.get(name) else { return };
        // A tail may be in a block that is longer: then that one is what the session keeps.
        let keys: Vec<BlockKey> = self.blocks_of(session).collect();
        // Whoever had them before was evicted, and this one came meanwhile.
        self.saving.evicted.retain(|evicted| !keys.contains(evicted));
        if even_over_budget {
            self.index.want_stored(keys.iter());
        } else {
            self.want(&keys);
        }
        let session = self.sessions.get(name).expect("looked up above");
        if session.saved_generation != Some(session.generation) && !self.saving.dirty.contains(name) {
            self.saving.dirty.push_back(name.clone());
        }
        self.saving.gone.remove(name);
    }

    /// Long requests of sessions have what they computed so far written.
    pub(super) fn save_running(&mut self, now_ms: u64) {
        if !self.keeps_sessions() {
            return;
        }
        let mut due = Vec::new();
        for held in self.leases.values_mut().filter(|held| held.has_session && held.save_at_ms <= now_ms) {
            held.save_at_ms = now_ms + self.options.running_save_ms;
            due.extend_from_slice(&held.keys);
        }
        self.want(&due);
    }

    fn want(&mut self, keys: &[BlockKey]) {
        if self.saving.state == DiskState::Ready
            && self.index.unsaved_bytes() < self.options.unsaved_budget_bytes
        {
            self.index.want_stored(keys.iter());
        }
    }

    /// Starts the next transaction, if there is one to do and none on its way.
    pub(super) fn disk_work(&mut self) {
        if self.saving.state == DiskState::Down {
            // What the index wishes to write by itself would pile up.
            self.index.forget_wanted();
            return;
        }
        if self.saving.in_flight.is_some() || (self.saving.sessions_first && self.write_sessions()) {
            return;
        }
        if !self.write_blocks() && !self.write_sessions() {
            let delete = self.take_deletes();
            if !delete.is_empty() {
                let id = self.start_write(Writing::Blocks(Vec::new(), 0));
                self.actions.push(Action::Write { id, model: String::new(), blocks: Vec::new(), delete });
            }
        }
    }

    fn start_write(&mut self, what: Writing) -> WriteId {
        self.saving.writes += 1;
        let id = WriteId(self.saving.writes);
        self.saving.sessions_first = matches!(what, Writing::Blocks(..));
        self.saving.in_flight = Some(InFlight { id, what });
        id
    }

    fn write_blocks(&mut self) -> bool {
        let budget = self.block_budget();
        let wanted = self.index.unsaved_bytes().min(self.options.write_batch_bytes);
        if wanted == 0 {
            self.index.make_stored_room(0, budget);
            return false;
        }
        self.index.make_stored_room(wanted, budget);
        if let Some(writes) = self.index.next_writes(self.options.write_batch_bytes) {
            let keys: Vec<BlockKey> = writes.blocks.iter().map(|block| block.key).collect();
            let model = self.model_of(writes.arena).expect("what is in an arena has a model").to_owned();
            let (count, sizes) = (keys.len() as u64, self.model(&model).budget);
            let taken = self.index.stored_bytes() + sizes.stored_bytes * count;
            if taken <= budget {
                let delete = self.deletes_beside(taken, budget);
                let id = self.start_write(Writing::Blocks(keys, sizes.block_bytes * count));
                self.actions.push(Action::Write { id, model, blocks: writes.blocks, delete });
                return true;
            }
            // All that is on disk is pinned or in use.
            self.refuse_blocks(&keys);
        }
        false
    }

    /// There is no room: neither these blocks are written nor those that wait, until somebody wants them again.
    fn refuse_blocks(&mut self, keys: &[BlockKey]) {
        self.saving.refused_blocks += (keys.len() + self.index.forget_wanted()) as u64;
        self.index.evict(keys.iter(), Some(Tier::Ssd));
        self.index.writes_copied(keys);
        self.index.writes_done(keys, false);
    }

    /// What is deleted beside blocks that are written. While manifests wait nothing is, if there is room: the blocks of an
    /// old generation stay until the new manifest is there, and those of a session that goes until its manifest is gone.
    fn deletes_beside(&mut self, taken: u64, budget: u64) -> Vec<BlockKey> {
        let manifests_wait = !self.saving.dirty.is_empty() || !self.saving.gone.is_empty();
        let largest = self.models.values().map(|model| model.budget.stored_bytes).max().unwrap_or(0);
        let waiting = (self.index.waiting_deletes() + self.saving.strays.len()) as u64;
        // A block of a model that is not loaded may be larger; then the largest one stands for it eight times.
        if manifests_wait && taken + 8 * waiting * largest <= budget {
            Vec::new()
        } else {
            self.take_deletes()
        }
    }

    fn take_deletes(&mut self) -> Vec<BlockKey> {
        let mut delete = self.index.take_deletes();
        delete.append(&mut self.saving.strays);
        delete
    }

    fn write_sessions(&mut self) -> bool {
        let mut put = Vec::new();
        let mut sent = Vec::new();
        let mut still_dirty = VecDeque::new();
        for name in std::mem::take(&mut self.saving.dirty) {
            let Some(session) = self.sessions.get(&name) else { continue };
            if sent.len() < SESSIONS_A_WRITE && self.blocks_are_written(session) {
                sent.push((name.clone(), session.generation));
                put.push(manifest(&name, session));
            } else {
                still_dirty.push_back(name);
            }
        }
        self.saving.dirty = still_dirty;
        let remove: Vec<SessionName> = std::mem::take(&mut self.saving.gone).into_iter().collect();
        if put.is_empty() && remove.is_empty() {
            return false;
        }
        let id = self.start_write(Writing::Sessions { put: sent, remove: remove.clone() });
        self.actions.push(Action::WriteSessions { id, put, remove });
        true
    }

    /// Whether all of a session's blocks are on disk, or will not come there any more. The last that is left tells: what
    /// is above it is in no worse a place.
    fn blocks_are_written(&self, session: &Session) -> bool {
        let last = self.blocks_of(session).rev().find_map(|key| self.index.view(&key));
        self.index.unsaved_bytes() == 0 || last.is_none_or(|view| view.stored)
    }

    /// Manifests found no room: they are tried again when their sessions change.
    fn refuse_saves(&mut self, put: &[(SessionName, u64)]) {
        for wait in std::mem::take(&mut self.saving.waiting) {
            if wait.sessions.iter().any(|wanted| put.contains(wanted)) {
                let reason = "the KV database has no room for it".to_owned();
                self.actions
                    .push(Action::Saved { ticket: wait.ticket, outcome: SaveOutcome::Failed { reason } });
            } else {
                self.saving.waiting.push(wait);
            }
        }
    }

    pub(super) fn answer_saves(&mut self) {
        let waiting = std::mem::take(&mut self.saving.waiting);
        for wait in waiting {
            let is_saved = |(name, generation): &(SessionName, u64)| {
                self.sessions.get(name).is_some_and(|session| session.saved_generation >= Some(*generation))
            };
            let is_done = wait.sessions.iter().all(is_saved) && !self.is_being_written(&wait);
            if !is_done || (wait.everything && !self.is_saved()) {
                self.saving.waiting.push(wait);
                continue;
            }
            let outcome = self.save_outcome(&wait);
            self.actions.push(Action::Saved { ticket: wait.ticket, outcome });
        }
    }

    /// Whether blocks are still on their way whose sessions' manifests are on disk: they had been evicted from there.
    fn is_being_written(&self, wait: &SaveWait) -> bool {
        let sessions = wait.sessions.iter().filter_map(|(name, generation)| {
            self.sessions.get(name).filter(|session| session.generation == *generation)
        });
        let keys = sessions.flat_map(|session| self.blocks_of(session));
        let mut views = keys.filter_map(|key| self.index.view(&key));
        views.any(|view| view.wanted || view.writing)
    }

    /// What is on disk of sessions whose manifests are.
    fn save_outcome(&self, wait: &SaveWait) -> SaveOutcome {
        let mut keys = BTreeSet::new();
        let (mut sessions, mut left_out) = (0, 0);
        for (name, generation) in &wait.sessions {
            let Some(session) = self.sessions.get(name) else { continue };
            sessions += 1;
            keys.extend(self.blocks_of(session));
            if session.generation == *generation {
                let views = self.blocks_of(session).filter_map(|key| self.index.view(&key));
                left_out += views.filter(|view| !view.stored).count();
            }
        }
        if left_out > 0 && !wait.everything {
            let reason = format!(
                "{left_out} blocks found no room in the KV database, or were evicted from it; what is there of the \
                 session is kept, the rest would be computed again"
            );
            return SaveOutcome::Failed { reason };
        }
        let stored = keys.iter().filter_map(|key| self.index.view(key)).filter(|view| view.stored);
        let (blocks, bytes) =
            stored.fold((0, 0), |(blocks, bytes), view| (blocks + 1, bytes + view.stored_bytes));
        SaveOutcome::Done { sessions, blocks, bytes }
    }

    /// Bytes that blocks may take on disk beside the manifests.
    pub(super) fn block_budget(&self) -> u64 {
        let (tokens, sessions) = (self.sessions.tokens() as u64, self.sessions.len() as u64);
        let manifests = tokens * MANIFEST_TOKEN_BYTES + sessions * MANIFEST_BYTES;
        self.options.disk_budget_bytes.saturating_sub(manifests)
    }

    /// A session that was found on disk. What memory knows of the same name is newer.
    fn take_manifest(&mut self, manifest: Manifest) {
        let name = manifest.name();
        if self.saving.gone.contains(&name) {
            // It was evicted while the disk could not be told.
            return;
        }
        if let Some(session) = self.sessions.get_mut(&name) {
            let same = session.root == manifest.root
                && session.tokens[..] == manifest.tokens[..]
                && (session.pinned, session.ttl_ms) == (manifest.pinned, manifest.ttl_ms);
            session.saved_generation = same.then_some(session.generation);
            return;
        }
        // A fork that ends inside a block has no key for it.
        let keys = block_keys(manifest.root, &manifest.tokens).take(manifest.keys.len()).collect();
        let session = Session {
            model: manifest.model,
            root: manifest.root,
            tokens: manifest.tokens.into(),
            keys,
            left: Vec::new(),
            generation: manifest.generation,
            saved_generation: Some(manifest.generation),
            sampled: manifest.sampled,
            created_ms: manifest.created_ms,
            last_use_ms: manifest.last_use_ms,
            turns: manifest.turns,
            hits: manifest.hits,
            hit_tokens: manifest.hit_tokens,
            pinned: manifest.pinned,
            ttl_ms: manifest.ttl_ms,
        };
        let forgotten = self.sessions.insert(name, session);
        forgotten.iter().for_each(|forgotten| self.session_gone(forgotten));
    }
}

fn manifest(name: &SessionName, session: &Session) -> Manifest {
    Manifest {
        tenant: name.tenant.clone(),
        id: name.id.clone(),
        model: session.model.clone(),
        root: session.root,
        tokens: session.tokens.to_vec(),
        keys: session.keys.clone(),
        generation: session.generation,
        sampled: session.sampled,
        turns: session.turns,
        hits: session.hits,
        hit_tokens: session.hit_tokens,
        created_ms: session.created_ms,
        last_use_ms: session.last_use_ms,
        pinned: session.pinned,
        ttl_ms: session.ttl_ms,
    }
}
