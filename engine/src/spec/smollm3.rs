//! The smollm3 family: as llama, but each fourth layer does not mark positions.

use zllm_kernels::backend::{Activation, RopeStyle};

use super::{Ffn, ModelSpec, SpecError, read::Reader};

/// Each fourth layer has no rope. No file says so; every model of the family has it (`smollm3.cpp` of llama.cpp).
const ROPELESS_PERIOD: usize = 4;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Interleaved, &d)?;
    reader.layers_and_ends(&d, |i| {
        let turns = !(i + 1).is_multiple_of(ROPELESS_PERIOD);
        let attention = reader.attention(i, &d, turns.then(|| rope.clone()));
        Ok(reader.pre_norm_layer(i, &d, attention, Ffn::Gated(reader.gated_ffn(i, &d, Activation::Silu))))
    })
}
