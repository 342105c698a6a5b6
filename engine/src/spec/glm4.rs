//! The glm4 family: sandwich norms, rope on a part of each head, gate and up in one tensor. Files of models that also see
//! pictures have rope sections, and turn other pairs for it. Layers that guess further tokens stand behind the others and
//! have no part in the answer.

use zllm_kernels::backend::{Activation, RopeStyle};

use super::{Ffn, ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let mut d = reader.dimensions()?;
    reader.skip_guessing_layers(&mut d)?;
    let style = if reader.check_rope_sections(&d)? { RopeStyle::Neox } else { RopeStyle::Interleaved };
    let rope = reader.rope(style, &d)?;
    reader.layers_and_ends(&d, |i| {
        let ffn = Ffn::Gated(reader.fused_gated_ffn(i, &d, Activation::Silu));
        Ok(reader.sandwich_layer(i, &d, reader.attention(i, &d, Some(rope.clone())), ffn))
    })
}
