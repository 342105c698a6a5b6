//! `/v1/completions`: text goes on without a template.

use super::answer::{self, Whole, Wording, finish_reason, text_of};
use super::params::Params;
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use crate::http::turn::{Choice, Said, Turn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use zllm_engine::Piece;
use zllm_wire::limits::MAX_LOGPROBS;
use zllm_wire::{JobId, Prompt, Submit, TokenIds, TokenLogprob};

/// What only completions have.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CompletionRequest")]
pub(super) struct Request {
    model: String,
    /// A text, or token ids.
    prompt: Value,
    suffix: Option<String>,
    echo: Option<bool>,
    best_of: Option<u32>,
    logprobs: Option<u32>,
    n: Option<u32>,
}

/// An answer.
pub(super) type Completion = Whole<CompletionChoice>;

/// One of the answers to a prompt.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

/// Log probabilities, each list with an entry for each token.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "CompletionLogprobs")]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each begins in the text, in characters.
    text_offset: Vec<usize>,
}

impl answer::Request for Request {
    type Words = Words;

    fn model(&self) -> &str {
        &self.model
    }

    async fn begin(
        self,
        params: Params,
        http: &Http,
        caller: &Caller,
        change: impl FnOnce(&mut Submit),
    ) -> Result<(Turn, Words), Problem> {
        let (model, echo) = (self.model.clone(), self.echo == Some(true));
        let mut submit = submit(self, params)?;
        change(&mut submit);
        let prompt = echo.then(|| submit.prompt.clone());
        let turn = Turn::begin(http, caller, submit).await?;
        let echo = match prompt {
            Some(Prompt::Tokens(tokens)) => http.services.text_of(&model, tokens.0).await?,
            Some(Prompt::Text { text, .. }) => text,
            _ => String::new(),
        };
        Ok((turn, Words { echo, choices: Vec::new() }))
    }
}

/// # Errors
/// What cannot be honoured.
fn submit(request: Request, params: Params) -> Result<Submit, Problem> {
    if request.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Problem::of("suffix", "suffix is not served: the model goes on behind the prompt"));
    }
    if request.echo == Some(true) && request.logprobs.is_some() {
        let message = "echo with logprobs is not served: the prompt's log probabilities are not computed";
        return Err(Problem::of("echo", message));
    }
    if request.best_of.is_some_and(|best_of| best_of != request.n.unwrap_or(1)) {
        let message = "best_of is not served, unless it is n: every answer that is computed is given";
        return Err(Problem::of("best_of", message));
    }
    let mut generation = params.into_generation()?;
    if let Some(top) = request.logprobs.filter(|top| *top > MAX_LOGPROBS) {
        let message = format!("logprobs is {top}, must be from 0 to {MAX_LOGPROBS}");
        return Err(Problem::of("logprobs", message));
    }
    generation.logprobs = request.logprobs;
    Ok(Submit::new(request.model, prompt(request.prompt)?, generation))
}

/// A text as it is, or token ids as they are; either may be the only one of a list.
fn prompt(prompt: Value) -> Result<Prompt, Problem> {
    let text = |text| Ok(Prompt::Text { text, parse_special: true });
    match prompt {
        Value::String(prompt) => text(prompt),
        Value::Array(mut list) if list.len() == 1 && !list[0].is_number() => match list.remove(0) {
            Value::String(prompt) => text(prompt),
            inner => tokens(inner),
        },
        Value::Array(list) if list.iter().any(|item| !item.is_number()) => {
            Err(Problem::of("prompt", "prompt is a list of several; give each a request of its own"))
        }
        list => tokens(list),
    }
}

fn tokens(list: Value) -> Result<Prompt, Problem> {
    let tokens: Result<Vec<u32>, _> = serde_json::from_value(list);
    let tokens =
        tokens.map_err(|_| Problem::of("prompt", "prompt is neither a text nor a list of token ids"))?;
    Ok(Prompt::Tokens(TokenIds(tokens)))
}

/// How completions are worded.
pub(super) struct Words {
    /// What stands before each answer.
    echo: String,
    choices: Vec<Streamed>,
}

/// How far one answer is.
#[derive(Default)]
struct Streamed {
    begun: bool,
    text: String,
    cursor: Cursor,
}

/// A place in a text that is counted from its beginning on once.
#[derive(Default)]
struct Cursor {
    bytes: usize,
    chars: usize,
}

impl Wording for Words {
    const PREFIX: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";
    type Choice = CompletionChoice;
    type Part = CompletionChoice;

    fn choice(&mut self, index: usize, choice: Choice) -> CompletionChoice {
        let logprobs = (!choice.logprobs.is_empty())
            .then(|| Logprobs::new(&choice.logprobs, &choice.text, &mut Cursor::default()));
        let finish_reason = choice.end.as_ref().map(finish_reason);
        CompletionChoice { index, text: self.echo.clone() + &choice.text, logprobs, finish_reason }
    }

    fn parts(&mut self, said: Said, _: &JobId) -> Vec<CompletionChoice> {
        match said {
            Said::Started { .. } | Said::Usage(_) => Vec::new(),
            Said::More { choice: index, pieces, logprobs } => {
                let mut text = self.begin(index);
                let streamed = &mut self.choices[index];
                for piece in pieces {
                    // Without a template there is nothing else.
                    if let Piece::Text(more) = piece {
                        streamed.text.push_str(&more);
                        text.push_str(&more);
                    }
                }
                let logprobs = (!logprobs.is_empty())
                    .then(|| Logprobs::new(&logprobs, &streamed.text, &mut streamed.cursor));
                vec![CompletionChoice { index, text, logprobs, finish_reason: None }]
            }
            Said::End { choice: index, end } => {
                let (text, finish_reason) = (self.begin(index), Some(finish_reason(&end)));
                vec![CompletionChoice { index, text, logprobs: None, finish_reason }]
            }
        }
    }
}

impl Words {
    /// What stands before an answer, the first time that there is anything to tell of it.
    fn begin(&mut self, index: usize) -> String {
        if self.choices.len() <= index {
            self.choices.resize_with(index + 1, Streamed::default);
        }
        let begun = std::mem::replace(&mut self.choices[index].begun, true);
        if begun { String::new() } else { self.echo.clone() }
    }
}

impl Cursor {
    /// Goes to a byte, not before the last; how many characters are before it. A token may begin within a character: that counts
    /// as begun.
    fn chars_before(&mut self, text: &str, byte: u64) -> usize {
        let passed = text[self.bytes..].chars();
        for char in passed {
            if self.bytes as u64 >= byte {
                break;
            }
            self.bytes += char.len_utf8();
            self.chars += 1;
        }
        self.chars
    }
}

impl Logprobs {
    /// Those of tokens of an answer that begins with `text`, in which the cursor is before them.
    fn new(tokens: &[TokenLogprob], text: &str, cursor: &mut Cursor) -> Self {
        // The token itself is among them wherever others are, as OpenAI has it.
        let tops = |token: &TokenLogprob| {
            let itself = (!token.top.is_empty()).then(|| (text_of(&token.bytes), token.logprob));
            let tops = token.top.iter().map(|top| (text_of(&top.bytes), top.logprob));
            tops.chain(itself).collect::<BTreeMap<_, _>>()
        };
        Self {
            tokens: tokens.iter().map(|token| text_of(&token.bytes)).collect(),
            token_logprobs: tokens.iter().map(|token| token.logprob).collect(),
            top_logprobs: tokens.iter().map(tops).collect(),
            text_offset: tokens.iter().map(|token| cursor.chars_before(text, token.offset)).collect(),
        }
    }
}
