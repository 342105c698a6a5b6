//! The daemon at a glance, and its models.

use super::Done;
use crate::http::Http;
use crate::http::models::known;
use crate::http::problem::{Kind, Problem};
use crate::http::router::{Operation, Router};
use crate::services::submit;
use actix_web::web::{self, Json};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use zllm_wire::{InspectTarget, ModelInfo, Status};

pub(super) fn routes(router: &mut Router) {
    router.get(
        "/zllm/v1/status",
        web::to(status),
        Operation::new("Tell of the daemon at a glance").gives::<Status>(),
    );
    router.get("/zllm/v1/models", web::to(list), Operation::new("List the models").gives::<Models>());
    router.post(
        "/zllm/v1/models/{model}/load",
        web::to(load),
        Operation::new("Load a model; answered when it is loaded").gives::<ModelInfo>(),
    );
    router.post(
        "/zllm/v1/models/{model}/unload",
        web::to(unload),
        Operation::new("Unload a model when its jobs have ended").gives::<Done>(),
    );
    router.get(
        "/zllm/v1/models/{model}/inspection",
        web::to(inspect),
        Operation::new("Tell what a model's file is, and what of it would fit").gives::<Map<String, Value>>(),
    );
}

/// Every model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Models")]
struct Models {
    models: Vec<ModelInfo>,
}

async fn status(http: web::Data<Http>) -> Result<Json<Status>, Problem> {
    Ok(Json(http.services.status().await?))
}

async fn list(http: web::Data<Http>) -> Result<Json<Models>, Problem> {
    Ok(Json(Models { models: http.services.models().await? }))
}

async fn load(http: web::Data<Http>, model: web::Path<String>) -> Result<Json<ModelInfo>, Problem> {
    known(&http, &model)?;
    http.services.with_text(&model, |_| ()).await?;
    let models = http.services.models().await?;
    let gone = || Problem::new(Kind::NoModel, format!("model {model} is gone again"));
    Ok(Json(models.into_iter().find(|info| info.name == *model).ok_or_else(gone)?))
}

async fn unload(http: web::Data<Http>, model: web::Path<String>) -> Result<Json<Done>, Problem> {
    known(&http, &model)?;
    http.services.unload(&model).await?;
    Ok(Json(Done {}))
}

async fn inspect(
    http: web::Data<Http>,
    model: web::Path<String>,
) -> Result<Json<Map<String, Value>>, Problem> {
    known(&http, &model)?;
    let json = submit::inspect(InspectTarget::Model(model.into_inner()), &http.services).await?;
    Ok(Json(serde_json::from_str(&json).expect("an inspection is an object")))
}
