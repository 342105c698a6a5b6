//! A message of a conversation, as a chat template sees it.
//!
//! Templates read whatever their model was trained with (`tool_calls`, `name`, `reasoning_content`, content parts), so
//! a message keeps every field it came with, in its order. Invariant: `role` is there and is a string.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// One message: a JSON object with a `role`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Message {
    fields: Map<String, Value>,
}

/// Why an object is no message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MessageError {
    /// There is no `role`, or it is not a string.
    #[error("a message needs a role that is a string, such as \"user\"")]
    Role,
}

impl Message {
    /// A message of `role` with text or parts (any JSON value) as its content.
    pub fn new(role: &str, content: impl Into<Value>) -> Self {
        let mut fields = Map::new();
        fields.insert("role".to_string(), role.into());
        fields.insert("content".to_string(), content.into());
        Self { fields }
    }

    /// What the user says.
    pub fn user(content: impl Into<Value>) -> Self {
        Self::new("user", content)
    }

    /// Standing orders for the model.
    pub fn system(content: impl Into<Value>) -> Self {
        Self::new("system", content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<Value>) -> Self {
        Self::new("assistant", content)
    }

    /// Adds or replaces a field; `role` keeps its value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        if name != "role" {
            self.fields.insert(name.to_string(), value.into());
        }
        self
    }

    /// Who speaks.
    pub fn role(&self) -> &str {
        self.fields.get("role").and_then(Value::as_str).expect("a message has a role")
    }

    /// The content if it is text; `None` if it is missing, null or parts.
    pub fn text(&self) -> Option<&str> {
        self.fields.get("content").and_then(Value::as_str)
    }

    /// All fields, in order.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }
}

impl TryFrom<Map<String, Value>> for Message {
    type Error = MessageError;

    fn try_from(fields: Map<String, Value>) -> Result<Self, MessageError> {
        if fields.get("role").is_some_and(Value::is_string) {
            Ok(Self { fields })
        } else {
            Err(MessageError::Role)
        }
    }
}

impl From<Message> for Map<String, Value> {
    fn from(message: Message) -> Self {
        message.fields
    }
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn keeps_every_field_in_order() {
        let text = r#"{"role":"tool","tool_call_id":"call_1","content":null,"name":"f"}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!((message.role(), message.text()), ("tool", None));
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
    }

    #[test]
    fn needs_a_role() {
        for text in [r#"{"content":"hi"}"#, r#"{"role":1}"#] {
            let error = serde_json::from_str::<Message>(text).unwrap_err().to_string();
            assert!(error.starts_with("a message needs a role"), "{error}");
        }
    }
}
