//! Ollama's API, as far as its clients need it to ask models that are there: they are fetched and deleted in other ways.
//!
//! A model's name may end in `:latest`, which names the model itself. Fields that we do not know are ignored, as are those
//! that say how Ollama should run a model; what we know and cannot honour is refused by its name.

mod answer;
mod chat;
mod common;
mod embed;
mod generate;
mod models;
mod options;

use super::problem::{Kind, Problem};
use super::router::{Operation, Router};
use actix_web::{HttpResponse, Route, web};
use common::Common;

/// Where it is.
pub(super) fn routes(router: &mut Router) {
    router.post(
        "/api/chat",
        web::to(chat::create),
        Operation::new("Answer a conversation")
            .takes::<chat::Request>()
            .takes::<Common>()
            .gives::<chat::Answer>()
            .streams("application/x-ndjson"),
    );
    router.post(
        "/api/generate",
        web::to(generate::create),
        Operation::new("Answer a text")
            .takes::<generate::Request>()
            .takes::<Common>()
            .gives::<generate::Answer>()
            .streams("application/x-ndjson"),
    );
    router.post(
        "/api/embed",
        web::to(embed::create),
        Operation::new("Turn texts into vectors").takes::<embed::Request>().gives::<embed::Answer>(),
    );
    router.post(
        "/api/embeddings",
        web::to(embed::create_one),
        Operation::new("Turn a text into a vector").takes::<embed::One>().gives::<embed::Embedding>(),
    );
    router.get("/api/tags", web::to(models::tags), Operation::new("List the models").gives::<models::Tags>());
    router.get(
        "/api/ps",
        web::to(models::running),
        Operation::new("List the loaded models").gives::<models::Running>(),
    );
    router.post(
        "/api/show",
        web::to(models::show),
        Operation::new("Tell of a model").takes::<models::Show>().gives::<models::Shown>(),
    );
    router.get(
        "/api/version",
        web::to(models::version),
        Operation::new("Tell the version").gives::<models::Version>(),
    );
    let refused = Operation::new("Not served; the answer says what to do instead");
    router.post("/api/pull", refuse("models are fetched by `zllmctl pull NAME`"), refused);
    for path in ["/api/push", "/api/create", "/api/copy"] {
        let refused = Operation::new("Not served; the answer says what to do instead");
        router.post(path, refuse("models are files NAME.gguf in the models folder"), refused);
    }
    let refused = Operation::new("Not served; the answer says what to do instead");
    router.delete("/api/delete", refuse("a model is deleted with its file in the models folder"), refused);
}

/// What changes models.
fn refuse(instead: &'static str) -> Route {
    web::to(move || async move {
        Err::<HttpResponse, _>(Problem::new(Kind::Invalid, format!("this is not served here: {instead}")))
    })
}
