//! The gpt-oss family: attention sinks, every second layer with a window, experts with biases behind a clamped SwiGLU.
//! The norm before the experts goes by the name `post_attention_norm`.

use zllm_kernels::backend::{Activation, RopeStyle, RoutingScores};

use super::{
    AttentionSpec, Ffn, LayerSpec, ModelSpec, SpecError,
    read::{Reader, WINDOW},
};

/// Each second layer sees everything, where the file does not say otherwise.
const WINDOW_PERIOD: usize = 2;
/// `swiglu_oai` with the constants that every model of the family has (`llama-graph.cpp` of llama.cpp).
const ACTIVATION: Activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let window = reader.window()?.ok_or_else(|| reader.bad(WINDOW, "missing", "the model needs it"))?;
    let windows = reader.windows(d.layers, Some(window), WINDOW_PERIOD)?;
    let rope = reader.rope(RopeStyle::Neox, &d)?;
    let windowed_rope = reader.windowed_rope(RopeStyle::Neox, &d, rope.base)?;
    let routing = reader.routing(RoutingScores::SoftmaxOfChosen, false)?;
    reader.layers_and_ends(&d, |i| {
        let rope = if windows[i].is_some() { &windowed_rope } else { &rope };
        let attention = AttentionSpec {
            window: windows[i],
            sinks: Some(format!("blk.{i}.attn_sinks.weight")),
            ..reader.attention(i, &d, Some(rope.clone()))
        };
        let experts = reader.experts(i, &d, routing, reader.expert_width(&d)?, ACTIVATION);
        Ok(LayerSpec {
            ffn_norm: Some(reader.norm(&format!("blk.{i}.post_attention_norm"), d.width, d.epsilon)),
            ..reader.pre_norm_layer(i, &d, attention, Ffn::Experts(experts))
        })
    })
}
