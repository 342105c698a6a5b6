//! The gemma2 family: sandwich norms, scaled embeddings, soft caps on scores and logits, every second layer with a window.
//! The norm weights in the file already hold `1 + w`.

use zllm_kernels::backend::{Activation, RopeStyle};

use super::{AttentionSpec, Ffn, ModelSpec, SpecError, read::Reader};

/// What holds where a file does not say otherwise (`gemma2.cpp` and `llama-hparams.h` of llama.cpp).
const WINDOW: usize = 4096;
const WINDOW_PERIOD: usize = 2;
const SCORE_CAP: f32 = 50.0;
const LOGIT_CAP: f32 = 30.0;

/// Layers of the 27B model, whose scores are scaled by its width instead of its head dimension; files do not say so.
const LAYERS_SCALED_BY_WIDTH: usize = 46;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let mut d = reader.dimensions()?;
    reader.scale_scores_by_width(&mut d, LAYERS_SCALED_BY_WIDTH)?;
    let windows = reader.windows(d.layers, Some(reader.window()?.unwrap_or(WINDOW)), WINDOW_PERIOD)?;
    let global = reader.rope(RopeStyle::Neox, &d)?;
    let local = reader.windowed_rope(RopeStyle::Neox, &d, global.base)?;
    let score_cap = reader.positive("attn_logit_softcapping")?.unwrap_or(SCORE_CAP);
    let logit_cap = reader.positive("final_logit_softcapping")?.unwrap_or(LOGIT_CAP);
    let model = reader.layers_and_ends(&d, |i| {
        let rope = if windows[i].is_some() { &local } else { &global };
        let attention = AttentionSpec {
            window: windows[i],
            soft_cap: Some(score_cap),
            ..reader.attention(i, &d, Some(rope.clone()))
        };
        let ffn = Ffn::Gated(reader.gated_ffn(i, &d, Activation::GeluTanh));
        Ok(reader.sandwich_layer(i, &d, attention, ffn))
    })?;
    Ok(ModelSpec { embedding_scale: (d.width as f32).sqrt(), logit_soft_cap: Some(logit_cap), ..model })
}
