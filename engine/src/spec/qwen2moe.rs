//! The qwen2moe family: experts in every layer, their weights as the softmax gives them, beside a shared expert with a
//! gate of its own.

use zllm_kernels::backend::{Activation, RopeStyle, RoutingScores};

use super::{ExpertsFfn, Ffn, ModelSpec, SharedExpert, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Neox, &d)?;
    let routing = reader.routing(RoutingScores::Softmax, false)?;
    let shared_width = reader.shared_expert_width()?.unwrap_or(d.hidden);
    reader.layers_and_ends(&d, |i| {
        let shared = SharedExpert {
            gate: Some(reader.linear(&format!("blk.{i}.ffn_gate_inp_shexp"), d.width, 1)),
            ..reader.shared_expert(i, &d, shared_width, Activation::Silu)
        };
        let experts = ExpertsFfn {
            shared: Some(shared),
            ..reader.experts(i, &d, routing, reader.expert_width(&d)?, Activation::Silu)
        };
        Ok(reader.pre_norm_layer(i, &d, reader.attention(i, &d, Some(rope.clone())), Ffn::Experts(experts)))
    })
}
