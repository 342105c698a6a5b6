//! OpenAI's API: models, chat completions and completions, as OpenAI's own clients expect them.
//!
//! Fields that we do not know are ignored, as OpenAI does. What we know and cannot honour is refused by its name.

mod answer;
mod chat;
mod completions;
mod models;
mod params;
mod tools;

use super::router::{Operation, Router};
use actix_web::web;
use params::Params;

/// Where it is.
pub(super) fn routes(router: &mut Router) {
    router.get(
        "/v1/models",
        web::to(models::list),
        Operation::new("List the models").gives::<models::List>(),
    );
    router.get(
        "/v1/models/{model:.*}",
        web::to(models::one),
        Operation::new("Tell of a model").gives::<models::Model>(),
    );
    router.post(
        "/v1/chat/completions",
        web::to(chat::create),
        Operation::new("Answer a conversation")
            .takes::<chat::Request>()
            .takes::<Params>()
            .gives::<chat::ChatCompletion>()
            .streams("text/event-stream"),
    );
    router.post(
        "/v1/completions",
        web::to(completions::create),
        Operation::new("Go on with a text")
            .takes::<completions::Request>()
            .takes::<Params>()
            .gives::<completions::Completion>()
            .streams("text/event-stream"),
    );
}
