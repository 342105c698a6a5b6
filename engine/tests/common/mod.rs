//! Reference data and real models for the tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The three real models of the tests.
pub(crate) const MODELS: [&str; 3] = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"];

/// A file of the tree's `testdata`.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}

/// A JSON file of the tree's `testdata`.
pub(crate) fn json(name: &str) -> Value {
    let path = testdata(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The file of a real model: `$ZLLM_MODELS_DIR`, else the user's cache.
pub(crate) fn model(name: &str) -> PathBuf {
    let set = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = set("ZLLM_MODELS_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("zllm/models")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/zllm/models")))
        .expect("HOME is not set");
    let path = dir.join(format!("{name}.gguf"));
    assert!(path.is_file(), "{} is missing; `cargo xtask models` fetches it", path.display());
    path
}

/// A JSON array of numbers.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array of ids").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Normalised mean square error of `found` against `wanted`.
pub(crate) fn nmse(found: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(wanted).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    error / wanted.iter().map(|x| square(f64::from(*x))).sum::<f64>()
}
