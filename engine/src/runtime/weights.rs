//! Binding: the tensors that a spec names for a stage, brought to a device.

use std::{collections::BTreeMap, ops::Range};

use zllm_kernels::backend::{Activation, AttentionShape, Backend, RopeId, Routing, WeightSource};

use super::{RuntimeError, content::Content};
use crate::{
    gguf::GgufFile,
    spec::{
        AttentionSpec, ExpertLinearSpec, ExpertsFfn, Ffn, GatedFfn, LayerSpec, LinearSpec, Mixer, ModelSpec,
        NormSpec, QueryGrowth, SpecError, values,
    },
};

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights that are on the device.
    pub done_bytes: u64,
    /// Bytes of weights in all.
    pub total_bytes: u64,
}

/// Every weight of a stage.
pub(super) struct Weights<B: Backend> {
    /// The first stage's, and the last one's too where the head is tied to it.
    pub(super) embedding: Option<B::Weight>,
    pub(super) layers: Vec<Layer<B>>,
    /// The last stage's.
    pub(super) head: Option<Head<B>>,
    pub(super) bytes: usize,
    /// The hash of each tensor in the file's own bytes; see [`Content`].
    pub(super) content: BTreeMap<String, [u8; 32]>,
}

/// From hidden rows to logits.
pub(super) struct Head<B: Backend> {
    pub(super) norm: Norm<B>,
    /// `None`: the embedding (tied).
    pub(super) weight: Option<B::Weight>,
    pub(super) scale: f32,
    pub(super) bias: Option<B::Tensor>,
}

pub(super) struct Norm<B: Backend> {
    pub(super) weight: B::Tensor,
    pub(super) epsilon: f32,
}

pub(super) struct Linear<B: Backend> {
    pub(super) weight: B::Weight,
    pub(super) scale: f32,
    pub(super) bias: Option<B::Tensor>,
    pub(super) outputs: usize,
}

/// One product for each expert.
pub(super) struct ExpertLinear<B: Backend> {
    pub(super) weights: Vec<B::Weight>,
    /// One value an expert.
    pub(super) scales: Option<B::Tensor>,
    /// One row an expert.
    pub(super) bias: Option<B::Tensor>,
    pub(super) outputs: usize,
}

pub(super) struct Layer<B: Backend> {
    pub(super) mixer_norm: Option<Norm<B>>,
    pub(super) attention: Attention<B>,
    pub(super) mixer_post_norm: Option<Norm<B>>,
    pub(super) ffn_norm: Option<Norm<B>>,
    pub(super) ffn: FfnWeights<B>,
    pub(super) ffn_post_norm: Option<Norm<B>>,
    pub(super) residual_scale: f32,
}

pub(super) struct Attention<B: Backend> {
    pub(super) shape: AttentionShape,
    pub(super) sinks: Option<B::Tensor>,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) rope: Option<RopeId>,
    pub(super) query_growth: Option<QueryGrowth>,
    pub(super) query_norm: Option<Norm<B>>,
    pub(super) key_norm: Option<Norm<B>>,
    pub(super) query: Linear<B>,
    pub(super) key: Linear<B>,
    pub(super) value: Linear<B>,
    pub(super) output: Linear<B>,
}

pub(super) enum FfnWeights<B: Backend> {
    Gated(Gated<B>),
    Experts(Experts<B>),
}

pub(super) struct Gated<B: Backend> {
    pub(super) activation: Activation,
    pub(super) gate: Linear<B>,
    pub(super) up: Linear<B>,
    pub(super) down: Linear<B>,
}

pub(super) struct Experts<B: Backend> {
    pub(super) router: Linear<B>,
    pub(super) routing: Routing,
    pub(super) choice_bias: Option<B::Tensor>,
    pub(super) activation: Activation,
    pub(super) gate: ExpertLinear<B>,
    pub(super) up: ExpertLinear<B>,
    pub(super) down: ExpertLinear<B>,
    /// The network that every row uses, and the gate on what it gives.
    pub(super) shared: Option<(Gated<B>, Option<Linear<B>>)>,
}

impl<B: Backend> Weights<B> {
    pub(super) fn load(
        backend: &mut B,
        file: &GgufFile,
        spec: &ModelSpec,
        layers: Range<usize>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, RuntimeError> {
        let names = spec.stage_tensor_names(layers.clone());
        let total: u64 =
            names.iter().filter_map(|name| file.tensor(name)).map(|t| t.bytes().len() as u64).sum();
        backend.reserve_weights(total as usize)?;
        let mut loader = Loader {
            backend,
            file,
            progress,
            report: LoadProgress { done_bytes: 0, total_bytes: total },
            bytes: 0,
            content: Content::default(),
        };
        let (is_first, is_last) = (layers.start == 0, layers.end == spec.layers.len());
        let is_tied = spec.head.weight == spec.embedding;
        let embedding = (is_first || is_last && is_tied)
            .then(|| loader.rows(&spec.embedding, spec.width, 0..spec.vocab_size))
            .transpose()?;
        let head = is_last.then(|| loader.head(&spec.head, is_tied, &spec.output_norm)).transpose()?;
        let layers = &spec.layers[layers];
        let layers = layers.iter().map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?;
        let (bytes, content) = (loader.bytes, loader.content.finish());
        Ok(Self { embedding, layers, head, bytes, content })
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a mut B,
    file: &'a GgufFile,
    progress: &'a mut dyn FnMut(LoadProgress),
    report: LoadProgress,
    bytes: usize,
    content: Content<'a>,
}

impl<B: Backend> Loader<'_, B> {
    fn head(&mut self, head: &LinearSpec, is_tied: bool, norm: &NormSpec) -> Result<Head<B>, RuntimeError> {
        let own = |loader: &mut Self| loader.rows(&head.weight, head.inputs, 0..head.outputs);
        Ok(Head {
            weight: if is_tied { None } else { Some(own(self)?) },
            scale: self.scale(head)?,
            bias: self.bias(head)?,
            norm: self.norm(norm)?,
        })
    }

    fn layer(&mut self, layer: &LayerSpec) -> Result<Layer<B>, RuntimeError> {
        let Mixer::Attention(attention) = &layer.mixer;
        Ok(Layer {
            mixer_norm: self.opt_norm(layer.mixer_norm.as_ref())?,
            attention: self.attention(attention)?,
            mixer_post_norm: self.opt_norm(layer.mixer_post_norm.as_ref())?,
            ffn_norm: self.opt_norm(layer.ffn_norm.as_ref())?,
            ffn: match &layer.ffn {
                Ffn::Gated(ffn) => FfnWeights::Gated(self.gated(ffn)?),
                Ffn::Experts(ffn) => FfnWeights::Experts(self.experts(ffn)?),
            },
            ffn_post_norm: self.opt_norm(layer.ffn_post_norm.as_ref())?,
            residual_scale: layer.residual_scale,
        })
    }

    fn attention(&mut self, a: &AttentionSpec) -> Result<Attention<B>, RuntimeError> {
        Ok(Attention {
            shape: AttentionShape { heads: a.heads, scale: a.scale, window: a.window, soft_cap: a.soft_cap },
            sinks: a.sinks.as_ref().map(|name| self.vector(name, &[a.heads], 0..a.heads)).transpose()?,
            key_dim: a.key_dim,
            value_dim: a.value_dim,
            rope: a.rope.as_ref().map(|rope| self.backend.prepare_rope(rope)),
            query_growth: a.query_growth,
            query_norm: self.opt_norm(a.query_norm.as_ref())?,
            key_norm: self.opt_norm(a.key_norm.as_ref())?,
            query: self.linear(&a.query)?,
            key: self.linear(&a.key)?,
            value: self.linear(&a.value)?,
            output: self.linear(&a.output)?,
        })
    }

    fn gated(&mut self, ffn: &GatedFfn) -> Result<Gated<B>, RuntimeError> {
        Ok(Gated {
            activation: ffn.activation,
            gate: self.linear(&ffn.gate)?,
            up: self.linear(&ffn.up)?,
            down: self.linear(&ffn.down)?,
        })
    }

    fn experts(&mut self, ffn: &ExpertsFfn) -> Result<Experts<B>, RuntimeError> {
        let experts = ffn.routing.experts;
        let choice_bias = ffn.choice_bias.as_ref();
        Ok(Experts {
            router: self.linear(&ffn.router)?,
            routing: ffn.routing,
            choice_bias: choice_bias.map(|name| self.vector(name, &[experts], 0..experts)).transpose()?,
            activation: ffn.activation,
            gate: self.expert_linear(&ffn.gate)?,
            up: self.expert_linear(&ffn.up)?,
            down: self.expert_linear(&ffn.down)?,
            shared: match &ffn.shared {
                None => None,
                Some(shared) => {
                    let gate = shared.gate.as_ref().map(|gate| self.linear(gate)).transpose()?;
                    Some((self.gated(&shared.ffn)?, gate))
                }
            },
        })
    }

    fn linear(&mut self, linear: &LinearSpec) -> Result<Linear<B>, RuntimeError> {
        let rows = linear.first_row..linear.first_row + linear.outputs;
        Ok(Linear {
            weight: self.rows(&linear.weight, linear.inputs, rows)?,
            scale: self.scale(linear)?,
            bias: self.bias(linear)?,
            outputs: linear.outputs,
        })
    }

    fn expert_linear(&mut self, linear: &ExpertLinearSpec) -> Result<ExpertLinear<B>, RuntimeError> {
        let ExpertLinearSpec { each, experts } = linear;
        let rows = |expert: usize| {
            let first = expert * each.tensor_rows + each.first_row;
            first..first + each.outputs
        };
        let parts: Vec<_> = (0..*experts).map(rows).collect();
        let weights = self.matrices(&each.weight, each.inputs, &parts)?;
        let scales =
            each.scale.as_ref().map(|name| self.vector(name, &[*experts], 0..*experts)).transpose()?;
        let bias = match &each.bias {
            None => None,
            Some(name) => {
                let all = self.values(name, &[each.tensor_rows, *experts])?;
                let own: Vec<f32> = (0..*experts).flat_map(|e| &all[rows(e)]).copied().collect();
                let mut tensor = self.backend.tensor(*experts, each.outputs)?;
                self.backend.host_rows(&mut tensor, *experts).copy_from_slice(&own);
                Some(tensor)
            }
        };
        Ok(ExpertLinear { weights, scales, bias, outputs: each.outputs })
    }

    /// The rows `rows` of `cols` columns of the tensor `name`.
    fn rows(&mut self, name: &str, cols: usize, rows: Range<usize>) -> Result<B::Weight, RuntimeError> {
        let mut weights = self.matrices(name, cols, &[rows])?;
        Ok(weights.pop().expect("a weight for each part"))
    }

    /// Several parts of one tensor, each a matrix of as many rows.
    fn matrices(
        &mut self,
        name: &str,
        cols: usize,
        parts: &[Range<usize>],
    ) -> Result<Vec<B::Weight>, RuntimeError> {
        let tensor = self.file.require_tensor(name).map_err(SpecError::from)?;
        let format = tensor.format().map_err(SpecError::from)?;
        let row_bytes = tensor.bytes().len() / tensor.rows();
        let content = self.content.tensor(tensor);
        let release =
            |first: usize| move |part: Range<usize>| content.copied(first + part.start..first + part.end);
        let releases: Vec<_> = parts.iter().map(|rows| release(rows.start * row_bytes)).collect();
        let source = |(rows, release): (&Range<usize>, _)| WeightSource {
            name,
            format,
            rows: rows.len(),
            cols,
            bytes: &tensor.bytes()[rows.start * row_bytes..rows.end * row_bytes],
            release,
        };
        let sources: Vec<_> =
            parts.iter().zip(&releases).map(|(rows, release)| source((rows, release as _))).collect();
        let weights = self.backend.weights(&sources)?;
        let copied = sources.iter().map(|source| source.bytes.len()).sum();
        self.bytes += weights.iter().map(|weight| self.backend.weight_bytes(weight)).sum::<usize>();
        self.done(copied);
        Ok(weights)
    }

    fn scale(&mut self, linear: &LinearSpec) -> Result<f32, RuntimeError> {
        linear.scale.as_ref().map_or(Ok(1.0), |name| Ok(self.values(name, &[1])?[0]))
    }

    fn bias(&mut self, linear: &LinearSpec) -> Result<Option<B::Tensor>, RuntimeError> {
        let Some(name) = &linear.bias else { return Ok(None) };
        let own = linear.first_row..linear.first_row + linear.outputs;
        Ok(Some(self.vector(name, &[linear.tensor_rows], own)?))
    }

    fn opt_norm(&mut self, norm: Option<&NormSpec>) -> Result<Option<Norm<B>>, RuntimeError> {
        norm.map(|norm| self.norm(norm)).transpose()
    }

    fn norm(&mut self, norm: &NormSpec) -> Result<Norm<B>, RuntimeError> {
        let weight = self.vector(&norm.weight, &[norm.len], 0..norm.len)?;
        Ok(Norm { weight, epsilon: norm.epsilon })
    }

    /// The values `own` of a tensor of shape `dims`.
    fn vector(&mut self, name: &str, dims: &[usize], own: Range<usize>) -> Result<B::Tensor, RuntimeError> {
        let values = self.values(name, dims)?;
        Ok(self.backend.vector(&values[own])?)
    }

    fn values(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, RuntimeError> {
        let values = values(self.file, name, dims)?;
        self.content.tensor(self.file.require_tensor(name).map_err(SpecError::from)?);
        self.bytes += values.len() * size_of::<f32>();
        self.done(values.len() * size_of::<f32>());
        Ok(values)
    }

    fn done(&mut self, bytes: usize) {
        // Vectors become f32, so that the sum may pass the file's bytes.
        let done = self.report.done_bytes + bytes as u64;
        self.report.done_bytes = done.min(self.report.total_bytes);
        (self.progress)(self.report);
    }
}
