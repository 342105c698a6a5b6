//! Dynamic temperature: low where the model is sure, high where it is not.
//!
//! Source: llama.cpp's `llama_sampler_temp_ext_apply` (`src/llama-sampler.cpp`), after an idea by kalomaze: with the entropy
//! H of the distribution and the largest possible one, ln(number of tokens), the temperature is
//! `low + (high - low) * (H / ln count) ^ exponent`, from `low = max(0, temperature - range)` to `high = temperature + range`.
//! All tokens of the row count that were not banned: nothing is filtered yet.

use zllm_kernels::cpu::vocabulary::{LOWEST_EXPONENT, likelihood};

use super::{distribution::maximum, math};

/// The temperature for a row of logits, of which one at least is above negative infinity.
pub(super) fn dynamic(logits: &[f32], temperature: f32, range: f32, exponent: f32) -> f32 {
    let max = maximum(logits).min(f32::MAX);
    // Z, the sum of likelihood * ln likelihood, and how many tokens there are: the entropy is ln Z - sum / Z.
    let (mut z, mut sum, mut count) = (0.0, 0.0, 0u32);
    for &logit in logits {
        if logit > f32::NEG_INFINITY {
            let energy = (logit.min(f32::MAX) - max).max(LOWEST_EXPONENT);
            let likelihood = f64::from(likelihood(energy));
            z += likelihood;
            sum += likelihood * f64::from(energy);
            count += 1;
        }
    }
    if count < 2 {
        return temperature;
    }
    let entropy = math::ln(z) - sum / z;
    let part = (entropy / math::ln(f64::from(count))).clamp(0.0, 1.0);
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    low + (high - low) * math::power(part, f64::from(exponent)) as f32
}
