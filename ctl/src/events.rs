//! A job's events on their way to stdout.
//!
//! Invariant: each event is printed once and in order, whatever is read again after a lost connection.
//!
//! With `--json` each event is one line: `{"offset":3,"event":"text","choice":0,"text":"..","tokens":1}`, where `event` is
//! `queued`, `started`, `text`, `finished` or `failed` and the other members are the event's own (`docs/SOCKET.md`).

use crate::{failure::Failure, output, units};
use serde_json::{Map, Value};
use std::io::{self, IsTerminal};
use zllm_wire::{Event, FinishReason, Usage, limits};

/// Prints events and remembers what it has seen.
pub(crate) struct Printer {
    json: bool,
    /// Offset of the first event that was asked for.
    from: u64,
    /// Offset of the next event that was not printed yet.
    pub(crate) next_offset: u64,
    /// All text of the first answer so far.
    pub(crate) text: String,
    /// The other answers so far; they are shown when the first is.
    others: Vec<String>,
    end: Option<End>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// By itself or by a client.
    Finished(FinishReason, Usage),
    /// By an error.
    Failed(String),
}

impl Printer {
    /// A printer whose first event has the offset `from`.
    pub(crate) fn new(json: bool, from: u64) -> Self {
        Self { json, from, next_offset: from, text: String::new(), others: Vec::new(), end: None }
    }

    /// Prints an event; one that was printed before is dropped.
    pub(crate) fn event(&mut self, offset: u64, event: Event) -> Result<(), Failure> {
        if offset < self.next_offset {
            return Ok(());
        }
        if offset > self.next_offset {
            let (missing, upto) = (self.next_offset, offset);
            return Err(Failure::Failed(format!("the daemon skipped events {missing} to {upto}")));
        }
        self.next_offset += 1;
        if self.json {
            output::print_json(&json_line(offset, &event)?)?;
        }
        match event {
            Event::Queued { .. } | Event::Started { .. } => {}
            Event::Text { choice: 0, text, .. } => {
                if !self.json {
                    output::print(&output::foreign(&text))?;
                }
                self.text.push_str(&text);
            }
            Event::Text { choice, text, .. } => {
                if choice > limits::MAX_CHOICES {
                    return Err(Failure::Failed(format!("the daemon sent text of answer {choice}")));
                }
                let place = choice as usize - 1;
                if self.others.len() <= place {
                    self.others.resize_with(place + 1, String::new);
                }
                self.others[place].push_str(&text);
            }
            Event::Finished { reason, usage, .. } => self.end = Some(End::Finished(reason, usage)),
            Event::Failed { message } => self.end = Some(End::Failed(message)),
        }
        Ok(())
    }

    /// Ends the text with a line feed if it has none of its own, and prints the other answers behind it, each under a line
    /// with its number.
    pub(crate) fn end_line(&self) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let end = |text: &str| if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let mut rest = end(&self.text).to_owned();
        for (choice, text) in (1..).zip(&self.others) {
            rest.push_str(&format!("--- answer {choice}\n{}{}", output::foreign(text), end(text)));
        }
        if rest.is_empty() { Ok(()) } else { output::print(&rest) }
    }

    /// Whether the job's last event was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether what comes next on a terminal would stand behind text of the answer.
    pub(crate) fn is_within_a_line(&self) -> bool {
        let both = io::stdout().is_terminal() && io::stderr().is_terminal();
        both && !self.json && !self.text.is_empty() && !self.text.ends_with('\n')
    }

    /// What a finished job took, or why there is nothing to tell.
    pub(crate) fn outcome(&self) -> Result<Usage, Failure> {
        match &self.end {
            Some(End::Finished(FinishReason::Cancelled, _)) => {
                Err(Failure::Failed("the job was cancelled".into()))
            }
            Some(End::Finished(_, usage)) => Ok(*usage),
            Some(End::Failed(message)) => Err(Failure::Failed(message.clone())),
            None if self.from > 0 && self.next_offset == self.from => {
                Err(Failure::Refused(format!("the job has ended and its log has no event {}", self.from)))
            }
            None => Err(Failure::Failed("the daemon ended the stream before the job had ended".into())),
        }
    }
}

fn json_line(offset: u64, event: &Event) -> Result<Value, Failure> {
    let error = |error: serde_json::Error| Failure::Failed(format!("cannot print an event as JSON: {error}"));
    let mut line = Map::new();
    line.insert("offset".into(), offset.into());
    // An event is an object of one member: its name, and an object of what it says.
    if let Value::Object(tagged) = serde_json::to_value(event).map_err(error)? {
        for (name, fields) in tagged {
            line.insert("event".into(), name.into());
            if let Value::Object(mut fields) = fields {
                // Empty where none were asked for.
                fields.retain(|name, value| name != "logprobs" || *value != Value::Array(Vec::new()));
                line.extend(fields);
            }
        }
    }
    Ok(Value::Object(line))
}

/// `prompt 23 tokens (16 cached in RAM), generated 45 tokens, first token after 0.12 s, 67.3 tokens/s`.
pub(crate) fn stats_line(usage: &Usage) -> String {
    let prompt = units::count(usage.prompt_tokens, "token");
    let generated = units::count(usage.generated_tokens, "token");
    let first = units::duration_ms(usage.first_token_ms);
    let cached = units::cached(usage.cached_tokens, &usage.cached_by_tier);
    let mut line = format!("prompt {prompt} ({cached}), generated {generated}, first token after {first}");
    // The first token comes with the prefill, so the rate counts those after it.
    if usage.generated_tokens > 1 && usage.decode_ms > 0.0 {
        let rate = (usage.generated_tokens - 1) as f64 / (usage.decode_ms / 1000.0);
        line.push_str(&format!(", {rate:.1} tokens/s"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use zllm_wire::{ChoiceEnd, StopCause, TokenLogprob, TokenTiers};

    fn text(text: &str) -> Event {
        Event::Text { choice: 0, text: text.into(), tokens: 1, logprobs: vec![] }
    }

    #[test]
    fn events_are_taken_once_and_in_order() {
        let mut printer = Printer::new(true, 4);
        printer.event(4, text("a")).unwrap();
        printer.event(3, text("x")).unwrap();
        printer.event(4, text("a")).unwrap();
        printer.event(5, text("b")).unwrap();
        assert_eq!((printer.text.as_str(), printer.next_offset), ("ab", 6));
        assert!(matches!(printer.event(7, text("c")), Err(Failure::Failed(_))));
        assert!(matches!(printer.outcome(), Err(Failure::Failed(_))));
    }

    #[test]
    fn an_offset_behind_the_end_is_named() {
        let message = Printer::new(false, 9).outcome().unwrap_err();
        assert!(matches!(message, Failure::Refused(why) if why.contains("no event 9")));
        assert!(matches!(Printer::new(false, 0).outcome(), Err(Failure::Failed(_))));
    }

    #[test]
    fn lines_for_programs() {
        let stop = Some(StopCause::Token { token: 5 });
        let choices = vec![ChoiceEnd { reason: FinishReason::Stop, stop }];
        let finished = Event::Finished { reason: FinishReason::Stop, choices, usage: Usage::default() };
        let line = json_line(7, &finished).unwrap().to_string();
        let start = concat!(
            r#"{"offset":7,"event":"finished","reason":"stop","#,
            r#""choices":[{"reason":"stop","stop":{"token":{"token":5}}}],"usage":{"prompt_tokens":0,"#
        );
        assert!(line.starts_with(start), "{line}");
        let line = json_line(3, &text("a")).unwrap().to_string();
        assert_eq!(line, r#"{"offset":3,"event":"text","choice":0,"text":"a","tokens":1}"#);
        let logprobs =
            vec![TokenLogprob { token: 7, bytes: b"a".to_vec(), logprob: -0.5, offset: 4, top: vec![] }];
        let told = Event::Text { choice: 1, text: "a".into(), tokens: 1, logprobs };
        let line = json_line(3, &told).unwrap().to_string();
        let end = r#""logprobs":[{"token":7,"bytes":[97],"logprob":-0.5,"offset":4,"top":[]}]}"#;
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn stats() {
        let usage = Usage {
            prompt_tokens: 23,
            cached_tokens: 16,
            cached_by_tier: TokenTiers { device: 10, ram: 6, ssd: 0 },
            generated_tokens: 46,
            first_token_ms: 120.0,
            decode_ms: 500.0,
            ..Usage::default()
        };
        let line = "prompt 23 tokens (16 cached: 10 on device, 6 in RAM), generated 46 tokens, first token after 0.12 s, \
                    90.0 tokens/s";
        assert_eq!(stats_line(&usage), line);
        let one = Usage { generated_tokens: 1, ..usage };
        assert!(stats_line(&one).ends_with("generated 1 token, first token after 0.12 s"));
    }
}
