//! The naive twin of the index; see `index_property.rs`.

mod disk;
mod expect;

use std::collections::{BTreeMap, BTreeSet};
use zllm_state::index::{
    ArenaBudget, ArenaId, BlockView, Grant, Index, IndexOptions, LeaseError, LeaseId, Restore, Writes,
};
use zllm_state::{BLOCK_TOKENS, BlockKey, Fingerprint, StoredBlock, Tier, block_keys};

const STORED_BYTES: u64 = 10;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Lease {
        arena: usize,
        root: u8,
        content: Vec<u32>,
        growth: usize,
    },
    Commit {
        which: usize,
        blocks: usize,
        symbol: u32,
    },
    Release {
        which: usize,
        tail: usize,
        symbol: u32,
    },
    /// All leases end, everything is written to SSD, memory is emptied.
    Night,
    Want {
        which: usize,
    },
    NextWrites {
        blocks: u64,
    },
    Copied {
        which: usize,
    },
    Done {
        which: usize,
        ok: bool,
    },
    BeginRestore {
        arena: usize,
        root: u8,
        content: Vec<u32>,
        on_device: bool,
    },
    FinishRestore {
        which: usize,
        good: usize,
    },
    Evict {
        which: usize,
        from: Option<Tier>,
    },
    EvictAll {
        from: Option<Tier>,
    },
    Pin {
        which: Vec<usize>,
    },
    MakeStoredRoom {
        needed: u64,
        budget: u64,
    },
    TakeDeletes,
    DropStored {
        which: usize,
    },
    Rare {
        dice: u8,
    },
    SetCosts {
        arena: usize,
        cost: u8,
    },
}

/// All tokens up to the end of a block, under a root.
type Text = (u8, Vec<u32>);

struct Live {
    id: LeaseId,
    arena: usize,
    root: u8,
    prompt: Vec<u32>,
    table: Vec<u32>,
    committed: Vec<u32>,
    /// As far as the index knows it: shorter once the lease is apart.
    chain: Vec<u32>,
    apart: bool,
}

struct Writing {
    arena: ArenaId,
    blocks: Vec<(BlockKey, u32)>,
    bytes: Option<BTreeMap<BlockKey, Text>>,
    /// The disk or the arena was lost since.
    lost: bool,
}

struct Reading {
    arena: usize,
    on_device: bool,
    prefix: Text,
    restore: Restore,
    lost: bool,
}

pub(crate) struct Twin {
    index: Index,
    budgets: [(u32, u32); 2],
    arenas: [ArenaId; 2],
    /// What was ever computed.
    known: BTreeMap<Text, BlockKey>,
    live: Vec<Live>,
    writing: Vec<Writing>,
    reading: Vec<Reading>,
    disk: BTreeMap<BlockKey, Text>,
    /// What is in each slot of each arena.
    slots: [Vec<Option<Text>>; 2],
    pins: BTreeSet<BlockKey>,
    options: IndexOptions,
    now_ms: u64,
}

fn root_key(root: u8) -> BlockKey {
    BlockKey::root(Fingerprint([root; 32]), "")
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Whether the first is the second's block or one above it.
fn is_on_path((root, tokens): &Text, (of, end): &Text) -> bool {
    root == of && end.starts_with(tokens) && (tokens.len() % BLOCK_TOKENS == 0 || tokens == end)
}

fn budget((device_blocks, ram_blocks): (u32, u32)) -> ArenaBudget {
    ArenaBudget { device_blocks, ram_blocks, block_bytes: 100, stored_bytes: STORED_BYTES }
}

impl Twin {
    pub(crate) fn new(budgets: [(u32, u32); 2], store_on_second_use: bool) -> Self {
        let options = IndexOptions { store_on_second_use };
        let mut index = Index::new(options);
        let arenas = budgets.map(|blocks| index.add_arena(budget(blocks)));
        let slots = budgets.map(|(device, ram)| vec![None; (device + ram) as usize]);
        Self {
            index,
            budgets,
            arenas,
            known: BTreeMap::new(),
            live: Vec::new(),
            writing: Vec::new(),
            reading: Vec::new(),
            disk: BTreeMap::new(),
            slots,
            pins: BTreeSet::new(),
            options,
            now_ms: 0,
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        self.now_ms += 1;
        let before = self.views();
        let keeps_copies = !matches!(op, Op::Pin { .. } | Op::DropStored { .. } | Op::Rare { .. });
        match op {
            Op::Lease { arena, root, content, growth } => self.lease(*arena, *root, content, *growth),
            Op::Commit { which, blocks, symbol } => (0..*blocks).for_each(|_| self.commit(*which, *symbol)),
            Op::Release { which, tail, symbol } => self.release(*which, *tail, *symbol),
            Op::Night => self.night(),
            Op::Want { which } => self.want(*which),
            Op::NextWrites { blocks } => self.next_writes(*blocks),
            Op::Copied { which } => self.copied(*which),
            Op::Done { which, ok } => self.done(*which, *ok),
            Op::BeginRestore { arena, root, content, on_device } => {
                self.begin_restore(*arena, *root, content, *on_device);
            }
            Op::FinishRestore { which, good } => self.finish_restore(*which, *good),
            Op::Evict { which, from } => self.evict(*which, *from),
            Op::EvictAll { from } => self.evict_all(*from),
            Op::Pin { which } => self.pin(which),
            Op::MakeStoredRoom { needed, budget } => self.make_stored_room(*needed, *budget),
            Op::TakeDeletes => self.take_deletes(),
            Op::DropStored { which } => self.drop_stored(*which),
            Op::Rare { dice } => self.rare(*dice),
            Op::SetCosts { arena, cost } => {
                self.index.set_costs(self.arenas[*arena], f32::from(*cost) / 4.0);
            }
        }
        self.check(&before, keeps_copies, op);
    }

    pub(crate) fn finish(&mut self) {
        while !self.reading.is_empty() {
            self.finish_restore(0, 9);
        }
        while !self.writing.is_empty() {
            self.done(0, true);
        }
        while !self.live.is_empty() {
            self.release(0, 5, 1);
        }
        self.pin(&[]);
        self.index.evict_all(None);
        self.take_deletes();
        self.index.check().expect("invariants hold at the end");
        assert_eq!(self.index.iter().count(), 0, "everything can be evicted in the end");
        assert!(self.disk.is_empty(), "nothing is left on disk that the index does not know");
        for (arena, blocks) in self.arenas.iter().zip(self.budgets) {
            let figures = self.index.figures(*arena);
            assert_eq!((figures.device.free, figures.ram.free), blocks);
        }
    }

    fn lease(&mut self, arena: usize, root: u8, content: &[u32], growth: usize) {
        let mut prompt = content.to_vec();
        prompt.push(5);
        let capacity = prompt.len() + growth;
        let needed = capacity.div_ceil(BLOCK_TOKENS) as u32;
        let usable = &prompt[..prompt.len() - 1];
        let longest = self.longest(arena, root, usable);
        let full = longest / BLOCK_TOKENS * BLOCK_TOKENS;
        let fresh = needed - (full / BLOCK_TOKENS) as u32;
        let available = self.available(arena, root, &prompt[..full]);
        let missing = self.index.missing(self.arenas[arena], root_key(root), &prompt);
        assert_eq!(missing.tokens as usize, self.reachable(arena, root, usable) - longest);
        assert_eq!(missing.blocks == 0, missing.tokens == 0);
        assert_eq!(missing.bytes, u64::from(missing.blocks) * STORED_BYTES);
        let before = self.views();
        let miss_before = self.expected_near_miss(root, &prompt);
        let got = self.index.lease(self.arenas[arena], root_key(root), &prompt, capacity, self.now_ms);
        match got {
            Err(error @ LeaseError::NeverFits { needed_blocks, total_blocks }) => {
                assert!(needed > self.budgets[arena].0, "{error}");
                assert_eq!((needed_blocks, total_blocks), (needed, self.budgets[arena].0));
            }
            Err(LeaseError::NotNow { needed_blocks, available_blocks }) => {
                assert_eq!((needed_blocks, available_blocks), (fresh, available));
                assert!(fresh > available);
            }
            Err(LeaseError::Pinned { needed_blocks, available_blocks }) => {
                assert_eq!((needed_blocks, available_blocks), (fresh, available));
                assert!(fresh > available && !self.pins.is_empty());
                assert!(self.live.iter().all(|live| live.arena != arena));
            }
            Ok(grant) => {
                assert!(fresh <= available);
                let cached = grant.cached.total() as usize;
                // With not one block to spare the block to copy from has to go, unless it must stay anyway.
                let tight = fresh == available && cached == full;
                assert!(cached == longest || tight, "{cached} of {longest} tokens, {fresh} of {available}");
                assert_eq!(grant.copy.is_some(), !cached.is_multiple_of(BLOCK_TOKENS));
                assert_eq!(grant.blocks.len() as u32, needed);
                self.check_near_miss(&grant, miss_before, root, &prompt);
                self.check_cached_by_tier(&grant, &before, root, &prompt[..full]);
                self.begin(arena, root, prompt, grant);
            }
        }
    }

    fn begin(&mut self, arena: usize, root: u8, prompt: Vec<u32>, grant: Grant) {
        let cached = grant.cached.total() as usize;
        if let Some(copy) = grant.copy {
            let slots = &mut self.slots[arena];
            slots[copy.to as usize] = slots[copy.from as usize].clone();
            assert_eq!(copy.to, grant.blocks[cached / BLOCK_TOKENS]);
        }
        for (at, &slot) in grant.blocks.iter().enumerate().take(cached.div_ceil(BLOCK_TOKENS)) {
            let end = cached.min((at + 1) * BLOCK_TOKENS);
            let (of, held) = self.slots[arena][slot as usize].as_ref().expect("a cached slot has content");
            assert!(*of == root && held.starts_with(&prompt[..end]), "block {at} holds something else");
        }
        // The first step computes the rest of the prompt.
        for (at, &slot) in grant.blocks.iter().enumerate().skip(cached / BLOCK_TOKENS) {
            let end = prompt.len().min((at + 1) * BLOCK_TOKENS);
            self.slots[arena][slot as usize] = Some((root, prompt[..end].to_vec()));
        }
        let committed = prompt[..cached / BLOCK_TOKENS * BLOCK_TOKENS].to_vec();
        self.live.push(Live {
            id: grant.lease,
            arena,
            root,
            prompt,
            table: grant.blocks,
            chain: committed.clone(),
            committed,
            apart: false,
        });
    }

    fn commit(&mut self, which: usize, symbol: u32) {
        if self.live.is_empty() {
            return;
        }
        let at = which % self.live.len();
        let live = &mut self.live[at];
        let start = live.committed.len();
        if start / BLOCK_TOKENS == live.table.len() {
            return;
        }
        let token = |position: usize| live.prompt.get(position).copied().unwrap_or(symbol);
        let block: Vec<u32> = (start..start + BLOCK_TOKENS).map(token).collect();
        live.committed.extend(&block);
        let text = (live.root, live.committed.clone());
        let own = live.table[start / BLOCK_TOKENS];
        self.slots[live.arena][own as usize] = Some(text.clone());
        let (id, arena, was_apart) = (live.id, live.arena, live.apart);
        self.index.commit(id, &block);
        if was_apart {
            return;
        }
        let key = block_keys(root_key(text.0), &text.1).last().expect("one block at least");
        self.known.insert(text.clone(), key);
        let view = self.index.view(&key).expect("it was committed");
        if self.in_memory(arena, &view) {
            self.live[at].chain = text.1;
        } else {
            assert!(view.memory.is_some(), "it is in the other arena");
            self.live[at].apart = true;
        }
    }

    fn release(&mut self, which: usize, tail: usize, symbol: u32) {
        if self.live.is_empty() {
            return;
        }
        let live = self.live.swap_remove(which % self.live.len());
        let start = live.committed.len();
        let tail = if start / BLOCK_TOKENS == live.table.len() { 0 } else { tail };
        let token = |position: usize| live.prompt.get(position).copied().unwrap_or(symbol);
        let tail: Vec<u32> = (start..start + tail).map(token).collect();
        let mut text = live.committed.clone();
        text.extend(&tail);
        if !tail.is_empty() {
            let own = live.table[start / BLOCK_TOKENS];
            self.slots[live.arena][own as usize] = Some((live.root, text.clone()));
            let key = block_keys(root_key(live.root), &text).last().expect("a tail");
            if !live.apart {
                self.known.insert((live.root, text.clone()), key);
            }
        }
        self.index.release(live.id, &tail, self.now_ms);
        if !live.apart {
            // Not at once given up: the text is still there to the last token, in this arena or another.
            let kept = (0..2).map(|arena| self.longest(arena, live.root, &text)).max();
            assert_eq!(kept, Some(text.len()), "what was computed is kept");
        }
    }

    fn night(&mut self) {
        while !self.live.is_empty() {
            let (prompt, committed) = (self.live[0].prompt.len(), self.live[0].committed.len());
            let blocks = (prompt / BLOCK_TOKENS).saturating_sub(committed / BLOCK_TOKENS);
            (0..blocks).for_each(|_| self.commit(0, 1));
            self.release(0, 9, 1);
        }
        let keys: Vec<BlockKey> = self.known.values().copied().collect();
        self.index.want_stored(keys.iter());
        while self.index.unsaved_bytes() > 0 && self.index.iter().any(|(_, view)| view.wanted) {
            self.next_writes(3);
        }
        while !self.writing.is_empty() {
            self.done(0, true);
        }
        assert_eq!(self.index.unsaved_bytes(), 0, "everything is written");
        self.index.evict_all(Some(Tier::Device));
        self.index.evict_all(Some(Tier::Ram));
    }

    fn evict(&mut self, which: usize, from: Option<Tier>) {
        let Some(text) = self.pick(which) else { return };
        let keys = self.keys_of(&text);
        let before = self.copies();
        let stuck: Vec<BTreeSet<Text>> = (0..2).map(|arena| self.stuck(arena, &[])).collect();
        let evicted = self.index.evict(keys.iter(), from);
        let after = self.copies();
        self.check_evicted(from, evicted.total(), before, after);
        for text in stuck.into_iter().flatten() {
            let view = self.index.view(&self.known[&text]).expect("what is in use stays");
            assert!(view.memory.is_some(), "{text:?} is in use and left memory: {view:?}");
        }
    }

    fn evict_all(&mut self, from: Option<Tier>) {
        let before = self.copies();
        let evicted = self.index.evict_all(from);
        let after = self.copies();
        self.check_evicted(from, evicted.total(), before, after);
        for (text, view) in self.views() {
            let is_open = |other: &Text| is_on_path(&text, other);
            let stuck = (0..2).any(|arena| self.stuck(arena, &[]).contains(&text));
            let pinned = self.views().iter().any(|(other, view)| is_open(other) && view.pinned);
            let extended =
                self.views().iter().any(|(other, view)| is_open(other) && (view.writing || view.restoring));
            if from == Some(Tier::Ssd) || from.is_none() {
                assert!(!view.stored || pinned || extended, "{text:?} is still on SSD");
            }
            if from.is_none() {
                assert!(view.memory.is_none() || stuck || pinned, "{text:?} is still in memory");
            }
        }
    }

    fn pin(&mut self, which: &[usize]) {
        let texts: Vec<Text> = which.iter().filter_map(|&which| self.pick(which)).collect();
        let keys: Vec<BlockKey> = texts.iter().flat_map(|text| self.keys_of(text)).collect();
        self.index.pin(keys.iter());
        self.pins = keys.into_iter().collect();
        for key in self.known.values() {
            let pinned = self.index.view(key).is_some_and(|view| view.pinned);
            assert!(!pinned || self.pins.contains(key));
        }
    }
}
