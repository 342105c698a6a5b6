//! The olmo2 family, OLMo 3 too: norms after the attention and the network instead of before them, norms over whole rows
//! of queries and keys. Layers with a window, three of four where a file has one, have a plain rope.

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use super::{AttentionSpec, Ffn, LayerSpec, ModelSpec, SpecError, read::Reader};

/// Each fourth layer sees everything, where the file does not say otherwise.
const WINDOW_PERIOD: usize = 4;

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    const WINDOWED_BASE: &str = "rope.freq_base_swa";
    let d = reader.dimensions()?;
    let windows = reader.windows(d.layers, reader.window()?, WINDOW_PERIOD)?;
    let stretched = reader.rope(RopeStyle::Neox, &d)?;
    let plain = Rope { scale: 1.0, factors: Vec::new(), magnitude: 1.0, ..stretched.clone() };
    let windowed_base = reader.positive(WINDOWED_BASE)?.unwrap_or(plain.base);
    if windowed_base != plain.base && windows.iter().any(Option::is_some) {
        return Err(reader.bad(
            WINDOWED_BASE,
            windowed_base,
            format!("all layers have the base {}", plain.base),
        ));
    }
    reader.layers_and_ends(&d, |i| {
        let rope = if windows[i].is_some() { &plain } else { &stretched };
        let attention = AttentionSpec { window: windows[i], ..reader.attention(i, &d, Some(rope.clone())) };
        let attention = reader.with_row_norms(i, &d, attention);
        let ffn = Ffn::Gated(reader.gated_ffn(i, &d, Activation::Silu));
        Ok(LayerSpec { mixer_norm: None, ffn_norm: None, ..reader.sandwich_layer(i, &d, attention, ffn) })
    })
}
