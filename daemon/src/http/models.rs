//! Which model a request means, and whether there is one of that name.

use super::Http;
use super::problem::{Kind, Problem};
use crate::limits::{MAX_MODEL_NAME_BYTES, TOLD_MODELS};
use zllm_wire::ModelState;

/// # Errors
/// There is no model of that name.
pub(super) fn known(http: &Http, name: &str) -> Result<(), Problem> {
    if name.len() <= MAX_MODEL_NAME_BYTES && http.services.catalog.find(name).is_some() {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_MODEL_NAME_BYTES).collect();
    let message = format!("there is no model {shown:?}; /v1/models lists those that are there");
    Err(Problem { kind: Kind::NoModel, message, param: Some("model".to_owned()) })
}

/// The model of that name; of a request that names none, the only one that there is, or that is loaded.
///
/// # Errors
/// There is no such model, or several might be meant.
pub(super) async fn meant(http: &Http, name: Option<String>) -> Result<String, Problem> {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        known(http, &name)?;
        return Ok(name);
    }
    let models = http.services.models().await?;
    let loaded: Vec<_> = models.iter().filter(|model| model.state == ModelState::Loaded).collect();
    match (&models[..], &loaded[..]) {
        ([only], _) => Ok(only.name.clone()),
        (_, [only]) => Ok(only.name.clone()),
        ([], _) => Err(Problem::new(Kind::NoModel, "there is no model; `zllmctl pull` fetches one")),
        _ => {
            let names = models.iter().map(|model| model.name.as_str()).take(TOLD_MODELS);
            let names = names.collect::<Vec<_>>().join(", ");
            Err(Problem::of("model", format!("model is missing, and there are several: {names}")))
        }
    }
}
