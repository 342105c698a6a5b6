//! The twin's disk: writes, reads, deletes, losses and restarts.

use super::*;

impl Twin {
    pub(super) fn want(&mut self, which: usize) {
        let Some(text) = self.pick(which) else { return };
        let keys = self.keys_of(&text);
        self.index.want_stored(keys.iter());
        for key in &keys {
            if let Some(view) = self.index.view(key) {
                assert!(view.memory.is_none() || view.stored || view.writing || view.wanted);
            }
        }
    }

    pub(super) fn next_writes(&mut self, blocks: u64) {
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

    pub(super) fn copied(&mut self, which: usize) {
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

    pub(super) fn done(&mut self, which: usize, ok: bool) {
        if self.writing.is_empty() {
            return;
        }
        let at = which % self.writing.len();
        if ok {
            self.copied(at);
        }
        let writing = self.writing.remove(at);
        let keys: Vec<BlockKey> = writing.blocks.iter().map(|&(key, _)| key).collect();
        // A batch of which nothing was copied cannot have been written.
        let ok = ok && writing.bytes.is_some();
        if ok {
            self.disk.extend(writing.bytes.expect("checked above"));
        }
        self.index.writes_done(&keys, ok);
    }

    pub(super) fn begin_restore(&mut self, arena: usize, root: u8, content: &[u32], on_device: bool) {
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

    pub(super) fn finish_restore(&mut self, which: usize, good: usize) {
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

    pub(super) fn make_stored_room(&mut self, needed: u64, budget: u64) {
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

    pub(super) fn take_deletes(&mut self) {
        for key in self.index.take_deletes() {
            self.disk.remove(&key);
        }
    }

    pub(super) fn drop_stored(&mut self, which: usize) {
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
    pub(super) fn rare(&mut self, dice: u8) {
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

    pub(super) fn restart(&mut self) {
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
}
