//! Rotary embeddings and how their frequencies are stretched for long contexts.
//!
//! Every way of stretching ends as a divisor of each pair's frequency and a factor on what is turned, so that nothing
//! after this file knows their names.

use zllm_kernels::backend::{Rope, RopeStyle};

use super::{
    super::{SpecError, checks},
    Dimensions, PerLayer, Reader,
};

/// Frequency divisors, one a pair, that a file may have.
const FACTORS: &str = "rope_freqs.weight";
/// The same, for contexts up to the one that the model was first made for, and beyond it.
const SHORT_AND_LONG: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

impl Reader<'_> {
    /// The rotary embedding that the metadata describes. A factor without a type is a linear one; `rope.scale_linear` is
    /// what old files call it.
    pub(in super::super) fn rope(&self, style: RopeStyle, d: &Dimensions) -> Result<Rope, SpecError> {
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        self.rope_with_base(style, d, base)
    }

    /// The same for layers with a window, which may have a base of their own, and share all else.
    pub(in super::super) fn windowed_rope(
        &self,
        style: RopeStyle,
        d: &Dimensions,
        usual_base: f32,
    ) -> Result<Rope, SpecError> {
        let base = self.positive("rope.freq_base_swa")?.unwrap_or(usual_base);
        self.rope_with_base(style, d, base)
    }

    fn rope_with_base(&self, style: RopeStyle, d: &Dimensions, base: f32) -> Result<Rope, SpecError> {
        let scaling = self.file.metadata().opt_str(&self.key("rope.scaling.type"))?.unwrap_or("linear");
        let factor = match self.positive("rope.scaling.factor")? {
            None => self.positive("rope.scale_linear")?,
            found => found,
        };
        let factor = factor.unwrap_or(1.0);
        if !(1.0 / factor).is_finite() {
            return Err(self.bad("rope.scaling.factor", factor, "its inverse must be finite"));
        }
        let plain = Rope {
            style,
            rotary_dim: d.rotary_dim,
            base,
            scale: 1.0,
            factors: self.frequency_divisors(d)?,
            magnitude: self.factor("rope.scaling.attn_factor")?,
        };
        match scaling {
            "none" => Ok(plain),
            "linear" | "longrope" => Ok(Rope { scale: 1.0 / factor, ..plain }),
            "yarn" => self.yarn(plain, factor),
            other => {
                let expected = "none, linear, yarn and longrope are supported";
                Err(self.bad("rope.scaling.type", other, expected))
            }
        }
    }

    /// Refuses sections (for the axes of pictures) that text would not turn as a plain rope does: the pairs of the last
    /// one stay where they are.
    pub(in super::super) fn check_rope_sections(&self, d: &Dimensions) -> Result<bool, SpecError> {
        const KEY: &str = "rope.dimension_sections";
        let Some(found) = self.file.metadata().opt_per_layer(&self.key(KEY), 4)? else { return Ok(false) };
        let PerLayer::Each(sections) = found else {
            return Err(self.bad(KEY, "one number", "it must be four"));
        };
        let turned: u64 = sections[..3].iter().map(|n| u64::from(*n)).sum();
        if sections[3] > 0 && (d.rotary_dim / 2) as u64 > turned {
            let expected = format!("sections that leave none of the {} pairs unturned", d.rotary_dim / 2);
            return Err(self.bad(KEY, format!("{sections:?}"), expected));
        }
        Ok(sections[0] > 0 && sections[1] > 0)
    }

    /// Yarn (Peng et al., 2023, arXiv:2309.00071; the keys and their usual values as `llama-context.cpp` and
    /// `ggml_rope_yarn_corr_dims` of llama.cpp have them): pairs that turn often inside the first context keep their
    /// frequency, those that turn seldom are stretched by `factor`, and a ramp lies between.
    fn yarn(&self, plain: Rope, factor: f32) -> Result<Rope, SpecError> {
        const MAGNITUDE: &str = "rope.scaling.yarn_attn_factor";
        if plain.base <= 1.0 {
            return Err(self.bad(
                "rope.freq_base",
                plain.base,
                "frequencies that yarn can stretch need a base above 1",
            ));
        }
        let number = |name: &str, usual: f32| Ok::<_, SpecError>(self.positive(name)?.unwrap_or(usual));
        let first_context = self.first_context()? as f64;
        let (fast, slow) =
            (number("rope.scaling.yarn_beta_fast", 32.0)?, number("rope.scaling.yarn_beta_slow", 1.0)?);
        let dims = plain.rotary_dim as f64;
        let pair_that_turns = |times: f32| {
            let turns = f64::from(times) * std::f64::consts::TAU;
            dims * (first_context / turns).ln() / (2.0 * f64::from(plain.base).ln())
        };
        let low = pair_that_turns(fast).floor().max(0.0);
        let high = pair_that_turns(slow).ceil().min(dims - 1.0);
        let kept = |pair: usize| 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let divisor = |pair: usize| {
            let kept = kept(pair);
            let own = plain.factors.get(pair).map_or(1.0, |f| f64::from(*f));
            (own / ((1.0 - kept) / f64::from(factor) + kept)) as f32
        };
        let factors = (0..plain.rotary_dim / 2).map(divisor).collect();
        let magnitude = self.yarn_magnitude(factor)?;
        // Files may repeat it, and 1 is what llama.cpp writes for a file that says nothing.
        let said = self.positive(MAGNITUDE)?.unwrap_or(1.0);
        if said != 1.0 && (said / magnitude - 1.0).abs() > 1e-3 {
            return Err(self.bad(MAGNITUDE, said, format!("yarn's own {magnitude} is supported")));
        }
        Ok(Rope { factors, magnitude: plain.magnitude * magnitude, ..plain })
    }

    /// `0.1 m ln(factor) + 1`, with m = 1; the quotient of two of them where the file gives a second m.
    fn yarn_magnitude(&self, factor: f32) -> Result<f32, SpecError> {
        let of = |m: f32| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        Ok(match self.file.metadata().opt_f32(&self.key("rope.scaling.yarn_log_multiplier"))? {
            None | Some(0.0) => of(1.0),
            Some(_) => of(1.0) / of(self.factor("rope.scaling.yarn_log_multiplier")?),
        })
    }

    /// Positions that the model was made for before its frequencies were stretched.
    pub(super) fn first_context(&self) -> Result<usize, SpecError> {
        let found = self.opt_count("rope.scaling.original_context_length", super::MAX_CONTEXT)?;
        found.map_or_else(|| self.count("context_length", super::MAX_CONTEXT), Ok)
    }

    /// One divisor a pair, from whichever tensor has them; empty when none has. Where a file has two sets, the context
    /// that will be used decides, once for all positions, so that keys that were kept stay right.
    fn frequency_divisors(&self, d: &Dimensions) -> Result<Vec<f32>, SpecError> {
        let [short, long] = SHORT_AND_LONG;
        SHORT_AND_LONG.into_iter().chain([FACTORS]).for_each(|name| self.ignore(name));
        let name = if self.has_tensor(FACTORS) {
            FACTORS
        } else if self.context_length()? > self.first_context()? {
            long
        } else {
            short
        };
        if !self.has_tensor(name) {
            return Ok(Vec::new());
        }
        let factors = checks::values(self.file, name, &[d.rotary_dim / 2])?;
        match factors.iter().find(|f| !(f.is_finite() && **f != 0.0)) {
            Some(bad) => Err(self.bad_tensor(name, bad, "every frequency factor must be finite and not 0")),
            None => Ok(factors),
        }
    }
}
