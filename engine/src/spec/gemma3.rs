//! The gemma3 family: sandwich norms, norms of q and k heads, scaled embeddings, five windowed layers to one that sees
//! everything, with a rope of its own for the windowed ones. The norm weights in the file already hold `1 + w`.

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use super::{AttentionSpec, Ffn, ModelSpec, SpecError, read::Reader};

/// Each sixth layer sees everything, where the file does not say otherwise.
const WINDOW_PERIOD: usize = 6;
/// Rope base of windowed layers, where the file does not say otherwise.
const WINDOWED_BASE: f32 = 10_000.0;

/// Layers of the 27B model, the one whose scores are scaled by its width instead of its head dimension. Its files do not
/// say so (`query_pre_attn_scalar` is not written), so that the depth is how every reader tells it.
const LAYERS_SCALED_BY_WIDTH: usize = 62;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let mut d = reader.dimensions()?;
    reader.scale_scores_by_width(&mut d, LAYERS_SCALED_BY_WIDTH)?;
    let windows = reader.windows(d.layers, reader.window()?, WINDOW_PERIOD)?;
    let global = reader.rope(RopeStyle::Neox, &d)?;
    let base = reader.positive("rope.freq_base_swa")?.unwrap_or(WINDOWED_BASE);
    let local = Rope { base, scale: 1.0, factors: Vec::new(), magnitude: 1.0, ..global.clone() };
    let model = reader.layers_and_ends(&d, |i| {
        let rope = if windows[i].is_some() { &local } else { &global };
        let attention = AttentionSpec { window: windows[i], ..reader.attention(i, &d, Some(rope.clone())) };
        let ffn = Ffn::Gated(reader.gated_ffn(i, &d, Activation::GeluTanh));
        Ok(reader.sandwich_layer(i, &d, attention, ffn))
    })?;
    let logit_soft_cap = reader.positive_or_0("final_logit_softcapping")?;
    Ok(ModelSpec { embedding_scale: (d.width as f32).sqrt(), logit_soft_cap, ..model })
}
