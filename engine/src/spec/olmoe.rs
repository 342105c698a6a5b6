//! The olmoe family: norms over whole rows of queries and keys, experts in every layer, their weights as the softmax
//! gives them.

use zllm_kernels::backend::{Activation, RopeStyle, RoutingScores};

use super::{Ffn, ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Neox, &d)?;
    let routing = reader.routing(RoutingScores::Softmax, false)?;
    reader.layers_and_ends(&d, |i| {
        let attention = reader.with_row_norms(i, &d, reader.attention(i, &d, Some(rope.clone())));
        let experts = reader.experts(i, &d, routing, d.hidden, Activation::Silu);
        Ok(reader.pre_norm_layer(i, &d, attention, Ffn::Experts(experts)))
    })
}
