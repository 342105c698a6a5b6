//! Tokens to logits, once for every family and every device: generic over [`Backend`].
//!
//! A step takes the rows of several sequences at once: prefill chunks and decode rows alike are runs of tokens at a
//! position of a sequence whose KV blocks the caller owns. What a row gives depends on its own sequence alone, to the
//! bit, so batches and chunks are free to be cut in any way.
//!
//! A runtime is one stage of a model: some consecutive layers, most often all. The first stage begins with the embedding,
//! the last ends with the head; between two stages go hidden rows of f32, as they are, so that a model that was cut gives
//! the bits of a whole one. The KV blocks of the stages, one after the other, are those of the whole model.
//!
//! A runtime does not own its backend: a device has one, with one set of threads, for all its models. Each call borrows it,
//! and it is the one with which the runtime was loaded.
//!
//! Invariant: a step that returned an error has written nothing that a later step could read.

mod content;
mod error;
mod layer;
mod scratch;
mod weights;

use std::{collections::BTreeMap, ops::Range};

use zllm_kernels::backend::{Backend, Input, KV_BLOCK_TOKENS, KvFormat, Product, Span};

pub use self::{
    error::{BlockError, RuntimeError, StepError},
    weights::LoadProgress,
};
use self::{
    layer::{Residual, Rows},
    scratch::{HeadScratch, Scratch},
    weights::{FfnWeights, Head, Norm, Weights},
};
use crate::{gguf::GgufFile, spec::ModelSpec};

/// How much a runtime may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeLimits {
    /// Rows of one step, all sequences together.
    pub step_rows: usize,
    /// Rows of one step whose logits are wanted.
    pub logit_rows: usize,
    /// Blocks of the KV arena.
    pub kv_blocks: usize,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// Whether the KV arena is kept from being swapped out.
    pub kv_locked: bool,
}

/// Which rows of a run need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None: a prefill chunk that is not the last.
    Nothing,
    /// The last row's.
    Last,
    /// Every row's.
    All,
    /// None, but every row as it would go into the head: after the last norm.
    Hidden,
}

/// A run of consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct StepRow<'a> {
    /// At least one.
    pub tokens: &'a [u32],
    /// Position of the first token in its sequence.
    pub position: usize,
    /// KV blocks of the sequence from position 0; they cover `position + tokens.len()`. Blocks below `position` were
    /// filled by earlier steps; blocks of this run belong to this sequence alone.
    pub blocks: &'a [u32],
    /// What is wanted of it.
    pub want: Want,
}

/// The logits that a step was asked for, in the order of its runs.
#[derive(Debug)]
pub struct Logits<'a> {
    values: &'a mut [f32],
    vocab_size: usize,
}

impl<'a> Logits<'a> {
    /// The logits of wanted row `index`, for as long as the runtime is borrowed.
    ///
    /// # Panics
    /// When there are not that many rows.
    pub fn into_row(self, index: usize) -> &'a mut [f32] {
        &mut self.values[index * self.vocab_size..][..self.vocab_size]
    }

    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.values.len() / self.vocab_size
    }

    /// The logits of wanted row `index`; they may be changed in place.
    ///
    /// # Panics
    /// When there are not that many rows.
    pub fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.values[index * self.vocab_size..][..self.vocab_size]
    }
}

/// What a stage gives.
#[derive(Debug)]
pub enum StageOutput<'a> {
    /// For the next stage: every row of the step, `width` values each.
    Hidden(&'a [f32]),
    /// The last stage's.
    Last {
        /// Of the rows that wanted some.
        logits: Logits<'a>,
        /// The rows of the runs with [`Want::Hidden`], in their order, `width` values each.
        hidden: &'a [f32],
    },
}

/// A stage of a model on a device: its weights, its KV arena and the activations of one step.
pub struct Runtime<B: Backend> {
    /// The whole model.
    spec: ModelSpec,
    /// Which of its layers are here.
    layers: Range<usize>,
    weights: Weights<B>,
    kv: B::Kv,
    kv_block_bytes: usize,
    limits: RuntimeLimits,
    scratch: Scratch<B>,
    /// Positions of the step's rows; kept, as are the next four, so that a step allocates nothing.
    positions: Vec<usize>,
    picks: Vec<usize>,
    hidden_picks: Vec<usize>,
    ids: Vec<u32>,
    spans: Vec<Span<'static>>,
}

impl<B: Backend> Runtime<B> {
    /// Brings the layers `layers` of the model of `file` to `backend`, with the embedding if the first is among them and
    /// the head if the last is; the file's pages are given back as they are copied.
    ///
    /// # Errors
    /// A tensor that the backend cannot multiply or a head that it cannot attend with, by name.
    ///
    /// # Panics
    /// When there are no layers, or not those.
    pub fn load(
        backend: &mut B,
        file: &GgufFile,
        spec: ModelSpec,
        layers: Range<usize>,
        limits: RuntimeLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, RuntimeError> {
        assert!(!layers.is_empty() && layers.end <= spec.layers.len(), "{layers:?} of {}", spec.layers.len());
        let kv_layers = &spec.kv_layers()[layers.clone()];
        // First, so that what cannot be had is refused before a weight is read.
        let kv_block_bytes = backend.kv_block_bytes(limits.kv_format, kv_layers)?;
        let mut kv = backend.kv(limits.kv_format, kv_layers, limits.kv_blocks)?;
        if limits.kv_locked {
            backend.lock_kv(&mut kv)?;
        }
        let weights = Weights::load(backend, file, &spec, layers.clone(), progress)?;
        let scratch = Scratch::new(backend, &spec, &weights, limits)?;
        Ok(Self {
            spec,
            layers,
            weights,
            kv,
            kv_block_bytes,
            limits,
            scratch,
            positions: Vec::with_capacity(limits.step_rows),
            picks: Vec::with_capacity(limits.logit_rows),
            hidden_picks: Vec::with_capacity(limits.step_rows),
            ids: Vec::with_capacity(limits.step_rows),
            spans: Vec::with_capacity(limits.logit_rows),
        })
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Which of the model's layers are here.
    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    /// What the runtime was made for.
    pub fn limits(&self) -> RuntimeLimits {
        self.limits
    }

    /// Bytes of one KV block: the part of this stage's layers.
    pub fn kv_block_bytes(&self) -> usize {
        self.kv_block_bytes
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes
    }

    /// The hash of each tensor that this stage computes with, in the file's own bytes, by name.
    pub fn content_hashes(&self) -> &BTreeMap<String, [u8; 32]> {
        &self.weights.content
    }

    /// Computes the keys and values of every row and the logits that are wanted: a step of a whole model.
    ///
    /// # Errors
    /// A batch that the runtime cannot compute, or the model is not whole; nothing was computed.
    pub fn step(&mut self, backend: &mut B, runs: &[StepRow<'_>]) -> Result<Logits<'_>, StepError> {
        let (end_layer, layers) = (self.layers.end, self.spec.layers.len());
        if end_layer < layers {
            return Err(StepError::NoLogits { end_layer, layers });
        }
        match self.step_stage(backend, runs, None)? {
            StageOutput::Last { logits, .. } => Ok(logits),
            StageOutput::Hidden(_) => unreachable!("the last stage gives logits"),
        }
    }

    /// Computes one stage of a step: the keys and values of its own layers for every row, and what the next stage begins
    /// with or the logits that are wanted. Every stage gets the same runs; `hidden` is what the stage before it gave for
    /// them, and `None` for the first.
    ///
    /// # Errors
    /// A batch that the runtime cannot compute; nothing was computed.
    pub fn step_stage(
        &mut self,
        backend: &mut B,
        runs: &[StepRow<'_>],
        hidden: Option<&[f32]>,
    ) -> Result<StageOutput<'_>, StepError> {
        let rows = self.check(runs)?;
        self.check_hidden(rows, hidden)?;
        self.ids.clear();
        self.positions.clear();
        self.picks.clear();
        self.hidden_picks.clear();
        let mut spans = emptied(std::mem::take(&mut self.spans));
        for run in runs {
            let first_row = self.ids.len();
            self.ids.extend_from_slice(run.tokens);
            self.positions.extend(run.position..run.position + run.tokens.len());
            match run.want {
                Want::Nothing => {}
                Want::Last => self.picks.push(self.ids.len() - 1),
                Want::All => self.picks.extend(first_row..self.ids.len()),
                Want::Hidden => self.hidden_picks.extend(first_row..self.ids.len()),
            }
            spans.push(Span {
                first_row,
                rows: run.tokens.len(),
                position: run.position,
                blocks: run.blocks,
            });
        }
        self.enter(backend, rows, hidden);
        self.forward(backend, rows, &spans);
        self.spans = emptied(spans);
        if self.layers.end < self.spec.layers.len() {
            return Ok(StageOutput::Hidden(backend.host_rows(&mut self.scratch.hidden, rows)));
        }
        let vocab_size = self.spec.vocab_size;
        let (values, hidden) = self.finish(backend);
        Ok(StageOutput::Last { logits: Logits { values, vocab_size }, hidden })
    }

    /// Copies one KV block to another: copy on write of a block that several sequences share.
    ///
    /// # Errors
    /// One of them does not exist; nothing was copied.
    pub fn copy_block(&mut self, backend: &mut B, from: u32, to: u32) -> Result<(), BlockError> {
        self.check_block(from)?;
        self.check_block(to)?;
        backend.copy_block(&mut self.kv, from, to);
        Ok(())
    }

    /// Copies KV block `id` to host memory; `bytes` has the size of a block.
    ///
    /// # Errors
    /// There is no such block, or `bytes` has another size.
    pub fn read_block(&mut self, backend: &mut B, id: u32, bytes: &mut [u8]) -> Result<(), BlockError> {
        self.check_block(id)?;
        self.check_block_bytes(bytes.len())?;
        backend.read_block(&self.kv, id, bytes);
        Ok(())
    }

    /// Copies to KV block `id` what [`Self::read_block`] gave, of this runtime or of another with the same fingerprint.
    /// Any bytes of the right size are safe; only those give the same tokens.
    ///
    /// # Errors
    /// There is no such block, or `bytes` are not as many as a block's; nothing was written.
    pub fn write_block(&mut self, backend: &mut B, id: u32, bytes: &[u8]) -> Result<(), BlockError> {
        self.check_block(id)?;
        self.check_block_bytes(bytes.len())?;
        backend.write_block(&mut self.kv, id, bytes);
        Ok(())
    }

    fn check_block(&self, id: u32) -> Result<(), BlockError> {
        let arena = self.limits.kv_blocks;
        if (id as usize) < arena { Ok(()) } else { Err(BlockError::NoSuchBlock { id, arena }) }
    }

    fn check_block_bytes(&self, found: usize) -> Result<(), BlockError> {
        let expected = self.kv_block_bytes;
        if found == expected { Ok(()) } else { Err(BlockError::WrongSize { found, expected }) }
    }

    fn check(&self, runs: &[StepRow<'_>]) -> Result<usize, StepError> {
        let (mut rows, mut wanted) = (0, 0);
        for run in runs {
            if run.tokens.is_empty() {
                return Err(StepError::Empty);
            }
            rows += run.tokens.len();
            wanted += match run.want {
                Want::Nothing | Want::Hidden => 0,
                Want::Last => 1,
                Want::All => run.tokens.len(),
            };
            let end = run.position.saturating_add(run.tokens.len());
            if end > self.spec.context_length {
                return Err(StepError::PastContext { end, context: self.spec.context_length });
            }
            let vocab_size = self.spec.vocab_size;
            if let Some(token) = run.tokens.iter().find(|t| **t as usize >= vocab_size) {
                return Err(StepError::BadToken { token: *token, vocab_size });
            }
            let arena = self.limits.kv_blocks;
            let covered = run.blocks.len() * KV_BLOCK_TOKENS >= end;
            if !covered || run.blocks.iter().any(|b| *b as usize >= arena) {
                return Err(StepError::BadBlocks { tokens: end, found: run.blocks.len(), arena });
            }
        }
        let limits = self.limits;
        for (what, found, limit) in
            [("rows", rows, limits.step_rows), ("logit rows", wanted, limits.logit_rows)]
        {
            if found > limit {
                return Err(StepError::TooMany { what, found, limit });
            }
        }
        if rows == 0 { Err(StepError::Empty) } else { Ok(rows) }
    }

    fn check_hidden(&self, rows: usize, hidden: Option<&[f32]>) -> Result<(), StepError> {
        let first_layer = self.layers.start;
        let expected = if first_layer == 0 { 0 } else { rows * self.spec.width };
        let found = hidden.map_or(0, <[f32]>::len);
        if found == expected { Ok(()) } else { Err(StepError::WrongHidden { first_layer, found, expected }) }
    }

    /// What the first of the layers works on, in `scratch.hidden`: the embedded tokens of `ids`, or the rows given.
    fn enter(&mut self, backend: &mut B, rows: usize, given: Option<&[f32]>) {
        let Self { spec, weights, scratch, ids, .. } = self;
        match given {
            Some(given) => backend.host_rows(&mut scratch.hidden, rows).copy_from_slice(given),
            None => {
                let embedding = weights.embedding.as_ref().expect("the first stage has the embedding");
                backend.embed(embedding, ids, spec.embedding_scale, &mut scratch.hidden);
            }
        }
    }

    /// All layers over the rows in `scratch.hidden` and `positions`; leaves the last hidden rows where the first were.
    fn forward(&mut self, backend: &mut B, count: usize, spans: &[Span<'_>]) {
        let Self { weights, kv, scratch, positions, .. } = self;
        let Scratch { hidden, normed, output, attention, gated, experts, .. } = scratch;
        let rows = Rows { count, positions, spans };
        for (index, layer) in weights.layers.iter().enumerate() {
            let residual = |norm| Residual { norm, scale: layer.residual_scale };
            let set = attention.of(&layer.attention.scratch_key());
            let input = normed_input(layer.mixer_norm.as_ref(), hidden);
            layer.attention.mix(backend, set, kv, index, rows, input);
            let (mixed, linear) = (Input::Rows(&set.mixed), &layer.attention.output);
            let residual_of = layer.mixer_post_norm.as_ref();
            residual(residual_of).add_product(backend, count, mixed, linear, output, hidden);

            let residual = residual(layer.ffn_post_norm.as_ref());
            match &layer.ffn {
                FfnWeights::Gated(ffn) => {
                    let set = gated.of(&ffn.scratch_key());
                    ffn.open(backend, set, count, normed_input(layer.ffn_norm.as_ref(), hidden));
                    residual.add_product(backend, count, ffn.gated(set), &ffn.down, output, hidden);
                }
                FfnWeights::Experts(ffn) => {
                    let set = experts.of(&ffn.scratch_key());
                    // Router, experts and the shared one read the same rows.
                    let input = match &layer.ffn_norm {
                        None => &*hidden,
                        Some(norm) => {
                            backend.rms_norm(hidden, count, norm.of_rows(), normed);
                            &*normed
                        }
                    };
                    ffn.forward(backend, set, count, input, output);
                    if let Some((shared, _)) = &ffn.shared {
                        let gated = gated.of(&shared.scratch_key());
                        ffn.add_shared(backend, set, gated, count, input, output);
                    }
                    residual.add(backend, count, output, hidden);
                }
            }
        }
    }

    /// The last norm, and the head over the picked rows only: their logits, and the normed rows that are wanted as they are.
    fn finish(&mut self, backend: &mut B) -> (&mut [f32], &[f32]) {
        let Self { spec, weights, scratch, picks, hidden_picks, .. } = self;
        let Scratch { hidden, normed, output, head, .. } = scratch;
        let (Some(Head { norm, weight, scale, bias }), Some(HeadScratch { picked, logits })) =
            (&weights.head, head)
        else {
            unreachable!("the last stage has the head")
        };
        let wanted = hidden_picks.len();
        if wanted > 0 {
            backend.gather_rows(hidden, hidden_picks, output);
            backend.rms_norm(output, wanted, norm.of_rows(), normed);
        }
        let rows = picks.len();
        if rows == 0 {
            return (&mut [], backend.host_rows(normed, wanted));
        }
        backend.gather_rows(hidden, picks, picked);
        let weight =
            weight.as_ref().or(weights.embedding.as_ref()).expect("a head that is not tied has its own");
        let product = Product { scale: *scale, bias: bias.as_ref(), ..Product::plain(weight, logits) };
        backend.multiply(Input::Normed(picked, norm.of_rows()), rows, [product]);
        if spec.logit_scale != 1.0 {
            backend.scale(logits, rows, spec.logit_scale);
        }
        if let Some(cap) = spec.logit_soft_cap {
            backend.soft_cap(logits, rows, cap);
        }
        (backend.host_rows(logits, rows), backend.host_rows(normed, wanted))
    }
}

/// The memory of some spans for others: what has one layout is collected where it was.
fn emptied<'a>(mut spans: Vec<Span<'_>>) -> Vec<Span<'a>> {
    spans.clear();
    spans.into_iter().map(|_| unreachable!("there is none")).collect()
}

/// The norm of `rows`, or the rows themselves where there is no norm.
fn normed_input<'a, B: Backend>(norm: Option<&'a Norm<B>>, rows: &'a B::Tensor) -> Input<'a, B::Tensor> {
    match norm {
        Some(norm) => Input::Normed(rows, norm.of_rows()),
        None => Input::Rows(rows),
    }
}
