//! Binding: the tensors that a spec names, brought to a device.

use std::ops::Range;

use zllm_kernels::backend::{Activation, AttentionShape, Backend, RopeId, WeightSource};

use super::RuntimeError;
use crate::{
    gguf::GgufFile,
    spec::{Ffn, LayerSpec, LinearSpec, Mixer, ModelSpec, NormSpec, vector},
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
    pub(super) head_bias: Option<B::Tensor>,
    pub(super) output_norm: Norm<B>,
    pub(super) layers: Vec<Layer<B>>,
    pub(super) bytes: usize,
}

pub(super) struct Norm<B: Backend> {
    pub(super) weight: B::Tensor,
    pub(super) epsilon: f32,
}

pub(super) struct Linear<B: Backend> {
    pub(super) weight: B::Weight,
    pub(super) bias: Option<B::Tensor>,
    outputs: usize,
}

pub(super) struct Layer<B: Backend> {
    pub(super) mixer_norm: Norm<B>,
    pub(super) attention: Attention<B>,
    pub(super) mixer_post_norm: Option<Norm<B>>,
    pub(super) ffn_norm: Norm<B>,
    pub(super) ffn: Gated<B>,
    pub(super) ffn_post_norm: Option<Norm<B>>,
    /// Which set of scratch tensors fits this layer.
    pub(super) scratch: usize,
}

pub(super) struct Attention<B: Backend> {
    pub(super) shape: AttentionShape,
    pub(super) key_dim: usize,
    value_dim: usize,
    pub(super) rope: RopeId,
    pub(super) query_norm: Option<Norm<B>>,
    pub(super) key_norm: Option<Norm<B>>,
    pub(super) query: Linear<B>,
    pub(super) key: Linear<B>,
    pub(super) value: Linear<B>,
    pub(super) output: Linear<B>,
}

pub(super) struct Gated<B: Backend> {
    pub(super) activation: Activation,
    pub(super) gate: Linear<B>,
    pub(super) up: Linear<B>,
    pub(super) down: Linear<B>,
}

impl<B: Backend> Layer<B> {
    /// Columns of queries, keys, values, mixed values and gate.
    pub(super) fn scratch_shape(&self) -> [usize; 5] {
        let a = &self.attention;
        [a.query.outputs, a.key.outputs, a.value.outputs, a.shape.heads * a.value_dim, self.ffn.gate.outputs]
    }
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
        };
        let embedding = loader.weight(&spec.embedding, spec.width, spec.vocab_size)?;
        let head = if spec.head.weight == spec.embedding {
            None
        } else {
            Some(loader.weight(&spec.head.weight, spec.head.inputs, spec.head.outputs)?)
        };
        let head_bias = loader.bias(&spec.head)?;
        let output_norm = loader.norm(&spec.output_norm)?;
        let mut layers: Vec<Layer<B>> = Vec::with_capacity(spec.layers.len());
        let mut shapes = Vec::new();
        for layer in &spec.layers {
            let mut layer = loader.layer(layer)?;
            let shape = layer.scratch_shape();
            layer.scratch = shapes.iter().position(|s| *s == shape).unwrap_or_else(|| {
                shapes.push(shape);
                shapes.len() - 1
            });
            layers.push(layer);
        }
        let bytes = loader.bytes;
        Ok(Self { embedding, head, head_bias, output_norm, layers, bytes })
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a mut B,
    file: &'a GgufFile,
    progress: &'a mut dyn FnMut(LoadProgress),
    report: LoadProgress,
    bytes: usize,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, layer: &LayerSpec) -> Result<Layer<B>, RuntimeError> {
        let Mixer::Attention(a) = &layer.mixer;
        let Ffn::Gated { activation, gate, up, down } = &layer.ffn;
        Ok(Layer {
            mixer_norm: self.norm(&layer.mixer_norm)?,
            attention: Attention {
                shape: AttentionShape {
                    heads: a.heads,
                    scale: a.scale,
                    window: a.window,
                    soft_cap: a.soft_cap,
                },
                key_dim: a.key_dim,
                value_dim: a.value_dim,
                rope: self.backend.prepare_rope(&a.rope),
                query_norm: a.query_norm.as_ref().map(|n| self.norm(n)).transpose()?,
                key_norm: a.key_norm.as_ref().map(|n| self.norm(n)).transpose()?,
                query: self.linear(&a.query)?,
                key: self.linear(&a.key)?,
                value: self.linear(&a.value)?,
                output: self.linear(&a.output)?,
            },
            mixer_post_norm: layer.mixer_post_norm.as_ref().map(|n| self.norm(n)).transpose()?,
            ffn_norm: self.norm(&layer.ffn_norm)?,
            ffn: Gated {
                activation: *activation,
                gate: self.linear(gate)?,
                up: self.linear(up)?,
                down: self.linear(down)?,
            },
            ffn_post_norm: layer.ffn_post_norm.as_ref().map(|n| self.norm(n)).transpose()?,
            scratch: 0,
        })
    }

    fn linear(&mut self, linear: &LinearSpec) -> Result<Linear<B>, RuntimeError> {
        Ok(Linear {
            weight: self.weight(&linear.weight, linear.inputs, linear.outputs)?,
            bias: self.bias(linear)?,
            outputs: linear.outputs,
        })
    }

    fn weight(&mut self, name: &str, cols: usize, rows: usize) -> Result<B::Weight, RuntimeError> {
        let tensor = self.file.require_tensor(name).map_err(crate::spec::SpecError::from)?;
        let format = tensor.format().map_err(crate::spec::SpecError::from)?;
        let release = |part: Range<usize>| tensor.give_back(part);
        let source = WeightSource { name, format, rows, cols, bytes: tensor.bytes(), release: &release };
        let weight = self.backend.weight(source)?;
        self.bytes += self.backend.weight_bytes(&weight);
        self.done(tensor.bytes().len());
        Ok(weight)
    }

    fn bias(&mut self, linear: &LinearSpec) -> Result<Option<B::Tensor>, RuntimeError> {
        let Some(name) = &linear.bias else { return Ok(None) };
        Ok(Some(self.vector(name, linear.outputs)?))
    }

    fn norm(&mut self, norm: &NormSpec) -> Result<Norm<B>, RuntimeError> {
        Ok(Norm { weight: self.vector(&norm.weight, norm.len)?, epsilon: norm.epsilon })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<B::Tensor, RuntimeError> {
        let values = vector(self.file, name, len)?;
        self.bytes += values.len() * size_of::<f32>();
        self.done(values.len() * size_of::<f32>());
        Ok(self.backend.vector(&values)?)
    }

    fn done(&mut self, bytes: usize) {
        self.report.done_bytes += bytes as u64;
        (self.progress)(self.report);
    }
}
