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
mod gemma3;
mod llama;
mod qwen2;
mod read;

pub(crate) use checks::vector;
use zllm_kernels::backend::{Activation, KvLayer, Rope};

use crate::gguf::{GgufError, GgufFile};

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
    /// `cap * tanh(logit / cap)`
    pub logit_soft_cap: Option<f32>,
}

/// `y = weight x + bias`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// Tensor name, `outputs` rows of `inputs`.
    pub weight: String,
    /// Tensor name of a vector of `outputs`.
    pub bias: Option<String>,
    /// Columns of the weight.
    pub inputs: usize,
    /// Rows of the weight.
    pub outputs: usize,
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

/// One residual layer: `x += post(mixer(pre(x)))`, then the same with the feed-forward network.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Before the mixer.
    pub mixer_norm: NormSpec,
    /// What mixes positions.
    pub mixer: Mixer,
    /// After the mixer, before the residual sum (sandwich norms).
    pub mixer_post_norm: Option<NormSpec>,
    /// Before the feed-forward network.
    pub ffn_norm: NormSpec,
    /// What works on each position alone.
    pub ffn: Ffn,
    /// After the feed-forward network, before the residual sum.
    pub ffn_post_norm: Option<NormSpec>,
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
    /// Turns queries and keys.
    pub rope: Rope,
    /// Norm of each query head, before rope.
    pub query_norm: Option<NormSpec>,
    /// Norm of each key head, before rope.
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

/// What works on each position alone. Experts will be a further variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    /// `down(activation(gate(x)) * up(x))`
    Gated {
        /// What the gate goes through.
        activation: Activation,
        /// Hidden to the gate.
        gate: LinearSpec,
        /// Hidden to what is gated.
        up: LinearSpec,
        /// Back to hidden.
        down: LinearSpec,
    },
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
const FAMILIES: [(&str, Family); 3] =
    [("llama", llama::read as Family), ("qwen2", qwen2::read), ("gemma3", gemma3::read)];

impl ModelSpec {
    /// Reads and checks the spec of `file`.
    ///
    /// # Errors
    /// An unknown family, a missing key or tensor, a value or shape that makes no model; each names what and where.
    pub fn read(file: &GgufFile) -> Result<Self, SpecError> {
        let architecture = file.architecture();
        let Some((_, family)) = FAMILIES.iter().find(|(name, _)| *name == architecture) else {
            return Err(SpecError::UnknownArchitecture {
                file: file.path().display().to_string(),
                architecture: architecture.to_owned(),
                supported: FAMILIES.map(|(name, _)| name).join(", "),
            });
        };
        let reader = read::Reader::new(file, architecture);
        reader.check_keys()?;
        let spec = family(&reader)?;
        checks::check(&spec, file)?;
        Ok(spec)
    }

    /// The KV shape of each layer.
    pub fn kv_layers(&self) -> Vec<KvLayer> {
        let layer = |layer: &LayerSpec| match &layer.mixer {
            Mixer::Attention(a) => KvLayer { kv_heads: a.kv_heads, k_dim: a.key_dim, v_dim: a.value_dim },
        };
        self.layers.iter().map(layer).collect()
    }

    /// Every tensor that the model uses; a tied head appears once.
    pub fn tensor_names(&self) -> Vec<&str> {
        fn linear(l: &LinearSpec) -> impl Iterator<Item = &str> {
            std::iter::once(l.weight.as_str()).chain(l.bias.as_deref())
        }
        let mut names = vec![self.embedding.as_str(), self.output_norm.weight.as_str()];
        names.extend(linear(&self.head).filter(|name| *name != self.embedding));
        for layer in &self.layers {
            let Mixer::Attention(a) = &layer.mixer;
            let Ffn::Gated { gate, up, down, .. } = &layer.ffn;
            let norms = [Some(&layer.mixer_norm), layer.mixer_post_norm.as_ref(), Some(&layer.ffn_norm)];
            let norms = norms.into_iter().chain([layer.ffn_post_norm.as_ref(), a.query_norm.as_ref()]);
            names.extend(norms.chain([a.key_norm.as_ref()]).flatten().map(|norm| norm.weight.as_str()));
            for l in [&a.query, &a.key, &a.value, &a.output, gate, up, down] {
                names.extend(linear(l));
            }
        }
        names
    }
}
