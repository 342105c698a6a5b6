//! The qwen3moe family: norms of q and k heads, experts in every layer, weights normalised over the chosen ones.

use zllm_kernels::backend::{Activation, RopeStyle, RoutingScores};

use super::{Ffn, ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Neox, &d)?;
    let routing = reader.routing(RoutingScores::Softmax, true)?;
    reader.layers_and_ends(&d, |i| {
        let experts = reader.experts(i, &d, routing, reader.expert_width(&d)?, Activation::Silu);
        Ok(reader.pre_norm_layer(i, &d, reader.attention(i, &d, Some(rope.clone())), Ffn::Experts(experts)))
    })
}
