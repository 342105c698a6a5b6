//! How answers of chat completions are worded: content, reasoning and tool calls.

use crate::http::openai::answer::{Whole, Wording, finish_reason, text_of};
use crate::http::turn::{Choice, Said, call_id};
use schemars::JsonSchema;
use serde::Serialize;
use zllm_engine::Piece;
use zllm_wire::{JobId, TokenLogprob};

/// An answer.
pub(in crate::http::openai) type ChatCompletion = Whole<ChatChoice>;

/// One of the answers to a conversation.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http::openai) struct ChatChoice {
    index: usize,
    message: Answer,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

/// What the assistant says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatAnswer")]
struct Answer {
    /// `assistant`.
    role: &'static str,
    /// Null when there are calls and nothing else.
    content: Option<String>,
    /// Always null.
    refusal: Option<String>,
    /// What it thought before; not OpenAI's.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatToolCall")]
struct ToolCall {
    id: String,
    /// `function`.
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatFunction")]
struct Function {
    name: String,
    /// JSON text, as the model wrote it.
    arguments: String,
}

/// Log probabilities.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatLogprobs")]
pub(super) struct Logprobs {
    content: Vec<TokenInfo>,
    /// Always null.
    refusal: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TokenInfo {
    #[serde(flatten)]
    token: Ranked,
    top_logprobs: Vec<Ranked>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Ranked {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// More of a choice.
#[derive(Serialize)]
pub(in crate::http::openai) struct Part {
    index: usize,
    delta: Delta,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

#[derive(Serialize)]
struct CallDelta {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// The wording.
#[derive(Default)]
pub(in crate::http::openai) struct Words {
    /// Which choices have their first part out.
    begun: Vec<bool>,
}

impl Wording for Words {
    const PREFIX: &'static str = "chatcmpl";
    const OBJECT: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";
    type Choice = ChatChoice;
    type Part = Part;

    fn choice(&mut self, index: usize, choice: Choice) -> ChatChoice {
        let call = |call: crate::http::conversation::Call| ToolCall {
            id: call.id,
            kind: "function",
            function: Function { name: call.name, arguments: call.arguments },
        };
        let silent = choice.text.is_empty() && !choice.calls.is_empty();
        ChatChoice {
            index,
            finish_reason: choice.end.as_ref().map(finish_reason),
            logprobs: Logprobs::new(choice.logprobs),
            message: Answer {
                role: "assistant",
                content: (!silent).then_some(choice.text),
                refusal: None,
                reasoning_content: Some(choice.reasoning).filter(|text| !text.is_empty()),
                tool_calls: choice.calls.into_iter().map(call).collect(),
            },
        }
    }

    fn parts(&mut self, said: Said, job: &JobId) -> Vec<Part> {
        let part = |index, delta| Part { index, delta, logprobs: None, finish_reason: None };
        match said {
            Said::Started { .. } | Said::Usage(_) => Vec::new(),
            Said::More { choice, pieces, logprobs } => {
                let mut parts: Vec<Part> = self.first(choice).into_iter().collect();
                let deltas = pieces.into_iter().filter_map(|piece| delta(piece, choice, job));
                parts.extend(deltas.map(|delta| part(choice, delta)));
                if let Some(logprobs) = Logprobs::new(logprobs) {
                    // They belong to the text that has just come, or to formatting that nobody is told.
                    match parts.last_mut() {
                        Some(last) => last.logprobs = Some(logprobs),
                        None => {
                            parts.push(Part { logprobs: Some(logprobs), ..part(choice, Delta::default()) })
                        }
                    }
                }
                parts
            }
            Said::End { choice, end } => {
                let end = Part { finish_reason: Some(finish_reason(&end)), ..part(choice, Delta::default()) };
                self.first(choice).into_iter().chain([end]).collect()
            }
        }
    }
}

impl Words {
    /// The part that opens a choice, once.
    fn first(&mut self, index: usize) -> Option<Part> {
        if self.begun.len() <= index {
            self.begun.resize(index + 1, false);
        }
        let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        (!std::mem::replace(&mut self.begun[index], true)).then_some(Part {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
        })
    }
}

fn delta(piece: Piece, choice: usize, job: &JobId) -> Option<Delta> {
    let call = |call| Some(Delta { tool_calls: Some([call]), ..Delta::default() });
    match piece {
        Piece::Text(text) => Some(Delta { content: Some(text), ..Delta::default() }),
        Piece::Reasoning(text) => Some(Delta { reasoning_content: Some(text), ..Delta::default() }),
        Piece::Call { index, name } => call(CallDelta {
            index,
            id: Some(call_id(job, choice, index)),
            kind: Some("function"),
            function: FunctionDelta { name: Some(name), arguments: String::new() },
        }),
        Piece::Arguments { index, json } => call(CallDelta {
            index,
            id: None,
            kind: None,
            function: FunctionDelta { name: None, arguments: json },
        }),
        Piece::CallEnd { .. } => None,
    }
}

impl Logprobs {
    /// `None` where there are none.
    fn new(tokens: Vec<TokenLogprob>) -> Option<Self> {
        let ranked = |bytes: Vec<u8>, logprob| Ranked { token: text_of(&bytes), logprob, bytes };
        let told = |token: TokenLogprob| TokenInfo {
            token: ranked(token.bytes, token.logprob),
            top_logprobs: token.top.into_iter().map(|top| ranked(top.bytes, top.logprob)).collect(),
        };
        let content: Vec<TokenInfo> = tokens.into_iter().map(told).collect();
        (!content.is_empty()).then_some(Self { content, refusal: None })
    }
}
