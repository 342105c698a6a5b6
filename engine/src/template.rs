//! Chat templates: a conversation becomes the prompt that its model was trained with.
//!
//! Templates are Jinja2, written for Python; they run through minijinja with what differs put right in the files
//! below, so that the text is the same, byte for byte, as Python's Jinja2 gives in the sandbox that Hugging Face's
//! `apply_chat_template` uses (`trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}`, `tojson` as
//! `json.dumps`, `raise_exception`, `strftime_now`).
//!
//! Known differences: no `%` on strings (the `format` filter is there), no `\U` escapes in literals, no filters
//! `wordcount`, `truncate` and `center`; `~` and `join` write floats of 1e16 and more without an exponent; a dict's
//! views and a range print as lists; the words of errors that `raise_exception` did not raise.
//!
//! A template comes with a model file and is not trusted: source size, recursion, work and memory are bounded.

mod builtin;
mod filters;
mod json;
mod methods;
mod python;
mod set;
mod source;
mod stack;
mod strftime;
#[cfg(test)]
mod tests;

use crate::message::Message;
use crate::speech::SpeechStyle;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use std::sync::Arc;
use thiserror::Error as ThisError;

pub use builtin::BUILTIN_NAMES;
pub(crate) use set::builtin_names;
pub use set::{ModelTemplates, TemplateChoice};

/// Longest template source, in bytes. The largest in use have some 30 KiB.
pub const MAX_SOURCE_BYTES: usize = 128 * 1024;
/// Fuel of a rendering: one for each instruction and for each 64 bytes of data, so it bounds time and memory (to 128 MB).
/// It grows with the conversation, up to a limit; models' own templates use some 100 a message and 0.1 a byte.
const BASE_FUEL: u64 = 200_000;
const FUEL_PER_BYTE: u64 = 4;
const MAX_FUEL: u64 = 2_000_000;
/// A value gets one level deeper for one fuel at least; comparing or dropping it takes less stack than this a level.
const STACK_BYTES_PER_FUEL: usize = 512;
/// Two bytes of source make one level of syntax at least, and each level takes less than twice this to compile.
const STACK_BYTES_PER_SOURCE_BYTE: usize = 1024;
/// For what does not depend on the template's size.
const BASE_STACK_BYTES: usize = 16 << 20;
/// Nested macro calls and the like.
const RECURSION_LIMIT: usize = 100;
const NAME: &str = "chat_template";

/// What the template's author could rely on besides the conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateContext {
    /// Text of the token that begins a sequence; empty if the model has none.
    pub bos_token: String,
    /// Text of the token that ends a sequence; empty if the model has none.
    pub eos_token: String,
}

/// One conversation to render.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// Its messages, oldest first.
    pub messages: &'a [Message],
    /// Tool definitions, a JSON array; `None` gives the template `none`.
    pub tools: Option<&'a serde_json::Value>,
    /// Whether to end with the header of the assistant's next message.
    pub add_generation_prompt: bool,
    /// Variables of this template's own, such as `enable_thinking`; they go before all others.
    pub extra: Option<&'a serde_json::Map<String, serde_json::Value>>,
    /// Seconds since 1970-01-01 UTC for `strftime_now`; without it templates find no such function.
    pub now_unix_s: Option<i64>,
}

impl<'a> Conversation<'a> {
    /// Messages alone, to be answered.
    pub fn new(messages: &'a [Message]) -> Self {
        Self { messages, tools: None, add_generation_prompt: true, extra: None, now_unix_s: None }
    }

    /// What the template may have to go through, roughly as JSON.
    fn size_bytes(&self) -> u64 {
        let messages = self.messages.iter().map(|message| json::object_size_bytes(message.fields()));
        messages.sum::<u64>()
            + self.tools.map_or(0, json::size_bytes)
            + self.extra.map_or(0, json::object_size_bytes)
    }
}

/// Why there is no prompt.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum TemplateError {
    /// The source is over [`MAX_SOURCE_BYTES`].
    #[error("chat template has {bytes} bytes, must have at most {MAX_SOURCE_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The source is no template.
    #[error("chat template line {line}: {message}")]
    Syntax {
        /// From 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template refused the conversation (`raise_exception`), in its own words.
    #[error("{0}")]
    Raised(String),
    /// A conversation that a built-in template has no words for.
    #[error(
        "message {} {found}; the built-in template {template} takes text from system, user and assistant; use a \
         template that was written for more", place + 1
    )]
    NotExpressible {
        /// Name of the template.
        template: &'static str,
        /// Index of the message.
        place: usize,
        /// What is wrong with it.
        found: String,
    },
    /// The template did more work than a template may.
    #[error("chat template did more work than the {fuel} steps allowed for this conversation")]
    OutOfFuel {
        /// Steps allowed.
        fuel: u64,
    },
    /// The system refused a thread with the stack that a template may need.
    #[error("no thread with a stack of {bytes} bytes for the chat template: {message}")]
    NoStack {
        /// Size of the stack.
        bytes: usize,
        /// The system's reason.
        message: String,
    },
    /// Rendering failed.
    #[error("chat template line {line}: {message}")]
    Render {
        /// From 1; 0 if unknown.
        line: usize,
        /// What is wrong.
        message: String,
    },
}

/// A compiled template; cheap to render from many threads.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    context: TemplateContext,
    takes_tools: bool,
    speech: SpeechStyle,
    /// Its name if it is built in.
    builtin: Option<&'static str>,
}

impl ChatTemplate {
    /// Compiles `source`.
    pub fn new(source: &str, context: TemplateContext) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::TooLarge { bytes: source.len() });
        }
        let stack_bytes = BASE_STACK_BYTES + source.len() * STACK_BYTES_PER_SOURCE_BYTE;
        let (environment, takes_tools) = on_stack(stack_bytes, || compile(source))?;
        let speech = SpeechStyle::of_template(source);
        let environment = Arc::new(environment);
        Ok(Self { environment, source: source.into(), context, takes_tools, speech, builtin: None })
    }

    /// Compiles one of [`BUILTIN_NAMES`]; `None` if there is none of that name.
    pub fn builtin(name: &str, context: TemplateContext) -> Option<Result<Self, TemplateError>> {
        let (name, source) = builtin::find(name)?;
        Some(Self::new(source, context).map(|template| Self { builtin: Some(name), ..template }))
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template speaks of `tools` at all. What others are given is left out of their text.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// How its model writes reasoning and calls, as far as the source says.
    pub fn speech_style(&self) -> SpeechStyle {
        self.speech
    }

    /// Renders a conversation.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        if let Some(name) = self.builtin {
            builtin::check(name, conversation.messages)?;
        }
        let bytes = conversation.size_bytes();
        let fuel = MAX_FUEL.min(BASE_FUEL.saturating_add(bytes.saturating_mul(FUEL_PER_BYTE)));
        let stack_bytes = BASE_STACK_BYTES + fuel as usize * STACK_BYTES_PER_FUEL;
        on_stack(stack_bytes, || {
            let mut environment = (*self.environment).clone();
            environment.set_fuel(Some(fuel));
            let template = environment.get_template(NAME).map_err(|error| render_error(&error, fuel))?;
            template.render(self.variables(conversation)).map_err(|error| render_error(&error, fuel))
        })
    }

    fn variables(&self, conversation: &Conversation<'_>) -> Value {
        let messages = conversation.messages.iter().map(|message| json::object_to_value(message.fields()));
        let mut variables = vec![
            ("messages", messages.collect()),
            ("tools", conversation.tools.map_or(Value::from(()), json::to_value)),
            ("documents", Value::from(())),
            ("add_generation_prompt", conversation.add_generation_prompt.into()),
            ("bos_token", self.context.bos_token.as_str().into()),
            ("eos_token", self.context.eos_token.as_str().into()),
        ];
        if let Some(now) = conversation.now_unix_s {
            let strftime_now = move |format: &str| strftime::format(now, format);
            variables.push(("strftime_now", Value::from_function(strftime_now)));
        }
        for (name, value) in conversation.extra.into_iter().flatten() {
            variables.retain(|&(known, _)| known != name);
            variables.push((name, json::to_value(value)));
        }
        Value::from_pairs(variables)
    }
}

fn on_stack<T: Send>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    let no_stack = |error: std::io::Error| TemplateError::NoStack { bytes, message: error.to_string() };
    stack::run_with(bytes, work).map_err(no_stack)?
}

/// The environment with the template in it, and whether that takes tools.
fn compile(source: &str) -> Result<(Environment<'static>, bool), TemplateError> {
    let mut environment = Environment::new();
    environment.set_syntax(source::syntax());
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|out, _, value| out.write_str(&python::to_str(value)?).map_err(Error::from));
    environment.set_unknown_method_callback(methods::call);
    environment.set_recursion_limit(RECURSION_LIMIT);
    filters::register(&mut environment);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let raised = Raised(python::to_str(message)?);
        Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
    });
    let syntax_error =
        |error: Error| TemplateError::Syntax { line: line_of(&error), message: message_of(&error) };
    let source::Prepared { source, names_tools } = source::prepare(source).map_err(syntax_error)?;
    environment.add_template_owned(NAME, source).map_err(syntax_error)?;
    Ok((environment, names_tools))
}

/// Carries `raise_exception`'s message through minijinja's errors.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

fn render_error(error: &Error, fuel: u64) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        if current.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::OutOfFuel { fuel };
        }
        cause = current.source();
    }
    TemplateError::Render { line: line_of(error), message: message_of(error) }
}

fn line_of(error: &Error) -> usize {
    error.line().unwrap_or(0)
}

/// The message without minijinja's template name and line.
fn message_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => detail.to_string(),
        None => error.kind().to_string(),
    }
}
