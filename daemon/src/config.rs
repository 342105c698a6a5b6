//! The daemon's configuration: one file, then environment variables, then flags, each on top of the one before.
//!
//! The file is the first of `--config`, `$ZLLM_CONFIG`, `$XDG_CONFIG_HOME/zllm/zllmd.toml` (or `~/.config`) and
//! `/etc/zllm/zllmd.toml`; none at all is fine. An unknown key is an error that names file, line and key.

mod bytes;
mod cli;
mod cores;
mod devices;
mod file;
mod http;
mod kv;
mod objects;
mod queue;
mod times;

pub(crate) use cli::Cli;
pub(crate) use devices::{DeviceSettings, PlaceSettings};
pub(crate) use file::LoadWhen;
pub(crate) use http::{HttpSettings, TlsFiles};
pub(crate) use kv::{KvSettings, SavePolicy, SsdSettings};
pub(crate) use objects::ObjectSettings;
pub(crate) use queue::JobSettings;

use crate::limits;
use crate::scheduler::core::CoreLimits;
use anyhow::Context;
use file::{ConfigFile, ModelEntry};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zllm_engine::{KvFormat, tokenizer::Tokenizer};

/// Everything the daemon needs to know, complete and checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The file it came from, if any.
    pub(crate) file: Option<PathBuf>,
    pub(crate) socket: PathBuf,
    /// Members of this group may connect too.
    pub(crate) socket_group: Option<String>,
    pub(crate) http: HttpSettings,
    pub(crate) models_dir: Option<PathBuf>,
    pub(crate) log: String,
    pub(crate) core: CoreLimits,
    pub(crate) default_max_tokens: usize,
    pub(crate) connections: usize,
    pub(crate) drain: Duration,
    pub(crate) kv: KvSettings,
    /// What computes; at least one.
    pub(crate) devices: Vec<DeviceSettings>,
    pub(crate) jobs: JobSettings,
    pub(crate) objects: ObjectSettings,
    /// Configured models by name.
    pub(crate) models: BTreeMap<String, ModelSettings>,
    /// What a model gets that says nothing else, and each model of the models folder.
    pub(crate) model_defaults: ModelDefaults,
}

/// How one model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelSettings {
    pub(crate) path: PathBuf,
    pub(crate) load: LoadWhen,
    /// Instead of the model's own chat template.
    pub(crate) template: Option<TemplateSetting>,
    pub(crate) defaults: ModelDefaults,
}

/// A chat template of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateSetting {
    /// A built-in one.
    Builtin(String),
    /// The text in this file, read when the model is loaded.
    File(PathBuf),
}

/// What may be said of a model beside where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelDefaults {
    pub(crate) kv_format: KvFormat,
    /// For the KV of running jobs.
    pub(crate) kv_budget_bytes: u64,
    /// For the KV that is kept beside it; 0 keeps none.
    pub(crate) ram_budget_bytes: u64,
    /// Whether that memory is kept from being swapped out.
    pub(crate) lock_memory: bool,
    pub(crate) context_tokens: Option<usize>,
    /// Goes before the file's `tokenizer.ggml.pre`.
    pub(crate) tokenizer_pre: Option<String>,
    /// Instead of the devices' own.
    pub(crate) threads: Option<usize>,
    pub(crate) place: PlaceSettings,
    pub(crate) prefill_chunk_tokens: usize,
    /// Sequences of one step.
    pub(crate) batch_rows: usize,
}

impl Config {
    /// Reads the configuration that the command line and the environment ask for.
    ///
    /// # Errors
    /// A file that cannot be read, a key that is not known, a value that cannot work: each with its place.
    pub(crate) fn read(cli: &Cli) -> anyhow::Result<Self> {
        let file = match &cli.config {
            Some(path) => Some(path.clone()),
            None => default_files().into_iter().find(|path| path.exists()),
        };
        let parsed = match &file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read configuration {}", path.display()))?;
                ConfigFile::parse(&text).with_context(|| format!("in configuration {}", path.display()))?
            }
            None => ConfigFile::default(),
        };
        let base = file.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        Self::merge(parsed, cli, file, base.as_deref())
    }

    fn merge(
        file: ConfigFile,
        cli: &Cli,
        path: Option<PathBuf>,
        base: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let file_limits = file.limits;
        let core = queue::core_limits(&file_limits, &file.scheduler, cli)?;
        let threads = count("threads", cli.threads.or(file.threads), cores::physical_cores())?;
        let isa = devices::kernels("isa", cli.isa.as_deref().or(file.isa.as_deref()))?;
        let devices = DeviceSettings::all(file.devices, threads, isa)?;
        let kv_budget = cli.kv_budget.or(file.defaults.kv_budget);
        let ram_budget = cli.ram_budget.or(file.defaults.ram_budget);
        let model_defaults = ModelDefaults {
            kv_format: cli.kv_format.or(file.defaults.kv_format.map(|name| name.0)).unwrap_or_default(),
            kv_budget_bytes: kv_budget.map_or(limits::DEFAULT_KV_BUDGET_BYTES, |budget| budget.0),
            ram_budget_bytes: ram_budget.map_or(limits::DEFAULT_RAM_BUDGET_BYTES, |budget| budget.0),
            lock_memory: file.defaults.lock_memory.unwrap_or(false),
            context_tokens: None,
            tokenizer_pre: None,
            threads: None,
            place: PlaceSettings::merge(
                "defaults",
                (file.defaults.devices, None),
                &PlaceSettings::default(),
                &devices,
            )?,
            prefill_chunk_tokens: core.prefill_chunk_tokens,
            batch_rows: core.running_jobs,
        };
        let mut models = BTreeMap::new();
        for (name, entry) in file.models {
            let settings = model(&name, entry, &model_defaults, &devices, base)?;
            models.insert(name, settings);
        }
        let beside = |path: PathBuf| base.map_or_else(|| path.clone(), |base| base.join(&path));
        let state = kv::state_folder(&file.kv, cli, base, variable);
        let kv = KvSettings::merge(file.kv, cli, base, variable)?;
        Ok(Self {
            file: path,
            socket: cli.socket.clone().or(file.socket).unwrap_or_else(zllm_wire::default_socket_path),
            socket_group: cli.socket_group.clone().or(file.socket_group),
            http: HttpSettings::merge(file.http, cli, state.clone(), beside)?,
            models_dir: cli.models_dir.clone().or(file.models_dir).or_else(zllm_wire::default_models_dir),
            log: cli.log.clone().or(file.log).unwrap_or_else(|| limits::DEFAULT_LOG.to_owned()),
            default_max_tokens: count(
                "limits.default_max_tokens",
                file_limits.default_max_tokens,
                limits::DEFAULT_MAX_TOKENS,
            )?,
            connections: count("limits.connections", file_limits.connections, limits::DEFAULT_CONNECTIONS)?,
            drain: drain(cli.drain_seconds.or(file_limits.drain_seconds))?,
            jobs: JobSettings::merge(file.jobs, state.clone(), beside),
            objects: ObjectSettings::merge(file.objects, state, beside),
            kv,
            core,
            devices,
            models,
            model_defaults,
        })
    }

    /// The configuration in a few lines, for `--check-config`.
    pub(crate) fn summary(&self) -> String {
        let file = self.file.as_ref().map_or("none".to_owned(), |file| file.display().to_string());
        let folder =
            self.models_dir.as_ref().map_or("none".to_owned(), |folder| folder.display().to_string());
        let mut lines = vec![
            format!("configuration: {file}"),
            format!("socket: {}", self.socket.display()),
            format!("http: {}", self.http.describe()),
            format!("models folder: {folder}"),
            format!(
                "KV memory of a model: {} bytes and {} bytes of RAM tier, in format {}, unless it says otherwise",
                self.model_defaults.kv_budget_bytes,
                self.model_defaults.ram_budget_bytes,
                self.model_defaults.kv_format
            ),
        ];
        lines.extend(self.devices.iter().map(DeviceSettings::summary));
        lines.push(self.kv.summary());
        lines.push(self.jobs.summary());
        lines.push(self.objects.summary());
        lines.extend(self.models.iter().map(|(name, model)| {
            let when = if model.load == LoadWhen::Start { "at start" } else { "on demand" };
            let devices = &model.defaults.place.devices;
            let place = if devices.is_empty() { String::new() } else { format!(" on {}", devices.join("+")) };
            format!("model {name}: {} ({when}){place}", model.path.display())
        }));
        lines.join("\n")
    }

    /// Names of the models that are loaded before the daemon is ready.
    pub(crate) fn startup_models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().filter(|(_, model)| model.load == LoadWhen::Start).map(|(name, _)| name.as_str())
    }
}

/// A count that was given, or its default.
fn count(name: &str, given: Option<usize>, default: usize) -> anyhow::Result<usize> {
    anyhow::ensure!(given != Some(0), "{name} is 0; at least 1 works");
    Ok(given.unwrap_or(default))
}

fn drain(given: Option<u64>) -> anyhow::Result<Duration> {
    let (seconds, most) = (given.unwrap_or(limits::DEFAULT_DRAIN_SECONDS), limits::MAX_DRAIN_SECONDS);
    anyhow::ensure!(seconds <= most, "limits.drain_seconds is {seconds}; at most {most} works");
    Ok(Duration::from_secs(seconds))
}

fn model(
    name: &str,
    entry: ModelEntry,
    defaults: &ModelDefaults,
    devices: &[DeviceSettings],
    base: Option<&Path>,
) -> anyhow::Result<ModelSettings> {
    let mut defaults = defaults.clone();
    let given = (entry.devices, entry.split);
    defaults.place = PlaceSettings::merge(&format!("models.{name}"), given, &defaults.place, devices)?;
    if let Some(kv_format) = entry.kv_format {
        defaults.kv_format = kv_format.0;
    }
    if let Some(budget) = entry.kv_budget {
        defaults.kv_budget_bytes = budget.0;
    }
    if let Some(budget) = entry.ram_budget {
        defaults.ram_budget_bytes = budget.0;
    }
    if let Some(lock_memory) = entry.lock_memory {
        defaults.lock_memory = lock_memory;
    }
    if let Some(threads) = entry.threads {
        anyhow::ensure!(threads > 0, "models.{name}.threads is 0; at least 1 works");
        defaults.threads = Some(threads);
    }
    if let Some(context) = entry.context {
        anyhow::ensure!(context > 1, "models.{name}.context is {context}; at least 2 works");
        defaults.context_tokens = Some(context);
    }
    if let Some(pre) = entry.tokenizer_pre {
        let known = Tokenizer::pre_tokenizers();
        anyhow::ensure!(
            known.contains(&pre.as_str()),
            "models.{name}.tokenizer_pre is {pre:?}; known are {}",
            known.join(", ")
        );
        defaults.tokenizer_pre = Some(pre);
    }
    // A relative path means a file beside the configuration, wherever the daemon is started.
    let beside = |path: &Path| base.map_or_else(|| path.to_path_buf(), |base| base.join(path));
    let template = match entry.template {
        None => None,
        Some(file) if zllm_wire::is_template_file(&file) => {
            Some(TemplateSetting::File(beside(Path::new(&file))))
        }
        Some(word) => {
            let known = zllm_wire::BUILTIN_TEMPLATES;
            anyhow::ensure!(
                known.contains(&word.as_str()),
                "models.{name}.template is {word:?}; the path of a file (with a \"/\" or a \".\" in it) works, or one of {}",
                known.join(", ")
            );
            Some(TemplateSetting::Builtin(word))
        }
    };
    let (path, load) = (beside(&entry.path), entry.load.unwrap_or(LoadWhen::Demand));
    Ok(ModelSettings { path, load, template, defaults })
}

/// A path in an environment variable, unless it is empty.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn default_files() -> Vec<PathBuf> {
    let user = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    let mut files: Vec<_> = user.map(|dir| dir.join("zllm/zllmd.toml")).into_iter().collect();
    files.push("/etc/zllm/zllmd.toml".into());
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    pub(super) fn read(text: &str, flags: &[&str]) -> anyhow::Result<Config> {
        let cli = Cli::parse_from([&["zllmd"], flags].concat());
        Config::merge(ConfigFile::parse(text)?, &cli, None, Some(Path::new("/etc/zllm")))
    }

    #[test]
    fn flags_are_on_top_of_the_file_and_the_file_on_top_of_defaults() {
        let text = "threads = 3\n[limits]\nprefill_chunk_tokens = 32\n";
        let config = read(text, &["--threads", "5"]).expect("valid");
        assert_eq!(config.devices[0].threads, 5);
        assert_eq!(config.core.prefill_chunk_tokens, 32);
        assert_eq!(config.core.running_jobs, limits::DEFAULT_RUNNING_JOBS);
    }

    #[test]
    fn models_share_defaults_that_a_flag_goes_on_top_of() {
        let text = "[defaults]\nkv_budget = \"1GiB\"\nkv_format = \"f16\"\nlock_memory = true\n[models.plain]\npath = \"p\"\n\
                    [models.own]\npath = \"o\"\nkv_budget = \"64MiB\"\nram_budget = 0\nlock_memory = false\n";
        let config = read(text, &[]).expect("valid");
        assert_eq!(config.model_defaults.ram_budget_bytes, limits::DEFAULT_RAM_BUDGET_BYTES);
        assert_eq!(config.models["own"].defaults.ram_budget_bytes, 0);
        assert!(config.model_defaults.lock_memory && !config.models["own"].defaults.lock_memory);
        assert_eq!(config.model_defaults.kv_budget_bytes, 1 << 30);
        assert_eq!(config.model_defaults.kv_format, KvFormat::F16);
        assert_eq!(config.models["plain"].defaults, config.model_defaults);
        assert_eq!(config.models["own"].defaults.kv_budget_bytes, 64 << 20);
        let config = read(text, &["--kv-budget", "2GiB"]).expect("valid");
        assert_eq!(config.model_defaults.kv_budget_bytes, 2 << 30);
        assert_eq!(config.models["own"].defaults.kv_budget_bytes, 64 << 20);
        let config = read(text, &["--ram-budget", "3GiB"]).expect("valid");
        assert_eq!(config.model_defaults.ram_budget_bytes, 3 << 30);
        assert_eq!(config.models["own"].defaults.ram_budget_bytes, 0);
        let config = read(text, &["--kv-format", "i16/q8g64"]).expect("valid");
        assert_eq!(config.model_defaults.kv_format.to_string(), "i16/q8g64");
        assert!(config.summary().contains("in format i16/q8g64"), "{}", config.summary());
    }

    #[test]
    fn a_model_has_its_own_settings_and_a_path_beside_the_file() {
        let text = "[models.small]\npath = \"m/small.gguf\"\nload = \"start\"\nkv_format = \"f16\"\n\
                    kv_budget = \"64MiB\"\ncontext = 512\nthreads = 2\ntokenizer_pre = \"llama-bpe\"\n";
        let config = read(text, &[]).expect("valid");
        let small = &config.models["small"];
        assert_eq!(small.path, Path::new("/etc/zllm/m/small.gguf"));
        assert_eq!(small.defaults.kv_budget_bytes, 64 << 20);
        assert_eq!(small.defaults.kv_format, KvFormat::F16);
        assert_eq!((small.defaults.context_tokens, small.defaults.threads), (Some(512), Some(2)));
        assert_eq!(small.defaults.tokenizer_pre.as_deref(), Some("llama-bpe"));
        assert_eq!(config.startup_models().collect::<Vec<_>>(), ["small"]);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let error = read("threads = 2\nthraeds = 3\n", &[]).expect_err("an unknown key").to_string();
        assert!(error.contains("line 2") && error.contains("thraeds"), "{error}");
        let error =
            read("[models.a]\npath = \"x\"\nkv_budget = \"lots\"\n", &[]).expect_err("no size").to_string();
        assert!(error.contains("line 3") && error.contains("lots"), "{error}");
        let error = read("[defaults]\nkv_format = \"q4\"\n", &[]).expect_err("no format").to_string();
        assert!(error.contains("line 2") && error.contains("i16, f16 or q8g64"), "{error}");
        let error = read("[limits]\nrunning_jobs = 0\n", &[]).expect_err("zero").to_string();
        assert!(error.contains("limits.running_jobs"), "{error}");
        let error = read("", &["--drain-seconds", &u64::MAX.to_string()]).expect_err("for ever").to_string();
        assert!(error.contains("drain_seconds"), "{error}");
        assert!(read("[http]\nlisten = \"nowhere\"\n", &[]).is_err());
        let text = "[models.a]\npath = \"x\"\ntokenizer_pre = \"llama-bep\"\n";
        let error = read(text, &[]).expect_err("an unknown pre-tokenizer").to_string();
        assert!(error.contains("models.a.tokenizer_pre") && error.contains("llama-bpe, "), "{error}");
    }

    #[test]
    fn a_model_may_have_a_template_by_name_or_from_a_file_beside_the_configuration() {
        let of = |word: &str| {
            let config = read(&format!("[models.m]\npath = \"m.gguf\"\ntemplate = {word:?}\n"), &[]);
            config.map(|config| config.models["m"].template.clone().expect("a template"))
        };
        assert_eq!(of("chatml").expect("a name"), TemplateSetting::Builtin("chatml".into()));
        for (file, path) in [("t/own.jinja", "/etc/zllm/t/own.jinja"), ("/opt/chatml", "/opt/chatml")] {
            assert_eq!(of(file).expect("a file"), TemplateSetting::File(path.into()));
        }
        let error = of("chatmel").expect_err("no name").to_string();
        assert!(
            error.contains("models.m.template is \"chatmel\"") && error.contains("chatml, command-r"),
            "{error}"
        );
    }

    #[test]
    fn http_is_on_loopback_unless_it_is_off_or_public() {
        assert_eq!(read("http.listen = \"off\"\n", &[]).expect("valid").http.listen, None);
        assert!(read("", &[]).expect("valid").http.listen.expect("on by default").ip().is_loopback());
        let open = "http.listen = \"0.0.0.0:80\"\n";
        let error = read(open, &[]).expect_err("not public").to_string();
        assert!(error.contains("http.public = true"), "{error}");
        let open = format!("{open}http.public = true\n");
        assert!(read(&open, &[]).expect("valid").http.listen.is_some());
    }

    /// The sample that users copy from must stay valid, and each key in it must be one that is read.
    #[test]
    fn the_sample_is_valid_with_every_line_switched_on() {
        let sample = include_str!("../zllmd.toml");
        read(sample, &[]).expect("the sample as it is");
        let on: String =
            sample.lines().map(|line| line.strip_prefix("#:").unwrap_or(line)).collect::<Vec<_>>().join("\n");
        let config = read(&on, &[]).expect("the sample with every line switched on");
        assert!(config.models.contains_key("smollm2-135m"));
    }
}
