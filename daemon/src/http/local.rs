//! What people know from llama-server: what a model is set to, its tokens, its template, and who is being answered.
//!
//! That server has one model; here `model` names it, and may be left out where only one can be meant.

mod props;
mod slots;

use super::conversation::Conversation;
use super::openai::ChatMessage;
use super::problem::Problem;
use super::router::{Operation, Router};
use super::{Http, body, models, tools};
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zllm_wire::ErrorCode;

/// Where it is.
pub(super) fn routes(router: &mut Router) {
    router.get(
        "/props",
        web::to(props::show),
        Operation::new("Tell of a model and its settings").query::<props::Query>().gives::<props::Props>(),
    );
    router.get(
        "/slots",
        web::to(slots::list),
        Operation::new("Tell who is being answered").gives::<Vec<slots::Slot>>(),
    );
    router.post(
        "/tokenize",
        web::to(tokenize),
        Operation::new("Turn text into tokens").takes::<Tokenize>().gives::<Tokens>(),
    );
    router.post(
        "/detokenize",
        web::to(detokenize),
        Operation::new("Turn tokens into text").takes::<Detokenize>().gives::<Content>(),
    );
    router.post(
        "/apply-template",
        web::to(apply_template),
        Operation::new("Show the prompt that a conversation becomes")
            .takes::<ApplyTemplate>()
            .gives::<Prompt>(),
    );
}

/// A text.
#[derive(Debug, Deserialize, JsonSchema)]
struct Tokenize {
    content: String,
    /// Whether the model's begin token comes first, if it wants one; it does not, unless asked for.
    add_special: Option<bool>,
    /// Whether special tokens that are written out become those tokens; they do, unless asked not to.
    parse_special: Option<bool>,
    /// Whether each token's text is told.
    with_pieces: Option<bool>,
    model: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Tokens {
    tokens: Vec<Token>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Token {
    Id(u32),
    WithPiece { id: u32, piece: PieceText },
}

/// What a token adds to a text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum PieceText {
    Text(String),
    /// Of a token that ends within a character.
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for PieceText {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

async fn tokenize(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Problem> {
    let request: Tokenize = body::one(payload).await?;
    let model = models::meant(&http, request.model).await?;
    let (parse_special, add_bos) = (request.parse_special.unwrap_or(true), request.add_special == Some(true));
    let ids = http.services.tokenize(&model, request.content, parse_special, add_bos).await?;
    let tokens = if request.with_pieces == Some(true) {
        let (ids, pieces) = http.services.pieces(&model, ids).await?;
        let token = |(id, piece): (u32, Vec<u8>)| Token::WithPiece { id, piece: piece.into() };
        ids.into_iter().zip(pieces).map(token).collect()
    } else {
        ids.into_iter().map(Token::Id).collect()
    };
    Ok(HttpResponse::Ok().json(Tokens { tokens }))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Detokenize {
    tokens: Vec<u32>,
    model: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Content {
    /// Control tokens are written by name; what is no whole character is replaced.
    content: String,
}

async fn detokenize(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Problem> {
    let request: Detokenize = body::one(payload).await?;
    let model = models::meant(&http, request.model).await?;
    let (_, pieces) =
        http.services.pieces(&model, request.tokens).await.map_err(|fault| match fault.code {
            ErrorCode::Invalid => Problem::of("tokens", fault.message),
            _ => fault.into(),
        })?;
    let content = String::from_utf8_lossy(&pieces.concat()).into_owned();
    Ok(HttpResponse::Ok().json(Content { content }))
}

/// A conversation as in a chat completion.
#[derive(Debug, Deserialize, JsonSchema)]
struct ApplyTemplate {
    messages: Vec<ChatMessage>,
    tools: Option<Vec<Value>>,
    /// `auto` or `none`.
    tool_choice: Option<Value>,
    /// Whether the prompt ends where the assistant is to answer; it does, unless asked not to.
    add_generation_prompt: Option<bool>,
    model: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RenderedPrompt")]
struct Prompt {
    prompt: String,
}

async fn apply_template(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Problem> {
    let request: ApplyTemplate = body::one(payload).await?;
    let model = models::meant(&http, request.model).await?;
    let conversation = Conversation {
        messages: ChatMessage::neutral(request.messages)?,
        tools: tools::shown(request.tools, request.tool_choice)?,
    };
    let (prompt, ask) = (conversation.into_prompt()?, request.add_generation_prompt.unwrap_or(true));
    let now_unix_s = http.unix_s() as i64;
    let render = move |text: &dyn crate::device::port::TextModel| text.render(&prompt, now_unix_s, ask);
    let prompt = http.services.with_text(&model, render).await??;
    Ok(HttpResponse::Ok().json(Prompt { prompt }))
}
