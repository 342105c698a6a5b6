//! The glm4moe family: rope on a part of each head, a few dense layers, then experts chosen by biased sigmoids beside a
//! shared one. The norm before the feed-forward network goes by the name `post_attention_norm`. Layers that guess further
//! tokens stand behind the others and have no part in the answer.

use zllm_kernels::backend::{Activation, RopeStyle, Routing, RoutingScores};

use super::{ExpertsFfn, Ffn, LayerSpec, ModelSpec, SpecError, read::Reader};

/// Shared experts, which files join to one; the models have 1.
const MAX_SHARED: usize = 64;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let mut d = reader.dimensions()?;
    reader.skip_guessing_layers(&mut d)?;
    // Sections or none, this family turns the same pairs.
    reader.check_rope_sections(&d)?;
    let rope = reader.rope(RopeStyle::Neox, &d)?;
    let dense_layers = reader.number_or_0("leading_dense_block_count", d.layers)?;
    let scores = match reader.number_or_0("expert_gating_func", usize::MAX)? {
        0 | 2 => RoutingScores::Sigmoid,
        1 => RoutingScores::Softmax,
        3 => RoutingScores::SoftmaxOfChosen,
        other => return Err(reader.bad("expert_gating_func", other, "0, 1, 2 and 3 are known")),
    };
    let routing = Routing {
        scale: reader.factor("expert_weights_scale")?,
        ..reader.routing(scores, reader.flag("expert_weights_norm", false)?)?
    };
    let expert_width = reader.expert_width(&d)?;
    let shared_width = expert_width * reader.number_or_0("expert_shared_count", MAX_SHARED)?;
    reader.layers_and_ends(&d, |i| {
        let ffn = if i < dense_layers {
            Ffn::Gated(reader.gated_ffn(i, &d, Activation::Silu))
        } else {
            let shared = || reader.shared_expert(i, &d, shared_width, Activation::Silu);
            Ffn::Experts(ExpertsFfn {
                shared: (shared_width > 0).then(shared),
                ..reader.experts(i, &d, routing, expert_width, Activation::Silu)
            })
        };
        Ok(LayerSpec {
            ffn_norm: Some(reader.norm(&format!("blk.{i}.post_attention_norm"), d.width, d.epsilon)),
            ..reader.pre_norm_layer(i, &d, reader.attention(i, &d, Some(rope.clone())), ffn)
        })
    })
}
