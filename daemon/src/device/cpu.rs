//! The CPU as a device: models loaded through the engine, stepped on the device's thread.

use super::port::{Description, Device, Generate, LoadProgress, Loaded, is_last, not_loaded};
use super::text::EngineText;
use crate::catalog::file_bytes;
use crate::config::{ModelSettings, TemplateSetting};
use crate::scheduler::plan::{ModelName, RowOutcome, SequenceId, StepOutcome, StepPlan};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use zllm_engine::template::MAX_SOURCE_BYTES;
use zllm_engine::{
    FingerprintPart, Isa, KV_BLOCK_TOKENS, LoadOptions, LoadedModel, Stage, StepRow, TemplateChoice, Want,
};
use zllm_state::BLOCK_TOKENS;
use zllm_wire::LoadStage;

const _: () = assert!(KV_BLOCK_TOKENS == BLOCK_TOKENS, "the index counts the blocks that the engine writes");

/// The device.
#[derive(Default)]
pub(crate) struct CpuDevice {
    models: HashMap<ModelName, LoadedModel>,
    generations: HashMap<SequenceId, (ModelName, Box<dyn Generate>)>,
}

impl CpuDevice {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn model(&mut self, model: &ModelName) -> Result<&mut LoadedModel, String> {
        self.models.get_mut(model).ok_or_else(|| not_loaded(model))
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> Description {
        let processor =
            field_of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        Description {
            name: "cpu".to_owned(),
            description: format!("{processor}, {}", Isa::best().name()),
            total_bytes: memory_bytes("MemTotal").unwrap_or(0),
        }
    }

    fn load(
        &mut self,
        model: &ModelName,
        settings: &ModelSettings,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, String> {
        assert!(!self.models.contains_key(model), "the scheduler loads a model once");
        progress(LoadProgress::START);
        let others = self.models.values().map(may_take).sum();
        judge_memory(settings, file_bytes(&settings.path), others, memory_bytes("MemTotal"))?;
        let loaded = LoadedModel::load(&settings.path, &options(model, settings)?, &mut |at| {
            let (done_bytes, total_bytes) = (at.done_bytes, at.total_bytes);
            progress(LoadProgress { stage: LoadStage::Weights, done_bytes, total_bytes });
        });
        let loaded = loaded.map_err(|error| with_path(&settings.path, error.to_string()))?;
        let fingerprint = FingerprintPart::join([loaded.fingerprint()]).map_err(|error| error.to_string())?;
        let facts = Loaded {
            text: Arc::new(EngineText::new(loaded.text(), fingerprint)),
            device_blocks: loaded.kv_blocks() - loaded.ram_blocks(),
            ram_blocks: loaded.ram_blocks(),
            kv_block_bytes: loaded.kv_block_bytes(),
            weight_bytes: loaded.weight_bytes(),
        };
        self.models.insert(model.clone(), loaded);
        Ok(facts)
    }

    fn unload(&mut self, model: &ModelName) {
        self.models.remove(model);
        self.generations.retain(|_, (of, _)| of != model);
    }

    fn begin(&mut self, sequence: SequenceId, model: &ModelName, generation: Box<dyn Generate>) {
        let before = self.generations.insert(sequence, (model.clone(), generation));
        assert!(before.is_none(), "a sequence begins once");
    }

    fn forget(&mut self, sequence: SequenceId) {
        self.generations.remove(&sequence);
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepOutcome, String> {
        let model = self.models.get_mut(&plan.model).expect("steps are planned for loaded models");
        let rows: Vec<StepRow<'_>> = plan
            .rows
            .iter()
            .map(|row| StepRow {
                tokens: &row.tokens,
                position: row.position,
                blocks: &row.blocks,
                want: if row.samples { Want::Last } else { Want::Nothing },
            })
            .collect();
        let mut logits = model.step(&rows).map_err(|error| error.to_string())?;
        let mut wanted = 0;
        let mut outcome = Vec::with_capacity(plan.rows.len());
        for row in &plan.rows {
            let accepted = row.samples.then(|| {
                let (_, generation) =
                    self.generations.get_mut(&row.sequence).expect("a row's sequence has begun");
                wanted += 1;
                generation.accept(logits.row_mut(wanted - 1))
            });
            if accepted.as_ref().is_some_and(is_last) {
                self.generations.remove(&row.sequence);
            }
            outcome.push(RowOutcome { sequence: row.sequence, accepted });
        }
        Ok(StepOutcome { rows: outcome })
    }

    fn fetch(&mut self, model: &ModelName, slots: &[u32]) -> Result<Vec<Vec<u8>>, String> {
        let model = self.model(model)?;
        let block_bytes = model.kv_block_bytes() as usize;
        let fetch = |&slot: &u32| {
            let mut bytes = vec![0; block_bytes];
            model.read_block(slot, &mut bytes).map(|()| bytes).map_err(|error| error.to_string())
        };
        slots.iter().map(fetch).collect()
    }

    fn put(&mut self, model: &ModelName, blocks: &[(u32, Vec<u8>)]) -> Result<(), String> {
        let model = self.model(model)?;
        let mut put = |(slot, bytes): &(u32, Vec<u8>)| model.write_block(*slot, bytes);
        blocks.iter().try_for_each(&mut put).map_err(|error| error.to_string())
    }

    fn copy(&mut self, model: &ModelName, from: u32, to: u32) -> Result<(), String> {
        self.model(model)?.copy_block(from, to).map_err(|error| error.to_string())
    }
}

fn options(model: &ModelName, settings: &ModelSettings) -> Result<LoadOptions, String> {
    let defaults = &settings.defaults;
    Ok(LoadOptions {
        // As its users know it; the file may call it otherwise.
        name: Some(model.to_string()),
        stage: Stage::WHOLE,
        threads: defaults.threads,
        isa: None,
        kv_format: defaults.kv_format,
        kv_budget_bytes: defaults.kv_budget_bytes,
        ram_budget_bytes: defaults.ram_budget_bytes,
        lock_memory: defaults.lock_memory,
        context_limit: defaults.context_tokens,
        tokenizer_pre: defaults.tokenizer_pre.clone(),
        prefill_chunk_tokens: defaults.prefill_chunk_tokens,
        max_batch_rows: defaults.batch_rows,
        template: settings.template.as_ref().map(template).transpose()?,
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
fn may_take(model: &LoadedModel) -> u64 {
    model.weight_bytes() + u64::from(model.kv_blocks()) * model.kv_block_bytes()
}

/// Counts what a model of `file_bytes` bytes may take, and `others_bytes` of the loaded ones, against the machine's memory.
///
/// # Errors
/// More than the machine has: the system would end the daemon when the memory is used.
fn judge_memory(
    settings: &ModelSettings,
    file_bytes: u64,
    others_bytes: u64,
    memory_bytes: Option<u64>,
) -> Result<(), String> {
    let Some(total) = memory_bytes else { return Ok(()) };
    let (kv, ram) = (settings.defaults.kv_budget_bytes, settings.defaults.ram_budget_bytes);
    let all = [file_bytes, kv, ram, others_bytes].into_iter().fold(0, u64::saturating_add);
    if all <= total {
        return Ok(());
    }
    Err(format!(
        "weights ({file_bytes} bytes), kv_budget ({kv}), ram_budget ({ram}) and the loaded models ({others_bytes}) may take \
         {all} bytes together; this machine has {total} bytes of memory. Smaller budgets or fewer models would fit"
    ))
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

    fn load(path: &str, kv_budget_bytes: u64) -> String {
        let defaults = crate::config::ModelDefaults { kv_budget_bytes, ..defaults() };
        let template = Some(TemplateSetting::Builtin("chatml".into()));
        let settings = ModelSettings { path: path.into(), load: LoadWhen::Demand, template, defaults };
        let result = CpuDevice::new().load(&"m".into(), &settings, &mut |_| {});
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
            assert_eq!(judge_memory(&settings, file, others, Some(4321)), Ok(()));
            let message = judge_memory(&settings, file, others, Some(4320)).expect_err("a byte too much");
            let numbers = [format!("weights ({file} bytes)"), format!("loaded models ({others})")];
            assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
            assert!(message.contains("take 4321 bytes") && message.contains("has 4320 bytes"), "{message}");
        }
        assert_eq!(judge_memory(&settings, u64::MAX, u64::MAX, None), Ok(()), "a system that does not tell");
    }

    #[test]
    fn a_template_file_that_is_not_there_is_named() {
        let message = template(&TemplateSetting::File("/no/such.jinja".into())).expect_err("no file");
        assert!(message.starts_with("cannot read the chat template /no/such.jinja: "), "{message}");
    }
}
