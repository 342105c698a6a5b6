//! The gemma3 family: sandwich norms, norms of q and k heads, scaled embeddings, five windowed layers to one that sees
//! everything, with a rope base of its own for the windowed ones. The norm weights in the file already hold `1 + w`.

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use super::{LayerSpec, Mixer, ModelSpec, SpecError, read::Reader};

/// Each sixth layer sees everything, where the file does not say otherwise.
const WINDOW_PERIOD: usize = 6;
/// Rope base of windowed layers, where the file does not say otherwise.
const WINDOWED_BASE: f32 = 10_000.0;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let window = reader.count("attention.sliding_window", 1 << 28)?;
    let windowed = reader.windowed_layers(d.layers, WINDOW_PERIOD)?;
    let global = reader.rope(RopeStyle::Neox, &d)?;
    let base = reader.positive("rope.freq_base_swa")?.unwrap_or(WINDOWED_BASE);
    let local = Rope { base, scale: 1.0, ..global.clone() };
    let layers = windowed
        .into_iter()
        .enumerate()
        .map(|(i, windowed)| {
            let norm = |part: &str| reader.norm(&format!("blk.{i}.{part}"), d.width, d.epsilon);
            let (rope, window) = if windowed { (&local, Some(window)) } else { (&global, None) };
            LayerSpec {
                mixer_norm: norm("attn_norm"),
                mixer: Mixer::Attention(reader.attention(i, &d, rope.clone(), window)),
                mixer_post_norm: Some(norm("post_attention_norm")),
                ffn_norm: norm("ffn_norm"),
                ffn: reader.gated_ffn(i, &d, Activation::GeluTanh),
                ffn_post_norm: Some(norm("post_ffw_norm")),
            }
        })
        .collect();
    reader.model(&d, (d.width as f32).sqrt(), layers)
}
