//! What a model is: a description read from a file's metadata, with nothing computed yet.
//!
//! A [`ModelSpec`] is a list of layers, each a mixer and a feed-forward network with their norms, and the names of the
//! tensors that they use. The oracle and the runtime read the same spec. A new family is one file under `spec/` that
//! turns metadata into a `ModelSpec`; nothing else knows a family's name.
//!
//! Invariant: a spec that was returned has been checked against the file: every tensor it names exists with the shape
//! that it says, the file has no others, no key asks for what is not computed, and no dimension is zero. Nothing is
//! allocated by a number that was not checked.

mod checks;
mod ernie4_5_moe;
mod gemma2;
mod gemma3;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitemoe;
mod llama;
mod minicpm;
mod mistral3;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;
mod read;
mod smollm3;
mod tensors;

pub(crate) use checks::values;
use zllm_kernels::backend::{Activation, KvLayer, Rope, Routing};

use crate::{
    gguf::{GgufError, GgufFile},
    pooling::Pooling,
};

/// A whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `general.architecture`
    pub architecture: String,
    /// `general.name`, or the architecture
    pub name: String,
    /// Values of a hidden row.
    pub width: usize,
    /// Rows of the embedding and of the logits.
    pub vocab_size: usize,
    /// Positions that the model was made for.
    pub context_length: usize,
    /// The embedding matrix, `vocab_size` rows of `width`.
    pub embedding: String,
    /// Factor on each embedded row.
    pub embedding_scale: f32,
    /// First to last.
    pub layers: Vec<LayerSpec>,
    /// Before the head.
    pub output_norm: NormSpec,
    /// Hidden row to logits; its weight may be the embedding (tied).
    pub head: LinearSpec,
    /// Factor on the logits, before their cap.
    pub logit_scale: f32,
    /// `cap * tanh(logit / cap)`
    pub logit_soft_cap: Option<f32>,
    /// What makes an embedding of the rows before the head. An error is the number of a way that makes none.
    pub pooling: Result<Pooling, u64>,
}

/// `y = scale * weight x + bias`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// Tensor name.
    pub weight: String,
    /// Its first row here: a fused tensor holds several matrices, one after the other.
    pub first_row: usize,
    /// All rows of the tensor; `outputs` unless it is fused.
    pub tensor_rows: usize,
    /// Tensor name of one value, the scale of the whole weight; some block formats have one.
    pub scale: Option<String>,
    /// Tensor name of a vector of `tensor_rows`.
    pub bias: Option<String>,
    /// Columns of the weight.
    pub inputs: usize,
    /// Rows of the weight that are used.
    pub outputs: usize,
}

/// The same product once for each expert: weight, scale and bias have one more dimension, `experts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLinearSpec {
    /// What one expert computes.
    pub each: LinearSpec,
    /// How many there are.
    pub experts: usize,
}

/// Root-mean-square norm.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Tensor name of a vector.
    pub weight: String,
    /// Its length.
    pub len: usize,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// One residual layer: `x += residual_scale * post(mixer(pre(x)))`, then the same with the feed-forward network.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Before the mixer.
    pub mixer_norm: Option<NormSpec>,
    /// What mixes positions.
    pub mixer: Mixer,
    /// After the mixer, before the residual sum.
    pub mixer_post_norm: Option<NormSpec>,
    /// Before the feed-forward network.
    pub ffn_norm: Option<NormSpec>,
    /// What works on each position alone.
    pub ffn: Ffn,
    /// After the feed-forward network, before the residual sum.
    pub ffn_post_norm: Option<NormSpec>,
    /// Factor on what both add.
    pub residual_scale: f32,
}

/// What mixes positions. Latent attention and recurrent mixers will be further variants.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention with grouped heads.
    Attention(AttentionSpec),
}

/// Softmax attention with grouped heads and rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of a query or key head.
    pub key_dim: usize,
    /// Values of a value head.
    pub value_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// A row at position `p` sees keys above `p - window`.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)`
    pub soft_cap: Option<f32>,
    /// Tensor name of a score for each query head that takes part in the softmax and has no value.
    pub sinks: Option<String>,
    /// Turns queries and keys; `None`: positions are not marked.
    pub rope: Option<Rope>,
    /// Factor on turned queries that grows with the position.
    pub query_growth: Option<QueryGrowth>,
    /// Norm of each run of `len` query values, before rope: of each head, or of the whole row.
    pub query_norm: Option<NormSpec>,
    /// The same for keys.
    pub key_norm: Option<NormSpec>,
    /// Hidden to queries.
    pub query: LinearSpec,
    /// Hidden to keys.
    pub key: LinearSpec,
    /// Hidden to values.
    pub value: LinearSpec,
    /// Heads back to hidden.
    pub output: LinearSpec,
}

/// Queries at position `p` are multiplied by `1 + strength * ln(1 + floor(p / step))`: 1 up to `step`, then ever sharper,
/// against the dilution of attention over long contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Positions from one factor to the next.
    pub step: usize,
    /// How fast the factor grows.
    pub strength: f32,
}

impl QueryGrowth {
    /// The factor at `position`.
    pub fn factor(self, position: usize) -> f32 {
        1.0 + self.strength * ((position / self.step + 1) as f32).ln()
    }
}

/// What works on each position alone.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a model has one for each layer, and a box would be in every pattern"
)]
pub enum Ffn {
    /// One network for every position.
    Gated(GatedFfn),
    /// Many networks, of which each position uses a few.
    Experts(ExpertsFfn),
}

/// `down(activation(gate(x), up(x)))`
#[derive(Clone, Debug, PartialEq)]
pub struct GatedFfn {
    /// What the gate goes through, and how it meets `up`.
    pub activation: Activation,
    /// Hidden to the gate.
    pub gate: LinearSpec,
    /// Hidden to what is gated.
    pub up: LinearSpec,
    /// Back to hidden.
    pub down: LinearSpec,
}

/// The sum of the chosen experts, each with its weight, and of the shared one.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsFfn {
    /// Hidden to a score for each expert.
    pub router: LinearSpec,
    /// How the scores choose.
    pub routing: Routing,
    /// Tensor name of a vector, one value an expert: added to the scores for the choice alone.
    pub choice_bias: Option<String>,
    /// As in [`GatedFfn`].
    pub activation: Activation,
    /// Hidden to the gate.
    pub gate: ExpertLinearSpec,
    /// Hidden to what is gated.
    pub up: ExpertLinearSpec,
    /// Back to hidden.
    pub down: ExpertLinearSpec,
    /// What every position uses beside them.
    pub shared: Option<SharedExpert>,
}

/// An expert that every position uses.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// The network.
    pub ffn: GatedFfn,
    /// Hidden to one value, whose sigmoid is a factor on the network's output.
    pub gate: Option<LinearSpec>,
}

/// Why a file is not a model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A family that nobody wrote a spec for.
    #[error("{file}: architecture {architecture:?} is not supported; supported are {supported}")]
    UnknownArchitecture {
        /// File name.
        file: String,
        /// What the file says.
        architecture: String,
        /// What would work.
        supported: String,
    },
    /// A number that makes no model.
    #[error("{file}: {key} is {found}; {expected}")]
    BadValue {
        /// File name.
        file: String,
        /// Metadata key or tensor name.
        key: String,
        /// Its value.
        found: String,
        /// What would work.
        expected: String,
    },
    /// A tensor that the family does not use.
    #[error(
        "{file}: tensor {tensor} has no place in a {architecture} model; a variant that computes more is not supported"
    )]
    UnknownTensor {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
        /// What the file says it is.
        architecture: String,
    },
    /// A tensor of the wrong shape.
    #[error("{file}: tensor {tensor} has shape {found:?}; {expected:?} follows from the metadata")]
    BadShape {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Columns, rows.
        found: Vec<usize>,
        /// Columns, rows.
        expected: Vec<usize>,
    },
}

/// Turns a file's metadata into the spec of a family.
type Family = fn(&read::Reader<'_>) -> Result<ModelSpec, SpecError>;

/// Every family: what `general.architecture` says, and who reads it.
const FAMILIES: &[(&str, Family)] = &[
    ("ernie4_5-moe", ernie4_5_moe::read),
    ("gemma2", gemma2::read),
    ("gemma3", gemma3::read),
    ("glm4", glm4::read),
    ("glm4moe", glm4moe::read),
    ("gpt-oss", gpt_oss::read),
    ("granite", granite::read),
    ("granitemoe", granitemoe::read),
    ("llama", llama::read),
    ("minicpm", minicpm::read),
    ("mistral3", mistral3::read),
    ("olmo2", olmo2::read),
    ("olmoe", olmoe::read),
    ("phi3", phi3::read),
    ("qwen2", qwen2::read),
    ("qwen2moe", qwen2moe::read),
    ("qwen3", qwen3::read),
    ("qwen3moe", qwen3moe::read),
    ("smollm3", smollm3::read),
];

impl ModelSpec {
    /// Reads and checks the spec of `file`, for contexts of at most `context_limit` positions (`None`: the model's own
    /// limit).
    ///
    /// # Errors
    /// An unknown family, a missing key or tensor, a value or shape that makes no model; each names what and where.
    pub fn read(file: &GgufFile, context_limit: Option<usize>) -> Result<Self, SpecError> {
        let architecture = file.architecture();
        let Some((_, family)) = FAMILIES.iter().find(|(name, _)| *name == architecture) else {
            return Err(SpecError::UnknownArchitecture {
                file: file.path().display().to_string(),
                architecture: architecture.to_owned(),
                supported: FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            });
        };
        let reader = read::Reader::new(file, architecture, context_limit);
        let spec = family(&reader)?;
        reader.refuse_what_was_not_asked()?;
        checks::check(&spec, file, |tensor| reader.is_ignored(tensor))?;
        Ok(spec)
    }

    /// The KV shape of each layer.
    pub fn kv_layers(&self) -> Vec<KvLayer> {
        let layer = |layer: &LayerSpec| match &layer.mixer {
            Mixer::Attention(a) => KvLayer { kv_heads: a.kv_heads, k_dim: a.key_dim, v_dim: a.value_dim },
        };
        self.layers.iter().map(layer).collect()
    }
}
