//! Sound files of models that would be computed wrongly are refused by name; what says the same in other words is read.

mod gguf_writer;

use std::path::Path;

use gguf_writer::*;
use zllm_engine::{
    LoadError, LoadOptions, LoadedModel, Pooling,
    gguf::GgufFile,
    spec::{Mixer, ModelSpec, SpecError},
};

const WIDTH: u32 = 32;
const VOCABULARY: u32 = 8;

/// A whole small model, its weights zeros, with further entries (keys without the family) and tensors.
struct Model {
    family: &'static str,
    layers: u32,
    heads: u32,
    head_dim: u32,
    entries: Vec<(&'static str, u32, Vec<u8>)>,
    tensors: Vec<&'static str>,
}

impl Model {
    fn new(family: &'static str) -> Self {
        Self { family, layers: 1, heads: 1, head_dim: 32, entries: vec![], tensors: vec![] }
    }

    fn entry(mut self, key: &'static str, value_type: u32, payload: impl Into<Vec<u8>>) -> Self {
        self.entries.push((key, value_type, payload.into()));
        self
    }

    fn float(self, key: &'static str, value: f32) -> Self {
        self.entry(key, F32, value.to_le_bytes())
    }

    fn text(self, key: &'static str, value: &str) -> Self {
        self.entry(key, STRING, [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat())
    }

    fn number(self, key: &'static str, value: u32) -> Self {
        self.entry(key, U32, value.to_le_bytes())
    }

    fn tensor(mut self, name: &'static str) -> Self {
        self.tensors.push(name);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let width = u64::from(WIDTH);
        let heads = u64::from(self.heads * self.head_dim);
        let row = vec![width];
        let mut tensors = vec![("token_embd.weight".to_owned(), vec![width, VOCABULARY.into()])];
        tensors.push(("output_norm.weight".to_owned(), row.clone()));
        for layer in 0..self.layers {
            let mut add = |part: &str, dims: &[u64]| {
                tensors.push((format!("blk.{layer}.{part}.weight"), dims.to_vec()));
            };
            ["attn_norm", "ffn_norm"].iter().for_each(|part| add(part, &row));
            if self.family == "gemma3" {
                ["post_attention_norm", "post_ffw_norm"].iter().for_each(|part| add(part, &row));
            }
            ["attn_q", "attn_k", "attn_v"].iter().for_each(|part| add(part, &[width, heads]));
            add("attn_output", &[heads, width]);
            ["ffn_gate", "ffn_up", "ffn_down"].iter().for_each(|part| add(part, &[width, width]));
        }
        tensors.extend(self.tensors.iter().map(|name| ((*name).to_owned(), row.clone())));

        let numbers = [
            ("block_count", self.layers),
            ("context_length", 64),
            ("embedding_length", WIDTH),
            ("feed_forward_length", WIDTH),
            ("attention.head_count", self.heads),
            ("attention.key_length", self.head_dim),
        ];
        let key = |name: &str| format!("{}.{name}", self.family);
        let entries = 2 + numbers.len() + self.entries.len();
        let mut file = File::new(tensors.len() as u64, entries as u64)
            .text("general.architecture", self.family)
            .entry(&key("attention.layer_norm_rms_epsilon"), F32, &1e-5f32.to_le_bytes());
        for (name, value) in numbers {
            file = file.number(&key(name), value);
        }
        for (name, value_type, payload) in &self.entries {
            file = file.entry(&key(name), *value_type, payload);
        }
        // Every tensor is a multiple of the alignment of 32 bytes long.
        let mut offset = 0;
        for (name, dims) in &tensors {
            file = file.tensor(name, dims, 0, offset);
            offset += 4 * dims.iter().product::<u64>();
        }
        let padding = file.0.len().next_multiple_of(32) - file.0.len();
        file.zeros(padding + offset as usize).0
    }

    fn spec(&self) -> Result<ModelSpec, SpecError> {
        ModelSpec::read(&GgufFile::from_bytes(Path::new("small.gguf"), self.bytes())?, None)
    }
}

fn llama() -> Model {
    Model::new("llama")
}

fn gemma3() -> Model {
    Model::new("gemma3").number("attention.sliding_window", 16)
}

fn mistral3() -> Model {
    Model::new("mistral3")
}

fn olmo2() -> Model {
    Model::new("olmo2").number("attention.sliding_window", 16)
}

/// As OLMo 3 has it, but for the factor.
fn yarn(attn_factor: f32) -> Model {
    Model::new("olmo2")
        .text("rope.scaling.type", "yarn")
        .float("rope.scaling.factor", 8.0)
        .float("rope.scaling.yarn_attn_factor", attn_factor)
}

fn experts() -> Model {
    llama().number("expert_count", 8).number("expert_used_count", 2)
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let cases: [(Model, &[&str]); 25] = [
        (llama().number("expert_count", 8), &["llama.expert_used_count` is missing"]),
        (llama().float("attn_logit_softcapping", 50.0), &["llama.attn_logit_softcapping is 50"]),
        (gemma3().float("attention.logit_softcapping", 50.0), &["gemma3.attention.logit_softcapping is 50"]),
        (gemma3().float("final_logit_softcapping", -30.0), &["gemma3.final_logit_softcapping is -30"]),
        (llama().float("rope.scaling.yarn_ext_factor", 0.5), &["rope.scaling.yarn_ext_factor is 0.5"]),
        (llama().float("logit_scale", 0.5), &["llama.logit_scale is 0.5"]),
        (llama().float("residual_scale", f32::NAN), &["llama.residual_scale is NaN"]),
        (llama().entry("attention.causal", BOOL, [0]), &["llama.attention.causal is 0", "only 1"]),
        (llama().text("expert_count", "8"), &["llama.expert_count"]),
        (llama().float("attention.temperature_scale", 1.0), &["llama.attention.temperature_scale is 1"]),
        (
            mistral3().float("attention.temperature_scale", -0.1),
            &["mistral3.attention.temperature_scale is -0.1"],
        ),
        (
            mistral3().text("rope.scaling.type", "yarn").float("rope.freq_base", 1.0),
            &["mistral3.rope.freq_base is 1"],
        ),
        (yarn(1.5), &["olmo2.rope.scaling.yarn_attn_factor is 1.5", "1.2079"]),
        (experts().number("expert_gating_func", 2), &["llama.expert_gating_func is 2", "1"]),
        (experts().entry("expert_weights_norm", BOOL, [0]), &["llama.expert_weights_norm is false", "true"]),
        (gemma3().number("attention.key_length_swa", 64), &["gemma3.attention.key_length_swa is 64", "32"]),
        (Model::new("granite"), &["granite.logit_scale is missing"]),
        (olmo2().float("rope.freq_base_swa", 500.0), &["olmo2.rope.freq_base_swa is 500", "10000"]),
        (llama().text("rope.scaling.type", "dynamic"), &["llama.rope.scaling.type is dynamic", "yarn"]),
        (llama().float("rope.scaling.factor", 1e-40), &["llama.rope.scaling.factor"]),
        (llama().number("attention.sliding_window", 16), &["llama.attention.sliding_window is 16", "64"]),
        (gemma3().entry("attention.sliding_window_pattern", BOOL, [1]), &["sliding_window_pattern"]),
        (llama().tensor("blk.0.attn_sinks.weight"), &["blk.0.attn_sinks.weight", "llama"]),
        (llama().tensor("blk.0.ffn_up.scale"), &["blk.0.ffn_up.scale"]),
        (llama().tensor("blk.1.attn_norm.weight"), &["blk.1.attn_norm.weight"]),
    ];
    for (model, says) in cases {
        let message = model.spec().expect_err(says[0]).to_string();
        assert!(message.starts_with("small.gguf: "), "{message}");
        assert!(says.iter().all(|word| message.contains(word)), "{says:?} is not in: {message}");
    }
}

#[test]
fn values_that_change_nothing_are_let_through() {
    let model = llama()
        .number("expert_count", 0)
        .float("final_logit_softcapping", 0.0)
        .float("logit_scale", 1.0)
        .entry("attention.causal", BOOL, [1])
        .number("attention.sliding_window", 64);
    assert_eq!(model.spec().expect("nothing is asked for"), llama().spec().expect("a sound file"));
}

#[test]
fn what_files_repeat_is_let_through() {
    // These files lack the tensors of their families, which are looked at last.
    for model in [
        yarn(1.0),
        yarn(1.207_944_2),
        experts().number("expert_gating_func", 1).entry("expert_weights_norm", BOOL, [1]),
        experts().number("expert_group_count", 0).number("expert_shared_count", 2),
    ] {
        let message = model.spec().expect_err("tensors are missing").to_string();
        assert!(message.contains("tensor `blk.0.") && message.contains("is missing"), "{message}");
    }
    let scaled = llama().tensor("blk.0.ffn_up.input_scale");
    assert_eq!(scaled.spec().expect("a sound file"), llama().spec().expect("a sound file"));
}

#[test]
fn a_rope_factor_is_linear_unless_the_file_says_that_there_is_none() {
    let scale = |model: Model| {
        let Mixer::Attention(a) = &model.spec().expect("a sound file").layers[0].mixer;
        a.rope.as_ref().expect("a rope").scale
    };
    assert_eq!(scale(llama()), 1.0);
    assert_eq!(scale(llama().float("rope.scaling.factor", 8.0)), 0.125);
    assert_eq!(scale(llama().float("rope.scale_linear", 4.0)), 0.25);
    assert_eq!(scale(llama().text("rope.scaling.type", "linear").float("rope.scaling.factor", 2.0)), 0.5);
    assert_eq!(scale(llama().text("rope.scaling.type", "none").float("rope.scaling.factor", 2.0)), 1.0);
}

#[test]
fn scores_are_scaled_by_the_head_unless_the_file_or_the_family_says_otherwise() {
    let scale = |model: Model| {
        let Mixer::Attention(a) = &model.spec().expect("a sound file").layers[0].mixer;
        a.scale
    };
    assert_eq!(scale(llama()), 1.0 / 32f32.sqrt());
    assert_eq!(scale(llama().float("attention.scale", 0.25)), 0.25);
    let deep = |layers| Model { layers, head_dim: 16, ..gemma3() };
    assert_eq!(scale(deep(61)), 1.0 / 16f32.sqrt());
    assert_eq!(scale(deep(62)), 1.0 / 32f32.sqrt());
    assert_eq!(scale(deep(62).float("attention.scale", 0.5)), 0.5);
}

#[test]
fn a_window_pattern_is_a_flag_a_layer_or_a_period() {
    let windows = |model: Model| -> Vec<bool> {
        let spec = Model { layers: 4, ..model }.spec().expect("a sound file");
        let window = |mixer: &Mixer| match mixer {
            Mixer::Attention(a) => a.window.is_some(),
        };
        spec.layers.iter().map(|layer| window(&layer.mixer)).collect()
    };
    const KEY: &str = "attention.sliding_window_pattern";
    assert_eq!(windows(gemma3()), [true; 4]);
    assert_eq!(windows(gemma3().number(KEY, 2)), [true, false, true, false]);
    assert_eq!(windows(gemma3().number(KEY, 1)), [false; 4]);
    assert_eq!(windows(gemma3().number(KEY, 0)), [true; 4]);
    let flags = [&BOOL.to_le_bytes()[..], &4u64.to_le_bytes(), &[0, 1, 1, 0]].concat();
    assert_eq!(windows(gemma3().entry(KEY, ARRAY, flags)), [false, true, true, false]);
}

#[test]
fn a_head_that_no_kernel_serves_is_refused_at_load() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("small.gguf");
    let load = |model: Model| {
        std::fs::write(&path, model.bytes()).expect("the scratch folder can be written");
        let options = LoadOptions { threads: 1, ..LoadOptions::default() };
        LoadedModel::load(&path, &options, &mut |_| {}).map(drop)
    };
    load(llama()).expect("32 dimensions a head are served");
    let refused = load(Model { head_dim: 8, ..llama() }).expect_err("8 are not");
    assert!(matches!(refused, LoadError::Runtime(_)));
    assert_eq!(
        refused.to_string(),
        "key head dimension: 8 is not supported by the cpu backend; multiples of 16 from 16 to 256 are"
    );
}

#[test]
fn the_way_to_pool_is_read() {
    let pooling = |model: Model| model.spec().expect("a sound model").pooling;
    assert_eq!(pooling(llama()), Ok(Pooling::Last), "the file says nothing");
    assert_eq!(pooling(llama().number("pooling_type", 1)), Ok(Pooling::Mean));
    assert_eq!(pooling(llama().number("pooling_type", 4)), Err(4), "it ranks");
}
