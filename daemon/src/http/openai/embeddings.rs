//! `/v1/embeddings`: texts become vectors.

use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::http::{Http, body, models};
use crate::services::Owner;
use crate::services::embed::{self, About, Embed, EmbedFault, Embedded};
use actix_web::{HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zllm_wire::{Class, Prompt, TokenIds};

/// What is to be embedded.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "EmbeddingRequest")]
pub(super) struct Request {
    model: String,
    input: Input,
    /// How many values are wanted, from the first on; the vector's length is 1 all the same.
    dimensions: Option<u32>,
    encoding_format: Option<Encoding>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "EmbeddingInput")]
#[serde(
    untagged,
    expecting = "a text, a list of texts, token ids, or a list of lists of token ids is expected"
)]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// How vectors are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    /// Of the values as f32, little-endian.
    Base64,
}

/// Vectors, in the order of the texts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EmbeddingList {
    /// `list`.
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Embedding {
    /// `embedding`.
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let request = body::one(payload).await?;
    Ok(HttpResponse::Ok().json(list(&http, &caller, request, Class::Interactive).await?))
}

/// The answer, as JSON, to a body that nobody waits for.
///
/// # Errors
/// What is wrong with the body, or why it failed.
pub(super) async fn answer(http: &Http, caller: &Caller, body: &[u8]) -> Result<String, Problem> {
    let answer = list(http, caller, body::parse(body)?, Class::Batch).await?;
    Ok(serde_json::to_string(&answer).expect("an answer becomes JSON"))
}

async fn list(
    http: &Http,
    caller: &Caller,
    request: Request,
    class: Class,
) -> Result<EmbeddingList, Problem> {
    models::known(http, &request.model)?;
    let encoding = request.encoding_format.unwrap_or_default();
    let embed = Embed {
        model: request.model.clone(),
        texts: request.input.into_prompts(),
        dimensions: request.dimensions,
        cut: false,
        tenant: caller.tenant.clone(),
        class: caller.class(class),
    };
    // Dropped when the client goes: its jobs go with it.
    let owner = Owner::new(http.services.clone());
    let Embedded { vectors, prompt_tokens } = embed::embed(embed, owner.id(), &http.services).await?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: encoding.write(vector),
    });
    Ok(EmbeddingList {
        object: "list",
        data: data.collect(),
        model: request.model,
        usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
    })
}

impl Input {
    fn into_prompts(self) -> Vec<Prompt> {
        // As in prompts of completions, the names of special tokens are those tokens.
        let text = |text| Prompt::Text { text, parse_special: true };
        let tokens = |tokens| Prompt::Tokens(TokenIds(tokens));
        match self {
            Self::Text(one) => vec![text(one)],
            Self::Texts(several) => several.into_iter().map(text).collect(),
            Self::Tokens(one) => vec![tokens(one)],
            Self::TokenLists(several) => several.into_iter().map(tokens).collect(),
        }
    }
}

impl Encoding {
    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Float => Vector::Float(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

impl From<EmbedFault> for Problem {
    fn from(EmbedFault { about, fault }: EmbedFault) -> Self {
        let mut problem = Self::from(fault);
        problem.param = match about {
            About::Texts | About::Text(_) => Some("input".to_owned()),
            About::Dimensions => Some("dimensions".to_owned()),
            About::Job | About::Other => None,
        };
        match about {
            About::Texts => problem.message = format!("input: {}", problem.message),
            About::Text(index) => problem.message = format!("input[{index}]: {}", problem.message),
            About::Job => problem.kind = Kind::Ended { is_cancelled: false },
            About::Dimensions | About::Other => {}
        }
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_little_endian_bytes() {
        let Vector::Base64(text) = Encoding::Base64.write(vec![1.0, -0.5]) else {
            panic!("it was asked for")
        };
        assert_eq!(text, "AACAPwAAAL8=");
    }

    #[test]
    fn inputs_of_all_kinds_are_read_and_others_are_named() {
        let read =
            |input: &str| body::parse::<Request>(format!(r#"{{"model": "m", "input": {input}}}"#).as_bytes());
        let kinds = [r#""a""#, r#"["a", "b"]"#, "[1, 2]", "[[1], [2, 3]]", "[]"];
        let counts = kinds.map(|kind| read(kind).expect("an input").input.into_prompts().len());
        assert_eq!(counts, [1, 2, 1, 2, 0]);
        for wrong in ["1", "[1, \"a\"]", "[-1]", "[1.5]", "[[\"a\"]]", "null", "{}"] {
            let problem = read(wrong).expect_err("no input");
            assert_eq!(problem.param.as_deref(), Some("input"), "{problem:?}");
            assert!(problem.message.contains("a list of texts"), "{problem:?}");
        }
    }
}
