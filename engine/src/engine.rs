//! The embeddable library: load a model once, then generate again and again. One sequence at a time, on the caller's
//! thread; a daemon that serves many uses [`crate::DeviceModel`].
//!
//! The keys and values of the last sequence stay: a prompt that begins with the same tokens computes only the rest.

use std::{
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use zllm_kernels::backend::KV_BLOCK_TOKENS;

use crate::{
    generation::{Generation, NoLogits, TokenReport},
    loaded::{LoadError, LoadOptions, LoadedModel, bad},
    request::{FinishReason, GenerationParams, Prompt, RequestError, StopCause},
    runtime::{LoadProgress, StepError, StepRow, Want},
    text_model::TextModel,
};

/// A loaded model and the timeline of its last sequence.
pub struct Engine {
    model: LoadedModel,
    text: Arc<TextModel>,
    chunk_tokens: usize,
    cancel: Arc<AtomicBool>,
    /// Tokens whose keys and values are in the arena, from position 0.
    cached: Vec<u32>,
    /// Block table of the one sequence: the arena in order.
    blocks: Vec<u32>,
}

/// Ends the running (or next) generation from another thread.
#[derive(Clone, Debug)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// The generation ends before its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a finished generation took.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were not computed again.
    pub cached_tokens: usize,
    /// Tokens drawn.
    pub tokens: Vec<u32>,
    /// What was shown: the pieces that `on_text` got, put together.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// What stopped it, if something did.
    pub stop: Option<StopCause>,
    /// A report on each token, if log probabilities were asked for.
    pub reports: Vec<TokenReport>,
}

impl Summary {
    /// Gives a piece of text to `on_text`; says whether it wants more.
    fn show(&mut self, text: &str, on_text: &mut impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(text);
        on_text(text)
    }
}

/// Memory of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvFigures {
    /// Blocks of the arena.
    pub total_blocks: u32,
    /// Blocks that hold the current sequence.
    pub used_blocks: u32,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Tokens of the current sequence.
    pub tokens: usize,
}

/// Why a generation failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The request cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The KV budget does not hold the prompt.
    #[error("the prompt has {tokens} tokens and the KV budget holds {budget}; raise kv_budget_bytes")]
    KvBudget {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the arena holds.
        budget: usize,
    },
    /// The model gave nothing to draw from.
    #[error(transparent)]
    NoLogits(#[from] NoLogits),
    /// The device failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Engine {
    /// Loads the model file at `path`.
    ///
    /// # Errors
    /// What [`LoadedModel::load`] says, and a stage that is not the whole model.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        if options.stage.of != 1 {
            return Err(bad("stages", &options.stage.of, "an engine runs a whole model"));
        }
        let model = LoadedModel::load(path, options, progress)?;
        Ok(Self {
            text: model.text(),
            chunk_tokens: options.prefill_chunk_tokens,
            cancel: Arc::default(),
            cached: Vec::new(),
            blocks: Vec::new(),
            model,
        })
    }

    /// Makes later steps faster, once, when nothing is waited for; see [`LoadedModel::settle`].
    pub fn settle(&mut self) {
        self.model.settle();
    }

    /// The text side: tokenizer, template, limits.
    pub fn text(&self) -> &Arc<TextModel> {
        &self.text
    }

    /// A handle that ends the running generation.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle(Arc::clone(&self.cancel))
    }

    /// Memory of keys and values, now.
    pub fn kv(&self) -> KvFigures {
        KvFigures {
            total_blocks: self.model.kv_blocks(),
            used_blocks: self.blocks.len() as u32,
            block_bytes: self.model.kv_block_bytes(),
            tokens: self.cached.len(),
        }
    }

    /// Forgets the current sequence.
    pub fn reset(&mut self) {
        self.cached.clear();
        self.blocks.clear();
    }

    /// Answers `prompt`. `on_text` gets each piece of text as soon as it is safe to show, and may end the answer; it is not
    /// called again then.
    ///
    /// # Errors
    /// A request that cannot be served, or a device that failed. The engine can be used again.
    pub fn generate(
        &mut self,
        prompt: &Prompt,
        params: &GenerationParams,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Summary, GenerateError> {
        let tokens = self.text.encode(prompt)?;
        let mut generation = Generation::new(Arc::clone(&self.text), &tokens, params)?;
        let budget = self.model.kv_blocks() as usize * KV_BLOCK_TOKENS;
        if tokens.len() >= budget {
            return Err(GenerateError::KvBudget { tokens: tokens.len(), budget });
        }
        let same = self.cached.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        // The last token is always computed: its logits are what the answer begins with.
        let cached_tokens = same.min(tokens.len() - 1);
        self.cached.truncate(cached_tokens);

        let mut summary = Summary {
            prompt_tokens: tokens.len(),
            cached_tokens,
            tokens: Vec::new(),
            text: String::new(),
            finish: FinishReason::Cancelled,
            stop: None,
            reports: Vec::new(),
        };
        let (mut next, mut fed) = (tokens, cached_tokens);
        summary.finish = loop {
            if self.cancel.swap(false, Ordering::Relaxed) {
                break FinishReason::Cancelled;
            }
            let chunk = (next.len() - fed).min(self.chunk_tokens);
            let last = fed + chunk == next.len();
            let logits = self.feed(&next[fed..fed + chunk], last)?;
            fed += chunk;
            let Some(logits) = logits.filter(|_| last) else { continue };

            let accepted = generation.accept(logits)?;
            summary.tokens.push(accepted.token);
            summary.reports.extend(accepted.report);
            summary.stop = accepted.stop;
            if summary.show(&accepted.text, &mut on_text).is_break() {
                summary.finish = accepted.finish.unwrap_or(FinishReason::Cancelled);
                return Ok(summary);
            }
            if let Some(finish) = accepted.finish {
                break finish;
            }
            if self.cached.len() == budget {
                break FinishReason::Length;
            }
            next.push(accepted.token);
        };
        // An answer that ends from outside may hold text back that could have become a stop string.
        let _ = summary.show(&generation.finish(), &mut on_text);
        Ok(summary)
    }

    /// One step of the one sequence; logits when it is the `last` of what is to be fed.
    fn feed(&mut self, tokens: &[u32], last: bool) -> Result<Option<&mut [f32]>, StepError> {
        let position = self.cached.len();
        let needed = (position + tokens.len()).div_ceil(KV_BLOCK_TOKENS);
        self.blocks.truncate(needed);
        self.blocks.extend(self.blocks.len() as u32..needed as u32);
        let want = if last { Want::Last } else { Want::Nothing };
        let logits = self.model.step(&[StepRow { tokens, position, blocks: &self.blocks, want }])?;
        self.cached.extend_from_slice(tokens);
        Ok(if last { Some(logits.into_row(0)) } else { None })
    }
}
