//! Looks into a model file: what it is, and what of it would fit beside what this machine has in use already. Reads the
//! file's metadata only; loads nothing.

use crate::config::{ModelDefaults, TemplateSetting};
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

/// What is told of a file; its keys are in `docs/SOCKET.md`.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    inspection: Inspection,
    /// What this daemon's configuration says of the model.
    settings: Settings,
    /// `None` where the system does not say how much memory there is.
    fit: Option<Fit>,
}

#[derive(Serialize)]
struct Settings {
    kv_format: String,
    context_tokens: Option<u64>,
    tokenizer_pre: Option<String>,
    /// A built-in one's name or a file's path.
    template: Option<String>,
}

/// The file at `path` as a JSON object, with what it would be under these settings.
///
/// # Errors
/// The file is not there or cannot be read as a model file. One that can be read but not run is no error.
pub(crate) fn inspect(
    path: &Path,
    settings: &ModelDefaults,
    template: Option<&TemplateSetting>,
) -> Result<String, InspectError> {
    let file = GgufFile::open(path).map_err(|error| match &error.kind {
        GgufErrorKind::Open(e) if e.kind() == ErrorKind::NotFound => {
            InspectError::NotFound(path.display().to_string())
        }
        _ => InspectError::Gguf(error),
    })?;
    let inspection = Inspection::of(&file, settings.tokenizer_pre.as_deref());
    let memory = memory_bytes("MemTotal").zip(memory_bytes("MemAvailable"));
    let context_tokens = settings.context_tokens.map(|tokens| tokens as u64);
    let fit = memory.map(|(total_bytes, available_bytes)| {
        let kv_budget_bytes = settings.kv_budget_bytes;
        let mut fit = inspection.fit(Memory { total_bytes, available_bytes, kv_budget_bytes });
        for kv in &mut fit.kv {
            kv.longest_sequence_tokens = kv.longest_sequence_tokens.min(context_tokens.unwrap_or(u64::MAX));
        }
        fit
    });
    let settings = Settings {
        kv_format: settings.kv_format.to_string(),
        context_tokens,
        tokenizer_pre: settings.tokenizer_pre.clone(),
        template: template.map(|template| match template {
            TemplateSetting::Builtin(name) => name.clone(),
            TemplateSetting::File(path) => path.display().to_string(),
        }),
    };
    let report = Report { inspection, settings, fit };
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
        let json = inspect(&testdata("archs/llama-dense.f16.gguf"), &defaults(), None).expect("a model");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["architecture"], &json["runs"]), (&"llama".into(), &true.into()));
        let fit = &json["fit"];
        assert_eq!(fit["memory"]["kv_budget_bytes"], defaults().kv_budget_bytes);
        assert!(fit["memory"]["available_bytes"].as_u64() <= fit["memory"]["total_bytes"].as_u64());
        assert_eq!(fit["kv"].as_array().map(Vec::len), json["kv"].as_array().map(Vec::len));
    }

    #[test]
    fn what_the_configuration_says_of_a_model_is_told() {
        let settings = ModelDefaults { context_tokens: Some(100), ..defaults() };
        let template = TemplateSetting::Builtin("gemma".into());
        let json =
            inspect(&testdata("archs/llama-dense.f16.gguf"), &settings, Some(&template)).expect("a model");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let told = serde_json::json!({
            "kv_format": "i16", "context_tokens": 100, "tokenizer_pre": null, "template": "gemma"
        });
        assert_eq!(json["settings"], told);
        assert_eq!(json["context_tokens"], 256, "the file's own");
        for kv in json["fit"]["kv"].as_array().expect("formats") {
            assert_eq!(kv["longest_sequence_tokens"], 100);
        }
    }

    #[test]
    fn a_missing_file_and_a_broken_one_are_told_apart() {
        let missing = inspect(Path::new("/no/such/model.gguf"), &defaults(), None).expect_err("no file");
        assert_eq!(missing.to_string(), "there is no file /no/such/model.gguf");
        let broken = inspect(&testdata("README.md"), &defaults(), None).expect_err("no model");
        assert!(matches!(broken, InspectError::Gguf(_)), "{broken}");
        assert!(broken.to_string().contains("not a GGUF file"), "{broken}");
    }
}
