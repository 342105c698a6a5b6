//! A conversation as every API hands it to the model's template.
//!
//! Each API reads its own messages into these; here they become the JSON that chat templates were written for, which is
//! OpenAI's form with two differences: contents are texts, and a call's arguments are an object, as templates print them.

use super::problem::Problem;
use serde_json::{Map, Value, json};
use zllm_wire::Prompt;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A tool that the assistant has called.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON text, as the model wrote it or the client sent it back.
    pub(super) arguments: String,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Message {
    pub(super) role: Role,
    /// Of a person, or of a tool.
    pub(super) name: Option<String>,
    pub(super) text: String,
    /// What the assistant thought before it spoke.
    pub(super) reasoning: Option<String>,
    pub(super) calls: Vec<Call>,
    /// Of a tool's result: the call that it answers.
    pub(super) call_id: Option<String>,
}

impl Message {
    pub(super) fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, name: None, text: text.into(), reasoning: None, calls: Vec::new(), call_id: None }
    }

    fn told(self) -> Value {
        let mut told = Map::new();
        told.insert("role".to_owned(), self.role.name().into());
        told.insert("content".to_owned(), self.text.into());
        let mut add =
            |name: &str, value: Option<Value>| value.map(|value| told.insert(name.to_owned(), value));
        add("name", self.name.map(Value::from));
        add("reasoning_content", self.reasoning.map(Value::from));
        add("tool_call_id", self.call_id.map(Value::from));
        let calls: Vec<Value> = self.calls.into_iter().map(Call::told).collect();
        add("tool_calls", (!calls.is_empty()).then_some(Value::Array(calls)));
        Value::Object(told)
    }
}

impl Call {
    fn told(self) -> Value {
        let object: Option<Map<String, Value>> = serde_json::from_str(&self.arguments).ok();
        let arguments = object.map_or(Value::String(self.arguments), Value::Object);
        json!({ "id": self.id, "type": "function", "function": { "name": self.name, "arguments": arguments } })
    }
}

/// Messages, and the tools that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// In OpenAI's form, as templates show them: `{"type": "function", "function": {..}}`.
    pub(super) tools: Vec<Value>,
}

impl Conversation {
    /// The prompt. A last message of the assistant's is gone on with, unless it calls tools.
    ///
    /// # Errors
    /// There is no message.
    pub(super) fn into_prompt(self) -> Result<Prompt, Problem> {
        let last = self
            .messages
            .last()
            .ok_or_else(|| Problem::of("messages", "messages is empty; give at least one"))?;
        let continue_last = last.role == Role::Assistant && last.calls.is_empty();
        let messages: Vec<Value> = self.messages.into_iter().map(Message::told).collect();
        Ok(Prompt::Chat {
            messages_json: Value::Array(messages).to_string(),
            tools_json: (!self.tools.is_empty()).then(|| Value::Array(self.tools).to_string()),
            template: None,
            continue_last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_get_objects_where_clients_send_texts() {
        let call = |arguments: &str| Call { id: "c".into(), name: "f".into(), arguments: arguments.into() };
        let mut assistant = Message::new(Role::Assistant, "");
        assistant.calls = vec![call(r#"{"b": 1, "a": [2]}"#), call("not JSON"), call("[1]")];
        let conversation =
            Conversation { messages: vec![Message::new(Role::User, "hi"), assistant], tools: Vec::new() };
        let Ok(Prompt::Chat { messages_json, tools_json: None, continue_last: false, .. }) =
            conversation.into_prompt()
        else {
            panic!("a conversation");
        };
        let wanted = r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"b":1,"a":[2]}}},{"id":"c","type":"function","function":{"name":"f","arguments":"not JSON"}},{"id":"c","type":"function","function":{"name":"f","arguments":"[1]"}}]}]"#;
        assert_eq!(messages_json, wanted);
    }

    #[test]
    fn a_last_word_of_the_assistants_is_gone_on_with() {
        let prompt =
            |role| Conversation { messages: vec![Message::new(role, "It is")], tools: vec![] }.into_prompt();
        for (role, wanted) in [(Role::Assistant, true), (Role::User, false), (Role::Tool, false)] {
            assert!(
                matches!(prompt(role), Ok(Prompt::Chat { continue_last, .. }) if continue_last == wanted)
            );
        }
        assert!(Conversation::default().into_prompt().is_err());
    }
}
