//! Tokens to logits, once for every family and every device: generic over [`Backend`].
//!
//! A step takes the rows of several sequences at once: prefill chunks and decode rows alike are runs of tokens at a
//! position of a sequence whose KV blocks the caller owns. What a row gives depends on its own sequence alone, to the
//! bit, so batches and chunks are free to be cut in any way.
//!
//! Invariant: a step that returned an error has written nothing that a later step could read.

mod error;
mod weights;

use zllm_kernels::backend::{Backend, DeviceError, KV_BLOCK_TOKENS, KvFormat, Product, Span};

use self::weights::{Linear, Norm, Weights};
pub use self::{
    error::{RuntimeError, StepError},
    weights::LoadProgress,
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
    /// Which logits are wanted.
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

/// A model on a device: its weights, its KV arena and the activations of one step.
pub struct Runtime<B: Backend> {
    backend: B,
    spec: ModelSpec,
    weights: Weights<B>,
    kv: B::Kv,
    kv_block_bytes: usize,
    limits: RuntimeLimits,
    scratch: Scratch<B>,
    /// Positions of the step's rows; kept, as are the next two, so that a step does not allocate by its size.
    positions: Vec<usize>,
    picks: Vec<usize>,
    ids: Vec<u32>,
}

/// The activations of one step. Every tensor has room for the most rows a step may have.
struct Scratch<B: Backend> {
    hidden: B::Tensor,
    normed: B::Tensor,
    output: B::Tensor,
    picked: B::Tensor,
    logits: B::Tensor,
    /// One set for each different layer shape.
    layers: Vec<LayerScratch<B>>,
}

struct LayerScratch<B: Backend> {
    shape: [usize; 5],
    queries: B::Tensor,
    keys: B::Tensor,
    values: B::Tensor,
    mixed: B::Tensor,
    gate: B::Tensor,
    up: B::Tensor,
}

impl<B: Backend> Runtime<B> {
    /// Brings the model of `file` to `backend`; the file's pages are given back as they are copied.
    ///
    /// # Errors
    /// A tensor that the backend cannot multiply or a head that it cannot attend with, by name.
    pub fn load(
        mut backend: B,
        file: &GgufFile,
        spec: ModelSpec,
        limits: RuntimeLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, RuntimeError> {
        let weights = Weights::load(&mut backend, file, &spec, progress)?;
        let kv_block_bytes = backend.kv_block_bytes(limits.kv_format, &spec.kv_layers())?;
        let kv = backend.kv(limits.kv_format, &spec.kv_layers(), limits.kv_blocks)?;
        let scratch = Scratch::new(&mut backend, &spec, &weights, limits)?;
        Ok(Self {
            backend,
            spec,
            weights,
            kv,
            kv_block_bytes,
            limits,
            scratch,
            positions: Vec::with_capacity(limits.step_rows),
            picks: Vec::with_capacity(limits.logit_rows),
            ids: Vec::with_capacity(limits.step_rows),
        })
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// What the runtime was made for.
    pub fn limits(&self) -> RuntimeLimits {
        self.limits
    }

    /// Bytes of one KV block.
    pub fn kv_block_bytes(&self) -> usize {
        self.kv_block_bytes
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes
    }

    /// Computes the keys and values of every row and the logits that are wanted.
    ///
    /// # Errors
    /// A batch that the runtime cannot compute; nothing was computed.
    pub fn step(&mut self, runs: &[StepRow<'_>]) -> Result<Logits<'_>, StepError> {
        let rows = self.check(runs)?;
        self.ids.clear();
        self.positions.clear();
        self.picks.clear();
        let mut spans = Vec::with_capacity(runs.len());
        for run in runs {
            let first_row = self.ids.len();
            self.ids.extend_from_slice(run.tokens);
            self.positions.extend(run.position..run.position + run.tokens.len());
            match run.want {
                Want::Nothing => {}
                Want::Last => self.picks.push(self.ids.len() - 1),
                Want::All => self.picks.extend(first_row..self.ids.len()),
            }
            spans.push(Span {
                first_row,
                rows: run.tokens.len(),
                position: run.position,
                blocks: run.blocks,
            });
        }
        self.forward(rows, &spans);
        let vocab_size = self.spec.vocab_size;
        let picked = self.picks.len();
        let values = if picked == 0 {
            &mut []
        } else {
            self.head();
            self.backend.host_rows(&mut self.scratch.logits, picked)
        };
        Ok(Logits { values, vocab_size })
    }

    /// Copies one KV block to another: copy on write of a block that several sequences share.
    ///
    /// # Panics
    /// When one of them does not exist.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        self.backend.copy_block(&mut self.kv, from, to);
    }

    fn check(&self, runs: &[StepRow<'_>]) -> Result<usize, StepError> {
        let (mut rows, mut wanted) = (0, 0);
        for run in runs {
            if run.tokens.is_empty() {
                return Err(StepError::Empty);
            }
            rows += run.tokens.len();
            wanted += match run.want {
                Want::Nothing => 0,
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

    /// All layers over the rows in `ids` and `positions`; leaves the last hidden rows in `scratch.hidden`.
    fn forward(&mut self, rows: usize, spans: &[Span<'_>]) {
        let Self { backend, spec, weights, kv, scratch, positions, ids, .. } = self;
        let Scratch { hidden, normed, output, layers: sets, .. } = scratch;
        backend.embed(&weights.embedding, ids, spec.embedding_scale, hidden);
        for (index, layer) in weights.layers.iter().enumerate() {
            let set = &mut sets[layer.scratch];
            layer.mixer_norm.apply(backend, hidden, rows, normed);
            let a = &layer.attention;
            multiply(
                backend,
                normed,
                rows,
                [(&a.query, &mut set.queries), (&a.key, &mut set.keys), (&a.value, &mut set.values)],
            );
            for (tensor, norm) in [(&mut set.queries, &a.query_norm), (&mut set.keys, &a.key_norm)] {
                if let Some(norm) = norm {
                    backend.rms_norm_heads(tensor, rows, a.key_dim, &norm.weight, norm.epsilon);
                }
                backend.rope(tensor, a.key_dim, positions, a.rope);
            }
            backend.append(kv, index, spans, &set.keys, &set.values);
            backend.attend(kv, index, spans, a.shape, None, &set.queries, &mut set.mixed);
            a.output.apply(backend, &set.mixed, rows, output);
            add_residual(backend, layer.mixer_post_norm.as_ref(), output, normed, rows, hidden);

            layer.ffn_norm.apply(backend, hidden, rows, normed);
            let f = &layer.ffn;
            multiply(backend, normed, rows, [(&f.gate, &mut set.gate), (&f.up, &mut set.up)]);
            backend.gate(&mut set.gate, &set.up, rows, f.activation);
            f.down.apply(backend, &set.gate, rows, output);
            add_residual(backend, layer.ffn_post_norm.as_ref(), output, normed, rows, hidden);
        }
    }

    /// Last norm and head, over the picked rows only.
    fn head(&mut self) {
        let Self { backend, spec, weights, scratch, picks, .. } = self;
        let Scratch { hidden, normed, picked, logits, .. } = scratch;
        let rows = picks.len();
        backend.gather_rows(hidden, picks, picked);
        weights.output_norm.apply(backend, picked, rows, normed);
        let weight = weights.head.as_ref().unwrap_or(&weights.embedding);
        backend.multiply(normed, rows, [Product { weight, output: logits }]);
        if let Some(bias) = &weights.head_bias {
            backend.add_bias(logits, rows, bias);
        }
        if let Some(cap) = spec.logit_soft_cap {
            backend.soft_cap(logits, rows, cap);
        }
    }
}

impl<B: Backend> Scratch<B> {
    fn new(
        backend: &mut B,
        spec: &ModelSpec,
        weights: &Weights<B>,
        limits: RuntimeLimits,
    ) -> Result<Self, DeviceError> {
        let rows = limits.step_rows;
        let mut layers: Vec<LayerScratch<B>> = Vec::new();
        for layer in &weights.layers {
            if layer.scratch == layers.len() {
                let [queries, keys, values, mixed, gate] = layer.scratch_shape();
                layers.push(LayerScratch {
                    shape: layer.scratch_shape(),
                    queries: backend.tensor(rows, queries)?,
                    keys: backend.tensor(rows, keys)?,
                    values: backend.tensor(rows, values)?,
                    mixed: backend.tensor(rows, mixed)?,
                    gate: backend.tensor(rows, gate)?,
                    up: backend.tensor(rows, gate)?,
                });
            }
            debug_assert_eq!(layers[layer.scratch].shape, layer.scratch_shape());
        }
        let most = rows.max(limits.logit_rows);
        Ok(Self {
            hidden: backend.tensor(rows, spec.width)?,
            normed: backend.tensor(most, spec.width)?,
            output: backend.tensor(rows, spec.width)?,
            picked: backend.tensor(limits.logit_rows, spec.width)?,
            logits: backend.tensor(limits.logit_rows, spec.vocab_size)?,
            layers,
        })
    }
}

impl<B: Backend> Norm<B> {
    fn apply(&self, backend: &mut B, input: &B::Tensor, rows: usize, output: &mut B::Tensor) {
        backend.rms_norm(input, rows, &self.weight, self.epsilon, output);
    }
}

impl<B: Backend> Linear<B> {
    fn apply(&self, backend: &mut B, input: &B::Tensor, rows: usize, output: &mut B::Tensor) {
        backend.multiply(input, rows, [Product { weight: &self.weight, output }]);
        self.add_bias(backend, rows, output);
    }

    fn add_bias(&self, backend: &mut B, rows: usize, output: &mut B::Tensor) {
        if let Some(bias) = &self.bias {
            backend.add_bias(output, rows, bias);
        }
    }
}

/// Products of one input with several weights as one piece of work, then their biases.
fn multiply<B: Backend, const N: usize>(
    backend: &mut B,
    input: &B::Tensor,
    rows: usize,
    mut products: [(&Linear<B>, &mut B::Tensor); N],
) {
    let work =
        products.each_mut().map(|(linear, output)| Product { weight: &linear.weight, output: &mut **output });
    backend.multiply(input, rows, work);
    for (linear, output) in products {
        linear.add_bias(backend, rows, output);
    }
}

/// `hidden += norm(output)`; `spare` is a scratch of the same shape.
fn add_residual<B: Backend>(
    backend: &mut B,
    norm: Option<&Norm<B>>,
    output: &B::Tensor,
    spare: &mut B::Tensor,
    rows: usize,
    hidden: &mut B::Tensor,
) {
    match norm {
        Some(norm) => {
            norm.apply(backend, output, rows, spare);
            backend.add(hidden, spare, rows);
        }
        None => backend.add(hidden, output, rows),
    }
}
