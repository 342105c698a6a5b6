//! What the twin expects, recounted from whole texts each time.

use super::*;

impl Twin {
    pub(super) fn views(&self) -> BTreeMap<Text, BlockView> {
        let seen = self.known.iter().map(|(text, key)| (text, self.index.view(key)));
        seen.filter_map(|(text, view)| Some((text.clone(), view?))).collect()
    }

    pub(super) fn in_memory(&self, arena: usize, view: &BlockView) -> bool {
        view.memory.is_some_and(|(id, ..)| id == self.arenas[arena])
    }

    /// The longest common prefix with whatever is in an arena.
    pub(super) fn longest(&self, arena: usize, root: u8, usable: &[u32]) -> usize {
        let views = self.views();
        let here = views.iter().filter(|((of, _), view)| *of == root && self.in_memory(arena, view));
        here.map(|((_, tokens), _)| shared(tokens, usable)).max().unwrap_or(0)
    }

    /// Texts of the arena's blocks that may not be dropped: they, or something that continues them, is in use.
    pub(super) fn stuck(&self, arena: usize, also: &[Text]) -> BTreeSet<Text> {
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

    pub(super) fn text_of(&self, key: &BlockKey) -> Text {
        let known = self.known.iter().find(|(_, other)| *other == key);
        known.map(|(text, _)| text.clone()).expect("a key of the index was computed once")
    }

    pub(super) fn private(&self, arena: usize) -> u32 {
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

    pub(super) fn restoring(&self, arena: usize, on_device: bool) -> u32 {
        let here =
            |reading: &&Reading| reading.arena == arena && reading.on_device == on_device && !reading.lost;
        self.reading.iter().filter(here).map(|reading| reading.restore.reads.len() as u32).sum()
    }

    /// Fresh blocks that a lease with this prefix can have.
    pub(super) fn available(&self, arena: usize, root: u8, prefix: &[u32]) -> u32 {
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

    pub(super) fn check_cached_by_tier(
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
    pub(super) fn reachable(&self, arena: usize, root: u8, usable: &[u32]) -> usize {
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
    pub(super) fn expected_near_miss(&self, root: u8, prompt: &[u32]) -> (usize, bool, bool) {
        let views = self.views();
        let kept = |view: &BlockView| view.memory.is_some() || view.stored;
        let texts = views.iter().filter(|((of, _), view)| *of == root && kept(view));
        let texts: Vec<&[u32]> = texts.map(|((_, tokens), _)| &tokens[..]).collect();
        let most = texts.iter().map(|tokens| shared(tokens, prompt)).max().unwrap_or(0);
        let best = texts.iter().filter(|tokens| shared(tokens, prompt) == most);
        let parts = most > 0 && most < prompt.len();
        let goes_on = best.clone().any(|tokens| tokens.len() > most);
        let ends = best.clone().any(|tokens| tokens.len() == most && most % BLOCK_TOKENS != 0);
        (most, parts && goes_on && !ends, parts && goes_on)
    }

    pub(super) fn check_near_miss(
        &self,
        grant: &Grant,
        expected: (usize, bool, bool),
        root: u8,
        prompt: &[u32],
    ) {
        let (most, must, may) = expected;
        match &grant.near_miss {
            None => assert!(!must, "a near miss after {most} tokens was not seen"),
            Some(miss) => {
                assert!(may && miss.shared == most);
                assert_eq!(miss.before, prompt[most.saturating_sub(8)..most]);
                assert_eq!(miss.asked, prompt[most..prompt.len().min(most + 16)]);
                assert!(miss.kept.len() <= 16 && miss.kept[0] != miss.asked[0]);
                let mut text = prompt[..most].to_vec();
                text.extend(&miss.kept);
                let known = self.known.keys().any(|(of, tokens)| *of == root && tokens.starts_with(&text));
                assert!(known, "the kept side was never computed");
            }
        }
    }

    pub(super) fn pick(&self, which: usize) -> Option<Text> {
        let texts: Vec<&Text> = self.known.keys().collect();
        (!texts.is_empty()).then(|| texts[which % texts.len()].clone())
    }

    pub(super) fn keys_of(&self, text: &Text) -> Vec<BlockKey> {
        block_keys(root_key(text.0), &text.1).collect()
    }

    pub(super) fn is_here(&self, arena: usize, key: &BlockKey) -> bool {
        self.index.view(key).is_some_and(|view| self.in_memory(arena, &view))
    }

    /// Copies in memory and on SSD, and blocks on the device.
    pub(super) fn copies(&self) -> (u64, u64, u64) {
        let views = self.views();
        let count =
            |test: &dyn Fn(&BlockView) -> bool| views.values().filter(|view| test(view)).count() as u64;
        (
            count(&|view| view.memory.is_some()),
            count(&|view| view.stored),
            count(&|view| matches!(view.memory, Some((_, Tier::Device, _)))),
        )
    }
}

impl Twin {
    pub(super) fn check_evicted(
        &self,
        from: Option<Tier>,
        said: u64,
        before: (u64, u64, u64),
        after: (u64, u64, u64),
    ) {
        let expected = match from {
            None => before.0 + before.1 - after.0 - after.1,
            Some(Tier::Device) => before.2 - after.2,
            Some(Tier::Ram) => before.0 - after.0,
            Some(Tier::Ssd) => before.1 - after.1,
        };
        assert_eq!(said, expected);
    }

    pub(super) fn check(&self, before: &BTreeMap<Text, BlockView>, keeps_copies: bool, op: &Op) {
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
        if keeps_copies {
            // Nor does an SSD copy go that is being read, or above one that is being written; unless a block between them is
            // neither there nor on its way: then what is being written will not count as stored.
            let is_busy = |text: &&Text| {
                let is_cut_off = |other: &Text| {
                    let is_between = |at: &&Text| {
                        *at != *text && *at != other && is_on_path(text, at) && is_on_path(at, other)
                    };
                    views.keys().filter(is_between).any(|at| !views[at].stored && !views[at].writing)
                };
                let busy = |(other, view): (&Text, &BlockView)| {
                    is_on_path(text, other)
                        && (view.restoring && view.stored
                            || view.writing && other != *text && !is_cut_off(other))
                };
                views.iter().any(busy) && before.get(*text).is_some_and(|view| view.stored)
            };
            assert!(views.keys().filter(is_busy).all(|text| views[text].stored), "a copy in use went");
            for (text, view) in before.iter().filter(|(_, view)| view.pinned) {
                let had = view.memory.is_some() || view.stored;
                let has = views.get(text).is_some_and(|view| view.memory.is_some() || view.stored);
                assert!(!had || has, "a pinned block lost its last copy");
                assert!(!view.stored || views[text].stored, "a pinned block lost its copy on SSD");
            }
        }
    }

    pub(super) fn check_budgets(&self, arena: usize, views: &BTreeMap<Text, BlockView>) {
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
