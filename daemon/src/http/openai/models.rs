//! `/v1/models`: what can be asked.

use crate::http::Http;
use crate::http::anthropic::models as anthropic;
use crate::http::problem::{Kind, Problem};
use actix_web::{HttpRequest, HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;
use zllm_wire::ModelInfo;

/// All models.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelList")]
pub(super) struct List {
    /// `list`.
    object: &'static str,
    data: Vec<Model>,
}

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Model {
    id: String,
    /// `model`.
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens; once it is known. Not OpenAI's; known to clients of other local servers.
    context_length: Option<u32>,
}

impl From<&ModelInfo> for Model {
    fn from(model: &ModelInfo) -> Self {
        Self {
            id: model.name.clone(),
            object: "model",
            created: 0,
            owned_by: "zllm",
            context_length: model.context_tokens,
        }
    }
}

/// All of them, in the words of the API whose client asks.
pub(super) async fn list(request: HttpRequest, http: web::Data<Http>) -> Result<HttpResponse, Problem> {
    let models = http.services.models().await?;
    if anthropic::is_asked(request.headers()) {
        return Ok(anthropic::list(&models));
    }
    let data = models.iter().map(Model::from).collect();
    Ok(HttpResponse::Ok().json(List { object: "list", data }))
}

/// One of them.
pub(super) async fn one(
    request: HttpRequest,
    http: web::Data<Http>,
    name: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let models = http.services.models().await?;
    let model = models.iter().find(|model| model.name == *name).ok_or_else(|| {
        let shown: String = name.chars().take(200).collect();
        Problem::new(
            Kind::NoModel,
            format!("there is no model {shown:?}; /v1/models lists those that are there"),
        )
    })?;
    if anthropic::is_asked(request.headers()) {
        return Ok(anthropic::one(model));
    }
    Ok(HttpResponse::Ok().json(Model::from(model)))
}
