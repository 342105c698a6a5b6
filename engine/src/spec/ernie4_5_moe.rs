//! The ernie4_5-moe family: a few dense layers, then experts in every `interleave_moe_layer_step`-th one, beside a shared
//! expert. No model of the family has a bias on the output product; llama.cpp, which made the reference, loads one and
//! does not add it, and so do we.

use zllm_kernels::backend::{Activation, RopeStyle, RoutingScores};

use super::{AttentionSpec, ExpertsFfn, Ffn, LinearSpec, ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Interleaved, &d)?;
    let routing = reader.routing(RoutingScores::Softmax, true)?;
    let expert_width = reader.expert_width(&d)?;
    let shared_width = reader.shared_expert_width()?;
    let dense_layers = reader.number_or_0("leading_dense_block_count", d.layers)?;
    let step = reader.count("interleave_moe_layer_step", d.layers)?;
    reader.layers_and_ends(&d, |i| {
        let ffn = if i >= dense_layers && (i + 1) % step == 0 {
            Ffn::Experts(ExpertsFfn {
                shared: shared_width.map(|width| reader.shared_expert(i, &d, width, Activation::Silu)),
                ..reader.experts(i, &d, routing, expert_width, Activation::Silu)
            })
        } else {
            Ffn::Gated(reader.gated_ffn(i, &d, Activation::Silu))
        };
        let attention = reader.attention(i, &d, Some(rope.clone()));
        reader.ignore(format!("blk.{i}.attn_output.bias"));
        let output = LinearSpec { bias: None, ..attention.output };
        Ok(reader.pre_norm_layer(i, &d, AttentionSpec { output, ..attention }, ffn))
    })
}
