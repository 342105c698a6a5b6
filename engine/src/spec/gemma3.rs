//! The gemma3 family: sandwich norms, norms of q and k heads, scaled embeddings, five windowed layers to one that sees
//! everything, with a rope base of its own for the windowed ones. The norm weights in the file already hold `1 + w`.

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use super::{AttentionSpec, Ffn, LayerSpec, ModelSpec, SpecError, read::Reader};

/// Each sixth layer sees everything, where the file does not say otherwise.
const WINDOW_PERIOD: usize = 6;
/// Rope base of windowed layers, where the file does not say otherwise.
const WINDOWED_BASE: f32 = 10_000.0;

/// Layers of the 27B model, the one whose scores are scaled by its width instead of its head dimension. Its files do not
/// say so (`query_pre_attn_scalar` is not written), so that the depth is how every reader tells it.
const LAYERS_SCALED_BY_WIDTH: usize = 62;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let mut d = reader.dimensions()?;
    if d.layers == LAYERS_SCALED_BY_WIDTH && reader.positive("attention.scale")?.is_none() {
        d.attention_scale = 1.0 / ((d.width / d.heads) as f32).sqrt();
    }
    let windows = reader.windows(d.layers, WINDOW_PERIOD)?;
    let global = reader.rope(RopeStyle::Neox, &d)?;
    let base = reader.positive("rope.freq_base_swa")?.unwrap_or(WINDOWED_BASE);
    let local = Rope { base, scale: 1.0, ..global.clone() };
    let layer = |(i, window): (usize, Option<usize>)| {
        let norm = |part: &str| Some(reader.norm(&format!("blk.{i}.{part}"), d.width, d.epsilon));
        let rope = if window.is_some() { &local } else { &global };
        let attention = AttentionSpec { window, ..reader.attention(i, &d, Some(rope.clone())) };
        LayerSpec {
            mixer_post_norm: norm("post_attention_norm"),
            ffn_post_norm: norm("post_ffw_norm"),
            ..reader.pre_norm_layer(
                i,
                &d,
                attention,
                Ffn::Gated(reader.gated_ffn(i, &d, Activation::GeluTanh)),
            )
        }
    };
    let layers = windows.into_iter().enumerate().map(layer).collect();
    Ok(ModelSpec {
        embedding_scale: (d.width as f32).sqrt(),
        logit_soft_cap: reader.cap("final_logit_softcapping")?,
        ..reader.model(&d, layers)?
    })
}
