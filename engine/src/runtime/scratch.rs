//! The activations of one step: every tensor has room for the most rows that a step may have, and layers of the same
//! shape share theirs.

use zllm_kernels::backend::{Backend, DeviceError};

use super::{
    RuntimeLimits,
    weights::{Attention, Experts, FfnWeights, Gated, Weights},
};
use crate::spec::ModelSpec;

pub(super) struct Scratch<B: Backend> {
    pub(super) hidden: B::Tensor,
    /// What the experts of a layer read.
    pub(super) normed: B::Tensor,
    /// What is not added to the hidden rows by its own product.
    pub(super) output: B::Tensor,
    /// The last stage's.
    pub(super) head: Option<HeadScratch<B>>,
    pub(super) attention: Sets<[usize; 4], AttentionScratch<B>>,
    /// By the columns of the gate.
    pub(super) gated: Sets<usize, GatedScratch<B>>,
    /// By experts, experts used, columns of their gates and whether there is a shared one.
    pub(super) experts: Sets<(usize, usize, usize, bool), ExpertsScratch<B>>,
}

/// Rows whose logits are wanted.
pub(super) struct HeadScratch<B: Backend> {
    pub(super) picked: B::Tensor,
    pub(super) logits: B::Tensor,
}

pub(super) struct AttentionScratch<B: Backend> {
    pub(super) queries: B::Tensor,
    pub(super) keys: B::Tensor,
    pub(super) values: B::Tensor,
    pub(super) mixed: B::Tensor,
    /// A factor a row, for layers whose queries grow with the position.
    pub(super) growth: Vec<f32>,
}

pub(super) struct GatedScratch<B: Backend> {
    pub(super) gate: B::Tensor,
    pub(super) up: B::Tensor,
}

pub(super) struct ExpertsScratch<B: Backend> {
    pub(super) scores: B::Tensor,
    pub(super) routes: B::Routes,
    /// Rows for each (row, chosen expert), as are the next two.
    pub(super) gate: B::Tensor,
    pub(super) up: B::Tensor,
    pub(super) outputs: B::Tensor,
    /// What the shared expert gives, and its gate.
    pub(super) shared: Option<(B::Tensor, B::Tensor)>,
}

/// One set of tensors for each different shape.
pub(super) struct Sets<K, T>(Vec<(K, T)>);

impl<K: PartialEq, T> Sets<K, T> {
    fn add(&mut self, key: K, make: impl FnOnce() -> Result<T, DeviceError>) -> Result<(), DeviceError> {
        if !self.0.iter().any(|(known, _)| *known == key) {
            self.0.push((key, make()?));
        }
        Ok(())
    }

    /// The tensors for a shape of the model.
    pub(super) fn of(&mut self, key: &K) -> &mut T {
        let found = self.0.iter_mut().find(|(known, _)| known == key);
        &mut found.expect("scratch for every shape of the model").1
    }
}

impl<B: Backend> Attention<B> {
    /// Columns of queries, keys, values and mixed values.
    pub(super) fn scratch_key(&self) -> [usize; 4] {
        [self.query.outputs, self.key.outputs, self.value.outputs, self.shape.heads * self.value_dim]
    }
}

impl<B: Backend> Gated<B> {
    pub(super) fn scratch_key(&self) -> usize {
        self.gate.outputs
    }
}

impl<B: Backend> Experts<B> {
    pub(super) fn scratch_key(&self) -> (usize, usize, usize, bool) {
        (self.routing.experts, self.routing.used, self.gate.outputs, self.shared.is_some())
    }
}

impl<B: Backend> Scratch<B> {
    pub(super) fn new(
        backend: &mut B,
        spec: &ModelSpec,
        weights: &Weights<B>,
        limits: RuntimeLimits,
    ) -> Result<Self, DeviceError> {
        let rows = limits.step_rows;

        let mut scratch = Self {
            hidden: backend.tensor(rows, spec.width)?,
            normed: backend.tensor(rows, spec.width)?,
            output: backend.tensor(rows, spec.width)?,
            head: match &weights.head {
                None => None,
                Some(_) => Some(HeadScratch {
                    picked: backend.tensor(limits.logit_rows, spec.width)?,
                    logits: backend.tensor(limits.logit_rows, spec.vocab_size)?,
                }),
            },
            attention: Sets(Vec::new()),
            gated: Sets(Vec::new()),
            experts: Sets(Vec::new()),
        };
        for layer in &weights.layers {
            scratch.attention(backend, &layer.attention, rows)?;
            match &layer.ffn {
                FfnWeights::Gated(ffn) => scratch.gated(backend, ffn, rows)?,
                FfnWeights::Experts(ffn) => scratch.experts(backend, ffn, rows, spec.width)?,
            }
        }
        Ok(scratch)
    }

    fn attention(&mut self, backend: &mut B, a: &Attention<B>, rows: usize) -> Result<(), DeviceError> {
        let [queries, keys, values, mixed] = a.scratch_key();
        self.attention.add(a.scratch_key(), || {
            Ok(AttentionScratch {
                queries: backend.tensor(rows, queries)?,
                keys: backend.tensor(rows, keys)?,
                values: backend.tensor(rows, values)?,
                mixed: backend.tensor(rows, mixed)?,
                growth: if a.query_growth.is_some() { Vec::with_capacity(rows) } else { Vec::new() },
            })
        })
    }

    fn gated(&mut self, backend: &mut B, ffn: &Gated<B>, rows: usize) -> Result<(), DeviceError> {
        let cols = ffn.gate.outputs;
        self.gated.add(ffn.scratch_key(), || {
            Ok(GatedScratch { gate: backend.tensor(rows, cols)?, up: backend.tensor(rows, cols)? })
        })
    }

    fn experts(
        &mut self,
        backend: &mut B,
        ffn: &Experts<B>,
        rows: usize,
        width: usize,
    ) -> Result<(), DeviceError> {
        if let Some((shared, _)) = &ffn.shared {
            self.gated(backend, shared, rows)?;
        }
        let pairs = rows * ffn.routing.used;
        self.experts.add(ffn.scratch_key(), || {
            Ok(ExpertsScratch {
                scores: backend.tensor(rows, ffn.routing.experts)?,
                routes: backend.routes(rows, ffn.routing.used)?,
                gate: backend.tensor(pairs, ffn.gate.outputs)?,
                up: backend.tensor(pairs, ffn.up.outputs)?,
                outputs: backend.tensor(pairs, width)?,
                shared: match &ffn.shared {
                    None => None,
                    Some(_) => Some((backend.tensor(rows, width)?, backend.tensor(rows, 1)?)),
                },
            })
        })
    }
}
