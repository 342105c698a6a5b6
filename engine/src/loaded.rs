//! A model file, or one stage of it, on the CPU, ready to step: what one device thread owns.
//!
//! A [`DeviceModel`] borrows the device's backend for each call, so that all models of a device compute on the same threads;
//! a [`LoadedModel`] has a backend of its own.

use std::{
    ops::{Deref, Range},
    path::Path,
    sync::Arc,
};

use zllm_kernels::{
    backend::{Attention, KV_BLOCK_TOKENS, KvFormat},
    cpu::{CpuBackend, isa::Isa, pool::Pool},
};

use crate::{
    fingerprint::FingerprintPart,
    gguf::{GgufError, GgufFile},
    runtime::{
        BlockError, LoadProgress, Logits, Runtime, RuntimeError, RuntimeLimits, StageOutput, StepError,
        StepRow,
    },
    spec::{ModelSpec, SpecError},
    stage::Stage,
    template::TemplateChoice,
    text_model::TextModel,
    tokenizer::Tokenizer,
};

/// Upper bound of threads: what is asked above it is a mistake.
const MAX_THREADS: usize = 1 << 10;
/// Upper bound of chunk and batch: likewise.
const MAX_ROWS: usize = 1 << 16;
/// Blocks of the largest arena: ids are 32 bits, and the last one means none.
const MAX_BLOCKS: u32 = u32::MAX - 1;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// What messages call the model; `None`: its own name for itself.
    pub name: Option<String>,
    /// Which part of the model is loaded.
    pub stage: Stage,
    /// Threads of the kernels, for a model with a backend of its own; more than there are cores makes everything slower.
    pub threads: usize,
    /// Likewise its instruction set; `None`: the best that this machine has.
    pub isa: Option<Isa>,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// Memory for the keys and values of running sequences, of all stages together. It is reserved at load and touched as
    /// it is used.
    pub kv_budget_bytes: u64,
    /// More of the same for what no sequence runs on: the RAM tier. On the CPU both are blocks of one arena, and which of
    /// them are which is its owner's business.
    pub ram_budget_bytes: u64,
    /// Keeps the memory of both budgets from being swapped out. It is taken at load, and the system must allow it.
    pub lock_memory: bool,
    /// Shortens the model's own context.
    pub context_limit: Option<usize>,
    /// Goes before what the file says in `tokenizer.ggml.pre`: how texts are split before byte pairs are merged. Only
    /// for `gpt2` vocabularies.
    pub tokenizer_pre: Option<String>,
    /// Most prompt tokens of one step.
    pub prefill_chunk_tokens: usize,
    /// Most sequences of one step.
    pub max_batch_rows: usize,
    /// The chat template to use instead of the file's own.
    pub template: Option<TemplateChoice>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            name: None,
            stage: Stage::WHOLE,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            isa: None,
            kv_format: KvFormat::default(),
            kv_budget_bytes: 1 << 30,
            ram_budget_bytes: 0,
            lock_memory: false,
            context_limit: None,
            tokenizer_pre: None,
            prefill_chunk_tokens: 512,
            max_batch_rows: 16,
            template: None,
        }
    }
}

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not a model that can be run, or the device refused a part of it.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// An option that cannot work.
    #[error("{option} is {found}; {expected}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would work.
        expected: String,
    },
}

impl From<GgufError> for LoadError {
    fn from(error: GgufError) -> Self {
        Self::Runtime(SpecError::from(error).into())
    }
}

impl From<SpecError> for LoadError {
    fn from(error: SpecError) -> Self {
        Self::Runtime(error.into())
    }
}

/// A model, or one stage of it, on a backend that it shares with the other models of the device.
pub struct DeviceModel {
    text: Arc<TextModel>,
    runtime: Runtime<CpuBackend>,
    ram_blocks: u32,
    fingerprint: FingerprintPart,
}

/// A model, or one stage of it, on threads of its own.
pub struct LoadedModel {
    backend: CpuBackend,
    model: DeviceModel,
}

impl Deref for LoadedModel {
    type Target = DeviceModel;

    fn deref(&self) -> &DeviceModel {
        &self.model
    }
}

/// The backend of a device: `threads` threads, on the processors `cores` if there are some, and an instruction set; `None`:
/// the best that this machine has. The calling thread is one of them, and is kept to `cores` too ([`Pool::on_cores`]).
///
/// # Errors
/// A number of threads, a processor or an instruction set that cannot work.
pub fn cpu_backend(threads: usize, cores: &[usize], isa: Option<Isa>) -> Result<CpuBackend, LoadError> {
    check_count("threads", threads, MAX_THREADS)?;
    let isa = isa.unwrap_or_else(Isa::best);
    if !isa.is_supported() {
        let available: Vec<_> = Isa::available().into_iter().map(Isa::name).collect();
        return Err(bad("isa", &isa.name(), &format!("this machine has {}", available.join(", "))));
    }
    let pool = if cores.is_empty() { Ok(Pool::new(threads)) } else { Pool::on_cores(threads, cores) };
    let pool = pool.map_err(|error| bad("cores", &format!("{cores:?}"), error.reason))?;
    Ok(CpuBackend::new(pool, isa))
}

impl LoadedModel {
    /// Loads the model file at `path`, or the stage of it that `options` name.
    ///
    /// # Errors
    /// A file that is not a model, a tensor without a kernel (by name), or an option that cannot work.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let mut backend = cpu_backend(options.threads, &[], options.isa)?;
        let model = DeviceModel::load(&mut backend, path, options, progress)?;
        Ok(Self { backend, model })
    }

    /// How many jobs its steps have handed to other threads so far; see [`Pool::jobs`].
    pub fn jobs(&self) -> u64 {
        self.backend.pool().jobs()
    }

    /// Moves all weights into huge pages, from which steps read faster; see [`CpuBackend::settle_weights`]. It takes about as
    /// long as the load: for when no step is waited for.
    pub fn settle(&mut self) {
        while self.backend.settle_weights() {}
    }

    /// Computes one step; see [`Runtime::step`].
    ///
    /// # Errors
    /// A batch that the runtime cannot compute; nothing was computed.
    pub fn step(&mut self, rows: &[StepRow<'_>]) -> Result<Logits<'_>, StepError> {
        self.model.runtime.step(&mut self.backend, rows)
    }

    /// Computes one stage of a step; see [`Runtime::step_stage`].
    ///
    /// # Errors
    /// A batch that the runtime cannot compute; nothing was computed.
    pub fn step_stage(
        &mut self,
        rows: &[StepRow<'_>],
        hidden: Option<&[f32]>,
    ) -> Result<StageOutput<'_>, StepError> {
        self.model.step_stage(&mut self.backend, rows, hidden)
    }

    /// Copies one KV block to another; see [`Runtime::copy_block`].
    ///
    /// # Errors
    /// One of them does not exist; nothing was copied.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BlockError> {
        self.model.copy_block(&mut self.backend, from, to)
    }

    /// Copies a KV block out; see [`Runtime::read_block`].
    ///
    /// # Errors
    /// There is no such block, or `bytes` does not have the size of one.
    pub fn read_block(&mut self, id: u32, bytes: &mut [u8]) -> Result<(), BlockError> {
        self.model.read_block(&mut self.backend, id, bytes)
    }

    /// Brings a KV block back; see [`Runtime::write_block`].
    ///
    /// # Errors
    /// There is no such block, or `bytes` does not have the size of one; nothing was written.
    pub fn write_block(&mut self, id: u32, bytes: &[u8]) -> Result<(), BlockError> {
        self.model.write_block(&mut self.backend, id, bytes)
    }
}

impl DeviceModel {
    /// Loads the model file at `path`, or the stage of it that `options` name, for `backend`: all later calls want the same.
    ///
    /// # Errors
    /// A file that is not a model, a tensor without a kernel (by name), or an option that cannot work.
    pub fn load(
        backend: &mut CpuBackend,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        check(options)?;
        let file = GgufFile::open(path)?;
        let spec = ModelSpec::read(&file, options.context_limit)?;
        let layers = options.stage.layers(spec.layers.len())?;
        // Of the whole model, so that each stage has as many blocks as the others.
        let block_bytes = backend.kv_block_bytes(options.kv_format, &spec.kv_layers());
        let block_bytes = block_bytes.map_err(RuntimeError::from)? as u64;
        let blocks_of = |budget: u64| (budget / block_bytes).min(u64::from(MAX_BLOCKS)) as u32;
        let device_blocks = blocks_of(options.kv_budget_bytes);
        let ram_blocks = blocks_of(options.ram_budget_bytes).min(MAX_BLOCKS - device_blocks);
        if device_blocks == 0 {
            let expected =
                format!("one block of {KV_BLOCK_TOKENS} tokens of this model takes {block_bytes} bytes");
            return Err(bad("kv_budget_bytes", &options.kv_budget_bytes, &expected));
        }
        let limits = RuntimeLimits {
            step_rows: options.prefill_chunk_tokens + options.max_batch_rows,
            logit_rows: options.max_batch_rows,
            kv_blocks: (device_blocks + ram_blocks) as usize,
            kv_format: options.kv_format,
            kv_locked: options.lock_memory,
        };
        let load = || Runtime::load(&mut *backend, &file, spec.clone(), layers, limits, progress);
        let (text, runtime) = if options.template.is_some() {
            // A template that was asked for may be refused, and then no weight is read.
            (read_text(&file, &spec, options)?, load()?)
        } else {
            std::thread::scope(|scope| {
                let text = scope.spawn(|| read_text(&file, &spec, options));
                let runtime = load();
                let text = text.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                Ok::<_, LoadError>((text?, runtime?))
            })?
        };
        let kv = (options.kv_format, backend.kv_layout());
        let hashes = runtime.content_hashes().clone();
        let fingerprint = FingerprintPart::new(&file, runtime.spec(), kv, text.tokenizer().ok(), hashes);
        Ok(Self { text: Arc::new(text.with_isa(backend.isa())), runtime, ram_blocks, fingerprint })
    }

    /// The text side, shared.
    pub fn text(&self) -> Arc<TextModel> {
        Arc::clone(&self.text)
    }

    /// What keys and values computed by this model depend on: weights, rope, tokenizer, KV format and layout. The parts of
    /// all stages give the root of its block keys ([`FingerprintPart::join`]); a block may be brought back where that is
    /// the same.
    pub fn fingerprint(&self) -> &FingerprintPart {
        &self.fingerprint
    }

    /// Which of the model's layers are here.
    pub fn layers(&self) -> Range<usize> {
        self.runtime.layers()
    }

    /// Blocks of the KV arena: those of the KV budget and those of the RAM budget.
    pub fn kv_blocks(&self) -> u32 {
        self.runtime.limits().kv_blocks as u32
    }

    /// How many of them the RAM budget gave.
    pub fn ram_blocks(&self) -> u32 {
        self.ram_blocks
    }

    /// Bytes of one KV block, or of this stage's part of it: a block's parts lie in the order of the stages.
    pub fn kv_block_bytes(&self) -> u64 {
        self.runtime.kv_block_bytes() as u64
    }

    /// Bytes of the weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.runtime.weight_bytes() as u64
    }

    /// Computes one stage of a step; see [`Runtime::step_stage`].
    ///
    /// # Errors
    /// A batch that the runtime cannot compute; nothing was computed.
    pub fn step_stage(
        &mut self,
        backend: &mut CpuBackend,
        rows: &[StepRow<'_>],
        hidden: Option<&[f32]>,
    ) -> Result<StageOutput<'_>, StepError> {
        self.runtime.step_stage(backend, rows, hidden)
    }

    /// Copies one KV block to another; see [`Runtime::copy_block`].
    ///
    /// # Errors
    /// One of them does not exist; nothing was copied.
    pub fn copy_block(&mut self, backend: &mut CpuBackend, from: u32, to: u32) -> Result<(), BlockError> {
        self.runtime.copy_block(backend, from, to)
    }

    /// Copies a KV block out; see [`Runtime::read_block`].
    ///
    /// # Errors
    /// There is no such block, or `bytes` does not have the size of one.
    pub fn read_block(
        &mut self,
        backend: &mut CpuBackend,
        id: u32,
        bytes: &mut [u8],
    ) -> Result<(), BlockError> {
        self.runtime.read_block(backend, id, bytes)
    }

    /// Brings a KV block back; see [`Runtime::write_block`].
    ///
    /// # Errors
    /// There is no such block, or `bytes` does not have the size of one; nothing was written.
    pub fn write_block(&mut self, backend: &mut CpuBackend, id: u32, bytes: &[u8]) -> Result<(), BlockError> {
        self.runtime.write_block(backend, id, bytes)
    }
}

/// The text side, which no weight depends on: a vocabulary takes as long as some hundred megabytes of weights.
fn read_text(file: &GgufFile, spec: &ModelSpec, options: &LoadOptions) -> Result<TextModel, LoadError> {
    let mut text = TextModel::read(file, spec, options.tokenizer_pre.as_deref());
    if let Some(name) = &options.name {
        text = text.with_name(name.clone());
    }
    if let Some(choice) = &options.template {
        text = text.with_template(choice).map_err(|error| {
            let found = match choice {
                TemplateChoice::Named(name) => format!("{name:?}"),
                TemplateChoice::Source(source) => format!("a text of {} bytes", source.len()),
            };
            bad("template", &found, &error.to_string())
        })?;
    }
    Ok(text)
}

/// Checks what can be checked without a file.
fn check(options: &LoadOptions) -> Result<(), LoadError> {
    check_count("prefill_chunk_tokens", options.prefill_chunk_tokens, MAX_ROWS)?;
    check_count("max_batch_rows", options.max_batch_rows, MAX_ROWS)?;
    if let Some(limit @ ..2) = options.context_limit {
        return Err(bad("context_limit", &limit, "at least 2, a token of a prompt and one of an answer"));
    }
    let known = Tokenizer::pre_tokenizers();
    if let Some(name) = options.tokenizer_pre.as_ref().filter(|name| !known.contains(&name.as_str())) {
        return Err(bad("tokenizer_pre", name, &format!("known are {}", known.join(", "))));
    }
    Ok(())
}

fn check_count(option: &'static str, found: usize, most: usize) -> Result<(), LoadError> {
    if (1..=most).contains(&found) { Ok(()) } else { Err(bad(option, &found, &format!("from 1 to {most}"))) }
}

pub(crate) fn bad(option: &'static str, found: &dyn ToString, expected: &str) -> LoadError {
    LoadError::BadOption { option, found: found.to_string(), expected: expected.to_owned() }
}
