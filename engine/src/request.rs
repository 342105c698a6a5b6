//! What is asked of a model, whichever protocol it came by, and why it may be refused.

use serde::{Deserialize, Serialize};

use crate::{
    message::Message,
    prefill::PrefillError,
    sampling::{SamplingError, SamplingParams},
    stop::StopError,
    template::{TemplateChoice, TemplateError, builtin_names},
};

/// What to go on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// Plain text. With `parse_special`, the names of special tokens in it become those tokens.
    Text {
        /// The text.
        text: String,
        /// Whether names of special tokens count.
        parse_special: bool,
    },
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
    /// A conversation, rendered by a chat template.
    Chat(Chat),
}

/// A conversation to go on with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chat {
    /// The turns so far.
    pub messages: Vec<Message>,
    /// Tools in the template's own form, usually OpenAI's: an array. Refused if the template takes none.
    pub tools: Option<serde_json::Value>,
    /// The template to use instead of the model's.
    pub template: Option<TemplateChoice>,
    /// Seconds since 1970-01-01 UTC, for templates that write the date; without it they find no clock.
    pub now_unix_s: Option<i64>,
    /// Goes on with the last message, the assistant's, instead of answering it: the prompt ends within that message.
    pub continue_last: bool,
}

impl Chat {
    /// Messages for the model's own template, without tools or a date.
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// Most stop tokens of a request; each drawn token is compared with all of them.
pub const MAX_STOP_TOKENS: usize = 64;
/// Most alternatives that are reported beside a token.
pub const MAX_LOG_PROBABILITIES: usize = 20;

/// How to go on. Unknown fields are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GenerationParams {
    /// The sampler chain.
    pub sampling: SamplingParams,
    /// An upper bound; the context bounds it too.
    pub max_tokens: Option<u32>,
    /// At most `max_tokens`. No end token or stop token is drawn before there are so many tokens, and the text of these is
    /// not searched for stop strings.
    pub min_tokens: u32,
    /// Texts that end the answer; nothing of them is sent.
    pub stop: Vec<String>,
    /// Tokens that end the answer; nothing of them is sent. At most [`MAX_STOP_TOKENS`].
    pub stop_tokens: Vec<u32>,
    /// Goes on over end-of-text tokens.
    pub ignore_eos: bool,
    /// Reports each token's log probability, and those of this many (0 to [`MAX_LOG_PROBABILITIES`]) of the most likely
    /// tokens beside it.
    pub logprobs: Option<u32>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-text token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// The caller did not want more.
    Cancelled,
}

/// What stopped an answer that ended with [`FinishReason::Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// One of the model's own end tokens.
    EndOfText {
        /// Its id.
        token: u32,
    },
    /// One of the request's stop tokens.
    Token {
        /// Its id.
        token: u32,
    },
    /// One of the request's stop strings.
    Text {
        /// Its place in the list, from 0.
        index: usize,
    },
}

/// Why a request cannot be served; each is the request's fault and names what and where.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No token to go on from.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A prompt that does not fit.
    #[error("the prompt has {tokens} tokens and the context holds {context}, one of them for the answer")]
    ContextExceeded {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A text to embed that does not fit.
    #[error("the input has {tokens} tokens and the context holds {context}")]
    InputTooLong {
        /// Tokens of the input.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// Embeddings of a model that gives something else.
    #[error(
        "model {model} gives no embeddings: its pooling type is {found}; 1 (mean), 2 (cls), 3 (last) or none work"
    )]
    NoEmbeddings {
        /// The model's name.
        model: String,
        /// What its file says.
        found: u64,
    },
    /// A token id that the model does not have.
    #[error("token {token} at place {place} is outside the vocabulary of {vocab_size}")]
    BadToken {
        /// The id.
        token: u32,
        /// Index in the prompt.
        place: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The model's template refused or failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A conversation for a model that has no template.
    #[error(
        "model {model} has no chat template; name one or give its text, or send the prompt as plain text; built in are: {}",
        builtin_names()
    )]
    NoTemplate {
        /// The model's name.
        model: String,
    },
    /// A conversation for a model that has several templates and none for the general case.
    #[error(
        "model {model} has no default chat template; name one of its own ({own}), or a built-in one: {}",
        builtin_names()
    )]
    NoDefaultTemplate {
        /// The model's name.
        model: String,
        /// Names of its templates.
        own: String,
    },
    /// A template that there is not.
    #[error(
        "there is no chat template {name:?}; model {model}'s own: {own}; built in are: {}",
        builtin_names()
    )]
    UnknownTemplate {
        /// The model's name.
        model: String,
        /// What was asked for.
        name: String,
        /// Names of its templates.
        own: String,
    },
    /// The template in the model's file cannot be used.
    #[error(
        "the chat template of model {model} cannot be used: {reason}; name a built-in one or give another's text"
    )]
    BrokenTemplate {
        /// The model's name.
        model: String,
        /// Why.
        reason: String,
    },
    /// Tools for a template that does not speak of them.
    #[error(
        "the chat template for model {model} takes no tools; leave them out, or name a template that takes them"
    )]
    NoTools {
        /// The model's name.
        model: String,
    },
    /// A last message that cannot be continued.
    #[error(transparent)]
    Prefill(#[from] PrefillError),
    /// Text for a model whose file has no tokenizer.
    #[error("model {model} takes token ids only, no text: {reason}")]
    NoTokenizer {
        /// The model's name.
        model: String,
        /// Why.
        reason: String,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A list of stop strings that cannot be watched for.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Another parameter out of range.
    #[error("{field} is {found}; {expected}")]
    BadParameter {
        /// Name of the field.
        field: String,
        /// Its value.
        found: String,
        /// What would work.
        expected: String,
    },
}
