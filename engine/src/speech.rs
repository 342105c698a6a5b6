//! What a model says, taken apart as it streams in: content, reasoning and tool calls.
//!
//! - Reasoning stands in `<think>` and `</think>` before the answer's first text or call; later, `<think>` is text, as in an
//!   answer about the tag. Within reasoning nothing but its end counts.
//! - A call stands in `<tool_call>` and `</tool_call>`; `speech/call.rs` says what it looks like. Its pieces come as soon as
//!   its name is known, and until then it is held back. What turns out not to be a call is text, tags and all, from its
//!   beginning to where it was found out, and what follows is read on from there. A call that has begun and breaks off is
//!   over, and what follows is text again. A missing end tag is forgiven.
//! - Newlines that touch the tags of reasoning or of a call are formatting and belong to neither side. So do the blanks
//!   between a call's object and its end tag, and the part of that tag that came if the text ends there.
//!
//! Invariant: all else comes out exactly as it came in, and the pieces, neighbours of a kind joined, do not depend on how the
//! text was cut. Held back is only what may yet turn out to be formatting: newlines, the beginning of a tag, a call without
//! a name of at most [`MAX_HELD_CALL_BYTES`], an open escape. Each character is looked at a bounded number of times.

mod call;
mod json;
#[cfg(test)]
mod tests;

use call::{CallReader, CallStep};
use serde::{Deserialize, Serialize};

/// Longest beginning of a call without its name, in bytes with its tag; what is longer is text.
pub const MAX_HELD_CALL_BYTES: usize = 1 << 20;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// A piece of an answer, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What is meant for the user.
    Text(String),
    /// What the model thought before.
    Reasoning(String),
    /// A tool call begins; its arguments follow.
    Call {
        /// Counts the answer's calls from 0.
        index: u32,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments: JSON text, never cut within an escape. All pieces together are one JSON value as the
    /// model wrote it, or its beginning if the call broke off.
    Arguments {
        /// The call's.
        index: u32,
        /// The next part of the text.
        json: String,
    },
    /// The call is complete, or broke off.
    CallEnd {
        /// The call's.
        index: u32,
    },
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallStyle {
    /// Not at all, or in no way that is known here.
    #[default]
    None,
    /// `{"name": ..., "arguments": {...}}` in `<tool_call>` and `</tool_call>`, as Hermes and Qwen do.
    Hermes,
}

/// How a model writes reasoning and calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeechStyle {
    /// Whether it thinks in `<think>` and `</think>`.
    pub reasoning: bool,
    /// How it calls tools.
    pub calls: CallStyle,
    /// Whether the answer begins within reasoning that the prompt has opened; without `reasoning` it means nothing.
    pub starts_in_reasoning: bool,
}

impl SpeechStyle {
    /// What a chat template's source says of its model: the tags that it names.
    pub fn of_template(source: &str) -> Self {
        Self {
            reasoning: source.contains(THINK) || source.contains(THINK_END),
            calls: if source.contains(CALL) { CallStyle::Hermes } else { CallStyle::None },
            starts_in_reasoning: false,
        }
    }
}

/// Whether a rendered prompt ends with reasoning just opened, so that the answer begins within it.
pub fn opens_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Whether a message, as far as it has come, is within its reasoning.
pub(crate) fn is_in_reasoning(message: &str) -> bool {
    message.trim_start().starts_with(THINK) && !message.contains(THINK_END)
}

/// Whether a token's whole text is a tag of reasoning or of a call.
pub(crate) fn is_tag(token: &str) -> bool {
    [THINK, THINK_END, CALL, CALL_END].contains(&token)
}

/// Reads one answer.
#[derive(Debug, Clone)]
pub struct SpeechReader {
    style: SpeechStyle,
    state: State,
    /// Newlines held back before `tag`.
    newlines: usize,
    /// The beginning of a tag.
    tag: String,
    /// Whether newlines that come now touch a tag.
    is_after_tag: bool,
    /// Whether there was text or a call, so that no reasoning can follow.
    has_begun: bool,
    /// Calls that have begun.
    calls: u32,
}

#[derive(Debug, Clone)]
enum State {
    Text,
    Reasoning,
    /// Within a call without a name; `held` is what came of it, with the newlines before.
    Unnamed {
        reader: CallReader,
        held: String,
    },
    /// Within the call that was begun last.
    Named(CallReader),
    /// After a call's object, and the blanks that followed it.
    CallOver {
        blanks: String,
    },
}

impl SpeechReader {
    /// For an answer from its beginning.
    pub fn new(style: SpeechStyle) -> Self {
        let starts_in_reasoning = style.reasoning && style.starts_in_reasoning;
        Self {
            style,
            state: if starts_in_reasoning { State::Reasoning } else { State::Text },
            newlines: 0,
            tag: String::with_capacity(CALL_END.len()),
            is_after_tag: starts_in_reasoning,
            has_begun: false,
            calls: 0,
        }
    }

    /// Takes the next of the text and gives what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = if self.is_plain() { rest.find(['<', '\n']).unwrap_or(rest.len()) } else { 0 };
            if plain > 0 {
                self.say(&rest[..plain], &mut out);
                rest = &rest[plain..];
            } else {
                self.read(c, &mut out);
                rest = &rest[c.len_utf8()..];
            }
        }
        if let State::Named(reader) = &mut self.state {
            give_arguments(reader, self.calls - 1, &mut out);
        }
        out
    }

    /// The text is over: gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut out = Vec::new();
        match &mut self.state {
            State::Text | State::Reasoning => self.release(&mut out),
            State::Unnamed { held, .. } => {
                let held = std::mem::take(held);
                self.give_back(&held, &mut out);
                self.release(&mut out);
            }
            State::Named(_) => self.end_call(&mut out),
            State::CallOver { .. } => {}
        }
        self.state = State::Text;
        self.tag.clear();
        out
    }

    /// Whether nothing is held and only `<` and newlines need a look.
    fn is_plain(&self) -> bool {
        matches!(self.state, State::Text | State::Reasoning)
            && !self.is_after_tag
            && self.newlines == 0
            && self.tag.is_empty()
    }

    fn read(&mut self, c: char, out: &mut Vec<Piece>) {
        match &mut self.state {
            State::Text | State::Reasoning => self.read_text(c, out),
            State::Unnamed { .. } => self.read_unnamed(c, out),
            State::Named(reader) => match reader.push(c) {
                Ok(CallStep::End) => self.end_call(out),
                Ok(_) => {}
                Err(_) => {
                    self.end_call(out);
                    self.read(c, out);
                }
            },
            State::CallOver { .. } => self.read_call_over(c, out),
        }
    }

    fn read_text(&mut self, c: char, out: &mut Vec<Piece>) {
        if c == '\n' && self.tag.is_empty() {
            self.newlines += usize::from(!self.is_after_tag);
            return;
        }
        self.is_after_tag = false;
        self.tag.push(c);
        let tags = self.tags();
        if tags.contains(&self.tag.as_str()) {
            self.open();
        } else if !tags.iter().any(|tag| tag.starts_with(&self.tag)) {
            self.tag.pop();
            if self.newlines == 0 && self.tag.is_empty() {
                self.say(c.encode_utf8(&mut [0; 4]), out);
            } else {
                self.release(out);
                self.read_text(c, out);
            }
        }
    }

    /// The tags that count here; an empty one is none.
    fn tags(&self) -> [&'static str; 2] {
        let is_reasoning = matches!(self.state, State::Reasoning);
        let think = match is_reasoning {
            true => THINK_END,
            false if self.style.reasoning && !self.has_begun => THINK,
            false => "",
        };
        let has_calls = !is_reasoning && self.style.calls == CallStyle::Hermes;
        [think, if has_calls { CALL } else { "" }]
    }

    /// `tag` is complete.
    fn open(&mut self) {
        let newlines = std::mem::take(&mut self.newlines);
        self.is_after_tag = self.tag != CALL;
        self.state = match self.tag.as_str() {
            THINK => State::Reasoning,
            CALL => State::Unnamed { reader: CallReader::new(), held: "\n".repeat(newlines) + CALL },
            _ => State::Text,
        };
        self.tag.clear();
    }

    fn read_unnamed(&mut self, c: char, out: &mut Vec<Piece>) {
        let State::Unnamed { reader, held } = &mut self.state else {
            unreachable!("only called there");
        };
        let step = reader.push(c);
        match step {
            Ok(CallStep::Named(name)) => {
                out.push(Piece::Call { index: self.calls, name });
                self.calls += 1;
                self.has_begun = true;
                self.state = State::Named(std::mem::replace(reader, CallReader::new()));
            }
            Ok(_) if held.len() + c.len_utf8() <= MAX_HELD_CALL_BYTES => held.push(c),
            _ => {
                let held = std::mem::take(held);
                self.give_back(&held, out);
                self.read(c, out);
            }
        }
    }

    /// What was taken for the beginning of a call is text. The newlines at its end may touch the next tag.
    fn give_back(&mut self, held: &str, out: &mut Vec<Piece>) {
        let text = held.trim_end_matches('\n');
        self.state = State::Text;
        self.say(text, out);
        self.newlines = held.len() - text.len();
    }

    fn end_call(&mut self, out: &mut Vec<Piece>) {
        let index = self.calls - 1;
        if let State::Named(reader) = &mut self.state {
            give_arguments(reader, index, out);
        }
        out.push(Piece::CallEnd { index });
        self.state = State::CallOver { blanks: String::new() };
    }

    /// Looks for the end tag; anything else is text.
    fn read_call_over(&mut self, c: char, out: &mut Vec<Piece>) {
        let State::CallOver { blanks } = &mut self.state else { unreachable!("only called there") };
        if self.tag.is_empty() && json::is_blank(c) {
            blanks.push(c);
            return;
        }
        self.tag.push(c);
        if self.tag == CALL_END {
            self.open();
        } else if !CALL_END.starts_with(&self.tag) {
            self.tag.pop();
            let held = std::mem::take(blanks) + &self.tag;
            self.tag.clear();
            self.state = State::Text;
            held.chars().chain([c]).for_each(|c| self.read(c, out));
        }
    }

    /// What is held back is no formatting.
    fn release(&mut self, out: &mut Vec<Piece>) {
        let held = "\n".repeat(std::mem::take(&mut self.newlines)) + &self.tag;
        self.tag.clear();
        self.say(&held, out);
    }

    /// Text or reasoning.
    fn say(&mut self, said: &str, out: &mut Vec<Piece>) {
        if said.is_empty() {
            return;
        }
        let is_reasoning = matches!(self.state, State::Reasoning);
        self.has_begun |= !is_reasoning;
        match (out.last_mut(), is_reasoning) {
            (Some(Piece::Text(last)), false) | (Some(Piece::Reasoning(last)), true) => last.push_str(said),
            (_, false) => out.push(Piece::Text(said.to_owned())),
            (_, true) => out.push(Piece::Reasoning(said.to_owned())),
        }
    }
}

fn give_arguments(reader: &mut CallReader, index: u32, out: &mut Vec<Piece>) {
    if let Some(json) = reader.take_arguments() {
        out.push(Piece::Arguments { index, json });
    }
}
