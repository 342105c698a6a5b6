//! Looks into a model file: what it is, and what of it would fit beside what this machine has in use already. Reads the
//! file's metadata only; loads nothing.

use crate::config::ModelDefaults;
use crate::device::cpu::memory_bytes;
use serde::Serialize;
use std::io::ErrorKind;
use std::path::Path;
use zllm_engine::gguf::{GgufError, GgufErrorKind, GgufFile};
use zllm_engine::inspect::{Fit, Inspection, Memory};

/// Why a file was not inspected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    /// The file, or the first part of a split model, is not there.
    #[error("there is no file {0}")]
    NotFound(String),
    /// It is no model file, or one that contradicts itself.
    #[error(transparent)]
    Gguf(GgufError),
}

/// What is told of a file; its keys are in `docs/API.md`.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    inspection: Inspection,
    /// `None` where the system does not say how much memory there is.
    fit: Option<Fit>,
}

/// The file at `path` as a JSON object; `settings` say what keys and values may take.
///
/// # Errors
/// The file is not there or cannot be read as a model file. One that can be read but not run is no error.
pub(crate) fn inspect(path: &Path, settings: &ModelDefaults) -> Result<String, InspectError> {
    let file = GgufFile::open(path).map_err(|error| match &error.kind {
        GgufErrorKind::Open(e) if e.kind() == ErrorKind::NotFound => {
            InspectError::NotFound(path.display().to_string())
        }
        _ => InspectError::Gguf(error),
    })?;
    let inspection = Inspection::of(&file, settings.tokenizer_pre.as_deref());
    let memory = memory_bytes("MemTotal").zip(memory_bytes("MemAvailable"));
    let fit = memory.map(|(total_bytes, available_bytes)| {
        let kv_budget_bytes = settings.kv_budget_bytes;
        inspection.fit(Memory { total_bytes, available_bytes, kv_budget_bytes })
    });
    let report = Report { inspection, fit };
    Ok(serde_json::to_string(&report).expect("numbers, texts and lists are JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::tests::defaults;

    fn testdata(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
    }

    #[test]
    fn a_model_is_told_with_what_fits() {
        let json = inspect(&testdata("archs/llama-dense.f16.gguf"), &defaults()).expect("a model");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["architecture"], &json["runs"]), (&"llama".into(), &true.into()));
        let fit = &json["fit"];
        assert_eq!(fit["memory"]["kv_budget_bytes"], defaults().kv_budget_bytes);
        assert!(fit["memory"]["available_bytes"].as_u64() <= fit["memory"]["total_bytes"].as_u64());
        assert_eq!(fit["kv"].as_array().map(Vec::len), json["kv"].as_array().map(Vec::len));
    }

    #[test]
    fn a_missing_file_and_a_broken_one_are_told_apart() {
        let missing = inspect(Path::new("/no/such/model.gguf"), &defaults()).expect_err("no file");
        assert_eq!(missing.to_string(), "there is no file /no/such/model.gguf");
        let broken = inspect(&testdata("README.md"), &defaults()).expect_err("no model");
        assert!(matches!(broken, InspectError::Gguf(_)), "{broken}");
        assert!(broken.to_string().contains("not a GGUF file"), "{broken}");
    }
}
