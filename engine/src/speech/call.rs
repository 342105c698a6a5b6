//! What stands between `<tool_call>` and `</tool_call>`: one JSON object with `name` and `arguments`, a character at a
//! time.
//!
//! - `parameters` is another word for `arguments`; the first of the two counts, and so does the first `name`. All other
//!   keys are read over.
//! - Arguments are JSON text as the model wrote it. If they are a string whose first character besides blanks is `{`, they
//!   are the JSON text in that string. A call without any has `{}`.
//! - A name is a string that is not empty. An object without one is no call.
//!
//! Invariant: `arguments[..whole]` ends at the end of a character of JSON, never within an escape.

use super::json::{InString, Json, Malformed, Step, StringReader, is_blank};

/// What has come of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallStep {
    /// Nothing to tell but perhaps more of the arguments.
    More,
    /// Its name.
    Named(String),
    /// Its last character, the object's closing brace.
    End,
}

/// Reads one call.
#[derive(Debug, Clone)]
pub(super) struct CallReader {
    at: At,
    is_named: bool,
    has_arguments: bool,
    /// Those not yet taken.
    arguments: String,
    /// How many bytes of them may be taken.
    whole: usize,
}

/// What may come next.
#[derive(Debug, Clone)]
enum At {
    /// The object's beginning.
    Begin,
    /// A key, or the object's end.
    FirstKey,
    Key,
    InKey(StringReader, String),
    Colon(Field),
    Value(Field),
    InName(StringReader, String),
    InValue {
        json: Json,
        is_arguments: bool,
    },
    /// Arguments in a string.
    InText(ArgumentsText),
    /// A comma, or the object's end.
    Next,
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// Arguments that are a string, after its opening quote.
#[derive(Debug, Clone)]
struct ArgumentsText {
    reader: StringReader,
    /// What came, while that is nothing but blanks.
    raw: String,
    /// The value within, once it has begun.
    json: Option<Json>,
}

impl CallReader {
    pub(super) fn new() -> Self {
        Self { at: At::Begin, is_named: false, has_arguments: false, arguments: String::new(), whole: 0 }
    }

    /// Reads a character. An error says that this character cannot follow; it is not read then.
    pub(super) fn push(&mut self, c: char) -> Result<CallStep, Malformed> {
        match &mut self.at {
            At::InKey(reader, key) => match reader.push(c)? {
                InString::Char(c) => key.push(c),
                InString::Escape => {}
                InString::End => {
                    self.at = At::Colon(match key.as_str() {
                        "name" if !self.is_named => Field::Name,
                        "arguments" | "parameters" if !self.has_arguments => Field::Arguments,
                        _ => Field::Other,
                    });
                }
            },
            At::InName(reader, name) => match reader.push(c)? {
                InString::Char(c) => name.push(c),
                InString::Escape => {}
                InString::End if name.is_empty() => return Err(Malformed),
                InString::End => {
                    let name = std::mem::take(name);
                    self.is_named = true;
                    self.at = At::Next;
                    return Ok(CallStep::Named(name));
                }
            },
            At::InValue { .. } => return self.push_value(c),
            At::InText(_) => self.push_text(c)?,
            _ if is_blank(c) => {}
            _ => return self.push_token(c),
        }
        Ok(CallStep::More)
    }

    /// The arguments that have come since the last time.
    pub(super) fn take_arguments(&mut self) -> Option<String> {
        let rest = self.arguments.split_off(std::mem::take(&mut self.whole));
        let taken = std::mem::replace(&mut self.arguments, rest);
        (!taken.is_empty()).then_some(taken)
    }

    /// Between two tokens of the object.
    fn push_token(&mut self, c: char) -> Result<CallStep, Malformed> {
        self.at = match (&self.at, c) {
            (At::Begin, '{') => At::FirstKey,
            (At::FirstKey | At::Key, '"') => At::InKey(StringReader::default(), String::new()),
            (At::Colon(field), ':') => At::Value(*field),
            (At::Value(Field::Name), '"') => At::InName(StringReader::default(), String::new()),
            (At::Value(Field::Arguments), '"') => {
                self.has_arguments = true;
                At::InText(ArgumentsText { reader: StringReader::default(), raw: c.into(), json: None })
            }
            (At::Value(field @ (Field::Arguments | Field::Other)), _) => {
                let is_arguments = matches!(field, Field::Arguments);
                self.has_arguments |= is_arguments;
                self.at = At::InValue { json: Json::new(), is_arguments };
                return self.push_value(c);
            }
            (At::Next, ',') => At::Key,
            (At::FirstKey | At::Next, '}') if self.is_named => {
                if !self.has_arguments {
                    self.keep("{}", true);
                }
                return Ok(CallStep::End);
            }
            _ => return Err(Malformed),
        };
        Ok(CallStep::More)
    }

    fn push_value(&mut self, c: char) -> Result<CallStep, Malformed> {
        let At::InValue { json, is_arguments } = &mut self.at else { unreachable!("only called in a value") };
        let (step, is_whole) = (json.push(c)?, json.is_whole());
        if *is_arguments && step != Step::Past {
            self.keep(c.encode_utf8(&mut [0; 4]), is_whole);
        }
        match step {
            Step::More => {}
            Step::Last => self.at = At::Next,
            Step::Past => {
                self.at = At::Next;
                return self.push(c);
            }
        }
        Ok(CallStep::More)
    }

    fn push_text(&mut self, c: char) -> Result<(), Malformed> {
        let At::InText(text) = &mut self.at else { unreachable!("only called in such a text") };
        let step = text.reader.push(c)?;
        let InString::Char(inner) = step else {
            if text.json.is_none() {
                text.raw.push(c);
            }
            if step == InString::End {
                if text.json.as_ref().is_some_and(|json| !json.is_complete()) {
                    return Err(Malformed);
                }
                if text.json.is_none() {
                    let raw = std::mem::take(&mut text.raw);
                    self.keep(&raw, true);
                }
                self.at = At::Next;
            }
            return Ok(());
        };
        if text.json.is_none() {
            if is_blank(inner) {
                text.raw.push(c);
                return Ok(());
            }
            if inner != '{' {
                let mut raw = std::mem::take(&mut text.raw);
                raw.push(c);
                let json = Json::in_string(std::mem::take(&mut text.reader));
                self.at = At::InValue { json, is_arguments: true };
                self.keep(&raw, true);
                return Ok(());
            }
        }
        let json = text.json.get_or_insert_with(Json::new);
        if json.push(inner)? != Step::Past {
            let is_whole = json.is_whole();
            self.keep(inner.encode_utf8(&mut [0; 4]), is_whole);
        }
        Ok(())
    }

    fn keep(&mut self, arguments: &str, is_whole: bool) {
        self.arguments.push_str(arguments);
        if is_whole {
            self.whole = self.arguments.len();
        }
    }
}
