//! The CPU as a device: models loaded through the engine, stepped on the device's thread. There may be several, each with
//! threads and processors of its own; the machine's memory is common to them.

use super::port::{
    Description, Device, Generate, LoadProgress, LoadedStage, StageOutcome, is_last, not_loaded,
};
use super::text::EngineText;
use crate::catalog::file_bytes;
use crate::config::{DeviceSettings, ModelSettings, TemplateSetting};
use crate::scheduler::plan::{ModelName, RowOutcome, SequenceId, StepOutcome, StepPlan};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zllm_engine::template::MAX_SOURCE_BYTES;
use zllm_engine::{
    CpuBackend, DeviceModel, Isa, KV_BLOCK_TOKENS, LoadOptions, Stage, StageOutput, StepRow, TemplateChoice,
    Want, cpu_backend,
};
use zllm_state::BLOCK_TOKENS;
use zllm_wire::LoadStage;

const _: () = assert!(KV_BLOCK_TOKENS == BLOCK_TOKENS, "the index counts the blocks that the engine writes");

/// The device.
pub(crate) struct CpuDevice {
    settings: DeviceSettings,
    memory: MemoryInUse,
    /// The threads, by how many they are. All models have the same, but for those that ask for another number.
    backends: BTreeMap<usize, CpuBackend>,
    models: HashMap<ModelName, Resident>,
    generations: HashMap<SequenceId, (ModelName, Box<dyn Generate>)>,
}

struct Resident {
    model: DeviceModel,
    /// Whose backend it is on.
    threads: usize,
    _ticket: MemoryTicket,
}

impl CpuDevice {
    /// A device among others, which have the same `memory`.
    pub(crate) fn new(settings: DeviceSettings, memory: MemoryInUse) -> Self {
        if settings.isa == Isa::Scalar {
            let device = settings.name.as_str();
            tracing::warn!(device, "computes with the scalar kernels: the same answers, many times slower");
        }
        let (backends, models, generations) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { settings, memory, backends, models, generations }
    }

    /// A loaded model, and the backend that it is on.
    fn model(&mut self, model: &ModelName) -> Result<(&mut DeviceModel, &mut CpuBackend), String> {
        let resident = self.models.get_mut(model).ok_or_else(|| not_loaded(model))?;
        let backend = self.backends.get_mut(&resident.threads).expect("a loaded model keeps its backend");
        Ok((&mut resident.model, backend))
    }

    /// The backend with `threads` threads. This thread is one of them, and is kept to the device's processors with the others.
    fn backend(&mut self, threads: usize) -> Result<&mut CpuBackend, String> {
        let backend = match self.backends.remove(&threads) {
            Some(backend) => backend,
            None => {
                let DeviceSettings { cores, isa, .. } = &self.settings;
                cpu_backend(threads, cores, Some(*isa)).map_err(|error| error.to_string())?
            }
        };
        Ok(self.backends.entry(threads).or_insert(backend))
    }

    fn load_new(
        &mut self,
        model: &ModelName,
        settings: &ModelSettings,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedStage, String> {
        let need = Need::of(settings, file_bytes(&settings.path), stage);
        let (ticket, others) = self.memory.take(need.all());
        need.judge(others, memory_bytes("MemTotal"))?;
        let mut options = options(model, settings)?;
        options.stage = stage.clone();
        let threads = settings.defaults.threads.unwrap_or(self.settings.threads);
        let backend = self.backend(threads)?;
        let loaded = DeviceModel::load(backend, &settings.path, &options, &mut |at| {
            let (done_bytes, total_bytes) = (at.done_bytes, at.total_bytes);
            progress(LoadProgress { stage: LoadStage::Weights, done_bytes, total_bytes });
        });
        let loaded = loaded.map_err(|error| with_path(&settings.path, error.to_string()))?;
        // What it may take is known to the byte now.
        drop(ticket);
        let (ticket, _) = self.memory.take(may_take(&loaded));
        let text = loaded.text();
        let facts = LoadedStage {
            text: Box::new(move |fingerprint| Arc::new(EngineText::new(text, fingerprint))),
            fingerprint: loaded.fingerprint().clone(),
            device_blocks: loaded.kv_blocks() - loaded.ram_blocks(),
            ram_blocks: loaded.ram_blocks(),
            kv_block_bytes: loaded.kv_block_bytes(),
            weight_bytes: loaded.weight_bytes(),
        };
        self.models.insert(model.clone(), Resident { model: loaded, threads, _ticket: ticket });
        Ok(facts)
    }

    /// Ends the threads that no model needs.
    fn drop_idle_backends(&mut self) {
        let Self { backends, models, .. } = self;
        backends.retain(|threads, _| models.values().any(|resident| resident.threads == *threads));
    }
}

/// Bytes that the models of all CPU devices may take together.
#[derive(Clone, Default)]
pub(crate) struct MemoryInUse(Arc<AtomicU64>);

/// A stage's share of it; comes back when this is dropped.
struct MemoryTicket {
    of: MemoryInUse,
    bytes: u64,
}

impl MemoryInUse {
    /// Takes `bytes`; gives what the others have.
    fn take(&self, bytes: u64) -> (MemoryTicket, u64) {
        // Far beyond any machine, and the sum of all tickets stays a number.
        let bytes = bytes.min(1 << 56);
        let others = self.0.fetch_add(bytes, Ordering::Relaxed);
        (MemoryTicket { of: self.clone(), bytes }, others)
    }
}

impl Drop for MemoryTicket {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> Description {
        let processor =
            field_of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        Description {
            name: self.settings.name.clone(),
            description: format!("{processor}, {}", self.settings.isa.name()),
            total_bytes: memory_bytes("MemTotal").unwrap_or(0),
        }
    }

    fn load(
        &mut self,
        model: &ModelName,
        settings: &ModelSettings,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedStage, String> {
        assert!(!self.models.contains_key(model), "the scheduler loads a model once");
        progress(LoadProgress::START);
        let loaded = self.load_new(model, settings, stage, progress);
        self.drop_idle_backends();
        loaded
    }

    fn unload(&mut self, model: &ModelName) {
        self.models.remove(model);
        self.drop_idle_backends();
        self.generations.retain(|_, (of, _)| of != model);
    }

    fn begin(&mut self, sequence: SequenceId, model: &ModelName, generation: Box<dyn Generate>) {
        let before = self.generations.insert(sequence, (model.clone(), generation));
        assert!(before.is_none(), "a sequence begins once");
    }

    fn forget(&mut self, sequence: SequenceId) {
        self.generations.remove(&sequence);
    }

    fn step(&mut self, plan: &StepPlan, hidden: Option<&[f32]>) -> Result<StageOutcome, String> {
        let Self { backends, models, generations, .. } = self;
        let resident = models.get_mut(&plan.model).expect("steps are planned for loaded models");
        let backend = backends.get_mut(&resident.threads).expect("a loaded model keeps its backend");
        let width = resident.model.text().width();
        let rows: Vec<StepRow<'_>> = plan
            .rows
            .iter()
            .map(|row| StepRow {
                tokens: &row.tokens,
                position: row.position,
                blocks: &row.blocks,
                want: match &row.pool {
                    Some(pool) => pool.want(),
                    None if row.samples => Want::Last,
                    None => Want::Nothing,
                },
            })
            .collect();
        let output = resident.model.step_stage(backend, &rows, hidden).map_err(|error| error.to_string())?;
        let (mut logits, mut hidden) = match output {
            StageOutput::Hidden(rows) => return Ok(StageOutcome::Hidden(rows.to_vec())),
            StageOutput::Last { logits, hidden } => (logits, hidden),
        };
        let mut wanted = 0;
        let mut outcome = Vec::with_capacity(plan.rows.len());
        for row in &plan.rows {
            let accepted = row.samples.then(|| {
                let (_, generation) = generations.get_mut(&row.sequence).expect("a row's sequence has begun");
                wanted += 1;
                generation.accept(logits.row_mut(wanted - 1))
            });
            if accepted.as_ref().is_some_and(is_last) {
                generations.remove(&row.sequence);
            }
            let pool = row.pool.clone().map(|mut pool| {
                let rows = if pool.want() == Want::Hidden { row.tokens.len() } else { 0 };
                pool.add(hidden.split_off(..rows * width).expect("the rows that were wanted"), width);
                pool
            });
            outcome.push(RowOutcome { sequence: row.sequence, accepted, pool });
        }
        Ok(StageOutcome::Sampled(StepOutcome { rows: outcome }))
    }

    fn fetch(&mut self, model: &ModelName, slots: &[u32]) -> Result<Vec<Vec<u8>>, String> {
        let (model, backend) = self.model(model)?;
        let block_bytes = model.kv_block_bytes() as usize;
        let fetch = |&slot: &u32| {
            let mut bytes = vec![0; block_bytes];
            model.read_block(backend, slot, &mut bytes).map(|()| bytes).map_err(|error| error.to_string())
        };
        slots.iter().map(fetch).collect()
    }

    fn put(&mut self, model: &ModelName, blocks: &[(u32, Vec<u8>)]) -> Result<(), String> {
        let (model, backend) = self.model(model)?;
        let mut put = |(slot, bytes): &(u32, Vec<u8>)| model.write_block(backend, *slot, bytes);
        blocks.iter().try_for_each(&mut put).map_err(|error| error.to_string())
    }

    fn copy(&mut self, model: &ModelName, from: u32, to: u32) -> Result<(), String> {
        let (model, backend) = self.model(model)?;
        model.copy_block(backend, from, to).map_err(|error| error.to_string())
    }

    fn settle(&mut self) -> bool {
        self.backends.values_mut().any(CpuBackend::settle_weights)
    }
}

/// What the configuration says of the model; threads and stage are the device's to say.
fn options(model: &ModelName, settings: &ModelSettings) -> Result<LoadOptions, String> {
    let defaults = &settings.defaults;
    Ok(LoadOptions {
        // As its users know it; the file may call it otherwise.
        name: Some(model.to_string()),
        kv_format: defaults.kv_format,
        kv_budget_bytes: defaults.kv_budget_bytes,
        ram_budget_bytes: defaults.ram_budget_bytes,
        lock_memory: defaults.lock_memory,
        context_limit: defaults.context_tokens,
        tokenizer_pre: defaults.tokenizer_pre.clone(),
        prefill_chunk_tokens: defaults.prefill_chunk_tokens,
        max_batch_rows: defaults.batch_rows,
        template: settings.template.as_ref().map(template).transpose()?,
        ..LoadOptions::default()
    })
}

/// The template of the configuration; a file is read each time the model is loaded.
fn template(setting: &TemplateSetting) -> Result<TemplateChoice, String> {
    let path = match setting {
        TemplateSetting::Builtin(name) => return Ok(TemplateChoice::Named(name.clone())),
        TemplateSetting::File(path) => path,
    };
    let mut source = String::new();
    let opened = std::fs::File::open(path);
    // One byte more than a template may have, so that the engine sees that it is too long.
    let read = opened.and_then(|file| file.take(MAX_SOURCE_BYTES as u64 + 1).read_to_string(&mut source));
    read.map_err(|error| format!("cannot read the chat template {}: {error}", path.display()))?;
    Ok(TemplateChoice::Source(source))
}

/// The engine's message with the model's path in front, where it is not there already.
fn with_path(path: &Path, message: String) -> String {
    let shown = path.display().to_string();
    if message.starts_with(&shown) { message } else { format!("{shown}: {message}") }
}

/// Bytes that a loaded model takes when all its blocks are used.
fn may_take(model: &DeviceModel) -> u64 {
    model.weight_bytes() + u64::from(model.kv_blocks()) * model.kv_block_bytes()
}

/// What a stage may take at most, in bytes, as far as that is known before it is read.
struct Need {
    weights: u64,
    kv: u64,
    ram: u64,
}

impl Need {
    /// Of a stage of a model of `file_bytes` bytes, about: layers are taken as equal.
    fn of(settings: &ModelSettings, file_bytes: u64, stage: &Stage) -> Self {
        let (own, all) = match &stage.split {
            Some(split) => {
                (split[stage.index], split.iter().fold(0, |all: usize, own| all.saturating_add(*own)))
            }
            None => (1, stage.of),
        };
        let share = |bytes: u64| (u128::from(bytes) * own as u128 / all.max(1) as u128) as u64;
        let defaults = &settings.defaults;
        Self {
            weights: share(file_bytes),
            kv: share(defaults.kv_budget_bytes),
            ram: share(defaults.ram_budget_bytes),
        }
    }

    fn all(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.ram)
    }

    /// Counts it, and `others` of the loaded models, against the machine's memory.
    ///
    /// # Errors
    /// More than the machine has: the system would end the daemon when the memory is used.
    fn judge(&self, others: u64, memory_bytes: Option<u64>) -> Result<(), String> {
        let Some(total) = memory_bytes else { return Ok(()) };
        let all = self.all().saturating_add(others);
        if all <= total {
            return Ok(());
        }
        let Self { weights, kv, ram } = self;
        Err(format!(
            "weights ({weights} bytes), kv_budget ({kv}), ram_budget ({ram}) and the loaded models ({others}) may take \
             {all} bytes together; this machine has {total} bytes of memory. Smaller budgets or fewer models would fit"
        ))
    }
}

/// What `/proc/meminfo` calls `name`, such as the machine's memory, `MemTotal`; `None` where it does not say.
pub(crate) fn memory_bytes(name: &str) -> Option<u64> {
    let text = field_of("/proc/meminfo", name)?;
    text.trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The first value of `name` in a file of `name: value` lines.
fn field_of(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::tests::defaults;
    use crate::config::LoadWhen;

    fn device(memory: &MemoryInUse) -> CpuDevice {
        let settings = DeviceSettings { name: "cpu".into(), threads: 1, cores: Vec::new(), isa: Isa::best() };
        CpuDevice::new(settings, memory.clone())
    }

    fn load(path: &str, kv_budget_bytes: u64) -> String {
        let defaults = crate::config::ModelDefaults { kv_budget_bytes, ..defaults() };
        let template = Some(TemplateSetting::Builtin("chatml".into()));
        let settings = ModelSettings { path: path.into(), load: LoadWhen::Demand, template, defaults };
        let memory = MemoryInUse::default();
        let result = device(&memory).load(&"m".into(), &settings, &Stage::WHOLE, &mut |_| {});
        assert_eq!(memory.take(0).1, 0, "what was not loaded takes nothing");
        result.map(|_| ()).expect_err("it cannot be loaded")
    }

    #[test]
    fn a_file_that_is_not_there_is_named_once() {
        let message = load("/no/such/model.gguf", 1 << 20);
        assert_eq!(message.matches("/no/such/model.gguf").count(), 1, "{message}");
    }

    #[test]
    fn budgets_beyond_the_machine_are_refused_before_anything_is_read() {
        let message = load("/no/such/model.gguf", u64::MAX);
        assert!(message.contains(&format!("kv_budget ({})", u64::MAX)), "{message}");
        assert!(message.contains("this machine has"), "{message}");
    }

    #[test]
    fn weights_both_budgets_and_the_loaded_models_are_counted_together() {
        let defaults =
            crate::config::ModelDefaults { kv_budget_bytes: 20, ram_budget_bytes: 300, ..defaults() };
        let settings = ModelSettings { path: "m".into(), load: LoadWhen::Demand, template: None, defaults };
        for (file, others) in [(1, 4000), (4001, 0), (0, 4001)] {
            let need = Need::of(&settings, file, &Stage::WHOLE);
            assert_eq!(need.judge(others, Some(4321)), Ok(()));
            let message = need.judge(others, Some(4320)).expect_err("a byte too much");
            let numbers = [format!("weights ({file} bytes)"), format!("loaded models ({others})")];
            assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
            assert!(message.contains("take 4321 bytes") && message.contains("has 4320 bytes"), "{message}");
        }
        let most = Need::of(&settings, u64::MAX, &Stage::WHOLE);
        assert_eq!(most.judge(u64::MAX, None), Ok(()), "a system that does not tell");
    }

    #[test]
    fn threads_stay_on_the_devices_processors() {
        use nix::sched::{CpuSet, sched_getaffinity};
        let processors = || {
            let set = sched_getaffinity(nix::unistd::Pid::from_raw(0)).expect("the system tells");
            (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect::<Vec<_>>()
        };
        let last = *processors().last().expect("this test runs on one");
        let on_another_thread = std::thread::spawn(move || {
            let settings =
                DeviceSettings { name: "cpu".into(), threads: 1, cores: vec![last], isa: Isa::best() };
            let mut device = CpuDevice::new(settings, MemoryInUse::default());
            let found = std::sync::Mutex::new(Vec::new());
            let backend = device.backend(2).expect("a processor of ours");
            backend.pool().run(&|_| found.lock().expect("nobody panicked").push(processors()));
            found.into_inner().expect("nobody panicked")
        });
        let found = on_another_thread.join().expect("the device's thread");
        assert_eq!(found, [[last], [last]], "both threads, of which this is one");
    }

    #[test]
    fn models_share_the_devices_threads_unless_they_ask_for_another_number() {
        let mut device = device(&MemoryInUse::default());
        for threads in [2, 1, 2] {
            assert_eq!(device.backend(threads).expect("threads").pool().threads(), threads);
        }
        assert_eq!(device.backends.len(), 2);
        device.drop_idle_backends();
        assert!(device.backends.is_empty(), "no model needs them");
        assert!(device.backend(0).map(|_| ()).expect_err("none").contains("threads is 0"));
    }

    #[test]
    fn a_stage_needs_its_share_and_all_devices_count_together() {
        let defaults = crate::config::ModelDefaults { kv_budget_bytes: 3000, ..defaults() };
        let settings = ModelSettings { path: "m".into(), load: LoadWhen::Demand, template: None, defaults };
        let need = |index, split| Need::of(&settings, 600, &Stage { index, of: 2, split });
        let bytes = |need: Need| (need.weights, need.kv, need.ram);
        assert_eq!(bytes(need(1, None)), (300, 1500, 0));
        assert_eq!(bytes(need(0, Some(vec![1, 2]))), (200, 1000, 0));
        assert_eq!(bytes(need(1, Some(vec![1, 2]))), (400, 2000, 0));

        let memory = MemoryInUse::default();
        let one = memory.take(100);
        let other = memory.clone().take(20);
        assert_eq!((one.1, other.1), (0, 100));
        drop(one);
        assert_eq!(memory.take(0).1, 20);
        drop(other);
        assert_eq!(memory.take(0).1, 0);
    }

    #[test]
    fn a_template_file_that_is_not_there_is_named() {
        let message = template(&TemplateSetting::File("/no/such.jinja".into())).expect_err("no file");
        assert!(message.starts_with("cannot read the chat template /no/such.jinja: "), "{message}");
    }
}
