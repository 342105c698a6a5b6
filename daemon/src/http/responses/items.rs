//! What a response is made from and of: messages, function calls and their outputs, reasoning.
//!
//! Items come in as clients write them, with or without ids, and go out and are kept in one form.

use crate::http::conversation::{self, Call, Role};
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use zllm_wire::TokenLogprob;

use super::tools::Names;

/// Before reasoning that a client who keeps nothing here is given, to send it back. It is not secret from the client.
const CARRIED: &str = "zllm-reasoning-1:";

/// One thing of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub(super) enum Item {
    Message {
        id: String,
        status: ItemStatus,
        /// `system`, `developer`, `user` or `assistant`.
        role: String,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        status: ItemStatus,
        call_id: String,
        name: String,
        /// Of the namespace tool that the function belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// JSON text, as the model wrote it.
        arguments: String,
    },
    FunctionCallOutput {
        id: String,
        status: ItemStatus,
        call_id: String,
        output: Output,
    },
    Reasoning {
        id: String,
        status: ItemStatus,
        /// Always empty in what is made here: the reasoning is in `content`.
        summary: Vec<Part>,
        content: Vec<Part>,
        /// What to send back instead of an id; only where it was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

/// Some of an item's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponsePart")]
pub(super) enum Part {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        logprobs: Vec<TokenInfo>,
    },
    Refusal {
        refusal: String,
    },
    ReasoningText {
        text: String,
    },
    SummaryText {
        text: String,
    },
}

/// What a function gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Output {
    Text(String),
    Parts(Vec<Part>),
}

/// A token of the text and how likely it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseTokenInfo")]
pub(super) struct TokenInfo {
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
    top_logprobs: Vec<Ranked>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseRankedToken")]
struct Ranked {
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
}

impl From<TokenLogprob> for TokenInfo {
    fn from(told: TokenLogprob) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ranked = |top: zllm_wire::TopLogprob| Ranked {
            token: text(&top.bytes),
            bytes: top.bytes,
            logprob: top.logprob,
        };
        Self {
            token: text(&told.bytes),
            bytes: told.bytes,
            logprob: told.logprob,
            top_logprobs: told.top.into_iter().map(ranked).collect(),
        }
    }
}

impl Part {
    fn text(&self) -> &str {
        match self {
            Self::InputText { text }
            | Self::OutputText { text, .. }
            | Self::ReasoningText { text }
            | Self::SummaryText { text }
            | Self::Refusal { refusal: text } => text,
        }
    }

    /// An empty one of a message that is being made.
    pub(super) fn output(text: String) -> Self {
        Self::OutputText { text, annotations: Vec::new(), logprobs: Vec::new() }
    }
}

impl Item {
    pub(super) fn id(&self) -> &str {
        let (Self::Message { id, .. }
        | Self::FunctionCall { id, .. }
        | Self::FunctionCallOutput { id, .. }
        | Self::Reasoning { id, .. }) = self;
        id
    }

    /// The same under another id.
    pub(super) fn with_id(mut self, new: String) -> Self {
        let (Self::Message { id, .. }
        | Self::FunctionCall { id, .. }
        | Self::FunctionCallOutput { id, .. }
        | Self::Reasoning { id, .. }) = &mut self;
        *id = new;
        self
    }

    /// How ids of its kind begin.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::FunctionCall { .. } => "fc",
            Self::FunctionCallOutput { .. } => "fco",
            Self::Reasoning { .. } => "rs",
        }
    }
}

/// Bytes of items as they are kept, about.
pub(super) fn bytes(items: &[Item]) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, items).expect("our own types become JSON");
    count.0
}

/// Something that a client puts in.
pub(super) enum Given {
    /// With an empty id, if the client gave none.
    Item(Item),
    /// Something of the conversation so far, by its id.
    Reference(String),
}

#[derive(Deserialize)]
struct GivenMessage {
    #[serde(default)]
    id: Option<String>,
    role: String,
    content: Content,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

#[derive(Deserialize)]
struct GivenCall {
    #[serde(default)]
    id: Option<String>,
    call_id: String,
    name: String,
    namespace: Option<String>,
    arguments: String,
}

#[derive(Deserialize)]
struct GivenOutput {
    #[serde(default)]
    id: Option<String>,
    call_id: String,
    output: Content,
}

#[derive(Deserialize)]
struct GivenReasoning {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    summary: Option<Vec<Value>>,
    #[serde(default)]
    content: Option<Vec<Value>>,
    encrypted_content: Option<String>,
}

#[derive(Deserialize)]
struct GivenReference {
    id: String,
}

/// Reads an item that a client sent; `param` is where it stands.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn read(value: Value, param: &str) -> Result<Given, Problem> {
    let kind = match value.get("type") {
        None | Some(Value::Null) => "message".to_owned(),
        Some(kind) => kind.as_str().map(str::to_owned).ok_or_else(|| at(param, ".type", "is not a text"))?,
    };
    let status = ItemStatus::Completed;
    Ok(Given::Item(match kind.as_str() {
        "message" => message(parsed(value, param)?, param)?,
        "function_call" => {
            let GivenCall { id, call_id, name, namespace, arguments } = parsed(value, param)?;
            Item::FunctionCall { id: id.unwrap_or_default(), status, call_id, name, namespace, arguments }
        }
        "function_call_output" => {
            let GivenOutput { id, call_id, output } = parsed(value, param)?;
            let output = match output {
                Content::Text(text) => Output::Text(text),
                Content::Parts(parts) => Output::Parts(self::parts(parts, &format!("{param}.output"))?),
            };
            Item::FunctionCallOutput { id: id.unwrap_or_default(), status, call_id, output }
        }
        "reasoning" => {
            let GivenReasoning { id, summary, content, encrypted_content } = parsed(value, param)?;
            let summary = parts(summary.unwrap_or_default(), &format!("{param}.summary"))?;
            let content = parts(content.unwrap_or_default(), &format!("{param}.content"))?;
            Item::Reasoning { id: id.unwrap_or_default(), status, summary, content, encrypted_content }
        }
        "item_reference" => {
            let GivenReference { id } = parsed(value, param)?;
            return Ok(Given::Reference(id));
        }
        other => {
            let served =
                "message, function_call, function_call_output, reasoning and item_reference are served";
            return Err(at(param, ".type", &format!("is {:?}; {served}", shown(other))));
        }
    }))
}

fn message(given: GivenMessage, param: &str) -> Result<Item, Problem> {
    let GivenMessage { id, role, content } = given;
    if !matches!(role.as_str(), "system" | "developer" | "user" | "assistant") {
        let known = "system, developer, user and assistant work";
        return Err(at(param, ".role", &format!("is {:?}; {known}", shown(&role))));
    }
    let content = match content {
        Content::Text(text) if role == "assistant" => vec![Part::output(text)],
        Content::Text(text) => vec![Part::InputText { text }],
        Content::Parts(values) => parts(values, &format!("{param}.content"))?,
    };
    Ok(Item::Message { id: id.unwrap_or_default(), status: ItemStatus::Completed, role, content })
}

/// Parts that have text; others are refused by name.
fn parts(values: Vec<Value>, param: &str) -> Result<Vec<Part>, Problem> {
    let part = |(place, mut value): (usize, Value)| {
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut field = |name: &str| match value.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(at(&format!("{param}[{place}]"), &format!(".{name}"), "is not a text")),
            None => Err(at(&format!("{param}[{place}]"), &format!(".{name}"), "is missing")),
        };
        Ok(match kind.as_str() {
            "input_text" | "text" => Part::InputText { text: field("text")? },
            "output_text" => Part::output(field("text")?),
            "reasoning_text" => Part::ReasoningText { text: field("text")? },
            "summary_text" => Part::SummaryText { text: field("text")? },
            "refusal" => Part::Refusal { refusal: field("refusal")? },
            "" => return Err(at(&format!("{param}[{place}]"), ".type", "is missing")),
            other => {
                let what = format!("is {:?}; the model takes text", shown(other));
                return Err(at(&format!("{param}[{place}]"), ".type", &what));
            }
        })
    };
    values.into_iter().enumerate().map(part).collect()
}

/// # Errors
/// A field that is missing or of the wrong type, by its path.
fn parsed<T: DeserializeOwned>(value: Value, param: &str) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let param = if path == "." { param.to_owned() } else { format!("{param}.{path}") };
        Problem::of(&param, format!("{param}: {}", error.into_inner()))
    })
}

fn at(param: &str, field: &str, what: &str) -> Problem {
    let param = format!("{param}{field}");
    Problem::of(&param, format!("{param} {what}"))
}

/// What a client wrote, short enough to be told.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Reasoning in a form that a client sends back.
pub(super) fn carried(reasoning: &str) -> String {
    format!("{CARRIED}{reasoning}")
}

/// The messages that a model's template is given: what the assistant thought, said and called in a row is one of them.
pub(super) fn messages<'a>(
    instructions: Option<&str>,
    items: impl IntoIterator<Item = &'a Item>,
    names: &Names,
) -> Vec<conversation::Message> {
    let mut told = Told { messages: Vec::new(), reasoning: None };
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        told.messages.push(conversation::Message::new(Role::System, instructions));
    }
    items.into_iter().for_each(|item| told.take(item, names));
    told.end_reasoning();
    told.messages
}

struct Told {
    messages: Vec<conversation::Message>,
    /// What the assistant thought before what it says next.
    reasoning: Option<String>,
}

impl Told {
    fn take(&mut self, item: &Item, names: &Names) {
        match item {
            Item::Message { role, content, .. } => {
                let text = joined(content);
                let role = match role.as_str() {
                    "assistant" => Role::Assistant,
                    "user" => Role::User,
                    // What models call "system" is "developer" to newer clients.
                    _ => Role::System,
                };
                if role == Role::Assistant {
                    let reasoning = self.reasoning.take();
                    let message =
                        conversation::Message { reasoning, ..conversation::Message::new(role, text) };
                    return self.messages.push(message);
                }
                self.end_reasoning();
                match self.messages.as_mut_slice() {
                    // Most templates take one system message, and only as the first.
                    [first] if role == Role::System && first.role == Role::System => {
                        first.text.push_str("\n\n");
                        first.text.push_str(&text);
                    }
                    _ => self.messages.push(conversation::Message::new(role, text)),
                }
            }
            Item::FunctionCall { call_id, name, namespace, arguments, .. } => {
                let name = names.shown(namespace.as_deref(), name);
                let call = Call { id: call_id.clone(), name, arguments: arguments.clone() };
                match self.messages.last_mut() {
                    Some(last) if last.role == Role::Assistant && self.reasoning.is_none() => {
                        last.calls.push(call)
                    }
                    _ => {
                        let mut message = conversation::Message::new(Role::Assistant, "");
                        (message.reasoning, message.calls) = (self.reasoning.take(), vec![call]);
                        self.messages.push(message);
                    }
                }
            }
            Item::FunctionCallOutput { call_id, output, .. } => {
                self.end_reasoning();
                let text = match output {
                    Output::Text(text) => text.clone(),
                    Output::Parts(parts) => joined(parts),
                };
                let message = conversation::Message::new(Role::Tool, text);
                self.messages.push(conversation::Message { call_id: Some(call_id.clone()), ..message });
            }
            Item::Reasoning { summary, content, encrypted_content, .. } => {
                self.end_reasoning();
                let carried = encrypted_content.as_deref().and_then(|text| text.strip_prefix(CARRIED));
                let text = match (content.is_empty(), carried) {
                    (false, _) => joined(content),
                    (true, Some(text)) => text.to_owned(),
                    (true, None) => joined(summary),
                };
                self.reasoning = (!text.is_empty()).then_some(text);
            }
        }
    }

    /// Reasoning that nothing followed on is a message of its own.
    fn end_reasoning(&mut self) {
        if let Some(reasoning) = self.reasoning.take() {
            let message = conversation::Message::new(Role::Assistant, "");
            self.messages.push(conversation::Message { reasoning: Some(reasoning), ..message });
        }
    }
}

fn joined(parts: &[Part]) -> String {
    parts.iter().map(Part::text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(items: Value, instructions: Option<&str>) -> Vec<conversation::Message> {
        let item = |value: &Value| match read(value.clone(), "input[0]").expect("an item") {
            Given::Item(item) => item,
            Given::Reference(id) => panic!("a reference to {id}"),
        };
        let items: Vec<Item> = items.as_array().expect("a list").iter().map(item).collect();
        messages(instructions, &items, &Names::default())
    }

    #[test]
    fn what_the_assistant_does_in_a_row_is_one_message() {
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let output = json!({"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]});
        let reasoning =
            |text: &str| json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]});
        let found = told(
            json!([
                {"role": "developer", "content": "Also this."},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "text", "text": "y"}]},
                reasoning("hm"),
                {"role": "assistant", "content": [{"type": "output_text", "text": "Look.", "annotations": []}]},
                call("a"), call("b"), output, reasoning("so"), call("c"),
                {"role": "system", "content": "Late."}, reasoning("left"),
            ]),
            Some("Be brief."),
        );
        let row: Vec<_> = found
            .iter()
            .map(|message| {
                let calls: Vec<_> = message.calls.iter().map(|call| call.id.as_str()).collect();
                (message.role, message.text.as_str(), message.reasoning.as_deref(), calls.concat())
            })
            .collect();
        let wanted = [
            (Role::System, "Be brief.\n\nAlso this.", None, ""),
            (Role::User, "x\ny", None, ""),
            (Role::Assistant, "Look.", Some("hm"), "ab"),
            (Role::Tool, "1\n2", None, ""),
            (Role::Assistant, "", Some("so"), "c"),
            (Role::System, "Late.", None, ""),
            (Role::Assistant, "", Some("left"), ""),
        ];
        assert_eq!(
            row,
            wanted.map(|(role, text, reasoning, calls)| (role, text, reasoning, calls.to_owned()))
        );
        assert_eq!(found[3].call_id.as_deref(), Some("b"));
    }

    #[test]
    fn items_go_out_as_they_came_in() {
        for value in [
            json!({"type": "message", "id": "m", "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "t"}]}),
            json!({"type": "function_call", "id": "f", "status": "completed", "call_id": "c", "name": "n", "namespace": "s", "arguments": "{"}),
            json!({"type": "function_call_output", "id": "o", "status": "completed", "call_id": "c", "output": "text"}),
            json!({"type": "reasoning", "id": "r", "status": "completed", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}),
        ] {
            let Ok(Given::Item(item)) = read(value.clone(), "input[0]") else { panic!("{value}") };
            assert_eq!(serde_json::to_value(&item).expect("JSON"), value);
            assert_eq!(serde_json::from_value::<Item>(value).expect("an item"), item);
        }
    }
}
