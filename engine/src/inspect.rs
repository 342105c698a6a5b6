//! What a model file is, before anything of it is loaded: shapes, formats by kind of tensor, bytes, tokenizer, template,
//! what its keys and values take, and what of that fits into a machine's memory.
//!
//! Invariant: any file that [`GgufFile::open`] accepts can be inspected. What keeps it from being run is told in words
//! beside the facts; no tensor data is read.

mod tensors;

use serde::Serialize;
use zllm_kernels::{
    backend::{Attention, KV_BLOCK_TOKENS, KvFormat},
    cpu::{CpuBackend, isa::Isa, pool::Pool},
};

pub use self::tensors::{FormatShare, TensorGroup};
use crate::{
    gguf::{GgufFile, Metadata, Value},
    spec::{Mixer, ModelSpec},
    template::{ChatTemplate, TemplateContext},
    tokenizer::{Tokenizer, TokenizerError},
};

/// Longest first line of a template that is shown, in characters.
const MAX_LINE_CHARS: usize = 120;

/// A model file's facts. Sizes are bytes unless the name says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// `general.name`, or the architecture.
    pub name: String,
    /// `general.architecture`
    pub architecture: String,
    /// The model's files; one unless it is split.
    pub files: Vec<String>,
    /// All files together.
    pub file_bytes: u64,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// All tensors, packed as they are in the file; in memory they take the same, and norms a little more.
    pub weight_bytes: u64,
    /// Of all tensors together.
    pub bits_per_weight: f64,
    /// Positions that the model was made for.
    pub context_tokens: Option<u64>,
    /// Its dimensions.
    pub shape: Shape,
    /// Its tensors by kind.
    pub tensors: Vec<TensorGroup>,
    /// How it turns text into tokens.
    pub tokenizer: TokenizerFacts,
    /// How it wants a conversation.
    pub template: TemplateFacts,
    /// What keys and values of one token take in all layers, for each format; empty where the model cannot be run.
    pub kv: Vec<KvCost>,
    /// Why it cannot be run; empty: nothing is in the way.
    pub problems: Vec<String>,
    /// Whether it can be run; with token ids only, where the tokenizer has a problem.
    pub runs: bool,
}

/// Dimensions, as the metadata has them; of a number that differs from layer to layer the largest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Layers.
    pub layers: Option<u64>,
    /// Values of a hidden row.
    pub width: Option<u64>,
    /// Values between gate and down projection; of an expert if there are any and the file says it.
    pub ffn_width: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key and value heads.
    pub kv_heads: Option<u64>,
    /// Values of a key head.
    pub key_dim: Option<u64>,
    /// Values of a value head.
    pub value_dim: Option<u64>,
    /// Rows that a windowed layer looks back.
    pub window_tokens: Option<u64>,
    /// Layers that have the window; known where the model can be run.
    pub windowed_layers: Option<u64>,
    /// Experts of a layer.
    pub experts: Option<u64>,
    /// Experts that a token goes to.
    pub experts_used: Option<u64>,
}

/// A token with a meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedToken {
    /// Its id.
    pub id: u32,
    /// Its text in the file.
    pub text: String,
}

/// What is known of the tokenizer. The first three are as the file has them, the others as they are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenizerFacts {
    /// `tokenizer.ggml.model`
    pub model: Option<String>,
    /// `tokenizer.ggml.pre`
    pub pre: Option<String>,
    /// Tokens of the vocabulary.
    pub tokens: Option<u64>,
    /// Begins a text.
    pub bos: Option<NamedToken>,
    /// Ends a text.
    pub eos: Option<NamedToken>,
    /// Ends a turn.
    pub eot: Option<NamedToken>,
    /// Whether texts begin with `bos`.
    pub adds_bos: Option<bool>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// What is known of the chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TemplateFacts {
    /// Whether the file has one.
    pub present: bool,
    /// Its source's size.
    pub bytes: u64,
    /// The beginning of its first line.
    pub first_line: Option<String>,
    /// Whether it shows tools to the model.
    pub takes_tools: bool,
    /// Whether its model may think before it speaks, as far as the template says.
    pub thinks: bool,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// What one token's keys and values take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvCost {
    /// The format, as the configuration names it.
    pub format: String,
    /// In all layers.
    pub bytes_per_token: f64,
}

/// A machine's memory, and what of it a configuration gives to keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// What can be used now.
    pub available_bytes: u64,
    /// What keys and values of this model may take.
    pub kv_budget_bytes: u64,
}

/// What of a model fits into a memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The memory.
    pub memory: Memory,
    /// Whether the weights fit into what is available.
    pub weights_fit: bool,
    /// What is available beside the weights.
    pub left_bytes: u64,
    /// For each format of keys and values.
    pub kv: Vec<KvFit>,
}

/// Tokens whose keys and values fit, in one format. Whole blocks of [`KV_BLOCK_TOKENS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvFit {
    /// The format.
    pub format: String,
    /// Into the configured budget.
    pub budget_tokens: u64,
    /// Into all that the weights leave.
    pub memory_tokens: u64,
    /// The longest sequence that could be served with all that the weights leave: that, or the model's own context.
    pub longest_sequence_tokens: u64,
}

impl Inspection {
    /// Inspects an open file; `tokenizer_pre` goes before what the file says of its pre-tokenizer.
    pub fn of(file: &GgufFile, tokenizer_pre: Option<&str>) -> Self {
        let metadata = file.metadata();
        let spec = ModelSpec::read(file, None);
        let mut problems: Vec<String> = spec.as_ref().err().map(ToString::to_string).into_iter().collect();
        let kv = spec.as_ref().map_or(Vec::new(), |spec| kv_costs(spec, &mut problems));
        problems.extend(tensors::problems(file));
        // The spec's own complaint about a tensor's format is the same one.
        problems.dedup();
        let (groups, parameters, weight_bytes) = tensors::groups(file);
        let text = |key: &str| metadata.opt_str(key).ok().flatten().map(str::to_owned);
        Self {
            name: text("general.name").unwrap_or_else(|| file.architecture().to_owned()),
            architecture: file.architecture().to_owned(),
            files: file.part_paths().map(|path| path.display().to_string()).collect(),
            file_bytes: file.total_bytes(),
            parameters,
            weight_bytes,
            bits_per_weight: weight_bytes as f64 * 8.0 / (parameters.max(1)) as f64,
            context_tokens: number(file, "context_length"),
            shape: shape(file, spec.as_ref().ok()),
            tensors: groups,
            tokenizer: tokenizer_facts(&metadata, Tokenizer::with_pre_tokenizer(file, tokenizer_pre)),
            template: template_facts(&metadata),
            kv,
            runs: problems.is_empty(),
            problems,
        }
    }

    /// What of the model fits into `memory`.
    pub fn fit(&self, memory: Memory) -> Fit {
        let left_bytes = memory.available_bytes.saturating_sub(self.weight_bytes);
        let context = self.context_tokens.unwrap_or(u64::MAX);
        let kv = self.kv.iter().map(|cost| {
            let block_bytes = cost.bytes_per_token * KV_BLOCK_TOKENS as f64;
            let tokens = |bytes: u64| (bytes as f64 / block_bytes) as u64 * KV_BLOCK_TOKENS as u64;
            let memory_tokens = tokens(left_bytes);
            KvFit {
                format: cost.format.clone(),
                budget_tokens: tokens(memory.kv_budget_bytes),
                memory_tokens,
                longest_sequence_tokens: memory_tokens.min(context),
            }
        });
        Fit { memory, weights_fit: self.weight_bytes <= memory.available_bytes, left_bytes, kv: kv.collect() }
    }
}

/// The family's number `key`; of an array the largest.
fn number(file: &GgufFile, key: &str) -> Option<u64> {
    let whole = |value: Value<'_>| value.as_integer().and_then(|number| u64::try_from(number).ok());
    match file.metadata().get(&format!("{}.{key}", file.architecture()))? {
        Value::Array(array) => array.iter().filter_map(whole).max(),
        value => whole(value),
    }
}

fn shape(file: &GgufFile, spec: Option<&ModelSpec>) -> Shape {
    let number = |key| number(file, key);
    let heads = number("attention.head_count");
    let width = number("embedding_length");
    // What files that do not say mean.
    let usual_dim = || Some(width? / heads.filter(|heads| *heads > 0)?);
    let attention = |layer: &crate::spec::LayerSpec| match &layer.mixer {
        Mixer::Attention(attention) => attention.window.is_some(),
    };
    Shape {
        layers: number("block_count"),
        width,
        ffn_width: number("expert_feed_forward_length").or_else(|| number("feed_forward_length")),
        heads,
        kv_heads: number("attention.head_count_kv").or(heads),
        key_dim: number("attention.key_length").or_else(usual_dim),
        value_dim: number("attention.value_length").or_else(usual_dim),
        window_tokens: number("attention.sliding_window").filter(|window| *window > 0),
        windowed_layers: spec.map(|spec| spec.layers.iter().filter(|layer| attention(layer)).count() as u64),
        experts: number("expert_count").filter(|experts| *experts > 0),
        experts_used: number("expert_used_count").filter(|experts| *experts > 0),
    }
}

fn kv_costs(spec: &ModelSpec, problems: &mut Vec<String>) -> Vec<KvCost> {
    let backend = CpuBackend::new(Pool::new(1), Isa::best());
    let layers = spec.kv_layers();
    let mut costs = Vec::new();
    for format in KvFormat::all() {
        match backend.kv_block_bytes(format, &layers) {
            Ok(bytes) => costs.push(KvCost {
                format: format.to_string(),
                bytes_per_token: bytes as f64 / KV_BLOCK_TOKENS as f64,
            }),
            Err(error) => problems.push(error.to_string()),
        }
    }
    costs
}

fn tokenizer_facts(metadata: &Metadata<'_>, tokenizer: Result<Tokenizer, TokenizerError>) -> TokenizerFacts {
    let text = |key: &str| metadata.opt_str(key).ok().flatten().map(str::to_owned);
    let tokens = metadata.opt_array("tokenizer.ggml.tokens").ok().flatten().map(|array| array.len() as u64);
    let facts = TokenizerFacts {
        model: text("tokenizer.ggml.model"),
        pre: text("tokenizer.ggml.pre"),
        tokens,
        ..TokenizerFacts::default()
    };
    match tokenizer {
        Err(error) => TokenizerFacts { problem: Some(error.to_string()), ..facts },
        Ok(tokenizer) => {
            let named = |id: u32| NamedToken { id, text: tokenizer.token_text(id).to_owned() };
            TokenizerFacts {
                bos: tokenizer.bos().map(named),
                eos: tokenizer.eos().map(named),
                eot: tokenizer.eot().map(named),
                adds_bos: Some(tokenizer.add_bos()),
                ..facts
            }
        }
    }
}

fn template_facts(metadata: &Metadata<'_>) -> TemplateFacts {
    const KEY: &str = "tokenizer.chat_template";
    let source = match metadata.opt_str(KEY) {
        Ok(None) => return TemplateFacts::default(),
        Ok(Some(source)) => source,
        Err(error) => {
            return TemplateFacts {
                present: true,
                problem: Some(error.to_string()),
                ..TemplateFacts::default()
            };
        }
    };
    let line = source.lines().map(str::trim).find(|line| !line.is_empty());
    let template = ChatTemplate::new(source, TemplateContext::default());
    TemplateFacts {
        takes_tools: template.as_ref().is_ok_and(ChatTemplate::takes_tools),
        thinks: template.as_ref().is_ok_and(|template| template.speech_style().reasoning),
        present: true,
        bytes: source.len() as u64,
        first_line: line.map(|line| line.chars().take(MAX_LINE_CHARS).collect()),
        problem: template.err().map(|error| error.to_string()),
    }
}
