//! Bytes as JSON: every sequence of bytes is some value, a small change of the bytes a small change of the value.

use serde_json::{Map, Value, json};

use super::Bytes;

/// Nested values; deeper ones are null.
const MAX_DEPTH: usize = 24;
/// Elements of a list or an object.
const MAX_ELEMENTS: usize = 12;
/// What templates look for, as keys and as texts.
const WORDS: [&str; 40] = [
    "role",
    "content",
    "user",
    "assistant",
    "system",
    "tool",
    "tools",
    "name",
    "type",
    "text",
    "function",
    "arguments",
    "parameters",
    "properties",
    "description",
    "required",
    "tool_calls",
    "tool_call_id",
    "id",
    "reasoning_content",
    "thinking",
    "image",
    "image_url",
    "string",
    "object",
    "array",
    "enum",
    "items",
    "developer",
    "ipython",
    "enable_thinking",
    "builtin_tools",
    "documents",
    "title",
    "<think>",
    "</think>",
    "\n",
    "{\"a\": 1}",
    "get_weather",
    "",
];

/// The next value.
pub(super) fn value(input: &mut Bytes<'_>, depth: usize) -> Value {
    if input.is_empty() || depth > MAX_DEPTH {
        return Value::Null;
    }
    match input.next() % 12 {
        0 => Value::Null,
        1 => json!(input.next() & 1 == 1),
        2 => json!(input.next() as i8),
        3 => json!(i64::from_le_bytes(number(input))),
        4 => json!(u64::from_le_bytes(number(input))),
        5 => json!(f64::from_le_bytes(number(input))),
        6..9 => json!(text(input)),
        9 => (0..usize::from(input.next()) % MAX_ELEMENTS).map(|_| value(input, depth + 1)).collect(),
        _ => Value::Object(object(input, depth + 1)),
    }
}

/// The next object.
pub(super) fn object(input: &mut Bytes<'_>, depth: usize) -> Map<String, Value> {
    (0..usize::from(input.next()) % MAX_ELEMENTS).map(|_| (text(input), value(input, depth))).collect()
}

/// The next text: a word that templates know, or any.
pub(super) fn text(input: &mut Bytes<'_>) -> String {
    let selector = usize::from(input.next());
    match WORDS.get(selector) {
        Some(word) => (*word).to_owned(),
        None => String::from_utf8_lossy(input.take(selector - WORDS.len())).into_owned(),
    }
}

fn number(input: &mut Bytes<'_>) -> [u8; 8] {
    std::array::from_fn(|_| input.next())
}
