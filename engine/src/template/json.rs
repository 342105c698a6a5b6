//! JSON into template values, and out as Python's `json.dumps` writes it.

use super::python;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::Map;

/// A JSON value for templates; objects keep their order.
pub(super) fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_value).collect(),
        serde_json::Value::Object(object) => object_to_value(object),
    }
}

/// A JSON object for templates.
pub(super) fn object_to_value(object: &Map<String, serde_json::Value>) -> Value {
    Value::from_pairs(object.iter().map(|(key, value)| (key.as_str(), to_value(value))))
}

/// About the length of a JSON value as text.
pub(super) fn size_bytes(json: &serde_json::Value) -> u64 {
    match json {
        serde_json::Value::String(text) => text.len() as u64 + 2,
        serde_json::Value::Array(items) => items.iter().map(|item| size_bytes(item) + 1).sum::<u64>() + 2,
        serde_json::Value::Object(object) => object_size_bytes(object),
        _ => 5,
    }
}

/// About the length of a JSON object as text.
pub(super) fn object_size_bytes(object: &Map<String, serde_json::Value>) -> u64 {
    object.iter().map(|(key, value)| key.len() as u64 + 4 + size_bytes(value)).sum::<u64>() + 2
}

/// Layout of [`dumps`], with the names of `json.dumps`.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) ensure_ascii: bool,
    /// What each level of nesting is indented with; `None` writes one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

/// `json.dumps(value)`.
pub(super) fn dumps(value: &Value, layout: &Layout) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), layout, depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    layout: &'a Layout,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.out.push_str(&scalar(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], &items, |writer, item| writer.value(item))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    pairs.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.layout.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container(['{', '}'], &pairs, |writer, (key, item)| {
                    writer.string(key);
                    writer.out.push_str(&writer.layout.key_separator);
                    writer.value(item)
                })?;
            }
            _ => return Err(not_serializable(value)),
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        [open, close]: [char; 2],
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        if self.depth > python::MAX_DEPTH {
            return Err(python::too_deep());
        }
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.layout.item_separator);
            }
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.layout.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0c' => self.out.push_str("\\f"),
                _ if character < ' ' || (self.layout.ensure_ascii && !(' '..='~').contains(&character)) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".to_string(),
        ValueKind::Bool => if value.is_true() { "true" } else { "false" }.to_string(),
        _ => match python::number(value).as_str() {
            "nan" => "NaN".to_string(),
            "inf" => "Infinity".to_string(),
            "-inf" => "-Infinity".to_string(),
            number => number.to_string(),
        },
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => Ok(scalar(key)),
        _ => Err(Error::new(
            ErrorKind::BadSerialization,
            format!("keys must be str, int, float, bool or None, not {}", python::type_name(key)),
        )),
    }
}

fn not_serializable(value: &Value) -> Error {
    let name = if value.is_undefined() { "Undefined" } else { python::type_name(value) };
    Error::new(ErrorKind::BadSerialization, format!("Object of type {name} is not JSON serializable"))
}
