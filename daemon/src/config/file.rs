//! The shape of `zllmd.toml`. Every key is optional; a key that is not here is an error.

use super::bytes::ByteSize;
use super::devices::DeviceEntry;
use super::http::HttpTable;
use super::kv::KvTable;
use super::objects::ObjectsTable;
use super::queue::{AmountTable, JobsTable, SchedulerTable};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use zllm_engine::{KvFormat, UnknownKvFormat};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) socket: Option<PathBuf>,
    pub(super) socket_group: Option<String>,
    pub(super) models_dir: Option<PathBuf>,
    pub(super) threads: Option<usize>,
    pub(super) isa: Option<String>,
    pub(super) log: Option<String>,
    #[serde(default)]
    pub(super) http: HttpTable,
    #[serde(default)]
    pub(super) limits: LimitsTable,
    #[serde(default)]
    pub(super) scheduler: SchedulerTable,
    #[serde(default)]
    pub(super) jobs: JobsTable,
    #[serde(default)]
    pub(super) objects: ObjectsTable,
    #[serde(default)]
    pub(super) defaults: DefaultsTable,
    #[serde(default)]
    pub(super) kv: KvTable,
    #[serde(default)]
    pub(super) devices: Vec<DeviceEntry>,
    #[serde(default)]
    pub(super) models: BTreeMap<String, ModelEntry>,
}

/// `[limits]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsTable {
    pub(super) queued_jobs: Option<usize>,
    pub(super) queued_prompt_tokens: Option<usize>,
    pub(super) queued_bytes: Option<usize>,
    pub(super) running_jobs: Option<usize>,
    pub(super) prefill_chunk_tokens: Option<usize>,
    pub(super) default_max_tokens: Option<usize>,
    pub(super) connections: Option<usize>,
    pub(super) drain_seconds: Option<u64>,
    #[serde(default)]
    pub(super) interactive: AmountTable,
    #[serde(default)]
    pub(super) normal: AmountTable,
    #[serde(default)]
    pub(super) batch: AmountTable,
    #[serde(default)]
    pub(super) tenant: AmountTable,
}

/// `[defaults]`: what a model gets that does not say otherwise, and each of the models folder.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultsTable {
    pub(super) kv_format: Option<KvFormatName>,
    pub(super) kv_budget: Option<ByteSize>,
    pub(super) ram_budget: Option<ByteSize>,
    pub(super) lock_memory: Option<bool>,
    pub(super) devices: Option<Vec<String>>,
}

/// `[models.NAME]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub(super) path: PathBuf,
    pub(super) load: Option<LoadWhen>,
    pub(super) kv_format: Option<KvFormatName>,
    pub(super) kv_budget: Option<ByteSize>,
    pub(super) ram_budget: Option<ByteSize>,
    pub(super) lock_memory: Option<bool>,
    pub(super) template: Option<String>,
    pub(super) context: Option<usize>,
    pub(super) tokenizer_pre: Option<String>,
    pub(super) threads: Option<usize>,
    pub(super) devices: Option<Vec<String>>,
    pub(super) split: Option<Vec<usize>>,
}

/// When a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadWhen {
    /// Before the daemon is ready.
    Start,
    /// With its first request.
    Demand,
}

/// How keys and values are kept, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct KvFormatName(pub(crate) KvFormat);

impl TryFrom<String> for KvFormatName {
    type Error = UnknownKvFormat;

    fn try_from(name: String) -> Result<Self, UnknownKvFormat> {
        name.parse().map(Self)
    }
}

impl ConfigFile {
    /// # Errors
    /// With line, column and key.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's message ends with a line feed after its little picture of the place.
        toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", error.to_string().trim_end()))
    }
}
