//! The mistral3 family: as llama, with queries that may grow with their position.

use zllm_kernels::backend::RopeStyle;

use super::{AttentionSpec, ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Interleaved, &d)?;
    let query_growth = reader.query_growth()?;
    reader.layers_and_ends(&d, |i| {
        let attention = AttentionSpec { query_growth, ..reader.attention(i, &d, Some(rope.clone())) };
        Ok(reader.pre_norm_layer(i, &d, attention, reader.gated_or_experts(i, &d)?))
    })
}
