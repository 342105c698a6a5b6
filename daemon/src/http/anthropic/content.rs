//! Messages and their blocks, and what the model is shown of them.
//!
//! Neighbours of one role are one turn, as Anthropic has it; a tool's result, which stands in the user's message, is a turn of
//! the tool's. Texts of a turn are joined by line feeds.

use super::marks::CacheControl;
use crate::http::conversation::{self, Call, Role};
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A message.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesMessage")]
pub(super) struct Message {
    /// `user`, `assistant` or `system`.
    role: String,
    pub(super) content: Content,
}

/// A text, or a list of blocks.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged, rename = "MessagesContent")]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block; which fields it has depends on its type.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesBlock")]
pub(super) struct Block {
    /// `text`; of the assistant's `thinking`, `redacted_thinking` and `tool_use`; of the user's `tool_result`.
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    /// Of a call.
    id: Option<String>,
    name: Option<String>,
    input: Option<Map<String, Value>>,
    /// Of a result: the call.
    tool_use_id: Option<String>,
    content: Option<Content>,
    is_error: Option<bool>,
    pub(super) cache_control: Option<CacheControl>,
}

/// By hand, so that what is wrong within a block is named by its whole path.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a text or a list of blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = list.next_element()? {
                    blocks.push(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Content {
    pub(super) fn blocks(&self) -> &[Block] {
        match self {
            Self::Text(_) => &[],
            Self::Blocks(blocks) => blocks,
        }
    }

    /// Drops what comes after so many blocks.
    pub(super) fn truncate(&mut self, blocks: usize) {
        if let Self::Blocks(list) = self {
            list.truncate(blocks);
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Blocks(blocks) => blocks.is_empty(),
        }
    }
}

impl Message {
    /// One that says hardly anything.
    pub(super) fn blank() -> Self {
        Self { role: "user".to_owned(), content: Content::Text(" ".to_owned()) }
    }
}

/// What Claude Code writes at the head of its system text for Anthropic's books: another number in each request, which says
/// nothing to a model, and would part every prompt from the one before at its beginning.
const BILLING: &str = "x-anthropic-billing-header:";

/// What the model is shown.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn neutral(
    system: Option<&Content>,
    messages: &[Message],
) -> Result<Vec<conversation::Message>, Problem> {
    let mut turns = Turns(Vec::new());
    match system {
        Some(Content::Text(text)) if !text.is_empty() => turns.say(Role::System, text),
        Some(Content::Text(_)) | None => {}
        Some(Content::Blocks(blocks)) => {
            for (place, block) in blocks.iter().enumerate() {
                let text = block.said(&format!("system[{place}]"))?;
                if !text.starts_with(BILLING) {
                    turns.say(Role::System, text);
                }
            }
        }
    }
    if messages.is_empty() {
        return Err(Problem::of("messages", "messages is empty; give at least one"));
    }
    for (place, message) in messages.iter().enumerate() {
        turns.hear(message, place, place + 1 == messages.len())?;
    }
    Ok(turns.0)
}

struct Turns(Vec<conversation::Message>);

impl Turns {
    fn hear(&mut self, message: &Message, place: usize, is_last: bool) -> Result<(), Problem> {
        let role = match message.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            // Claude Code's reminders.
            "system" => Role::System,
            other => {
                let shown: String = other.chars().take(40).collect();
                let param = format!("messages[{place}].role");
                let message = format!("{param} is {shown:?}; user, assistant and system work");
                return Err(Problem::of(&param, message));
            }
        };
        let field = format!("messages[{place}].content");
        if message.content.is_empty() && !(is_last && role == Role::Assistant) {
            let message = format!("{field} is empty; only the last message may be, if it is the assistant's");
            return Err(Problem::of(&field, message));
        }
        match &message.content {
            Content::Text(text) => self.say(role, text),
            Content::Blocks(blocks) if blocks.is_empty() => self.say(role, ""),
            Content::Blocks(blocks) => {
                for (at, block) in blocks.iter().enumerate() {
                    self.block(role, block, &format!("{field}[{at}]"))?;
                }
            }
        }
        Ok(())
    }

    fn block(&mut self, role: Role, block: &Block, field: &str) -> Result<(), Problem> {
        match (role, block.kind.as_str()) {
            (Role::Assistant, "thinking") => {
                let thinking = given(block.thinking.as_ref(), field, "thinking")?;
                join(self.turn(role).reasoning.get_or_insert_default(), thinking);
            }
            // What it says can only be read by whoever made it.
            (Role::Assistant, "redacted_thinking") => {
                self.turn(role);
            }
            (Role::Assistant, "tool_use") => {
                let id = given(block.id.as_ref(), field, "id")?.clone();
                let name = given(block.name.as_ref(), field, "name")?.clone();
                let arguments =
                    Value::Object(given(block.input.as_ref(), field, "input")?.clone()).to_string();
                self.turn(role).calls.push(Call { id, name, arguments });
            }
            (Role::User, "tool_result") => {
                let mut result = conversation::Message::new(Role::Tool, block.result(field)?);
                result.call_id = Some(given(block.tool_use_id.as_ref(), field, "tool_use_id")?.clone());
                self.0.push(result);
            }
            _ => {
                let text = block.said(field)?;
                self.say(role, text);
            }
        }
        Ok(())
    }

    fn say(&mut self, role: Role, text: &str) {
        join(&mut self.turn(role).text, text);
    }

    /// The turn that goes on: the last one, if it is of this role.
    fn turn(&mut self, role: Role) -> &mut conversation::Message {
        if self.0.last().is_none_or(|last| last.role != role) {
            self.0.push(conversation::Message::new(role, ""));
        }
        self.0.last_mut().expect("there is one now")
    }
}

fn join(to: &mut String, text: &str) {
    if !to.is_empty() && !text.is_empty() {
        to.push('\n');
    }
    to.push_str(text);
}

fn given<'a, T>(value: Option<&'a T>, field: &str, name: &str) -> Result<&'a T, Problem> {
    let param = format!("{field}.{name}");
    value.ok_or_else(|| Problem::of(&param, format!("{param} is missing")))
}

impl Block {
    /// The blocks of a tool's result.
    pub(super) fn inner(&self) -> &[Block] {
        self.content.as_ref().map_or(&[], Content::blocks)
    }

    /// The text of a text block.
    fn said(&self, field: &str) -> Result<&str, Problem> {
        if self.kind == "text" {
            return given(self.text.as_ref(), field, "text").map(String::as_str);
        }
        let kind: String = self.kind.chars().take(40).collect();
        let param = format!("{field}.type");
        let what = match kind.as_str() {
            "image" | "document" | "container_upload" => "the model takes text",
            "thinking" | "redacted_thinking" | "tool_use" | "tool_result" => "it does not belong there",
            _ => "it is not served",
        };
        Err(Problem::of(&param, format!("{param} is {kind:?}; {what}")))
    }

    /// What a tool has answered.
    fn result(&self, field: &str) -> Result<String, Problem> {
        // Nothing in templates tells a failure from an answer.
        let mut result = String::from(if self.is_error == Some(true) { "Error: " } else { "" });
        match &self.content {
            None => {}
            Some(Content::Text(text)) => result.push_str(text),
            Some(Content::Blocks(blocks)) => {
                let texts = blocks
                    .iter()
                    .enumerate()
                    .map(|(at, block)| block.said(&format!("{field}.content[{at}]")));
                result.push_str(&texts.collect::<Result<Vec<&str>, Problem>>()?.join("\n"));
            }
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    struct Asked {
        system: Option<Content>,
        messages: Vec<Message>,
    }

    fn read(system: Value, messages: Value) -> Result<Vec<conversation::Message>, Problem> {
        let body = json!({ "system": system, "messages": messages }).to_string();
        let asked: Asked = body::parse(body.as_bytes())?;
        neutral(asked.system.as_ref(), &asked.messages)
    }

    /// Role, text, reasoning, calls and the call that is answered, in short.
    fn short(messages: &[conversation::Message]) -> Vec<String> {
        let line = |message: &conversation::Message| {
            let calls: Vec<String> = message
                .calls
                .iter()
                .map(|call| format!("{} {} {}", call.id, call.name, call.arguments))
                .collect();
            let mut line = format!("{:?}: {}", message.role, message.text);
            for (sign, more) in [
                ("~", message.reasoning.clone()),
                ("@", message.call_id.clone()),
                ("!", calls.first().cloned()),
            ] {
                line.extend(more.map(|more| format!(" {sign}{more}")));
            }
            line
        };
        messages.iter().map(line).collect()
    }

    #[test]
    fn turns_are_put_together_as_anthropic_does() {
        let system = json!([
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"},
            {"type": "text", "text": "Be kind."},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]);
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "system", "content": "A reminder."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "d"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": "é"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [
                    {"type": "text", "text": "two"}, {"type": "text", "text": "three"},
                ]},
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "text", "text": "e"},
            ]},
            {"role": "assistant", "content": []},
        ]);
        let wanted = [
            "System: Be kind.\nBe brief.",
            "User: a\nb\nc",
            "System: A reminder.",
            "Assistant: d ~hm !t1 f {\"b\":1,\"a\":\"é\"}",
            "Tool: one @t1",
            "Tool: Error: two\nthree @t2",
            "Tool:  @t3",
            "User: e",
            "Assistant: ",
        ];
        assert_eq!(short(&read(system, messages).expect("good messages")), wanted);
    }

    #[test]
    fn what_is_wrong_is_named_where_it_is() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        let result =
            |content: Value| user(json!([{"type": "tool_result", "tool_use_id": "t", "content": content}]));
        let call = |call: Value| json!([{"role": "assistant", "content": [call]}]);
        for (messages, field, what) in [
            (json!([]), "messages", "empty"),
            (json!([{"role": "tool", "content": "a"}]), "messages[0].role", "\"tool\""),
            (json!([{"role": "user"}]), "messages[0]", "missing field `content`"),
            (user(Value::Null), "messages[0].content", "null"),
            (user(json!(7)), "messages[0].content", "a text or a list of blocks"),
            (user(json!("")), "messages[0].content", "empty"),
            (user(json!([])), "messages[0].content", "empty"),
            (user(json!([{"text": "a"}])), "messages[0].content[0]", "missing field `type`"),
            (user(json!([{"type": "text", "text": 7}])), "messages[0].content[0].text", "integer"),
            (user(json!([{"type": "text"}])), "messages[0].content[0].text", "missing"),
            (user(json!([{"type": "image", "source": {}}])), "messages[0].content[0].type", "takes text"),
            (user(json!([{"type": "document"}])), "messages[0].content[0].type", "takes text"),
            (user(json!([{"type": "search_result"}])), "messages[0].content[0].type", "not served"),
            (user(json!([{"type": "tool_use"}])), "messages[0].content[0].type", "does not belong"),
            (user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id", "missing"),
            (result(json!([{"type": "image"}])), "messages[0].content[0].content[0].type", "takes text"),
            (
                call(json!({"type": "tool_use", "id": "t", "name": "f"})),
                "messages[0].content[0].input",
                "missing",
            ),
            (
                call(json!({"type": "tool_use", "id": "t", "name": "f", "input": "x"})),
                "messages[0].content[0].input",
                "a map",
            ),
        ] {
            let problem = read(Value::Null, messages.clone()).expect_err("a bad message");
            let param = problem.param.as_deref().expect("a field");
            assert!(param.starts_with(field) && problem.message.contains(what), "{messages}: {problem:?}");
        }
        let problem = read(json!([{"type": "image"}]), user(json!("a"))).expect_err("a bad system text");
        assert_eq!(problem.param.as_deref(), Some("system[0].type"));
    }
}
