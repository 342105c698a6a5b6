//! Which models there are, which are loaded, and what one is.

use super::common::find;
use crate::http::problem::{Kind, Problem};
use crate::http::time::rfc3339;
use crate::http::{Http, body};
use crate::services::submit;
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::{Duration, SystemTime};
use zllm_wire::{InspectTarget, ModelInfo, ModelState};

/// The version of Ollama whose API this is: clients turn away from older ones.
const API_VERSION: &str = "0.12.0";
/// When a loaded model goes by itself.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// All models.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaTags")]
pub(super) struct Tags {
    models: Vec<Tag>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaTag")]
struct Tag {
    #[serde(flatten)]
    name: Named,
    /// When its file was written; RFC 3339.
    modified_at: String,
}

/// All loaded models.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaPs")]
pub(super) struct Running {
    models: Vec<Loaded>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaLoaded")]
struct Loaded {
    #[serde(flatten)]
    name: Named,
    /// A day that does not come: a model stays until it is unloaded.
    expires_at: &'static str,
    /// Bytes of its weights in the memory of a GPU.
    size_vram: u64,
    context_length: u32,
}

/// A model by name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
struct Named {
    name: String,
    model: String,
    /// Bytes.
    size: u64,
    /// Empty: models are told apart by their names.
    digest: &'static str,
    details: Details,
}

/// What a model is. What is not known before the file is looked into is empty.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaDetails")]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    /// Such as `135M`.
    parameter_size: String,
    /// The format of most of its bytes.
    quantization_level: String,
}

impl Details {
    fn of(family: &str) -> Self {
        Self {
            format: "gguf",
            family: family.to_owned(),
            families: vec![family.to_owned()],
            ..Self::default()
        }
    }
}

impl From<&ModelInfo> for Named {
    fn from(model: &ModelInfo) -> Self {
        // Clients that are given a name without a tag look for this one.
        let tag = if model.name.contains(':') { "" } else { ":latest" };
        let name = format!("{}{tag}", model.name);
        let details = Details::of(&model.architecture);
        Self { model: name.clone(), name, size: model.weight_bytes, digest: "", details }
    }
}

pub(super) async fn tags(http: web::Data<Http>) -> Result<HttpResponse, Problem> {
    let models = http.services.models().await?;
    let tag = |model: &ModelInfo| Tag { name: model.into(), modified_at: modified_at(&model.path) };
    Ok(HttpResponse::Ok().json(Tags { models: models.iter().map(tag).collect() }))
}

pub(super) async fn running(http: web::Data<Http>) -> Result<HttpResponse, Problem> {
    let models = http.services.models().await?;
    let loaded = models.iter().filter(|model| model.state == ModelState::Loaded).map(|model| Loaded {
        name: model.into(),
        expires_at: NEVER,
        size_vram: 0,
        context_length: model.context_tokens.unwrap_or(0),
    });
    Ok(HttpResponse::Ok().json(Running { models: loaded.collect() }))
}

/// When a file was written; the epoch where the file system does not say.
fn modified_at(path: &str) -> String {
    let written = std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let since = written.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    rfc3339(since.unwrap_or(Duration::ZERO))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaShow")]
pub(super) struct Show {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
}

/// What a model is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaShown")]
pub(super) struct Shown {
    modified_at: String,
    details: Details,
    /// Keys as in the file.
    model_info: Map<String, Value>,
    /// `completion`, `tools`, `thinking`.
    capabilities: Vec<&'static str>,
    /// The chat template, in Jinja; empty while the model is not loaded.
    template: String,
}

/// What is read of an inspection.
#[derive(Debug, Deserialize)]
struct Inspected {
    name: String,
    architecture: String,
    parameters: u64,
    context_tokens: Option<u64>,
    shape: Shape,
    tensors: Vec<Group>,
    template: Template,
}

#[derive(Debug, Deserialize)]
struct Shape {
    layers: Option<u64>,
    width: Option<u64>,
    heads: Option<u64>,
    kv_heads: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Group {
    formats: Vec<Format>,
}

#[derive(Debug, Deserialize)]
struct Format {
    format: String,
    bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Template {
    takes_tools: bool,
    thinks: bool,
}

pub(super) async fn show(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Problem> {
    let Show { model, name } = body::one(payload).await?;
    let name = model.or(name).ok_or_else(|| Problem::of("model", "model is missing"))?;
    let model = find(&http, &name)?;
    let services = &http.services;
    let json = submit::inspect(InspectTarget::Model(model.clone()), services).await?;
    let file: Inspected = serde_json::from_str(&json).map_err(|error| {
        Problem::new(Kind::Failed, format!("the inspection of {model} is broken: {error}"))
    })?;
    let path = services.settings(&model)?.path.display().to_string();
    let loaded = services.models().await?;
    let loaded = loaded.iter().any(|info| info.name == model && info.state == ModelState::Loaded);
    // What the configuration says of the template is known once it is loaded.
    let (takes_tools, thinks, template) = if loaded {
        let customs = services.with_text(&model, |text| text.customs()).await?;
        (customs.takes_tools, customs.thinks, customs.template.unwrap_or_default())
    } else {
        (file.template.takes_tools, file.template.thinks, String::new())
    };
    let capabilities = [("completion", true), ("tools", takes_tools), ("thinking", thinks)];
    Ok(HttpResponse::Ok().json(Shown {
        modified_at: modified_at(&path),
        details: file.details(),
        model_info: file.facts(),
        capabilities: capabilities.into_iter().filter_map(|(name, has)| has.then_some(name)).collect(),
        template,
    }))
}

impl Inspected {
    fn details(&self) -> Details {
        let mut bytes = std::collections::BTreeMap::<&str, u64>::new();
        for share in self.tensors.iter().flat_map(|group| &group.formats) {
            *bytes.entry(&share.format).or_default() += share.bytes;
        }
        let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(format, _)| format);
        let parameter_size = match self.parameters as f64 {
            many if many >= 1e9 => format!("{:.1}B", many / 1e9),
            many => format!("{:.2}M", many / 1e6),
        };
        Details { parameter_size, quantization_level: most.to_owned(), ..Details::of(&self.architecture) }
    }

    fn facts(&self) -> Map<String, Value> {
        let family = &self.architecture;
        let shape = &self.shape;
        let facts = [
            ("general.architecture".to_owned(), json!(family)),
            ("general.name".to_owned(), json!(self.name)),
            ("general.parameter_count".to_owned(), json!(self.parameters)),
            (format!("{family}.context_length"), json!(self.context_tokens)),
            (format!("{family}.block_count"), json!(shape.layers)),
            (format!("{family}.embedding_length"), json!(shape.width)),
            (format!("{family}.attention.head_count"), json!(shape.heads)),
            (format!("{family}.attention.head_count_kv"), json!(shape.kv_heads)),
        ];
        facts.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaVersion")]
pub(super) struct Version {
    /// Of Ollama, whose API this is; not the daemon's.
    version: &'static str,
}

pub(super) async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: API_VERSION })
}
