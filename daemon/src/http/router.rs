//! The routes of all APIs, and what OpenAPI says of them: both come from one call, so neither knows more than the other.
//!
//! Schemas are made from the Rust types that requests are read into and answers written from.

use super::dialect::{AnthropicError, Dialect, OllamaError, OpenAiError};
use super::problem::{Kind, Problem};
use actix_web::http::Method;
use actix_web::{HttpRequest, HttpResponse, Resource, Route, guard, web};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use zllm_wire::{BatchId, JobId, SessionId};

/// What is said of one operation.
pub(super) struct Operation {
    summary: &'static str,
    /// The types that its body is read into, all of them from the same object.
    body: Vec<SchemaOf>,
    body_type: &'static str,
    query: Option<SchemaOf>,
    answer: Option<SchemaOf>,
    answer_type: &'static str,
    /// The type of its other answer, if it has one: of a stream.
    stream_type: Option<&'static str>,
    status: u16,
}

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

impl Operation {
    /// One that takes nothing and answers with text.
    pub(super) fn new(summary: &'static str) -> Self {
        let json = "application/json";
        Self {
            summary,
            body: Vec::new(),
            body_type: json,
            query: None,
            answer: None,
            answer_type: json,
            stream_type: None,
            status: 200,
        }
    }

    /// Its body is a JSON object of this type; of several types if it is said again.
    pub(super) fn takes<T: JsonSchema>(mut self) -> Self {
        self.body.push(SchemaGenerator::subschema_for::<T>);
        self
    }

    /// Its body is of this media type.
    pub(super) fn takes_type(mut self, media: &'static str) -> Self {
        self.body_type = media;
        self
    }

    /// Its query has the fields of this type.
    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(T::json_schema);
        self
    }

    /// It answers with JSON of this type.
    pub(super) fn gives<T: JsonSchema>(mut self) -> Self {
        self.answer = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    /// It answers with bytes of this media type.
    pub(super) fn gives_type(mut self, media: &'static str) -> Self {
        self.answer_type = media;
        self
    }

    /// It answers with a stream of this media type, when asked to.
    pub(super) fn streams(mut self, media: &'static str) -> Self {
        self.stream_type = Some(media);
        self
    }

    fn told(&self, path: &str, generator: &mut SchemaGenerator) -> Value {
        let mut parameters: Vec<Value> = names_of(path)
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": named(name, generator) }))
            .collect();
        if let Some(query) = self.query {
            let object = query(generator);
            let required = object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            let fields = object.get("properties").and_then(Value::as_object).into_iter().flatten();
            parameters.extend(fields.map(|(name, schema)| {
                let required = required.iter().any(|required| required == name);
                json!({ "name": name, "in": "query", "required": required, "schema": without_null(schema) })
            }));
        }
        let mut content = Map::new();
        let schema = self.answer.map_or_else(|| json!({}), |answer| answer(generator).to_value());
        content.insert(self.answer_type.to_owned(), json!({ "schema": schema }));
        if let Some(stream) = self.stream_type {
            content.insert(stream.to_owned(), json!({ "schema": { "type": "string" } }));
        }
        let error = match Dialect::of(path) {
            Dialect::OpenAi => generator.subschema_for::<OpenAiError>(),
            Dialect::Anthropic => generator.subschema_for::<AnthropicError>(),
            Dialect::Ollama => generator.subschema_for::<OllamaError>(),
        };
        let mut told = json!({
            "summary": self.summary,
            "parameters": parameters,
            "responses": {
                self.status.to_string(): { "description": "done", "content": content },
                "default": {
                    "description": "not done, and why",
                    "content": { "application/json": { "schema": error } },
                },
            },
        });
        if !self.body.is_empty() || self.body_type != "application/json" {
            let mut schemas: Vec<Value> = self.body.iter().map(|body| body(generator).to_value()).collect();
            let schema = match schemas.len() {
                0 => json!({}),
                1 => schemas.remove(0),
                _ => json!({ "allOf": schemas }),
            };
            told["requestBody"] =
                json!({ "required": true, "content": { self.body_type: { "schema": schema } } });
        }
        told
    }
}

/// The schema of a field as a query has it: one that is not there is left out, never null.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(types) = schema.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|kind| kind != "null");
    }
    if let Some(any) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        any.retain(|one| one["type"] != "null");
    }
    schema
}

/// What an operation is called: its method, and its path with everything but letters and digits as `_`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// Whose API a path belongs to.
fn tag_of(path: &str) -> &'static str {
    match Dialect::of(path) {
        Dialect::Anthropic => "anthropic",
        Dialect::Ollama => "ollama",
        Dialect::OpenAi if path.starts_with("/v1/") => "openai",
        Dialect::OpenAi if path.starts_with("/zllm/") => "zllm",
        Dialect::OpenAi => "local",
    }
}

/// The schema of what a path's name stands for.
fn named(name: &str, generator: &mut SchemaGenerator) -> Schema {
    match name {
        "job" => generator.subschema_for::<JobId>(),
        "session" => generator.subschema_for::<SessionId>(),
        "batch" => generator.subschema_for::<BatchId>(),
        _ => generator.subschema_for::<String>(),
    }
}

/// The names in a path's braces.
fn names_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split(['}', ':']).next())
}

/// Collects routes.
pub(super) struct Router {
    resources: BTreeMap<&'static str, (Resource, Vec<Method>)>,
    paths: BTreeMap<String, Map<String, Value>>,
    generator: SchemaGenerator,
}

impl Router {
    pub(super) fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        Self { resources: BTreeMap::new(), paths: BTreeMap::new(), generator: settings.into_generator() }
    }

    pub(super) fn get(&mut self, path: &'static str, route: Route, operation: Operation) {
        // A HEAD is a GET whose body is not sent.
        let route = route.guard(guard::Any(guard::Get()).or(guard::Head()));
        self.add(Method::GET, path, route, &operation);
    }

    pub(super) fn post(&mut self, path: &'static str, route: Route, operation: Operation) {
        self.add(Method::POST, path, route.method(Method::POST), &operation);
    }

    pub(super) fn delete(&mut self, path: &'static str, route: Route, operation: Operation) {
        self.add(Method::DELETE, path, route.method(Method::DELETE), &operation);
    }

    fn add(&mut self, method: Method, path: &'static str, route: Route, operation: &Operation) {
        let mut told = operation.told(path, &mut self.generator);
        // OpenAPI has no patterns.
        let plain = path.replace(":.*}", "}");
        let name = method.as_str().to_ascii_lowercase();
        told["operationId"] = operation_id(&name, &plain).into();
        told["tags"] = json!([tag_of(path)]);
        self.paths.entry(plain).or_default().insert(name, told);
        let (resource, mut methods) =
            self.resources.remove(path).unwrap_or_else(|| (web::resource(path), Vec::new()));
        methods.push(method);
        self.resources.insert(path, (resource.route(route), methods));
    }

    /// Puts it all to work; `/openapi.json` tells of it.
    pub(super) fn finish(mut self, config: &mut web::ServiceConfig) {
        let document = json!({
            "openapi": "3.1.0",
            "info": { "title": "zllm", "version": env!("CARGO_PKG_VERSION") },
            "paths": self.paths,
            "components": { "schemas": self.generator.take_definitions(true) },
        });
        let document = web::Bytes::from(document.to_string());
        config
            .app_data(web::QueryConfig::default().error_handler(|error, _| not_understood("query", error)))
            .app_data(web::PathConfig::default().error_handler(|error, _| not_understood("path", error)));
        config.route(
            "/openapi.json",
            web::get().to(move || {
                let document = document.clone();
                async move { HttpResponse::Ok().content_type("application/json").body(document) }
            }),
        );
        for (_, (resource, methods)) in self.resources {
            config.service(resource.default_service(web::to(move || refuse_method(methods.clone()))));
        }
        config.default_service(web::to(nothing));
    }
}

/// A part of the address that is not what was expected there.
fn not_understood(part: &str, error: impl std::fmt::Display) -> actix_web::Error {
    Problem::new(Kind::Invalid, format!("the {part} is not as expected: {error}")).into()
}

async fn refuse_method(methods: Vec<Method>) -> Result<HttpResponse, Problem> {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    Err(Problem::new(Kind::Method, format!("this path takes {}", names.join(" and "))))
}

async fn nothing(request: HttpRequest) -> Result<HttpResponse, Problem> {
    let path: String = request.path().chars().take(200).collect();
    Err(Problem::new(
        Kind::NotFound,
        format!("there is nothing at {path}; /openapi.json lists what is there"),
    ))
}
