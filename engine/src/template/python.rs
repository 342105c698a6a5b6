//! Values as Python's `str` and `repr` write them.

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Nested containers deeper than this are refused, here and in `tojson`: writing them takes stack.
pub(super) const MAX_DEPTH: usize = 200;

/// `str(value)`; an undefined value is empty, as in Jinja2.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_string()),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

/// Appends `repr(value)`.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if is_tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
                count += 1;
            }
            if is_tuple && count == 1 {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").expect("a string takes all text"),
    }
    Ok(())
}

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {MAX_DEPTH} deep"))
}

/// A number that is no bool.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float_repr(float),
        _ => value.to_string(),
    }
}

/// The shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("written with an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a small integer");
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ if is_printable(character) => out.push(character),
            _ => {
                let code = u32::from(character);
                let escape = match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                };
                out.push_str(&escape);
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable` of a character beyond ASCII.
fn is_printable(character: char) -> bool {
    // Rust escapes what it cannot print; a mark that joins the character before is escaped at a text's start alone.
    let mut buffer = [b'a'; 5];
    let length = 1 + character.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..length]).expect("a letter and a character");
    character > '\x7f' && text.escape_debug().nth(1) != Some('\\')
}

/// What `str.strip` strips.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// The name of the value's type in Jinja2's messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::None => "None",
        ValueKind::Bool => "bool object",
        ValueKind::Number if value.is_integer() => "int object",
        ValueKind::Number => "float object",
        ValueKind::String => "str object",
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => "tuple object",
        ValueKind::Seq => "list object",
        ValueKind::Map => "dict object",
        _ => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::{float_repr, write_str_repr};

    #[test]
    fn floats_as_python_writes_them() {
        // Pairs made with Python 3's repr.
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (21.5, "21.5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float_repr(value), expected);
        }
    }

    #[test]
    fn strings_as_python_writes_them() {
        for (text, expected) in [
            ("it's", r#""it's""#),
            ("\"it's\"", r#"'"it\'s"'"#),
            ("a\\\n\t\r\x00\x7f", r"'a\\\n\t\r\x00\x7f'"),
            ("天é e\u{301}", "'天é e\u{301}'"),
            ("\u{a0}\u{200b}\u{feff}\u{e000}", r"'\xa0\u200b\ufeff\ue000'"),
            ("\u{1f600}\u{e0001}", "'\u{1f600}\\U000e0001'"),
        ] {
            let mut out = String::new();
            write_str_repr(&mut out, text);
            assert_eq!(out, expected);
        }
    }
}
