//! `/v1/models` as Anthropic's clients expect it: those that say so by an `anthropic-version` header.

use actix_web::HttpResponse;
use actix_web::http::header::HeaderMap;
use serde::Serialize;
use zllm_wire::ModelInfo;

/// All models, on one page.
#[derive(Debug, Serialize)]
struct Page<'a> {
    data: Vec<Model<'a>>,
    has_more: bool,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    display_name: &'a str,
    /// Not known; Anthropic tells the epoch then, too.
    created_at: &'static str,
}

impl<'a> From<&'a ModelInfo> for Model<'a> {
    fn from(model: &'a ModelInfo) -> Self {
        let (id, display_name) = (&*model.name, &*model.name);
        Self { kind: "model", id, display_name, created_at: "1970-01-01T00:00:00Z" }
    }
}

/// Whether a request with these headers is one of theirs.
pub(in crate::http) fn is_asked(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// All of them.
pub(in crate::http) fn list(models: &[ModelInfo]) -> HttpResponse {
    let data: Vec<Model<'_>> = models.iter().map(Model::from).collect();
    let (first_id, last_id) =
        (models.first().map(|model| &*model.name), models.last().map(|model| &*model.name));
    HttpResponse::Ok().json(Page { data, has_more: false, first_id, last_id })
}

/// One of them.
pub(in crate::http) fn one(model: &ModelInfo) -> HttpResponse {
    HttpResponse::Ok().json(Model::from(model))
}
