//! What each part of a layer computes, over the rows of one step.

use zllm_kernels::backend::{Backend, Product, RoutedProduct, Span};

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
    /// `output = attention(input)`; keys and values of the rows go to layer `layer` of `kv`.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are one layer's: input, output, where its KV lies"
    )]
    pub(super) fn forward(
        &self,
        backend: &mut B,
        scratch: &mut AttentionScratch<B>,
        kv: &mut B::Kv,
        layer: usize,
        rows: Rows<'_>,
        input: &B::Tensor,
        output: &mut B::Tensor,
    ) {
        let AttentionScratch { queries, keys, values, mixed, growth: factors } = scratch;
        let products = [(&self.query, &mut *queries), (&self.key, &mut *keys), (&self.value, &mut *values)];
        multiply(backend, input, rows.count, products);
        for (tensor, norm) in [(&mut *queries, &self.query_norm), (&mut *keys, &self.key_norm)] {
            if let Some(norm) = norm {
                backend.rms_norm_heads(tensor, rows.count, norm.len, &norm.weight, norm.epsilon);
            }
            if let Some(rope) = self.rope {
                backend.rope(tensor, self.key_dim, rows.positions, rope);
            }
        }
        if let Some(growth) = self.query_growth {
            factors.clear();
            factors.extend(rows.positions.iter().map(|p| growth.factor(*p)));
            backend.scale_rows(queries, factors);
        }
        backend.append(kv, layer, rows.spans, keys, values);
        backend.attend(kv, layer, rows.spans, self.shape, self.sinks.as_ref(), queries, mixed);
        self.output.forward(backend, mixed, rows.count, output);
    }
}

impl<B: Backend> Gated<B> {
    pub(super) fn forward(
        &self,
        backend: &mut B,
        scratch: &mut GatedScratch<B>,
        rows: usize,
        input: &B::Tensor,
        output: &mut B::Tensor,
    ) {
        let GatedScratch { gate, up } = scratch;
        multiply(backend, input, rows, [(&self.gate, &mut *gate), (&self.up, &mut *up)]);
        backend.gate(gate, up, rows, self.activation);
        self.down.forward(backend, gate, rows, output);
    }
}

impl<B: Backend> Experts<B> {
    /// Rows are grouped by expert, so that each chosen expert's weights are read once and no other's at all.
    pub(super) fn forward(
        &self,
        backend: &mut B,
        scratch: &mut ExpertsScratch<B>,
        rows: usize,
        input: &B::Tensor,
        output: &mut B::Tensor,
    ) {
        let ExpertsScratch { scores, routes, inputs, gate, up, outputs, .. } = scratch;
        let pairs = rows * self.routing.used;
        self.router.forward(backend, input, rows, scores);
        backend.route(scores, rows, &self.routing, self.choice_bias.as_ref(), routes);
        backend.gather_routed(input, routes, inputs);
        multiply_routed(backend, inputs, routes, [(&self.gate, &mut *gate), (&self.up, &mut *up)]);
        backend.gate(gate, up, pairs, self.activation);
        multiply_routed(backend, gate, routes, [(&self.down, &mut *outputs)]);
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
        ffn.forward(backend, gated, rows, input, shared);
        if let Some(gate) = gate {
            gate.forward(backend, input, rows, factors);
            backend.gate_rows(shared, rows, factors);
        }
        backend.add(output, shared, rows);
    }
}

impl<B: Backend> Norm<B> {
    pub(super) fn forward(&self, backend: &mut B, input: &B::Tensor, rows: usize, output: &mut B::Tensor) {
        backend.rms_norm(input, rows, &self.weight, self.epsilon, output);
    }
}

impl<B: Backend> Linear<B> {
    pub(super) fn forward(&self, backend: &mut B, input: &B::Tensor, rows: usize, output: &mut B::Tensor) {
        backend.multiply(input, rows, [Product { weight: &self.weight, output }]);
        self.finish(backend, rows, output);
    }

    /// What follows the product: scale and bias.
    fn finish(&self, backend: &mut B, rows: usize, output: &mut B::Tensor) {
        if self.scale != 1.0 {
            backend.scale(output, rows, self.scale);
        }
        if let Some(bias) = &self.bias {
            backend.add_bias(output, rows, bias);
        }
    }
}

/// Products of one input with several weights as one piece of work, then their scales and biases.
fn multiply<B: Backend, const N: usize>(
    backend: &mut B,
    input: &B::Tensor,
    rows: usize,
    mut products: [(&Linear<B>, &mut B::Tensor); N],
) {
    let work =
        products.each_mut().map(|(linear, output)| Product { weight: &linear.weight, output: &mut **output });
    backend.multiply(input, rows, work);
    for (linear, output) in products {
        linear.finish(backend, rows, output);
    }
}

/// The same with each row's own expert.
fn multiply_routed<B: Backend, const N: usize>(
    backend: &mut B,
    input: &B::Tensor,
    routes: &B::Routes,
    mut products: [(&ExpertLinear<B>, &mut B::Tensor); N],
) {
    let work = products
        .each_mut()
        .map(|(linear, output)| RoutedProduct { weights: &linear.weights, output: &mut **output });
    backend.multiply_routed(input, routes, work);
    for (linear, output) in products {
        if let Some(scales) = &linear.scales {
            backend.scale_routed(output, routes, scales);
        }
        if let Some(bias) = &linear.bias {
            backend.add_routed_bias(output, routes, bias);
        }
    }
}

/// `hidden += scale * norm(output)`; `spare` is a scratch of the same shape.
pub(super) fn add_residual<B: Backend>(
    backend: &mut B,
    norm: Option<&Norm<B>>,
    scale: f32,
    output: &mut B::Tensor,
    spare: &mut B::Tensor,
    rows: usize,
    hidden: &mut B::Tensor,
) {
    let added = match norm {
        Some(norm) => {
            norm.forward(backend, output, rows, spare);
            spare
        }
        None => output,
    };
    if scale != 1.0 {
        backend.scale(added, rows, scale);
    }
    backend.add(hidden, added, rows);
}
