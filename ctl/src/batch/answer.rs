//! A job's events put together to the body that OpenAI's APIs answer with.

use super::body::Endpoint;
use crate::failure::Failure;
use serde_json::{Map, Value, json};
use zllm_wire::{Event, FinishReason, JobId, TokenLogprob, Usage, limits::MAX_CHOICES};

/// What of a job's log has come.
#[derive(Debug, Default)]
pub(crate) struct Answering {
    next_offset: u64,
    choices: Vec<Choice>,
    end: Option<End>,
}

#[derive(Debug, Default)]
struct Choice {
    text: String,
    logprobs: Vec<TokenLogprob>,
    reason: Option<FinishReason>,
}

#[derive(Debug)]
enum End {
    Finished(FinishReason, Usage),
    Failed(String),
}

/// What came of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It was answered.
    Done {
        /// As OpenAI's API would answer it.
        body: Value,
        /// Tokens that were generated.
        tokens: u64,
    },
    /// It was not.
    Failed {
        /// One word for programs.
        code: &'static str,
        /// Why.
        message: String,
    },
}

impl Answering {
    /// Takes the next event.
    ///
    /// # Errors
    /// It is not the next one, or makes no sense.
    pub(crate) fn event(&mut self, offset: u64, event: Event) -> Result<(), Failure> {
        if offset != self.next_offset {
            let wanted = self.next_offset;
            return Err(Failure::Failed(format!(
                "the daemon sent event {offset} of a job, not event {wanted}"
            )));
        }
        self.next_offset += 1;
        match event {
            Event::Queued { .. } | Event::Started { .. } => {}
            Event::Text { choice, text, logprobs, .. } => {
                let choice = self.choice(choice)?;
                choice.text.push_str(&text);
                choice.logprobs.extend(logprobs);
            }
            Event::Finished { reason, choices, usage } => {
                for (number, end) in (0..).zip(choices) {
                    self.choice(number)?.reason = Some(end.reason);
                }
                self.end = Some(End::Finished(reason, usage));
            }
            Event::Failed { message } => self.end = Some(End::Failed(message)),
        }
        Ok(())
    }

    fn choice(&mut self, number: u32) -> Result<&mut Choice, Failure> {
        if number >= MAX_CHOICES {
            return Err(Failure::Failed(format!("the daemon sent text of answer {number}")));
        }
        let place = number as usize;
        if self.choices.len() <= place {
            self.choices.resize_with(place + 1, Choice::default);
        }
        Ok(&mut self.choices[place])
    }

    /// What the whole log says; `created` is in seconds since the Unix epoch.
    ///
    /// # Errors
    /// The log has no end.
    pub(crate) fn outcome(
        self,
        endpoint: Endpoint,
        job: &JobId,
        model: &str,
        created: u64,
    ) -> Result<Outcome, Failure> {
        let usage = match self.end {
            None => {
                return Err(Failure::Failed(format!(
                    "the daemon ended the log of job {job} before the job had ended"
                )));
            }
            Some(End::Failed(message)) => return Ok(Outcome::Failed { code: "server_error", message }),
            Some(End::Finished(FinishReason::Cancelled, _)) => {
                let message = format!("job {job} was cancelled");
                return Ok(Outcome::Failed { code: "batch_cancelled", message });
            }
            Some(End::Finished(_, usage)) => usage,
        };
        let (prefix, object) = match endpoint {
            Endpoint::Chat => ("chatcmpl", "chat.completion"),
            Endpoint::Completions => ("cmpl", "text_completion"),
        };
        let choices: Vec<Value> =
            (0..).zip(&self.choices).map(|(index, choice)| choice.told(endpoint, index)).collect();
        let body = json!({
            "id": format!("{prefix}-{job}"),
            "object": object,
            "created": created,
            "model": model,
            "choices": choices,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.generated_tokens,
                "total_tokens": usage.prompt_tokens + usage.generated_tokens,
                "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
            },
        });
        Ok(Outcome::Done { body, tokens: usage.generated_tokens })
    }
}

impl Choice {
    fn told(&self, endpoint: Endpoint, index: u32) -> Value {
        let reason = match self.reason {
            Some(FinishReason::Length) => "length",
            _ => "stop",
        };
        match endpoint {
            Endpoint::Chat => json!({
                "index": index,
                "message": { "role": "assistant", "content": self.text, "refusal": null },
                "logprobs": self.chat_logprobs(),
                "finish_reason": reason,
            }),
            Endpoint::Completions => json!({
                "index": index,
                "text": self.text,
                "logprobs": self.completion_logprobs(),
                "finish_reason": reason,
            }),
        }
    }

    /// The tokens that the text is made of; not those that ended it.
    fn tokens_of_text(&self) -> impl Iterator<Item = &TokenLogprob> {
        let end = self.text.len() as u64;
        self.logprobs.iter().filter(move |token| token.offset < end)
    }

    fn chat_logprobs(&self) -> Value {
        if self.logprobs.is_empty() {
            return Value::Null;
        }
        let told = |bytes: &[u8], logprob: f32| json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes });
        let content = self.tokens_of_text().map(|token| {
            let mut entry = told(&token.bytes, token.logprob);
            entry["top_logprobs"] = token.top.iter().map(|top| told(&top.bytes, top.logprob)).collect();
            entry
        });
        json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
    }

    fn completion_logprobs(&self) -> Value {
        if self.logprobs.is_empty() {
            return Value::Null;
        }
        let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for token in self.tokens_of_text() {
            tokens.push(String::from_utf8_lossy(&token.bytes));
            logprobs.push(token.logprob);
            let top = token
                .top
                .iter()
                .map(|top| (String::from_utf8_lossy(&top.bytes).into_owned(), Value::from(top.logprob)));
            tops.push(top.collect::<Map<_, _>>());
            offsets.push(self.characters_before(token.offset));
        }
        json!({ "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
    }

    /// OpenAI counts characters, the daemon bytes. A token may begin within a character: it counts as begun.
    fn characters_before(&self, byte: u64) -> usize {
        self.text.char_indices().take_while(|(at, _)| (*at as u64) < byte).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zllm_wire::{ChoiceEnd, StopCause, TopLogprob};

    fn job() -> JobId {
        JobId::new("j-01").unwrap()
    }

    fn token(bytes: &[u8], offset: u64) -> TokenLogprob {
        let top = vec![TopLogprob { token: 7, bytes: b"x".to_vec(), logprob: -0.25 }];
        TokenLogprob { token: 9, bytes: bytes.to_vec(), logprob: -0.5, offset, top }
    }

    fn text(choice: u32, text: &str, logprobs: Vec<TokenLogprob>) -> Event {
        Event::Text { choice, text: text.into(), tokens: 1, logprobs }
    }

    fn finished(reasons: &[FinishReason]) -> Event {
        let end = |reason: &FinishReason| ChoiceEnd {
            reason: *reason,
            stop: (*reason == FinishReason::Stop).then_some(StopCause::EndOfText { token: 2 }),
        };
        let usage = Usage { prompt_tokens: 5, cached_tokens: 4, generated_tokens: 3, ..Usage::default() };
        let reason = *reasons.iter().max_by_key(|reason| **reason as u8).unwrap();
        Event::Finished { reason, choices: reasons.iter().map(end).collect(), usage }
    }

    fn outcome(endpoint: Endpoint, events: Vec<Event>) -> Outcome {
        let mut answering = Answering::default();
        for (offset, event) in (0..).zip(events) {
            answering.event(offset, event).unwrap();
        }
        answering.outcome(endpoint, &job(), "m", 1_700_000_000).unwrap()
    }

    #[test]
    fn a_conversation_is_answered_by_a_message() {
        let events = vec![
            Event::Queued { position: 1 },
            text(0, "né", vec![token(b"n\xc3", 0), token(b"\xa9", 2)]),
            text(1, "b", vec![]),
            text(0, "", vec![token(b"", 3)]),
            finished(&[FinishReason::Stop, FinishReason::Length]),
        ];
        let Outcome::Done { body, tokens: 3 } = outcome(Endpoint::Chat, events) else { panic!("it is done") };
        let top = json!([{"token": "x", "logprob": -0.25, "bytes": [120]}]);
        let wanted = json!({
            "id": "chatcmpl-j-01",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "né", "refusal": null},
                    "logprobs": {
                        "content": [
                            {"token": "n\u{fffd}", "logprob": -0.5, "bytes": [110, 195], "top_logprobs": top},
                            {"token": "\u{fffd}", "logprob": -0.5, "bytes": [169], "top_logprobs": top},
                        ],
                        "refusal": null
                    },
                    "finish_reason": "stop",
                },
                {
                    "index": 1,
                    "message": {"role": "assistant", "content": "b", "refusal": null},
                    "logprobs": null,
                    "finish_reason": "length",
                },
            ],
            "usage": {
                "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        });
        assert_eq!(body, wanted);
    }

    #[test]
    fn a_completion_counts_characters() {
        let events = vec![
            text(0, "éa!", vec![token("é".as_bytes(), 0), token(b"a", 2), token(b"!", 3), token(b"", 4)]),
            finished(&[FinishReason::Stop]),
        ];
        let Outcome::Done { body, .. } = outcome(Endpoint::Completions, events) else { panic!("it is done") };
        let top = json!({"x": -0.25});
        let wanted = json!([{
            "index": 0,
            "text": "éa!",
            "logprobs": {
                "tokens": ["é", "a", "!"],
                "token_logprobs": [-0.5, -0.5, -0.5],
                "top_logprobs": [top, top, top],
                "text_offset": [0, 1, 2],
            },
            "finish_reason": "stop",
        }]);
        assert_eq!(
            (&body["choices"], &body["object"], &body["id"]),
            (&wanted, &json!("text_completion"), &json!("cmpl-j-01"))
        );
    }

    #[test]
    fn what_did_not_end_well_has_a_code() {
        let failed = outcome(Endpoint::Chat, vec![Event::Failed { message: "out of time".into() }]);
        assert_eq!(failed, Outcome::Failed { code: "server_error", message: "out of time".into() });
        let cancelled =
            outcome(Endpoint::Chat, vec![text(0, "a", vec![]), finished(&[FinishReason::Cancelled])]);
        assert_eq!(
            cancelled,
            Outcome::Failed { code: "batch_cancelled", message: "job j-01 was cancelled".into() }
        );
    }

    #[test]
    fn a_log_that_makes_no_sense_is_an_error() {
        let mut answering = Answering::default();
        answering.event(0, text(0, "a", vec![])).unwrap();
        assert!(answering.event(2, text(0, "a", vec![])).is_err());
        assert!(answering.event(1, text(MAX_CHOICES, "a", vec![])).is_err());
        let unended = answering.outcome(Endpoint::Chat, &job(), "m", 0);
        assert!(matches!(unended, Err(Failure::Failed(why)) if why.contains("before the job had ended")));
    }
}
