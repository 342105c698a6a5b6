//! Reading numbers and tensor names that most families share.
//!
//! Invariant: every number that is returned is in the range that its caller may compute with.

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use super::{AttentionSpec, Ffn, LinearSpec, ModelSpec, NormSpec, SpecError};
use crate::gguf::{GgufFile, PerLayer, Value};

/// Layers that a file may announce; the deepest public models have about 130.
const MAX_LAYERS: usize = 1024;
/// Any other dimension; the widest public models have about 2^19 (vocabulary).
const MAX_DIMENSION: usize = 1 << 24;
/// Context that a file may announce.
const MAX_CONTEXT: usize = 1 << 28;

/// Keys that change what a model computes in a way that no family here knows, each with the values that change nothing.
const NOT_COMPUTED: [(&str, &[f64]); 12] = [
    ("expert_count", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("attention.logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.causal", &[1.0]),
    ("use_parallel_residual", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("rope.scaling.attn_factor", &[0.0, 1.0]),
];

/// The tensor of frequency divisors, one a pair; the file may have it.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A file seen by a family: keys without the `architecture.` prefix.
pub(super) struct Reader<'f> {
    file: &'f GgufFile,
    architecture: &'f str,
}

/// The numbers that every family of attention models has.
pub(super) struct Dimensions {
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) rotary_dim: usize,
    /// `attention.scale`, or 1 over the root of `key_dim`.
    pub(super) attention_scale: f32,
    pub(super) epsilon: f32,
}

impl<'f> Reader<'f> {
    pub(super) fn new(file: &'f GgufFile, architecture: &'f str) -> Self {
        Self { file, architecture }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn bad(&self, key: &str, found: impl ToString, expected: impl ToString) -> SpecError {
        SpecError::BadValue {
            file: self.file.path().display().to_string(),
            key: self.key(key),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// As [`Self::bad`], for a tensor.
    fn bad_tensor(&self, tensor: &str, found: impl ToString, expected: impl ToString) -> SpecError {
        SpecError::BadValue {
            file: self.file.path().display().to_string(),
            key: tensor.to_owned(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Refuses a file whose metadata asks for what is not computed: a wrong answer would look like a right one.
    pub(super) fn check_keys(&self) -> Result<(), SpecError> {
        for (name, neutral) in NOT_COMPUTED {
            let Some(value) = self.file.metadata().get(&self.key(name)) else { continue };
            let number = match value {
                Value::F32(x) => Some(f64::from(x)),
                Value::F64(x) => Some(x),
                Value::Bool(x) => Some(f64::from(u8::from(x))),
                other => other.as_integer().map(|x| x as f64),
            };
            if !number.is_some_and(|number| neutral.contains(&number)) {
                let found = number.map_or_else(|| format!("{value:?}"), |number| number.to_string());
                let expected = format!("only {} is supported", neutral[0]);
                return Err(self.bad(name, found, expected));
            }
        }
        Ok(())
    }

    /// A required number from 1 to `most`.
    pub(super) fn count(&self, name: &str, most: usize) -> Result<usize, SpecError> {
        let found = self.file.metadata().require_u32(&self.key(name))?;
        self.in_range(name, u64::from(found), most)
    }

    /// An optional number from 1 to `most`.
    pub(super) fn opt_count(&self, name: &str, most: usize) -> Result<Option<usize>, SpecError> {
        self.file
            .metadata()
            .opt_u64(&self.key(name))?
            .map(|found| self.in_range(name, found, most))
            .transpose()
    }

    fn in_range(&self, name: &str, found: u64, most: usize) -> Result<usize, SpecError> {
        usize::try_from(found)
            .ok()
            .filter(|n| (1..=most).contains(n))
            .ok_or_else(|| self.bad(name, found, format!("it must be from 1 to {most}")))
    }

    /// An optional finite, positive number.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, SpecError> {
        match self.file.metadata().opt_f32(&self.key(name))? {
            Some(x) if !(x.is_finite() && x > 0.0) => Err(self.bad(name, x, "it must be finite and above 0")),
            other => Ok(other),
        }
    }

    pub(super) fn dimensions(&self) -> Result<Dimensions, SpecError> {
        let width = self.count("embedding_length", MAX_DIMENSION)?;
        let heads = self.count("attention.head_count", MAX_DIMENSION)?;
        let kv_heads = self.opt_count("attention.head_count_kv", MAX_DIMENSION)?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            let expected = format!("it must divide the {heads} query heads");
            return Err(self.bad("attention.head_count_kv", kv_heads, expected));
        }
        let key_dim = match self.opt_count("attention.key_length", MAX_DIMENSION)? {
            Some(dim) => dim,
            None if width % heads == 0 => width / heads,
            None => {
                let expected =
                    format!("it must divide the width of {width}, or attention.key_length must be given");
                return Err(self.bad("attention.head_count", heads, expected));
            }
        };
        let rotary_dim = self.opt_count("rope.dimension_count", MAX_DIMENSION)?.unwrap_or(key_dim);
        if rotary_dim > key_dim || rotary_dim % 2 != 0 {
            let expected = format!("it must be even and at most the head's {key_dim}");
            return Err(self.bad("rope.dimension_count", rotary_dim, expected));
        }
        Ok(Dimensions {
            layers: self.count("block_count", MAX_LAYERS)?,
            width,
            hidden: self.count("feed_forward_length", MAX_DIMENSION)?,
            heads,
            kv_heads,
            key_dim,
            value_dim: self.opt_count("attention.value_length", MAX_DIMENSION)?.unwrap_or(key_dim),
            rotary_dim,
            attention_scale: self
                .positive("attention.scale")?
                .unwrap_or_else(|| 1.0 / (key_dim as f32).sqrt()),
            epsilon: self.positive("attention.layer_norm_rms_epsilon")?.ok_or_else(|| {
                self.bad("attention.layer_norm_rms_epsilon", "missing", "the model needs it")
            })?,
        })
    }

    /// The rotary embedding that the metadata describes. A factor without a type is a linear one; `rope.scale_linear` is
    /// what old files call it.
    pub(super) fn rope(&self, style: RopeStyle, d: &Dimensions) -> Result<Rope, SpecError> {
        let scaling = self.file.metadata().opt_str(&self.key("rope.scaling.type"))?.unwrap_or("linear");
        let factor = match self.positive("rope.scaling.factor")? {
            None => self.positive("rope.scale_linear")?,
            found => found,
        };
        let factor = factor.unwrap_or(1.0);
        if !(1.0 / factor).is_finite() {
            return Err(self.bad("rope.scaling.factor", factor, "its inverse must be finite"));
        }
        let scale = match scaling {
            "none" => 1.0,
            "linear" => 1.0 / factor,
            other => return Err(self.bad("rope.scaling.type", other, "none and linear are supported")),
        };
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        Ok(Rope {
            style,
            rotary_dim: d.rotary_dim,
            base,
            scale,
            factors: self.rope_factors(d)?,
            magnitude: 1.0,
        })
    }

    /// [`ROPE_FACTORS`], one divisor a pair; empty when the file has none.
    fn rope_factors(&self, d: &Dimensions) -> Result<Vec<f32>, SpecError> {
        if self.file.tensor(ROPE_FACTORS).is_none() {
            return Ok(Vec::new());
        }
        let factors = super::checks::vector(self.file, ROPE_FACTORS, d.rotary_dim / 2)?;
        match factors.iter().find(|f| !(f.is_finite() && **f != 0.0)) {
            Some(bad) => {
                Err(self.bad_tensor(ROPE_FACTORS, bad, "every frequency factor must be finite and not 0"))
            }
            None => Ok(factors),
        }
    }

    pub(super) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> LinearSpec {
        let bias = format!("{name}.bias");
        LinearSpec {
            weight: format!("{name}.weight"),
            bias: self.file.tensor(&bias).is_some().then_some(bias),
            inputs,
            outputs,
        }
    }

    pub(super) fn norm(&self, name: &str, len: usize, epsilon: f32) -> NormSpec {
        NormSpec { weight: format!("{name}.weight"), len, epsilon }
    }

    /// The q, k, v and output products of layer `index` under their usual names; norms of heads where the file has them.
    /// Scores are multiplied by `d.attention_scale`.
    pub(super) fn attention(
        &self,
        index: usize,
        d: &Dimensions,
        rope: Rope,
        window: Option<usize>,
    ) -> AttentionSpec {
        let name = |part: &str| format!("blk.{index}.{part}");
        let head_norm = |part: &str| {
            let norm = self.norm(&name(part), d.key_dim, d.epsilon);
            self.file.tensor(&norm.weight).is_some().then_some(norm)
        };
        AttentionSpec {
            heads: d.heads,
            kv_heads: d.kv_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            scale: d.attention_scale,
            window,
            soft_cap: None,
            rope,
            query_norm: head_norm("attn_q_norm"),
            key_norm: head_norm("attn_k_norm"),
            query: self.linear(&name("attn_q"), d.width, d.heads * d.key_dim),
            key: self.linear(&name("attn_k"), d.width, d.kv_heads * d.key_dim),
            value: self.linear(&name("attn_v"), d.width, d.kv_heads * d.value_dim),
            output: self.linear(&name("attn_output"), d.heads * d.value_dim, d.width),
        }
    }

    pub(super) fn gated_ffn(&self, index: usize, d: &Dimensions, activation: Activation) -> Ffn {
        let name = |part: &str| format!("blk.{index}.{part}");
        Ffn::Gated {
            activation,
            gate: self.linear(&name("ffn_gate"), d.width, d.hidden),
            up: self.linear(&name("ffn_up"), d.width, d.hidden),
            down: self.linear(&name("ffn_down"), d.hidden, d.width),
        }
    }

    /// Pre-norm layers that all see everything, with a SiLU gate: what most families are.
    pub(super) fn plain_decoder(&self, style: RopeStyle) -> Result<ModelSpec, SpecError> {
        let d = self.dimensions()?;
        let rope = self.rope(style, &d)?;
        self.refuse_window()?;
        let layers = (0..d.layers)
            .map(|i| super::LayerSpec {
                mixer_norm: self.norm(&format!("blk.{i}.attn_norm"), d.width, d.epsilon),
                mixer: super::Mixer::Attention(self.attention(i, &d, rope.clone(), None)),
                mixer_post_norm: None,
                ffn_norm: self.norm(&format!("blk.{i}.ffn_norm"), d.width, d.epsilon),
                ffn: self.gated_ffn(i, &d, Activation::Silu),
                ffn_post_norm: None,
            })
            .collect();
        self.model(&d, 1.0, layers)
    }

    /// Refuses a window that is shorter than the context, in a family whose layers see everything.
    fn refuse_window(&self) -> Result<(), SpecError> {
        const KEY: &str = "attention.sliding_window";
        let context = self.count("context_length", MAX_CONTEXT)?;
        match self.file.metadata().opt_u64(&self.key(KEY))? {
            Some(window) if (1..context as u64).contains(&window) => Err(self.bad(
                KEY,
                window,
                format!("layers of this family see the whole context of {context}"),
            )),
            _ => Ok(()),
        }
    }

    /// What surrounds the layers: embedding, last norm and head, tied to the embedding when the file has no own one.
    pub(super) fn model(
        &self,
        d: &Dimensions,
        embedding_scale: f32,
        layers: Vec<super::LayerSpec>,
    ) -> Result<ModelSpec, SpecError> {
        const EMBEDDING: &str = "token_embd.weight";
        let embedding = self.file.require_tensor(EMBEDDING)?;
        let vocab_size = embedding.rows();
        if vocab_size > MAX_DIMENSION {
            return Err(self.bad_tensor(EMBEDDING, vocab_size, format!("at most {MAX_DIMENSION} rows")));
        }
        let mut head = self.linear("output", d.width, vocab_size);
        if self.file.tensor(&head.weight).is_none() {
            EMBEDDING.clone_into(&mut head.weight);
        }
        Ok(ModelSpec {
            architecture: self.architecture.to_owned(),
            name: self.file.metadata().opt_str("general.name")?.unwrap_or(self.architecture).to_owned(),
            width: d.width,
            vocab_size,
            context_length: self.count("context_length", MAX_CONTEXT)?,
            embedding: EMBEDDING.to_owned(),
            embedding_scale,
            layers,
            output_norm: self.norm("output_norm", d.width, d.epsilon),
            head,
            logit_soft_cap: None,
        })
    }

    /// Which layers have a window: the file has a flag for each layer, or one number, the period, or neither, when it is
    /// `usual_period`. Each `period`-th layer sees everything; no layer does when it is 0.
    pub(super) fn windowed_layers(&self, layers: usize, usual_period: usize) -> Result<Vec<bool>, SpecError> {
        const KEY: &str = "attention.sliding_window_pattern";
        if let Some(Value::Bool(found)) = self.file.metadata().get(&self.key(KEY)) {
            return Err(self.bad(KEY, found, "it must be a period, or a flag for each layer"));
        }
        let period = match self.file.metadata().opt_per_layer(&self.key(KEY), layers)? {
            Some(PerLayer::Each(flags)) => return Ok(flags.iter().map(|f| *f != 0).collect()),
            Some(PerLayer::All(period)) => period as usize,
            None => usual_period,
        };
        Ok((0..layers).map(|i| period == 0 || i % period < period - 1).collect())
    }
}
