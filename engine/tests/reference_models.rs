//! The three real models against an independent f32 engine: log probabilities and greedy tokens on the oracle, KL
//! divergence on the CPU backend.

mod common;

use serde_json::Value;
use zllm_engine::{
    LoadOptions, LoadedModel, Oracle, StepRow, Want, gguf::GgufFile, sampling::log_probabilities,
    spec::ModelSpec,
};

/// Name, and the mean KL that llama.cpp's own packed kernels have against the same rows.
const MODELS: [(&str, f64); 3] =
    [("smollm2-135m", 0.0047), ("gemma3-270m", 0.0070), ("qwen2.5-coder-0.5b", 0.0010)];
/// A model, its references, and what the oracle's log probabilities may be off by. The engine that made `gemma3-270m.json` looks GELU up
/// in a table of f16 values; `gemma3-270m.exact.json` has the same rows from a plain f64 pass (gemma3_exact.py), which
/// the oracle must equal, and which is itself 1.1e-2 off the table's at worst.
const ORACLE: [(&str, &[(&str, f32)]); 3] = [
    ("smollm2-135m", &[("smollm2-135m", 2e-3)]),
    ("gemma3-270m", &[("gemma3-270m.exact", 2e-3), ("gemma3-270m", 1.2e-2)]),
    ("qwen2.5-coder-0.5b", &[("qwen2.5-coder-0.5b", 2e-3)]),
];
/// Log probabilities below this are compared by nobody: they are far in the tail.
const COMPARED_ABOVE: f64 = -6.0;

/// One prompt of the reference: the tokens fed (prompt, then greedy) and the eight likeliest after each.
struct Prompt {
    tokens: Vec<u32>,
    top: Vec<Vec<(u32, f64)>>,
    prompt_tokens: usize,
    greedy: Vec<u32>,
}

fn prompts(name: &str) -> Vec<Prompt> {
    let json = common::json(&format!("models/{name}.json"));
    let pair = |v: &Value| (v[0].as_u64().expect("an id") as u32, v[1].as_f64().expect("a number"));
    let prompt = |p: &Value| {
        let rows = p["rows"].as_array().expect("rows");
        Prompt {
            tokens: rows.iter().map(|r| r["token"].as_u64().expect("a token") as u32).collect(),
            top: rows.iter().map(|r| r["top"].as_array().expect("top").iter().map(pair).collect()).collect(),
            prompt_tokens: common::ids(&p["prompt_ids"]).len(),
            greedy: common::ids(&p["greedy_ids"]),
        }
    };
    json["logprobs"].as_array().expect("prompts").iter().map(prompt).collect()
}

#[test]
fn oracle_log_probabilities_and_greedy_tokens_equal_the_reference() {
    for (name, references) in ORACLE {
        let file = GgufFile::open(&common::model(name)).expect("a model");
        let spec = ModelSpec::read(&file, None).expect("a supported family");
        let mut oracle = Oracle::load(&file, spec, 2).expect("decodable");
        // References of one model have the same prompts, so each is computed once.
        let fed: Vec<_> = prompts(references[0].0).into_iter().map(|prompt| prompt.tokens).collect();
        let computed: Vec<_> = fed
            .iter()
            .map(|tokens| {
                oracle.reset();
                oracle.forward(tokens)
            })
            .collect();
        for (rows, allowed) in references {
            let prompts = prompts(rows);
            assert!(prompts.iter().map(|prompt| &prompt.tokens).eq(&fed), "{rows}: other prompts");
            let (mut worst, mut compared) = (0f32, 0);
            for (prompt, logits) in prompts.iter().zip(&computed) {
                for (row, top) in logits.iter().zip(&prompt.top) {
                    let found = all_log_probabilities(row);
                    for (id, wanted) in top.iter().filter(|(_, lp)| *lp > COMPARED_ABOVE) {
                        worst = worst.max((found[*id as usize] - *wanted as f32).abs());
                        compared += 1;
                    }
                }
                // The fed tokens are the reference's greedy ones, so equal choices at every place are equal texts.
                let answer = &logits[prompt.prompt_tokens - 1..];
                let greedy: Vec<u32> = answer.iter().map(|row| log_probabilities(row, 1)[0].0).collect();
                assert_eq!(greedy, prompt.greedy, "{rows}: greedy tokens");
            }
            println!(
                "{rows}: {compared} log probabilities, worst difference {worst:.2e} (allowed {allowed:.1e})"
            );
            assert!(compared > 500 && worst <= *allowed, "{rows}: {worst} off");
        }
    }
}

#[test]
fn cpu_backend_is_as_near_as_llama_cpp() {
    for (name, allowed) in MODELS {
        let options = LoadOptions { max_batch_rows: 64, kv_budget_bytes: 64 << 20, ..LoadOptions::default() };
        let mut model = LoadedModel::load(&common::model(name), &options, &mut |_| {}).expect("a model");
        let (mut sum, mut rows, mut same) = (0.0, 0, 0);
        for prompt in prompts(name) {
            let run = StepRow { tokens: &prompt.tokens, position: 0, blocks: &[0, 1], want: Want::All };
            let mut logits = model.step(&[run]).expect("a step");
            for (i, top) in prompt.top.iter().enumerate() {
                let found = all_log_probabilities(logits.row_mut(i));
                sum +=
                    top.iter().map(|(id, lp)| lp.exp() * (lp - f64::from(found[*id as usize]))).sum::<f64>();
                rows += 1;
                same += usize::from(log_probabilities(logits.row_mut(i), 1)[0].0 == top[0].0);
            }
        }
        let mean = sum / f64::from(rows);
        println!(
            "{name}: mean KL {mean:.5} (llama.cpp {allowed:.4}), {same} of {rows} likeliest tokens equal"
        );
        assert!(mean <= allowed, "{name}: mean KL {mean}");
    }
}

/// Natural-log softmax of a row.
fn all_log_probabilities(row: &[f32]) -> Vec<f32> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    row.iter().map(|x| (f64::from(x - most) - sum.ln()) as f32).collect()
}
