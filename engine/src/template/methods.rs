//! Methods of Python's `str`, `list` and `dict`.
//!
//! `minijinja_contrib::pycompat` has most; here are those it lacks or does otherwise, and Jinja2's message where there
//! is no such method. Methods that change a list or dict are missing on purpose: Python's sandbox forbids them too.

use super::python;
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls `value.method(args)`.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string_method(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => list_method(value, method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    if let Some(result) = own {
        return Ok(result);
    }
    match unknown_method_callback(state, value, method, args) {
        // A dict's item that is callable may yet be meant; without one it is an attribute that is not there.
        Err(error) if error.kind() == ErrorKind::UnknownMethod => Err(unknown(value, method)),
        other => other,
    }
}

fn unknown(value: &Value, method: &str) -> Error {
    let message = format!("'{}' has no attribute '{method}'", python::type_name(value));
    Error::new(ErrorKind::UnknownMethod, message)
}

fn string_method(
    state: &State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" => strip(text, args, true, true)?,
        "lstrip" => strip(text, args, true, false)?,
        "rstrip" => strip(text, args, false, true)?,
        "split" | "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            split(text, separator, limit, method == "rsplit")?
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, method == "rpartition")?
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "title" => {
            let () = from_args(args)?;
            title(text).into()
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if method == "index" { text.find(part) } else { text.rfind(part) };
            let found =
                found.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            text[..found].chars().count().into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| {
                if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() }
            };
            text.chars().map(swap).collect::<String>().into()
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(state, text, method, args)?,
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn strip(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let goes = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => python::is_space(character),
    };
    let text = if start { text.trim_start_matches(goes) } else { text };
    let text = if end { text.trim_end_matches(goes) } else { text };
    Ok(text.into())
}

fn split(text: &str, separator: Option<&str>, limit: usize, from_end: bool) -> Result<Value, Error> {
    let parts = limit.saturating_add(1);
    let mut result: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) if from_end => text.rsplitn(parts, separator).collect(),
        Some(separator) => text.splitn(parts, separator).collect(),
        None => split_at_spaces(text, limit, from_end),
    };
    if from_end {
        result.reverse();
    }
    Ok(result.into_iter().map(Value::from).collect())
}

/// Words between runs of blanks; after `limit` words the rest stays whole. From the end, the last word comes first.
fn split_at_spaces(text: &str, limit: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_end {
            rest.trim_end_matches(python::is_space)
        } else {
            rest.trim_start_matches(python::is_space)
        };
        if rest.is_empty() {
            return words;
        }
        let space = if from_end { rest.rfind(python::is_space) } else { rest.find(python::is_space) };
        let Some(space) = space.filter(|_| words.len() < limit) else {
            words.push(rest);
            return words;
        };
        if from_end {
            let after = space + rest[space..].chars().next().map_or(0, char::len_utf8);
            words.push(&rest[after..]);
            rest = &rest[..space];
        } else {
            words.push(&rest[..space]);
            rest = &rest[space..];
        }
    }
}

fn partition(text: &str, separator: &str, from_end: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let found = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::new(parts.map(Value::from).to_vec())))
}

/// A capital after each character that is no letter.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if after_letter {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        after_letter = character.is_lowercase() || character.is_uppercase();
    }
    out
}

fn pad(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(if method == "zfill" { "0" } else { " " });
    let length = text.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    if fill.chars().count() != 1 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the fill character must be exactly one character long",
        ));
    }
    state.consume_fuel(missing as u64)?;
    let before = match method {
        "ljust" => 0,
        // Python puts the odd one before if the width is odd.
        "center" => missing / 2 + (missing & width.max(0) as usize & 1),
        _ => missing,
    };
    let (sign, text) = match text.strip_prefix(['+', '-']) {
        Some(rest) if method == "zfill" => text.split_at(text.len() - rest.len()),
        _ => ("", text),
    };
    Ok(format!("{sign}{}{text}{}", fill.repeat(before), fill.repeat(missing - before)).into())
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (sought,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *sought) {
                Some(index) => Ok(Some(index.into())),
                None => Err(Error::new(ErrorKind::InvalidOperation, "the list does not hold that value")),
            }
        }
        "copy" if value.downcast_object_ref::<Tuple>().is_none() => Ok(Some(value.clone())),
        _ => Ok(None),
    }
}
