//! Errors in the words of the API whose path was asked.
//!
//! Handlers return a [`Problem`]; [`super::edge`] is the one place that turns it into an error object, so that a problem found
//! before any handler (no key, a wrong path, a method that it lacks) is told as the API's clients expect it too.

use super::anthropic::models;
use super::problem::{Kind, Problem};
use actix_web::HttpResponse;
use actix_web::dev::ServiceRequest;
use actix_web::http::header::{HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use schemars::JsonSchema;
use serde::Serialize;

/// Whose words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's; llama-server, our own API and the operators' pages have the same.
    OpenAi,
    Anthropic,
    Ollama,
}

/// OpenAI's error object.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OpenAiError {
    error: OpenAiErrorBody,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OpenAiErrorBody {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field of the request that it is about.
    param: Option<String>,
    code: Option<&'static str>,
}

/// Anthropic's error object.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AnthropicError {
    /// `error`.
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicErrorBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnthropicErrorBody {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

/// Ollama's error object.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OllamaError {
    error: String,
}

/// What a request is called in logs and answers.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) String);

impl Dialect {
    /// That of a path.
    pub(super) fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }

    /// That of a request: the list of models is there in two.
    pub(super) fn of_request(request: &ServiceRequest) -> Self {
        let path = request.path();
        let of_models = path == "/v1/models" || path.starts_with("/v1/models/");
        if of_models && models::is_asked(request.headers()) { Self::Anthropic } else { Self::of(path) }
    }

    /// The error object, of answers and of streams.
    pub(super) fn error(self, problem: &Problem) -> serde_json::Value {
        let object = match self {
            Self::OpenAi => serde_json::to_value(OpenAiError::new(problem)),
            Self::Anthropic => serde_json::to_value(AnthropicError::new(problem, None)),
            Self::Ollama => serde_json::to_value(OllamaError { error: problem.message.clone() }),
        };
        object.expect("our own types become JSON")
    }

    /// The whole answer.
    pub(super) fn answer(self, problem: &Problem, id: &RequestId) -> HttpResponse {
        let mut response = HttpResponse::build(problem.status());
        if let Some(seconds) = problem.retry_after_s() {
            response.insert_header((RETRY_AFTER, seconds));
        }
        if problem.kind == Kind::Unauthenticated {
            response.insert_header((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"zllm\"")));
        }
        match self {
            Self::Anthropic => response.json(AnthropicError::new(problem, Some(id.0.clone()))),
            _ => response.json(self.error(problem)),
        }
    }

    /// The header with a request's id.
    pub(super) fn id_header(self) -> HeaderName {
        match self {
            Self::Anthropic => HeaderName::from_static("request-id"),
            _ => HeaderName::from_static("x-request-id"),
        }
    }
}

impl OpenAiError {
    fn new(problem: &Problem) -> Self {
        let (kind, code) = match problem.kind {
            Kind::Invalid | Kind::NotFound | Kind::Conflict | Kind::Method | Kind::Slow => {
                ("invalid_request_error", None)
            }
            Kind::TooLarge => ("invalid_request_error", Some("request_too_large")),
            Kind::TooLong => ("invalid_request_error", Some("context_length_exceeded")),
            Kind::NoModel => ("invalid_request_error", Some("model_not_found")),
            Kind::Unauthenticated => ("invalid_request_error", Some("invalid_api_key")),
            Kind::Forbidden => ("invalid_request_error", Some("insufficient_permissions")),
            Kind::Busy { .. } => ("rate_limit_error", Some("rate_limit_exceeded")),
            Kind::Unavailable => ("server_error", Some("unavailable")),
            Kind::Failed | Kind::Ended { .. } => ("server_error", None),
        };
        let (message, param) = (problem.message.clone(), problem.param.clone());
        Self { error: OpenAiErrorBody { message, kind, param, code } }
    }
}

impl AnthropicError {
    fn new(problem: &Problem, request_id: Option<String>) -> Self {
        let kind = match problem.kind {
            Kind::Invalid | Kind::TooLong | Kind::Conflict | Kind::Method | Kind::Slow => {
                "invalid_request_error"
            }
            Kind::TooLarge => "request_too_large",
            Kind::NoModel | Kind::NotFound => "not_found_error",
            Kind::Unauthenticated => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::Busy { .. } => "rate_limit_error",
            Kind::Unavailable => "overloaded_error",
            Kind::Failed | Kind::Ended { .. } => "api_error",
        };
        let message = problem.message.clone();
        Self { kind: "error", error: AnthropicErrorBody { kind, message }, request_id }
    }
}
