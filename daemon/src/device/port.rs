//! What the daemon asks of a device and of a model's text side. `cpu` answers with the engine, `fake` (in tests) with
//! a simulation; nothing else in the daemon knows which. A device has one stage of a model, most often all of it.

use crate::config::ModelSettings;
use crate::scheduler::plan::{Accepted, ModelName, SequenceId, StepOutcome, StepPlan};
use std::sync::Arc;
use zllm_engine::{FingerprintPart, Pooling, SpeechStyle, Stage};
use zllm_wire::{ChoiceEnd, ErrorCode, Fault, GenerationParams, LoadStage, Prompt};

/// A device, owned by one thread.
pub(crate) trait Device: Send {
    /// What it is.
    fn describe(&self) -> Description;

    /// Brings a stage of a model in.
    ///
    /// # Errors
    /// Why it cannot be loaded; the device is as it was.
    fn load(
        &mut self,
        model: &ModelName,
        settings: &ModelSettings,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedStage, String>;

    /// Drops a model and the sequences on it.
    fn unload(&mut self, model: &ModelName);

    /// Keeps the sampler of a sequence until it finishes or is forgotten.
    fn begin(&mut self, sequence: SequenceId, model: &ModelName, generation: Box<dyn Generate>);

    /// Drops a sequence's sampler.
    fn forget(&mut self, sequence: SequenceId);

    /// Computes one batch: the first stage from the plan's tokens, each other one from the `hidden` that the stage before it
    /// gave for the same plan. The last stage samples where asked for; a sequence that finishes or fails is forgotten.
    ///
    /// # Errors
    /// A fault of the device: nothing on it can be believed any more.
    fn step(&mut self, plan: &StepPlan, hidden: Option<&[f32]>) -> Result<StageOutcome, String>;

    /// The bytes of this stage's part of KV blocks, in the order of `slots`.
    ///
    /// # Errors
    /// The model is not loaded, or has no such block.
    fn fetch(&mut self, model: &ModelName, slots: &[u32]) -> Result<Vec<Vec<u8>>, String>;

    /// Overwrites its part of KV blocks with what [`Self::fetch`] gave of a model with the same fingerprint.
    ///
    /// # Errors
    /// The model is not loaded, has no such block, or has blocks of another size. Blocks before the one at fault are
    /// written.
    fn put(&mut self, model: &ModelName, blocks: &[(u32, Vec<u8>)]) -> Result<(), String>;

    /// Overwrites its part of the KV block `to` with that of `from`.
    ///
    /// # Errors
    /// The model is not loaded, or has no such block.
    fn copy(&mut self, model: &ModelName, from: u32, to: u32) -> Result<(), String>;

    /// Does a little, some milliseconds, of what makes later steps faster and can wait; says whether there may be more.
    fn settle(&mut self) -> bool;
}

/// What the KV operations say of a model that is not there: it may have been unloaded while they were on their way.
pub(crate) fn not_loaded(model: &ModelName) -> String {
    format!("model {model} is not loaded")
}

/// The text side of a model: shared, and usable from any thread.
pub(crate) trait TextModel: Send + Sync {
    fn facts(&self) -> &TextFacts;

    /// The tokens of a prompt, and how its answer is written; the time (seconds since 1970-01-01 UTC) is for templates that
    /// write the date.
    ///
    /// # Errors
    /// What is wrong with the prompt.
    fn encode(&self, prompt: &Prompt, now_unix_s: i64) -> Result<(Vec<u32>, SpeechStyle), Fault>;

    /// The text that [`Self::encode`] makes tokens of; of a conversation without `add_generation_prompt` it ends behind the last
    /// message.
    ///
    /// # Errors
    /// What is wrong with the prompt, or that it is no text.
    fn render(&self, prompt: &Prompt, now_unix_s: i64, add_generation_prompt: bool) -> Result<String, Fault>;

    /// The bytes of each token; of control tokens their names.
    ///
    /// # Errors
    /// The model has no such token, or no tokenizer.
    fn pieces(&self, tokens: &[u32]) -> Result<Vec<Vec<u8>>, String>;

    /// What it says of conversations.
    fn customs(&self) -> Customs;

    /// The tokens of a text that is to be embedded, as [`zllm_engine::TextModel::encode_whole`].
    ///
    /// # Errors
    /// What is wrong with the text.
    fn encode_whole(&self, text: &Prompt, cut: bool) -> Result<Vec<u32>, Fault>;

    /// The tokens of a text; `add_bos` as the model wants it.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    fn tokenize(&self, text: &str, parse_special: bool, add_bos: bool) -> Result<Vec<u32>, String>;

    /// The text of tokens, for people: control tokens by name, broken characters replaced.
    fn text_of(&self, tokens: &[u32]) -> String;

    /// A sampler for a sequence that begins with `prompt`: that of answer number `choice`, with a seed of its own.
    ///
    /// # Errors
    /// What is wrong with which of the parameters.
    fn generation(
        &self,
        prompt: &[u32],
        params: &GenerationParams,
        choice: u32,
    ) -> Result<Box<dyn Generate>, Objection>;

    /// A sampler like that after it has drawn `generated`, to the bit as if it had not stopped; `state` is what [`Accepted`] gave with
    /// the last of them.
    ///
    /// # Errors
    /// What is wrong with the parameters or the tokens.
    fn resume(
        &self,
        prompt: &[u32],
        params: &GenerationParams,
        choice: u32,
        generated: &[u32],
        state: f32,
    ) -> Result<Resumed, String>;
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Objection {
    pub(crate) fault: Fault,
    /// The parameter that it is about, as [`GenerationParams`] or its sampling calls it: what a [`Fault`] has no place for.
    pub(crate) field: Option<String>,
}

impl Objection {
    /// To one parameter.
    pub(crate) fn to(field: &str, message: String) -> Self {
        Self { fault: Fault { code: ErrorCode::Invalid, message }, field: Some(field.to_owned()) }
    }
}

impl From<Fault> for Objection {
    fn from(fault: Fault) -> Self {
        Self { fault, field: None }
    }
}

/// A prompt that leaves no room in the context.
pub(crate) fn too_long(tokens: usize, context: usize) -> Fault {
    Fault {
        code: ErrorCode::TooLong { tokens: tokens as u64, context: context as u64 },
        message: format!("the prompt has {tokens} tokens, the context {context}: no room to answer"),
    }
}

/// An answer taken up again from its tokens.
pub(crate) enum Resumed {
    /// It goes on.
    Going(Box<dyn Generate>),
    /// Its last token had completed it.
    Ended(ChoiceEnd),
}

/// One sequence's sampler, detokenizer and stop strings.
pub(crate) trait Generate: Send {
    /// Samples the next token from the logits after the last one.
    ///
    /// # Errors
    /// Why there is none to sample; the sequence is over.
    fn accept(&mut self, logits: &mut [f32]) -> Result<Accepted, String>;
}

/// What stands in for a sampler that could not be made: its sequence ends with the reason instead of its next token.
pub(crate) struct NoSampler(pub(crate) String);

impl Generate for NoSampler {
    fn accept(&mut self, _: &mut [f32]) -> Result<Accepted, String> {
        Err(self.0.clone())
    }
}

/// Whether nothing comes after this token.
pub(crate) fn is_last(accepted: &Result<Accepted, String>) -> bool {
    accepted.as_ref().map_or(true, |accepted| accepted.finish.is_some())
}

/// What a stage gives.
pub(crate) enum StageOutcome {
    /// The rows that the next stage begins with, of all of the step's tokens.
    Hidden(Vec<f32>),
    /// The last stage's.
    Sampled(StepOutcome),
}

/// What a model says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextFacts {
    pub(crate) architecture: String,
    pub(crate) context_tokens: usize,
    /// Values of an embedding.
    pub(crate) width: usize,
    /// How a text becomes one, or why none does.
    pub(crate) pooling: Result<Pooling, String>,
    pub(crate) has_template: bool,
    pub(crate) fingerprint: [u8; 32],
}

/// How a model wants a conversation, and what stands round its texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Customs {
    /// The source of its chat template, if it has one that works.
    pub(crate) template: Option<String>,
    /// Whether tools can be shown to it.
    pub(crate) takes_tools: bool,
    /// Whether it may think before it speaks.
    pub(crate) thinks: bool,
    /// The text of the token that begins a text; empty when there is none.
    pub(crate) bos_token: String,
    /// The text of the token that ends a text; empty when there is none.
    pub(crate) eos_token: String,
}

/// A device in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) total_bytes: u64,
}

/// The text side of a model, once its fingerprint is known.
pub(crate) type TextOf = Box<dyn FnOnce([u8; 32]) -> Arc<dyn TextModel> + Send>;

/// A stage of a model that can be used.
pub(crate) struct LoadedStage {
    /// The whole model's.
    pub(crate) text: TextOf,
    pub(crate) fingerprint: FingerprintPart,
    /// As [`Loaded::device_blocks`]; every stage has as many blocks as the others.
    pub(crate) device_blocks: u32,
    pub(crate) ram_blocks: u32,
    /// Of this stage's part of a block.
    pub(crate) kv_block_bytes: u64,
    pub(crate) weight_bytes: u64,
}

/// A model that can be used.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) text: Arc<dyn TextModel>,
    /// KV blocks of the budget of running sequences; the slots of both budgets are numbered from 0 as one arena.
    pub(crate) device_blocks: u32,
    /// KV blocks of the RAM tier.
    pub(crate) ram_blocks: u32,
    pub(crate) kv_block_bytes: u64,
    pub(crate) weight_bytes: u64,
    /// The numbers of its devices, first stage to last.
    pub(crate) devices: Vec<u16>,
}

/// How far a load is, in bytes of its stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadProgress {
    pub(crate) stage: LoadStage,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl LoadProgress {
    /// Before anything was done.
    pub(crate) const START: Self = Self { stage: LoadStage::Open, done_bytes: 0, total_bytes: 0 };
}
