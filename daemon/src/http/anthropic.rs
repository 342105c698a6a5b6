//! Anthropic's API: messages and the counting of their tokens, as Anthropic's own clients expect them.
//!
//! Fields and beta headers that we do not know are ignored, as Anthropic does. What we know and cannot honour is refused by its
//! name; what only Anthropic's servers can do (their tools) is left out, with a line in the log.

mod answer;
mod content;
mod marks;
pub(super) mod models;
mod request;
mod tools;

use super::caller::Caller;
use super::problem::Problem;
use super::router::{Operation, Router};
use super::turn::Turn;
use super::{Http, body, models as all_models};
use actix_web::{HttpResponse, web};
use request::{Asked, Params};
use schemars::JsonSchema;
use serde::Serialize;
use zllm_wire::Submit;

/// Where it is.
pub(super) fn routes(router: &mut Router) {
    router.post(
        "/v1/messages",
        web::to(create),
        Operation::new("Answer a conversation, as Anthropic does")
            .takes::<Asked>()
            .takes::<Params>()
            .gives::<answer::Message>()
            .streams("text/event-stream"),
    );
    router.post(
        "/v1/messages/count_tokens",
        web::to(count_tokens),
        Operation::new("Count the tokens of a conversation").takes::<Asked>().gives::<Count>(),
    );
}

async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let (asked, params): (Asked, Params) = body::two(payload).await?;
    let stream = params.streams();
    let marks = asked.marks()?;
    let prompt = asked.prompt()?;
    let submit = Submit::new(asked.model(), prompt.clone(), params.into_generation()?);
    let turn = Turn::begin(&http, &caller, submit).await?;
    // While the prompt is being computed: what it computes is held from its first block on.
    let marked = marks::hold(&http, &caller, &asked, prompt, marks).await?;
    answer::give(turn, asked.into_model(), stream, marked).await
}

/// How many tokens a conversation has.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TokenCount")]
struct Count {
    input_tokens: u64,
}

async fn count_tokens(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Problem> {
    let asked: Asked = body::one(payload).await?;
    asked.marks()?;
    all_models::known(&http, asked.model())?;
    let input_tokens = http.services.count_tokens(asked.model(), asked.prompt()?).await? as u64;
    Ok(HttpResponse::Ok().json(Count { input_tokens }))
}
