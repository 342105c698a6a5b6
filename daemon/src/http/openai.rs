//! OpenAI's API: models, chat completions, completions and embeddings, as OpenAI's own clients expect them.
//!
//! Fields that we do not know are ignored, as OpenAI does. What we know and cannot honour is refused by its name.

mod answer;
mod batches;
mod chat;
mod completions;
mod embeddings;
mod files;
mod models;
mod params;

use super::router::{Operation, Router};
use actix_web::web;
pub(super) use batches::{Batches, resume as resume_batches};
pub(super) use chat::ChatMessage;
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
        web::to(answer::create::<chat::Request>),
        Operation::new("Answer a conversation")
            .takes::<chat::Request>()
            .takes::<Params>()
            .gives::<chat::ChatCompletion>()
            .streams("text/event-stream"),
    );
    router.post(
        "/v1/completions",
        web::to(answer::create::<completions::Request>),
        Operation::new("Go on with a text")
            .takes::<completions::Request>()
            .takes::<Params>()
            .gives::<completions::Completion>()
            .streams("text/event-stream"),
    );
    router.post(
        "/v1/embeddings",
        web::to(embeddings::create),
        Operation::new("Turn texts into vectors")
            .takes::<embeddings::Request>()
            .gives::<embeddings::EmbeddingList>(),
    );
    files_and_batches(router);
}

fn files_and_batches(router: &mut Router) {
    router.post(
        "/v1/files",
        web::to(files::create),
        Operation::new("Put down a file").takes_type("multipart/form-data").gives::<files::File>(),
    );
    router.get(
        "/v1/files",
        web::to(files::list),
        Operation::new("List files").query::<files::Query>().gives::<files::List>(),
    );
    router.get(
        "/v1/files/{id}",
        web::to(files::one),
        Operation::new("Tell of a file").gives::<files::File>(),
    );
    router.delete(
        "/v1/files/{id}",
        web::to(files::delete),
        Operation::new("Delete a file").gives::<files::Deleted>(),
    );
    router.get(
        "/v1/files/{id}/content",
        web::to(files::content),
        Operation::new("Read a file").gives_type("application/octet-stream"),
    );
    router.post(
        "/v1/batches",
        web::to(batches::create),
        Operation::new("Answer all requests of a file").takes::<batches::Request>().gives::<batches::Batch>(),
    );
    router.get(
        "/v1/batches",
        web::to(batches::list),
        Operation::new("List batches").query::<batches::Query>().gives::<batches::List>(),
    );
    router.get(
        "/v1/batches/{id}",
        web::to(batches::one),
        Operation::new("Tell of a batch").gives::<batches::Batch>(),
    );
    router.post(
        "/v1/batches/{id}/cancel",
        web::to(batches::cancel),
        Operation::new("Cancel a batch").gives::<batches::Batch>(),
    );
}
