//! The granite family: as llama, with factors on embeddings, scores, residual sums and logits. `rope.scaling.finetuned`
//! says whether positions are marked at all.

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use super::{
    Ffn, LayerSpec, ModelSpec, SpecError,
    read::{Dimensions, Reader},
};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let marks_positions = reader.flag("rope.scaling.finetuned", true)?;
    let rope = if marks_positions { Some(reader.rope(RopeStyle::Interleaved, &d)?) } else { None };
    reader.ignore("rope_freqs.");
    scaled_decoder(reader, &d, rope, &Scales::read(reader)?)
}

/// What granite and its relatives multiply with.
pub(super) struct Scales {
    pub(super) embedding: f32,
    pub(super) residual: f32,
    /// Logits are divided by it.
    pub(super) logits: f32,
}

impl Scales {
    /// As the file has them; logits must have one.
    pub(super) fn read(reader: &Reader<'_>) -> Result<Self, SpecError> {
        const LOGITS: &str = "logit_scale";
        Ok(Self {
            embedding: reader.factor("embedding_scale")?,
            residual: reader.factor("residual_scale")?,
            logits: reader
                .positive(LOGITS)?
                .ok_or_else(|| reader.bad(LOGITS, "missing", "the model needs it"))?,
        })
    }
}

/// Pre-norm layers with factors; experts with normalised weights where the file has them, and beside them one that every
/// position uses where it has that.
pub(super) fn scaled_decoder(
    reader: &Reader<'_>,
    d: &Dimensions,
    rope: Option<Rope>,
    scales: &Scales,
) -> Result<ModelSpec, SpecError> {
    let shared_width = reader.shared_expert_width()?;
    let model = reader.layers_and_ends(d, |i| {
        let mut ffn = reader.gated_or_experts(i, d)?;
        if let Ffn::Experts(experts) = &mut ffn {
            experts.shared = shared_width.map(|width| reader.shared_expert(i, d, width, Activation::Silu));
        }
        let layer = reader.pre_norm_layer(i, d, reader.attention(i, d, rope.clone()), ffn);
        Ok(LayerSpec { residual_scale: scales.residual, ..layer })
    })?;
    Ok(ModelSpec { embedding_scale: scales.embedding, logit_scale: 1.0 / scales.logits, ..model })
}
