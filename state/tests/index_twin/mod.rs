//! The naive twin of the index; see `index_property.rs`.

use std::collections::{BTreeMap, BTreeSet};
use zllm_state::index::{
    ArenaBudget, ArenaId, BlockView, Grant, Index, IndexOptions, LeaseError, LeaseId, Restore, Writes,
};
use zllm_state::{BLOCK_TOKENS, BlockKey, Fingerprint, StoredBlock, Tier, block_keys};

const STORED_BYTES: u64 = 10;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Lease { arena: usize, root: u8, content: Vec<u32>, growth: usize },
    Commit { which: usize, symbol: u32 },
    Release { which: usize, tail: usize, symbol: u32 },
    Want { which: usize },
    NextWrites { blocks: u64 },
    Copied { which: usize },
    Done { which: usize, ok: bool },
    BeginRestore { arena: usize, root: u8, content: Vec<u32>, on_device: bool },
    FinishRestore { which: usize, good: usize },
    Evict { which: usize, from: Option<Tier> },
    EvictAll { from: Option<Tier> },
    Pin { which: Vec<usize> },
    MakeStoredRoom { needed: u64, budget: u64 },
    TakeDeletes,
    DropStored { which: usize },
    Rare { dice: u8 },
    SetCosts { arena: usize, cost: u8 },
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
        let keeps_pins = !matches!(op, Op::Pin { .. } | Op::DropStored { .. } | Op::Rare { .. });
        match op {
            Op::Lease { arena, root, content, growth } => self.lease(*arena, *root, content, *growth),
            Op::Commit { which, symbol } => self.commit(*which, *symbol),
            Op::Release { which, tail, symbol } => self.release(*which, *tail, *symbol),
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
        self.check(&before, keeps_pins, op);
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

    fn views(&self) -> BTreeMap<Text, BlockView> {
        let seen = self.known.iter().map(|(text, key)| (text, self.index.view(key)));
        seen.filter_map(|(text, view)| Some((text.clone(), view?))).collect()
    }

    fn in_memory(&self, arena: usize, view: &BlockView) -> bool {
        view.memory.is_some_and(|(id, ..)| id == self.arenas[arena])
    }

    /// The longest common prefix with whatever is in an arena.
    fn longest(&self, arena: usize, root: u8, usable: &[u32]) -> usize {
        let views = self.views();
        let here = views.iter().filter(|((of, _), view)| *of == root && self.in_memory(arena, view));
        here.map(|((_, tokens), _)| shared(tokens, usable)).max().unwrap_or(0)
    }

    /// Texts of the arena's blocks that may not be dropped: they, or something that continues them, is in use.
    fn stuck(&self, arena: usize, also: &[Text]) -> BTreeSet<Text> {
        let views = self.views();
        let mut in_use: Vec<Text> = also.to_vec();
        for live in self.live.iter().filter(|live| live.arena == arena) {
            in_use.push((live.root, live.chain.clone()));
        }
        for reading in self.reading.iter().filter(|reading| !reading.lost && reading.arena == arena) {
            in_use.push(reading.prefix.clone());
        }
        for writing in self.writing.iter().filter(|writing| writing.bytes.is_none()) {
            let texts = writing.blocks.iter().map(|(key, _)| self.text_of(key));
            in_use
                .extend(texts.filter(|text| views.get(text).is_some_and(|view| self.in_memory(arena, view))));
        }
        for (text, view) in &views {
            if self.in_memory(arena, view) && view.pinned && !view.stored {
                in_use.push(text.clone());
            }
        }
        let here = views.into_iter().filter(|(_, view)| self.in_memory(arena, view)).map(|(text, _)| text);
        here.filter(|text| in_use.iter().any(|used| is_on_path(text, used))).collect()
    }

    fn text_of(&self, key: &BlockKey) -> Text {
        let known = self.known.iter().find(|(_, other)| *other == key);
        known.map(|(text, _)| text.clone()).expect("a key of the index was computed once")
    }

    fn private(&self, arena: usize) -> u32 {
        let views = self.views();
        let owned = |live: &Live| {
            let chain =
                (1..=live.chain.len() / BLOCK_TOKENS).map(|n| live.chain[..n * BLOCK_TOKENS].to_vec());
            let shared = chain.map(|tokens| views[&(live.root, tokens)].memory.expect("in use").2);
            let shared: BTreeSet<u32> = shared.collect();
            live.table.iter().filter(|slot| !shared.contains(slot)).count() as u32
        };
        self.live.iter().filter(|live| live.arena == arena).map(owned).sum()
    }

    fn restoring(&self, arena: usize, on_device: bool) -> u32 {
        let here =
            |reading: &&Reading| reading.arena == arena && reading.on_device == on_device && !reading.lost;
        self.reading.iter().filter(here).map(|reading| reading.restore.reads.len() as u32).sum()
    }

    /// Fresh blocks that a lease with this prefix can have.
    fn available(&self, arena: usize, root: u8, prefix: &[u32]) -> u32 {
        let blocks = |tokens: &[u32]| -> Vec<Text> {
            let ends = (1..=tokens.len() / BLOCK_TOKENS).map(|n| n * BLOCK_TOKENS);
            ends.map(|end| (root, tokens[..end].to_vec())).collect()
        };
        let views = self.views();
        let mut locked: BTreeSet<Text> = blocks(prefix).into_iter().collect();
        for live in self.live.iter().filter(|live| live.arena == arena) {
            let chain = (1..=live.chain.len() / BLOCK_TOKENS)
                .map(|n| (live.root, live.chain[..n * BLOCK_TOKENS].to_vec()))
                .filter(|text| matches!(views[text].memory, Some((_, Tier::Device, _))));
            locked.extend(chain);
        }
        let busy = self.private(arena) + self.restoring(arena, true);
        let stuck = self.stuck(arena, &[(root, prefix.to_vec())]).len() as u32;
        let (device, ram) = self.budgets[arena];
        let on_device = device.saturating_sub(locked.len() as u32 + busy);
        on_device.min((device + ram).saturating_sub(stuck + busy + self.restoring(arena, false)))
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

    fn check_cached_by_tier(
        &self,
        grant: &Grant,
        before: &BTreeMap<Text, BlockView>,
        root: u8,
        full: &[u32],
    ) {
        let mut most = [0u64; 2];
        for end in (BLOCK_TOKENS..=full.len()).step_by(BLOCK_TOKENS) {
            match before[&(root, full[..end].to_vec())].memory.expect("it was found").1 {
                Tier::Device => most[0] += BLOCK_TOKENS as u64,
                _ => most[1] += BLOCK_TOKENS as u64,
            }
        }
        let in_block = grant.cached.total() - full.len() as u64;
        // What was read back from SSD counts there instead; the partial block may be in either tier.
        assert!(grant.cached.device <= most[0] + in_block && grant.cached.ram <= most[1] + in_block);
        assert!(
            grant.cached.ssd == 0
                || !self.disk.is_empty()
                || before.values().any(|view| view.memory.is_some())
        );
    }

    /// The longest common prefix with whatever is in the arena or can be read into it.
    fn reachable(&self, arena: usize, root: u8, usable: &[u32]) -> usize {
        let views = self.views();
        let can = |view: &BlockView| self.in_memory(arena, view) || (view.stored && view.memory.is_none());
        let all_can = |tokens: &[u32]| {
            let ends = (BLOCK_TOKENS..tokens.len()).step_by(BLOCK_TOKENS).chain([tokens.len()]);
            ends.map(|end| views.get(&(root, tokens[..end].to_vec()))).all(|view| view.is_some_and(can))
        };
        let texts = views.keys().filter(|(of, tokens)| *of == root && all_can(tokens));
        texts.map(|(_, tokens)| shared(tokens, usable)).max().unwrap_or(0)
    }

    /// How much is shared with anything kept, and whether the kept text must or may go on there.
    fn expected_near_miss(&self, root: u8, prompt: &[u32]) -> (usize, bool, bool) {
        let views = self.views();
        let kept = |view: &BlockView| view.memory.is_some() || view.stored;
        let texts = views.iter().filter(|((of, _), view)| *of == root && kept(view));
        let texts: Vec<&[u32]> = texts.map(|((_, tokens), _)| &tokens[..]).collect();
        let most = texts.iter().map(|tokens| shared(tokens, prompt)).max().unwrap_or(0);
        let best = texts.iter().filter(|tokens| shared(tokens, prompt) == most);
        let is_long = most > 256 && most < prompt.len();
        let goes_on = best.clone().any(|tokens| tokens.len() > most);
        let ends = best.clone().any(|tokens| tokens.len() == most && most % BLOCK_TOKENS != 0);
        (most, is_long && goes_on && !ends, is_long && goes_on)
    }

    fn check_near_miss(&self, grant: &Grant, expected: (usize, bool, bool), root: u8, prompt: &[u32]) {
        let (most, must, may) = expected;
        match &grant.near_miss {
            None => assert!(!must, "a near miss after {most} tokens was not seen"),
            Some(miss) => {
                assert!(may && miss.shared == most);
                assert_eq!(miss.before, prompt[most - 8..most]);
                assert_eq!(miss.asked, prompt[most..prompt.len().min(most + 16)]);
                assert!(miss.kept.len() <= 16 && miss.kept[0] != miss.asked[0]);
                let mut text = prompt[..most].to_vec();
                text.extend(&miss.kept);
                let known = self.known.keys().any(|(of, tokens)| *of == root && tokens.starts_with(&text));
                assert!(known, "the kept side was never computed");
            }
        }
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

    fn pick(&self, which: usize) -> Option<Text> {
        let texts: Vec<&Text> = self.known.keys().collect();
        (!texts.is_empty()).then(|| texts[which % texts.len()].clone())
    }

    fn keys_of(&self, text: &Text) -> Vec<BlockKey> {
        block_keys(root_key(text.0), &text.1).collect()
    }

    fn want(&mut self, which: usize) {
        let Some(text) = self.pick(which) else { return };
        let keys = self.keys_of(&text);
        self.index.want_stored(keys.iter());
        for key in &keys {
            if let Some(view) = self.index.view(key) {
                assert!(view.memory.is_none() || view.stored || view.writing || view.wanted);
            }
        }
    }

    fn next_writes(&mut self, blocks: u64) {
        let before = self.index.unsaved_bytes();
        let Some(Writes { arena, blocks: batch }) = self.index.next_writes(blocks * STORED_BYTES) else {
            let waiting = self.known.values().filter_map(|key| self.index.view(key)).any(|view| view.wanted);
            assert!(!waiting, "a block waits and is not handed out");
            return;
        };
        assert!((1..=blocks).contains(&(batch.len() as u64)));
        assert!(self.index.unsaved_bytes() >= before, "what is on its way is not saved yet");
        for block in &batch {
            let text = self.text_of(&block.key);
            let start = block.position as usize * BLOCK_TOKENS;
            assert_eq!(text.1[start..], block.tokens);
            let parent = block_keys(root_key(text.0), &text.1[..start]).last();
            assert_eq!(block.parent, parent.unwrap_or(root_key(text.0)));
            let view = self.index.view(&block.key).expect("it is being written");
            assert!(view.memory.is_some_and(|(of, _, slot)| (of, slot) == (arena, block.slot)));
        }
        let blocks = batch.into_iter().map(|block| (block.key, block.slot)).collect();
        self.writing.push(Writing { arena, blocks, bytes: None, lost: false });
    }

    fn copied(&mut self, which: usize) {
        if self.writing.is_empty() {
            return;
        }
        let at = which % self.writing.len();
        if self.writing[at].bytes.is_some() || self.writing[at].lost {
            return;
        }
        let arena = self.arenas.iter().position(|&id| id == self.writing[at].arena).expect("it lives");
        let read = |&(key, slot): &(BlockKey, u32)| {
            let text = self.text_of(&key);
            let held = self.slots[arena][slot as usize].as_ref().expect("a block has content");
            assert!(held.0 == text.0 && held.1.starts_with(&text.1), "it was held until copied");
            (key, text)
        };
        let bytes = self.writing[at].blocks.iter().map(read).collect();
        self.writing[at].bytes = Some(bytes);
        let keys: Vec<BlockKey> = self.writing[at].blocks.iter().map(|&(key, _)| key).collect();
        self.index.writes_copied(&keys);
    }

    fn done(&mut self, which: usize, ok: bool) {
        if self.writing.is_empty() {
            return;
        }
        let writing = self.writing.remove(which % self.writing.len());
        let keys: Vec<BlockKey> = writing.blocks.iter().map(|&(key, _)| key).collect();
        // A batch that was not copied cannot have been written.
        let ok = ok && writing.bytes.is_some();
        if ok {
            self.disk.extend(writing.bytes.expect("checked above"));
        }
        self.index.writes_done(&keys, ok);
    }

    fn begin_restore(&mut self, arena: usize, root: u8, content: &[u32], on_device: bool) {
        let mut prompt = content.to_vec();
        prompt.push(5);
        let usable = &prompt[..prompt.len() - 1];
        let longest = self.longest(arena, root, usable);
        let reachable = self.reachable(arena, root, usable);
        let waits = self.index.restoring(self.arenas[arena], root_key(root), &prompt);
        let into = if on_device { Tier::Device } else { Tier::Ram };
        let begun = self.index.begin_restore(self.arenas[arena], root_key(root), &prompt, into, self.now_ms);
        let Some(restore) = begun else {
            if let Some(id) = waits {
                assert!(
                    self.reading.iter().any(|reading| reading.restore.id == id && reading.arena == arena)
                );
            }
            return;
        };
        assert!(reachable > longest, "nothing was missing");
        for read in &restore.reads {
            let text = self.disk.get(&read.key).expect("it is on disk");
            let agrees = shared(&text.1, usable);
            assert!(text.0 == root && agrees > longest.max((text.1.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS));
            assert!(self.index.view(&read.key).expect("known").memory.is_none());
            self.slots[arena][read.slot as usize] = None;
        }
        let prefix = (root, prompt[..longest / BLOCK_TOKENS * BLOCK_TOKENS].to_vec());
        self.reading.push(Reading { arena, on_device, prefix, restore, lost: false });
    }

    fn finish_restore(&mut self, which: usize, good: usize) {
        if self.reading.is_empty() {
            return;
        }
        let reading = self.reading.remove(which % self.reading.len());
        let reads = &reading.restore.reads;
        let mut ok = Vec::new();
        for (at, read) in reads.iter().enumerate() {
            let found = self.disk.get(&read.key).cloned();
            ok.push(at != good && found.is_some());
            if !reading.lost && found.is_some() {
                self.slots[reading.arena][read.slot as usize] = found;
            }
        }
        self.index.finish_restore(reading.restore.id, &ok);
        if reading.lost {
            return;
        }
        for read in reads.iter().skip(ok.iter().take_while(|&&ok| ok).count()) {
            let view = self.index.view(&read.key);
            let elsewhere = view.and_then(|view| view.memory).is_none_or(|(_, _, slot)| slot != read.slot);
            assert!(elsewhere || !self.is_here(reading.arena, &read.key), "a failed read is not found");
        }
    }

    fn is_here(&self, arena: usize, key: &BlockKey) -> bool {
        self.index.view(key).is_some_and(|view| self.in_memory(arena, &view))
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

    /// Copies in memory and on SSD, and blocks on the device.
    fn copies(&self) -> (u64, u64, u64) {
        let views = self.views();
        let count =
            |test: &dyn Fn(&BlockView) -> bool| views.values().filter(|view| test(view)).count() as u64;
        (
            count(&|view| view.memory.is_some()),
            count(&|view| view.stored),
            count(&|view| matches!(view.memory, Some((_, Tier::Device, _)))),
        )
    }

    fn check_evicted(&self, from: Option<Tier>, said: u64, before: (u64, u64, u64), after: (u64, u64, u64)) {
        let expected = match from {
            None => before.0 + before.1 - after.0 - after.1,
            Some(Tier::Device) => before.2 - after.2,
            Some(Tier::Ram) => before.0 - after.0,
            Some(Tier::Ssd) => before.1 - after.1,
        };
        assert_eq!(said, expected);
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

    fn make_stored_room(&mut self, needed: u64, budget: u64) {
        let (needed, budget) = (needed * STORED_BYTES, budget * STORED_BYTES);
        if self.index.make_stored_room(needed, budget) {
            assert!(self.index.stored_bytes() + needed <= budget);
            return;
        }
        for (text, view) in self.views().iter().filter(|(_, view)| view.stored) {
            let holds = |(other, seen): (&Text, &BlockView)| {
                let held = seen.pinned || seen.restoring || seen.writing;
                held && is_on_path(text, other)
            };
            assert!(self.views().iter().any(holds), "{view:?} could have gone");
        }
    }

    fn take_deletes(&mut self) {
        for key in self.index.take_deletes() {
            self.disk.remove(&key);
        }
    }

    fn drop_stored(&mut self, which: usize) {
        let Some(text) = self.pick(which) else { return };
        let was_stored = self.index.view(&self.known[&text]).is_some_and(|view| view.stored);
        let dropped = self.index.drop_stored(&self.known[&text].clone());
        assert_eq!(dropped.first(), was_stored.then(|| &self.known[&text]));
        for key in &dropped {
            assert!(self.text_of(key).1.starts_with(&text.1));
            assert!(self.index.view(key).is_none_or(|view| !view.stored));
            self.disk.remove(key);
        }
    }

    /// A lost disk, an unloaded model, or a restart.
    fn rare(&mut self, dice: u8) {
        match dice {
            0 => {
                self.index.forget_stored();
                self.disk.clear();
                self.writing
                    .iter_mut()
                    .for_each(|writing| writing.bytes = writing.bytes.take().map(|_| BTreeMap::new()));
                while let Some(at) = self.writing.iter().position(|writing| !writing.lost) {
                    // Its writes fail.
                    self.done(at, false);
                }
            }
            1 | 2 => {
                let arena = usize::from(dice - 1);
                if self.live.iter().any(|live| live.arena == arena) {
                    return;
                }
                self.index.remove_arena(self.arenas[arena]);
                let readings = self.reading.iter_mut().filter(|reading| reading.arena == arena);
                readings.for_each(|reading| reading.lost = true);
                let writings = self.writing.iter_mut().filter(|writing| writing.arena == self.arenas[arena]);
                writings.filter(|writing| writing.bytes.is_none()).for_each(|writing| writing.lost = true);
                assert!(self.known.values().all(|key| !self.is_here(arena, key)));
                self.arenas[arena] = self.index.add_arena(budget(self.budgets[arena]));
                self.slots[arena].fill(None);
            }
            3 => self.restart(),
            _ => {}
        }
    }

    fn restart(&mut self) {
        let before = self.views();
        self.take_deletes();
        self.index = Index::new(self.options);
        self.arenas = self.budgets.map(|blocks| self.index.add_arena(budget(blocks)));
        self.slots.iter_mut().for_each(|slots| slots.fill(None));
        (self.live, self.writing, self.reading) = (Vec::new(), Vec::new(), Vec::new());
        self.pins.clear();
        let mut stored: Vec<(BlockKey, Text)> =
            self.disk.iter().map(|(key, text)| (*key, text.clone())).collect();
        stored.sort_by_key(|(_, (_, tokens))| tokens.len());
        for (key, (root, tokens)) in stored {
            let start = (tokens.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
            let parent = block_keys(root_key(root), &tokens[..start]).last().unwrap_or(root_key(root));
            let position = (start / BLOCK_TOKENS) as u32;
            let block = StoredBlock {
                key,
                parent,
                position,
                tokens: tokens[start..].to_vec(),
                bytes: 7,
                written_ms: 0,
            };
            let taken = self.index.insert_stored(&block, STORED_BYTES);
            if !taken {
                // A batch that ended after its parent had gone: never named as stored.
                assert!(before.get(&(root, tokens)).is_none_or(|view| !view.stored));
                self.disk.remove(&key);
            }
        }
        for (text, view) in before {
            let now = self.index.view(&self.known[&text]);
            assert!(!view.stored || now.is_some_and(|now| now.stored), "what was stored is found again");
        }
    }

    fn check(&self, before: &BTreeMap<Text, BlockView>, keeps_pins: bool, op: &Op) {
        self.index.check().unwrap_or_else(|error| panic!("after {op:?}: {error}"));
        let views = self.views();
        assert_eq!(views.len(), self.index.iter().count(), "the index keeps what was never computed");
        for (text, view) in &views {
            if let Some((id, _, slot)) = view.memory {
                let arena = self.arenas.iter().position(|&arena| arena == id).expect("a live arena");
                let (root, held) = self.slots[arena][slot as usize].as_ref().expect("a block has content");
                assert!(*root == text.0 && held.starts_with(&text.1), "slot {slot} holds something else");
            }
            if view.stored {
                assert_eq!(self.disk.get(&self.known[text]), Some(text), "it is not on disk");
            }
        }
        for arena in 0..2 {
            self.check_budgets(arena, &views);
        }
        if keeps_pins {
            for (text, view) in before.iter().filter(|(_, view)| view.pinned) {
                let had = view.memory.is_some() || view.stored;
                let has = views.get(text).is_some_and(|view| view.memory.is_some() || view.stored);
                assert!(!had || has, "a pinned block lost its last copy");
                assert!(!view.stored || views[text].stored, "a pinned block lost its copy on SSD");
            }
        }
    }

    fn check_budgets(&self, arena: usize, views: &BTreeMap<Text, BlockView>) {
        let (device, ram) = self.budgets[arena];
        let here = views.values().filter_map(|view| view.memory).filter(|(id, ..)| *id == self.arenas[arena]);
        let (mut on_device, mut in_ram, mut slots) = (0, 0, BTreeSet::new());
        for (_, tier, slot) in here {
            *if tier == Tier::Device { &mut on_device } else { &mut in_ram } += 1;
            assert!(slots.insert(slot), "two blocks in one slot");
        }
        on_device += self.private(arena) + self.restoring(arena, true);
        in_ram += self.restoring(arena, false);
        assert!(on_device <= device && in_ram <= ram, "{on_device} of {device}, {in_ram} of {ram}");
        let figures = self.index.figures(self.arenas[arena]);
        assert_eq!(figures.device.used + figures.device.cached, on_device);
        assert_eq!(figures.ram.used + figures.ram.cached, in_ram);
    }
}
