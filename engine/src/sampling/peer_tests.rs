//! Each sampler against llama.cpp's of the same name: `testdata/sampling_twins.json`, made by `sampling_twins.py` beside it.

use std::{env, path::PathBuf};

use serde_json::Value;

use super::candidates::Candidate;
use super::distribution::{Distribution, Filters};
use super::dry::{Dry, DryBreakers};
use super::penalties::Penalties;
use super::{SamplingParams, mirostat, temperature, typical, xtc};
use crate::gguf::GgufFile;
use crate::tokenizer::Tokenizer;

fn cases(name: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/sampling_twins.json");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut twins: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let Value::Array(cases) = twins[name].take() else { panic!("{path} has no {name}") };
    assert!(!cases.is_empty(), "{path} has an empty {name}");
    cases
}

fn number(case: &Value, field: &str) -> f32 {
    case[field].as_f64().unwrap_or_else(|| panic!("{field} is no number")) as f32
}

fn numbers(case: &Value, field: &str) -> Vec<f32> {
    serde_json::from_value(case[field].clone()).expect("a list of numbers")
}

fn ids(case: &Value, field: &str) -> Vec<u32> {
    serde_json::from_value(case[field].clone()).expect("a list of ids")
}

const OPEN: Filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

fn kept(logits: &[f32], filters: &Filters) -> Vec<Candidate> {
    let mut kept = Vec::new();
    let mut distribution = Distribution::default();
    distribution.read(logits);
    distribution.keep(&mut logits.to_vec(), filters, &mut kept);
    kept
}

fn ids_of(candidates: &[Candidate]) -> Vec<u32> {
    candidates.iter().map(|candidate| candidate.id).collect()
}

#[test]
fn filters_keep_what_the_peer_keeps() {
    for case in cases("filters") {
        let (logits, value) = (numbers(&case, "logits"), number(&case, "value"));
        let field = case["field"].as_str().expect("a field");
        let filters = match field {
            "top_k" => Filters { top_k: value as usize, ..OPEN },
            "top_p" => Filters { top_p: value, ..OPEN },
            "min_p" => Filters { min_p: value, ..OPEN },
            _ => OPEN,
        };
        let mut found = kept(&logits, &filters);
        match field {
            "typical_p" => typical::keep(&mut found, value, &mut Vec::new()),
            "xtc_threshold" => xtc::leave_out(&mut found, value),
            _ => {}
        }
        // Tokens of less than e^-28 of the most likely one's probability are never drawn here, so they are not kept.
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let is_drawn = |id: &u32| logits[*id as usize] > max - 28.0;
        let found: Vec<u32> = ids_of(&found).into_iter().filter(is_drawn).collect();
        let expected: Vec<u32> = ids(&case, "kept").into_iter().filter(is_drawn).collect();
        assert_eq!(found, expected, "{field} {value}");
    }
}

#[test]
fn dynamic_temperatures_are_the_peers() {
    for case in cases("dynamic_temperatures") {
        let [base, range, exponent] =
            ["temperature", "dynatemp_range", "dynatemp_exponent"].map(|field| number(&case, field));
        let found = temperature::dynamic(&numbers(&case, "logits"), base, range, exponent);
        let expected = number(&case, "expect");
        assert!((found / expected - 1.0).abs() < 1e-5, "{found}, the peer has {expected}");
    }
}

#[test]
fn mirostats_bound_follows_as_the_peers() {
    for case in cases("mirostats") {
        let (tau, eta) = (number(&case, "mirostat_tau"), number(&case, "mirostat_eta"));
        let mut mu = 2.0 * tau;
        for step in case["steps"].as_array().expect("steps") {
            let mut candidates = kept(&numbers(step, "logits"), &OPEN);
            mirostat::keep(&mut candidates, mu);
            assert_eq!(ids_of(&candidates), ids(step, "kept"), "tau {tau}, eta {eta}, mu {mu}");
            let drawn = step["drawn"].as_u64().expect("an id") as u32;
            let drawn = candidates.iter().find(|candidate| candidate.id == drawn).expect("it was kept");
            mu = mirostat::follow(mu, tau, eta, mirostat::surprise(&candidates, *drawn));
        }
    }
}

#[test]
fn penalties_are_the_peers() {
    for case in cases("penalties") {
        let params = SamplingParams {
            repeat_last_n: number(&case, "repeat_last_n") as u32,
            repeat_penalty: number(&case, "repeat_penalty"),
            frequency_penalty: number(&case, "frequency_penalty"),
            presence_penalty: number(&case, "presence_penalty"),
            ..SamplingParams::greedy()
        };
        let mut logits = numbers(&case, "logits");
        Penalties::new(&params, &ids(&case, "tokens")).apply(&mut logits);
        for (found, expected) in logits.iter().zip(numbers(&case, "expect")) {
            assert!((found - expected).abs() < 1e-5, "{found}, the peer has {expected}");
        }
    }
}

fn tokenizer(model: &str) -> Tokenizer {
    let set = |key: &str| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("ZLLM_MODELS_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("zllm/models")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/zllm/models")))
        .expect("HOME is not set");
    let path = folder.join(format!("{model}.gguf"));
    assert!(path.is_file(), "{} is missing; `cargo xtask models` fetches it", path.display());
    let file = GgufFile::open(&path).expect("a model file");
    Tokenizer::from_gguf(&file).expect("a tokenizer")
}

#[test]
fn dry_punishes_what_the_peer_punishes_with_breakers_of_real_vocabularies() {
    let tokenizers = ["smollm2-135m", "gemma3-270m"].map(|model| (model, tokenizer(model)));
    let mut punished = 0;
    for case in cases("dries") {
        let (_, tokenizer) =
            tokenizers.iter().find(|(name, _)| case["model"] == *name).expect("one of the two");
        let breakers: Vec<String> =
            serde_json::from_value(case["dry_sequence_breakers"].clone()).expect("a list of texts");
        let params = SamplingParams {
            dry_multiplier: number(&case, "dry_multiplier"),
            dry_base: number(&case, "dry_base"),
            dry_allowed_length: number(&case, "dry_allowed_length") as u32,
            dry_penalty_last_n: number(&case, "dry_penalty_last_n") as u32,
            ..SamplingParams::greedy()
        };
        let tokens = ids(&case, "tokens");
        let mut dry = Dry::new(&params, DryBreakers::new(&breakers, tokenizer), &tokens).expect("it is on");
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        dry.apply(&mut logits);
        let found: Vec<(u32, f32)> =
            (0..).zip(&logits).filter(|(_, logit)| **logit != 0.0).map(|(id, logit)| (id, -logit)).collect();
        let expected: Vec<(u32, f32)> =
            serde_json::from_value(case["penalties"].clone()).expect("ids and numbers");
        assert_eq!(found.len(), expected.len(), "{found:?}, the peer has {expected:?}: {case}");
        for (found, expected) in found.iter().zip(&expected) {
            let is_same = found.0 == expected.0 && (found.1 / expected.1 - 1.0).abs() < 1e-5;
            assert!(is_same, "{found:?}, the peer has {expected:?}: {case}");
        }
        punished += found.len();
    }
    assert!(punished > 50, "only {punished} tokens were punished in all cases");
}
