//! Filters and tests that must differ from minijinja's to give what Python's Jinja2 gives.

use super::json::{self, Layout};
use super::python;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Longest indentation of one level that `tojson` writes.
const MAX_INDENT: usize = 64;

pub(super) fn register(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("fromjson", fromjson);
    environment.add_filter("string", |value: &Value| python::to_str(value));
    environment.add_filter("trim", trim);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        // Whatever has a length and takes an index.
        matches!(value.kind(), ValueKind::Undefined | ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let mut positional = positional.0.into_iter();
    let mut argument = |name: &str| -> Result<Value, Error> {
        let given = match positional.next() {
            Some(given) => given,
            None => named.get::<Option<Value>>(name)?.unwrap_or_default(),
        };
        Ok(given)
    };
    let ensure_ascii = argument("ensure_ascii")?.is_true();
    let indent = indentation(&argument("indent")?)?;
    let separators = argument("separators")?;
    let sort_keys = argument("sort_keys")?.is_true();
    named.assert_all_used()?;
    let item_separator = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match separators.kind() {
        ValueKind::None | ValueKind::Undefined => (item_separator.to_string(), ": ".to_string()),
        _ => (text_at(&separators, 0)?, text_at(&separators, 1)?),
    };
    let layout = Layout { ensure_ascii, indent, item_separator, key_separator, sort_keys };
    let text = json::dumps(value, &layout)?;
    state.consume_fuel(text.len() as u64 / 8)?;
    Ok(Value::from(text))
}

fn indentation(indent: &Value) -> Result<Option<String>, Error> {
    let text = match (indent.kind(), indent.as_str(), indent.as_i64()) {
        (ValueKind::None | ValueKind::Undefined, _, _) => return Ok(None),
        (_, Some(text), _) if text.len() <= MAX_INDENT => text.to_string(),
        (_, _, Some(width)) if width <= MAX_INDENT as i64 => " ".repeat(width.max(0) as usize),
        _ => {
            let message = format!("indent must be a string or number of at most {MAX_INDENT} characters");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    Ok(Some(text))
}

fn text_at(separators: &Value, index: usize) -> Result<String, Error> {
    match separators.get_item_by_index(index)?.as_str() {
        Some(text) if text.len() <= MAX_INDENT => Ok(text.to_string()),
        _ => {
            let message = format!("separators must be two strings of at most {MAX_INDENT} bytes");
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}

fn fromjson(state: &State<'_, '_>, text: &str) -> Result<Value, Error> {
    state.consume_fuel(text.len() as u64 / 8)?;
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("fromjson: {error}")))?;
    Ok(json::to_value(&json))
}

fn trim(value: &Value, characters: Option<&str>) -> Result<String, Error> {
    let text = python::to_str(value)?;
    let trimmed = match characters {
        Some(characters) => text.trim_matches(|character| characters.contains(character)),
        None => text.trim_matches(python::is_space),
    };
    Ok(trimmed.to_string())
}
