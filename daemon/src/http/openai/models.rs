//! `/v1/models`: what can be asked.

use super::Refused;
use crate::http::Http;
use crate::http::problem::{Kind, Problem};
use actix_web::{HttpResponse, web};
use serde_json::{Value, json};
use zllm_wire::ModelInfo;

/// All of them.
pub(super) async fn list(http: web::Data<Http>) -> Result<HttpResponse, Refused> {
    let models = http.services.models().await.map_err(Problem::from)?;
    let models: Vec<Value> = models.iter().map(told).collect();
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": models })))
}

/// One of them.
pub(super) async fn one(http: web::Data<Http>, name: web::Path<String>) -> Result<HttpResponse, Refused> {
    let models = http.services.models().await.map_err(Problem::from)?;
    let model = models.iter().find(|model| model.name == *name).ok_or_else(|| {
        let shown: String = name.chars().take(200).collect();
        Problem::new(
            Kind::NoModel,
            format!("there is no model {shown:?}; /v1/models lists those that are there"),
        )
    })?;
    Ok(HttpResponse::Ok().json(told(model)))
}

fn told(model: &ModelInfo) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "zllm",
        // Not OpenAI's; known to clients of other local servers.
        "context_length": model.context_tokens,
    })
}
