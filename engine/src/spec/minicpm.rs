//! The minicpm family: as granite, positions are always marked, and old files do not say the factors.

use zllm_kernels::backend::RopeStyle;

use super::{
    ModelSpec, SpecError,
    granite::{Scales, scaled_decoder},
    read::Reader,
};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Interleaved, &d)?;
    // Those of the first models (`minicpm.cpp` of llama.cpp).
    let scales = Scales {
        embedding: reader.positive("embedding_scale")?.unwrap_or(12.0),
        residual: reader.positive("residual_scale")?.unwrap_or(1.4 / (d.layers as f32).sqrt()),
        logits: reader.positive("logit_scale")?.unwrap_or(256.0 / d.width as f32),
    };
    scaled_decoder(reader, &d, Some(rope), &scales)
}
