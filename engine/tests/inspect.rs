//! What is told of model files: sound ones, ones that cannot be run, and ones that hardly say anything.

mod common;
mod gguf_writer;

use std::path::Path;

use gguf_writer::File;
use zllm_engine::{
    LoadOptions, LoadedModel,
    gguf::GgufFile,
    inspect::{Inspection, Memory},
};

fn open(name: &str) -> Inspection {
    Inspection::of(&GgufFile::open(&common::testdata(name)).expect("a reference file"), None)
}

fn made_up(file: File) -> Inspection {
    Inspection::of(&GgufFile::from_bytes(Path::new("made_up.gguf"), file.0).expect("a sound file"), None)
}

#[test]
fn a_small_model_is_told_whole() {
    let told = open("quants/llama-dense.q4_k_m.gguf");
    assert_eq!((&*told.architecture, told.runs, told.problems.len()), ("llama", true, 0));
    assert_eq!(
        (told.shape.layers, told.shape.width, told.shape.windowed_layers),
        (Some(2), Some(256), Some(0))
    );
    let kinds: Vec<_> = told.tensors.iter().map(|group| group.kind).collect();
    assert_eq!(kinds, ["embedding", "attention", "feed_forward", "norms", "output", "other"]);
    let formats = |kind: usize| -> Vec<_> { told.tensors[kind].formats.iter().map(|f| f.format).collect() };
    assert!(formats(1).contains(&"Q4_K") && formats(1).contains(&"Q6_K"), "{:?}", formats(1));
    assert_eq!(formats(3), ["F32"]);
    let bytes: u64 = told.tensors.iter().map(|group| group.bytes).sum();
    assert!(bytes == told.weight_bytes && bytes < told.file_bytes);
    assert!((4.0..9.0).contains(&told.bits_per_weight), "{}", told.bits_per_weight);
}

#[test]
fn a_token_costs_what_the_loaded_model_takes() {
    for name in ["archs/llama-dense.f16.gguf", "archs/gemma3-dense.f16.gguf", "archs/qwen2-dense.f16.gguf"] {
        let told = open(name);
        assert!(!told.kv.is_empty());
        for cost in &told.kv {
            let kv_format = cost.format.parse().expect("a format's name");
            let options =
                LoadOptions { threads: 1, kv_budget_bytes: 1 << 22, kv_format, ..LoadOptions::default() };
            let loaded = LoadedModel::load(&common::testdata(name), &options, &mut |_| {}).expect("a model");
            let block_bytes = loaded.kv_block_bytes();
            assert_eq!(cost.bytes_per_token * 64.0, block_bytes as f64, "{name} {}", cost.format);
            let memory = Memory {
                total_bytes: 0,
                available_bytes: told.weight_bytes + 9 * block_bytes + 5,
                kv_budget_bytes: 1 << 22,
            };
            let fit = told.fit(memory);
            let fitting = fit.kv.iter().find(|fit| fit.format == cost.format).expect("the same formats");
            assert!(fit.weights_fit && fit.left_bytes == 9 * block_bytes + 5);
            assert_eq!(
                (fitting.memory_tokens, fitting.budget_tokens),
                (9 * 64, u64::from(loaded.kv_blocks()) * 64)
            );
            assert_eq!(
                fitting.longest_sequence_tokens,
                (9 * 64).min(told.context_tokens.expect("it says it"))
            );
        }
        let none = told.fit(Memory { total_bytes: 1, available_bytes: 1, kv_budget_bytes: 0 });
        assert!(!none.weights_fit && none.kv.iter().all(|fit| fit.memory_tokens + fit.budget_tokens == 0));
    }
}

#[test]
fn real_models_say_their_tokenizers_and_templates() {
    for name in common::MODELS {
        let told = Inspection::of(&GgufFile::open(&common::model(name)).expect("a model"), None);
        assert!(told.runs && told.problems.is_empty(), "{name}: {:?}", told.problems);
        assert_eq!((&told.tokenizer.problem, &told.template.problem), (&None, &None), "{name}");
        // The file of gemma3-270m brings none.
        assert_eq!(told.template.present, name != "gemma3-270m", "{name}");
        assert_eq!(told.template.first_line.is_some(), told.template.present, "{name}");
        let eos = told.tokenizer.eos.expect("it has one");
        assert!(!eos.text.is_empty() && told.tokenizer.tokens > Some(eos.id.into()), "{name}");
    }
}

#[test]
fn a_model_that_cannot_be_run_is_told_with_the_reason() {
    let file = File::new(1, 5)
        .text("general.architecture", "zebra9")
        .number("zebra9.block_count", 3)
        .number("zebra9.attention.head_count", 4)
        .number("zebra9.embedding_length", 64)
        .text("tokenizer.ggml.model", "runes")
        .tensor("blk.0.attn_q.weight", &[32], gguf_writer::I8, 0)
        .zeros(64);
    let told = made_up(file);
    assert_eq!((told.shape.layers, told.shape.key_dim, told.shape.kv_heads), (Some(3), Some(16), Some(4)));
    assert!(!told.runs && told.kv.is_empty());
    assert!(told.problems[0].contains("zebra9"), "{:?}", told.problems);
    assert!(told.problems[1].contains("I8"), "{:?}", told.problems);
    assert!(told.tokenizer.problem.as_ref().is_some_and(|problem| problem.contains("runes")));
    assert!(!told.template.present);
    assert_eq!(told.fit(Memory { total_bytes: 9, available_bytes: 9, kv_budget_bytes: 9 }).kv, []);
}

#[test]
fn a_file_that_says_nothing_is_still_told() {
    let told = made_up(File::new(0, 1).text("general.architecture", "llama"));
    assert_eq!((told.parameters, told.weight_bytes, told.bits_per_weight), (0, 0, 0.0));
    assert_eq!((told.shape.layers, told.context_tokens), (None, None));
    assert!(!told.runs && told.tokenizer.problem.is_some());
    let odd = File::new(0, 3)
        .text("general.architecture", "llama")
        .text("llama.block_count", "two")
        .number("tokenizer.chat_template", 7);
    let told = made_up(odd);
    assert_eq!(told.shape.layers, None);
    assert!(told.template.present && told.template.problem.is_some());
}
