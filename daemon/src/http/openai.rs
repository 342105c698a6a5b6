//! OpenAI's API: models, chat completions and completions, as OpenAI's own clients expect them.
//!
//! Fields that we do not know are ignored, as OpenAI does. What we know and cannot honour is refused by its name.

mod answer;
mod chat;
mod completions;
mod models;
mod params;

use super::problem::{Kind, Problem};
use actix_web::http::StatusCode;
use actix_web::http::header::RETRY_AFTER;
use actix_web::{HttpResponse, ResponseError, web};
use serde_json::{Value, json};

/// Where it is. Any other path below `/v1` is answered with this API's error.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    let scope = web::scope("/v1")
        .service(web::resource("/models").get(models::list).default_service(web::to(method)))
        .service(web::resource("/models/{model:.*}").get(models::one).default_service(web::to(method)))
        .service(web::resource("/chat/completions").post(chat::create).default_service(web::to(method)))
        .service(web::resource("/completions").post(completions::create).default_service(web::to(method)))
        .default_service(web::to(nothing));
    config.service(scope);
}

async fn method() -> Result<HttpResponse, Refused> {
    Err(Problem::new(Kind::Method, "this path is not asked with this method").into())
}

async fn nothing(request: actix_web::HttpRequest) -> Result<HttpResponse, Refused> {
    let path: String = request.path().chars().take(200).collect();
    Err(Problem::new(Kind::NotFound, format!("there is nothing at {path}")).into())
}

/// A problem in OpenAI's words.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message)]
struct Refused(#[from] Problem);

/// OpenAI's error object, of answers and of streams.
fn error_object(problem: &Problem) -> Value {
    let (kind, code) = match problem.kind {
        Kind::Invalid | Kind::NotFound | Kind::Method | Kind::Slow => ("invalid_request_error", None),
        Kind::TooLarge => ("invalid_request_error", Some("request_too_large")),
        Kind::TooLong => ("invalid_request_error", Some("context_length_exceeded")),
        Kind::NoModel => ("invalid_request_error", Some("model_not_found")),
        Kind::Busy { .. } => ("rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Unavailable => ("server_error", Some("unavailable")),
        Kind::Failed => ("server_error", None),
    };
    json!({ "error": { "message": problem.message, "type": kind, "param": problem.param, "code": code } })
}

impl ResponseError for Refused {
    fn status_code(&self) -> StatusCode {
        self.0.status()
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        if let Some(seconds) = self.0.retry_after_s() {
            response.insert_header((RETRY_AFTER, seconds));
        }
        response.json(error_object(&self.0))
    }
}
