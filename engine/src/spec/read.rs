//! Reading numbers and tensor names that most families share.
//!
//! A reader remembers what a family has asked for. What it has not asked for and would change the result is refused at
//! the end: a wrong answer would look like a right one.
//!
//! Invariant: every number that is returned is in the range that its caller may compute with.

mod layers;
mod rope;

use std::{cell::RefCell, collections::HashSet};

use super::{LayerSpec, LinearSpec, ModelSpec, NormSpec, SpecError};
use crate::{
    gguf::{GgufFile, PerLayer, Value},
    pooling::Pooling,
};

/// Layers that a file may announce; the deepest public models have about 130.
const MAX_LAYERS: usize = 1024;
/// Any other dimension; the widest public models have about 2^19 (vocabulary).
pub(super) const MAX_DIMENSION: usize = 1 << 24;
/// Context that a file may announce.
const MAX_CONTEXT: usize = 1 << 28;

/// Keys that change what a model computes, each with the values that change nothing: a family that does not read one
/// of them computes only those.
const CHANGE_THE_RESULT: [(&str, &[f64]); 26] = [
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.indexer.head_count", &[0.0]),
    ("attention.logit_softcapping", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("expert_count", &[0.0]),
    ("expert_gating_func", &[0.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_weights_norm", &[0.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("final_logit_softcapping", &[0.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("nextn_predict_layers", &[0.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.attn_factor", &[0.0, 1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    ("rope.scaling.yarn_ext_factor", &[-1.0, 1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

/// Positions that a windowed layer sees.
pub(super) const WINDOW: &str = "attention.sliding_window";

/// A file seen by a family: keys without the `architecture.` prefix.
pub(super) struct Reader<'f> {
    file: &'f GgufFile,
    architecture: &'f str,
    /// Positions that will be used at most.
    context_limit: usize,
    /// Keys that the family has asked for.
    asked: RefCell<HashSet<String>>,
    /// Beginnings of the names of tensors that have no part in the spec.
    ignored: RefCell<Vec<String>>,
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
    pub(super) fn new(file: &'f GgufFile, architecture: &'f str, context_limit: Option<usize>) -> Self {
        let context_limit = context_limit.unwrap_or(usize::MAX);
        Self { file, architecture, context_limit, asked: RefCell::default(), ignored: RefCell::default() }
    }

    fn key(&self, name: &str) -> String {
        self.asked.borrow_mut().insert(name.to_owned());
        format!("{}.{name}", self.architecture)
    }

    /// Tensors whose names begin so may be in the file and have no part in what is computed.
    pub(super) fn ignore(&self, beginning: impl Into<String>) {
        self.ignored.borrow_mut().push(beginning.into());
    }

    pub(super) fn is_ignored(&self, tensor: &str) -> bool {
        // What activations are divided by before they are packed in the weights' format, as ours are not.
        tensor.ends_with(".input_scale")
            || self.ignored.borrow().iter().any(|beginning| tensor.starts_with(beginning))
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
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

    /// Refuses a file whose metadata asks for what the family did not read.
    pub(super) fn refuse_what_was_not_asked(&self) -> Result<(), SpecError> {
        for (name, neutral) in CHANGE_THE_RESULT {
            if self.asked.borrow().contains(name) {
                continue;
            }
            let Some(value) = self.file.metadata().get(&format!("{}.{name}", self.architecture)) else {
                continue;
            };
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
        if self.asked.borrow().contains(WINDOW) { Ok(()) } else { self.refuse_window() }
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

    /// A number from 0 to `most`; 0 where the file has none.
    pub(super) fn number_or_0(&self, name: &str, most: usize) -> Result<usize, SpecError> {
        match self.file.metadata().opt_u64(&self.key(name))? {
            None | Some(0) => Ok(0),
            Some(found) => self.in_range(name, found, most),
        }
    }

    /// Whether the file says so; `usual` where it says nothing.
    pub(super) fn flag(&self, name: &str, usual: bool) -> Result<bool, SpecError> {
        Ok(self.file.metadata().opt_bool(&self.key(name))?.unwrap_or(usual))
    }

    /// Leaves out the last layers, which guess further tokens and have no part in the next one.
    pub(super) fn skip_guessing_layers(&self, d: &mut Dimensions) -> Result<(), SpecError> {
        let guessing = self.number_or_0("nextn_predict_layers", d.layers - 1)?;
        d.layers -= guessing;
        (d.layers..d.layers + guessing).for_each(|i| self.ignore(format!("blk.{i}.")));
        Ok(())
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

    /// A finite, positive factor; 1 where the file has none or says 0.
    pub(super) fn factor(&self, name: &str) -> Result<f32, SpecError> {
        Ok(self.positive_or_0(name)?.unwrap_or(1.0))
    }

    /// The same, where 0 says as much as nothing.
    pub(super) fn positive_or_0(&self, name: &str) -> Result<Option<f32>, SpecError> {
        match self.file.metadata().opt_f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.positive(name),
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
        let d = Dimensions {
            layers: self.count("block_count", MAX_LAYERS)?,
            width,
            hidden: self.count("feed_forward_length", MAX_DIMENSION)?,
            heads,
            kv_heads,
            key_dim,
            value_dim: self.opt_count("attention.value_length", MAX_DIMENSION)?.unwrap_or(key_dim),
            rotary_dim,
            attention_scale: self
                .positive_or_0("attention.scale")?
                .unwrap_or_else(|| 1.0 / (key_dim as f32).sqrt()),
            epsilon: self.positive("attention.layer_norm_rms_epsilon")?.ok_or_else(|| {
                self.bad("attention.layer_norm_rms_epsilon", "missing", "the model needs it")
            })?,
        };
        self.refuse_other_windowed_heads(&d)?;
        Ok(d)
    }

    /// Refuses heads of another shape in layers with a window, which no family here has.
    fn refuse_other_windowed_heads(&self, d: &Dimensions) -> Result<(), SpecError> {
        for (name, all) in [
            ("attention.key_length_swa", d.key_dim),
            ("attention.value_length_swa", d.value_dim),
            ("rope.dimension_count_swa", d.rotary_dim),
        ] {
            let found = self.number_or_0(name, MAX_DIMENSION)?;
            if found != 0 && found != all {
                return Err(self.bad(name, found, format!("all layers of this family have {all}")));
            }
        }
        Ok(())
    }

    /// Scales scores by the width of a head's share of a row instead of its own, in the one model of a family that has
    /// `layers` layers: its files do not say so.
    pub(super) fn scale_scores_by_width(&self, d: &mut Dimensions, layers: usize) -> Result<(), SpecError> {
        if d.layers == layers && self.positive_or_0("attention.scale")?.is_none() {
            d.attention_scale = 1.0 / ((d.width / d.heads) as f32).sqrt();
        }
        Ok(())
    }

    /// The product with `NAME.weight`; with `NAME.bias` and `NAME.scale` where the file has them.
    pub(super) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> LinearSpec {
        let optional = |part: &str| Some(format!("{name}.{part}")).filter(|name| self.has_tensor(name));
        LinearSpec {
            weight: format!("{name}.weight"),
            first_row: 0,
            tensor_rows: outputs,
            scale: optional("scale"),
            bias: optional("bias"),
            inputs,
            outputs,
        }
    }

    /// Several products with the rows of one tensor, one after the other.
    pub(super) fn fused<const N: usize>(
        &self,
        name: &str,
        inputs: usize,
        outputs: [usize; N],
    ) -> [LinearSpec; N] {
        let whole = self.linear(name, inputs, outputs.iter().sum());
        let mut first_row = 0;
        outputs.map(|outputs| {
            let part = LinearSpec { first_row, outputs, ..whole.clone() };
            first_row += outputs;
            part
        })
    }

    pub(super) fn norm(&self, name: &str, len: usize, epsilon: f32) -> NormSpec {
        NormSpec { weight: format!("{name}.weight"), len, epsilon }
    }

    /// Refuses a window that is shorter than the context, in a family whose layers see everything.
    fn refuse_window(&self) -> Result<(), SpecError> {
        let context = self.context_length()?;
        match self.file.metadata().opt_u64(&self.key(WINDOW))? {
            Some(window) if (1..context as u64).contains(&window) => Err(self.bad(
                WINDOW,
                window,
                format!("layers of this family see the whole context of {context}"),
            )),
            _ => Ok(()),
        }
    }

    /// Positions that the model was made for and that will be used.
    pub(super) fn context_length(&self) -> Result<usize, SpecError> {
        Ok(self.count("context_length", MAX_CONTEXT)?.min(self.context_limit))
    }

    /// What surrounds the layers: embedding, last norm and head, tied to the embedding when the file has no own one.
    pub(super) fn model(&self, d: &Dimensions, layers: Vec<LayerSpec>) -> Result<ModelSpec, SpecError> {
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
            context_length: self.context_length()?,
            embedding: EMBEDDING.to_owned(),
            embedding_scale: 1.0,
            layers,
            output_norm: self.norm("output_norm", d.width, d.epsilon),
            head,
            logit_scale: 1.0,
            logit_soft_cap: None,
            pooling: Pooling::of_file(self.file.metadata().opt_u64(&self.key("pooling_type"))?),
        })
    }
}
