//! A simulated device for tests: a model of bytes whose next token is a hash of all tokens that its KV blocks hold, so
//! that a wrong block table, a lost token or a mixed-up row changes the text. Each stage of it keeps all tokens in blocks
//! of its own and hands on what it saw, so that stages that do not agree are found.

use super::port::*;
use crate::config::ModelSettings;
use crate::scheduler::plan::{Accepted, ModelName, RowOutcome, SequenceId, StepOutcome, StepPlan};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use zllm_engine::{FingerprintPart, Pool, Pooling, SpeechStyle, Stage};
use zllm_state::BLOCK_TOKENS;
use zllm_wire::{ChoiceEnd, ErrorCode, Fault, FinishReason, GenerationParams, Prompt};

/// Device blocks of a simulated arena, unless a test says otherwise.
pub(crate) const FAKE_BLOCKS: u32 = 32;
/// Bytes of a simulated block: its tokens.
pub(crate) const FAKE_BLOCK_BYTES: usize = BLOCK_TOKENS * size_of::<u32>();
/// Context of the simulated model.
pub(crate) const FAKE_CONTEXT: usize = 1024;
/// A model of this name does not load.
pub(crate) const BROKEN_MODEL: &str = "broken";

/// The device.
pub(crate) struct FakeDevice {
    name: String,
    /// What each block of each loaded model holds; `None` is a block that was never written.
    kv: HashMap<ModelName, Vec<Option<[u32; BLOCK_TOKENS]>>>,
    /// Which stage of each loaded model is here.
    stages: HashMap<ModelName, Stage>,
    device_blocks: u32,
    ram_blocks: u32,
    generations: HashMap<SequenceId, (ModelName, Box<dyn Generate>)>,
    /// The step with a token of this value is a fault of the device.
    poison: Option<u32>,
    /// How long each step takes.
    step_time: Duration,
    /// How long each load takes.
    load_time: Duration,
    /// The step with a token of this value panics.
    panics_at: Option<u32>,
    /// How many pieces are still to settle.
    unsettled: Arc<AtomicU32>,
}

impl Default for FakeDevice {
    fn default() -> Self {
        Self {
            name: "fake".to_owned(),
            kv: HashMap::new(),
            stages: HashMap::new(),
            device_blocks: FAKE_BLOCKS,
            ram_blocks: 0,
            generations: HashMap::new(),
            poison: None,
            step_time: Duration::ZERO,
            load_time: Duration::ZERO,
            panics_at: None,
            unsettled: Arc::default(),
        }
    }
}

impl FakeDevice {
    /// Arenas with so many blocks for running sequences, and so many for the RAM tier.
    pub(crate) fn with_blocks(device_blocks: u32, ram_blocks: u32) -> Self {
        Self { device_blocks, ram_blocks, ..Self::default() }
    }

    /// The same device by another name.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// A step with this byte in it is a fault of the device.
    pub(crate) fn poisoned_by(byte: u8) -> Self {
        Self { poison: Some(byte.into()), ..Self::default() }
    }

    /// Each step takes this long.
    pub(crate) fn slow(step_time: Duration) -> Self {
        Self { step_time, ..Self::default() }
    }

    /// Each load takes this long.
    pub(crate) fn loading_for(load_time: Duration) -> Self {
        Self { load_time, ..Self::default() }
    }

    /// There is something to settle, of which each piece takes a millisecond.
    pub(crate) fn unsettled(pieces: Arc<AtomicU32>) -> Self {
        Self { unsettled: pieces, ..Self::default() }
    }

    /// A step with this byte in it panics.
    pub(crate) fn panicking_at(byte: u8) -> Self {
        Self { panics_at: Some(byte.into()), ..Self::default() }
    }
}

impl Device for FakeDevice {
    fn describe(&self) -> Description {
        let (name, description) = (self.name.clone(), "a simulated device".into());
        Description { name, description, total_bytes: 1 << 30 }
    }

    fn load(
        &mut self,
        model: &ModelName,
        _: &ModelSettings,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedStage, String> {
        progress(LoadProgress::START);
        std::thread::sleep(self.load_time);
        if &**model == BROKEN_MODEL && stage.index + 1 == stage.of {
            return Err("this model is broken on purpose".into());
        }
        let text = |fingerprint| -> Arc<dyn TextModel> {
            Arc::new(FakeText(TextFacts {
                architecture: "fake".into(),
                context_tokens: FAKE_CONTEXT,
                width: 2,
                pooling: Ok(Pooling::Mean),
                has_template: true,
                fingerprint,
            }))
        };
        let (device_blocks, ram_blocks) = (self.device_blocks, self.ram_blocks);
        let before = self.kv.insert(model.clone(), vec![None; (device_blocks + ram_blocks) as usize]);
        assert!(before.is_none(), "a model is loaded once");
        self.stages.insert(model.clone(), stage.clone());
        Ok(LoadedStage {
            text: Box::new(text),
            fingerprint: FingerprintPart { common: [7; 32], tensors: BTreeMap::new(), of: 0 },
            device_blocks,
            ram_blocks,
            kv_block_bytes: FAKE_BLOCK_BYTES as u64,
            weight_bytes: 4096,
        })
    }

    fn unload(&mut self, model: &ModelName) {
        self.kv.remove(model);
        self.stages.remove(model);
        self.generations.retain(|_, (of, _)| of != model);
    }

    fn begin(&mut self, sequence: SequenceId, model: &ModelName, generation: Box<dyn Generate>) {
        let before = self.generations.insert(sequence, (model.clone(), generation));
        assert!(before.is_none(), "a sequence begins once");
    }

    fn forget(&mut self, sequence: SequenceId) {
        assert!(self.generations.remove(&sequence).is_some(), "only a known sequence is forgotten");
    }

    fn step(&mut self, plan: &StepPlan, hidden: Option<&[f32]>) -> Result<StageOutcome, String> {
        std::thread::sleep(self.step_time);
        let kv = self.kv.get_mut(&plan.model).expect("steps are planned for loaded models");
        let stage = &self.stages[&plan.model];
        assert_eq!(hidden.is_none(), stage.index == 0, "the first stage alone begins with tokens");
        let mut rows = Vec::new();
        let mut letters = Vec::new();
        for row in &plan.rows {
            for (at, token) in (row.position..).zip(&row.tokens) {
                if Some(*token) == self.poison {
                    return Err(format!("token {token} is poison"));
                }
                assert_ne!(Some(*token), self.panics_at, "a panic on purpose");
                let block = &mut kv[row.blocks[at / BLOCK_TOKENS] as usize];
                block.get_or_insert([u32::MAX; BLOCK_TOKENS])[at % BLOCK_TOKENS] = *token;
            }
            let end = row.position + row.tokens.len();
            let seen = |end: usize| {
                (0..end).map(|at| {
                    let block = kv[row.blocks[at / BLOCK_TOKENS] as usize];
                    block.expect("a row sees blocks that were written")[at % BLOCK_TOKENS]
                })
            };
            let mut logits = [next_letter(seen(end), row.sequence.choice)];
            letters.push(logits[0]);
            if stage.index + 1 < stage.of {
                continue;
            }
            let accepted = row.samples.then(|| {
                let (_, generation) =
                    self.generations.get_mut(&row.sequence).expect("a row's sequence has begun");
                generation.accept(&mut logits)
            });
            if accepted.as_ref().is_some_and(is_last) {
                self.generations.remove(&row.sequence);
            }
            let pool = row.pool.clone().map(|mut pool| {
                (row.position + 1..=end).for_each(|end| pool.add(&hidden_row(seen(end)), 2));
                pool
            });
            rows.push(RowOutcome { sequence: row.sequence, accepted, pool });
        }
        assert!(hidden.is_none_or(|before| before == letters), "each stage has seen the same tokens");
        if stage.index + 1 < stage.of {
            return Ok(StageOutcome::Hidden(letters));
        }
        Ok(StageOutcome::Sampled(StepOutcome { rows }))
    }

    fn fetch(&mut self, model: &ModelName, slots: &[u32]) -> Result<Vec<Vec<u8>>, String> {
        let fetch = |&slot: &u32| {
            let tokens = (*self.slot(model, slot)?).ok_or(format!("KV block {slot} was never written"))?;
            Ok(tokens.iter().flat_map(|token| token.to_le_bytes()).collect())
        };
        slots.iter().map(fetch).collect()
    }

    fn put(&mut self, model: &ModelName, blocks: &[(u32, Vec<u8>)]) -> Result<(), String> {
        for (slot, bytes) in blocks {
            let (tokens, rest) = bytes.as_chunks();
            let tokens: Vec<u32> = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
            let block = tokens.try_into().ok().filter(|_| rest.is_empty());
            let block = block.ok_or(format!("{} bytes are no block", bytes.len()))?;
            *self.slot(model, *slot)? = Some(block);
        }
        Ok(())
    }

    fn copy(&mut self, model: &ModelName, from: u32, to: u32) -> Result<(), String> {
        let block = (*self.slot(model, from)?).ok_or(format!("KV block {from} was never written"))?;
        *self.slot(model, to)? = Some(block);
        Ok(())
    }

    fn settle(&mut self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let is_one = self.unsettled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_one {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_one
    }
}

impl FakeDevice {
    fn slot(&mut self, model: &ModelName, slot: u32) -> Result<&mut Option<[u32; BLOCK_TOKENS]>, String> {
        let blocks = self.kv.get_mut(model).ok_or_else(|| not_loaded(model))?;
        let arena = blocks.len();
        blocks
            .get_mut(slot as usize)
            .ok_or(format!("KV block {slot} does not exist; the arena has {arena} blocks"))
    }
}

/// A letter from the hash of all tokens, and of the answer's number in the place of a seed.
fn next_letter(tokens: impl Iterator<Item = u32>, choice: u32) -> f32 {
    let hash = tokens.fold(0x811c_9dc5u32 ^ choice, |hash, token| (hash ^ token).wrapping_mul(0x0100_0193));
    (b'a' as u32 + (hash >> 8) % 26) as f32
}

/// The row behind tokens, and so of all of them.
fn hidden_row(tokens: impl Iterator<Item = u32>) -> [f32; 2] {
    [next_letter(tokens, 0), 1.0]
}

/// The embedding of `text`, alone.
pub(crate) fn expected_embedding(text: &str) -> Vec<f32> {
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let mut pool = Pool::new(Pooling::Mean);
    (1..=tokens.len()).for_each(|end| pool.add(&hidden_row(tokens[..end].iter().copied()), 2));
    pool.finish(None).expect("letters are above 0")
}

/// What the fake answers to `prompt`, alone.
pub(crate) fn expected_text(prompt: &str, tokens: usize) -> String {
    expected_choice(prompt, tokens, 0)
}

/// The same for one of several answers.
pub(crate) fn expected_choice(prompt: &str, tokens: usize, choice: u32) -> String {
    let mut all: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let start = all.len();
    for _ in 0..tokens {
        all.push(next_letter(all.iter().copied(), choice) as u32);
    }
    all[start..].iter().map(|&token| token as u8 as char).collect()
}

struct FakeText(TextFacts);

impl TextModel for FakeText {
    fn facts(&self) -> &TextFacts {
        &self.0
    }

    fn encode(&self, prompt: &Prompt, _: i64) -> Result<(Vec<u32>, SpeechStyle), Fault> {
        let invalid = |message: &str| Fault { code: ErrorCode::Invalid, message: message.to_owned() };
        let tokens = match prompt {
            Prompt::Text { text, .. } => Ok(text.bytes().map(u32::from).collect()),
            Prompt::Tokens(tokens) => Ok(tokens.0.clone()),
            Prompt::Continue { .. } => Err(invalid("the fake keeps no sessions")),
            // The messages as they are.
            Prompt::Chat { messages_json, .. } => Ok(messages_json.bytes().map(u32::from).collect()),
        };
        Ok((tokens?, SpeechStyle::default()))
    }

    fn render(&self, prompt: &Prompt, _: i64, _: bool) -> Result<String, Fault> {
        let message = format!("the fake does not render {prompt:?}");
        Err(Fault { code: ErrorCode::Invalid, message })
    }

    fn pieces(&self, tokens: &[u32]) -> Result<Vec<Vec<u8>>, String> {
        Ok(tokens.iter().map(|&token| vec![token as u8]).collect())
    }

    fn customs(&self) -> Customs {
        Customs::default()
    }

    fn encode_whole(&self, text: &Prompt, cut: bool) -> Result<Vec<u32>, Fault> {
        let (mut tokens, _) = self.encode(text, 0)?;
        if tokens.len() > FAKE_CONTEXT && !cut {
            return Err(too_long(tokens.len(), FAKE_CONTEXT));
        }
        tokens.truncate(FAKE_CONTEXT);
        Ok(tokens)
    }

    fn tokenize(&self, text: &str, _: bool, _: bool) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn text_of(&self, tokens: &[u32]) -> String {
        tokens.iter().map(|&token| token as u8 as char).collect()
    }

    fn generation(
        &self,
        _: &[u32],
        params: &GenerationParams,
        _: u32,
    ) -> Result<Box<dyn Generate>, Objection> {
        Ok(Box::new(FakeGeneration::new(params)))
    }

    fn resume(
        &self,
        _: &[u32],
        params: &GenerationParams,
        _: u32,
        generated: &[u32],
        state: f32,
    ) -> Result<Resumed, String> {
        let FakeGeneration { left, .. } = FakeGeneration::new(params);
        let drawn = generated.len() as u32;
        assert!(drawn == 0 || state == drawn as f32, "state {state} is not that after {drawn} tokens");
        match left.checked_sub(drawn).ok_or("more tokens than the limit")? {
            0 => Ok(Resumed::Ended(AT_THE_LIMIT)),
            left => Ok(Resumed::Going(Box::new(FakeGeneration { left, drawn }))),
        }
    }
}

const AT_THE_LIMIT: ChoiceEnd = ChoiceEnd { reason: FinishReason::Length, stop: None };

struct FakeGeneration {
    left: u32,
    /// What it gives as the sampler's state, so that one that is lost or mixed up is found.
    drawn: u32,
}

impl FakeGeneration {
    fn new(params: &GenerationParams) -> Self {
        Self { left: params.max_tokens.expect("the daemon resolves the limit"), drawn: 0 }
    }
}

impl Generate for FakeGeneration {
    fn accept(&mut self, logits: &mut [f32]) -> Result<Accepted, String> {
        self.left -= 1;
        self.drawn += 1;
        let token = logits[0] as u32;
        let finish = (self.left == 0).then_some(AT_THE_LIMIT);
        let text = (token as u8 as char).to_string();
        Ok(Accepted { token, text, held: String::new(), logprob: None, finish, state: self.drawn as f32 })
    }
}
