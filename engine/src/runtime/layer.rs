//! What each part of a layer computes, over the rows of one step.

use zllm_kernels::backend::{Backend, Heads, Input, Product, RoutedInput, RoutedProduct, RowNorm, Span};

use super::{
    scratch::{AttentionScratch, ExpertsScratch, GatedScratch},
    weights::{Attention, ExpertLinear, Experts, Gated, Linear, Norm},
};

/// The rows of a step as a layer sees them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) count: usize,
    /// One a row.
    pub(super) positions: &'a [usize],
    pub(super) spans: &'a [Span<'a>],
}

impl<B: Backend> Attention<B> {
    /// What attention makes of `input`, in `scratch.mixed`: all but the output's product. Keys and values of the rows go to
    /// layer `layer` of `kv`.
    pub(super) fn mix(
        &self,
        backend: &mut B,
        scratch: &mut AttentionScratch<B>,
        kv: &mut B::Kv,
        layer: usize,
        rows: Rows<'_>,
        input: Input<'_, B::Tensor>,
    ) {
        let AttentionScratch { queries, keys, values, mixed, growth: factors } = scratch;
        let products = [self.query.product(queries), self.key.product(keys), self.value.product(values)];
        backend.multiply(input, rows.count, products);
        if self.rope.is_some() || self.query_norm.is_some() || self.key_norm.is_some() {
            let heads = [(&mut *queries, &self.query_norm), (&mut *keys, &self.key_norm)];
            let heads = heads.map(|(tensor, norm)| Heads { tensor, norm: norm.as_ref().map(Norm::of_rows) });
            backend.turn_heads(heads, self.key_dim, rows.positions, self.rope);
        }
        if let Some(growth) = self.query_growth {
            factors.clear();
            factors.extend(rows.positions.iter().map(|p| growth.factor(*p)));
            backend.scale_rows(queries, factors);
        }
        backend.append(kv, layer, rows.spans, keys, values);
        backend.attend(kv, layer, rows.spans, self.shape, self.sinks.as_ref(), queries, mixed);
    }
}

impl<B: Backend> Gated<B> {
    /// Gate and up of `input`, in `scratch`.
    pub(super) fn open(
        &self,
        backend: &mut B,
        scratch: &mut GatedScratch<B>,
        rows: usize,
        input: Input<'_, B::Tensor>,
    ) {
        let GatedScratch { gate, up } = scratch;
        backend.multiply(input, rows, [self.gate.product(gate), self.up.product(up)]);
    }

    /// What the down product multiplies.
    pub(super) fn gated<'a>(&self, scratch: &'a GatedScratch<B>) -> Input<'a, B::Tensor> {
        Input::Gated { gate: &scratch.gate, up: &scratch.up, activation: self.activation }
    }
}

impl<B: Backend> Experts<B> {
    /// Rows are grouped by expert, so that each chosen expert's weights are read once and no other's at all. `output` is
    /// replaced.
    pub(super) fn forward(
        &self,
        backend: &mut B,
        scratch: &mut ExpertsScratch<B>,
        rows: usize,
        input: &B::Tensor,
        output: &mut B::Tensor,
    ) {
        let ExpertsScratch { scores, routes, gate, up, outputs, .. } = scratch;
        backend.multiply(Input::Rows(input), rows, [self.router.product(scores)]);
        backend.route(scores, rows, &self.routing, self.choice_bias.as_ref(), routes);
        let products = [self.gate.product(gate), self.up.product(up)];
        backend.multiply_routed(RoutedInput::Rows(input), routes, products);
        let gated = RoutedInput::Gated { gate, up, activation: self.activation };
        backend.multiply_routed(gated, routes, [self.down.product(outputs)]);
        backend.combine_routed(outputs, routes, output);
    }

    /// Adds what the expert that every row uses gives.
    pub(super) fn add_shared(
        &self,
        backend: &mut B,
        scratch: &mut ExpertsScratch<B>,
        gated: &mut GatedScratch<B>,
        rows: usize,
        input: &B::Tensor,
        output: &mut B::Tensor,
    ) {
        let (Some((ffn, gate)), Some((shared, factors))) = (&self.shared, &mut scratch.shared) else {
            return;
        };
        ffn.open(backend, gated, rows, Input::Rows(input));
        let Some(gate) = gate else {
            let product = Product { added: Some(1.0), ..ffn.down.product(output) };
            return backend.multiply(ffn.gated(gated), rows, [product]);
        };
        backend.multiply(ffn.gated(gated), rows, [ffn.down.product(shared)]);
        backend.multiply(Input::Rows(input), rows, [gate.product(factors)]);
        backend.gate_rows(shared, rows, factors);
        backend.add(output, shared, rows, None, 1.0);
    }
}

impl<B: Backend> Norm<B> {
    pub(super) fn of_rows(&self) -> RowNorm<'_, B::Tensor> {
        RowNorm { weight: &self.weight, epsilon: self.epsilon }
    }
}

impl<B: Backend> Linear<B> {
    /// The product with its scale and bias.
    fn product<'a>(&'a self, output: &'a mut B::Tensor) -> Product<'a, B> {
        let Self { weight, scale, bias, .. } = self;
        Product { weight, scale: *scale, bias: bias.as_ref(), added: None, output }
    }
}

impl<B: Backend> ExpertLinear<B> {
    fn product<'a>(&'a self, output: &'a mut B::Tensor) -> RoutedProduct<'a, B> {
        let Self { weights, scales, bias, .. } = self;
        RoutedProduct { weights, scales: scales.as_ref(), biases: bias.as_ref(), output }
    }
}

/// How what a part of a layer gives comes back to the hidden rows: `hidden += scale * norm(output)`.
pub(super) struct Residual<'a, B: Backend> {
    pub(super) norm: Option<&'a Norm<B>>,
    pub(super) scale: f32,
}

impl<B: Backend> Residual<'_, B> {
    pub(super) fn add(&self, backend: &mut B, rows: usize, output: &B::Tensor, hidden: &mut B::Tensor) {
        backend.add(hidden, output, rows, self.norm.map(Norm::of_rows), self.scale);
    }

    /// The same for the product of `input`; `spare` is a scratch of the shape of `hidden`.
    pub(super) fn add_product(
        &self,
        backend: &mut B,
        rows: usize,
        input: Input<'_, B::Tensor>,
        linear: &Linear<B>,
        spare: &mut B::Tensor,
        hidden: &mut B::Tensor,
    ) {
        if self.norm.is_none() {
            let product = Product { added: Some(self.scale), ..linear.product(hidden) };
            return backend.multiply(input, rows, [product]);
        }
        backend.multiply(input, rows, [linear.product(spare)]);
        self.add(backend, rows, spare, hidden);
    }
}
