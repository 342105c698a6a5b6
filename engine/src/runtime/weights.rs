//! Binding: the tensors that a spec names, brought to a device.

use std::ops::Range;

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

/// Every weight of a model.
pub(super) struct Weights<B: Backend> {
    pub(super) embedding: B::Weight,
    /// `None`: the embedding (tied).
    pub(super) head: Option<B::Weight>,
    pub(super) head_scale: f32,
    pub(super) head_bias: Option<B::Tensor>,
    pub(super) output_norm: Norm<B>,
    pub(super) layers: Vec<Layer<B>>,
    pub(super) bytes: usize,
    /// The hash of all tensors in the file's own bytes; see [`Content`].
    pub(super) content: [u8; 32],
}

pub(super) struct Norm<B: Backend> {
    pub(super) weight: B::Tensor,
    pub(super) len: usize,
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
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, RuntimeError> {
        let names = spec.tensor_names();
        let total = names.iter().filter_map(|name| file.tensor(name)).map(|t| t.bytes().len() as u64).sum();
        let mut loader = Loader {
            backend,
            file,
            progress,
            report: LoadProgress { done_bytes: 0, total_bytes: total },
            bytes: 0,
            content: Content::default(),
        };
        let embedding = loader.rows(&spec.embedding, spec.width, 0..spec.vocab_size)?;
        let head = if spec.head.weight == spec.embedding {
            None
        } else {
            Some(loader.rows(&spec.head.weight, spec.head.inputs, 0..spec.head.outputs)?)
        };
        let head_scale = loader.scale(&spec.head)?;
        let head_bias = loader.bias(&spec.head)?;
        let output_norm = loader.norm(&spec.output_norm)?;
        let layers = spec.layers.iter().map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?;
        let (bytes, content) = (loader.bytes, loader.content.finish());
        Ok(Self { embedding, head, head_scale, head_bias, output_norm, layers, bytes, content })
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
        Ok(Norm { weight, len: norm.len, epsilon: norm.epsilon })
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
