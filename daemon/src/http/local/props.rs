//! `/props`: what a model is, and what a request gets that asks for nothing else.

use crate::http::problem::Problem;
use crate::http::{Http, models};
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zllm_engine::sampling::SamplingParams;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Query {
    model: Option<String>,
}

/// A model's properties.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Props {
    default_generation_settings: Defaults,
    /// Requests that are answered at one time.
    total_slots: u32,
    model_alias: String,
    model_path: String,
    /// Jinja; empty when the model has none.
    chat_template: String,
    bos_token: String,
    eos_token: String,
    modalities: Modalities,
    build_info: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Defaults {
    /// Tokens of the context.
    n_ctx: usize,
    /// How an answer is sampled, and the most tokens that it may have (`n_predict`).
    params: Map<String, Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Modalities {
    vision: bool,
    audio: bool,
}

pub(super) async fn show(http: web::Data<Http>, query: web::Query<Query>) -> Result<HttpResponse, Problem> {
    let services = &http.services;
    let model = models::meant(&http, query.into_inner().model).await?;
    let customs = services.with_text(&model, |text| (text.customs(), text.facts().context_tokens));
    let (customs, n_ctx) = customs.await?;
    let Value::Object(mut params) =
        serde_json::to_value(SamplingParams::default()).expect("numbers and lists")
    else {
        unreachable!("a struct is an object");
    };
    params.insert("n_predict".to_owned(), services.default_max_tokens.into());
    Ok(HttpResponse::Ok().json(Props {
        default_generation_settings: Defaults { n_ctx, params },
        total_slots: services.queue().await?.running_limit,
        model_path: services.settings(&model)?.path.display().to_string(),
        model_alias: model,
        chat_template: customs.template.unwrap_or_default(),
        bos_token: customs.bos_token,
        eos_token: customs.eos_token,
        modalities: Modalities { vision: false, audio: false },
        build_info: concat!("zllmd ", env!("CARGO_PKG_VERSION")),
    }))
}
