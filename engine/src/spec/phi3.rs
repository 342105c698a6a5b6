//! The phi3 family: q, k and v in one tensor, gate and up in another, frequencies that depend on the context's length.
//! Every layer has the window, where the file gives one; llama.cpp ignores it, the models' own code does not.

use zllm_kernels::backend::{Activation, RopeStyle};

use super::{AttentionSpec, Ffn, ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Neox, &d)?;
    let window = reader.window()?;
    reader.layers_and_ends(&d, |i| {
        let attention = AttentionSpec { window, ..reader.attention(i, &d, Some(rope.clone())) };
        let ffn = Ffn::Gated(reader.fused_gated_ffn(i, &d, Activation::Silu));
        Ok(reader.pre_norm_layer(i, &d, attention, ffn))
    })
}
